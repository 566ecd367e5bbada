// A least-recently-used map from text to values.
#pragma once
#include <list>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace tiny {

template <class Value> class Lru {
 public:
  // Counts as a use; nullptr where there is none.
  Value* find(std::string_view key) {
    const auto at = at_.find(key);
    if (at == at_.end()) return nullptr;
    entries_.splice(entries_.begin(), entries_, at->second);
    return &at->second->second;
  }
  bool contains(std::string_view key) const { return at_.count(key) != 0; }

  // Keeps what is there under the key already. Then forgets the entries used longest ago until no
  // more than `most` are left, of which the new one is the first.
  Value& insert(std::string key, Value value, size_t most) {
    if (Value* known = find(key)) return *known;
    entries_.emplace_front(std::move(key), std::move(value));
    at_[entries_.front().first] = entries_.begin();
    while (entries_.size() > most && entries_.size() > 1) {
      at_.erase(entries_.back().first);
      entries_.pop_back();
    }
    return entries_.front().second;
  }

  size_t size() const { return entries_.size(); }
  void clear() {
    at_.clear();
    entries_.clear();
  }

 private:
  using Entries = std::list<std::pair<std::string, Value>>;  // the one used last is the first
  Entries entries_;
  std::unordered_map<std::string_view, typename Entries::iterator> at_;
};

}  // namespace tiny
