#include "tiny/train/safetensors.h"

#include <sys/sysinfo.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "tiny/base/error.h"

#if __has_include(<nlohmann/json.hpp>)
#include <nlohmann/json.hpp>

namespace tiny {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

using nlohmann::json;

constexpr int64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // as in the format's own library
constexpr const char* kMetadataKey = "__metadata__";

constexpr SafetensorsType kTypes[] = {{"BOOL", 8, kBool},        {"I8", 8, kI8},
                                      {"I16", 16, kI16},         {"I32", 32, kI32},
                                      {"I64", 64, kI64},         {"U8", 8, kU8},
                                      {"U16", 16, kU16},         {"U32", 32, kU32},
                                      {"U64", 64, kU64},         {"F16", 16, kF16},
                                      {"BF16", 16, kBF16},       {"F32", 32, kF32},
                                      {"F8_E4M3", 8, kF8E4M3},   {"F8_E5M2", 8, kF8E5M2},
                                      {"F64", 64, kF64},         {"F8_E8M0", 8, kVoid},
                                      {"F8_E4M3FNUZ", 8, kVoid}, {"F8_E5M2FNUZ", 8, kVoid},
                                      {"F4", 4, kVoid},          {"F6_E2M3", 6, kVoid},
                                      {"F6_E3M2", 6, kVoid},     {"C64", 64, kVoid}};

const SafetensorsType* find_type(DType dtype) {
  if (dtype == kVoid) return nullptr;  // what tensors have no dtype for
  const auto* found = std::find_if(std::begin(kTypes), std::end(kTypes),
                                   [&](const SafetensorsType& row) { return row.dtype == dtype; });
  return found == std::end(kTypes) ? nullptr : found;
}

const SafetensorsType* find_type(std::string_view name) {
  const auto* found = std::find_if(std::begin(kTypes), std::end(kTypes),
                                   [&](const SafetensorsType& row) { return row.name == name; });
  return found == std::end(kTypes) ? nullptr : found;
}

// `of_tensors`: only those that are a dtype.
std::string known_types(bool of_tensors) {
  std::string text;
  for (const SafetensorsType& row : kTypes)
    if (!of_tensors || row.dtype != kVoid) text += cat(text.empty() ? "" : ", ", row.name);
  return text;
}

// Bytes of a tensor. `who` begins the message where the sizes are negative or too large.
int64_t count_bytes(const SafetensorsType& type, Ints shape, const std::string& who) {
  int64_t count = 1;
  bool fits = true;
  for (int64_t size : shape) {
    if (size < 0) throw Error(cat(who, ": the shape ", to_text(shape), " has a negative size"));
    fits = fits && !__builtin_mul_overflow(count, size, &count);
  }
  int64_t bits = 0;
  if (!fits || __builtin_mul_overflow(count, type.bits, &bits))
    throw Error(
        cat(who, ": the shape ", to_text(shape), " of ", type.name, " takes more than 2^60 bytes"));
  if (bits % 8 != 0)
    throw Error(cat(who, ": the shape ", to_text(shape), " of ", type.name, " takes ", bits,
                    " bits, which are no whole bytes"));
  return bits / 8;
}

// ---- Writing

std::string describe(const std::string& path, const std::string& tensor) {
  return cat("safetensors: ", path, ": tensor ", tensor);
}

struct Placed {
  const SafetensorsOutput* tensor;
  const SafetensorsType* type;
  int64_t bytes;
};

const SafetensorsType& type_of(const std::string& path, const SafetensorsOutput& tensor) {
  const SafetensorsType* type = find_type(tensor.type);
  if (type == nullptr)
    throw Error(cat(describe(path, tensor.name), ": the format has no type ", tensor.type,
                    "; it has ", known_types(false)));
  return *type;
}

// The tensors in the order of their data.
std::vector<Placed> lay_out(const std::string& path,
                            const std::vector<SafetensorsOutput>& tensors) {
  std::set<std::string_view> names = {kMetadataKey};
  std::vector<Placed> order;
  for (const SafetensorsOutput& tensor : tensors) {
    if (!names.insert(tensor.name).second)
      throw Error(cat(describe(path, tensor.name), ": the name is given twice or reserved"));
    order.push_back({&tensor, &type_of(path, tensor), bytes_of(path, tensor)});
  }
  std::ranges::stable_sort(
      order, [](const Placed& a, const Placed& b) { return a.type->bits > b.type->bits; });
  return order;
}

std::string make_header(const std::string& path, const std::vector<Placed>& order,
                        const std::map<std::string, std::string>& metadata) {
  std::string text = "{";
  int64_t offset = 0;
  try {
    if (!metadata.empty()) text += cat('"', kMetadataKey, "\":", json(metadata).dump());
    for (const Placed& placed : order) {
      const int64_t end = offset + placed.bytes;
      text += cat(text.size() > 1 ? "," : "", json(placed.tensor->name).dump(), R"(:{"dtype":")",
                  placed.type->name, R"(","shape":)", json(placed.tensor->shape).dump(),
                  R"(,"data_offsets":[)", offset, ',', end, "]}");
      offset = end;
    }
  } catch (const json::exception&) {
    throw Error(cat("safetensors: ", path, ": a tensor's name or the metadata is not UTF-8"));
  }
  text += '}';
  check(text.size() + 8 <= kMaxHeaderBytes, "safetensors: ", path, ": a header of ", text.size(),
        " bytes, the format allows ", kMaxHeaderBytes);
  text.resize((text.size() + 7) / 8 * 8, ' ');  // so that the data is aligned
  return text;
}

