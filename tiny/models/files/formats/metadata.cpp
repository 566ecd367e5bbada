#include "tiny/models/files/formats/metadata.h"

#include <iterator>
#include <limits>
#include <type_traits>

#include "tiny/base/error.h"

namespace tiny {

namespace {

constexpr const char* kKinds[] = {"u8",   "i8",   "u16",   "i16", "u32", "i32", "f32",
                                  "bool", "text", "array", "u64", "i64", "f64"};
static_assert(std::size(kKinds) == std::variant_size_v<MetadataValue>);

template <class T> constexpr bool is_integer = std::is_integral_v<T> && !std::is_same_v<T, bool>;

[[noreturn]] void throw_kind(const std::string& key, const std::string& found,
                             const char* expected) {
  throw Error(cat("metadata: ", key, " is of kind ", found, ", expected ", expected));
}

template <class T> int64_t to_integer(const std::string& key, T value) {
  if constexpr (std::is_same_v<T, uint64_t>)
    check(value <= uint64_t{std::numeric_limits<int64_t>::max()}, "metadata: ", key, " is ", value,
          ", expected an integer below 2^63");
  return static_cast<int64_t>(value);
}

// The elements of an array of which `convert` takes each; Error where it does not take such.
template <class T, class Convert>
std::vector<T> converted(const Metadata& all, const std::string& key, const char* expected,
                         Convert convert) {
  const MetadataValue* value = all.find(key);
  check(value != nullptr, "metadata: there is no ", key);
  const auto* array = std::get_if<MetadataArray>(value);
  if (array == nullptr) throw_kind(key, kind_of(*value), expected);
  std::vector<T> result;
  std::visit(
      [&](const auto& list) {
        using Element = typename std::decay_t<decltype(list)>::value_type;
        if constexpr (std::is_invocable_v<Convert, Element>) {
          result.reserve(list.size());
          for (Element element : list) result.push_back(convert(element));
        } else {
          throw_kind(key, kind_of(*value), expected);
        }
      },
      array->values);
  return result;
}

}  // namespace

std::string kind_of(const MetadataValue& value) {
  const auto* array = std::get_if<MetadataArray>(&value);
  if (array == nullptr) return kKinds[value.index()];
  return cat("array of ", kKinds[array->values.index()]);
}

void Metadata::set(const std::string& key, MetadataValue value) {
  const auto [at, is_new] = places_.try_emplace(key, items_.size());
  if (is_new)
    items_.emplace_back(key, std::move(value));
  else
    items_[at->second].second = std::move(value);
}

const MetadataValue* Metadata::find(const std::string& key) const {
  const auto at = places_.find(key);
  return at == places_.end() ? nullptr : &items_[at->second].second;
}

int64_t Metadata::integer(const std::string& key, std::optional<int64_t> otherwise) const {
  const MetadataValue* value = find(key);
  if (value == nullptr && otherwise) return *otherwise;
  check(value != nullptr, "metadata: there is no ", key);
  return std::visit(
      [&](const auto& v) -> int64_t {
        if constexpr (is_integer<std::decay_t<decltype(v)>>) return to_integer(key, v);
        throw_kind(key, kind_of(*value), "an integer");
      },
      *value);
}

double Metadata::number(const std::string& key, std::optional<double> otherwise) const {
  const MetadataValue* value = find(key);
  if (value == nullptr && otherwise) return *otherwise;
  check(value != nullptr, "metadata: there is no ", key);
  return std::visit(
      [&](const auto& v) -> double {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_floating_point_v<T> || is_integer<T>) return static_cast<double>(v);
        throw_kind(key, kind_of(*value), "a number");
      },
      *value);
}

bool Metadata::flag(const std::string& key, std::optional<bool> otherwise) const {
  const MetadataValue* value = find(key);
  if (value == nullptr && otherwise) return *otherwise;
  check(value != nullptr, "metadata: there is no ", key);
  const bool* found = std::get_if<bool>(value);
  if (found == nullptr) throw_kind(key, kind_of(*value), "a bool");
  return *found;
}

std::string Metadata::text(const std::string& key, std::optional<std::string> otherwise) const {
  const MetadataValue* value = find(key);
  if (value == nullptr && otherwise) return *otherwise;
  check(value != nullptr, "metadata: there is no ", key);
  const auto* found = std::get_if<std::string>(value);
  if (found == nullptr) throw_kind(key, kind_of(*value), "a text");
  return *found;
}

std::vector<int64_t> Metadata::integers(const std::string& key) const {
  return converted<int64_t>(
      *this, key, "an array of integers", [&]<class T>(T v) requires is_integer<T> {
        return to_integer(key, v);
      });
}

std::vector<double> Metadata::numbers(const std::string& key) const {
  return converted<double>(
      *this, key, "an array of numbers",
      []<class T>(T v) requires(is_integer<T> || std::is_floating_point_v<T>) {
        return static_cast<double>(v);
      });
}

const std::vector<std::string>& Metadata::texts(const std::string& key) const {
  const MetadataValue* value = find(key);
  check(value != nullptr, "metadata: there is no ", key);
  const auto* array = std::get_if<MetadataArray>(value);
  const auto* texts = array ? std::get_if<std::vector<std::string>>(&array->values) : nullptr;
  if (texts == nullptr) throw_kind(key, kind_of(*value), "an array of texts");
  return *texts;
}

}  // namespace tiny
