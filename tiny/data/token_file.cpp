#include "tiny/data/token_file.h"

#include <cstring>

#include "tiny/base/error.h"

namespace tiny {

namespace {

void check_dtype(DType dtype) {
  check(dtype == kU16 || dtype == kU32, "token file: tokens are u16 or u32 and not ", dtype);
}

template <class T> void copy_tokens(const std::byte* from, std::vector<int32_t>& to) {
  for (size_t i = 0; i < to.size(); ++i) {
    T token;
    std::memcpy(&token, from + i * sizeof(T), sizeof(T));
    check(token <= static_cast<uint32_t>(INT32_MAX), "token file: the id ", token, ", at most ",
          INT32_MAX, " can be used");
    to[i] = static_cast<int32_t>(token);
  }
}

}  // namespace

TokenFile::TokenFile(const std::string& path, DType dtype)
    : file_("token file", path), dtype_(dtype) {
  check_dtype(dtype);
  check(file_.size() % dtype.size() == 0, "token file: ", path, " has ", file_.size(),
        " bytes, which are no whole tokens of ", dtype);
}

std::vector<int32_t> TokenFile::read(int64_t begin, int64_t count) const {
  check(begin >= 0 && count >= 0 && begin <= size() && count <= size() - begin,
        "token file: ", count, " tokens at ", begin, " of ", file_.path(), ", which has ", size());
  const auto bytes = file_.bytes(begin * dtype_.size(), count * dtype_.size());
  std::vector<int32_t> out(static_cast<size_t>(count));
  if (dtype_ == kU16)
    copy_tokens<uint16_t>(bytes.data(), out);
  else
    copy_tokens<uint32_t>(bytes.data(), out);
  return out;
}

Tensor TokenFile::windows(const std::vector<int64_t>& begins, int64_t length,
                          const std::string& device) const {
  std::vector<int32_t> all;
  for (const int64_t begin : begins) {
    const std::vector<int32_t> window = read(begin, length);
    all.insert(all.end(), window.begin(), window.end());
  }
  return Tensor::from(all, {static_cast<int64_t>(begins.size()), length}, device);
}

void write_tokens(const std::string& path, const std::vector<int32_t>& ids, DType dtype) {
  check_dtype(dtype);
  const auto size = static_cast<size_t>(dtype.size());
  std::string bytes(ids.size() * size, '\0');
  for (size_t i = 0; i < ids.size(); ++i) {
    check(ids[i] >= 0 && ids[i] <= int_max(dtype), "token file: the id ", ids[i], " does not fit ",
          dtype);
    std::memcpy(&bytes[i * size], &ids[i], size);  // little-endian
  }
  FileAside file("token file", path);
  file.write(bytes);
  file.commit();
}

int64_t tokenize_file(const std::string& text, const std::string& tokens, const Encode& encode,
                      DType dtype) {
  const std::vector<int32_t> ids = encode(InputFile("token file", text).read_all());
  write_tokens(tokens, ids, dtype);
  return static_cast<int64_t>(ids.size());
}

}  // namespace tiny
