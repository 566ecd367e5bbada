#include "runtime/device/buffer.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/device/kept_memory.h"
#include "runtime/device/trace.h"
#include "tiny/base/env.h"
#include "tiny/base/error.h"
#include "tiny/base/text.h"

namespace tiny {

namespace {

std::string mebibytes(size_t bytes) {
  return formatted("%.2f MiB", static_cast<double>(bytes) / 1048576.0);
}

MemoryHolder describe(const Buffer& b) {
  return {b.device_name(), static_cast<int64_t>(b.bytes()), b.dtype(), b.size(), b.owner, b.label};
}

// Whether it can be made again.
bool is_of_capture(const Memory& m) { return m.owner && std::string_view(m.owner->owner) == "Jit"; }

// Freed memory of the devices, kept for the next buffer of the same size: a training step asks for
// the same sizes again and again, and fresh pages cost more than the kernels that fill them.
class BufferPool {
 public:
  // Gives the memory a block: the smallest that has room where `roomy`, else one of just its size.
  void take(Memory& memory, bool roomy) {
    const size_t wanted = rounded(memory.bytes);
    {
      std::lock_guard lock(mutex_);
      Kept& kept = kept_[&memory.device];
      const auto at = roomy ? kept.blocks.lower_bound(wanted) : kept.blocks.find(wanted);
      if (at != kept.blocks.end()) {
        memory.room = at->first;
        memory.data = take_last(kept, at);
        count(memory, 1);
        return;
      }
    }
    memory.room = wanted;
    memory.data = allocate(memory.device, memory.owner->device_name(), wanted);
    std::lock_guard lock(mutex_);
    count(memory, 1);
  }

  void give(Memory& memory) {
    std::lock_guard lock(mutex_);
    count(memory, -1);
    Kept& kept = kept_[&memory.device];
    kept.blocks[memory.room].push_back({memory.data, ++clock_});
    kept.by_age[clock_] = memory.room;
    kept.bytes += memory.room;
    // A program gets back what it once had; what it might want is limited.
    while (kept.bytes > kMaxKept && kept.bytes + static_cast<size_t>(kept.use.bytes) >
                                        static_cast<size_t>(kept.use.peak_bytes))
      free_oldest(memory.device, kept);
  }

  // Under the lock because lists of holders look at owners.
  void hand_over(Memory& memory, Buffer* to) {
    std::lock_guard lock(mutex_);
    memory.owner = to;
  }

  MemoryUse use() {
    std::lock_guard lock(mutex_);
    return use_;
  }

  std::vector<DeviceMemory> by_device() {
    std::lock_guard lock(mutex_);
    std::vector<DeviceMemory> out;
    for (const auto& [device, k] : kept_)
      out.push_back(
          {k.name, k.use.buffers, k.use.bytes, static_cast<int64_t>(k.bytes), k.use.peak_bytes});
    std::ranges::sort(
        out, [](const DeviceMemory& a, const DeviceMemory& b) { return a.device < b.device; });
    return out;
  }

  // The largest first; of all devices, or of one.
  std::vector<MemoryHolder> holders(size_t most, const Device* device, size_t* of = nullptr) {
    std::lock_guard lock(mutex_);
    std::vector<const Buffer*> all;
    for (const Memory* m : live_)
      if (m->owner && (!device || &m->device == device)) all.push_back(m->owner);
    const size_t shown = std::min(all.size(), most);
    std::partial_sort(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(shown), all.end(),
                      [](const Buffer* a, const Buffer* b) { return a->bytes() > b->bytes(); });
    if (of) *of = all.size();
    std::vector<MemoryHolder> out;
    for (size_t i = 0; i < shown; ++i) out.push_back(describe(*all[i]));
    return out;
  }

  int64_t held(const Device& device) {
    std::lock_guard lock(mutex_);
    int64_t bytes = 0;
    for (const Memory* m : live_)
      if (&m->device == &device && !is_of_capture(*m)) bytes += static_cast<int64_t>(m->bytes);
    return bytes;
  }

  void trim() {
    std::lock_guard lock(mutex_);
    for (auto& [device, kept] : kept_) {
      while (kept.bytes) free_oldest(*device, kept);
      device->trim();
    }
  }

 private:
  static constexpr size_t kMaxKept = size_t{2} << 30;  // of a device

