#include "devices/gpu/memory.h"

#include "tiny/base/text.h"
#include "tiny/ir/sizes.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace tiny {
namespace {

constexpr size_t kAlignment = 256;  // of blocks; a kernel may load a whole vector at element 0
constexpr unsigned kPortable = 1;   // CU_MEMHOSTALLOC_PORTABLE: pinned for all contexts
constexpr size_t kLineBytes = 64;

std::string gibibytes(size_t bytes) {
  return formatted("%.2f", static_cast<double>(bytes) / (size_t{1} << 30));
}

}  // namespace

// ---------------------------------------------------------------------------- blocks

GpuMemory::GpuMemory(const GpuDriver& driver, int ordinal, GpuStream stream)
    : driver_(driver), stream_(stream) {
  int supported = 0;
  driver.device_attribute(&supported, driver.attributes.memory_pools, ordinal);
  if (!supported || !driver.has_pools()) return;
  driver.check(driver.pool_of_device(&pool_, ordinal), "find the memory pool of GPU ", ordinal);
  uint64_t keep = UINT64_MAX;  // without it each synchronisation gives the memory back
  driver.check(driver.pool_set(pool_, kGpuPoolReleaseThreshold, &keep), "set up the memory pool");
}

int GpuMemory::try_alloc(GpuAddress* block, size_t bytes) {
  return pool_ ? driver_.pool_alloc(block, bytes, stream_) : driver_.memory_alloc(block, bytes);
}

// Blocks that were freed but are in use by kernels can be given back only after those.
void GpuMemory::trim() {
  driver_.stream_synchronize(stream_);
  if (pool_) driver_.pool_trim(pool_, 0);
}

GpuAddress GpuMemory::alloc(size_t bytes) {
  const size_t size = std::max(kAlignment, round_up(bytes, kAlignment));
  GpuAddress block = 0;
  int status = size < bytes ? kGpuOutOfMemory : try_alloc(&block, size);  // no wrap-around
  if (status == kGpuOutOfMemory && size >= bytes) {
    trim();
    status = try_alloc(&block, size);
  }
  if (status == kGpuOutOfMemory) {
    size_t free = 0, total = 0;
    driver_.memory_info(&free, &total);
    throw DeviceError(cat(driver_.vendor, ": out of memory: cannot allocate ", bytes, " bytes (",
                          gibibytes(bytes), " GiB): ", gibibytes(free), " of ", gibibytes(total),
                          " GiB are free: ", driver_.error(status)));
  }
  driver_.check(status, "allocate ", bytes, " bytes");
  return block;
}

void GpuMemory::free(GpuAddress block) {
  if (pool_) {
    driver_.pool_free(block, stream_);
  } else {
    driver_.stream_synchronize(stream_);  // nothing says that freeing waits
    driver_.memory_free(block);
  }
}

void GpuMemory::allow_access(int ordinal) {
  if (!pool_) return;
  GpuAccess access;
  access.ordinal = ordinal;
  driver_.check(driver_.pool_allow(pool_, &access, 1), "let GPU ", ordinal,
                " read the memory pool");
}

// ---------------------------------------------------------------------------- copies

GpuStaging::GpuStaging(const GpuDriver& driver, GpuStream compute, GpuStream copy)
    : driver_(driver), compute_(compute), copy_(copy) {
  computed_ = make_event(driver, kGpuEventUntimed);
}

GpuStaging::~GpuStaging() {
  const auto drop = [&](Piece& piece) {
    if (piece.memory) driver_.host_free(piece.memory);
    destroy_event(driver_, piece.done);
  };
  for (Piece& piece : uploads_.pieces) drop(piece);
  for (Piece& piece : downloads_.pieces) drop(piece);
  destroy_event(driver_, computed_);
}

void GpuStaging::make(Piece& piece) {
  if (!piece.done) piece.done = make_event(driver_, kGpuEventUntimed);
  if (piece.memory) return;
  void* memory = nullptr;
  driver_.check(driver_.host_alloc(&memory, kPieceBytes, kPortable), "get ", kPieceBytes,
                " bytes of pinned host memory");
  piece.memory = static_cast<char*>(memory);
}

void GpuStaging::wait(Piece& piece) {
  if (!piece.in_flight) return;
  driver_.check(driver_.event_synchronize(piece.done), "finish a copy between host and GPU");
  piece.in_flight = false;
}

// The current piece's event follows all of its transfers.
void GpuStaging::next_upload() {
  Piece& full = uploads_.pieces[uploads_.current];
  driver_.check(driver_.event_record(full.done, compute_), "record an event");
  full.in_flight = true;
  uploads_.current = (uploads_.current + 1) % kUploads;
  wait(uploads_.pieces[uploads_.current]);
  uploads_.pieces[uploads_.current].used = 0;
}

void GpuStaging::upload(GpuAddress to, const void* from_host, size_t bytes) {
  constexpr size_t kSmallest = kPieceBytes / 16;  // a rest that is smaller is left empty
  auto* from = static_cast<const char*>(from_host);
  std::lock_guard lock(uploads_.mutex);
  while (bytes > 0) {
    if (uploads_.pieces[uploads_.current].used + std::min(bytes, kSmallest) > kPieceBytes)
      next_upload();
    Piece& piece = uploads_.pieces[uploads_.current];
    make(piece);
    const size_t n = std::min(bytes, kPieceBytes - piece.used);
    std::memcpy(piece.memory + piece.used, from, n);
    driver_.check(driver_.copy_in(to, piece.memory + piece.used, n, compute_), "copy ", n,
                  " bytes to the GPU");
    piece.used += std::min(kPieceBytes - piece.used, round_up(n, kLineBytes));
    from += n, to += n, bytes -= n;
  }
}

void GpuStaging::start_download(Piece& piece, GpuAddress from, size_t bytes) {
  make(piece);
  driver_.check(driver_.copy_out(piece.memory, from, bytes, copy_), "copy ", bytes,
                " bytes from the GPU");
  driver_.check(driver_.event_record(piece.done, copy_), "record an event");
  piece.used = bytes;
  piece.in_flight = true;
}

void GpuStaging::download(void* to_host, GpuAddress from, size_t bytes) {
  auto* to = static_cast<char*>(to_host);
  std::lock_guard lock(downloads_.mutex);
  for (Piece& piece : downloads_.pieces) wait(piece);  // left by a download that failed
  driver_.check(driver_.event_record(computed_, compute_), "record an event");
  driver_.check(driver_.stream_wait(copy_, computed_, 0), "order two streams");
  size_t started = 0;
  const auto start = [&](Piece& piece) {
    const size_t n = std::min(bytes - started, kPieceBytes);
    if (n > 0) start_download(piece, from + started, n);
    started += n;
  };
  for (Piece& piece : downloads_.pieces) start(piece);
  for (size_t done = 0, turn = 0; done < bytes; ++turn) {
    Piece& piece = downloads_.pieces[turn % kDownloads];
    wait(piece);
    std::memcpy(to + done, piece.memory, piece.used);
    done += piece.used;
    start(piece);
  }
}

}  // namespace tiny
