// Models of ONNX files: a module with named inputs and outputs.
//
//   onnx::Module model = onnx::load("model.onnx");
//   Tensor y = model.run({x})[0];                                        // in the file's order
//   std::map<std::string, Tensor> out = model.run({{"input_ids", ids}, {"mask", mask}});
//   Jit fast([&](const std::vector<Tensor>& in) { return model.run(in); });
//
// The graph becomes tensors anew in each run(), for the shapes of its inputs: what a model computes
// of shapes is computed on the host, branches (If) are taken and loops (Loop, Scan) unrolled with
// the values that they have then. A value that decides a shape or a branch and depends on the
// inputs' values is read from the device, which is an Error while a Jit captures.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tiny/nn/layers.h"
#include "tiny/onnx/format/model.h"

namespace tiny::onnx {

// An input or output as the file declares it.
struct Port {
  std::string name;
  DType dtype;                                  // Void: not declared
  std::optional<std::vector<Dimension>> shape;  // not declared: any
};
// "images f32 (N,3,224,224)".
std::string port_text(const Port& port);

class Module : public nn::Module {
 public:
  // Weights are read and put on the device ("": the default one). Throws Error for versions of the
  // default domain beyond 21 and operators of the graph that are not had or are refused.
  explicit Module(Model model, const std::string& device = "");
  Module(Module&&) noexcept;
  ~Module() override;

  const std::vector<Port>& inputs() const;  // without those that have a default value
  const std::vector<Port>& outputs() const;
  int64_t opset() const;  // version of the default domain
  const std::string& producer() const;

  // Results in the order of outputs(), for inputs in the order of inputs(). Throws Error, with the
  // node, where something does not fit.
  std::vector<Tensor> run(const std::vector<Tensor>& inputs);
  // By name; also for inputs that have a default value.
  std::map<std::string, Tensor> run(const std::map<std::string, Tensor>& inputs);
  // Of one input and one output.
  Tensor forward(const Tensor& x) override;
  using nn::Module::to;
  void to(DType dtype) override;  // Error: the operators' types are those of the file
  // The initializers by name.
  void state(StateDict& out, const std::string& prefix) override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Throws Error for a file that is no model, and as Module's constructor.
Module load(const std::string& path, const std::string& device = "");

}  // namespace tiny::onnx
