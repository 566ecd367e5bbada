#include "tiny/data/npz.h"

#include <charconv>
#include <cstring>
#include <span>

#include "tiny/base/error.h"
#include "tiny/base/file.h"
#if __has_include(<zlib.h>)
#include <zlib.h>
#endif

namespace tiny {
namespace {

using Bytes = std::span<const std::byte>;

// A little-endian number at a place of bytes that have it.
template <class T> T number_at(Bytes bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

// --- Arrays --------------------------------------------------------------------------------------

struct ArrayType {
  const char* name;
  DType dtype;
};
constexpr ArrayType kArrayTypes[] = {
    {"|b1", kBool}, {"|i1", kI8},  {"|u1", kU8},  {"<i2", kI16}, {"<u2", kU16}, {"<i4", kI32},
    {"<u4", kU32},  {"<i8", kI64}, {"<u8", kU64}, {"<f2", kF16}, {"<f4", kF32}, {"<f8", kF64},
};

// The text of a header of an array, a Python dictionary as NumPy prints it: {'descr': '<f4',
// 'fortran_order': False, 'shape': (2, 3), }.
class ArrayHeader {
 public:
  ArrayHeader(const std::string& who, std::string text) : who_(who), text_(std::move(text)) {}

  DType dtype() const {
    const std::string name = value_of("descr");
    for (const ArrayType& type : kArrayTypes)
      if (name == cat('\'', type.name, '\'')) return type.dtype;
    throw Error(cat(who_, ": elements of the type ", name, ", which no tensor has"));
  }
  bool is_column_major() const { return value_of("fortran_order") == "True"; }
  Shape shape() const {
    const std::string list = value_of("shape");
    Shape out;
    for (size_t at = 1; at + 1 < list.size();) {
      int64_t size = -1;
      const auto [end, error] = std::from_chars(&list[at], &list[list.size() - 1], size);
      check(error == std::errc() && size >= 0 && out.size() < static_cast<size_t>(kMaxRank), who_,
            ": the shape is ", list);
      out.push_back(size);
      at = list.find_first_not_of(", ", static_cast<size_t>(end - list.data()));
    }
    return out;
  }

 private:
  // What stands behind 'key': up to the comma, or the bracket of a list.
  std::string value_of(const std::string& key) const {
    const std::string mark = "'" + key + "': ";
    const size_t found = text_.find(mark);
    const size_t at = found + mark.size();
    check(found != std::string::npos && at < text_.size(), who_, ": the header has no ", key);
    const size_t end = text_[at] == '(' ? text_.find(')', at) : text_.find_first_of(",}", at);
    check(end != std::string::npos, who_, ": the header has no end of ", key);
    return text_.substr(at, end - at + (text_[at] == '(' ? 1 : 0));
  }

  const std::string& who_;
  const std::string text_;
};

Tensor array_of(const std::string& who, Bytes bytes, const std::string& device) {
  constexpr size_t kMagic = 6;
  check(bytes.size() >= 10 && std::memcmp(bytes.data(), "\x93NUMPY", kMagic) == 0, who,
        ": the file does not begin as an array of NumPy");
  const int version = std::to_integer<int>(bytes[kMagic]);
  check(version >= 1 && version <= 3, who, ": version ", version, ", expected 1 to 3");
  const size_t begin = version == 1 ? 10 : 12;
  check(bytes.size() >= begin, who, ": the file ends in its header");
  const size_t length =
      version == 1 ? number_at<uint16_t>(bytes, 8) : number_at<uint32_t>(bytes, 8);
  check(length <= bytes.size() - begin, who, ": a header of ", length, " bytes, found ",
        bytes.size() - begin);
  const ArrayHeader header(who, {reinterpret_cast<const char*>(bytes.data()) + begin, length});
  const DType dtype = header.dtype();
  const Shape shape = header.shape();
  const Bytes data = bytes.subspan(begin + length);
  const auto count = static_cast<uint64_t>(numel(shape));
  check(count <= data.size() && count * static_cast<uint64_t>(dtype.size()) == data.size(), who,
        ": expected ", count, " elements of ", dtype, ", found ", data.size(), " bytes");
  if (!header.is_column_major()) return Tensor::from_bytes(data.data(), dtype, shape, device);
  Shape reversed(shape.rbegin(), shape.rend()), order;
  for (size_t i = shape.size(); i-- > 0;) order.push_back(static_cast<int64_t>(i));
  return Tensor::from_bytes(data.data(), dtype, reversed, device).permute(order).contiguous();
}

// --- ZIP -----------------------------------------------------------------------------------------

struct ZipEntry {
  std::string name;
  int method = 0;  // 0 stored, 8 deflated
  uint64_t packed = 0, size = 0, header = 0;
};

// Where the list of entries begins and how many there are: the record at the end of the file, with
// a comment of at most 65535 bytes behind it.
std::pair<uint64_t, uint64_t> zip_directory(const std::string& who, Bytes file) {
  constexpr size_t kRecord = 22, kComment = 65535;
  const size_t first = file.size() > kRecord + kComment ? file.size() - kRecord - kComment : 0;
  for (size_t at = file.size() >= kRecord ? file.size() - kRecord + 1 : 0; at-- > first;)
    if (number_at<uint32_t>(file, at) == 0x06054b50)
      return {number_at<uint32_t>(file, at + 16), number_at<uint16_t>(file, at + 10)};
  throw Error(cat(who, ": the file has no list of entries at its end: it is no ZIP"));
}

std::vector<ZipEntry> zip_entries(const std::string& who, Bytes file) {
  constexpr size_t kHeader = 46;
  auto [at, count] = zip_directory(who, file);
  std::vector<ZipEntry> out;
  for (uint64_t i = 0; i < count; ++i) {
    check(at <= file.size() && file.size() - at >= kHeader &&
              number_at<uint32_t>(file, at) == 0x02014b50,
          who, ": entry ", i, " of ", count, " is not at byte ", at);
    const size_t name = number_at<uint16_t>(file, at + 28);
    const size_t more = number_at<uint16_t>(file, at + 30) + number_at<uint16_t>(file, at + 32);
    check(file.size() - at - kHeader >= name + more, who, ": entry ", i, " goes beyond the file");
    ZipEntry entry;
    entry.name.assign(reinterpret_cast<const char*>(file.data()) + at + kHeader, name);
    entry.method = number_at<uint16_t>(file, at + 10);
    entry.packed = number_at<uint32_t>(file, at + 20);
    entry.size = number_at<uint32_t>(file, at + 24);
    entry.header = number_at<uint32_t>(file, at + 42);
    check(entry.packed != UINT32_MAX && entry.size != UINT32_MAX && entry.header != UINT32_MAX, who,
          ": entry ", entry.name, " has 4 GiB or more, which is not read");
    out.push_back(std::move(entry));
    at += kHeader + name + more;
  }
  return out;
}

#if __has_include(<zlib.h>)
std::vector<std::byte> inflated(const std::string& who, Bytes packed, uint64_t size) {
  // Deflated data are at most 1032 times as long unpacked.
  check(size / 1032 <= packed.size(), who, ": ", packed.size(), " bytes unpack to no ", size);
  std::vector<std::byte> out(static_cast<size_t>(size));
  z_stream stream{};
  check(inflateInit2(&stream, -MAX_WBITS) == Z_OK, who, ": zlib has no memory");
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(packed.data()));
  stream.avail_in = static_cast<uInt>(packed.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  const int code = inflate(&stream, Z_FINISH);
  const bool is_whole = code == Z_STREAM_END && stream.avail_out == 0;
  inflateEnd(&stream);
  check(is_whole, who, ": the deflated data are damaged");
  return out;
}
#else
std::vector<std::byte> inflated(const std::string& who, Bytes, uint64_t) {
  throw Error(cat(who, ": the entry is deflated, and this build has no zlib (package zlib1g-dev)"));
}
#endif

Bytes packed_bytes(const std::string& who, Bytes file, const ZipEntry& entry) {
  constexpr size_t kHeader = 30;
  check(entry.header <= file.size() && file.size() - entry.header >= kHeader &&
            number_at<uint32_t>(file, entry.header) == 0x04034b50,
        who, ": there is no entry at byte ", entry.header);
  const size_t begin = entry.header + kHeader + number_at<uint16_t>(file, entry.header + 26) +
                       number_at<uint16_t>(file, entry.header + 28);
  check(begin <= file.size() && entry.packed <= file.size() - begin, who, ": expected ",
        entry.packed, " bytes at byte ", begin, " of a file of ", file.size());
  return file.subspan(begin, static_cast<size_t>(entry.packed));
}

}  // namespace

std::map<std::string, Tensor> load_npz(const std::string& path, const std::string& device) {
  const MappedFile mapped("npz", path);
  const Bytes file = mapped.bytes(0, mapped.size());
  std::map<std::string, Tensor> out;
  for (const ZipEntry& entry : zip_entries("npz: " + path, file)) {
    const std::string who = cat("npz: ", path, ": ", entry.name);
    check(entry.method == 0 || entry.method == 8, who, ": packed by method ", entry.method,
          ", expected 0 or 8");
    const Bytes packed = packed_bytes(who, file, entry);
    check(entry.method != 0 || entry.packed == entry.size, who, ": stored in ", entry.packed,
          " bytes of ", entry.size);
    std::vector<std::byte> unpacked;
    if (entry.method == 8) unpacked = inflated(who, packed, entry.size);
    const std::string name =
        entry.name.ends_with(".npy") ? entry.name.substr(0, entry.name.size() - 4) : entry.name;
    const Tensor array = array_of(who, entry.method == 8 ? Bytes(unpacked) : packed, device);
    check(out.emplace(name, array).second, who, ": the name is there twice");
  }
  return out;
}

Tensor load_npy(const std::string& path, const std::string& device) {
  const MappedFile mapped("npy", path);
  return array_of("npy: " + path, mapped.bytes(0, mapped.size()), device);
}

}  // namespace tiny
