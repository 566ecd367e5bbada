// A hash map from 64-bit integers to 64-bit integers, for tables that are built once and asked
// often.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tiny::models::tokenizers {

class IntegerMap {
 public:
  static constexpr uint64_t kAbsent = ~uint64_t{0};

  // The key is not kAbsent. A later value replaces an earlier one.
  void set(uint64_t key, uint64_t value) {
    if ((size_ + 1) * 2 > slots_.size()) grow();
    Slot& slot = slots_[place(key)];
    size_ += slot.key == kAbsent;
    slot = {key, value};
  }
  // kAbsent where the key is none of the map's.
  uint64_t find(uint64_t key) const {
    if (slots_.empty()) return kAbsent;
    const Slot& slot = slots_[place(key)];
    return slot.key == key ? slot.value : kAbsent;
  }
  template <class Visit> void for_each(const Visit& visit) const {
    for (const Slot& slot : slots_)
      if (slot.key != kAbsent) visit(slot.key, slot.value);
  }

 private:
  struct Slot {
    uint64_t key = kAbsent, value = kAbsent;
  };

  // The slot of the key or the free one where it belongs: linear probing over a power of two.
  size_t place(uint64_t key) const {
    const size_t mask = slots_.size() - 1;
    const uint64_t mixed = (key ^ key >> 32) * 0x9e3779b97f4a7c15u;
    size_t at = (mixed ^ mixed >> 29) & mask;
    while (slots_[at].key != kAbsent && slots_[at].key != key) at = (at + 1) & mask;
    return at;
  }
  void grow() {
    std::vector<Slot> before(slots_.empty() ? 16 : slots_.size() * 2);
    before.swap(slots_);
    for (const Slot& slot : before)
      if (slot.key != kAbsent) slots_[place(slot.key)] = slot;
  }

  std::vector<Slot> slots_;
  size_t size_ = 0;
};

}  // namespace tiny::models::tokenizers
