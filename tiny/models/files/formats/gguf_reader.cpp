#include <algorithm>
#include <bit>
#include <cstring>
#include <unordered_set>

#include "tiny/base/error.h"
#include "tiny/ir/sizes.h"
#include "tiny/models/files/formats/gguf.h"

namespace tiny {

namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr int kMaxDepth = 32;     // of arrays in arrays
constexpr uint32_t kMaxAxes = 4;  // of a tensor, as in ggml
constexpr uint64_t kMaxKeyBytes = 65535;
constexpr int64_t kMaxAlignment = int64_t{1} << 30;
// Of all before the tensors' data: no vocabulary comes near it, and a file may have holes that make
// it larger than the memory.
constexpr uint64_t kMaxHeaderBytes = uint64_t{256} << 20;
// The least bytes that a value of each kind takes, and an entry of each table.
constexpr uint64_t kMinBytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8};
constexpr uint64_t kMinItemBytes = 13, kMinTensorBytes = 24;

// A name as an error shows it: a line that is not too long.
std::string shown(std::string name) {
  constexpr size_t kShown = 80;
  if (name.size() > kShown) name.replace(kShown, std::string::npos, "...");
  for (char& c : name)
    if (static_cast<unsigned char>(c) < ' ' || c == '\x7f') c = '?';
  return name;
}

// Takes values from the file's begin on, and never looks beyond its end.
class Cursor {
 public:
  explicit Cursor(const MappedFile& file) : path_(file.path()), all_(file.bytes(0, file.size())) {}

  int64_t at() const { return at_; }

  template <class... Parts> [[noreturn]] void fail(const Parts&... parts) const {
    throw Error(cat("gguf: ", path_, ": ", parts...));
  }

  std::span<const std::byte> take(uint64_t count, const std::string& what) {
    if (count > left())
      fail("expected ", count, " bytes of ", what, " at byte ", at_, ", found ", left(), limit());
    const auto bytes = all_.subspan(static_cast<size_t>(at_), static_cast<size_t>(count));
    at_ += static_cast<int64_t>(count);
    return bytes;
  }

  template <class T> T number(const std::string& what) {
    T value;
    std::memcpy(&value, take(sizeof value, what).data(), sizeof value);
    return value;
  }

