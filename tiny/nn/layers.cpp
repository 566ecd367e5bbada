#include "tiny/nn/layers.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "tiny/ir/build.h"
#include "tiny/ir/sizes.h"
#include "tiny/train/schedules.h"

namespace tiny::nn {

namespace {

thread_local bool training_now = false;

// Constant values in memory of their own: two layers must not share what is updated in place.
Tensor constant_state(const Shape& shape, float value, DType dtype) {
  const std::vector<float> values(static_cast<size_t>(numel(shape)), value);
  Tensor t = Tensor::from(values, shape);
  return dtype == kF32 ? t : t.to(dtype).contiguous();
}

// Uniform in +-1 / sqrt(fan_in): what kaiming_uniform gives for a = sqrt(5), and PyTorch for
// biases.
Tensor uniform_parameter(const Shape& shape, int64_t fan_in, DType dtype) {
  const double bound = fan_in > 0 ? 1 / std::sqrt(static_cast<double>(fan_in)) : 0;
  return Tensor::uniform(shape, -bound, bound, dtype).requires_grad_();
}

Tensor constant_parameter(const Shape& shape, float value, DType dtype) {
  return constant_state(shape, value, dtype).requires_grad_();
}

void add(StateDict& out, const std::string& name, Tensor& t) {
  if (t.defined()) out.push_back({name, &t});
}

// Whether it is an assignment still, which waits to be computed or has not let go of its value.
bool is_assigned(const Tensor& t) { return t.node()->op == Op::Assign; }

}  // namespace

Training::Training(bool on) : before_(std::exchange(training_now, on)) {}
Training::~Training() { training_now = before_; }
bool is_training() { return training_now; }

// --- Module --------------------------------------------------------------------------------------

Tensor Module::forward(const Tensor&) {
  throw Error("Module: it is not one of one input: call its own forward");
}

Children Module::children() { return {}; }

void Module::state(StateDict& out, const std::string& prefix) {
  for (const NamedModule& child : children())
    child.module->state(out, cat(prefix, child.name, "."));
}

StateDict Module::state_dict(const std::string& prefix) {
  StateDict out;
  state(out, prefix);
  return out;
}

std::vector<Tensor*> Module::tensors() {
  std::vector<Tensor*> out;
  for (const NamedTensor& named : state_dict()) out.push_back(named.tensor);
  return out;
}

std::vector<Tensor*> Module::parameters() {
  std::vector<Tensor*> out;
  for (Tensor* t : tensors())
    if (t->requires_grad()) out.push_back(t);
  return out;
}

void Module::to(const std::string& device) {
  for (Tensor* t : tensors()) {
    const bool wanted = t->requires_grad();
    *t = t->detach().to(device);
    if (wanted) t->requires_grad_();
  }
}

void Module::to(DType dtype) {
  check(dtype.is_float(), "Module::to: ", dtype,
        " is no float: parameters would lose their values");
  for (Tensor* t : tensors()) {
    if (!t->dtype().is_float()) continue;
    const bool wanted = t->requires_grad();
    *t = t->detach().to(dtype);
    if (wanted) t->requires_grad_();
  }
}

std::string model_summary(Module& module) {
  const StateDict state = module.state_dict();
  std::string::size_type width = std::string("total").size();
  for (const NamedTensor& named : state) width = std::max(width, named.name.size());
  const auto padded = [&](std::string name) {  // the table aligns on the right
    name.resize(width, ' ');
    return name;
  };
  std::set<const Tensor*> seen;
  std::vector<std::vector<std::string>> rows;
  int64_t elements = 0, bytes = 0, trained = 0;
  for (const NamedTensor& named : state) {
    const Tensor& t = *named.tensor;
    const int64_t size = t.numel() * t.dtype().size();
    const bool is_new = seen.insert(&t).second, wants = t.requires_grad();
    rows.push_back({padded(named.name), to_text(t.shape()), cat(t.dtype()), cat(t.numel()),
                    cat(size), is_new ? wants ? "yes" : "no" : "shared"});
    if (!is_new) continue;
    elements += t.numel();
    bytes += size;
    if (wants) trained += t.numel();
  }
  rows.push_back({padded("total"), "", "", cat(elements), cat(bytes), cat(trained)});
  return to_table({padded("name"), "shape", "dtype", "elements", "bytes", "gradient"}, rows);
}

// --- Products ------------------------------------------------------------------------------------

namespace {

thread_local std::vector<Product>* found_products = nullptr;

}  // namespace

// state() is the walk over a model's parts that every module has.
std::vector<Product> products_of(Module& module) {
  std::vector<Product> out;
  const auto before = std::exchange(found_products, &out);
  module.state_dict();
  found_products = before;
  return out;
}

void state_of_product(StateDict& out, const std::string& prefix, const Product& product) {
  if (found_products) {
    found_products->push_back(product);
    found_products->back().name = prefix.substr(0, prefix.size() - prefix.ends_with('.'));
  }
  if (*product.adapter) (*product.adapter)->state(out, prefix);
}

// --- Layers --------------------------------------------------------------------------------------

Linear::Linear(int64_t in, int64_t out, bool has_bias, DType dtype)
    : weight(uniform_parameter({out, in}, in, dtype)) {
  if (has_bias) bias = uniform_parameter({out}, in, dtype);
}

Tensor Linear::forward(const Tensor& x) {
  const Tensor y = x.linear(weight, bias);
  return adapter ? adapter->add_to(y, x) : y;
}

void Linear::state(StateDict& out, const std::string& prefix) {
  add(out, prefix + "weight", weight);
  add(out, prefix + "bias", bias);
  state_of_product(out, prefix, {"", &weight, /*input_first=*/false, &adapter});
}

Conv2d::Conv2d(int64_t in, int64_t out, const PerAxis& kernel, const ConvOptions& conv_options,
               bool has_bias, DType dtype)
    : options(conv_options) {
  check(options.groups >= 1 && in % options.groups == 0 && out % options.groups == 0,
        "Conv2d: ", in, " channels to ", out, " in ", options.groups,
        " groups: both must be multiples");
  const Shape size = kernel.of("Conv2d", "kernel", 2, 1);
  const int64_t fan_in = numel(Shape{in / options.groups, size[0], size[1]});
  weight = uniform_parameter({out, in / options.groups, size[0], size[1]}, fan_in, dtype);
  if (has_bias) bias = uniform_parameter({out}, fan_in, dtype);
}

Tensor Conv2d::forward(const Tensor& x) { return conv2d(x, weight, bias, options); }

void Conv2d::state(StateDict& out, const std::string& prefix) {
  add(out, prefix + "weight", weight);
  add(out, prefix + "bias", bias);
}

void dirac_(Tensor& weight, int64_t channels) {
  check(weight.rank() > 2 && channels >= 0 && channels <= std::min(weight.size(0), weight.size(1)),
        "dirac_: ", channels, " channels of a weight ", to_text(weight.shape()));
  Shape point(weight.rank(), 1);
  point[0] = channels;
  point[1] = weight.size(1);
  std::vector<Padding> pads(2);
  for (int i = 2; i < weight.rank(); ++i) {
    check(weight.size(i) % 2 == 1, "dirac_: a kernel of even size: ", to_text(weight.shape()));
    pads.push_back({weight.size(i) / 2, weight.size(i) / 2});
  }
  const Tensor same =
      Tensor::eye(channels, weight.size(1), weight.dtype()).reshape(point).pad(pads);
  const Tensor rest = weight.detach().narrow(0, channels, weight.size(0) - channels);
  const bool wanted = weight.requires_grad();
  weight = Tensor::cat({same, rest}).contiguous();
  if (wanted) weight.requires_grad_();
}

BatchNorm2d::BatchNorm2d(int64_t channels, double eps_, double momentum_, DType dtype)
    : weight(constant_parameter({channels}, 1, dtype)),
      bias(constant_parameter({channels}, 0, dtype)),
      running_mean(constant_state({channels}, 0, dtype)),
      running_var(constant_state({channels}, 1, dtype)),
      eps(eps_),
      momentum(momentum_) {}

Tensor BatchNorm2d::forward(const Tensor& x) {
  const BatchNormOptions options{is_training(), momentum, eps, groups};
  // Statistics of an earlier batch that nobody asked for: without this the graph grew for ever.
  if (options.training && is_assigned(running_mean)) {
    Tensor* const both[] = {&running_mean, &running_var};
    Tensor::realize(both);
  }
  const BatchNormResult r = batch_norm(x, weight, bias, running_mean, running_var, options);
  if (options.training) {
    running_mean.assign(r.running_mean);
    running_var.assign(r.running_var);
  }
  return r.y;
}

void BatchNorm2d::state(StateDict& out, const std::string& prefix) {
  add(out, prefix + "weight", weight);
  add(out, prefix + "bias", bias);
  add(out, prefix + "running_mean", running_mean);
  add(out, prefix + "running_var", running_var);
}

FrozenBatchNorm2d::FrozenBatchNorm2d(int64_t channels, double eps_, DType dtype)
    : weight(constant_state({channels}, 1, dtype)),
      bias(constant_state({channels}, 0, dtype)),
      running_mean(constant_state({channels}, 0, dtype)),
      running_var(constant_state({channels}, 1, dtype)),
      eps(eps_) {}

Tensor FrozenBatchNorm2d::forward(const Tensor& x) {
  return batch_norm(x, weight, bias, running_mean, running_var, {.eps = eps}).y;
}

void FrozenBatchNorm2d::state(StateDict& out, const std::string& prefix) {
  add(out, prefix + "weight", weight);
  add(out, prefix + "bias", bias);
  add(out, prefix + "running_mean", running_mean);
  add(out, prefix + "running_var", running_var);
}

LayerNorm::LayerNorm(const Shape& shape, double eps_, DType dtype)
    : normalized_shape(shape),
      weight(constant_parameter(shape, 1, dtype)),
      bias(constant_parameter(shape, 0, dtype)),
      eps(eps_) {}

Tensor LayerNorm::forward(const Tensor& x) {
  return layer_norm(x, normalized_shape, weight, bias, eps);
}

void LayerNorm::state(StateDict& out, const std::string& prefix) {
  add(out, prefix + "weight", weight);
  add(out, prefix + "bias", bias);
}

RMSNorm::RMSNorm(const Shape& shape, double eps_, DType dtype)
    : normalized_shape(shape), weight(constant_parameter(shape, 1, dtype)), eps(eps_) {}

Tensor RMSNorm::forward(const Tensor& x) { return rms_norm(x, normalized_shape, weight, eps); }

void RMSNorm::state(StateDict& out, const std::string& prefix) {
  add(out, prefix + "weight", weight);
}

GroupNorm::GroupNorm(int64_t groups, int64_t channels, double eps_, DType dtype)
    : num_groups(groups),
      weight(constant_parameter({channels}, 1, dtype)),
      bias(constant_parameter({channels}, 0, dtype)),
      eps(eps_) {
  check(groups >= 1 && channels % groups == 0, "GroupNorm: ", channels, " channels in ", groups,
        " groups: they must be a multiple");
}

Tensor GroupNorm::forward(const Tensor& x) { return group_norm(x, num_groups, weight, bias, eps); }

void GroupNorm::state(StateDict& out, const std::string& prefix) {
  add(out, prefix + "weight", weight);
  add(out, prefix + "bias", bias);
}

MultiheadAttention::MultiheadAttention(int64_t embed_dim, int64_t heads,
                                       const MultiheadAttentionOptions& given, DType dtype)
    : num_heads(heads),
      in_proj_weight(Tensor::glorot_uniform({3 * embed_dim, embed_dim}, dtype).requires_grad_()),
      out_proj(embed_dim, embed_dim, given.has_bias, dtype),
      options(given) {
  check(heads >= 1 && embed_dim % heads == 0, "MultiheadAttention: ", embed_dim, " elements in ",
        heads, " heads: they must be a multiple");
  check(options.dropout >= 0 && options.dropout <= 1, "MultiheadAttention: dropout ",
        options.dropout, " is no probability");
  if (!options.has_bias) return;
  in_proj_bias = constant_parameter({3 * embed_dim}, 0, dtype);
  out_proj.bias = constant_parameter({embed_dim}, 0, dtype);
}

Tensor MultiheadAttention::forward(const Tensor& query, const Tensor& key, const Tensor& value,
                                   const AttentionOptions& attention) {
  const int64_t size = in_proj_weight.size(1);
  // Part i of the product, (N, heads, L, size / heads).
  const auto heads = [&](const Tensor& given, int64_t i) {
    check(given.rank() == 3, "MultiheadAttention: takes three axes and not ",
          to_text(given.capacity()));
    const Tensor x = options.batch_first ? given : given.transpose(0, 1);
    const Tensor bias = options.has_bias ? in_proj_bias.narrow(0, i * size, size) : Tensor();
    const Tensor y = x.linear(in_proj_weight.narrow(0, i * size, size), bias);
    return y.unflatten(-1, {num_heads, -1}).transpose(1, 2);
  };
  const Tensor q = heads(query, 0), k = heads(key, 1), v = heads(value, 2);
  AttentionOptions taken = attention;
  if (is_training()) taken.dropout_p = options.dropout;
  const Tensor y = scaled_dot_product_attention(q, k, v, taken);
  const Tensor out = out_proj.forward(y.transpose(1, 2).flatten(2));
  return options.batch_first ? out : out.transpose(0, 1);
}

void MultiheadAttention::state(StateDict& out, const std::string& prefix) {
  add(out, prefix + "in_proj_weight", in_proj_weight);
  add(out, prefix + "in_proj_bias", in_proj_bias);
  out_proj.state(out, prefix + "out_proj.");
}

Embedding::Embedding(int64_t count, int64_t size, std::optional<int64_t> padding, DType dtype)
    : weight(Tensor::randn({count, size}, dtype)), padding_idx(padding) {
  if (padding_idx) {
    check(*padding_idx >= -count && *padding_idx < count, "Embedding: padding_idx ", *padding_idx,
          " is no row of ", count);
    const int64_t row = *padding_idx < 0 ? *padding_idx + count : *padding_idx;
    weight = where(Tensor::arange(count).unsqueeze(1) == row, 0, weight);
  }
  weight.requires_grad_();
}

Tensor Embedding::forward(const Tensor& index) { return weight.embedding(index, padding_idx); }

void Embedding::state(StateDict& out, const std::string& prefix) {
  add(out, prefix + "weight", weight);
}

Dropout::Dropout(double p_) : p(p_) {
  check(p >= 0 && p <= 1, "Dropout: ", p, " is no probability");
}

Tensor Dropout::forward(const Tensor& x) { return dropout(x, p, is_training()); }

// --- Recurrent layers ----------------------------------------------------------------------------

RecurrentLayer::RecurrentLayer(int64_t gates, int64_t in, int64_t hidden,
                               const RecurrentLayerOptions& given, DType dtype)
    : options(given) {
  check(in >= 1 && hidden >= 1 && options.layers >= 1, "recurrent layers: ", options.layers,
        " layers of ", hidden, " elements for an input of ", in);
  check(options.dropout >= 0 && options.dropout <= 1, "recurrent layers: dropout ", options.dropout,
        " is no probability");
  const int64_t directions = options.bidirectional ? 2 : 1;
  const int64_t rows = checked_mul("recurrent layers", gates, hidden);
  checked_mul("recurrent layers", directions, options.layers);
  for (int64_t i = 0; i < options.layers * directions; ++i) {
    const int64_t inputs = i < directions ? in : directions * hidden;
    const auto parameter = [&](const Shape& shape) {
      return uniform_parameter(shape, hidden, dtype);
    };
    CellWeights w{parameter({rows, inputs}), parameter({rows, hidden})};
    if (options.has_bias) {
      w.b_ih = parameter({rows});
      w.b_hh = parameter({rows});
    }
    weights.push_back(std::move(w));
  }
}

void RecurrentLayer::state(StateDict& out, const std::string& prefix) {
  const size_t directions = options.bidirectional ? 2 : 1;
  for (size_t i = 0; i < weights.size(); ++i) {
    const std::string end = cat("_l", i / directions, i % directions ? "_reverse" : "");
    add(out, prefix + "weight_ih" + end, weights[i].w_ih);
    add(out, prefix + "weight_hh" + end, weights[i].w_hh);
    add(out, prefix + "bias_ih" + end, weights[i].b_ih);
    add(out, prefix + "bias_hh" + end, weights[i].b_hh);
  }
}

RecurrentOptions RecurrentLayer::run_options() const {
  return {options.batch_first, options.bidirectional, options.dropout, is_training()};
}

LSTM::LSTM(int64_t in, int64_t hidden, const RecurrentLayerOptions& given, DType dtype)
    : RecurrentLayer(4, in, hidden, given, dtype) {}

LstmResult LSTM::run(const Tensor& x, const LstmState& initial) {
  return lstm(x, initial, weights, run_options());
}

GRU::GRU(int64_t in, int64_t hidden, const RecurrentLayerOptions& given, DType dtype)
    : RecurrentLayer(3, in, hidden, given, dtype) {}

GruResult GRU::run(const Tensor& x, const Tensor& initial) {
  return gru(x, initial, weights, run_options());
}

// --- Sequential ----------------------------------------------------------------------------------

Tensor Sequential::forward(const Tensor& x) {
  Tensor y = x;
  for (const auto& part : parts_) y = part->forward(y);
  return y;
}

Children Sequential::children() {
  Children out;
  for (size_t i = 0; i < parts_.size(); ++i) out.push_back({cat(i), parts_[i].get()});
  return out;
}

}  // namespace tiny::nn

