// Packs GEMM operands for CPUs without matrix units: columns in panels as wide as a register tile,
// rows along the sum, 16-bit floats as f32.
#pragma once
#include "codegen/target/target.h"
#include "runtime/analysis/graph_contraction.h"

namespace tiny {

// Columns of a panel; a GPU's threads read coalesced what one core of a CPU reads in order: all in
// one panel.
int64_t panel_width(int64_t columns, const Target& target);

// Whether an operand that is contiguous along `dim` is to be copied into panels: rows far apart
// share few places of the caches and many pages.
bool wants_panels(const ProductOperand& o, int dim, const Target& target);

// `x` with zeros behind the last columns, along `dim`, where there are many and panels of this
// width do not divide them.
Node in_panels(Node x, int dim, int64_t width);

// The dimension that is to be innermost in memory of the operand that has no elements along the
// vector axis: a tile reads a few of its rows, element by element of the sum, and those are to be
// next to each other where they would be in as many pages. -1 where it stays as it is.
int sum_dim(const GraphContraction& c, int operand, int axis, const Target& target);

// CPUs compute with 16-bit floats in f32: an operand with reuse is converted once.
bool is_worth_widening(Node product, const ProductOperand& o);

}  // namespace tiny
