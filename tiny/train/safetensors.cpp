#include "tiny/train/safetensors.h"

#include <sys/sysinfo.h>

#include <algorithm>
#include <bit>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "tiny/base/error.h"
#include "tiny/base/file.h"
#include "tiny/ir/shape.h"

#if __has_include(<nlohmann/json.hpp>)
#include <nlohmann/json.hpp>

namespace tiny {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

using nlohmann::json;

constexpr int64_t kLengthBytes = 8;
constexpr uint64_t kMostHeaderBytes = 100'000'000;  // as in the format's own library
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
    if (size < 0) throw Error(cat(who, ": the shape ", shape_text(shape), " has a negative size"));
    if (__builtin_mul_overflow(bytes, size, &bytes))
      throw Error(cat(who, ": the shape ", shape_text(shape), " of ", dtype,
                      " takes more than 2^63 bytes"));
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
    if (!names.insert(entry.name).second)
      throw Error(cat(who, ": the name is given twice or reserved"));
    if (find_dtype(entry.dtype) == nullptr)
      throw Error(cat(who, ": the format has no dtype ", entry.dtype, "; it has ", known_dtypes()));
    const int64_t expected = count_bytes(entry.dtype, entry.shape, who);
    if (expected != static_cast<int64_t>(entry.data.size()))
      throw Error(cat(who, ": shape ", shape_text(entry.shape), " of ", entry.dtype, " takes ",
                      expected, " bytes, the data has ", entry.data.size()));
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
  std::string text = "{";
  size_t offset = 0;
  try {
    if (!metadata.empty()) text += cat('"', kMetadataKey, "\":", json(metadata).dump());
    for (const StateEntry* entry : order) {
      const size_t end = offset + entry->data.size();
      text += cat(text.size() > 1 ? "," : "", json(entry->name).dump(), R"(:{"dtype":")",
                  find_dtype(entry->dtype)->name, R"(","shape":)", json(entry->shape).dump(),
                  R"(,"data_offsets":[)", offset, ',', end, "]}");
      offset = end;
    }
  } catch (const json::exception&) {
    throw Error(cat("safetensors: ", path, ": a tensor's name or the metadata is not UTF-8"));
  }
  text += '}';
  check(text.size() + 8 <= kMostHeaderBytes, "safetensors: ", path, ": a header of ", text.size(),
        " bytes, the format allows ", kMostHeaderBytes);
  text.resize((text.size() + 7) / 8 * 8, ' ');  // so that the data is aligned
  return text;
}

// ---- Reading

// What the header says of one tensor. The offsets count from the end of the header.
struct Placed {
  StateEntry entry;
  int64_t begin, end;
};

// What was read of a tensor's description so far.
struct Description {
  std::optional<std::string> dtype;
  std::map<std::string, std::vector<int64_t>> lists;  // "shape" and "data_offsets"
  std::set<std::string> keys;
};

// Takes the header as it is parsed: a tree of it would cost a multiple of its size, keep the last
// of equal keys and forget that there were others, and be as deep as the file likes.
class Header : public nlohmann::json_sax<json> {
 public:
  // `held`: bytes of data after the header.
  Header(const std::string& path, int64_t held) : path_(path), held_(held) {}

  std::vector<Placed> tensors;
  std::map<std::string, std::string> metadata;

  bool null() override { return value("null"); }
  bool boolean(bool v) override { return value(v ? "true" : "false"); }
  bool number_integer(json::number_integer_t v) override { return value(cat(v)); }
  bool number_unsigned(json::number_unsigned_t v) override { return value(cat(v), v); }
  bool number_float(json::number_float_t, const std::string& text) override { return value(text); }
  bool binary(json::binary_t&) override { return value("bytes"); }
  bool string(std::string& text) override {
    if (depth_ == 2 && name_ == kMetadataKey)
      metadata[key_] = text;
    else if (depth_ == 2 && key_ == "dtype")
      now_.dtype = text;
    else
      value("a text");
    return true;
  }

