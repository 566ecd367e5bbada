#include "tiny/state.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "tiny/error.h"

#if __has_include(<nlohmann/json.hpp>)
#include <nlohmann/json.hpp>

namespace tiny {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

namespace fs = std::filesystem;
using nlohmann::json;
using nlohmann::ordered_json;

constexpr int64_t kLengthBytes = 8;
constexpr const char* kMetadataKey = "__metadata__";

struct DTypeName {
  DType dtype;
  const char* name;
};

constexpr DTypeName kDTypeNames[] = {
    {kBool, "BOOL"}, {kI8, "I8"},   {kI16, "I16"},        {kI32, "I32"},        {kI64, "I64"},
    {kU8, "U8"},     {kU16, "U16"}, {kU32, "U32"},        {kU64, "U64"},        {kF16, "F16"},
    {kBF16, "BF16"}, {kF32, "F32"}, {kF8E4M3, "F8_E4M3"}, {kF8E5M2, "F8_E5M2"}, {kF64, "F64"}};

const DTypeName* find_dtype(DType dtype) {
  const auto* found = std::find_if(std::begin(kDTypeNames), std::end(kDTypeNames),
                                   [&](const DTypeName& row) { return row.dtype == dtype; });
  return found == std::end(kDTypeNames) ? nullptr : found;
}

const DTypeName* find_dtype(std::string_view name) {
  const auto* found = std::find_if(std::begin(kDTypeNames), std::end(kDTypeNames),
                                   [&](const DTypeName& row) { return row.name == name; });
  return found == std::end(kDTypeNames) ? nullptr : found;
}

std::string known_dtypes() {
  std::string text;
  for (const DTypeName& row : kDTypeNames) text += cat(text.empty() ? "" : ", ", row.name);
  return text;
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text;
  for (int64_t size : shape) text += cat(text.empty() ? "" : ",", size);
  return cat("(", text, ")");
}

// Bytes of a tensor. `who` begins the message where the sizes are negative or too large.
int64_t count_bytes(DType dtype, const std::vector<int64_t>& shape, const std::string& who) {
  int64_t bytes = dtype.size();
  for (int64_t size : shape) {
    check(size >= 0, who, ": the shape ", shape_text(shape), " has a negative size");
    check(!__builtin_mul_overflow(bytes, size, &bytes), who, ": the shape ", shape_text(shape),
          " of ", dtype, " takes more than 2^63 bytes");
  }
  return bytes;
}

// ---- Writing

std::string describe(const std::string& path, const std::string& tensor) {
  return cat("safetensors: ", path, ": tensor ", tensor);
}

void check_entries(const std::string& path, const std::vector<StateEntry>& entries) {
  std::set<std::string_view> names = {kMetadataKey};
  for (const StateEntry& entry : entries) {
    const std::string who = describe(path, entry.name);
    check(names.insert(entry.name).second, who, ": the name is given twice or reserved");
    check(find_dtype(entry.dtype) != nullptr, who, ": the format has no dtype ", entry.dtype,
          "; it has ", known_dtypes());
    const int64_t expected = count_bytes(entry.dtype, entry.shape, who);
    check(expected == static_cast<int64_t>(entry.data.size()), who, ": shape ",
          shape_text(entry.shape), " of ", entry.dtype, " takes ", expected,
          " bytes, the data has ", entry.data.size());
  }
}

// The entries in the order of their data.
std::vector<const StateEntry*> lay_out(const std::vector<StateEntry>& entries) {
  std::vector<const StateEntry*> order;
  for (const StateEntry& entry : entries) order.push_back(&entry);
  std::stable_sort(order.begin(), order.end(), [](const StateEntry* a, const StateEntry* b) {
    return a->dtype.size() > b->dtype.size();
  });
  return order;
}

std::string make_header(const std::string& path, const std::vector<const StateEntry*>& order,
                        const std::map<std::string, std::string>& metadata) {
  ordered_json header = ordered_json::object();
  if (!metadata.empty()) header[kMetadataKey] = metadata;
  size_t offset = 0;
  for (const StateEntry* entry : order) {
    const size_t end = offset + entry->data.size();
    header[entry->name] = {{"dtype", find_dtype(entry->dtype)->name},
                           {"shape", entry->shape},
                           {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const json::exception&) {
    throw Error(cat("safetensors: ", path, ": a tensor's name or the metadata is not UTF-8"));
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');  // so that the data is aligned
  return text;
}

// A new file next to its final place, removed again unless it is committed.
class FileAside {
 public:
  explicit FileAside(const std::string& path) : path_(path) {
    static std::atomic<int> counter{0};
    aside_ = cat(path, ".part", ::getpid(), ".", counter++);
    file_ = ::open(aside_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    check(file_ >= 0, "safetensors: cannot write ", path_, ": ", std::strerror(errno));
  }
  ~FileAside() {
    if (file_ >= 0) ::close(file_);
    if (!committed_) ::unlink(aside_.c_str());
  }
  FileAside(const FileAside&) = delete;
  FileAside& operator=(const FileAside&) = delete;

  void write(const void* data, size_t size) {
    const char* at = static_cast<const char*>(data);
    while (size > 0) {
      const ssize_t done = ::write(file_, at, size);
      if (done < 0 && errno == EINTR) continue;
      require(done > 0, "write");
      at += done;
      size -= static_cast<size_t>(done);
    }
  }
  void commit() {
    require(::fsync(file_) == 0, "write");
    require(::close(std::exchange(file_, -1)) == 0, "write");
    require(::rename(aside_.c_str(), path_.c_str()) == 0, "rename the finished file to");
    committed_ = true;
  }

 private:
  void require(bool ok, const char* action) const {
    if (!ok)
      throw DeviceError(
          cat("safetensors: cannot ", action, " ", path_, ": ", std::strerror(errno)));
  }

  std::string path_, aside_;
  int file_ = -1;
  bool committed_ = false;
};

// ---- Reading

// What the header says of one tensor. The offsets count from the end of the header.
struct Placed {
  StateEntry entry;
  int64_t begin, end;
};

class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path) {
    std::error_code ignored;  // what is wrong with the path, opening it says
    check(!fs::is_directory(path, ignored), "safetensors: ", path, " is a folder, not a file");
    errno = 0;
    file_.open(path, std::ios::binary);
    check(file_.is_open(), "safetensors: cannot open ", path, ": ", std::strerror(errno));
    file_.seekg(0, std::ios::end);
    size_ = file_.tellg();
    check(size_ >= kLengthBytes, "safetensors: ", path, " is too short: expected at least ",
          kLengthBytes, " bytes, found ", size_);
  }

  SafetensorsFile read() {
    const json header = parse(read_header());
    SafetensorsFile result;
    std::vector<Placed> tensors;
    for (const auto& [name, value] : header.items()) {
      if (name == kMetadataKey)
        result.metadata = read_metadata(value);
      else
        tensors.push_back(read_place(name, value));
    }
    check_layout(tensors);
    for (Placed& tensor : tensors) result.entries.push_back(read_data(tensor));
    return result;
  }

 private:
  void read_at(int64_t offset, void* data, int64_t size) {
    file_.seekg(offset);
    file_.read(static_cast<char*>(data), size);
    check(file_.gcount() == size, "safetensors: ", path_, ": expected ", size, " bytes at ", offset,
          ", found ", file_.gcount());
  }

  std::string read_header() {
    uint64_t length = 0;
    read_at(0, &length, kLengthBytes);
    const auto rest = static_cast<uint64_t>(size_ - kLengthBytes);
    check(length <= rest, "safetensors: ", path_, " is damaged: expected a header of ", length,
          " bytes, found ", rest, " bytes after its length");
    std::string text(length, ' ');
    read_at(kLengthBytes, text.data(), static_cast<int64_t>(length));
    data_begin_ = kLengthBytes + static_cast<int64_t>(length);
    return text;
  }

  // The JSON library would silently keep the last of equal names.
  json parse(const std::string& text) const {
    std::set<std::string> names;
    const auto refuse_twice = [&](int depth, json::parse_event_t event, json& value) {
      if (event == json::parse_event_t::key && depth == 1)
        check(names.insert(value.get<std::string>()).second,
              describe(path_, value.get<std::string>()), " is in the header twice");
      return true;
    };
    json header;
    try {
      header = json::parse(text, refuse_twice);
    } catch (const json::exception& error) {
      throw Error(cat("safetensors: ", path_, ": the header is no JSON: ", error.what()));
    }
    check(header.is_object(), "safetensors: ", path_, ": the header is no JSON object");
    return header;
  }

  std::map<std::string, std::string> read_metadata(const json& value) const {
    const bool ok = value.is_object() && std::all_of(value.begin(), value.end(),
                                                     [](const json& v) { return v.is_string(); });
    check(ok, "safetensors: ", path_, ": ", kMetadataKey, " is no object of texts");
    return value.get<std::map<std::string, std::string>>();
  }

  // A list of integers of at least 0 below 2^63.
  std::vector<int64_t> read_integers(const json& tensor, const char* key,
                                     const std::string& who) const {
    const auto list = tensor.find(key);
    check(list != tensor.end() && list->is_array(), who, ": ", key, " is no list");
    for (const json& item : *list)
      check(item.is_number_unsigned() && item.get<uint64_t>() < uint64_t{1} << 63, who, ": ", key,
            " holds ", item.dump(), ", expected integers of at least 0");
    return list->get<std::vector<int64_t>>();
  }

  Placed read_place(const std::string& name, const json& tensor) const {
    const std::string who = describe(path_, name);
    check(tensor.is_object(), who, ": its description is no JSON object");
    const auto dtype_text = tensor.find("dtype");
    check(dtype_text != tensor.end() && dtype_text->is_string(), who, ": dtype is no text");
    const DTypeName* dtype = find_dtype(dtype_text->get<std::string>());
    check(dtype != nullptr, who, ": the dtype ", dtype_text->get<std::string>(),
          " is unknown; known are ", known_dtypes());
    const std::vector<int64_t> shape = read_integers(tensor, "shape", who);
    const std::vector<int64_t> offsets = read_integers(tensor, "data_offsets", who);
    check(offsets.size() == 2 && offsets[0] <= offsets[1], who,
          ": data_offsets are not a begin and an end");
    const int64_t held = size_ - data_begin_, found = offsets[1] - offsets[0];
    check(offsets[1] <= held, who, ": expected its data to end at byte ", offsets[1],
          ", found only ", held, " bytes of data in the file");
    const int64_t expected = count_bytes(dtype->dtype, shape, who);
    check(expected == found, who, ": expected ", expected, " bytes for shape ", shape_text(shape),
          " of ", dtype->name, ", found ", found, " between its data_offsets");
    return {{name, dtype->dtype, shape, {}}, offsets[0], offsets[1]};
  }

  // Sorts the tensors by offset. The format allows neither overlaps nor gaps.
  void check_layout(std::vector<Placed>& tensors) const {
    std::stable_sort(tensors.begin(), tensors.end(), [](const Placed& a, const Placed& b) {
      return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
    });
    int64_t end = 0;
    for (const Placed& tensor : tensors) {
      check(tensor.begin == end, describe(path_, tensor.entry.name), ": its data ",
            tensor.begin < end ? "overlaps another tensor's" : "leaves a gap",
            ": expected it to begin at byte ", end, ", found ", tensor.begin);
      end = tensor.end;
    }
    check(end == size_ - data_begin_, "safetensors: ", path_, ": expected ", end,
          " bytes of data, found ", size_ - data_begin_);
  }

  StateEntry read_data(Placed& tensor) {
    StateEntry entry = std::move(tensor.entry);
    entry.data.resize(static_cast<size_t>(tensor.end - tensor.begin));
    read_at(data_begin_ + tensor.begin, entry.data.data(), tensor.end - tensor.begin);
    // Any other byte would be no bool in C++.
    if (entry.dtype == kBool) {
      const auto bad = std::find_if(entry.data.begin(), entry.data.end(),
                                    [](std::byte b) { return b > std::byte{1}; });
      if (bad != entry.data.end())
        throw Error(cat(describe(path_, entry.name), ": expected each byte of a BOOL to be 0 or 1",
                        ", found ", static_cast<int>(*bad)));
    }
    return entry;
  }

  std::string path_;
  std::ifstream file_;
  int64_t size_ = 0, data_begin_ = 0;
};

}  // namespace

void write_safetensors(const std::string& path, const std::vector<StateEntry>& entries,
                       const std::map<std::string, std::string>& metadata) {
  check_entries(path, entries);
  const std::vector<const StateEntry*> order = lay_out(entries);
  const std::string header = make_header(path, order, metadata);
  const uint64_t length = header.size();
  FileAside file(path);
  file.write(&length, sizeof length);
  file.write(header.data(), header.size());
  for (const StateEntry* entry : order) file.write(entry->data.data(), entry->data.size());
  file.commit();
}

SafetensorsFile read_safetensors(const std::string& path) { return Reader(path).read(); }

}  // namespace tiny

#else  // a build for a machine that has no more than a compiler: everything else works

namespace tiny {

constexpr const char* kNoJson =
    ": this build reads and writes no safetensors files: nlohmann/json.hpp (package "
    "nlohmann-json3-dev) was missing";

void write_safetensors(const std::string& path, const std::vector<StateEntry>&,
                       const std::map<std::string, std::string>&) {
  throw Error(cat("safetensors: ", path, kNoJson));
}

SafetensorsFile read_safetensors(const std::string& path) {
  throw Error(cat("safetensors: ", path, kNoJson));
}

}  // namespace tiny
#endif