  struct Block {
    void* data;
    uint64_t age;
  };
  using Blocks = std::map<size_t, std::vector<Block>>;  // by size; freed last is last
  struct Kept {
    std::string name;
    Blocks blocks;
    std::map<uint64_t, size_t> by_age;  // their sizes
    size_t bytes = 0;
    MemoryUse use;  // of live buffers
  };

  static size_t rounded(size_t bytes) { return (std::max<size_t>(bytes, 1) + 255) / 256 * 256; }

  static void* take_last(Kept& kept, Blocks::iterator at) {
    const Block block = at->second.back();
    kept.by_age.erase(block.age);
    kept.bytes -= at->first;
    at->second.pop_back();
    if (at->second.empty()) kept.blocks.erase(at);
    return block.data;
  }

  static void free_oldest(Device& device, Kept& kept) {
    const auto [age, size] = *kept.by_age.begin();
    std::vector<Block>& same = kept.blocks.at(size);
    device.free(same.front().data, size);  // freed in this order
    same.erase(same.begin());
    if (same.empty()) kept.blocks.erase(size);
    kept.by_age.erase(age);
    kept.bytes -= size;
  }

  // Unused blocks are freed first, then values that can be computed again.
  void* allocate(Device& device, const std::string& name, size_t bytes) {
    const auto attempt = [&]() -> void* {
      if (is_beyond_limit(device, bytes)) return nullptr;
      try {
        return device.alloc(bytes);
      } catch (const DeviceError& error) {
        if (!is_out_of_memory(error)) throw;
        return nullptr;
      }
    };
    if (void* block = attempt()) return block;
    trim();
    if (void* block = attempt()) return block;
    relieve_pressure();
    trim();
    if (is_beyond_limit(device, bytes))
      throw DeviceError(cat(name, ": out of memory: ", mebibytes(bytes),
                            " more do not fit into MEMORY_LIMIT=", env_text("MEMORY_LIMIT"),
                            tiny::largest_buffers(device)));
    try {
      return device.alloc(bytes);
    } catch (const DeviceError& error) {
      if (!is_out_of_memory(error)) throw;
      throw DeviceError(error.what() + tiny::largest_buffers(device));
    }
  }

  bool is_beyond_limit(Device& device, size_t bytes) {
    const int64_t limit = memory_limit();
    std::lock_guard lock(mutex_);
    const Kept& kept = kept_[&device];
    return limit && kept.use.bytes + static_cast<int64_t>(kept.bytes + bytes) > limit;
  }

  void count(const Memory& memory, int sign) {
    if (sign > 0)
      live_.insert(&memory);
    else
      live_.erase(&memory);
    Kept& kept = kept_[&memory.device];
    if (kept.name.empty()) kept.name = memory.owner->device_name();
    for (MemoryUse* use : {&use_, &kept.use}) {
      use->buffers += sign;
      use->bytes += sign * static_cast<int64_t>(memory.bytes);
      use->peak_bytes = std::max(use->peak_bytes, use->bytes);
    }
    if (profiling()) profile_memory(kept.name, kept.use.bytes);
  }

