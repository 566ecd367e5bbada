// Saved programs: what a Jit computes as a folder that runs without a compiler, from C++
// (load_program) or, with WGSL in it, in a browser.
//
//   Jit step([&](const Tensor& x) { return model(x); });
//   step(x);                                           // says shapes and dtypes
//   save_program(step, "model", {.inputs = {"images"}, .outputs = {"scores"}});
//   ...
//   SavedProgram program = load_program("model");      // perhaps another process
//   Tensor scores = program({x})[0];
//
//   export_webgpu(step, "page", {.inputs = {"images"}, .outputs = {"scores"}});
//
// The folder has plan.json (kernels, the order of their launches, the places of intermediate values
// in one arena, inputs and outputs), weights.safetensors (what the function reads from outside),
// for WebGPU model.js and index.html, else the kernels' code in kernels/. docs/webgpu.md has the
// format.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "tiny/run/jit.h"
#include "tiny/run/traced.h"
#include "tiny/train/state_dict.h"

namespace tiny {

struct ProgramOptions {
  std::vector<std::string> inputs = {}, outputs = {};  // names; by default input_0, output_0, ...
  StateDict weights = {};   // names of tensors that the function reads from outside
  std::string device = {};  // whose code is saved; empty: the default one
  // index.html of an export for browsers; empty: a page that runs the model on made-up inputs.
  std::string page = {};
  // Bytes that a kernel may see of one tensor on devices that limit it: more than what all of them
  // have, of WebGPU 128 MiB, for those that grant so much; others refuse the program.
  int64_t most_buffer_bytes = 0;
};

// Writes the program of a function of tensors of these shapes and dtypes; their values do not
// count. What depends on no input is computed now and saved as weights. Tensors from outside that
// the function assigns to are state: saved as they are, and kept from run to run. A Variable stays
// one: an input that is an i64 scalar. Throws Error for random numbers, values on other devices,
// what the device's language cannot express, tensors of which its kernels cannot see all, and where
// a file cannot be written.
void save_function(const TensorFunction& function, const std::vector<Tensor>& examples,
                   const std::string& folder, const ProgramOptions& options = {});
// The same as WGSL for browsers, with model.js and index.html. No browser is needed.
void export_webgpu_function(const TensorFunction& function, const std::vector<Tensor>& examples,
                            const std::string& folder, const ProgramOptions& options = {});

// The same for a Jit that was called, of the arguments of its first call.
template <class Function>
void save_program(Jit<Function>& jit, const std::string& folder,
                  const ProgramOptions& options = {}) {
  save_function([&](const std::vector<Tensor>& arguments) { return jit.trace(arguments); },
                jit.examples(), folder, options);
}
template <class Function>
void export_webgpu(Jit<Function>& jit, const std::string& folder,
                   const ProgramOptions& options = {}) {
  export_webgpu_function([&](const std::vector<Tensor>& arguments) { return jit.trace(arguments); },
                         jit.examples(), folder, options);
}

// An input or output of a saved program.
struct ProgramPort {
  std::string name;
  DType dtype;
  Shape shape;        // of an axis whose length varies its bound
  Shape bounds = {};  // of a Variable: the least and the largest value
};

// A program that was loaded: kernels and weights are on its device. Copies are the same program,
// state included.
class SavedProgram {
 public:
  const std::vector<ProgramPort>& inputs() const;
  const std::vector<ProgramPort>& outputs() const;
  const std::string& device() const;

  // Runs it on tensors of these shapes and dtypes, in order; a Variable's is an i64 scalar
  // (Variable::tensor). The results are new tensors on its device, of an axis whose length varies
  // the part that counts. Throws Error for other inputs, and for a length out of its bounds.
  std::vector<Tensor> operator()(const std::vector<Tensor>& inputs) const;

 private:
  friend SavedProgram load_program(const std::string& folder);
  struct State;
  std::shared_ptr<State> state_;
};

// Reads the program and gives its code to the device that it was saved for, which must have what
// that one had: the architecture of a GPU, the vector instructions of a CPU. Neither NVRTC nor LLVM
// is used. Throws Error, with the file, for a folder that holds no such program.
SavedProgram load_program(const std::string& folder);

}  // namespace tiny
