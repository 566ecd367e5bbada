// Skinny GEMMs with weight-only quantized operands, as a language model's that writes token by
// token: weights of a byte or less with their scales. Memory is the only limit, so weights are
// dequantized as they are read, once each, and meet the rows in shared memory
// (codegen/options/stage.h).
#pragma once
#include <optional>

#include "codegen/target/target.h"
#include "tiny/ir/node.h"

namespace tiny {

struct SkinnyProduct {
  Node computed = nullptr;  // the operand that gets no memory
  int axis = -1;            // of the sum
  int64_t parts = 1;        // into which it is cut, so that all multiprocessors read
};

// `product`: a sum of the product of two views. Nothing where it is no such GEMM, or where its
// operands are no 16-bit floats for mma.sync.
std::optional<SkinnyProduct> find_skinny_product(Node product, const Target& target);

}  // namespace tiny
