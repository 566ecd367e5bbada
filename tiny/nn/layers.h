// Layers: tensors with names, and the function that uses them. Names and initial values are
// PyTorch's. They have a namespace of their own: nn::Linear.
//
//   nn::Sequential model(nn::Linear(784, 128), &Tensor::relu, nn::Linear(128, 10));
//   Adam optimizer(model.tensors());
//   {
//     nn::Training training;  // until the end of the block
//     Tensor loss = cross_entropy(model(x), labels);
//     loss.backward();
//     optimizer.step({&loss});
//   }
//   save("model.safetensors", model.state_dict());
#pragma once
#include <concepts>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "tiny/nn/functional.h"
#include "tiny/tensor/tensor.h"
#include "tiny/train/state_dict.h"

namespace tiny::nn {

// While one lives, dropout and batch norm of this thread behave as in training. Without one they
// behave as in evaluation.
class Training {
 public:
  explicit Training(bool on = true);
  ~Training();
  Training(const Training&) = delete;
  Training& operator=(const Training&) = delete;

 private:
  bool before_;
};
bool is_training();

class Module;

// A layer of a module, which lives as long as that and is not moved.
struct NamedModule {
  std::string name;
  Module* module;
};
using Children = std::vector<NamedModule>;

// A layer or a model. A model of your own has layers as members, calls them in forward and names
// them in children: `return {{"conv", &conv}, {"head", &head}};`. Modules can be moved, not copied:
// a copy of a parameter would be the same leaf, and only one of the two would be updated.
class Module {
 public:
  Module() = default;
  Module(Module&&) = default;
  Module& operator=(Module&&) = default;
  virtual ~Module() = default;

  // A module of several inputs has a forward of its own for them, and `using Module::forward;`:
  // this one is an Error then.
  virtual Tensor forward(const Tensor& x);
  Tensor operator()(const Tensor& x) { return forward(x); }

  // The layers with their names, in order; none by default.
  virtual Children children();
  // Appends all tensors, each with its name after the prefix: by default those of the children,
  // "conv.weight". What has tensors of its own names them as well. They stay where they are as long
  // as the module is not moved.
  virtual void state(StateDict& out, const std::string& prefix);

  StateDict state_dict(const std::string& prefix = "");
  std::vector<Tensor*> tensors();      // of the state: what an optimizer takes
  std::vector<Tensor*> parameters();   // those that want a gradient
  void to(const std::string& device);  // before an optimizer takes the tensors
  virtual void to(DType dtype);        // the same; of those that are floats
};

// A table of a module's tensors: name, shape, dtype, elements, bytes and whether a gradient is
// wanted, with their sums. A tensor of several names is counted once.
std::string model_summary(Module& module);

// What is added to the product of a layer: LoRA (tiny/nn/lora.h).
class Adapter {
 public:
  virtual ~Adapter() = default;
  virtual Tensor add_to(const Tensor& y, const Tensor& x) = 0;  // y: the product, x: its input
  virtual void state(StateDict& out, const std::string& prefix) = 0;
};

// A product in a model, where an adapter can be put: of a Linear or of a loaded model.
struct Product {
  std::string name;  // of the layer, "layers.0.q_proj"
  Tensor* weight;    // (out, in), or (in, out)
  bool input_first;
  std::shared_ptr<Adapter>* adapter;  // none at first
};
std::vector<Product> products_of(Module& module);
// For the state() of what has a product: tells products_of, and appends the adapter's tensors.
void state_of_product(StateDict& out, const std::string& prefix, const Product& product);

// "weight" and "bias", uniform in +-1 / sqrt(in).
class Linear : public Module {
 public:
  Linear(int64_t in, int64_t out, bool has_bias = true, DType dtype = kF32);
  Tensor forward(const Tensor& x) override;  // (..., in) to (..., out)
  void state(StateDict& out, const std::string& prefix) override;

