#include "runtime/buffer.h"

#include <map>
#include <mutex>

#include "tiny/error.h"

namespace tiny {

namespace {

// Freed memory of the devices, kept for the next buffer of the same size: a training step asks for
// the same sizes again and again, and fresh pages cost more than the kernels that fill them.
class Pool {
 public:
  void* take(Device& device, size_t bytes) {
    {
      std::lock_guard lock(mutex_);
      auto& blocks = free_[{&device, rounded(bytes)}];
      if (!blocks.empty()) {
        void* block = blocks.back();
        blocks.pop_back();
        kept_ -= rounded(bytes);
        count(bytes, 1);
        return block;
      }
    }
    void* block = allocate(device, rounded(bytes));
    std::lock_guard lock(mutex_);
    count(bytes, 1);
    return block;
  }

  void give(Device& device, void* block, size_t bytes) {
    std::lock_guard lock(mutex_);
    count(bytes, -1);
    free_[{&device, rounded(bytes)}].push_back(block);
    kept_ += rounded(bytes);
    if (kept_ > kMostKept) trim();
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
    return device.alloc(bytes);
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
  if (data_) pool().give(*device_, data_, bytes());
}

void* Buffer::data() {
  check(!moved_,
        "reading a tensor whose memory was overwritten by assign(): realize what needs the "
        "old values before, or compute it from a copy, x.contiguous()");
  if (!data_) data_ = pool().take(*device_, bytes());
  return data_;
}

std::shared_ptr<Buffer> Buffer::move_memory() {
  data();
  auto to = std::make_shared<Buffer>(name_, dtype_, size_);
  std::swap(to->data_, data_);
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
