#include "tiny/models/files/formats/shard_index.h"

#include <unordered_set>

#include "tiny/base/error.h"
#include "tiny/base/file.h"

#if __has_include(<nlohmann/json.hpp>)
#include <nlohmann/json.hpp>

namespace tiny {
namespace {

using nlohmann::json;

// Takes the index as it is parsed, so that it may be as deep as it likes. Depth 1 is between the
// sections, 2 in one of them; what lies deeper is passed over.
class Index : public nlohmann::json_sax<json> {
 public:
  explicit Index(const std::string& path) : path_(path) {}

  ShardIndex result;
  bool has_map = false;

  bool null() override { return value({}); }
  bool boolean(bool v) override { return value(v); }
  bool number_integer(json::number_integer_t v) override { return value(int64_t{v}); }
  bool number_unsigned(json::number_unsigned_t v) override { return value(uint64_t{v}); }
  bool number_float(json::number_float_t v, const std::string&) override { return value(v); }
  bool binary(json::binary_t&) override { return value({}); }
  bool string(std::string& text) override {
    if (depth_ == 2 && section_ == "weight_map") return add(text), true;
    return value(text);
  }
  bool start_object(size_t) override {
    if (depth_ == 1 && section_ == "weight_map") has_map = true;
    if (depth_ >= 2) value({});
    ++depth_;
    return true;
  }
  bool key(std::string& text) override {
    if (depth_ == 1) section_ = text;
    if (depth_ == 2) key_ = text;
    return true;
  }
  bool end_object() override { return --depth_, true; }
  bool start_array(size_t) override {
    value({});
    ++depth_;
    return true;
  }
  bool end_array() override { return --depth_, true; }
  bool parse_error(size_t, const std::string&, const json::exception& error) override {
    constexpr size_t kShown = 200;
    fail("no JSON: ", std::string(error.what()).substr(0, kShown));
  }

 private:
  template <class... Parts> [[noreturn]] void fail(const Parts&... parts) const {
    throw Error(cat("safetensors: the index ", path_, " is ", parts...));
  }

  // Anything but the name of a file; kept where it is metadata.
  bool value(std::optional<MetadataValue> v) {
    if (depth_ == 0) fail("no JSON object");
    if (depth_ == 1 && section_ == "weight_map") fail("damaged: weight_map is no object");
    if (depth_ == 2 && section_ == "weight_map")
      fail("damaged: the file of tensor ", key_, " is no text");
    if (depth_ == 2 && section_ == "metadata" && v) result.metadata.set(key_, std::move(*v));
    return true;
  }

  void add(const std::string& file) {
    if (!names_.insert(key_).second) fail("damaged: tensor ", key_, " is there twice");
    if (file.empty() || file == "." || file == ".." || file.find_first_of({"/\0", 2}) != file.npos)
      fail("damaged: the file of tensor ", key_, " is '", file, "', which is none in its folder");
    result.shards.emplace_back(key_, file);
  }

  const std::string& path_;
  int depth_ = 0;
  std::string section_, key_;
  std::unordered_set<std::string> names_;
};

}  // namespace

ShardIndex read_shard_index(const std::string& path) {
  const MappedFile file("safetensors", path);
  const auto bytes = file.bytes(0, file.size());
  const auto* text = reinterpret_cast<const char*>(bytes.data());
  Index index(path);
  json::sax_parse(text, text + bytes.size(), &index);
  check(index.has_map, "safetensors: the index ", path, " has no weight_map");
  return std::move(index.result);
}

std::string shard_index_text(const std::vector<std::pair<std::string, std::string>>& shards,
                             int64_t total_bytes) {
  json map = json::object();
  for (const auto& [name, file] : shards) map[name] = file;
  return json{{"metadata", {{"total_size", total_bytes}}}, {"weight_map", map}}.dump(2) + '\n';
}

}  // namespace tiny

#else

namespace tiny {

ShardIndex read_shard_index(const std::string& path) {
  throw Error(
      cat("safetensors: ", path, ": this build reads no index: nlohmann/json.hpp was ", "missing"));
}

std::string shard_index_text(const std::vector<std::pair<std::string, std::string>>&, int64_t) {
  throw Error("safetensors: this build writes no index: nlohmann/json.hpp was missing");
}

}  // namespace tiny
#endif