  std::string text(const std::string& what, uint64_t most = ~uint64_t{0}) {
    const auto length = number<uint64_t>("the length of " + what);
    if (length > most) fail(what, " has ", length, " bytes, the format allows ", most);
    const auto bytes = take(length, what);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  // A count of what takes at least so many bytes each, which the file has.
  uint64_t count(const std::string& what, uint64_t least_bytes) {
    const auto found = number<uint64_t>("the number of " + what);
    if (found > left() / least_bytes)
      fail("expected ", found, " ", what, " at byte ", at_, ", found only ", left(), " bytes",
           limit());
    return found;
  }

 private:
  uint64_t left() const {
    return std::min<uint64_t>(all_.size(), kMaxHeaderBytes) - static_cast<uint64_t>(at_);
  }
  std::string limit() const {
    if (all_.size() <= kMaxHeaderBytes) return "";
    return cat(" to the limit of ", kMaxHeaderBytes, " bytes of a header");
  }

  const std::string& path_;
  const std::span<const std::byte> all_;
  int64_t at_ = 0;
};

// --- Metadata ------------------------------------------------------------------------------------

template <class T> T read_value(Cursor& in, const std::string& key, int depth);

// Calls `read` with a null pointer to the C++ type of a kind.
template <size_t index = 0, class Read> void with_kind(uint32_t kind, Read read) {
  if constexpr (index < std::variant_size_v<MetadataValue>) {
    if (kind == index)
      read(static_cast<std::variant_alternative_t<index, MetadataValue>*>(nullptr));
    else
      with_kind<index + 1>(kind, read);
  }
}

uint32_t read_kind(Cursor& in, const std::string& key) {
  const auto kind = in.number<uint32_t>("the kind of " + key);
  if (kind >= std::variant_size_v<MetadataValue>)
    in.fail("metadata ", key, " is of the unknown kind ", kind);
  return kind;
}

bool read_bool(Cursor& in, const std::string& key) {
  const auto value = in.number<uint8_t>(key);
  if (value > 1) in.fail("metadata ", key, ": a bool is ", int{value}, ", expected 0 or 1");
  return value != 0;
}

MetadataArray read_array(Cursor& in, const std::string& key, int depth) {
  if (depth == kMaxDepth)
    in.fail("metadata ", key, ": arrays are nested more than ", kMaxDepth, " deep");
  const uint32_t kind = read_kind(in, key);
  const uint64_t count = in.count("elements of " + key, kMinBytes[kind]);
  MetadataArray array;
  with_kind(kind, [&]<class T>(T*) {
    std::vector<T> values;
    if constexpr (std::is_arithmetic_v<T>) values.reserve(static_cast<size_t>(count));
    for (uint64_t i = 0; i < count; ++i) values.push_back(read_value<T>(in, key, depth + 1));
    array.values = std::move(values);
  });
  return array;
}

template <class T> T read_value(Cursor& in, const std::string& key, int depth) {
  if constexpr (std::is_same_v<T, bool>)
    return read_bool(in, key);
  else if constexpr (std::is_same_v<T, std::string>)
    return in.text(key);
  else if constexpr (std::is_same_v<T, MetadataArray>)
    return read_array(in, key, depth);
  else
    return in.number<T>(key);
}

Metadata read_metadata(Cursor& in, uint64_t count) {
  Metadata metadata;
  for (uint64_t i = 0; i < count; ++i) {
    const std::string key = in.text("a metadata key", kMaxKeyBytes), name = shown(key);
    if (metadata.contains(key)) in.fail("metadata ", name, " is there twice");
    with_kind(read_kind(in, name), [&]<class T>(T*) {
      metadata.set(key, MetadataValue(std::in_place_type<T>, read_value<T>(in, name, 0)));
    });
  }
  return metadata;
}

// --- Tensors -------------------------------------------------------------------------------------

int64_t read_alignment(const Cursor& in, const Metadata& metadata) {
  const int64_t alignment = metadata.integer("general.alignment", 32);
  if (alignment <= 0 || alignment > kMaxAlignment ||
      !std::has_single_bit(static_cast<uint64_t>(alignment)))
    in.fail("general.alignment is ", alignment, ", expected a power of two of at most ",
            kMaxAlignment);
  return alignment;
}

Shape read_shape(Cursor& in, const std::string& name) {
  const auto axes = in.number<uint32_t>("the axes of tensor " + name);
  if (axes > kMaxAxes)
    in.fail("tensor ", name, " has ", axes, " axes, the format allows ", kMaxAxes);
  Shape shape(axes);
  for (size_t i = axes; i-- > 0;) {
    const auto size = in.number<uint64_t>("the shape of tensor " + name);
    if (size >= uint64_t{1} << 62)
      in.fail("tensor ", name, " has an axis of ", size, " elements, which no file holds");
    shape[i] = static_cast<int64_t>(size);
  }
  return shape;
}

// `begin` is what the file says: relative to the data section.
GgufTensor read_tensor(Cursor& in, int64_t alignment) {
  GgufTensor tensor{in.text("a tensor's name"), nullptr, {}, 0, 0};
  const std::string name = shown(tensor.name);
  tensor.shape = read_shape(in, name);
  const auto type = in.number<uint32_t>("the type of tensor " + name);
  tensor.type = find_gguf_type(type);
  if (tensor.type == nullptr) in.fail("tensor ", name, " is of the unknown type ", type);
  const auto bytes = tensor.type->bytes_of(tensor.shape);
  if (!bytes)
    in.fail("tensor ", name, ": the shape ", to_text(tensor.shape), " is none of ",
            tensor.type->name, ", whose blocks have ", tensor.type->elements,
            " elements, or takes more than 2^62 bytes");
  tensor.bytes = *bytes;
  const auto offset = in.number<uint64_t>("the offset of tensor " + name);
  if (offset >= uint64_t{1} << 62 || static_cast<int64_t>(offset) % alignment != 0)
    in.fail("tensor ", name, " begins at ", offset, ", expected a multiple of ", alignment);
  tensor.begin = static_cast<int64_t>(offset);
  return tensor;
}

// Offsets become those in the file, which has all of the data.
void place(const Cursor& in, std::vector<GgufTensor>& tensors, int64_t data_begin, int64_t size) {
  std::vector<const GgufTensor*> order;
  for (GgufTensor& t : tensors) {
    t.begin += data_begin;
    if (t.begin > size || t.bytes > size - t.begin)
      in.fail("tensor ", shown(t.name), ": expected ", t.bytes, " bytes at byte ", t.begin,
              ", found ", std::max<int64_t>(0, size - t.begin));
    if (t.bytes > 0) order.push_back(&t);
  }
  std::ranges::sort(order,
                    [](const GgufTensor* a, const GgufTensor* b) { return a->begin < b->begin; });
  for (size_t i = 1; i < order.size(); ++i)
    if (order[i]->begin < order[i - 1]->begin + order[i - 1]->bytes)
      in.fail("tensor ", shown(order[i]->name), " at byte ", order[i]->begin, " overlaps tensor ",
              shown(order[i - 1]->name), ", which ends at ",
              order[i - 1]->begin + order[i - 1]->bytes);
}

int read_version(Cursor& in) {
  if (in.number<uint32_t>("the magic number") != 0x46554747)  // "GGUF"
    in.fail("the file does not begin with GGUF");
  const auto version = in.number<uint32_t>("the version");
  if (version == 2 || version == 3) return static_cast<int>(version);
  const uint32_t swapped = __builtin_bswap32(version);
  if (swapped == 2 || swapped == 3)
    in.fail("the file is of a big-endian machine, expected a little-endian one");
  in.fail("the file is of version ", version, ", expected 2 or 3");
}

}  // namespace

GgufHeader read_gguf_header(const MappedFile& file) {
  Cursor in(file);
  GgufHeader header;
  header.version = read_version(in);
  const uint64_t tensors = in.count("tensors", kMinTensorBytes);
  const uint64_t items = in.count("metadata", kMinItemBytes);
  header.metadata = read_metadata(in, items);
  const int64_t alignment = read_alignment(in, header.metadata);
  std::unordered_set<std::string> names;
  for (uint64_t i = 0; i < tensors; ++i) {
    header.tensors.push_back(read_tensor(in, alignment));
    if (!names.insert(header.tensors.back().name).second)
      in.fail("tensor ", shown(header.tensors.back().name), " is there twice");
  }
  const int64_t data_begin = round_up(in.at(), alignment);
  place(in, header.tensors, data_begin, file.size());
  file.release(0, in.at());
  return header;
}

}  // namespace tiny
