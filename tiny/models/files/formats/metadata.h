// What a model file says beside its tensors: values of GGUF's kinds by name, in the file's order.
// The metadata of safetensors are texts.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

namespace tiny {

// The alternatives stand in the order of GGUF's numbers of value types: index() is the number.
struct MetadataArray {
  std::variant<std::vector<uint8_t>, std::vector<int8_t>, std::vector<uint16_t>,
               std::vector<int16_t>, std::vector<uint32_t>, std::vector<int32_t>,
               std::vector<float>, std::vector<bool>, std::vector<std::string>,
               std::vector<MetadataArray>, std::vector<uint64_t>, std::vector<int64_t>,
               std::vector<double>>
      values;
  bool operator==(const MetadataArray&) const = default;
};
using MetadataValue = std::variant<uint8_t, int8_t, uint16_t, int16_t, uint32_t, int32_t, float,
                                   bool, std::string, MetadataArray, uint64_t, int64_t, double>;

// "an u32", "an array of texts"
std::string kind_of(const MetadataValue& value);

class Metadata {
 public:
  using Item = std::pair<std::string, MetadataValue>;

  // Replaces a value of this key in its place.
  void set(const std::string& key, MetadataValue value);
  const MetadataValue* find(const std::string& key) const;  // nullptr: there is none
  bool contains(const std::string& key) const { return find(key) != nullptr; }
  const std::vector<Item>& items() const { return items_; }

  // A value, of any width. Throws Error that names the key where it is missing and there is no
  // `otherwise`, is of another kind, or does not fit an i64.
  int64_t integer(const std::string& key, std::optional<int64_t> otherwise = {}) const;
  double number(const std::string& key, std::optional<double> otherwise = {}) const;
  bool flag(const std::string& key, std::optional<bool> otherwise = {}) const;
  std::string text(const std::string& key, std::optional<std::string> otherwise = {}) const;

  // The same of arrays.
  std::vector<int64_t> integers(const std::string& key) const;
  std::vector<double> numbers(const std::string& key) const;
  const std::vector<std::string>& texts(const std::string& key) const;

 private:
  std::vector<Item> items_;
  std::unordered_map<std::string, size_t> places_;  // in items_
};

}  // namespace tiny
