// Memory of one GPU, and its copies to and from the host. Callers make the GPU's context current.
#pragma once
#include <cstddef>
#include <mutex>
#include <set>

#include "devices/gpu/driver.h"

namespace tiny {

// Blocks in the order of one stream: a block that is freed may still be read by kernels launched
// before, and is given out again only to work that comes after them. The driver keeps what is
// freed for later; when memory runs out it gives that back and is asked once more.
class GpuMemory {
 public:
  GpuMemory(const GpuDriver& driver, int ordinal, GpuStream stream);

  GpuAddress alloc(size_t bytes);  // 256-byte aligned; throws DeviceError when out of memory
  void free(GpuAddress block);     // never throws
  void allow_access(int ordinal);  // of another GPU, by copies
  void trim();                     // gives back what the driver keeps

 private:
  int try_alloc(GpuAddress* block, size_t bytes);

  const GpuDriver& driver_;
  const GpuStream stream_;
  GpuPool pool_ = nullptr;  // null where the GPU or the driver has none: blocks are not ordered
};

// Copies through pinned memory, piece by piece, so that the host's copy of a piece overlaps the
// transfer of the one before.
//
// Uploads are part of the compute stream: what was launched before may still use the memory, what
// comes after needs it. The host's memory is read when upload returns. Downloads run on the copy
// stream, after all that the compute stream had to do so far and beside what it gets meanwhile.
class GpuStaging {
 public:
  GpuStaging(const GpuDriver& driver, GpuStream compute, GpuStream copy);
  ~GpuStaging();
  GpuStaging(const GpuStaging&) = delete;
  GpuStaging& operator=(const GpuStaging&) = delete;

  void upload(GpuAddress to, const void* from, size_t bytes);
  void download(void* to, GpuAddress from, size_t bytes);

 private:
  static constexpr size_t kPieceBytes = size_t{4} << 20;
  static constexpr int kUploads = 4, kDownloads = 2;

  struct Piece {
    char* memory = nullptr;   // pinned, made at first use
    GpuEvent done = nullptr;  // of the last transfer
    size_t used = 0;
    bool in_flight = false;
  };
  struct Uploads {
    std::mutex mutex;
    Piece pieces[kUploads];
    int current = 0;  // filled by small uploads until it is full
  };
  struct Downloads {
    std::mutex mutex;
    Piece pieces[kDownloads];
  };

  void make(Piece& piece);
  void wait(Piece& piece);
  void next_upload();
  void start_download(Piece& piece, GpuAddress from, size_t bytes);

  const GpuDriver& driver_;
  const GpuStream compute_, copy_;
  GpuEvent computed_ = nullptr;
  Uploads uploads_;
  Downloads downloads_;
};

}  // namespace tiny
