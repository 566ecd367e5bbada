// Strides and gates of a kernel's loads and stores along its ranges, for heuristics and layouts.
#pragma once
#include <algorithm>
#include <initializer_list>
#include <limits>
#include <span>
#include <vector>

#include "tiny/ir/node.h"

namespace tiny {

inline constexpr int64_t kIrregular = INT64_MAX;  // depends on the range in a non-linear way

struct Access {
  Node node;               // Load or Store
  Node item;               // the reduction or store in whose loops it runs
  double count = 1;        // how often it runs: the extents of all enclosing ranges, multiplied
  uint64_t enclosing = 0;  // mask of the enclosing ranges

  bool is_load() const { return node->op == Op::Load; }
  bool is_store() const { return node->op == Op::Store; }
  bool runs_in(int id) const { return id >= 0 && (enclosing >> id & 1); }
  DType dtype() const { return is_load() ? node->dtype : node->src(2)->dtype; }  // in memory
};

// Elements by which the access moves when the range with this id advances; 0: not at all.
int64_t stride(Node load_or_store, int range_id);

// The same within aligned blocks of `block` iterations of the range: an index that is divided and
// taken modulo may still advance evenly there.
int64_t stride_in_block(Node load_or_store, Node range, int64_t block);

// Every load and store, with the loops it runs in: those of the reduction or store that needs it.
std::vector<Access> accesses(Node sink);

// Nodes of this op below the sink.
std::vector<Node> all_of(Node sink, Op op);

// The load with a gate below casts between floats; nullptr where `n` is none.
Node gated_load(Node n);

// Whether a comparison of indices holds wherever another does: it is the same, or bounds the same
// sum less.
bool is_implied(Node one, Node by);

// 2 to this is the least normal f32.
inline constexpr int kMinNormalExponent = std::numeric_limits<float>::min_exponent - 1;

// Whether a Reduce or a Prefix closes this range.
inline bool closes(Node reduce, Node range) {
  const auto own = reduce->srcs().subspan(1);
  return contains(own, range);
}

// The ranges that any of the nodes depends on.
inline uint64_t mask_of(std::span<const Node> nodes) {
  uint64_t out = 0;
  for (Node n : nodes) out |= n->ranges;
  return out;
}

// Those of these kinds.
uint64_t mask_of(Node n, std::initializer_list<RangeKind> kinds);

// The ranges that a Reduce or a Prefix closes.
inline uint64_t reduced_ranges(Node reduce) { return mask_of(reduce->srcs().subspan(1)); }

// Whether a Prefix goes along loops that a reduction of the same value closes: it is what that
// one's accumulator holds before an iteration.
inline bool is_running(Node n) {
  if (n->op != Op::Prefix) return false;
  const auto ranges = n->srcs().subspan(1);
  return std::ranges::all_of(ranges,
                             [](Node r) { return r->arg<RangeArg>().kind == RangeKind::Reduce; });
}

// The reduction whose accumulator such a Prefix reads.
inline Node running_reduce(Node prefix) {
  return make(Op::Reduce, prefix->dtype, prefix->srcs(), prefix->payload);
}

// Ranges that all stores depend on.
uint64_t shared_ranges(Node sink);

Node make_range(int64_t extent, int id, RangeKind kind);
inline int range_id(Node range) { return range->arg<RangeArg>().id; }
inline int64_t extent(Node range) { return range->src(0)->vmax; }
inline RangeKind kind(Node range) { return range->arg<RangeArg>().kind; }

// How many iterations those of the ranges that are in the mask have together.
template <class Number = int64_t>
Number iterations_of(std::span<const Node> ranges, uint64_t mask = ~uint64_t{0}) {
  Number n = 1;
  for (Node r : ranges)
    if (mask & r->ranges) n *= static_cast<Number>(extent(r));
  return n;
}

inline bool is_of_grid(Node range) {  // one value per thread of a GPU, not a loop
  return kind(range) == RangeKind::Block || kind(range) == RangeKind::Thread;
}

}  // namespace tiny
