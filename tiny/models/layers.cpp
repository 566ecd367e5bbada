#include "tiny/models/layers.h"

#include <cmath>
#include <limits>

#include "tiny/nn/functional.h"

namespace tiny::models {

namespace {

// Attention step by step, whose scores are rounded as in transformers' own. mask: added to scores.
Tensor eager_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                       const AttentionOptions& o) {
  const int64_t group = q.size(1) / k.size(1);
  const Tensor keys = k.repeat_interleave(group, 1), values = v.repeat_interleave(group, 1);
  Tensor scores = (q.matmul(keys.transpose(-1, -2)) * *o.scale).to(kF32);
  if (o.mask.defined()) scores = scores + o.mask;
  const Tensor weights = dropout(scores.softmax(-1), o.dropout_p).to(q.dtype()).contiguous();
  return weights.matmul(values);
}

// Rounds before its weight does, as in transformers.
class RoundedRMSNorm : public nn::RMSNorm {
 public:
  using RMSNorm::RMSNorm;
  Tensor forward(const Tensor& x) override {
    return rms_norm(x, normalized_shape, Tensor(), eps) * weight;
  }
};

// What is added to scores: 0, or the lowest number for keys that are not seen. A query that sees no
// key, which is padding, then sees all of them alike, as in transformers' own attention: its result
// counts in the loss where the first token after it is predicted.
Tensor score_mask(const Tensor& seen) {
  return where(seen, 0.0, static_cast<double>(std::numeric_limits<float>::lowest()));
}

}  // namespace

Tensor zero_parameter(const Shape& shape) { return Tensor::zeros(shape).requires_grad_(); }

void add_tensor(StateDict& out, const std::string& name, Tensor& t) {
  if (t.defined()) out.push_back({name, &t});
}

Tensor activate(const Tensor& x, Activation activation) {
  switch (activation) {
    case Activation::Gelu: return x.gelu();
    case Activation::GeluTanh: return x.gelu(true);
    case Activation::QuickGelu: return x * (x * 1.702).sigmoid();
    case Activation::Relu: return x.relu();
    case Activation::SquaredRelu: return x.relu().square();
    case Activation::Silu: return x.silu();
    case Activation::Tanh: return x.tanh();
    case Activation::Sigmoid: return x.sigmoid();
  }
  throw Bug("activate: no such activation");
}

std::unique_ptr<nn::Module> make_norm(const ModelConfig& config, int64_t width) {
  if (config.norm == NormKind::Layer)
    return std::make_unique<nn::LayerNorm>(width, config.norm_eps);
  return std::make_unique<RoundedRMSNorm>(width, config.norm_eps);
}

// --- Products ------------------------------------------------------------------------------------

Projection::Projection(int64_t in, int64_t out, bool has_bias, bool input_first)
    : weight(zero_parameter(input_first ? Shape{in, out} : Shape{out, in})),
      input_first_(input_first) {
  if (has_bias) bias = zero_parameter({out});
}

Tensor Projection::operator()(const Tensor& x) const {
  const QuantizedWeight* form = quantized_.of(weight);
  const Tensor y =
      form ? form->linear(x, bias) : x.linear(input_first_ ? weight.t() : weight, bias);
  return adapter_ ? adapter_->add_to(y, x) : y;
}

void Projection::places(QuantizedPlaces& out) {
  if (weight.defined() && !input_first_) out[&weight] = &quantized_;
}

void Projection::state(StateDict& out, const std::string& prefix) {
  add_tensor(out, prefix + "weight", weight);
  add_tensor(out, prefix + "bias", bias);
  if (weight.defined()) nn::state_of_product(out, prefix, {"", &weight, input_first_, &adapter_});
}

// --- Attention -----------------------------------------------------------------------------------

Attention::Attention(const ModelConfig& c, const TensorNames& names, size_t layer)
    : config_(c), names_(names), layer_(layer) {
  const int64_t q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
  if (c.fused_qkv) {
    products_.qkv = Projection(c.hidden, q + 2 * kv, c.qkv_bias, c.input_first);
  } else {
    products_.q = Projection(c.hidden, q, c.qkv_bias, c.input_first);
    products_.k = Projection(c.hidden, kv, c.qkv_bias, c.input_first);
    products_.v = Projection(c.hidden, kv, c.qkv_bias, c.input_first);
  }
  products_.out = Projection(q, c.hidden, c.out_bias, c.input_first);
  if (c.qk_norm != QkNorm::Head && c.qk_norm != QkNorm::Row) return;
  const bool each = c.qk_norm == QkNorm::Head;
  q_norm_ = std::make_unique<RoundedRMSNorm>(each ? c.head_dim : q, c.norm_eps);
  k_norm_ = std::make_unique<RoundedRMSNorm>(each ? c.head_dim : kv, c.norm_eps);
}

