// Products on the matrix units of a warp: mma.sync of m16n8 (PTX ISA, "Warp-level matrix
// multiply-accumulate"), for whatever the operands are computed from and whatever becomes of the
// result. 32 threads hold a fragment of 16 rows (range m) and 8 columns (range n); thread t has the
// elements (t / 4 + 8 i, t % 4 * 2 + p), i and p in 0..1.
//
// In the kernel graph the product of a sum's operands becomes an Mma node: what a step of 8 (f32 as
// TF32) or 16 elements (f16, bf16) along k adds to one of the thread's four elements. Its sources:
// of the first operand 2 rows of `step / 4` elements, of the second `step / 4`, and which of the
// four elements, 2 i + p. Which elements along k a thread holds is free as long as both operands
// agree: `step / 4` neighbours. Once i and p are numbers, an Mma without the last source is all
// four elements, and a Shuffle takes those that are wanted.
#pragma once
#include <optional>

#include "codegen/heuristic.h"
#include "codegen/option.h"

namespace tiny {

constexpr int kMmaRows = 16, kMmaColumns = 8;

// Elements along k that one instruction takes of operands of this dtype.
inline int mma_step(DType t) { return t == kF32 ? 8 : 16; }

// Whether products of this dtype can be made there: f32 as TF32, where that is allowed, or halves.
bool has_mma(const Target& target, DType dtype);

// The operands of a sum of products as the matrix units take them: f32, or halves before they are
// widened. Why they cannot be multiplied there; empty where they can.
struct MmaProduct {
  Node a = nullptr, b = nullptr;
};
std::string mma_product(Node reduce, const Target& target, MmaProduct& out);

// Why the option is not legal; empty where it is. Option: rows along axis, columns along axes[0],
// sums along axes[1]; the ranges i, p and t get the next three ids.
std::string mma_problem(Node sink, const Opt& opt, const Target& target);
Node use_mma(Node sink, const Opt& opt, const Target& target);

// An Mma whose last source is a number, as a Shuffle of all four elements.
Node mma_elements(Node mma);

// A sum of elements of fragments as the elements of a sum of fragments, which the matrix units add
// to; nullptr for any other reduction.
Node mma_sum(Node reduce);

// Options that use it for the kernel's product; none where it has none that fits.
std::optional<Choice> choose_mma_options(Node sink, const Target& target);

}  // namespace tiny
