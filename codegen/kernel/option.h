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
           // where amount does not divide the extent, the last inner iterations are masked
  Align,   // axis begins where the last element before it lies at a multiple of `amount` in memory,
           // in each iteration of its enclosing loops; iterations outside are masked, also those
           // behind a last element that is no multiple of `amount` away
  Extend,  // rounds the axis up to a multiple of `amount`: there loads clamp to its last iteration,
           // and stores are masked
  Merge,   // axis (outer) and `amount` (inner, its id) into one range with axis's id
  Bind,    // axis gets the RangeKind `amount`
  Join,    // the range `amount` (its id) becomes axis: loops that run one after the other, or of
           // which one is reduced and the other read along, are then one loop of the same thread
  Matrix,  // the kernel's GEMM on wgmma, in a `tile` of rows along axis and columns along axes[0];
           // further axes count rows too, as one range with axis's id; see codegen/wgmma/tile.h
  Mma,     // the kernel's GEMM on a warp's tensor cores (mma.sync): rows along axis, columns along
           // axes[0], sums along axes[1], operands read as `amount` (MmaReads) says; see
           // codegen/options/mma.h
  Stage,   // a `staged` factor of a GEMM in shared memory, once for each iteration of axis: `axes`
          // are the ranges of its tile, `amount` the pipeline's stages; see codegen/options/stage.h
  Roll,  // all reductions along axis in one loop over it, which those that need others follow by
         // correcting what they have; see codegen/options/roll.h
  Fragments,   // a chain of products on a warp's tensor cores: rows along axis, columns along
               // axes[0], operands in stages of `amount` tiles; on a CPU by pairs of columns; see
               // codegen/options/fragments.h
  Warpgroups,  // the same with wgmma, which four warps do together
  Order,       // loops from outermost to innermost: `axes`; ids are renumbered to 0, 1, 2, ...
};

// The tile of a Matrix option; its words are those of the text, "x 256 rows 64 halved wide".
struct TileShape {
  int rows = 128, columns = 256;
  bool split_n = false;              // "halved": warpgroups split the tile's columns, not its rows
  bool vectorized_epilogue = false;  // "wide": threads have eight neighbouring columns
  bool max_stages = false;           // "deep": one block a multiprocessor, with all stages that fit
  int cluster_m = 1, cluster_n = 1;  // "down", "across": tiles of a cluster, sharing columns, rows
  int split_k = 1;                   // "parts": blocks of a cluster that share a tile's sums
  bool operator==(const TileShape&) const = default;
};

// The factor of a GEMM that a Stage option puts into shared memory.
struct StagedFactor {
  enum class Form : uint8_t {
    Value,    // the factor's values
    Raw,      // the memory that it is computed from: it is computed as it is read from the stage
    Windows,  // convolution windows, their common input once: of ranges that the factor depends on
              // by their sum alone, two are one side of the tile
  };
  int number = 0;  // of the product's two
  Form form = Form::Value;
  int padding = 0;  // elements between the tile's rows (its first side), against bank conflicts
  bool operator==(const StagedFactor&) const = default;
};

struct Opt {
  OptKind kind;
  int axis = 0;
  int64_t amount = 0;
  std::vector<int> axes;     // ids of ranges
  TileShape tile = {};       // of Matrix
  StagedFactor staged = {};  // of Stage
  bool operator==(const Opt&) const = default;
};

std::string to_text(const Opt& opt);  // "split r1 16", "bind r4 vector", "order r0 r2 r1"
std::string to_text(const std::vector<Opt>& opts);
std::vector<Opt> options_from_text(const std::string& text);  // throws Error for anything else

// The ranges of a kernel graph, by id.
std::vector<Node> ranges_of(Node sink);
Node find_range(Node sink, int64_t id);  // nullptr where there is none
Node range_with_id(Node sink, int id);   // throws Error there
int next_range_id(Node sink);

// Whether `apply` would succeed, with the reason where not.
bool is_legal(Node sink, const Opt& opt, const Target& target, std::string* why = nullptr);

// The kernel with the option applied. Throws Error where it is not legal.
Node apply(Node sink, const Opt& opt, const Target& target);
Node apply(Node sink, const std::vector<Opt>& opts, const Target& target);

}  // namespace tiny
