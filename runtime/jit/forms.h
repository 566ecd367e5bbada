// Tensors on several devices as a Jit takes them: their pieces, which are tensors like others.
#pragma once
#include <vector>

#include "tiny/tensor/tensor.h"

namespace tiny {

// What a tensor is made of: itself, or a piece on each device of a group.
struct Form {
  int group = 0;
  int axis = -1;
  bool operator==(const Form&) const = default;
};

// What is below reshapes and what is there for gradients.
Node below_views(Node n);

// Computed tensors with those on groups of devices as their pieces, and back.
std::vector<Tensor> split(const std::vector<Tensor>& tensors, std::vector<Form>& forms);
std::vector<Tensor> joined(const std::vector<Tensor>& pieces, const std::vector<Form>& forms);

}  // namespace tiny