  std::mutex mutex_;
  std::map<Device*, Kept> kept_;
  uint64_t clock_ = 0;
  std::set<const Memory*> live_;
  MemoryUse use_;  // of all devices
};

BufferPool& pool() {
  static BufferPool* p = new BufferPool;  // outlives every buffer
  return *p;
}

}  // namespace

Memory::Memory(Buffer* buffer, bool roomy)
    : device(buffer->device()), bytes(buffer->bytes()), owner(buffer) {
  pool().take(*this, roomy);
}

int64_t bytes_of(DType t, int64_t elements) {
  check(elements <= kMaxBytes / t.size(), "memory: ", elements, " elements of ", t,
        " take more than 2^58 bytes: narrow the tensor before it is computed");
  return elements * t.size();
}

Memory::~Memory() { pool().give(*this); }

Buffer::Buffer(std::string device, DType dtype, int64_t size)
    : name_(canonical_device(device)), device_(&find_device(name_)), dtype_(dtype), size_(size) {
  bytes_of(dtype, size);
}

Buffer::Buffer(std::shared_ptr<Buffer> whole, size_t offset, DType dtype, int64_t size)
    : name_(whole->name_),
      device_(whole->device_),
      dtype_(dtype),
      size_(size),
      whole_(std::move(whole)),
      offset_(offset) {}

std::shared_ptr<Buffer> Buffer::arena(const std::string& device, int64_t bytes, const char* owner) {
  auto out = std::make_shared<Buffer>(device, kU8, bytes);
  out->label = "intermediate values";
  out->owner = owner;
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

namespace {

void note_change(const Buffer& owner) {
  if (const auto memory = owner.memory().lock()) ++memory->changes;
}

}  // namespace

std::shared_ptr<Buffer> Buffer::move_memory() {
  data();
  auto to = whole_ ? std::make_shared<Buffer>(whole_, offset_, dtype_, size_)
                   : std::make_shared<Buffer>(name_, dtype_, size_);
  to->label = label;
  to->owner = owner;
  note_change(whole_ ? *whole_ : *this);
  if (memory_) pool().hand_over(*memory_, to.get());
  to->memory_ = std::exchange(memory_, nullptr);
  moved_ = true;
  return to;
}

void Buffer::upload(const void* from) {
  const HostSpan span("upload");
  void* to = data();
  note_change(whole_ ? *whole_ : *this);
  device_->upload(to, from, bytes());
}

void Buffer::download(void* to) {
  if (!bytes()) return;
  const HostSpan span("download");
  expect(memory_ || whole_ || moved_, "reading a buffer that was never written");
  device_->download(to, data(), bytes());
}

MemoryUse memory_use() { return pool().use(); }

std::vector<DeviceMemory> device_memory() { return pool().by_device(); }

std::vector<MemoryHolder> largest_holders(size_t most) { return pool().holders(most, nullptr); }

int64_t bytes_held(const Device& device) { return pool().held(device); }

std::string memory_line(int64_t bytes, DType dtype, int64_t elements, const std::string& made_by) {
  std::string size = mebibytes(static_cast<size_t>(bytes));
  size.insert(0, size.size() < 14 ? 14 - size.size() : 0, ' ');
  return cat("\n", size, "  ", dtype.name(), " x ", elements, "  ", made_by);
}

std::string largest_buffers(const Device& device) {
  size_t count = 0;
  const std::vector<MemoryHolder> all = pool().holders(10, &device, &count);
  if (all.empty()) return "; no tensor has memory there";
  std::string text = cat("; the largest of ", count, " buffers in use there:");
  for (const MemoryHolder& h : all) text += memory_line(h.bytes, h.dtype, h.elements, h.made_by);
  return text;
}

int64_t memory_limit() {
  const std::string text = env_text("MEMORY_LIMIT");
  if (text.empty()) return 0;
  static constexpr std::pair<std::string_view, double> kUnits[] = {
      {"", 1},      {"B", 1},        {"KB", 1e3},     {"MB", 1e6},     {"GB", 1e9},
      {"TB", 1e12}, {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}};
  TextReader in(text);
  double number = 0;
  std::string unit, rest;
  const bool is_number = is_digit(text[0]) && in >> number;
  in >> unit >> rest;
  for (const auto& [name, bytes] : kUnits)
    if (is_number && unit == name && rest.empty() && number * bytes >= 1 && number * bytes < 0x1p62)
      return static_cast<int64_t>(number * bytes);
  throw Error(cat("MEMORY_LIMIT=", text,
                  ": takes a number of bytes, or of KB, MB, GB, TB, KiB, MiB, ",
                  "GiB or TiB, as 10.5GB"));
}

void free_kept_memory() { pool().trim(); }

bool is_out_of_memory(const DeviceError& error) {
  return std::string_view(error.what()).find("out of memory") != std::string_view::npos;
}

Node buffer_node(const std::shared_ptr<Buffer>& b) {
  return make(Op::Buffer, b->dtype(), {}, BufferArg{b, b->size(), device_id(b->device_name())});
}

std::shared_ptr<Buffer> whole_buffer(Node n) {
  const int64_t size = numel(n->shape());
  while (n->op == Op::Reshape || is_for_gradients(n->op) || n->op == Op::Bound || n->realized)
    n = n->realized ? n->realized.load() : n->src(0);
  if (n->op != Op::Buffer || n->arg<BufferArg>().size != size) return nullptr;
  const std::shared_ptr<Buffer> whole = n->arg<BufferArg>().buffer;
  return whole->moved() ? nullptr : whole;
}

}  // namespace tiny
