#include "runtime/buffer.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <mutex>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "tiny/error.h"

namespace tiny {

namespace {

// Freed memory of the devices, kept for the next buffer of the same size: a training step asks for
// the same sizes again and again, and fresh pages cost more than the kernels that fill them.
class Pool {
 public:
  // Gives the memory a block: the smallest that has room where `roomy`, else one of just its size.
  void take(Memory& memory, bool roomy) {
    const size_t wanted = rounded(memory.bytes);
    {
      std::lock_guard lock(mutex_);
      const auto at = find(memory.device, wanted, roomy);
      if (at != free_.end()) {
        memory.room = at->first.second;
        memory.data = at->second.back();
        at->second.pop_back();
        if (at->second.empty()) free_.erase(at);
        kept_ -= memory.room;
        count(memory, 1);
        return;
      }
    }
    memory.room = wanted;
    memory.data = allocate(memory.device, wanted);
    std::lock_guard lock(mutex_);
    count(memory, 1);
  }

  void give(Memory& memory) {
    std::lock_guard lock(mutex_);
    count(memory, -1);
    free_[{&memory.device, memory.room}].push_back(memory.data);
    kept_ += memory.room;
    // A program gets back what it once had; what it might want is limited.
    const auto in_use = static_cast<size_t>(use_.bytes),
               peak = static_cast<size_t>(use_.peak_bytes);
    if (kept_ > kMostKept && kept_ + in_use > peak) trim();
  }

  // Under the lock because the list of an out-of-memory error looks at owners.
  void hand_over(Memory& memory, Buffer* to) {
    std::lock_guard lock(mutex_);
    memory.owner = to;
  }

  MemoryUse use() {
    std::lock_guard lock(mutex_);
    return use_;
  }

 private:
  static constexpr size_t kMostKept = size_t{2} << 30;

  using Blocks = std::map<std::pair<Device*, size_t>, std::vector<void*>>;

  static size_t rounded(size_t bytes) { return (bytes + 255) / 256 * 256; }

  Blocks::iterator find(Device& device, size_t bytes, bool roomy) {
    const auto at = free_.lower_bound({&device, bytes});
    if (at == free_.end() || at->first.first != &device) return free_.end();
    return roomy || at->first.second == bytes ? at : free_.end();
  }

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
    for (const Memory* m : live_)
      if (&m->device == &device && m->owner) all.push_back(m->owner);
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

  void count(const Memory& memory, int sign) {
    if (sign > 0)
      live_.insert(&memory);
    else
      live_.erase(&memory);
    use_.buffers += sign;
    use_.bytes += sign * static_cast<int64_t>(memory.bytes);
    use_.peak_bytes = std::max(use_.peak_bytes, use_.bytes);
  }

  std::mutex mutex_;
  Blocks free_;
  size_t kept_ = 0;
  std::set<const Memory*> live_;
  MemoryUse use_;
};

Pool& pool() {
  static Pool* p = new Pool;  // outlives every buffer
  return *p;
}

}  // namespace

Memory::Memory(Buffer* buffer, bool roomy)
    : device(buffer->device()), bytes(buffer->bytes()), owner(buffer) {
  pool().take(*this, roomy);
}

Memory::~Memory() { pool().give(*this); }

Buffer::Buffer(std::string device, DType dtype, int64_t size)
    : name_(canonical_device(device)), device_(&find_device(name_)), dtype_(dtype), size_(size) {}

Buffer::Buffer(std::shared_ptr<Buffer> whole, size_t offset, DType dtype, int64_t size)
    : name_(whole->name_),
      device_(whole->device_),
      dtype_(dtype),
      size_(size),
      whole_(std::move(whole)),
      offset_(offset) {}

std::shared_ptr<Buffer> Buffer::arena(const std::string& device, int64_t bytes) {
  auto out = std::make_shared<Buffer>(device, kU8, bytes);
  out->label = "intermediate values";
  out->roomy_ = true;
  return out;
}

Buffer::~Buffer() {
  if (memory_) pool().hand_over(*memory_, nullptr);
}

void* Buffer::data() {
  check(!moved_,
        "reading a tensor whose memory was overwritten by assign(): realize what needs the "
        "old values before, or compute it from a copy, x.contiguous()");
  if (whole_) return static_cast<std::byte*>(whole_->data()) + offset_;
  if (!memory_) memory_ = std::make_shared<Memory>(this, roomy_);
  return memory_->data;
}

std::shared_ptr<Buffer> Buffer::move_memory() {
  data();
  auto to = whole_ ? std::make_shared<Buffer>(whole_, offset_, dtype_, size_)
                   : std::make_shared<Buffer>(name_, dtype_, size_);
  to->label = label;
  if (memory_) pool().hand_over(*memory_, to.get());
  to->memory_ = std::exchange(memory_, nullptr);
  moved_ = true;
  return to;
}

void Buffer::upload(const void* from) { device_->upload(data(), from, bytes()); }

void Buffer::download(void* to) {
  if (!bytes()) return;
  expect(memory_ || whole_ || moved_, "reading a buffer that was never written");
  device_->download(to, data(), bytes());
}

MemoryUse memory_use() { return pool().use(); }

}  // namespace tiny