  bool start_object(size_t) override {
    if (depth_ >= 2) value("an object");
    ++depth_;
    return true;
  }
  bool key(std::string& text) override {
    if (depth_ == 1) {
      name_ = text;
      if (!names_.insert(text).second) throw Error(cat(who(), " is in the header twice"));
      now_ = {};
    } else if (depth_ == 2) {
      if (!now_.keys.insert(text).second) throw Error(cat(who(), ": ", text, " is there twice"));
      key_ = text;
    }
    return true;
  }
  bool end_object() override {
    if (--depth_ == 1 && name_ != kMetadataKey) tensors.push_back(place());
    return true;
  }

  bool start_array(size_t) override {
    if (depth_ == 2 && name_ != kMetadataKey && is_list(key_))
      now_.lists[key_];
    else
      value("a list");
    ++depth_;
    return true;
  }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool parse_error(size_t, const std::string&, const json::exception& error) override {
    constexpr size_t kShown = 200;  // it quotes what may be as long as the header
    throw Error(cat(whole(), " is no JSON: ", std::string(error.what()).substr(0, kShown)));
  }

 private:
  static bool is_list(const std::string& key) { return key == "shape" || key == "data_offsets"; }
  std::string whole() const { return cat("safetensors: ", path_, ": the header"); }
  std::string who() const {
    return name_ == kMetadataKey ? cat("safetensors: ", path_, ": ", name_)
                                 : describe(path_, name_);
  }

  // A value that is no text of the metadata and no dtype; `number` where it may be in a list.
  bool value(const std::string& text, std::optional<uint64_t> number = {}) {
    check(depth_ > 0, whole(), " is no JSON object");
    if (name_ == kMetadataKey) throw Error(cat(who(), " is no object of texts"));
    if (depth_ == 1) throw Error(cat(who(), ": its description is no JSON object"));
    const auto list = now_.lists.find(key_);
    if (depth_ == 2 || list == now_.lists.end()) return true;  // what lacks is noticed at the end
    if (!number || *number >= uint64_t{1} << 63)
      throw Error(cat(who(), ": ", key_, " holds ", text, ", expected integers of at least 0"));
    if (list->second.size() == kMaxRank)
      throw Error(cat(who(), ": ", key_, " has more than ", kMaxRank, " integers"));
    list->second.push_back(static_cast<int64_t>(*number));
    return true;
  }

  const std::vector<int64_t>& list(const char* key) const {
    const auto found = now_.lists.find(key);
    if (found == now_.lists.end()) throw Error(cat(who(), ": ", key, " is no list"));
    return found->second;
  }

  // The texts of errors are only made where there is one: a header may have 100,000 tensors.
  Placed place() const {
    if (!now_.dtype) throw Error(cat(who(), ": dtype is no text"));
    const DTypeName* dtype = find_dtype(*now_.dtype);
    if (dtype == nullptr)
      throw Error(
          cat(who(), ": the dtype ", *now_.dtype, " is unknown; known are ", known_dtypes()));
    const std::vector<int64_t>&shape = list("shape"), &offsets = list("data_offsets");
    if (offsets.size() != 2 || offsets[0] > offsets[1])
      throw Error(cat(who(), ": data_offsets are not a begin and an end"));
    if (offsets[1] > held_)
      throw Error(cat(who(), ": expected its data to end at byte ", offsets[1], ", found only ",
                      held_, " bytes of data in the file"));
    const int64_t expected = count_bytes(dtype->dtype, shape, who());
    const int64_t found = offsets[1] - offsets[0];
    if (expected != found)
      throw Error(cat(who(), ": expected ", expected, " bytes for shape ", shape_text(shape),
                      " of ", dtype->name, ", found ", found, " between its data_offsets"));
    return {{name_, dtype->dtype, shape, {}}, offsets[0], offsets[1]};
  }

  const std::string& path_;
  const int64_t held_;
  int depth_ = 0;  // 1 between tensors, 2 in a description
  std::string name_, key_;
  std::unordered_set<std::string> names_;
  Description now_;
};