// (B, L, count head_dim) to (B, count, L, head_dim)
Tensor Attention::split(const Tensor& x, int64_t count) const {
  return x.unflatten(-1, {count, config_.head_dim}).transpose(1, 2);
}

Attention::Heads Attention::heads(const Tensor& x) const {
  const ModelConfig& c = config_;
  Heads h;
  if (c.fused_qkv) {
    const int64_t q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
    const std::vector<Tensor> parts = products_.qkv(x).split({q, kv, kv}, -1);
    h = {parts[0], parts[1], parts[2]};
  } else {
    h = {products_.q(x), products_.k(x), products_.v(x)};
  }
  if (c.qk_norm == QkNorm::Row) {
    h.q = q_norm_->forward(h.q);
    h.k = k_norm_->forward(h.k);
  }
  if (c.clip_qkv)
    for (Tensor* t : {&h.q, &h.k, &h.v}) *t = t->clamp(-*c.clip_qkv, *c.clip_qkv);
  h = {split(h.q, c.heads), split(h.k, c.kv_heads), split(h.v, c.kv_heads)};
  if (c.qk_norm == QkNorm::Head) {
    h.q = q_norm_->forward(h.q);
    h.k = k_norm_->forward(h.k);
  }
  return h;
}

// Gives queries and keys their positions.
void Attention::rotate(Heads& h, const Context& context) const {
  const ModelConfig& c = config_;
  const bool rotated = c.rope && c.layers[layer_].rope;
  if (rotated) {
    h.q = apply_rope(h.q, context.rope, *c.rope);
    h.k = apply_rope(h.k, context.rope, *c.rope);
  }
  if (rotated && c.qk_norm == QkNorm::HeadAfterRope) {
    h.q = rms_norm(h.q, {c.head_dim}, Tensor(), c.norm_eps);
    h.k = rms_norm(h.k, {c.head_dim}, Tensor(), c.norm_eps);
  }
  if (rotated || !c.temperature) return;
  const Tensor steps = ((context.columns.to(kF32) + 1) / c.temperature->floor).floor();
  const Tensor temperature = (steps + 1).log() * c.temperature->scale + 1;
  const Shape shape{-1, 1, temperature.size(-1), 1};
  h.q = (h.q * temperature.reshape(shape)).to(h.q.dtype());
}

bool Attention::is_eager() const { return config_.eager_attention; }

// Bool (B, 1, L, S), where something else than the order of positions decides; else not defined.
Tensor Attention::allowed(const Context& context) const {
  const LayerConfig& layer = config_.layers[layer_];
  const bool plain = !layer.window && !layer.chunk && !context.valid.defined() && !context.step;
  if (plain && !is_eager()) return Tensor();
  const Tensor query = context.queries.unsqueeze(-1), key = context.keys.unsqueeze(0);  // (L, S)
  Tensor seen = config_.causal ? key <= query : Tensor();
  const auto also = [&](const Tensor& mask) {
    seen = seen.defined() ? logical_and(seen, mask) : mask;
  };
  if (layer.window) also(key > query - *layer.window);
  if (layer.chunk) {
    const auto chunk = [&](const Tensor& at) {
      const Tensor left =
          context.padding.defined() ? context.padding.reshape({-1, 1, 1, 1}) : Tensor(int64_t{0});
      return floor_div(at - left, *layer.chunk);
    };
    also(chunk(key) == chunk(query));
  }
  if (context.valid.defined()) also(context.valid.unsqueeze(1).unsqueeze(1));
  return seen;
}

Tensor Attention::attend(const Heads& h, const Context& context) const {
  const ModelConfig& c = config_;
  AttentionOptions options;
  options.enable_gqa = c.heads != c.kv_heads;
  options.scale = c.scale_attention ? 1 / std::sqrt(static_cast<double>(c.head_dim)) : 1;
  if (c.scale_attention_by_layer) *options.scale /= static_cast<double>(layer_ + 1);
  const Tensor seen = allowed(context);
  options.is_causal = c.causal && !seen.defined();
  if (seen.defined()) options.mask = score_mask(seen);
  if (nn::is_training()) options.dropout_p = c.dropout.attention;
  return is_eager() ? eager_attention(h.q, h.k, h.v, options)
                    : scaled_dot_product_attention(h.q, h.k, h.v, options);
}

