#include "devices/absent.h"

#include "tiny/error.h"

namespace tiny {

void AbsentDevice::download(void*, const void*, size_t bytes) {
  throw Error(cat("a value of ", bytes, " bytes is on rank ", rank,
                  " alone: bring it to this one "
                  "with to(), in all processes"));
}

}  // namespace tiny
