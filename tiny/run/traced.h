// The graph of a Jit's function for those who write it down: ONNX files, saved programs.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "tiny/tensor/tensor.h"

namespace tiny {

using TensorFunction = std::function<std::vector<Tensor>(const std::vector<Tensor>&)>;

struct Traced {
  std::vector<Tensor> inputs;    // memory of their own; of a Variable a scalar with its bounds
  std::vector<Tensor> outputs;   // not computed
  std::vector<Tensor> assigned;  // tensors from outside with the values that they are to get
};

// Calls the function once, on inputs of these shapes and dtypes (an example that is a Bound stands
// for a Variable). Throws Error, which begins with `what`, where it takes random numbers.
Traced trace_function(const TensorFunction& function, const std::vector<Tensor>& examples,
                      const std::string& what);

// Values that depend on no input, but on other memory: products of weights, weights that are not
// drawn yet. The last ones, which something takes that depends on an input, or which are outputs.
// `small`: none that has more bytes than what it is computed from, as widened weights have.
std::vector<Node> constants_of(const Traced& traced, bool small);

}  // namespace tiny
