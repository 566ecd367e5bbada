#include "tiny/train/trainer.h"

#include <algorithm>
#include <utility>

#include "tiny/train/mixed_precision.h"

namespace tiny {

Trainer::Trainer(const StateDict& model, Optimizer& optimizer, Loss loss,
                 const TrainerOptions& options)
    : model_(model),
      optimizer_(optimizer),
      loss_(std::move(loss)),
      options_(options),
      curves_(2, options.steps, options.devices),
      step_([this](const Batch& batch) { run(batch); }),
      evaluate_([this](const Batch& batch) {
        const NoGrad no_grad;
        const Autocast mixed(options_.dtype);
        return loss_(batch).to(kF32);
      }) {
  check(options.steps >= 0 && options.accumulate >= 1 && options.warmup >= 0 && options.clip >= 0,
        "Trainer: ", options.steps, " steps of ", options.accumulate, " parts, ", options.warmup,
        " of them to warm up, norms of at most ", options.clip);
}

// Part i of the batch, each device's share of it where there are several.
Trainer::Batch Trainer::part(const Batch& batch, int64_t i) const {
  Batch out;
  for (const Tensor& t : batch) {
    const int64_t rows = t.size(0) / options_.accumulate;
    const Tensor some = options_.accumulate == 1 ? t : t.narrow(0, i * rows, rows);
    out.push_back(options_.devices.empty() ? some : some.shard(options_.devices, 0));
  }
  return out;
}

// What is captured: everything that it computes is realized together.
void Trainer::run(const Batch& batch) {
  const double share = 1 / static_cast<double>(options_.accumulate);
  Tensor sum;
  for (int64_t i = 0; i < options_.accumulate; ++i) {
    Tensor loss;
    {
      const Autocast mixed(options_.dtype);
      loss = loss_(part(batch, i)).to(kF32) * share;
    }
    loss.backward();
    sum = sum.defined() ? sum + loss.detach() : loss.detach();
  }
  std::vector<Tensor*> tensors;
  for (const NamedTensor& named : model_) tensors.push_back(named.tensor);
  const double limit = options_.clip > 0 ? options_.clip : 1e30;
  const Tensor norm = clip_grad_norm_(tensors, limit);
  curves_.add({sum, norm});
  optimizer_.step({&curves_.values, &curves_.done});
}

void Trainer::step(const Batch& batch) {
  const int64_t number = done();
  check(number < options_.steps, "Trainer: all ", options_.steps, " steps are done");
  check(!batch.empty(), "Trainer: a batch of no tensors");
  for (const Tensor& t : batch)
    check(t.rank() >= 1 && t.size(0) % options_.accumulate == 0, "Trainer: a tensor of shape ",
          to_text(t.shape()), " in ", options_.accumulate, " parts");
  optimizer_.set_lr(lr());
  step_(batch);
  done_ = number + 1;
}

int64_t Trainer::done() const {
  if (done_ < 0) done_ = static_cast<int64_t>(curves_.done.item<float>());
  return done_;
}

double Trainer::lr() const {
  return options_.lr * warmup_cosine(static_cast<double>(done()) + 1,
                                     static_cast<double>(options_.warmup),
                                     static_cast<double>(options_.steps), options_.lowest);
}

double Trainer::evaluate(const std::vector<Batch>& batches) {
  check(!batches.empty(), "Trainer: no batches to evaluate");
  double sum = 0;
  for (const Batch& batch : batches) {
    Batch shares;
    for (const Tensor& t : batch)
      shares.push_back(options_.devices.empty() ? t : t.shard(options_.devices, 0));
    sum += evaluate_(shares).item<float>();
  }
  return sum / static_cast<double>(batches.size());
}

StateDict Trainer::state() {
  done_ = -1;  // who has the tensors may load others into them
  StateDict out = model_;
  for (const NamedTensor& t : optimizer_.state_dict("optimizer.")) out.push_back(t);
  out.push_back({"done", &curves_.done});
  out.push_back({"curve", &curves_.values});
  return out;
}

double product_rate(DType dtype, int64_t size, const std::string& device) {
  const NoGrad no_grad;
  Tensor x = Tensor::uniform({size, size}, -1, 1).to(dtype);
  if (!device.empty()) x = x.to(device);
  x.realize();
  Jit product([&] { return x.matmul(x); });
  double best = 0;
  for (int i = 0; i < 6; ++i) {  // the first ones compile
    const double begin = seconds();
    const Tensor y = product();
    y.narrow(0, size - 1, 1).narrow(1, size - 1, 1).to(kF32).item<float>();  // waits for it
    const auto n = static_cast<double>(size);
    if (i > 1) best = std::max(best, 2 * n * n * n / (seconds() - begin));
  }
  return best;
}

}  // namespace tiny