Tensor Attention::forward(const Tensor& x, const Context& context, LayerCache* cache) const {
  Heads h = heads(x);
  rotate(h, context);
  if (cache) {
    const CacheStep& step = *context.step;
    cache->keys.assign({Slice{}, Slice{}, step.at}, h.k);
    cache->values.assign({Slice{}, Slice{}, step.at}, h.v);
    h.k = cache->keys.narrow(2, 0, step.length);
    h.v = cache->values.narrow(2, 0, step.length);
  }
  return products_.out(attend(h, context).transpose(1, 2).flatten(2));
}

void Attention::state(StateDict& out, const std::string& prefix) {
  if (config_.fused_qkv) {
    products_.qkv.state(out, prefix + names_.qkv);
  } else {
    products_.q.state(out, prefix + names_.q);
    products_.k.state(out, prefix + names_.k);
    products_.v.state(out, prefix + names_.v);
  }
  products_.out.state(out, prefix + names_.out);
  if (q_norm_) q_norm_->state(out, prefix + names_.q_norm);
  if (k_norm_) k_norm_->state(out, prefix + names_.k_norm);
}

void Attention::places(QuantizedPlaces& out) {
  for (Projection* p : {&products_.q, &products_.k, &products_.v, &products_.qkv, &products_.out})
    p->places(out);
}

// --- Feed-forward parts --------------------------------------------------------------------------

FeedForward::FeedForward(const ModelConfig& c, const TensorNames& names, int64_t width)
    : activation_(c.activation),
      names_(names),
      up_(c.hidden, width, c.ffn_bias, c.input_first),
      down_(width, c.hidden, c.ffn_bias, c.input_first) {
  if (c.gated) gate_ = Projection(c.hidden, width, c.ffn_bias, c.input_first);
}

Tensor FeedForward::forward(const Tensor& x) const {
  if (!gate_.weight.defined()) return down_(activate(up_(x), activation_));
  return down_(activate(gate_(x), activation_) * up_(x));
}

void FeedForward::state(StateDict& out, const std::string& prefix) {
  if (gate_.weight.defined()) gate_.state(out, prefix + names_.gate);
  up_.state(out, prefix + names_.up);
  down_.state(out, prefix + names_.down);
}

void FeedForward::places(QuantizedPlaces& out) {
  for (Projection* p : {&gate_, &up_, &down_}) p->places(out);
}

Experts::Experts(const ModelConfig& c, const TensorNames& names, int64_t width)
    : config_(c), names_(names), router_(c.hidden, c.experts.count, false, false) {
  const int64_t n = c.experts.count;
  const bool in = c.experts.input_first;
  gate_up_ = zero_parameter(in ? Shape{n, c.hidden, 2 * width} : Shape{n, 2 * width, c.hidden});
  down_ = zero_parameter(in ? Shape{n, width, c.hidden} : Shape{n, c.hidden, width});
  if (c.experts.shared_ffn > 0)
    shared_ = std::make_unique<FeedForward>(c, names, c.experts.shared_ffn);
}

Experts::Routes Experts::route(const Tensor& tokens) const {
  const ExpertsConfig& e = config_.experts;
  const Tensor scores = router_(tokens).to(kF32);
  if (e.routing == Routing::SigmoidOfInput) {
    const WithIndices best = scores.topk(e.active);
    return {best.indices, best.values.sigmoid().to(tokens.dtype())};
  }
  const WithIndices best = scores.softmax(-1).topk(e.active);
  const Tensor weights = e.renormalize ? best.values / best.values.sum(-1, true) : best.values;
  return {best.indices, weights.to(tokens.dtype())};
}

// x (experts, T, hidden) through one expert each.
Tensor Experts::run(const Tensor& x, const Tensor& gate_up, const Tensor& down) const {
  const bool in = config_.experts.input_first;
  const auto product = [&](const Tensor& a, const Tensor& w) {
    return a.matmul(in ? w : w.transpose(1, 2));
  };
  const std::vector<Tensor> both = product(x, gate_up).chunk(2, -1);
  return product(activate(both[0], config_.activation) * both[1], down);
}

