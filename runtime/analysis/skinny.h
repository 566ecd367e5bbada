// Products of few rows, as a language model's that writes token by token, with an operand that is
// computed from what lies in memory: weights of a byte or less with their scales. Memory is all
// that limits them, so its elements are computed as they are read, once each, and tiles of it meet
// the few rows in shared memory (codegen/options/stage.h).
#pragma once
#include <optional>

#include "codegen/target/target.h"
#include "tiny/ir/node.h"

namespace tiny {

struct ThinProduct {
  Node computed = nullptr;  // the operand that gets no memory
  int axis = -1;            // of the sum
  int64_t parts = 1;        // into which it is cut, so that all multiprocessors read
};

// `product`: a sum of the product of two views. Nothing where it is none of these, or where its
// operands are no halves for the matrix units of warps.
std::optional<ThinProduct> find_thin_product(Node product, const Target& target);

}  // namespace tiny
