#include "runtime/buffer.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <mutex>
#include <set>

#include "tiny/error.h"

namespace tiny {

namespace {

// Freed memory of the devices, kept for the next buffer of the same size: a training step asks for
// the same sizes again and again, and fresh pages cost more than the kernels that fill them.
class Pool {
 public:
  void* take(const Buffer& owner) {
    Device& device = owner.device();
    const size_t bytes = owner.bytes();
    {
      std::lock_guard lock(mutex_);
      auto& blocks = free_[{&device, rounded(bytes)}];
      if (!blocks.empty()) {
        void* block = blocks.back();
        blocks.pop_back();
        kept_ -= rounded(bytes);
        count(bytes, 1);
        live_.insert(&owner);
        return block;
      }
    }
    void* block = allocate(device, rounded(bytes));
    std::lock_guard lock(mutex_);
    count(bytes, 1);
    live_.insert(&owner);
    return block;
  }

  void give(const Buffer& owner, void* block) {
    Device& device = owner.device();
    const size_t bytes = owner.bytes();
    std::lock_guard lock(mutex_);
    live_.erase(&owner);
    count(bytes, -1);
    free_[{&device, rounded(bytes)}].push_back(block);
    kept_ += rounded(bytes);
    if (kept_ > kMostKept) trim();
  }

  void move(const Buffer& from, const Buffer& to) {
    std::lock_guard lock(mutex_);
    live_.erase(&from);
    live_.insert(&to);
  }

  MemoryUse use() {
    std::lock_guard lock(mutex_);
    return use_;
  }

 private:
  static constexpr size_t kMostKept = size_t{2} << 30;

  static size_t rounded(size_t bytes) { return (bytes + 255) / 256 * 256; }

  void* allocate(Device& device, size_t bytes) {
    try {
      return device.alloc(bytes);
    } catch (const DeviceError&) {
      std::lock_guard lock(mutex_);
      trim();
    }
    try {
      return device.alloc(bytes);
    } catch (const DeviceError& error) {
      const std::string text = error.what();
      if (text.find("out of memory") == text.npos) throw;
      throw DeviceError(text + largest_buffers(device));
    }
  }

  // The ten largest of a device as lines: their size, dtype, elements, and what made them.
  std::string largest_buffers(const Device& device) {
    std::lock_guard lock(mutex_);
    std::vector<const Buffer*> all;
    for (const Buffer* b : live_)
      if (&b->device() == &device) all.push_back(b);
    if (all.empty()) return "; no tensor has memory there";
    const size_t shown = std::min<size_t>(all.size(), 10);
    std::partial_sort(all.begin(), all.begin() + shown, all.end(),
                      [](const Buffer* a, const Buffer* b) { return a->bytes() > b->bytes(); });
    std::string text = cat("; the largest of ", all.size(), " buffers in use there:");
    for (size_t i = 0; i < shown; ++i) {
      char size[32];
      std::snprintf(size, sizeof size, "%10.2f MiB  ", all[i]->bytes() / 1048576.0);
      text += cat("\n", size, all[i]->dtype().name(), " x ", all[i]->size(), "  ", all[i]->label);
    }
    return text;
  }

  void trim() {
    for (auto& [key, blocks] : free_)
      for (void* block : blocks) key.first->free(block, key.second);
    free_.clear();
    kept_ = 0;
  }

  void count(size_t bytes, int sign) {
    use_.buffers += sign;
    use_.bytes += sign * static_cast<int64_t>(bytes);
    use_.peak_bytes = std::max(use_.peak_bytes, use_.bytes);
  }

  std::mutex mutex_;
  std::map<std::pair<Device*, size_t>, std::vector<void*>> free_;
  size_t kept_ = 0;
  std::set<const Buffer*> live_;  // those with memory
  MemoryUse use_;
};

Pool& pool() {
  static Pool* p = new Pool;  // outlives every buffer
  return *p;
}

}  // namespace

Buffer::Buffer(std::string device, DType dtype, int64_t size)
    : name_(canonical_device(device)), device_(&find_device(name_)), dtype_(dtype), size_(size) {}

Buffer::~Buffer() {
  if (data_) pool().give(*this, data_);
}

void* Buffer::data() {
  check(!moved_,
        "reading a tensor whose memory was overwritten by assign(): realize what needs the "
        "old values before, or compute it from a copy, x.contiguous()");
  if (!data_) data_ = pool().take(*this);
  return data_;
}

std::shared_ptr<Buffer> Buffer::move_memory() {
  data();
  auto to = std::make_shared<Buffer>(name_, dtype_, size_);
  to->label = label;
  std::swap(to->data_, data_);
  pool().move(*this, *to);
  moved_ = true;
  return to;
}

void Buffer::upload(const void* from) { device_->upload(data(), from, bytes()); }

void Buffer::download(void* to) {
  if (!bytes()) return;
  expect(data_ || moved_, "reading a buffer that was never written");
  device_->download(to, data(), bytes());
}

MemoryUse memory_use() { return pool().use(); }

}  // namespace tiny
