// Low-rank adapters: a model is trained on by adding to its products others of a few numbers, while
// its own weights stay as they are. E. Hu et al., "LoRA", arXiv 2106.09685. Names are peft's.
//
//   models::Transformer model = models::load(folder);
//   nn::add_lora(model, {"q_proj", "v_proj"}, {.rank = 8, .alpha = 16});
//   AdamW optimizer(model.parameters(), 1e-4);  // the adapters': no other tensor wants a gradient
//   ...
//   save("adapter.safetensors", nn::lora_state_dict(model));
//   nn::merge_lora(model);  // one product again
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "tiny/nn/layers.h"

namespace tiny::nn {

struct LoraOptions {
  int64_t rank = 8;
  double alpha = 8;    // what is added is scaled by alpha / rank
  double dropout = 0;  // of its input, in training
};

// scale dropout(x) A' B', in the dtype of the product: "lora_A.weight" (rank, in) and
// "lora_B.weight" (out, rank), f32, or f64 for such a weight. B is 0 at first, so that nothing
// changes; A is uniform in +-1 / sqrt(in).
class Lora : public Adapter {
 public:
  // Of a weight (out, in), or (in, out) with input_first. Error for a weight of other than two axes
  // or no floats, a rank below 1 and a dropout outside [0, 1].
  Lora(const Tensor& weight, bool input_first, const LoraOptions& options);
  Tensor add_to(const Tensor& y, const Tensor& x) override;
  void state(StateDict& out, const std::string& prefix) override;

  // Adds the product of both to the weight, which then does without them, or takes it away again:
  // up to a rounding of the sum. Error where it is (is not) merged already.
  void merge(Tensor& weight);
  void unmerge(Tensor& weight);
  bool is_merged() const { return merged_; }

  Tensor a, b;
  LoraOptions options;

 private:
  Tensor difference() const;

  bool input_first_, merged_ = false;
};

// A Linear with an adapter; the Linear's own tensors want no gradient any more and keep their
// names.
class LoraLinear : public Module {
 public:
  explicit LoraLinear(Linear base, const LoraOptions& options = {});
  Tensor forward(const Tensor& x) override { return base.forward(x); }
  void state(StateDict& out, const std::string& prefix) override { base.state(out, prefix); }

  Lora& lora() { return static_cast<Lora&>(*base.adapter); }
  void merge() { lora().merge(base.weight); }
  void unmerge() { lora().unmerge(base.weight); }

  Linear base;
};

// Gives an adapter to each product (Linear, and those of loaded models but for experts) whose name
// fits one of the patterns, and lets nothing but adapters want a gradient. A pattern is the whole
// name of a layer or what stands in it after a point, "q_proj" or "layers.0.q_proj"; a * in it
// stands for any text. How many there are. Error, with names, where a pattern fits none, and where
// a product has an adapter already.
int64_t add_lora(Module& module, const std::vector<std::string>& patterns,
                 const LoraOptions& options = {});

// The adapters' tensors alone: "layers.0.q_proj.lora_A.weight".
StateDict lora_state_dict(Module& module, const std::string& prefix = "");

// All adapters of a module, as Lora has it; and what is not merged is gone with remove_lora.
void merge_lora(Module& module);
void unmerge_lora(Module& module);
void remove_lora(Module& module);

}  // namespace tiny::nn
