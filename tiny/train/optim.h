// Optimizers: they update parameters from their gradients, in place and in one
// realize() call. What changes from step to step (learning rate, bias
// corrections) is data in tensors of one element, so that every step runs the
// same kernels.
//
//   Adam optimizer(model.tensors(), 1e-3);
//   Tensor loss = cross_entropy(model(x), y);
//   loss.backward();
//   optimizer.step({&loss});
//
// Moments and updates are computed in f32 for f16 and bf16 parameters.
#pragma once
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tiny/tensor/tensor.h"
#include "tiny/train/state_dict.h"

namespace tiny {

// Tensors that are trained alike: what is not given is as the optimizer has it.
struct ParameterGroup {
  std::vector<Tensor*> tensors;
  std::optional<double> lr = {};  // set_lr(x) makes it x lr / (the optimizer's first one)
  std::optional<double> weight_decay = {};
};

// What an optimizer takes: tensors, or groups of them.
//
//   AdamW optimizer({{.tensors = weights}, {.tensors = biases, .weight_decay = 0}}, 3e-4);
class ParameterGroups {
 public:
  ParameterGroups() = default;
  ParameterGroups(const std::vector<Tensor*>& tensors) : groups_{{tensors}} {}
  ParameterGroups(std::initializer_list<Tensor*> tensors) : groups_{{tensors}} {}
  ParameterGroups(const std::vector<ParameterGroup>& groups) : groups_(groups) {}
  ParameterGroups(std::initializer_list<ParameterGroup> groups) : groups_(groups) {}

  const std::vector<ParameterGroup>& groups() const { return groups_; }

 private:
  std::vector<ParameterGroup> groups_;
};

// The usual groups of a transformer: tensors of two axes or more, with this weight decay, and the
// others (biases, norms), without any.
std::vector<ParameterGroup> decay_matrices(const std::vector<Tensor*>& tensors,
                                           double weight_decay);

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  // Updates every parameter that has a gradient, and realizes parameters, the
  // optimizer's own tensors, the other tensors that it was given, and those
  // named here, together. The gradients are used up: afterwards grad() is not
  // defined.
  void step(std::span<Tensor* const> also = {});
  void step(std::initializer_list<Tensor*> also) { step(std::span(also.begin(), also.size())); }
  // The same for several optimizers, whose parameters get their gradients from
  // one backward(): everything is realized together, where one step after the
  // other would compute the loss anew.
  static void step_all(const std::vector<Optimizer*>& optimizers,
                       std::initializer_list<Tensor*> also = {});
  void zero_grad();

  void set_lr(double lr);
  // The same with a number of one element that is computed with the next step:
  // a schedule as a function of a counter on the device, which a Jit can
  // replay.
  void set_lr(const Tensor& lr);
  double lr() const { return lr_value_; }  // the last that was given as a number

  // Everything that it keeps becomes what it was at first, in the same memory:
  // for another training with the steps that a Jit has captured. Parameters and
  // learning rate stay as they are.
  void reset();

  // The optimizer's own tensors under the parameters' positions, those of one
  // group behind those of the group before: "0.m", "0.v", "1.m", ...
  StateDict state_dict(const std::string& prefix = "");

 protected:
  // Tensors that want a gradient are parameters. The others (running
  // statistics) are realized with each step. All of them are realized now and
  // must outlive the optimizer. Error for a tensor that is given twice, and a
  // group with an lr of its own where this one is not positive.
  Optimizer(const ParameterGroups& tensors, double lr);

  // The parameter's new value. p and g: f32 or f64. What the optimizer keeps is
  // changed by put().
  virtual Tensor updated(size_t i, const Tensor& p, const Tensor& g) = 0;
  virtual void begin_step() {}

  // Of the group of parameter i, where that is: they may be on several devices. `otherwise`: where
  // the group has none.
  Tensor lr_of(size_t i) const;
  double weight_decay_of(size_t i, double otherwise) const;

