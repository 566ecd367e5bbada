// Training in mixed precision: a scope in which products are computed in f16, bf16 or 8-bit floats
// from parameters that stay f32, and the scaling of losses that keeps small gradients of f16 from
// becoming zero.
//
//   LossScaler scaler({&optimizer});
//   {
//     const Autocast half(kF16);
//     loss = cross_entropy(model(x), y);
//   }
//   scaler.scaled(loss).backward();
//   scaler.step({&loss});
#pragma once
#include <initializer_list>
#include <vector>

#include "tiny/train/optim.h"

namespace tiny {

// While one lives, matrix products (matmul, linear, bmm, dot, einsum), convolutions and attention
// of this thread take operands of f32 in the given dtype, and give it; losses, softmax and
// log_softmax give f32. Everything else computes in the dtype that its operands have. Gradients
// come in the dtype of what they belong to, whether it lives then or not. Autocast(kF32) switches
// it off for a while.
//
// Autocast(kF8E4M3): where the second operand of matmul or linear is a matrix, as the weights of
// layers are, both are taken in e4m3, and so is the gradient of the result in e5m2, each with a
// scale for the whole tensor (tiny/tensor/ops/f8_product.h); the result is bf16. Everything else is
// as with Autocast(kBF16): bmm, dot, einsum, matmul by more than one matrix, convolutions,
// attention, and the product of linear_cross_entropy, as losses depend on small differences of its
// results. A tensor with an element that is infinite or NaN makes all of the results NaN.
//
// Error for any other dtype.
class Autocast {
 public:
  explicit Autocast(DType dtype);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  DType before_;
};

struct LossScale {
  double start = 65536;
  double growth = 2;  // after `every` steps without an infinite gradient
  int64_t every = 2000;
  double backoff = 0.5;  // after a step with one, which changes nothing else
};

// Gradients of a loss that is multiplied by a number, which is divided out before the optimizers
// see them. A step whose gradients are not all finite changes neither parameters nor what
// optimizers keep. Everything happens on the device, so that a Jit can capture it. (P. Micikevicius
// et al., "Mixed precision training", arXiv 1710.03740.)
class LossScaler {
 public:
  // The optimizers must outlive it. Error for a scale, growth or backoff that cannot work.
  explicit LossScaler(const std::vector<Optimizer*>& optimizers, const LossScale& options = {});

  Tensor scaled(const Tensor& loss) const;  // f32
  // The optimizers' steps as Optimizer::step_all does them.
  void step(std::initializer_list<Tensor*> also = {});

  double scale() const;                                  // reads it from the device
  StateDict state_dict(const std::string& prefix = "");  // "scale", "good_steps"

 private:
  Tensor unscale_gradients();

  const std::vector<Optimizer*> optimizers_;
  const LossScale options_;
  Tensor scale_, good_steps_;  // f32, 0-d
};

namespace detail {

// The operand of a product: in the scope's dtype where one lives and x is f32, f16 or bf16.
Tensor autocast(const Tensor& x);
// That dtype, bf16 where products by a matrix are in 8-bit floats; f32 where none lives.
DType autocast_dtype();
bool autocasts_to_f8();
// The dtype of a loss of operands of this dtype: f32 for 16-bit floats where a scope lives.
DType autocast_loss(DType t);

}  // namespace detail

}  // namespace tiny
