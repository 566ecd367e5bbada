// The work of a kernel, for reports: bytes moved and arithmetic done.
#pragma once
#include "tiny/ir/node.h"

namespace tiny {

struct KernelWork {
  double bytes = 0;  // memory read and written, each buffer counted once
  double flops = 0;  // arithmetic on floats, a multiplication and an addition counted as two
};

// Of a kernel graph before options are applied.
KernelWork estimate_work(Node sink);

}  // namespace tiny
