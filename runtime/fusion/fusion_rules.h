// When two kernels may become one: their dependences, the loops that their values need, and what
// the one kernel costs beside the two.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/analysis/node_targets.h"
#include "runtime/fusion/fused_kernel.h"
#include "runtime/fusion/materialize.h"
#include "tiny/ir/node.h"

namespace tiny {

class FusionRules {
 public:
  // Kernels, stored values and targets must outlive it.
  FusionRules(const FusedKernels& kernels, std::span<const Node> roots, const Stored& stored,
              const NodeTargets& targets);

  // Whether two kernels visit the same elements and share an input, and neither waits for the
  // other: one pass over the input serves both.
  bool are_siblings(int a, int b) const;

  // Whether the loops of kernel c, which reads from p, can go around those of p: every element that
  // it reads of p is the one of its own row. `joins_small`: also around values that it does not
  // read and that take little to compute.
  bool is_of_own_rows(int p, int c, bool joins_small) const;

 private:
  bool delays_readers(int p, int c) const;
  bool is_on_one_device(int a, int b) const;
  bool have_buffers(int p, int c) const;
  bool is_sent(int k) const;
  bool joins_sent(int p, int c) const;
  size_t kept_beside(int p, int c, int64_t elements = 0) const;
  bool is_worth_merging(int p, int c, int64_t rows, int64_t size) const;
  bool keeps_matrix_units_busy(int p, int c, int64_t rows, int64_t size) const;
  bool is_long_epilogue(int p, int c) const;
  bool loops_nest(int p, int c) const;

  const FusedKernels& kernels_;
  NodeMap<char> is_root_;  // memory of the roots
  const Stored& stored_;
  const NodeTargets& targets_;
};

}  // namespace tiny