  // The gradient of parameter i, f32 or f64; not defined where it has none.
  Tensor gradient(size_t i) const;
  size_t count() const { return parameters_.size(); }

  // t becomes the value, unless a LossScaler drops this step.
  void put(Tensor& t, const Tensor& value);

  // One zero for each element of each parameter, under this name; they are
  // realized with a step.
  std::vector<Tensor>& add_moments(const std::string& name);
  // One f64 number for each parameter, likewise.
  std::vector<Tensor>& add_numbers(const std::string& name, double value);
  // The same in one tensor of shape (parameters), which one kernel takes on.
  Tensor& add_row(const std::string& name, double value);
  // Number i of such a row where parameter i is.
  Tensor number_of(size_t i, const Tensor& row) const;
  // The row with `next` for the parameters that have a gradient.
  void put_stepped(Tensor& row, const Tensor& next);

 private:
  friend class LossScaler;  // mixed.h

  struct Parameter {
    Tensor* tensor;
    double lr;  // of its group, as a multiple of lr_
    std::optional<double> weight_decay;
  };
  struct Moments {
    std::string name;
    double start;
    std::vector<Tensor> values;  // one for each parameter
  };
  struct Row {
    std::string name;
    double start;
    Tensor value;
  };
  void update();
  std::vector<Tensor*> all_tensors();  // of parameters and of its own

  std::vector<Parameter> parameters_;
  std::vector<Tensor*> others_;
  std::vector<std::unique_ptr<Moments>> moments_;
  std::vector<std::unique_ptr<Row>> rows_;
  double lr_value_;
  Tensor lr_;     // f64, 0-d: a parameter of any dtype gets all the digits that
                  // it can hold
  Tensor taken_;  // bool: whether this step is; not defined: it is
};

// Scales the gradients that backward() left so that their norm, of all of them
// as one vector, is at most max_norm (one element; a tensor for a bound that is
// computed on the device): g min(1, max_norm / (norm + 1e-6)), PyTorch's rule.
// Returns the norm before, f32, or f64 where a gradient is, 0-d, not yet computed: name it in
// step() to read it. Tensors without a gradient are left out; Error if all are, and for a number
// max_norm that is not positive. Under a LossScaler gradients are scaled, and the bound with them:
// scaler.scaled(Tensor::full({}, 1.0)).
Tensor clip_grad_norm_(const std::vector<Tensor*>& tensors, const Tensor& max_norm);
Tensor clip_grad_norm_(const std::vector<Tensor*>& tensors, double max_norm);

struct SgdOptions {
  double momentum = 0;
  bool nesterov = false;  // takes a momentum and no dampening
  double weight_decay = 0;
  double dampening = 0;  // of the gradient in m, from a parameter's second step on
};

// g += weight_decay p; m = momentum m + (1 - dampening) g, at first m = g; p -=
// lr m (nesterov: lr (g + momentum m)).
class SGD : public Optimizer {
 public:
  SGD(const ParameterGroups& tensors, double lr, const SgdOptions& options = {});

 protected:
  Tensor updated(size_t i, const Tensor& p, const Tensor& g) override;

 private:
  const SgdOptions options_;
  std::vector<Tensor>* m_ = nullptr;     // nothing without a momentum
  std::vector<Tensor>* gain_ = nullptr;  // of the gradient in m; nothing without dampening
};

// What is not given is the optimizer's own default, whatever else is.
struct AdamOptions {
  double beta1 = 0.9, beta2 = 0.999;
  std::optional<double> eps = {};           // 1e-8; of LAMB 1e-6
  std::optional<double> weight_decay = {};  // 0; of AdamW 0.01
};

// What Adam, AdamW and LAMB share: running averages of the gradient and its
// square, and their corrections for having started at zero.
class AdamBase : public Optimizer {
 protected:
  // `eps` and `weight_decay`: where the options have none.
  AdamBase(const ParameterGroups& tensors, double lr, const AdamOptions& options, double eps,
           double weight_decay);
  void begin_step() override;
  // m / (sqrt(v) + eps) after the gradient has been taken in, both corrected.
  Tensor direction(size_t i, const Tensor& g);