  Tensor weight, bias;  // (out, in), (out)
  std::shared_ptr<Adapter> adapter = nullptr;
};

// "weight" and "bias", uniform in +-1 / sqrt(in / groups * kernel). Error for channels that are no
// multiple of the groups.
class Conv2d : public Module {
 public:
  Conv2d(int64_t in, int64_t out, const PerAxis& kernel, const ConvOptions& options = {},
         bool has_bias = true, DType dtype = kF32);
  Tensor forward(const Tensor& x) override;  // (N, in, h, w) to (N, out, h', w')
  void state(StateDict& out, const std::string& prefix) override;

  Tensor weight, bias;  // (out, in / groups, kernel h, kernel w), (out)
  ConvOptions options;
};

// Lets the first `channels` filters of a convolution's weight (out, in, kernel...) pass their input
// on, number i the channel i: 1 in the middle and 0 elsewhere. The others stay as they are. Error
// for more channels than there are, or a kernel of even size.
void dirac_(Tensor& weight, int64_t channels);

// Over dimension 1 of (N, C, ...). In training the running statistics become those after the
// batch; an optimizer that knows them realizes them with its step.
class BatchNorm2d : public Module {
 public:
  explicit BatchNorm2d(int64_t channels, double eps = 1e-5, double momentum = 0.1,
                       DType dtype = kF32);
  Tensor forward(const Tensor& x) override;
  void state(StateDict& out, const std::string& prefix) override;

  Tensor weight, bias, running_mean, running_var;  // (C)
  double eps, momentum;
  int64_t groups = 1;  // of the batch in training, each with statistics of its own (functional.h)
};

// The same with statistics, scale and shift that stay as they are: of a network that was trained
// elsewhere, whose batches are too small for statistics of their own.
class FrozenBatchNorm2d : public Module {
 public:
  explicit FrozenBatchNorm2d(int64_t channels, double eps = 1e-5, DType dtype = kF32);
  Tensor forward(const Tensor& x) override;
  void state(StateDict& out, const std::string& prefix) override;

  Tensor weight, bias, running_mean, running_var;  // (C), none of which wants a gradient
  double eps;
};

// Over the last axes, which have this shape.
class LayerNorm : public Module {
 public:
  explicit LayerNorm(const Shape& normalized_shape, double eps = 1e-5, DType dtype = kF32);
  explicit LayerNorm(int64_t size, double eps = 1e-5, DType dtype = kF32)
      : LayerNorm(Shape{size}, eps, dtype) {}
  Tensor forward(const Tensor& x) override;
  void state(StateDict& out, const std::string& prefix) override;

  Shape normalized_shape;
  Tensor weight, bias;  // of that shape
  double eps;
};

// x / sqrt(mean(x^2) + eps) over the last axes, which have this shape, times the weight.
class RMSNorm : public Module {
 public:
  explicit RMSNorm(const Shape& normalized_shape, double eps = 1e-6, DType dtype = kF32);
  explicit RMSNorm(int64_t size, double eps = 1e-6, DType dtype = kF32)
      : RMSNorm(Shape{size}, eps, dtype) {}
  Tensor forward(const Tensor& x) override;
  void state(StateDict& out, const std::string& prefix) override;

  Shape normalized_shape;
  Tensor weight;  // of that shape
  double eps;
};

// Statistics for each sample and group of channels, x (N, channels, ...). Error for channels that
// are no multiple of the groups.
class GroupNorm : public Module {
 public:
  GroupNorm(int64_t num_groups, int64_t channels, double eps = 1e-5, DType dtype = kF32);
  Tensor forward(const Tensor& x) override;
  void state(StateDict& out, const std::string& prefix) override;

