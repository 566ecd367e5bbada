// A linear program: a kernel as statements in order, ready to be printed by a renderer.
//
// `body` is a list of nodes:
//   Loop(range) .. EndLoop(range)   for range = 0 .. extent-1, extent being the range's source. The
//                                   one range of kind Core runs from `begin` to `end`, the last two
//                                   arguments of a CPU kernel; it is the outermost loop.
//   Acc(reduce)                     declares an accumulator of reduce's dtype, set to the identity
//                                   of reduce's operation (Add 0, Mul 1, Max lowest, Min highest)
//   Update(reduce)                  accumulator = combine(accumulator, value of reduce's source 0);
//                                   a sum adds a product of floats as MulAdd does; of a Roll:
//                                   accumulator = accumulator * its scale + its value, or
//                                   accumulator + its value where that is a fragment
//   Rescale(reduces)                accumulators of sums of rolled fragments with one scale, before
//                                   their Updates: accumulator = accumulator * scale
//   Prefix(value, loops)            of loops that are open: what the accumulator of the Reduce of
//                                   the same value holds before this iteration's update
//   Group(reduce)                   GPU: the accumulators of all threads that differ in nothing but
//                                   the reduce's Thread ranges are combined; each has the result
//   Reduce                          from here on the node's value is what its accumulator holds
//   Store(param, index, value, [gate])
//   any other node                  defines its value; sources were defined before, in this or an
//                                   enclosing loop. A node may be defined again in another loop.
// Range, Const and Param nodes are not listed: they are values wherever their loop is open.
//
// Ranges of kind Block and Thread (GPU) are not loops: their Loop statements come first, before all
// others, their EndLoops last, and each has one value per thread of the launch. Among the at most
// three of a kind the last one is x (blockIdx.x, threadIdx.x), the one before it y, then z. A store
// that does not depend on one of them is done where that is 0. A Group reduces
// over x or over all Thread ranges; its extent is a power of two up to a warp, or whole warps.
//
// Stages (codegen/options/stage.h) are buffers in a block's shared memory: params of loads and
// stores.
//   Fetch(store)                    does a store to a stage whose value is a Load that no statement
//                                   defines, at once or later
//   Barrier(n)                      goes on when all of the thread's fetches but those of its last
//   n
//                                   groups are done and all threads are here
//   Loop(range, lead)               runs from -lead: what is filled in it is so far ahead
//   Loop(range, loop, lead)         in it: one iteration in which `range` is that of the loop plus
//                                   lead, none where there is none. With its EndLoop a group of
//                                   fetches ends, and the loop goes on to its next iteration where
//                                   its own is negative
//
// Matrix (codegen/wgmma/tile.h), if there is one, comes next, after the values that it needs. What
// follows it finds the product in the array of registers that it is read from, the Param in slot
// -1.
//
// Types: a dtype with several lanes is a vector. All sources of an element-wise node have the lanes
// of its result. Index arithmetic is i32 or i64 by now. Bool is one byte in memory, a bit
// elsewhere.
//   Load(param, index, [gate])      scalar index: `lanes` consecutive elements from it, with no
//                                   alignment beyond the element's; vector index: a gather.
//                                   Zero where the gate (bool, one lane or all) is false; there the
//                                   index may lie outside the buffer and must not be dereferenced.
//   Store                           likewise; a vector index scatters, lane by lane. With an OpArg
//                                   the element becomes combine(element, value), one by one.
#pragma once
#include <string>
#include <vector>

#include "tiny/ir/node.h"

namespace tiny {

// A product that a sum adds as MulAdd does, which is rounded once where the device has an FMA. No
// other product is contracted.
inline bool is_added_product(Node n) {
  return n->op == Op::Mul && n->dtype.is_float() && !n->dtype.is_narrow();
}
inline bool adds_product(Node reduce) {
  return reduce->arg<OpArg>().op == Op::Add && is_added_product(reduce->src(0));
}

// A sum of fragments that are rolled: a Rescale comes before its Update.
inline bool rolls_fragment(Node reduce) {
  Node term = reduce->src(0);
  return term->op == Op::Roll && term->src(0)->op == Op::Mma;
}
// What an Update combines the accumulator with.
inline Node updated_with(Node reduce) {
  return rolls_fragment(reduce) ? reduce->src(0)->src(0) : reduce->src(0);
}

struct Linear {
  std::string name;  // a C identifier
  std::vector<Node> body;
  std::vector<Node> params;   // in slot order; slots that are not used are nullptr
  std::vector<bool> written;  // per slot: some Store writes it
  uint64_t streaming = 0;     // bit mask of slots: inputs read once (codegen/streaming.h)
  bool is_gemm = false;       // has the loops of a matrix product or convolution
  bool is_chain = false;      // of products: quotients need no last bit
};

// One line per statement, indented by loops, with deterministic names.
std::string to_text(const Linear& program);

// The value that leaves the other operand of a reduction unchanged, as a Const of `dtype`.
Node identity(Op op, DType dtype);

}  // namespace tiny
