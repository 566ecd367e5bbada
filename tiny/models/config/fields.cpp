#include "tiny/models/config/fields.h"

#include <cmath>

#if __has_include(<nlohmann/json.hpp>)
#include <nlohmann/json.hpp>

namespace tiny::models {

using nlohmann::json;

struct Fields::Object {
  json value;
};

struct Fields::Found {
  const char* key = nullptr;
  const json* value = nullptr;
};

namespace {

// As it stands in the file; long values are cut.
std::string shown(const json& value) {
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  if (text.size() > 80) text = text.substr(0, 77) + "...";
  return text;
}

}  // namespace

Fields::Fields(std::shared_ptr<const Object> object, std::string where)
    : object_(std::move(object)), where_(std::move(where)) {
  check(object_->value.is_object(), where_, ": expected an object and not ", shown(object_->value));
}

Fields Fields::parse(const std::string& text, const std::string& where) {
  try {
    return Fields(std::make_shared<const Object>(Object{json::parse(text)}), where);
  } catch (const json::exception& e) {
    throw Error(cat(where, ": no JSON: ", e.what()));
  }
}

std::string Fields::dump() const { return object_->value.dump(2); }

Fields::Found Fields::find(Keys keys) const {
  for (const char* key : keys) {
    const auto at = object_->value.find(key);
    if (at != object_->value.end() && !at->is_null()) return {key, &*at};
  }
  return {};
}

Fields::Found Fields::get(Keys keys, bool optional) const {
  const Found found = find(keys);
  check(found.value || optional, where_, ": there is no ", *keys.begin());
  return found;
}

bool Fields::has(Keys keys) const { return find(keys).value != nullptr; }

bool Fields::is_null(const char* key) const {
  const auto at = object_->value.find(key);
  return at != object_->value.end() && at->is_null();
}

void Fields::wrong(const Found& found, const std::string& wanted) const {
  throw Error(cat(where_, ": ", found.key, " is ", shown(*found.value), ", expected ", wanted));
}

void Fields::unsupported(const char* key, const std::string& instead) const {
  const auto at = object_->value.find(key);
  const std::string value = at == object_->value.end() ? "not there" : shown(*at);
  throw Error(cat(where_, ": ", key, " is ", value, ", which is not supported: ", instead));
}

void Fields::require_flag(const char* key, bool wanted) const {
  if (flag({key}, wanted) != wanted) unsupported(key, cat("only ", wanted ? "true" : "false"));
}

int64_t Fields::integer(Keys keys, std::optional<int64_t> without, int64_t least) const {
  const Found found = get(keys, without.has_value());
  if (!found.value) return *without;
  constexpr int64_t kMax = int64_t{1} << 40;  // no size of a model is larger
  const json& v = *found.value;
  const bool fits = v.is_number_integer() && (!v.is_number_unsigned() || v.get<uint64_t>() <= kMax);
  if (!fits || v.get<int64_t>() < least || v.get<int64_t>() > kMax)
    wrong(found, cat("an integer of at least ", least));
  return v.get<int64_t>();
}

double Fields::number(Keys keys, std::optional<double> without) const {
  const Found found = get(keys, without.has_value());
  if (!found.value) return *without;
  if (!found.value->is_number() || !std::isfinite(found.value->get<double>()))
    wrong(found, "a number");
  return found.value->get<double>();
}

double Fields::positive(Keys keys, std::optional<double> without) const {
  const double value = number(keys, without);
  const Found found = find(keys);
  if (found.value && value <= 0) wrong(found, "a number above 0");
  return value;
}

bool Fields::flag(Keys keys, bool without) const {
  const Found found = find(keys);
  if (!found.value) return without;
  if (!found.value->is_boolean()) wrong(found, "true or false");
  return found.value->get<bool>();
}

std::string Fields::text(Keys keys, const std::string& without) const {
  const Found found = find(keys);
  if (!found.value) return without;
  if (!found.value->is_string()) wrong(found, "a text");
  return found.value->get<std::string>();
}

std::vector<int64_t> Fields::integers(Keys keys) const {
  const Found found = find(keys);
  if (!found.value) return {};
  const json list = found.value->is_array() ? *found.value : json::array({*found.value});
  std::vector<int64_t> out;
  for (const json& item : list) {
    if (!item.is_number_integer()) wrong(found, "integers");
    out.push_back(item.get<int64_t>());
  }
  return out;
}

std::vector<std::string> Fields::texts(Keys keys) const {
  const Found found = find(keys);
  if (!found.value) return {};
  if (!found.value->is_array()) wrong(found, "a list of texts");
  std::vector<std::string> out;
  for (const json& item : *found.value) {
    if (!item.is_string()) wrong(found, "a list of texts");
    out.push_back(item.get<std::string>());
  }
  return out;
}

Fields Fields::object(Keys keys) const {
  const Found found = get(keys, false);
  if (!found.value->is_object()) wrong(found, "an object");
  return Fields(std::make_shared<const Object>(Object{*found.value}), cat(where_, ": ", found.key));
}

int64_t Fields::size(Keys keys) const {
  const Found found = find(keys);
  return found.value ? static_cast<int64_t>(found.value->size()) : 0;
}

std::vector<std::string> Fields::values() const {
  std::vector<std::string> out;
  for (const auto& [key, value] : object_->value.items()) {
    if (!value.is_string()) wrong({key.c_str(), &value}, "a text");
    out.push_back(value.get<std::string>());
  }
  return out;
}

}  // namespace tiny::models

#else

namespace tiny::models {

struct Fields::Object {};
struct Fields::Found {};

namespace {

[[noreturn]] void refuse(const std::string& where) {
  throw Error(cat(where, ": built without nlohmann/json.hpp, cannot read JSON"));
}

}  // namespace

Fields Fields::parse(const std::string&, const std::string& where) { refuse(where); }
std::string Fields::dump() const { refuse(where_); }
bool Fields::has(Keys) const { refuse(where_); }
bool Fields::is_null(const char*) const { refuse(where_); }
int64_t Fields::integer(Keys, std::optional<int64_t>, int64_t) const { refuse(where_); }
double Fields::number(Keys, std::optional<double>) const { refuse(where_); }
double Fields::positive(Keys, std::optional<double>) const { refuse(where_); }
bool Fields::flag(Keys, bool) const { refuse(where_); }
std::string Fields::text(Keys, const std::string&) const { refuse(where_); }
std::vector<int64_t> Fields::integers(Keys) const { refuse(where_); }
std::vector<std::string> Fields::texts(Keys) const { refuse(where_); }
Fields Fields::object(Keys) const { refuse(where_); }
int64_t Fields::size(Keys) const { refuse(where_); }
std::vector<std::string> Fields::values() const { refuse(where_); }
void Fields::unsupported(const char*, const std::string&) const { refuse(where_); }
void Fields::require_flag(const char*, bool) const { refuse(where_); }

}  // namespace tiny::models

#endif
