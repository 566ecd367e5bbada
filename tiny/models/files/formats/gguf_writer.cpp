#include <bit>
#include <type_traits>
#include <unordered_set>

#include "tiny/base/error.h"
#include "tiny/ir/sizes.h"
#include "tiny/models/files/formats/gguf.h"

namespace tiny {

namespace {

constexpr size_t kMaxNameBytes = 63;  // ggml's GGML_MAX_NAME with its end
constexpr size_t kMaxKeyBytes = 65535, kMaxAxes = 4;

template <class T> void put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void put(std::string& out, const std::string& text) {
  put(out, static_cast<uint64_t>(text.size()));
  out += text;
}

void put(std::string& out, const MetadataArray& array) {
  put(out, static_cast<uint32_t>(array.values.index()));
  std::visit(
      [&](const auto& list) {
        using Element = typename std::decay_t<decltype(list)>::value_type;
        put(out, static_cast<uint64_t>(list.size()));
        for (const Element& element : list) put(out, element);
      },
      array.values);
}

class Writer {
 public:
  Writer(const std::string& path, const Metadata& metadata)
      : path_(path), alignment_(metadata.integer("general.alignment", 32)) {
    constexpr int64_t kMax = int64_t{1} << 30;
    require(alignment_ >= 8 && alignment_ <= kMax &&
                std::has_single_bit(static_cast<uint64_t>(alignment_)),
            "general.alignment is ", alignment_, ", expected a power of two of 8 to 2^30");
  }

  std::string header(const Metadata& metadata, const std::vector<OutputTensor>& tensors,
                     int version) const {
    std::string out = "GGUF";
    put(out, static_cast<uint32_t>(version));
    put(out, static_cast<uint64_t>(tensors.size()));
    put(out, static_cast<uint64_t>(metadata.items().size()));
    for (const auto& [key, value] : metadata.items()) {
      require(key.size() <= kMaxKeyBytes, "a metadata key has ", key.size(),
              " bytes, the format allows ", kMaxKeyBytes);
      put(out, key);
      put(out, static_cast<uint32_t>(value.index()));
      std::visit([&](const auto& v) { put(out, v); }, value);
    }
    int64_t offset = 0;
    std::unordered_set<std::string> names;
    for (const OutputTensor& tensor : tensors) {
      require(names.insert(tensor.name).second, "tensor ", tensor.name, " is given twice");
      put_tensor(out, tensor, offset);
      offset += round_up(bytes_of(tensor), alignment_);
    }
    out.resize(static_cast<size_t>(round_up(static_cast<int64_t>(out.size()), alignment_)));
    return out;
  }

  void write(FileAside& file, const OutputTensor& tensor) const {
    int64_t written = 0;
    const int64_t expected = bytes_of(tensor);
    tensor.write([&](std::string_view bytes) {
      file.write(bytes);
      written += static_cast<int64_t>(bytes.size());
    });
    require(written == expected, "tensor ", tensor.name, " of shape ", to_text(tensor.shape),
            " as ", tensor.type->name, " takes ", expected, " bytes, the data has ", written);
    file.write(std::string(static_cast<size_t>(round_up(expected, alignment_) - expected), '\0'));
  }

 private:
  template <class... Parts> void require(bool ok, const Parts&... parts) const {
    check(ok, "gguf: ", path_, ": ", parts...);
  }

  int64_t bytes_of(const OutputTensor& tensor) const {
    const auto bytes = tensor.type->bytes_of(tensor.shape);
    require(bytes.has_value(), "tensor ", tensor.name, ": the shape ", to_text(tensor.shape),
            " is none of ", tensor.type->name, ", whose blocks have ", tensor.type->elements,
            " elements");
    return *bytes;
  }

  void put_tensor(std::string& out, const OutputTensor& tensor, int64_t offset) const {
    require(tensor.type->gguf >= 0, "tensor ", tensor.name, ": the format has no type ",
            tensor.type->name);
    require(tensor.name.size() <= kMaxNameBytes, "tensor ", tensor.name, ": a name of ",
            tensor.name.size(), " bytes, the format allows ", kMaxNameBytes);
    require(tensor.shape.size() <= kMaxAxes, "tensor ", tensor.name, " has ", tensor.shape.size(),
            " axes, the format allows ", kMaxAxes);
    put(out, tensor.name);
    put(out, static_cast<uint32_t>(tensor.shape.size()));
    for (auto size = tensor.shape.rbegin(); size != tensor.shape.rend(); ++size)
      put(out, static_cast<uint64_t>(*size));
    put(out, static_cast<uint32_t>(tensor.type->gguf));
    put(out, static_cast<uint64_t>(offset));
  }

  const std::string& path_;
  const int64_t alignment_;
};

}  // namespace

void write_gguf(const std::string& path, const Metadata& metadata,
                const std::vector<OutputTensor>& tensors, int version) {
  check(version == 2 || version == 3, "gguf: ", path, ": there is no writing version ", version,
        ", expected 2 or 3");
  const Writer writer(path, metadata);
  const std::string header = writer.header(metadata, tensors, version);
  FileAside file("gguf", path);
  file.write(header);
  for (const OutputTensor& tensor : tensors) writer.write(file, tensor);
  file.commit();
}

}  // namespace tiny