class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path), file_("safetensors", path) {
    check(file_.size() >= kLengthBytes, "safetensors: ", path, " is too short: expected at least ",
          kLengthBytes, " bytes, found ", file_.size());
  }

  SafetensorsFile read(const HeaderCheck& fits) {
    const std::string text = read_header();
    Header header(path_, file_.size() - data_begin_);
    json::sax_parse(text, &header);
    check_layout(header.tensors);
    SafetensorsFile result;
    result.metadata = std::move(header.metadata);
    for (Placed& tensor : header.tensors) result.entries.push_back(std::move(tensor.entry));
    if (fits) fits(result);
    check_memory();
    for (size_t i = 0; i < result.entries.size(); ++i)
      read_data(result.entries[i], header.tensors[i].begin, header.tensors[i].end);
    return result;
  }

 private:
  std::string read_header() {
    uint64_t length = 0;
    file_.read_at(0, &length, kLengthBytes);
    const auto rest = static_cast<uint64_t>(file_.size() - kLengthBytes);
    check(length <= rest, "safetensors: ", path_, " is damaged: expected a header of ", length,
          " bytes, found ", rest, " bytes after its length");
    check(length <= kMostHeaderBytes, "safetensors: ", path_, ": a header of ", length,
          " bytes, the format allows ", kMostHeaderBytes);
    std::string text(length, ' ');
    file_.read_at(kLengthBytes, text.data(), static_cast<int64_t>(length));
    data_begin_ = kLengthBytes + static_cast<int64_t>(length);
    return text;
  }

  // Sorts the tensors by offset. The format allows neither overlaps nor gaps.
  void check_layout(std::vector<Placed>& tensors) const {
    std::stable_sort(tensors.begin(), tensors.end(), [](const Placed& a, const Placed& b) {
      return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
    });
    int64_t end = 0;
    for (const Placed& tensor : tensors) {
      if (tensor.begin != end)
        throw Error(cat(describe(path_, tensor.entry.name), ": its data ",
                        tensor.begin < end ? "overlaps another tensor's" : "leaves a gap",
                        ": expected it to begin at byte ", end, ", found ", tensor.begin));
      end = tensor.end;
    }
    const int64_t held = file_.size() - data_begin_;
    check(end == held, "safetensors: ", path_, ": expected ", end, " bytes of data, found ", held);
  }

  // A file may have holes, and be larger than the disk that it is on.
  void check_memory() const {
    struct sysinfo machine {};
    if (sysinfo(&machine) != 0) return;
    const uint64_t room = (uint64_t{machine.totalram} + machine.totalswap) * machine.mem_unit;
    const int64_t held = file_.size() - data_begin_;
    check(static_cast<uint64_t>(held) <= room, "safetensors: ", path_, ": its ", held,
          " bytes of data are more than the ", room, " of this machine's memory");
  }

  void read_data(StateEntry& entry, int64_t begin, int64_t end) const {
    try {
      entry.data.resize(static_cast<size_t>(end - begin));
    } catch (const std::exception&) {
      throw Error(cat(describe(path_, entry.name), ": its ", end - begin,
                      " bytes are more than there is memory for"));
    }
    file_.read_at(data_begin_ + begin, entry.data.data(), end - begin);
    // Any other byte would be no bool in C++.
    if (entry.dtype == kBool) {
      const auto bad = std::find_if(entry.data.begin(), entry.data.end(),
                                    [](std::byte b) { return b > std::byte{1}; });
      if (bad != entry.data.end())
        throw Error(cat(describe(path_, entry.name), ": expected each byte of a BOOL to be 0 or 1",
                        ", found ", static_cast<int>(*bad)));
    }
  }

  const std::string path_;
  const InputFile file_;
  int64_t data_begin_ = 0;
};

}  // namespace

void write_safetensors(const std::string& path, const std::vector<StateEntry>& entries,
                       const std::map<std::string, std::string>& metadata) {
  check_entries(path, entries);
  const std::vector<const StateEntry*> order = lay_out(entries);
  const std::string header = make_header(path, order, metadata);
  const uint64_t length = header.size();
  FileAside file("safetensors", path);
  const auto write = [&](const void* data, size_t size) {
    file.write({static_cast<const char*>(data), size});
  };
  write(&length, sizeof length);
  file.write(header);
  for (const StateEntry* entry : order) write(entry->data.data(), entry->data.size());
  file.commit();
}

SafetensorsFile read_safetensors(const std::string& path, const HeaderCheck& fits) {
  return Reader(path).read(fits);
}

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

SafetensorsFile read_safetensors(const std::string& path, const HeaderCheck&) {
  throw Error(cat("safetensors: ", path, kNoJson));
}

}  // namespace tiny
#endif
