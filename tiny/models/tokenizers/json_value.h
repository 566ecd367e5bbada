// A value of a JSON file that knows where it stands, for errors that say so.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tiny/base/error.h"
#include "tiny/models/text/unicode.h"

namespace tiny::models::tokenizers {

class JsonValue {
 public:
  using Json = nlohmann::json;

  JsonValue(const Json& value, std::string path) : value_(&value), path_(std::move(path)) {}

  const Json& json() const { return *value_; }
  const std::string& path() const { return path_; }
  bool is_null() const { return value_->is_null(); }
  bool has(const std::string& key) const {
    return value_->is_object() && value_->contains(key) && !(*value_)[key].is_null();
  }
  // A member of an object; null where it is missing.
  JsonValue operator[](const std::string& key) const {
    static const Json kNull;
    require(value_->is_object(), "an object");
    const auto found = value_->find(key);
    return {found == value_->end() ? kNull : *found, path_.empty() ? key : path_ + "." + key};
  }
  std::vector<JsonValue> items() const {
    require(value_->is_array(), "an array");
    std::vector<JsonValue> out;
    for (size_t i = 0; i < value_->size(); ++i)
      out.emplace_back((*value_)[i], cat(path_, "[", i, "]"));
    return out;
  }

  const std::string& text() const {
    require(value_->is_string(), "a string");
    return value_->get_ref<const std::string&>();
  }
  std::string text_or(const std::string& otherwise) const { return is_null() ? otherwise : text(); }
  bool boolean_or(bool otherwise) const {
    if (is_null()) return otherwise;
    require(value_->is_boolean(), "true or false");
    return value_->get<bool>();
  }
  int64_t integer(int64_t least, int64_t most) const {
    const bool fits =
        value_->is_number_integer() &&
        (!value_->is_number_unsigned() || value_->get<uint64_t>() <= static_cast<uint64_t>(most));
    const int64_t n = fits ? value_->get<int64_t>() : 0;
    require(fits && least <= n && n <= most, cat("an integer from ", least, " to ", most));
    return n;
  }
  int64_t integer_or(int64_t otherwise, int64_t least, int64_t most) const {
    return is_null() ? otherwise : integer(least, most);
  }
  double number() const {
    require(value_->is_number(), "a number");
    return value_->get<double>();
  }
  // One character of UTF-8.
  std::string character() const {
    require(!text().empty() && utf8_size(text()[0]) == text().size(), "one character");
    return text();
  }

  void require(bool ok, std::string_view wanted) const {
    if (!ok)  // the text is costly to make
      throw Error(cat(path_.empty() ? "the file" : path_, " is not ", wanted, ": ", shortened()));
  }
  [[noreturn]] void fail_unsupported() const {
    throw Error(cat(path_, " is not supported: ", shortened()));
  }

 private:
  // The value as text, of which the begin tells enough.
  std::string shortened() const {
    constexpr size_t kMax = 60;
    if (value_->is_structured() && value_->size() > 8)
      return cat(value_->type_name(), " of ", value_->size());
    const std::string text = value_->dump();
    return text.size() <= kMax ? text : valid_utf8(text.substr(0, kMax)) + "...";
  }

  const Json* value_;
  std::string path_;
};

// Sequences of steps may hold sequences.
inline constexpr int kMaxDepth = 32;

// A type's name and what reads it.
template <class Step> struct StepReader {
  const char* type;
  Step (*read)(const JsonValue& value, int depth);
};

// The step that the value's "type" names.
template <class Step, size_t N>
Step read_step(const StepReader<Step> (&readers)[N], const JsonValue& value, int depth) {
  check(depth < kMaxDepth, value.path().substr(0, 100), "... is nested too deep");
  const JsonValue type = value["type"];
  for (const auto& reader : readers)
    if (type.text() == reader.type) return reader.read(value, depth);
  type.fail_unsupported();
}

}  // namespace tiny::models::tokenizers
