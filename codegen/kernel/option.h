// Optimisation options as data: what the heuristic returns, a search tries, a cache key and a bug
// report hold. A kernel and its options are a reproducible artefact.
#pragma once
#include <string>
#include <vector>

#include "codegen/target/target.h"
#include "tiny/ir/node.h"

namespace tiny {

enum class OptKind : uint8_t {
  Split,   // axis into outer (keeps the id) and inner (the next free id) of `amount` iterations;
           // where amount does not divide the extent, the last inner iterations are gated off
  Align,   // axis begins where the last element before it lies at a multiple of `amount` in memory,
           // in each iteration of what runs around it; iterations outside are gated off, also those
           // behind a last element that is no multiple of `amount` away
  Extend,  // axis goes on to a multiple of `amount`: there loads read again what its last iteration
           // reads, and stores are gated off
  Merge,   // axis (outer) and `amount` (inner, its id) into one range with axis's id
  Bind,    // axis gets the RangeKind `amount`
  Join,    // the range `amount` (its id) becomes axis: what runs in one after the other, or is
           // reduced along one and read along the other, is then in the same hands
  Matrix,  // the kernel's product on the matrix units, in tiles of rows along axis and columns
           // along axes[0], as many as amount_of a TileShape says; where there are more axes, rows
           // count them too, as one range with axis's id; see codegen/wgmma/tile.h
  Mma,     // the kernel's product on the matrix units of a warp: rows along axis, columns along
           // axes[0], sums along axes[1], operands read as `amount` (MmaReads) says; see
           // codegen/options/mma.h
  Stage,   // a factor of a product in shared memory, once for each iteration of axis: `axes` says
           // which and along what, `amount` how many tiles at a time; see codegen/options/stage.h
  Order,   // loops from outermost to innermost: `axes`; ids are renumbered to 0, 1, 2, ...
};

struct Opt {
  OptKind kind;
  int axis = 0;
  int64_t amount = 0;
  std::vector<int> axes;
  bool operator==(const Opt&) const = default;
};

std::string to_text(const Opt& opt);  // "split r1 16", "bind r4 vector", "order r0 r2 r1"
std::string to_text(const std::vector<Opt>& opts);
std::vector<Opt> options_from_text(const std::string& text);  // throws Error for anything else

// The ranges of a kernel graph, by id.
std::vector<Node> ranges_of(Node sink);
Node range_with_id(Node sink, int id);  // throws Error where there is none
int next_range_id(Node sink);

// Whether `apply` would succeed, with the reason where not.
bool is_legal(Node sink, const Opt& opt, const Target& target, std::string* why = nullptr);

// The kernel with the option applied. Throws Error where it is not legal.
Node apply(Node sink, const Opt& opt, const Target& target);
Node apply(Node sink, const std::vector<Opt>& opts, const Target& target);

}  // namespace tiny
