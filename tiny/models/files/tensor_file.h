// A file of tensors, or a model in several of them: safetensors or GGUF, mapped, of which one
// tensor at a time comes onto the device that asks for it.
//
//   TensorFile file("model");  // a folder; or a file, an index of shards, the first part
//   for (const FileTensor& t : file.tensors()) std::cout << t.name << to_text(t.shape);
//   Tensor weight = file.load("model.embed_tokens.weight", "CUDA", kBF16);
#pragma once
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "tiny/base/file.h"
#include "tiny/models/files/formats/metadata.h"
#include "tiny/models/files/formats/stored_type.h"
#include "tiny/tensor/tensor.h"

namespace tiny {

struct FileTensor {
  std::string name;
  const StoredType* type;
  Shape shape;           // row-major
  size_t file;           // which of the files it is in
  int64_t begin, bytes;  // in that file
};

// The host holds a few megabytes of a tensor while it is loaded. May be used by several threads.
class TensorFile {
 public:
  // A file; an index of shards; the first of several GGUF files ("-00001-of-00003.gguf"); or a
  // folder with model.safetensors, with one index, with one *.safetensors or with one GGUF model.
  // Throws Error for a file that is missing or damaged, and for a folder with none or several.
  explicit TensorFile(const std::string& path);

  const std::string& path() const { return path_; }
  bool is_gguf() const { return is_gguf_; }
  // In the order of the files and of the data in them.
  const std::vector<FileTensor>& tensors() const { return tensors_; }
  const FileTensor* find(const std::string& name) const;  // nullptr: there is none
  const FileTensor& at(const std::string& name) const;    // Error: there is none
  const Metadata& metadata() const { return metadata_; }
  std::string file_name(const FileTensor& tensor) const { return files_[tensor.file].path(); }

  // The values in their own dtype (quantised ones: f32) or another one; rounded to nearest even.
  // Throws Error for a name that is not there and for types without a decoder.
  Tensor load(const std::string& name, const std::string& device = "",
              std::optional<DType> dtype = {}) const;
  // The bytes as they are stored: u8, a row of the tensor after the other. The last axis counts
  // bytes, or there is one axis where rows are no whole bytes.
  Tensor load_stored(const std::string& name, const std::string& device = "") const;
  // The same on the host. They count as memory of the process from when they are looked at until
  // release().
  std::span<const std::byte> bytes(const FileTensor& tensor) const;
  void release(const FileTensor& tensor) const;

 private:
  void open_safetensors(const std::string& path);
  void open_index(const std::string& path);
  void open_gguf(const std::string& path);
  void open_gguf_parts(const std::string& first);
  void add(FileTensor tensor);

  std::string path_;
  bool is_gguf_ = false;
  std::vector<MappedFile> files_;
  std::vector<FileTensor> tensors_;
  std::unordered_map<std::string, size_t> places_;  // in tensors_
  Metadata metadata_;
};

}  // namespace tiny
