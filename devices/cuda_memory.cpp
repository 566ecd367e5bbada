#include "devices/cuda_memory.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>

namespace tiny {
namespace {

constexpr size_t kAlignment = 256;  // of blocks; a kernel may load a whole vector at element 0
constexpr unsigned kPortable = 1;   // CU_MEMHOSTALLOC_PORTABLE: pinned for all contexts
constexpr size_t kLineBytes = 64;

std::string gibibytes(size_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f", static_cast<double>(bytes) / (size_t{1} << 30));
  return text;
}

}  // namespace

// ---------------------------------------------------------------------------- blocks

CudaMemory::CudaMemory(const CudaDriver& cuda, int ordinal, CuStream stream)
    : cuda_(cuda), stream_(stream) {
  int supported = 0;
  cuda.device_attribute(&supported, kCuMemoryPools, ordinal);
  if (!supported || !cuda.has_pools()) return;
  check_cuda(cuda.pool_of_device(&pool_, ordinal), "find the memory pool of GPU ", ordinal);
  uint64_t keep = UINT64_MAX;  // without it each synchronisation gives the memory back
  check_cuda(cuda.pool_set(pool_, kCuPoolReleaseThreshold, &keep), "set up the memory pool");
}

int CudaMemory::try_alloc(CuAddress* block, size_t bytes) {
  return pool_ ? cuda_.pool_alloc(block, bytes, stream_) : cuda_.memory_alloc(block, bytes);
}

// Blocks that were freed but are in use by kernels can be given back only after those.
void CudaMemory::trim() {
  cuda_.stream_synchronize(stream_);
  if (pool_) cuda_.pool_trim(pool_, 0);
}

CuAddress CudaMemory::alloc(size_t bytes) {
  const size_t size = std::max(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  CuAddress block = 0;
  int status = size < bytes ? kCuOutOfMemory : try_alloc(&block, size);  // no wrap-around
  if (status == kCuOutOfMemory && size >= bytes) {
    trim();
    status = try_alloc(&block, size);
  }
  if (status == kCuOutOfMemory) {
    size_t free = 0, total = 0;
    cuda_.memory_info(&free, &total);
    throw DeviceError(cat("CUDA: out of memory: cannot allocate ", bytes, " bytes (",
                          gibibytes(bytes), " GiB): ", gibibytes(free), " of ", gibibytes(total),
                          " GiB are free: ", cuda_error(status)));
  }
  check_cuda(status, "allocate ", bytes, " bytes");
  return block;
}

void CudaMemory::free(CuAddress block) {
  if (pool_) {
    cuda_.pool_free(block, stream_);
  } else {
    cuda_.stream_synchronize(stream_);  // nothing says that cuMemFree waits
    cuda_.memory_free(block);
  }
}

void CudaMemory::allow_access(int ordinal) {
  if (!pool_) return;
  CuAccess access;
  access.ordinal = ordinal;
  check_cuda(cuda_.pool_allow(pool_, &access, 1), "let GPU ", ordinal, " read the memory pool");
}

// ---------------------------------------------------------------------------- copies

CudaStaging::CudaStaging(const CudaDriver& cuda, CuStream compute, CuStream copy)
    : cuda_(cuda), compute_(compute), copy_(copy) {
  computed_ = make_event(cuda, kCuEventUntimed);
}

CudaStaging::~CudaStaging() {
  const auto drop = [&](Piece& piece) {
    if (piece.memory) cuda_.host_free(piece.memory);
    destroy_event(cuda_, piece.done);
  };
  for (Piece& piece : uploads_) drop(piece);
  for (Piece& piece : downloads_) drop(piece);
  destroy_event(cuda_, computed_);
}

void CudaStaging::make(Piece& piece) {
  if (!piece.done) piece.done = make_event(cuda_, kCuEventUntimed);
  if (piece.memory) return;
  void* memory = nullptr;
  check_cuda(cuda_.host_alloc(&memory, kPieceBytes, kPortable), "get ", kPieceBytes,
             " bytes of pinned host memory");
  piece.memory = static_cast<char*>(memory);
}

void CudaStaging::wait(Piece& piece) {
  if (!piece.in_flight) return;
  check_cuda(cuda_.event_synchronize(piece.done), "finish a copy between host and GPU");
  piece.in_flight = false;
}

// The current piece's event follows all of its transfers.
void CudaStaging::next_upload() {
  Piece& full = uploads_[current_];
  check_cuda(cuda_.event_record(full.done, compute_), "record an event");
  full.in_flight = true;
  current_ = (current_ + 1) % kUploads;
  wait(uploads_[current_]);
  uploads_[current_].used = 0;
}

void CudaStaging::upload(CuAddress to, const void* from_host, size_t bytes) {
  constexpr size_t kSmallest = kPieceBytes / 16;  // a rest that is smaller is left empty
  auto* from = static_cast<const char*>(from_host);
  std::lock_guard lock(uploading_);
  while (bytes > 0) {
    if (uploads_[current_].used + std::min(bytes, kSmallest) > kPieceBytes) next_upload();
    Piece& piece = uploads_[current_];
    make(piece);
    const size_t n = std::min(bytes, kPieceBytes - piece.used);
    std::memcpy(piece.memory + piece.used, from, n);
    check_cuda(cuda_.copy_in(to, piece.memory + piece.used, n, compute_), "copy ", n,
               " bytes to the GPU");
    piece.used +=
        std::min(kPieceBytes - piece.used, (n + kLineBytes - 1) / kLineBytes * kLineBytes);
    from += n, to += n, bytes -= n;
  }
}

void CudaStaging::start_download(Piece& piece, CuAddress from, size_t bytes) {
  make(piece);
  check_cuda(cuda_.copy_out(piece.memory, from, bytes, copy_), "copy ", bytes,
             " bytes from the GPU");
  check_cuda(cuda_.event_record(piece.done, copy_), "record an event");
  piece.used = bytes;
  piece.in_flight = true;
}

void CudaStaging::download(void* to_host, CuAddress from, size_t bytes) {
  auto* to = static_cast<char*>(to_host);
  std::lock_guard lock(downloading_);
  for (Piece& piece : downloads_) wait(piece);  // left by a download that failed
  check_cuda(cuda_.event_record(computed_, compute_), "record an event");
  check_cuda(cuda_.stream_wait(copy_, computed_, 0), "order two streams");
  size_t started = 0;
  const auto start = [&](Piece& piece) {
    const size_t n = std::min(bytes - started, kPieceBytes);
    if (n > 0) start_download(piece, from + started, n);
    started += n;
  };
  for (Piece& piece : downloads_) start(piece);
  for (size_t done = 0, turn = 0; done < bytes; ++turn) {
    Piece& piece = downloads_[turn % kDownloads];
    wait(piece);
    std::memcpy(to + done, piece.memory, piece.used);
    done += piece.used;
    start(piece);
  }
}

}  // namespace tiny
