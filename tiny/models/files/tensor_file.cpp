#include "tiny/models/files/tensor_file.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <set>

#include "tiny/base/error.h"
#include "tiny/base/parallel.h"
#include "tiny/ir/sizes.h"
#include "tiny/models/files/formats/gguf.h"
#include "tiny/models/files/formats/shard_index.h"
#include "tiny/tensor/pieces.h"
#include "tiny/train/safetensors.h"

namespace tiny {

namespace {

namespace fs = std::filesystem;

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += cat(text.empty() ? "" : ", ", name);
  return text;
}

bool is_there(const fs::path& path) {
  std::error_code status;
  return fs::exists(path, status);
}

// Whether a name is of a part of several GGUF files other than the first.
bool is_later_part(const std::string& name) {
  constexpr std::string_view kFirst = "-00001-of-00001.gguf";
  if (name.size() < kFirst.size()) return false;
  const std::string end = name.substr(name.size() - kFirst.size());
  return end[0] == '-' && end.substr(6, 4) == "-of-" && end.substr(1, 5) != "00001";
}

// The file of a folder that holds a model.
std::string model_in(const fs::path& folder) {
  std::vector<std::string> indices, safetensors, gguf;
  std::error_code status;
  for (fs::directory_iterator at(folder, status), end; !status && at != end; at.increment(status)) {
    const std::string name = at->path().filename().string();
    if (name == "model.safetensors") return at->path().string();
    if (name.ends_with(".safetensors.index.json")) indices.push_back(name);
    if (name.ends_with(".safetensors")) safetensors.push_back(name);
    if (name.ends_with(".gguf") && !is_later_part(name)) gguf.push_back(name);
  }
  check(!status, "cannot list the folder ", folder.string(), ": ", status.message());
  for (std::vector<std::string>* found : {&indices, &safetensors, &gguf}) {
    std::ranges::sort(*found);
    if (found->size() == 1) return (folder / found->front()).string();
    check(found->empty(), folder.string(),
          " has several models, name one of them: ", listed(*found));
  }
  throw Error(cat(folder.string(), " has no model: neither *.safetensors nor *.gguf"));
}

bool is_gguf_file(const std::string& path) {
  const InputFile file("tensor file", path);
  char magic[4] = "";
  return read_some(file.descriptor(), 0, magic, sizeof magic) == sizeof magic &&
         std::memcmp(magic, "GGUF", sizeof magic) == 0;
}

}  // namespace

TensorFile::TensorFile(const std::string& path) : path_(path) {
  std::error_code status;
  const std::string file = fs::is_directory(path, status) ? model_in(path) : path;
  is_gguf_ = file.ends_with(".gguf") || is_gguf_file(file);
  if (is_gguf_)
    open_gguf_parts(file);
  else if (file.ends_with(".json"))
    open_index(file);
  else
    open_safetensors(file);
}

void TensorFile::add(FileTensor tensor) {
  const auto [at, is_new] = places_.try_emplace(tensor.name, tensors_.size());
  if (!is_new)
    throw Error(cat(path_, ": tensor ", tensor.name, " is in ", file_name(tensors_[at->second]),
                    " and in ", file_name(tensor)));
  tensors_.push_back(std::move(tensor));
}

void TensorFile::open_safetensors(const std::string& path) {
  files_.emplace_back("safetensors", path);
  SafetensorsHeader header = read_safetensors_header(files_.back());
  for (SafetensorsEntry& e : header.entries)
    add({std::move(e.name), &stored_type(e.type->name), std::move(e.shape), files_.size() - 1,
         e.begin, e.bytes});
  for (const auto& [key, text] : header.metadata)
    if (!metadata_.contains(key)) metadata_.set(key, text);
}

void TensorFile::open_index(const std::string& path) {
  ShardIndex index = read_shard_index(path);
  metadata_ = std::move(index.metadata);
  const fs::path folder = fs::path(path).parent_path();
  std::set<std::string> names;
  for (const auto& [tensor, file] : index.shards) names.insert(file);
  std::vector<std::string> missing;
  for (const std::string& name : names)
    if (!is_there(folder / name)) missing.push_back(name);
  check(missing.empty(), "safetensors: of the ", names.size(), " files that ", path, " names, ",
        missing.size(), " are missing: ", listed(missing));
  for (const std::string& name : names) open_safetensors((folder / name).string());
  for (const auto& [tensor, file] : index.shards) {
    const FileTensor* found = find(tensor);
    const std::string there = (folder / file).string();
    check(found != nullptr && file_name(*found) == there, "safetensors: ", path, " says that ",
          there, " has tensor ", tensor, ", which it has not");
  }
}

void TensorFile::open_gguf(const std::string& path) {
  files_.emplace_back("gguf", path);
  GgufHeader header = read_gguf_header(files_.back());
  for (GgufTensor& t : header.tensors)
    add({std::move(t.name), t.type, std::move(t.shape), files_.size() - 1, t.begin, t.bytes});
  for (const auto& [key, value] : header.metadata.items())
    if (!metadata_.contains(key)) metadata_.set(key, value);
}

