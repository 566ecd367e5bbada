// Retries work that ran out of device memory once kept memory has been freed.
#pragma once
#include "runtime/device/buffer.h"
#include "tiny/base/error.h"

namespace tiny {

bool is_out_of_memory(const DeviceError& error);

// The result of `work`. Where a device says that it is out of memory, all that is kept is given
// back, and the work is done once more.
template <class Work> auto with_kept_memory_freed(const Work& work) {
  try {
    return work();
  } catch (const DeviceError& error) {
    if (!is_out_of_memory(error)) throw;
  }
  free_kept_memory();
  return work();
}

}  // namespace tiny