  const double weight_decay_;

 private:
  const double beta1_, beta2_, eps_;
  Tensor &correction1_, &correction2_;  // rows of 1 - beta^t, t: of a parameter's own steps
  std::vector<Tensor>&m_, &v_;
};

// D. Kingma, J. Ba, "Adam", arXiv 1412.6980; g += weight_decay p.
class Adam : public AdamBase {
 public:
  Adam(const ParameterGroups& tensors, double lr = 1e-3, const AdamOptions& options = {})
      : AdamBase(tensors, lr, options, 1e-8, 0) {}

 protected:
  Tensor updated(size_t i, const Tensor& p, const Tensor& g) override;
};

// I. Loshchilov, F. Hutter, "Decoupled weight decay", arXiv 1711.05101; p *= 1
// - lr weight_decay.
class AdamW : public AdamBase {
 public:
  AdamW(const ParameterGroups& tensors, double lr = 1e-3, const AdamOptions& options = {})
      : AdamBase(tensors, lr, options, 1e-8, 0.01) {}

 protected:
  Tensor updated(size_t i, const Tensor& p, const Tensor& g) override;
};

// Y. You et al., "Large batch optimization for deep learning", arXiv
// 1904.00962: Adam's direction plus weight_decay p, scaled to |p| / |direction|
// (1 where one of them is 0).
class LAMB : public AdamBase {
 public:
  LAMB(const ParameterGroups& tensors, double lr = 1e-3, const AdamOptions& options = {})
      : AdamBase(tensors, lr, options, 1e-6, 0) {}

 protected:
  Tensor updated(size_t i, const Tensor& p, const Tensor& g) override;
};

struct LarsOptions {
  double momentum = 0.9;
  bool nesterov = false;
  double weight_decay = 1e-4;
  double trust = 0.001;  // coefficient
};

// Y. You, I. Gitman, B. Ginsburg, arXiv 1708.03888: SGD whose gradients, with
// weight_decay p added, are scaled by trust |p| / (|g| + weight_decay |p|) (1
// where one of the norms is 0). The learning rate belongs to the gradient in
// the momentum, so that a later one only holds for later gradients: m =
// momentum m + lr scaled g; p -= m (nesterov: lr scaled g + momentum m).
class LARS : public Optimizer {
 public:
  LARS(const ParameterGroups& tensors, double lr, const LarsOptions& options = {});

 protected:
  Tensor updated(size_t i, const Tensor& p, const Tensor& g) override;

 private:
  const LarsOptions options_;
  std::vector<Tensor>& m_;
};

struct MuonOptions {
  double momentum = 0.95;
  bool nesterov = true;
  double weight_decay = 0;
  int steps = 5;           // of the Newton-Schulz iteration
  DType dtype = kF32;      // in which it is computed; bf16 has digits enough
  bool unit_rows = false;  // before a step, p is scaled to rows whose mean square length is 1
};

// K. Jordan, "Muon: An optimizer for hidden layers in neural networks",
// kellerjordan.github.io, 2024: SGD whose update, as a matrix (first axis, all
// others), is replaced by a nearly orthogonal one and scaled by sqrt(max(1,
// rows / columns)); p *= 1 - lr weight_decay. Parameters have two axes or more
// (Error): biases, embeddings and the like go to an optimizer of their own.
// Matrices of one shape are made orthogonal together.
class Muon : public Optimizer {
 public:
  Muon(const ParameterGroups& tensors, double lr = 0.02, const MuonOptions& options = {});

 protected:
  void begin_step() override;
  Tensor updated(size_t i, const Tensor& p, const Tensor& g) override;

 private:
  const MuonOptions options_;
  std::vector<Tensor>& m_;
  std::vector<Tensor> steps_;  // orthogonal, one for each parameter with a
                               // gradient, of this step
};

}  // namespace tiny
