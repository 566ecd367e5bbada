// The pass that puts a kernel's GEMM on wgmma, by an option that names the ranges of a tile's rows
// and columns; and the GEMM as its heuristic sees it (codegen/heuristics/gpu_wgmma.cpp).
#pragma once
#include "codegen/kernel/contraction.h"
#include "codegen/wgmma/operand.h"
#include "tiny/ir/sizes.h"

namespace tiny {

// The sum of products of a kernel whose factors are two loads in the same dtype, multiplied in that
// of the sum; nothing where it has none.
struct MatrixProduct : Contraction {
  Node mask = nullptr;  // one of them is zero where it does not hold
};
std::optional<MatrixProduct> find_matrix_product(Node sink);

// The range along k that both operands are read along in rows of 128 bytes.
Node k_range(const MatrixProduct& p);

// Why the option is not legal; empty where it is.
std::string matrix_problem(Node sink, const Opt& opt);
Node use_matrix_unit(Node sink, const Opt& opt);

// Why the blocks of a kernel's clusters, all options applied, do not share the operands that they
// copy for each other; empty where they do.
std::string cluster_problem(Node sink);

}  // namespace tiny
