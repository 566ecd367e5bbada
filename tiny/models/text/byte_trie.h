// A set of byte strings with a number each, which finds those that a text begins with.
#pragma once
#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "tiny/models/text/integer_map.h"

namespace tiny::models::tokenizers {

class ByteTrie {
 public:
  struct Found {
    size_t size;  // of the string, in bytes; 0: none was found
    int32_t value;
  };

  // The string is not empty, the value not negative. A later value replaces an earlier one.
  void add(std::string_view text, int32_t value) {
    uint32_t node = 0;
    for (const char c : text) {
      uint64_t next = child(node, c);
      if (next == IntegerMap::kAbsent) {
        next = values_.size();
        children_.set(key(node, c), next);
        values_.push_back(-1);
      }
      node = static_cast<uint32_t>(next);
    }
    values_[node] = value;
    starts_[static_cast<unsigned char>(text[0])] = true;
  }

  // Calls visit(size, value) for each string that the text begins with, the shortest first.
  template <class Visit> void for_each_prefix(std::string_view text, const Visit& visit) const {
    if (text.empty() || !starts_[static_cast<unsigned char>(text[0])]) return;
    uint64_t node = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      node = child(static_cast<uint32_t>(node), text[i]);
      if (node == IntegerMap::kAbsent) return;
      if (values_[node] >= 0) visit(i + 1, values_[node]);
    }
  }
  Found longest_prefix(std::string_view text) const {
    Found found{0, -1};
    for_each_prefix(text, [&](size_t size, int32_t value) { found = {size, value}; });
    return found;
  }
  bool empty() const { return values_.size() == 1; }

 private:
  static uint64_t key(uint32_t node, char c) {
    return uint64_t{node} << 8 | static_cast<unsigned char>(c);
  }
  uint64_t child(uint32_t node, char c) const { return children_.find(key(node, c)); }

  IntegerMap children_;
  std::vector<int32_t> values_{-1};  // of the nodes; -1: no string ends here
  std::array<bool, 256> starts_{};   // the first bytes of the strings
};

}  // namespace tiny::models::tokenizers
