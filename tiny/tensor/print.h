// Tensors as text, number for number and line for line as PyTorch prints them.
//
//   std::cout << Tensor::arange(6).reshape({2, 3});  // tensor([[0, 1, 2],
//                                                    //         [3, 4, 5]])
#pragma once
#include <iosfwd>
#include <string>

#include "tiny/tensor/tensor.h"

namespace tiny {

// torch.set_printoptions.
struct PrintOptions {
  int precision = 4;           // digits after the point
  int64_t threshold = 1000;    // elements of the largest tensor that is printed whole
  int64_t edge_items = 3;      // of each axis, first and last, where it is not
  int64_t line_width = 80;     // columns
  bool is_scientific = false;  // always, and not only where magnitudes differ by 1000 and more
};

// The values, which are computed for it, with what is not usual: the size of a tensor without
// elements, a device that is not the default one, a dtype other than f32, i64 and bool (under its
// name here), requires_grad. Of a tensor that is not printed whole only what is printed is read.
// "undefined" for a tensor that is not defined. Error while a Jit captures.
std::string to_string(const Tensor& t, const PrintOptions& options = {});

std::ostream& operator<<(std::ostream& out, const Tensor& t);

}  // namespace tiny