// Every expert works on every token, and a weight of 0 drops what was not asked for.
Tensor Experts::all_experts(const Tensor& tokens, const Routes& routes) const {
  const Tensor chosen = routes.experts.one_hot(config_.experts.count).to(tokens.dtype());
  const Tensor weights =
      (chosen * routes.weights.unsqueeze(-1)).sum(1).t().unsqueeze(-1);  // (experts, T, 1)
  const Tensor x = tokens.unsqueeze(0);
  if (config_.experts.routing == Routing::SigmoidOfInput)
    return run(x * weights, gate_up_, down_).sum(0);
  const Shape all{config_.experts.count, tokens.size(0), tokens.size(1)};
  return (run(x.expand(all), gate_up_, down_) * weights).sum(0);
}

// The weights of the experts that were chosen are looked up: for a few tokens.
Tensor Experts::few_experts(const Tensor& tokens, const Routes& routes) const {
  const int64_t count = tokens.size(0), active = config_.experts.active;
  const Tensor at = routes.experts.flatten();
  Tensor x = tokens.unsqueeze(1)
                 .expand({count, active, tokens.size(1)})
                 .reshape({count * active, 1, tokens.size(1)});
  const Tensor weights = routes.weights.reshape({count * active, 1, 1});
  const bool first = config_.experts.routing == Routing::SigmoidOfInput;
  if (first) x = x * weights;
  const Tensor y = run(x, gate_up_.index_select(0, at), down_.index_select(0, at));
  return (first ? y : y * weights).reshape({count, active, -1}).sum(1);
}

Tensor Experts::forward(const Tensor& x) const {
  const Tensor tokens = x.flatten(0, 1);
  const Routes routes = route(tokens);
  const bool few = tokens.size(0) * config_.experts.active < config_.experts.count;
  Tensor y = few ? few_experts(tokens, routes) : all_experts(tokens, routes);
  if (shared_) y = shared_->forward(tokens) + y;
  return y.reshape(to_shape(x.shape()));
}

void Experts::state(StateDict& out, const std::string& prefix) {
  router_.state(out, prefix + names_.router);
  add_tensor(out, cat(prefix, names_.experts, "gate_up_proj"), gate_up_);
  add_tensor(out, cat(prefix, names_.experts, "down_proj"), down_);
  if (shared_) shared_->state(out, prefix + names_.shared);
}

void Experts::places(QuantizedPlaces& out) {
  if (shared_) shared_->places(out);
}

// --- A layer -------------------------------------------------------------------------------------

Block::Block(const ModelConfig& c, const TensorNames& names, size_t layer)
    : config_(c),
      names_(names),
      attention_(c, names, layer),
      attention_norm_(make_norm(c, c.hidden)),
      ffn_norm_(make_norm(c, c.hidden)) {
  const LayerConfig& l = c.layers[layer];
  if (l.experts)
    experts_ = std::make_unique<Experts>(c, names, l.ffn);
  else
    ffn_ = std::make_unique<FeedForward>(c, names, l.ffn);
}

Tensor Block::feed(const Tensor& x) const {
  return experts_ ? experts_->forward(x) : ffn_->forward(x);
}

Tensor Block::forward(const Tensor& x, const Context& context, LayerCache* cache) const {
  const auto drop = [&](const Tensor& t) {
    return dropout(t, config_.dropout.residual, nn::is_training());
  };
  if (config_.norm_first) {
    const Tensor y = x + drop(attention_.forward(attention_norm_->forward(x), context, cache));
    return y + drop(feed(ffn_norm_->forward(y)));
  }
  const Tensor y = attention_norm_->forward(x + drop(attention_.forward(x, context, cache)));
  return ffn_norm_->forward(y + drop(feed(y)));
}

void Block::places(QuantizedPlaces& out) {
  attention_.places(out);
  if (ffn_) ffn_->places(out);
  if (experts_) experts_->places(out);
}

void Block::state(StateDict& out, const std::string& prefix) {
  attention_.state(out, prefix);
  attention_norm_->state(out, prefix + names_.attention_norm);
  ffn_norm_->state(out, prefix + names_.ffn_norm);
  if (ffn_) ffn_->state(out, prefix + names_.ffn);
  if (experts_) experts_->state(out, prefix);
}

}  // namespace tiny::models