  int64_t num_groups;
  Tensor weight, bias;  // (channels)
  double eps;
};

struct MultiheadAttentionOptions {
  bool has_bias = true;
  bool batch_first = false;  // (N, L, E) instead of (L, N, E)
  double dropout = 0;        // of the weights of attention, in training
};

// Attention of several heads with one product for queries, keys and values before it and one after
// it: "in_proj_weight" (3 embed_dim, embed_dim), "in_proj_bias", "out_proj.weight",
// "out_proj.bias". Error for a size that is no multiple of the heads.
class MultiheadAttention : public Module {
 public:
  MultiheadAttention(int64_t embed_dim, int64_t num_heads,
                     const MultiheadAttentionOptions& options = {}, DType dtype = kF32);
  Tensor forward(const Tensor& x) override { return forward(x, x, x); }
  // query (L, N, embed_dim), key and value (S, N, embed_dim) to (L, N, embed_dim). Of the options
  // the mask, which broadcasts to (N, num_heads, L, S), and is_causal count.
  Tensor forward(const Tensor& query, const Tensor& key, const Tensor& value,
                 const AttentionOptions& attention = {});
  void state(StateDict& out, const std::string& prefix) override;

  int64_t num_heads;
  Tensor in_proj_weight, in_proj_bias;
  Linear out_proj;
  MultiheadAttentionOptions options;
};

// Integers to rows of the weight. The row padding_idx is zero and receives no gradient.
class Embedding : public Module {
 public:
  Embedding(int64_t count, int64_t size, std::optional<int64_t> padding_idx = {},
            DType dtype = kF32);
  Tensor forward(const Tensor& index) override;  // (...) to (..., size)
  void state(StateDict& out, const std::string& prefix) override;

  Tensor weight;  // (count, size)
  std::optional<int64_t> padding_idx;
};

// Changes its input in training alone. Error for a p outside [0, 1].
class Dropout : public Module {
 public:
  explicit Dropout(double p = 0.5);
  Tensor forward(const Tensor& x) override;

  double p;
};

struct RecurrentLayerOptions {
  int64_t layers = 1;
  bool has_bias = true;
  bool batch_first = false;
  double dropout = 0;  // between layers, in training
  bool bidirectional = false;
};

// What LSTM and GRU share: their weights, "weight_ih_l0", "weight_hh_l0", "bias_ih_l0",
// "bias_hh_l0", those of the way back with "_reverse", and so on for each layer.
class RecurrentLayer : public Module {
 public:
  void state(StateDict& out, const std::string& prefix) override;

  std::vector<CellWeights> weights;  // in the order of lstm(): (gates hidden, ...)
  RecurrentLayerOptions options;

 protected:
  RecurrentLayer(int64_t gates, int64_t in, int64_t hidden, const RecurrentLayerOptions& options,
                 DType dtype);
  RecurrentOptions run_options() const;
};

// (T, N, in) to (T, N, directions hidden), batch and steps exchanged with batch_first, without N
// for one sequence. With an initial state (layers directions, N, hidden) run() starts there, and
// gives the last one too.
class LSTM : public RecurrentLayer {
 public:
  LSTM(int64_t in, int64_t hidden, const RecurrentLayerOptions& options = {}, DType dtype = kF32);
  Tensor forward(const Tensor& x) override { return run(x).y; }
  LstmResult run(const Tensor& x, const LstmState& initial = {});
};

class GRU : public RecurrentLayer {
 public:
  GRU(int64_t in, int64_t hidden, const RecurrentLayerOptions& options = {}, DType dtype = kF32);
  Tensor forward(const Tensor& x) override { return run(x).y; }
  GruResult run(const Tensor& x, const Tensor& initial = Tensor());
};

// A plain function as a layer.
class Function : public Module {
 public:
  explicit Function(std::function<Tensor(const Tensor&)> f) : f_(std::move(f)) {}
  Tensor forward(const Tensor& x) override { return f_(x); }

 private:
  std::function<Tensor(const Tensor&)> f_;
};

// Layers and functions one after the other: Sequential(Linear(4, 8), &Tensor::relu, Linear(8, 2)).
// Names are their positions, functions counted: "0.weight", "2.weight".
class Sequential : public Module {
 public:
  template <class... Parts>
  requires(!(sizeof...(Parts) == 1 && (std::same_as<std::decay_t<Parts>, Sequential> &&
                                       ...))) explicit Sequential(Parts&&... parts) {
    (append(std::forward<Parts>(parts)), ...);
  }
  Tensor forward(const Tensor& x) override;
  Children children() override;

