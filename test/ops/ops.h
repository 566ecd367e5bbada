// The table of operator cases: each builds output tensors from input tensors. test_ops.cpp compares
// values and gradients on every device with the reference evaluator. A new operator is one row.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "tiny/tensor/tensor.h"

namespace tiny::ops {

// Random values in [low, high], of integers both ends included; each case has the same ones in
// every run.
struct Input {
  Shape shape;
  DType dtype = kF32;
  double low = -2, high = 2;
};

using Inputs = std::vector<Tensor>;
using Outputs = std::vector<Tensor>;

struct Case {
  std::string name;
  std::vector<Input> inputs;
  std::function<Outputs(const Inputs&)> build;
  double factor = 1;  // of the tolerance of the least precise dtype
};
using Cases = std::vector<Case>;

// ops_elementwise.cpp
Cases unary_cases();
Cases binary_cases();
Cases integer_cases();
Cases cast_cases();
// ops_shape.cpp
Cases movement_cases();
Cases reduce_cases();
Cases scan_cases();
Cases index_cases();
// ops_nn.cpp
Cases matmul_cases();
Cases conv_cases();
Cases pool_cases();
Cases norm_cases();
Cases loss_cases();

Cases all_cases();

// The tensors of a case on a device. Nothing is computed yet, unless the case itself asks.
struct Built {
  Inputs inputs;
  Outputs outputs;
  Outputs gradients;   // of a fixed sum of the outputs by each input of floats
  DType least = kF64;  // the least precise float among the inputs and outputs
};
Built built(const Case& c, const std::string& device);

// What is wrong with a case on a device, in words; "" where nothing is. Adds the operations of its
// graphs to `seen`.
std::string problem_of(const Case& c, const std::string& device, OpSet& seen);

}  // namespace tiny::ops
