// The steps of a training that is one capture: gradients of several parts of a batch add up, are
// clipped and taken by an optimizer, whose learning rate warms up and falls along a cosine.
//
//   AdamW optimizer(decay_matrices(model.tensors(), 0.1), 6e-4, {.beta2 = 0.95});
//   Trainer trainer(model.state_dict("model."), optimizer, [&](const auto& batch) {
//     return cross_entropy(model(batch[0]), batch[1]);
//   }, {.steps = 1000, .accumulate = 4, .lr = 6e-4, .dtype = kBF16});
//   load_checkpoint(path, trainer.state());
//   while (trainer.done() < 1000) trainer.step(loader.next());
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tiny/run/jit.h"
#include "tiny/train/optim.h"
#include "tiny/train/schedules.h"
#include "tiny/train/state_dict.h"

namespace tiny {

struct TrainerOptions {
  int64_t steps = 1000;
  int64_t accumulate = 1;  // parts of a batch, one after the other
  double lr = 1e-3;        // the highest
  double lowest = 0.1;     // at the end, as a share of it
  int64_t warmup = 0;      // steps
  double clip = 1;         // of the gradients' norm; 0: they stay as they are
  DType dtype = kF32;      // of products, as Autocast takes it; parameters stay as they are
  std::vector<std::string> devices = {};  // each takes a share of every part
};

class Trainer {
 public:
  using Batch = std::vector<Tensor>;
  // The mean loss (0-d) of a part of a batch, in a training's step and in evaluate().
  using Loss = std::function<Tensor(const Batch&)>;

  // `model`: its tensors, of which the optimizer has those that learn; both must outlive it. Error
  // for options out of range.
  Trainer(const StateDict& model, Optimizer& optimizer, Loss loss, const TrainerOptions& options);
  Trainer(const Trainer&) = delete;  // nor moved: what it captures knows it

  // One step with tensors whose first axis is cut into the parts (Error where that is uneven). The
  // modes of nn::Training and NoGrad are the caller's. Error for more steps than there are.
  void step(const Batch& batch);
  // The mean of the losses of these batches, each as one part, without gradients.
  double evaluate(const std::vector<Batch>& batches);

  int64_t done() const;  // steps
  // Of steps [begin, end), from 0 on. Error where it is not finite.
  double mean_loss(int64_t begin, int64_t end) const { return curves_.means(begin, end)[0]; }
  double mean_norm(int64_t begin, int64_t end) const { return curves_.means(begin, end)[1]; }
  ChartLine losses(const std::string& name) const { return curves_.line(0, name); }
  double lr() const;  // of the next step

  // All that it goes on from, for save_checkpoint() and load_checkpoint(): with the same batches
  // the losses are the same, bit for bit. What a training is made of (steps, accumulate) belongs
  // into the checkpoint's settings.
  StateDict state();

 private:
  void run(const Batch& batch);
  Batch part(const Batch& batch, int64_t i) const;

  const StateDict model_;
  Optimizer& optimizer_;
  const Loss loss_;
  const TrainerOptions options_;
  StepCurves curves_;  // losses, norms of gradients
  Jit<std::function<void(const Batch&)>> step_;
  Jit<std::function<Tensor(const Batch&)>> evaluate_;
  mutable int64_t done_ = -1;  // not known on the host
};

// Floating-point operations a second of a product of two matrices of this size and dtype on the
// device, the best of a few: what the rate of a training is compared with.
double product_rate(DType dtype, int64_t size, const std::string& device = "");

}  // namespace tiny