  // A layer (moved in), a shared_ptr to one, or anything that gives a Tensor from a Tensor.
  template <class Part> void append(Part&& part) {
    using P = std::decay_t<Part>;
    if constexpr (std::convertible_to<P, std::shared_ptr<Module>>)
      parts_.push_back(std::forward<Part>(part));
    else if constexpr (std::derived_from<P, Module>)
      parts_.push_back(std::make_shared<P>(std::forward<Part>(part)));
    else
      parts_.push_back(std::make_shared<Function>(std::forward<Part>(part)));
  }
  size_t size() const { return parts_.size(); }
  Module& operator[](size_t i) { return *parts_.at(i); }

 private:
  std::vector<std::shared_ptr<Module>> parts_;
};

struct PipelineOptions {
  int64_t micro_batches = 1;
  // Of a stage on several devices: whether these share each micro-batch (data parallel) or each
  // have all of it (tensor parallel).
  bool cut_batch = true;
};

// Stages of a model on different devices, which work on different micro-batches at the same time:
//
//   nn::Pipeline pipeline({&bottom, &top}, {"CUDA:0", "CUDA:1"}, {.micro_batches = 8});
//   AdamW optimizer(pipeline.tensors(), 3e-4);
//   Tensor loss = pipeline.backward(x, labels, [](const Tensor& y, const Tensor& target) {
//     return cross_entropy(y, target);
//   });
//   optimizer.step({&loss});
//
// A stage's devices are one, or several with a comma between them ("CUDA:0,CUDA:1"), or of ranks;
// what it has elsewhere moves there, whole on each: before an optimizer takes the tensors. Stages
// live as long as the pipeline. A tensor that two stages name is where the first one is; the other
// one moves it in its forward. Names are "0.", "1.", ... and those of the stages. Error for numbers
// of stages and devices that differ, and for no micro-batch.
class Pipeline : public Module {
 public:
  // Of what the last stage gives and of a part of the target: one element, a mean over samples.
  using Loss = std::function<Tensor(const Tensor& y, const Tensor& target)>;

  Pipeline(std::vector<Module*> stages, std::vector<std::string> devices,
           const PipelineOptions& options = {});
  // x to what the last stage gives, all samples at once.
  Tensor forward(const Tensor& x) override;
  // The loss of x, whose micro-batches are parts along axis 0, as of the target; its mean over
  // them. Adds its gradients to the grad() of the leaves, as Tensor::backward does. A stage keeps
  // what its backward needs for as many micro-batches as there are stages from it on, however many
  // there are. Error for samples that are no multiple of the micro-batches.
  Tensor backward(const Tensor& x, const Tensor& target, const Loss& loss);
  Children children() override;

 private:
  std::vector<Module*> stages_;
  std::vector<std::string> devices_;
  PipelineOptions options_;
};

}  // namespace tiny::nn

namespace tiny {

struct FullyShardOptions {
  int64_t least = 4096;  // tensors of fewer elements stay whole on each device
};

// Cuts the tensors over the devices, each along its first axis, or along its longest one where that
// has fewer positions than there are devices (ZeRO stage 3, PyTorch's fully_shard; S. Rajbhandari
// et al., arXiv 1910.02054):
//
//   fully_shard(model, devices);  // before an optimizer takes the tensors
//   AdamW optimizer(model.tensors(), 3e-4);
//   Tensor loss = cross_entropy(model(x.shard(devices, 0)), labels.shard(devices, 0));
//   loss.backward();
//   optimizer.step({&loss});
//
// What a layer uses is gathered on each device where it meets a batch that is cut over the devices,
// one use ahead, and freed behind it; the backward gathers it again. Gradients are
// reduce-scattered, and each device updates its own part. Devices are those of Tensor::shard; with
// rank_devices() each process has one. With one device the tensors move there whole. Error for no
// device, one that is named twice and a tensor without elements.
void fully_shard(nn::Module& module, const std::vector<std::string>& devices,
                 const FullyShardOptions& options = {});
void fully_shard(const std::vector<Tensor*>& tensors, const std::vector<std::string>& devices,
                 const FullyShardOptions& options = {});

}  // namespace tiny