// llama.cpp's gguf-split names the parts and tells their number in split.count.
void TensorFile::open_gguf_parts(const std::string& first) {
  open_gguf(first);
  const int64_t parts = metadata_.integer("split.count", 1);
  if (parts <= 1) return;
  const auto suffix = [&](int64_t part) {
    return formatted("-%05d-of-%05d.gguf", static_cast<int>(part), static_cast<int>(parts));
  };
  constexpr int64_t kMaxParts = 65535;  // it is an u16
  check(parts <= kMaxParts && first.ends_with(suffix(1)), "gguf: ", first, " is one of ", parts,
        " files: open the first of them, by a name that ends in ", suffix(1));
  const std::string stem = first.substr(0, first.size() - suffix(1).size());
  std::vector<std::string> missing;
  for (int64_t i = 2; i <= parts; ++i)
    if (!is_there(stem + suffix(i))) missing.push_back(stem + suffix(i));
  check(missing.empty(), "gguf: of the ", parts, " files that begin with ", first, ", ",
        missing.size(), " are missing: ", listed(missing));
  for (int64_t i = 2; i <= parts; ++i) open_gguf(stem + suffix(i));
}

const FileTensor* TensorFile::find(const std::string& name) const {
  const auto at = places_.find(name);
  return at == places_.end() ? nullptr : &tensors_[at->second];
}

const FileTensor& TensorFile::at(const std::string& name) const {
  const FileTensor* found = find(name);
  check(found != nullptr, path_, ": there is no tensor ", name, " among its ", tensors_.size());
  return *found;
}

std::span<const std::byte> TensorFile::bytes(const FileTensor& tensor) const {
  return files_[tensor.file].bytes(tensor.begin, tensor.bytes);
}

void TensorFile::release(const FileTensor& tensor) const {
  files_[tensor.file].release(tensor.begin, tensor.bytes);
}

namespace {

// Decodes elements to f32 and encodes those as another dtype, on all cores.
struct Conversion {
  const StoredType& from;
  const StoredType& to;

  // Gives both buffers the size that they need; the result is in `encoded`, or in `values` for f32.
  void operator()(const std::byte* stored, int64_t count, std::vector<float>& values,
                  std::vector<std::byte>& encoded) const {
    constexpr int64_t kPart = int64_t{1} << 17;  // whole blocks of every type
    values.resize(static_cast<size_t>(count));
    if (to.dtype != kF32) encoded.resize(static_cast<size_t>(count * to.bytes));
    in_parallel(static_cast<size_t>(ceil_div(count, kPart)), core_count(),
                [&](size_t part, size_t) {
                  const int64_t begin = static_cast<int64_t>(part) * kPart;
                  const int64_t size = std::min(kPart, count - begin);
                  float* decoded = values.data() + begin;
                  from.decode(stored + begin / from.elements * from.bytes, size, decoded);
                  if (to.dtype != kF32) to.encode(decoded, size, encoded.data() + begin * to.bytes);
                });
  }
};

// The values by way of f32, each piece converted when it is its turn.
Tensor load_decoded(const MappedFile& file, const FileTensor& t, DType dtype,
                    const std::string& device) {
  const Conversion convert{*t.type, *find_stored_type(dtype)};
  std::vector<float> values;
  std::vector<std::byte> encoded;
  const auto pieces = [&](int64_t begin, int64_t count) -> const void* {
    const int64_t at = t.begin + begin / t.type->elements * t.type->bytes;
    const int64_t size = count / t.type->elements * t.type->bytes;
    convert(file.bytes(at, size).data(), count, values, encoded);
    file.release(at, size);
    if (dtype == kF32) return values.data();
    return encoded.data();
  };
  return from_pieces(pieces, dtype, t.shape, device);
}

}  // namespace

Tensor TensorFile::load(const std::string& name, const std::string& device,
                        std::optional<DType> dtype) const {
  const FileTensor& t = at(name);
  const MappedFile& file = files_[t.file];
  const DType own = t.type->dtype, wanted = dtype.value_or(own == kVoid ? kF32 : own);
  if (own == kBool) check_bools(file, name, t.begin, t.bytes);
  if (own == wanted) return from_file(file, t.begin, own, t.shape, device);
  if (t.type->decode != nullptr && wanted.is_float()) return load_decoded(file, t, wanted, device);
  check(own != kVoid, path_, ": tensor ", name, " is of type ", t.type->name, ", which cannot be ",
        t.type->decode ? cat("loaded as ", wanted) : "decoded; load_stored() gives its bytes");
  return from_file(file, t.begin, own, t.shape, device).to(wanted).contiguous().realize();
}

Tensor TensorFile::load_stored(const std::string& name, const std::string& device) const {
  const FileTensor& t = at(name);
  Shape shape = {t.bytes};
  if (!t.shape.empty() && t.shape.back() % t.type->elements == 0) {
    shape = t.shape;
    shape.back() = shape.back() / t.type->elements * t.type->bytes;
  }
  return from_file(files_[t.file], t.begin, kU8, shape, device);
}

}  // namespace tiny
