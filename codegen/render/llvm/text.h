// Types and constants of a linear program as LLVM IR spells them.
#pragma once
#include <string>

#include "tiny/ir/node.h"

namespace tiny::llvm_text {

std::string scalar_type(Scalar s);                             // "float"
std::string vector_of(int lanes, const std::string& element);  // "<16 x float>"
std::string type_of(DType t);                                  // in registers: bool is a bit
std::string memory_type(DType t);                              // in memory: bool is a byte

// The part of an overloaded intrinsic's name that stands for a type: "v16f32".
std::string suffix_of(DType t);

std::string splat_text(DType t, const std::string& one);  // `one` in every lane of a constant
std::string double_bits(double v);                        // exact, NaN and infinity too
std::string const_text(Node n);                           // of a Const
std::string ramp_text(DType t);                           // <i32 0, i32 1, ...>
// The lanes of a shuffle: from, from + step, ...
std::string lane_list(int lanes, int from, int step);

}  // namespace tiny::llvm_text
