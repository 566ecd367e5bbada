// What a Jit computes, as an ONNX file for other programs.
//
//   Jit step([&](const Tensor& x) { return model(x); });
//   step(x);                                           // says shapes and dtypes
//   onnx::export_onnx(step, "model.onnx", {.inputs = {"images"}, .outputs = {"scores"}});
//
// Products become Einsum, convolutions Conv, views Gather, Slice and Transpose, the rest the
// element-wise operators that its formula is made of; numbers agree to rounding.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "tiny/run/jit.h"
#include "tiny/train/state_dict.h"

namespace tiny::onnx {

struct ExportOptions {
  std::vector<std::string> inputs = {}, outputs = {};  // names; by default input_0, output_0, ...
  StateDict weights = {};  // names of tensors that the function reads from outside
};

// Writes the graph of a function of tensors of these shapes and dtypes; their values do not count.
// Tensors that it reads from outside become initializers. Throws Error, with the operation, for
// what no forward graph has: assignments, random numbers, scatters, bits, lengths that vary,
// several devices; and where the file cannot be written.
void export_graph(const std::function<std::vector<Tensor>(const std::vector<Tensor>&)>& function,
                  const std::vector<Tensor>& examples, const std::string& path,
                  const ExportOptions& options = {});

// The same for a Jit that was called, of the shapes of its first call.
template <class Function>
void export_onnx(Jit<Function>& jit, const std::string& path, const ExportOptions& options = {}) {
  export_graph([&](const std::vector<Tensor>& arguments) { return jit.trace(arguments); },
               jit.examples(), path, options);
}

}  // namespace tiny::onnx
