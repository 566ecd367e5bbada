// Files of token ids as training reads them: unsigned integers of 16 or 32 bits, little-endian, one
// after the other and nothing else (train.bin of A. Karpathy's nanoGPT). A file is mapped, and of
// it only what is looked at is read.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tiny/base/file.h"
#include "tiny/tensor/tensor.h"

namespace tiny {

// May be used by several threads at once.
class TokenFile {
 public:
  // dtype: kU16 or kU32. Error for another one, a file that cannot be read or has no whole tokens.
  explicit TokenFile(const std::string& path, DType dtype = kU16);

  int64_t size() const { return file_.size() / dtype_.size(); }  // tokens
  // Tokens [begin, begin + count). Error unless they lie in the file, and for ids over 2^31 - 1.
  std::vector<int32_t> read(int64_t begin, int64_t count) const;
  // `length` tokens from each of these positions on: i32 (begins, length).
  Tensor windows(const std::vector<int64_t>& begins, int64_t length,
                 const std::string& device = "") const;

 private:
  MappedFile file_;
  DType dtype_;
};

// Writes such a file, aside and renamed. Error for ids that do not fit the dtype.
void write_tokens(const std::string& path, const std::vector<int32_t>& ids, DType dtype = kU16);

// Makes one of a text file and gives the number of tokens. The text is encoded as a whole, and so
// is in memory with its tokens.
//
//   const models::Tokenizer t = models::Tokenizer::load("gpt2/tokenizer.json");
//   tokenize_file("text.txt", "train.bin", [&](const std::string& s) { return t.encode(s); });
using Encode = std::function<std::vector<int32_t>(const std::string&)>;
int64_t tokenize_file(const std::string& text, const std::string& tokens, const Encode& encode,
                      DType dtype = kU16);

}  // namespace tiny
