// Optimizers: one operation is several steps of one parameter.
#include "test/conformance/arguments.h"
#include "test/conformance/operators.h"
#include "tiny/train/optim.h"

namespace tiny::conformance {

namespace {

// Inputs: the parameter, then its gradient at each step. Gives the parameter after each step: views
// of old values, which later steps in place must not change.
template <class Kind, class Options>
Tensors steps(const Inputs& in, const Json& a, const Options& options) {
  Tensor p = in[0].detach().contiguous();
  p.requires_grad_();
  Kind optimizer({&p}, real(a.at("lr")), options);
  Tensors out;
  for (const Tensor& grad : in.from(1)) {
    p.set_grad(grad);
    optimizer.step();
    out.push_back(p.detach());
  }
  return out;
}

AdamOptions adam_options(const Json& a) {
  return {.beta1 = real(a.at("beta1")),
          .beta2 = real(a.at("beta2")),
          .eps = real(a.at("eps")),
          .weight_decay = real(a.at("weight_decay"))};
}

Tensors sgd(const Inputs& in, const Json& a) {
  return steps<SGD>(in, a,
                    SgdOptions{.momentum = real(a.at("momentum")),
                               .nesterov = a.at("nesterov"),
                               .weight_decay = real(a.at("weight_decay"))});
}

Tensors adam(const Inputs& in, const Json& a) { return steps<Adam>(in, a, adam_options(a)); }
Tensors adamw(const Inputs& in, const Json& a) { return steps<AdamW>(in, a, adam_options(a)); }

}  // namespace

void add_optim(Table& table) { table.insert({{"sgd", sgd}, {"adam", adam}, {"adamw", adamw}}); }

}  // namespace tiny::conformance
