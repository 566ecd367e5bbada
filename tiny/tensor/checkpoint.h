// Gradient checkpoints: values that are computed again when gradients need them, and take no memory
// in the meantime.
#pragma once
#include <concepts>
#include <utility>
#include <vector>

#include "tiny/tensor/tensor.h"

namespace tiny {

// The same tensor; its gradient computes again what lies between the inputs and it, from the inputs
// and from weights and other memory, once the gradient of the result is there. Only what the result
// was made from in this graph counts: inputs that it was not made from are ignored.
Tensor checkpointed(const Tensor& result, const std::vector<Tensor>& inputs);

// function(inputs...), a Tensor, of which only the inputs are kept for the gradient:
//
//   for (auto& block : blocks) x = checkpoint([&](const Tensor& in) { return block(in); }, x);
//
// Values, gradients and random numbers (dropout) are those without it; the function is called once.
template <class Function, std::same_as<Tensor>... Inputs>
Tensor checkpoint(Function&& function, const Inputs&... inputs) {
  return checkpointed(std::forward<Function>(function)(inputs...), {inputs...});
}

}  // namespace tiny
