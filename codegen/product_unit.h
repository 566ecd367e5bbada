// What multiplies in a lowered kernel: for DEBUG=2, tests and benchmarks.
#pragma once
#include <string>

#include "codegen/target/target.h"
#include "tiny/ir/node.h"

namespace tiny {

// Both are empty for a kernel without a product of matrices.
struct ProductUnit {
  std::string instruction;  // the matrix instruction, as "wgmma.m64n256k16.bf16"; several by commas
  std::string reason;       // why a product has none, with the sizes or dtypes that decide it
};

// Of a kernel's loops without options, and with them (Lowered::loops).
ProductUnit product_unit(Node loops, Node optimised, const Target& target);

// "wgmma.m64n256k16.bf16", "no matrix unit: 1 row", or nothing.
std::string to_text(const ProductUnit& unit);

}  // namespace tiny
