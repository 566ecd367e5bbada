// The passes between a kernel in tensor form and the linear program that is rendered, in the order
// in which `lower` runs them. All take and return the Sink of a kernel graph and are pure.
#pragma once
#include <string>
#include <vector>

#include "codegen/kernel/linear.h"
#include "codegen/kernel/option.h"
#include "codegen/target/target.h"
#include "tiny/ir/node.h"

namespace tiny {

// From tensors to loops: each output becomes a store in a nest of ranges, and the value stored is
// found by asking every node below for its element at an index. Movement is thereby arithmetic on
// indices, padding a gate, a reduction a node that closes ranges of its own.
// `kernel` is Sink(Store(Param, value, [gate])...) in tensor form; elements of a value where its
// gate (bool, of its shape) is false are left out. Outputs of one kernel share the ranges of the
// axes in which their shapes agree, reductions those of the axes that they reduce. A later output
// that an earlier one needs (the maximum of a row, on the way to its softmax) is stored in the
// loops in which the earlier one computes it.
Node to_ranges(Node kernel);

// Adjacent loops that walk memory as one become one: an element-wise kernel over (64,32,28,28) is a
// single loop over its elements.
Node merge_ranges(Node sink, const Target& target);

// Finds running sums (products, maxima). A tensor's scan is written as a sum over all elements at
// or before each one, n^2 terms; here such a triangle becomes an Op::Prefix, whose value at an
// iteration combines those of all iterations before it:
//   sum_q where(q <= r, f(q), 0)  =  Prefix(f(r), r) + f(r)
// also of those at or after, q >= r, whose range then runs backwards. Few iterations stay as they
// are. A Prefix over several ranges goes through them in order, the last one fastest.
Node find_scans(Node sink);

// Options that split sums of f32 over long loops into loops of loops, for accuracy. A running sum
// of n numbers in one accumulator is off by up to n roundings: that of a million equal f32 by a
// hundredth of its value. Summed in parts of at most 512 numbers, and the parts so again, it is off
// by a few times 512 of them. CPUs only: a GPU's threads share a sum between them.
std::vector<Opt> split_sums(Node sink, const Target& target);

// Gates of elements that a kernel leaves out: the last iterations of a loop that is cut unevenly,
// those before and behind a row that begins anywhere, padding. A reduction takes its identity
// instead of them, and each load has a gate. Selects as far down as possible, so that one of them
// serves all reductions over a row: a sum of exp2(c (x - m)), m the largest x and c > 0, leaves out
// what is -infinity instead of x. Gates of loads become the conditions by which what is loaded is
// selected. On a GPU such a sum also leaves out what is less than a normal number, which no bit of
// it depends on, since exp2(0) is one of its terms. In chains of products (codegen/options/
// fragments.h) exponents are one multiplication and addition, rounded once, and powers less than a
// normal number are 0. Other powers of x log2(e) become Exp of x, where their last bits count.
Node lower_gates(Node sink, const Target& target);

// Branches of selections without selections of floats by the same condition in what they alone use:
// functions hide so from a branch what it is not meant for, and its result is not taken there.
Node without_guards(Node sink);

// Loops (Loop, Reduce, and a CPU's Core) whose gates fail for good from some iteration on, as those
// over an axis with a Variable length do, end there instead of at their bound. Gates stay: only
// time depends on this pass.
// Where a GPU's blocks have unequal work by that, they begin with those that have most.
Node end_loops(Node sink, const Target& target);
// Whether it makes loops whose iterations depend on the block.
bool ends_by_block(Node sink, const Target& target);

// In chains of products: conditions of masks that depend on the thread are true also where all of a
// tile is seen, which the block and the loop say. A renderer may then compute that tile without.
Node whole_tiles(Node sink, const Target& target);

// Of chains of products on GPUs: powers that a mask sets to 0 are those of -infinity, which their
// maximum has selected already. Loops end by masks no more after this.
Node masked_powers(Node sink, const Target& target);

// Each Prefix over several ranges as one for each of them:
//   Prefix(f, a, b) = Prefix(Reduce(f, b), a) + Prefix(f, b)
// and those over ranges other than threads and lanes as sums over earlier iterations. What is left
// is a Prefix over threads, which the renderer prints as exchanges between them, and one over the
// lanes of a vector, of which `vectorize` makes shuffles.
Node split_scans(Node sink);

// Ranges of kind Vector disappear: a node under one gets that many lanes; vectors stay vectors. A
// Reduce that closes one accumulates lanes and folds them at the end. At most one vector range may
// reach any node.
Node vectorize(Node sink, const Target& target);
// A node along one such range.
Node vectorized(Node n, Node range, const Target& target);

// Vectors of f32 that a CPU stores with their lanes apart, while neighbours come from an unrolled
// range: transposed in registers, and stored row by row.
Node transpose_stores(Node sink, const Target& target);

// Whether vectors that interleave in memory (2 or 4 elements apart, along an unrolled range) are
// stored as one.
bool joins_stores(const Target& target);

// Ranges of kind Unroll disappear: a node under one is repeated for each of its values. A Reduce
// that closes one becomes one accumulator for each value, combined at the end. A GPU's thread with
// several sums side by side keeps the unrolled range of each: the renderer asks the compiler to
// unroll that loop.
Node unroll(Node sink, const Target& target);

// Sums over several loops, vectors and unrolled loops done, become sums of sums: the inner loops
// have an accumulator of their own.
Node nest_sums(Node sink, const Target& target);

// Operations that the target lacks in terms of those that it has: transcendental functions,
// arithmetic of 16- and 8-bit floats, division towards minus infinity. On scalars or vectors.
// Halves (f16, bf16) and 8-bit floats are only loaded, stored, selected, reinterpreted and cast to
// and from f32 afterwards; each operation on them still rounds its result. Casts of f16 without
// target.has_f16 are integer arithmetic, as those of bf16 are on CPUs, and those of 8-bit floats
// everywhere. GPUs have Exp2, Exp, Log2 and all other casts, and for f32 Sin.
Node decompose(Node sink, const Target& target);

// Sums of all elements of a fragment that are rolled as one of the fragment: its accumulator is
// what the matrix units add to.
Node roll_fragments(Node sink);

// Elements of fragments that are rounded to 16 bits, two at a time: as the instruction does it.
// `Shuffle` of two scalars is the vector of both.
Node pair_casts(Node sink, const Target& target);

// Of a chain of products: elements that lie side by side in memory, which is only read, are loaded
// together where there are many (measurements.md: pair_loads).
Node pair_loads(Node sink, const Target& target);

// Machine integers in place of the dtype Index, their width proved from bounds: vectors (and on a
// GPU scalars) become i32 where the bounds of the node and of its Index sources fit, else i64;
// scalars on a CPU always i64, which its addresses want. Casts are inserted where widths meet.
Node choose_index_width(Node sink, const Target& target);

// The graph as a linear program: loops nested in the order of range ids, each value computed in the
// outermost loop that it can be, reductions and stores that can share a loop in one. `branches`:
// vectors that are loaded with a gate for each lane are printed as such.
Linear linearize(Node sink, std::string name, bool branches = true);

// Of the movement node `n`: where its element at the indices `at` comes from in its source. The
// condition for there to be such an element (Pad) is added to `gate`, nullptr standing for true.
std::vector<Node> source_indices(Node n, const std::vector<Node>& at, Node& gate);

}  // namespace tiny
