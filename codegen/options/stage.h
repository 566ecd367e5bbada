// Pipeline stages: operands of a GEMM in shared memory. A block of a GPU copies the tile of an
// operand for one iteration of a loop of the sum, each thread a part of it, and all of its threads
// read it from there, each element many times.
//
// In the kernel graph an operand V(r..., t...) that is read along a tile's ranges t becomes
//   Load(Stage(V(r..., f...), place(f...), of, f...), place(t...))
// The Stage closes the ranges f, of the same extents: loops that fill the buffer. To options they
// are ranges like others: joined with those of the block's threads, split, unrolled, vectors.
// `of` is a number, or the loop in whose iterations the buffer is filled where that cannot be seen
// from the other sources. Payload: Ints{slot, elements, depth}: the buffer's name (-2, -3, ...: -1
// are registers, see codegen/wgmma/tile.h), its size, and how many tiles it holds. With several the
// copies of later iterations are under way while an earlier one is computed
// (codegen/passes/linearize.cpp says in which order), and `place` counts iterations modulo depth.
#pragma once
#include <optional>
#include <span>

#include "codegen/kernel/choice.h"
#include "codegen/kernel/contraction.h"
#include "codegen/target/source.h"

namespace tiny {

constexpr int kFirstStage = -2;  // the slot of a kernel's first stage
int next_stage_slot(Node sink);

// The storage dtype of a factor in shared memory: 16-bit floats before they are widened, and bytes
// where mma.sync takes them.
Node narrow(Node factor, const Target& target);
// Of both, where that gives them one dtype.
bool narrow_factors(Contraction& c, const Target& target);

inline bool is_stage(Node param) { return param->op == Op::Stage; }

// Those that a program's statements access, the first one first.
std::vector<Node> stages_of(std::span<const Node> statements);

// Threads that differ in these ranges, on which the store does not depend, would repeat it; some of
// them after others have read what it overwrites. A stage is the block's own.
std::vector<Node> repeated_along(Node store, std::span<const Node> blocks,
                                 std::span<const Node> threads);
inline int64_t stage_depth(Node stage) { return stage->ints()[2]; }

// On a CPU a stage is on the stack of the thread that fills it: all of a tile, whose ranges may be
// that of the sum as well (codegen/heuristics/chains.cpp).
//
// Option: axis is a range of the sum, axes the ranges of the tile, the contiguous one last, amount
// the depth. The ranges f, one for each side, get the next ids, in the order of axes.
std::string stage_problem(Node sink, const Opt& opt, const Target& target);
Node use_stage(Node sink, const Opt& opt, const Target& target);

// How a value that is read along a tile's ranges is staged.
struct StageTile {
  std::vector<Node> ranges;  // of the tile, the contiguous one last
  int64_t padding = 0;       // elements between its rows
  Node loop = nullptr;       // in whose iterations it is filled again; nullptr: in none
  int64_t depth = 1;         // tiles in shared memory
  // Of 16-bit elements in two ranges, the contiguous one of whole 128 bytes: for each 128 bytes of
  // that one all rows, their 16 bytes each exchanged by the number of the row, as wgmma reads them
  // (PTX ISA, "Swizzling modes", 128 bytes). The stage then begins at a multiple of 1,024 bytes.
  bool swizzled = false;
};
// The load from a stage that stands for the value. Ranges of its copies, one for each of the
// tile's, get the ids from `id` on, which is moved behind them.
Node staged_value(Node value, const StageTile& tile, int slot, int& id);

// Ranges that stages close.
uint64_t staged_ranges(Node sink);

// The fault of a kernel's stages when all options are applied; empty where there is none.
std::string staging_problem(Node sink);

// Bytes in the block's dynamic shared memory: of a stage, and of all that a kernel has.
int64_t stage_bytes(Node stage);
int64_t all_stage_bytes(Node sink);

// In which order a loop fills and reads its stages. In iteration i (from -lead on) each thread
// waits until all but its last `pending` groups of copies have arrived, meets the others at a
// barrier, asks for the tile of iteration i + lead as a group, and then computes i where i >= 0.
struct StageSchedule {
  int64_t depth = 1, lead = 0, pending = 0;
};
StageSchedule stage_schedule(int64_t depth);

// Whether the value depends on two ranges by their sum alone, as windows do on where they begin and
// on how far in one is.
bool move_alike(Node value, Node r, Node s);

}  // namespace tiny
