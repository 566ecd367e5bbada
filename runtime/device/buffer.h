// Device memory owned by tensors: allocated when a kernel first writes it, counted, freed when the
// last node that refers to it is gone.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/device/device.h"
#include "tiny/ir/dtype.h"
#include "tiny/ir/node.h"
#include "tiny/run/memory.h"

namespace tiny {

class Buffer;

// A block of device memory. It stays the same block when an assignment moves it to another buffer.
struct Memory {
  Memory(Buffer* owner, bool roomy);  // roomy: the block may be a larger one
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  Device& device;
  const size_t bytes;
  size_t room = 0;  // bytes of the block
  void* data = nullptr;
  Buffer* owner;         // nullptr while it is being freed
  uint64_t changes = 0;  // how often its content was about to change
};

class Buffer : public std::enable_shared_from_this<Buffer> {
 public:
  Buffer(std::string device, DType dtype, int64_t size);  // no memory yet
  // A part of another one, which stays alive: `size` elements from byte `offset` on.
  Buffer(std::shared_ptr<Buffer> whole, size_t offset, DType dtype, int64_t size);
  // Bytes for many values. May get a free block that is larger.
  static std::shared_ptr<Buffer> arena(const std::string& device, int64_t bytes,
                                       const char* owner = "schedule");
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  Device& device() const { return *device_; }
  const std::string& device_name() const { return name_; }
  DType dtype() const { return dtype_; }
  int64_t size() const { return size_; }  // elements
  size_t bytes() const { return static_cast<size_t>(size_) * dtype_.size(); }
  bool allocated() const { return memory_ != nullptr; }

  void* data();                   // allocates at first use; throws Error for a moved buffer
  void upload(const void* from);  // bytes() from host memory
  void download(void* to);        // bytes() to host memory, after all work on it has ended

  // A buffer with this one's memory, whose content is about to change: nodes that refer to this
  // one must not read the new content, so reading it is an error from then on.
  std::shared_ptr<Buffer> move_memory();
  bool moved() const { return moved_; }
  std::weak_ptr<Memory> memory() const { return memory_; }  // where it has memory of its own
  bool is_part() const { return whole_ != nullptr; }

  // For lists of who holds memory (tiny/run/memory.h): the operations that made it, and its owner.
  std::string label;
  const char* owner = "tensor";

 private:
  std::string name_;
  Device* device_;
  DType dtype_;
  int64_t size_;
  std::shared_ptr<Buffer> whole_;  // of a part
  size_t offset_ = 0;
  std::shared_ptr<Memory> memory_;
  bool roomy_ = false;
  bool moved_ = false;
};

// Of so many elements. Error for more than kMaxBytes, which no memory has, so that sums over the
// values of a schedule do not wrap around.
inline constexpr int64_t kMaxBytes = int64_t{1} << 58;
int64_t bytes_of(DType t, int64_t elements);

// Live buffers with memory, and their bytes, over all devices.
struct MemoryUse {
  int64_t buffers = 0;
  int64_t bytes = 0;
  int64_t peak_bytes = 0;
};
MemoryUse memory_use();

// The same by device, by name, with what is kept; the `most` largest blocks.
std::vector<DeviceMemory> device_memory();
std::vector<MemoryHolder> largest_holders(size_t most);

// Bytes of a device that are in use, without what captures can make again.
int64_t bytes_held(const Device& device);
// The ten largest buffers of a device as lines for people; one such line, with a line break before
// it: size, dtype, elements, and what made it.
std::string largest_buffers(const Device& device);
std::string memory_line(int64_t bytes, DType dtype, int64_t elements, const std::string& made_by);

// Gives back all freed memory that is kept.
void free_kept_memory();

// Frees what else can be made again, where a device has no memory left (runtime/memory_report.cpp).
// May be called while a schedule runs.
void relieve_pressure();

// The node by which a graph reads this buffer.
Node buffer_node(const std::shared_ptr<Buffer>& b);

// The buffer behind a node that has values and is no more than a reshape of it; else nullptr.
std::shared_ptr<Buffer> whole_buffer(Node n);

}  // namespace tiny