// ---- Reading

// What was read of a tensor's description so far.
struct Description {
  std::optional<std::string> dtype;
  std::map<std::string, std::vector<int64_t>> lists;  // "shape" and "data_offsets"
  std::set<std::string> keys;
  std::string key;  // the last one
};

// Takes the header as it is parsed: a tree of it would cost a multiple of its size, keep the last
// of equal keys and forget that there were others, and be as deep as the file likes.
class Header : public nlohmann::json_sax<json> {
 public:
  // The data begins at this byte of the file; `held`: bytes of it.
  Header(const std::string& path, int64_t data_begin, int64_t held)
      : path_(path), data_begin_(data_begin), held_(held) {}

  SafetensorsHeader result;

  bool null() override { return value("null"); }
  bool boolean(bool v) override { return value(v ? "true" : "false"); }
  bool number_integer(json::number_integer_t v) override { return value(cat(v)); }
  bool number_unsigned(json::number_unsigned_t v) override { return value(cat(v), v); }
  bool number_float(json::number_float_t, const std::string& text) override { return value(text); }
  bool binary(json::binary_t&) override { return value("bytes"); }
  bool string(std::string& text) override {
    if (depth_ == 2 && name_ == kMetadataKey)
      result.metadata[now_.key] = text;
    else if (depth_ == 2 && now_.key == "dtype")
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
      now_.key = text;
    }
    return true;
  }
  bool end_object() override {
    if (--depth_ == 1 && name_ != kMetadataKey) result.entries.push_back(place());
    return true;
  }

  bool start_array(size_t) override {
    if (depth_ == 2 && name_ != kMetadataKey && is_list(now_.key))
      now_.lists[now_.key];
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
    const auto list = now_.lists.find(now_.key);
    if (depth_ == 2 || list == now_.lists.end()) return true;  // what lacks is noticed at the end
    if (!number || *number >= uint64_t{1} << 63)
      throw Error(cat(who(), ": ", now_.key, " holds ", text, ", expected integers of at least 0"));
    if (list->second.size() == kMaxRank)
      throw Error(cat(who(), ": ", now_.key, " has more than ", kMaxRank, " integers"));
    list->second.push_back(static_cast<int64_t>(*number));
    return true;
  }

  const std::vector<int64_t>& list(const char* key) const {
    const auto found = now_.lists.find(key);
    if (found == now_.lists.end()) throw Error(cat(who(), ": ", key, " is no list"));
    return found->second;
  }

  // The texts of errors are only made where there is one: a header may have 100,000 tensors.
  SafetensorsEntry place() const {
    if (!now_.dtype) throw Error(cat(who(), ": dtype is no text"));
    const SafetensorsType* type = find_type(*now_.dtype);
    if (type == nullptr)
      throw Error(
          cat(who(), ": the dtype ", *now_.dtype, " is unknown; known are ", known_types(false)));
    const std::vector<int64_t>&shape = list("shape"), &offsets = list("data_offsets");
    if (offsets.size() != 2 || offsets[0] > offsets[1])
      throw Error(cat(who(), ": data_offsets are not a begin and an end"));
    if (offsets[1] > held_)
      throw Error(cat(who(), ": expected its data to end at byte ", offsets[1], ", found only ",
                      held_, " bytes of data in the file"));
    const int64_t expected = count_bytes(*type, shape, who());
    const int64_t found = offsets[1] - offsets[0];
    if (expected != found)
      throw Error(cat(who(), ": expected ", expected, " bytes for shape ", to_text(shape), " of ",
                      type->name, ", found ", found, " between its data_offsets"));
    return {name_, type, shape, data_begin_ + offsets[0], found};
  }

  const std::string& path_;
  const int64_t data_begin_, held_;
  int depth_ = 0;  // 1 between tensors, 2 in a description
  std::string name_;
  std::unordered_set<std::string> names_;
  Description now_;
};

