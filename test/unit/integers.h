// Values that tests of products compare exactly.
#pragma once
#include <string>

#include "tiny/tensor/tensor.h"

namespace tiny {

// Small integers: exact in every dtype, in any order.
inline Tensor integers(const Shape& shape, DType dtype, const std::string& device) {
  return (mod(Tensor::arange(0, numel(shape)) * 7, 11) - 5)
      .to(dtype)
      .reshape(shape)
      .to(device)
      .realize();
}

}  // namespace tiny
