// The arguments of a Jit's call: what has to be the same at a replay as at the capture.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "runtime/device/buffer.h"
#include "tiny/tensor/tensor.h"

namespace tiny {

struct ArgumentSpec {
  DType dtype;
  Shape shape;
  std::string device;
  Shape bounds;  // of a Variable
  bool operator==(const ArgumentSpec&) const = default;
};

std::string to_text(const ArgumentSpec& a);
ArgumentSpec spec_of(const Tensor& t, const Buffer& b);
std::vector<ArgumentSpec> specs_of(const std::vector<Tensor>& arguments,
                                   const std::vector<std::shared_ptr<Buffer>>& buffers);

// Arguments as buffers of their own elements in order. Throws Error for one that no replay could
// take.
std::vector<std::shared_ptr<Buffer>> buffers_of(std::vector<Tensor>& arguments);

// Throws Error where two arguments are one tensor.
void check_aliases(const std::vector<Tensor>& arguments,
                   const std::vector<std::shared_ptr<Buffer>>& buffers);

}  // namespace tiny