// Sorts the tensors by offset. The format allows neither overlaps nor gaps.
void check_layout(const MappedFile& file, int64_t data_begin,
                  std::vector<SafetensorsEntry>& entries) {
  std::ranges::stable_sort(entries, [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return std::pair(a.begin, a.bytes) < std::pair(b.begin, b.bytes);
  });
  int64_t end = data_begin;
  for (const SafetensorsEntry& entry : entries) {
    if (entry.begin != end)
      throw Error(cat(describe(file.path(), entry.name), ": its data ",
                      entry.begin < end ? "overlaps another tensor's" : "leaves a gap",
                      ": expected it to begin at byte ", end - data_begin, ", found ",
                      entry.begin - data_begin));
    end += entry.bytes;
  }
  check(end == file.size(), "safetensors: ", file.path(), ": expected ", end - data_begin,
        " bytes of data, found ", file.size() - data_begin);
}

// A file may have holes, and be larger than the disk that it is on.
void check_memory(const std::string& path, const SafetensorsHeader& header) {
  struct sysinfo machine {};
  if (sysinfo(&machine) != 0) return;
  const uint64_t room = (uint64_t{machine.totalram} + machine.totalswap) * machine.mem_unit;
  int64_t held = 0;
  for (const SafetensorsEntry& entry : header.entries) held += entry.bytes;
  check(static_cast<uint64_t>(held) <= room, "safetensors: ", path, ": its ", held,
        " bytes of data are more than the ", room, " of this machine's memory");
}

StateEntry read_entry(const MappedFile& file, const SafetensorsEntry& from) {
  const std::string who = describe(file.path(), from.name);
  check(from.type->dtype != kVoid, who, ": tensors have no dtype for ", from.type->name,
        "; TensorFile (tiny/models/files) gives its bytes");
  if (from.type->dtype == kBool) check_bools(file, from.name, from.begin, from.bytes);
  StateEntry entry{from.name, from.type->dtype, from.shape, {}};
  const auto bytes = file.bytes(from.begin, from.bytes);
  try {
    entry.data.assign(bytes.begin(), bytes.end());
  } catch (const std::exception&) {
    throw Error(cat(who, ": its ", from.bytes, " bytes are more than there is memory for"));
  }
  file.release(from.begin, from.bytes);
  return entry;
}

}  // namespace

std::string safetensors_name(DType dtype) {
  const SafetensorsType* type = find_type(dtype);
  check(type != nullptr, "safetensors: the format has no dtype ", dtype, "; it has ",
        known_types(true));
  return type->name;
}

SafetensorsHeader read_safetensors_header(const MappedFile& file) {
  check(file.size() >= kLengthBytes, "safetensors: ", file.path(),
        " is too short: expected at least ", kLengthBytes, " bytes, found ", file.size());
  uint64_t length = 0;
  std::memcpy(&length, file.bytes(0, kLengthBytes).data(), sizeof length);
  const auto rest = static_cast<uint64_t>(file.size() - kLengthBytes);
  check(length <= rest, "safetensors: ", file.path(), " is damaged: expected a header of ", length,
        " bytes, found ", rest, " bytes after its length");
  check(length <= kMaxHeaderBytes, "safetensors: ", file.path(), ": a header of ", length,
        " bytes, the format allows ", kMaxHeaderBytes);
  const auto size = static_cast<int64_t>(length), data_begin = kLengthBytes + size;
  Header header(file.path(), data_begin, file.size() - data_begin);
  const auto* text = reinterpret_cast<const char*>(file.bytes(kLengthBytes, size).data());
  json::sax_parse(text, text + size, &header);
  file.release(0, data_begin);
  check_layout(file, data_begin, header.result.entries);
  return std::move(header.result);
}

