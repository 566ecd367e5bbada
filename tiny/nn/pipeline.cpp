// Nothing below knows of pipelines: between stages are copies to other devices, and that a stage
// takes its turns one after the other is said by After (tiny/ir/op.h).
#include <algorithm>
#include <set>
#include <utility>

#include "tiny/base/error.h"
#include "tiny/ir/build.h"
#include "tiny/ir/print.h"
#include "tiny/nn/layers.h"

namespace tiny::nn {

namespace {

// Axis 0 of a stage's input is cut over its devices, if it has several and these share the batch.
Tensor at_stage(const Tensor& x, const std::string& devices, bool cut_batch) {
  const int device = device_id(devices);
  const bool is_cut = cut_batch && x.rank() > 0 && !device_members(device).empty();
  return is_cut ? Tensor(build::shard(x.node(), device, 0)) : x.to(devices);
}

// A stage in the midst of a step. Its turns are one forward, one backward (D. Narayanan et al.,
// "PipeDream", SOSP 2019, with one version of the weights): as many micro-batches go ahead as there
// are stages from this one on, and from then on a forward follows each backward.
struct Stage {
  Module& module;
  const std::string& devices;
  int64_t ahead = 0;                      // forwards before the first backward
  int64_t forwards = 0, backwards = 0;    // that it has taken
  std::vector<Tensor> in = {}, out = {};  // of each micro-batch, until its backward
  std::vector<Tensor> made = {};          // by the turn before

  // Read once that turn is done.
  Tensor after_last(Tensor x) const {
    for (const Tensor& t : made)
      if (t.node()->device == x.node()->device) x = Tensor(build::after(x.node(), t.node()));
    return x;
  }
};

class PipelineStep {
 public:
  PipelineStep(const std::vector<Module*>& modules, const std::vector<std::string>& devices,
               const PipelineOptions& options, const Pipeline::Loss& loss)
      : options_(options), loss_(loss) {
    for (size_t s = 0; s < modules.size(); ++s) {
      Stage stage{*modules[s], devices[s]};
      stage.ahead = std::min(static_cast<int64_t>(modules.size() - s), options.micro_batches);
      stage.in.resize(static_cast<size_t>(options.micro_batches));
      stage.out.resize(static_cast<size_t>(options.micro_batches));
      stages_.push_back(std::move(stage));
    }
  }

  // Builds the turns of all stages in an order in which each finds what it needs.
  Tensor run(const Tensor& x, const Tensor& target) {
    const int64_t size = x.size(0) / options_.micro_batches;
    const std::vector<Tensor> inputs = x.split(size), targets = target.split(size);
    const auto all = options_.micro_batches;
    while (stages_[0].backwards < all)
      for (size_t s = 0; s < stages_.size(); ++s) {
        Stage& stage = stages_[s];
        const bool is_last = s + 1 == stages_.size();
        const bool goes_forward =
            stage.forwards < all && stage.forwards < stage.ahead + stage.backwards;
        const auto m = static_cast<size_t>(goes_forward ? stage.forwards : stage.backwards);
        if (goes_forward && s == 0) {
          forward(s, m, inputs[m], targets[m]);
        } else if (goes_forward && stages_[s - 1].forwards > stage.forwards) {
          forward(s, m, stages_[s - 1].out[m], targets[m]);
        } else if (!goes_forward && stage.backwards < all &&
                   (is_last || stages_[s + 1].backwards > stage.backwards)) {
          backward(s, m);
        }
      }
    return total_ / static_cast<double>(all);
  }