namespace tiny {

// --- Fully sharded -------------------------------------------------------------------------------

namespace {

int axis_to_cut(const Tensor& t, int64_t parts) {
  if (t.size(0) >= parts) return 0;
  const Ints shape = t.shape();
  return static_cast<int>(std::ranges::max_element(shape) - shape.begin());
}

}  // namespace

void fully_shard(const std::vector<Tensor*>& tensors, const std::vector<std::string>& devices,
                 const FullyShardOptions& options) {
  for (Tensor* t : tensors) {
    check(t->numel() > 0, "fully_shard: a tensor of shape ", to_text(t->shape()),
          " has no elements");
    const LabelScope label("fully_shard");
    const Tensor whole = t->detach().shard(devices);  // says what is wrong with the devices
    const bool is_cut = devices.size() > 1 && t->rank() > 0 && t->numel() >= options.least;
    const bool wanted = t->requires_grad();
    const int axis = is_cut ? axis_to_cut(*t, static_cast<int64_t>(devices.size())) : -1;
    if (is_cut)  // the part of its own device is memory of its own too
      *t = Tensor(build::shard(t->detach().node(), whole.node()->device, axis, true)).contiguous();
    else
      *t = whole;
    t->realize();
    if (wanted) t->requires_grad_();
  }
}

void fully_shard(nn::Module& module, const std::vector<std::string>& devices,
                 const FullyShardOptions& options) {
  std::vector<Tensor*> tensors;
  for (Tensor* t : module.tensors())
    if (!contains(tensors, t)) tensors.push_back(t);
  fully_shard(tensors, devices, options);
}

}  // namespace tiny