void check_bools(const MappedFile& file, const std::string& name, int64_t begin, int64_t bytes) {
  const auto all = file.bytes(begin, bytes);
  const auto bad = std::ranges::find_if(all, [](std::byte b) { return b > std::byte{1}; });
  if (bad != all.end())
    throw Error(cat(describe(file.path(), name), ": expected each byte of a BOOL to be 0 or 1",
                    ", found ", static_cast<int>(*bad)));
  file.release(begin, bytes);
}

int64_t bytes_of(const std::string& path, const SafetensorsOutput& tensor) {
  return count_bytes(type_of(path, tensor), tensor.shape, describe(path, tensor.name));
}

void stream_safetensors(FileAside& file, const std::vector<SafetensorsOutput>& tensors,
                        const std::map<std::string, std::string>& metadata) {
  const std::string& path = file.path();
  const std::vector<Placed> order = lay_out(path, tensors);
  const std::string header = make_header(path, order, metadata);
  const uint64_t length = header.size();
  file.write({reinterpret_cast<const char*>(&length), sizeof length});
  file.write(header);
  for (const Placed& placed : order) {
    int64_t written = 0;
    placed.tensor->write([&](std::string_view bytes) {
      file.write(bytes);
      written += static_cast<int64_t>(bytes.size());
    });
    if (written != placed.bytes)
      throw Error(cat(describe(path, placed.tensor->name), ": shape ",
                      to_text(placed.tensor->shape), " of ", placed.type->name, " takes ",
                      placed.bytes, " bytes, the data has ", written));
  }
}

void stream_safetensors(const std::string& path, const std::vector<SafetensorsOutput>& tensors,
                        const std::map<std::string, std::string>& metadata) {
  FileAside file("safetensors", path);
  stream_safetensors(file, tensors, metadata);
  file.commit();
}

void write_safetensors(const std::string& path, const std::vector<StateEntry>& entries,
                       const std::map<std::string, std::string>& metadata) {
  std::vector<SafetensorsOutput> tensors;
  for (const StateEntry& entry : entries) {
    const SafetensorsType* type = find_type(entry.dtype);
    if (type == nullptr)
      throw Error(cat(describe(path, entry.name), ": the format has no dtype ", entry.dtype,
                      "; it has ", known_types(true)));
    const auto* bytes = reinterpret_cast<const char*>(entry.data.data());
    tensors.push_back({entry.name, type->name, entry.shape, [&entry, bytes](const ByteSink& sink) {
                         sink({bytes, entry.data.size()});
                       }});
  }
  stream_safetensors(path, tensors, metadata);
}

SafetensorsFile read_safetensors(const std::string& path) {
  const MappedFile file("safetensors", path);
  SafetensorsHeader header = read_safetensors_header(file);
  check_memory(path, header);
  SafetensorsFile result{{}, std::move(header.metadata)};
  for (const SafetensorsEntry& entry : header.entries)
    result.entries.push_back(read_entry(file, entry));
  return result;
}

}  // namespace tiny

#else  // a build for a machine that has no more than a compiler: everything else works

namespace tiny {

constexpr const char* kNoJson =
    ": this build reads and writes no safetensors files: nlohmann/json.hpp (package "
    "nlohmann-json3-dev) was missing";

std::string safetensors_name(DType dtype) { return dtype.name(); }

SafetensorsHeader read_safetensors_header(const MappedFile& file) {
  throw Error(cat("safetensors: ", file.path(), kNoJson));
}

void check_bools(const MappedFile&, const std::string&, int64_t, int64_t) {}

int64_t bytes_of(const std::string& path, const SafetensorsOutput&) {
  throw Error(cat("safetensors: ", path, kNoJson));
}

void stream_safetensors(FileAside& file, const std::vector<SafetensorsOutput>&,
                        const std::map<std::string, std::string>&) {
  throw Error(cat("safetensors: ", file.path(), kNoJson));
}

void stream_safetensors(const std::string& path, const std::vector<SafetensorsOutput>&,
                        const std::map<std::string, std::string>&) {
  throw Error(cat("safetensors: ", path, kNoJson));
}

void write_safetensors(const std::string& path, const std::vector<StateEntry>&,
                       const std::map<std::string, std::string>&) {
  throw Error(cat("safetensors: ", path, kNoJson));
}

SafetensorsFile read_safetensors(const std::string& path) {
  throw Error(cat("safetensors: ", path, kNoJson));
}

}  // namespace tiny
#endif