 private:
  void forward(size_t s, size_t m, const Tensor& x, const Tensor& target) {
    Stage& stage = stages_[s];
    Tensor in = stage.after_last(at_stage(s ? x.detach() : x, stage.devices, options_.cut_batch));
    if (s && x.requires_grad()) in.requires_grad_();
    Tensor out = stage.module(in).contiguous();  // what is sent and waited for has memory
    if (s + 1 == stages_.size()) {
      out = loss_(out, at_stage(target, stage.devices, options_.cut_batch));
      check(out.numel() == 1, "Pipeline: a loss of shape ", to_text(out.shape()),
            ": expected one element, the mean over a micro-batch");
      total_ = total_.defined() ? total_ + out.detach() : out.detach();
    }
    stage.made = {out.detach()};
    stage.in[m] = std::move(in);
    stage.out[m] = std::move(out);
    ++stage.forwards;
  }

  void backward(size_t s, size_t m) {
    Stage& stage = stages_[s];
    ++stage.backwards;
    const Tensor out = std::exchange(stage.out[m], Tensor());
    Tensor gradient;
    if (s + 1 == stages_.size()) {
      gradient = out.full_like(1 / static_cast<double>(options_.micro_batches));
    } else {
      gradient = std::exchange(stages_[s + 1].in[m], Tensor()).grad();
      if (gradient.defined())
        gradient = stage.after_last(at_stage(gradient, stage.devices, options_.cut_batch));
    }
    if (!out.requires_grad() || !gradient.defined()) return;
    out.backward(gradient);
    stage.made.clear();
    // Gradients get memory: else those of all micro-batches would wait for one sum.
    std::vector<Tensor*> wanted = stage.module.parameters();
    wanted.push_back(&stage.in[m]);
    for (Tensor* t : wanted) {
      if (!t->grad().defined()) continue;
      t->set_grad(t->grad().contiguous());
      stage.made.push_back(t->grad());
    }
  }

  const PipelineOptions& options_;
  const Pipeline::Loss& loss_;
  std::vector<Stage> stages_;
  Tensor total_;
};

}  // namespace

Pipeline::Pipeline(std::vector<Module*> stages, std::vector<std::string> devices,
                   const PipelineOptions& options)
    : stages_(std::move(stages)), devices_(std::move(devices)), options_(options) {
  check(!stages_.empty(), "Pipeline: no stages");
  check(stages_.size() == devices_.size(), "Pipeline: ", stages_.size(), " stages on ",
        devices_.size(), " devices: expected one for each stage; several as \"CUDA:0,CUDA:1\"");
  check(options.micro_batches > 0, "Pipeline: ", options.micro_batches,
        " micro-batches: expected at least one");
  std::set<const Tensor*> placed;
  for (size_t s = 0; s < stages_.size(); ++s) {
    check(stages_[s] != nullptr, "Pipeline: stage ", s, " is a null pointer");
    for (Tensor* t : stages_[s]->tensors()) {
      if (!placed.insert(t).second || t->node()->device == device_id(devices_[s])) continue;
      const bool wanted = t->requires_grad();
      *t = t->detach().to(devices_[s]).contiguous().realize();
      if (wanted) t->requires_grad_();
    }
  }
}

Children Pipeline::children() {
  Children out;
  for (size_t s = 0; s < stages_.size(); ++s) out.push_back({std::to_string(s), stages_[s]});
  return out;
}

Tensor Pipeline::forward(const Tensor& x) {
  Tensor y = x;
  for (size_t s = 0; s < stages_.size(); ++s)
    y = stages_[s]->forward(at_stage(y, devices_[s], options_.cut_batch));
  return y;
}

Tensor Pipeline::backward(const Tensor& x, const Tensor& target, const Loss& loss) {
  check(x.rank() > 0 && target.rank() > 0 && x.size(0) == target.size(0),
        "Pipeline: an input of shape ", to_text(x.shape()), " and a target of shape ",
        to_text(target.shape()), ": expected as many samples along axis 0 of both");
  check(x.size(0) > 0 && x.size(0) % options_.micro_batches == 0, "Pipeline: a batch of ",
        x.size(0), " samples: expected a multiple of the ", options_.micro_batches,
        " micro-batches");
  check(!parameters().empty(), "Pipeline: no parameter wants a gradient");
  return PipelineStep(stages_, devices_, options_, loss).run(x, target);
}

}  // namespace tiny::nn
