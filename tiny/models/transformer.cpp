#include "tiny/models/transformer.h"

#include "tiny/nn/functional.h"

namespace tiny::models {

namespace {

// (B, L) of anything but 0 as bool.
Tensor as_mask(const Tensor& mask) { return mask.dtype().is_bool() ? mask : mask != 0; }

}  // namespace

Transformer::Transformer(const ModelConfig& config)
    : config_(std::make_shared<const ModelConfig>(config)) {
  const ModelConfig& c = *config_;
  const TensorNames& names = find_architecture(c.type).names;
  if (c.rope) rotary_ = std::make_unique<RotaryEmbedding>(*c.rope);
  embeddings_.tokens = zero_parameter({c.vocab, c.hidden});
  if (c.learned_positions) embeddings_.positions = zero_parameter({c.max_positions, c.hidden});
  if (c.token_types > 0) embeddings_.token_types = zero_parameter({c.token_types, c.hidden});
  if (names.embedding_norm) embeddings_.norm = make_norm(c, c.hidden);
  for (size_t i = 0; i < c.layers.size(); ++i) blocks_.emplace_back(c, names, i);
  if (names.norm) norm_ = make_norm(c, c.hidden);
  const bool words = c.head == Head::Language || c.head == Head::MaskedLanguage;
  if (words && !c.tied) head_.weight = zero_parameter({c.vocab, c.hidden});
  if (c.head == Head::MaskedLanguage)
    masked_ =
        std::make_unique<MaskedHead>(MaskedHead{Projection(c.hidden, c.hidden, true, false),
                                                make_norm(c, c.hidden), zero_parameter({c.vocab})});
  if (c.head == Head::Classifier)
    classifier_ = std::make_unique<ClassifierHead>(ClassifierHead{
        Projection(c.hidden, c.hidden, true, false), Projection(c.hidden, c.labels, true, false)});
}

void Transformer::state(StateDict& out, const std::string& prefix) {
  const TensorNames& n = find_architecture(config_->type).names;
  add_tensor(out, prefix + n.tokens, embeddings_.tokens);
  if (n.positions) add_tensor(out, prefix + n.positions, embeddings_.positions);
  if (n.token_types) add_tensor(out, prefix + n.token_types, embeddings_.token_types);
  if (n.embedding_norm) embeddings_.norm->state(out, prefix + n.embedding_norm);
  for (size_t i = 0; i < blocks_.size(); ++i) blocks_[i].state(out, cat(prefix, n.layers, i, "."));
  if (norm_) norm_->state(out, prefix + n.norm);
  if (masked_) {
    masked_->dense.state(out, prefix + n.head_dense);
    masked_->norm->state(out, prefix + n.head_norm);
    add_tensor(out, prefix + n.head_bias, masked_->bias);
  }
  if (classifier_) {
    classifier_->pooler.state(out, prefix + n.pooler);
    classifier_->classifier.state(out, prefix + n.classifier);
  }
  if (head_.weight.defined()) add_tensor(out, cat(prefix, n.head, "weight"), head_.weight);
}

void Transformer::to(DType dtype) {
  nn::Module::to(dtype);
  if (rotary_) rotary_->round_to(dtype);
}

void Transformer::initialize() {
  for (const NamedTensor& named : state_dict()) {
    Tensor& t = *named.tensor;
    if (t.rank() < 2) continue;
    const DType dtype = t.dtype();
    t = Tensor::normal(to_shape(t.shape()), 0, config_->init_deviation).to(dtype);
    t.realize().requires_grad_();
  }
}

void Transformer::check_inputs(const Inputs& in) const {
  check(in.ids.rank() == 2 && in.ids.dtype().is_int(), config_->type,
        ": token ids are integers (batch, length) and not ", in.ids.dtype(), " ",
        to_text(in.ids.shape()));
  for (const Tensor* t : {&in.mask, &in.token_types})
    check(!t->defined() || same(t->shape(), in.ids.shape()), config_->type,
          ": a mask or token types of shape ", to_text(t->defined() ? t->shape() : in.ids.shape()),
          " for ids of shape ", to_text(in.ids.shape()));
  check(!config_->learned_positions || in.ids.size(1) <= config_->max_positions, config_->type,
        ": ", in.ids.size(1), " tokens, and there are ", config_->max_positions, " positions");
}

Tensor Transformer::embed(const Inputs& in, const Tensor& positions) const {
  const QuantizedWeight* form = embeddings_.quantized.of(embeddings_.tokens);
  Tensor x = form ? form->rows(in.ids).to(embeddings_.tokens.dtype())
                  : embeddings_.tokens.embedding(in.ids);
  if (embeddings_.token_types.defined())
    x = x + (in.token_types.defined() ? embeddings_.token_types.embedding(in.token_types)
                                      : embeddings_.token_types.narrow(0, 0, 1));
  if (embeddings_.positions.defined()) x = x + embeddings_.positions.embedding(positions);
  if (embeddings_.norm) x = embeddings_.norm->forward(x);
  return dropout(x, config_->dropout.embedding, nn::is_training());
}

Tensor Transformer::run(const Tensor& embedded, const Context& context,
                        std::vector<LayerCache>* caches) {
  Tensor x = embedded;
  for (size_t i = 0; i < blocks_.size(); ++i)
    x = blocks_[i].forward(x, context, caches ? &(*caches)[i] : nullptr);
  return norm_ ? norm_->forward(x) : x;
}

Tensor Transformer::classify(const Tensor& hidden) {
  const Tensor pooled = classifier_->pooler(hidden.select(1, 0)).tanh();
  return classifier_->classifier(dropout(pooled, config_->dropout.classifier, nn::is_training()));
}

Tensor Transformer::logits(const Tensor& hidden) {
  if (config_->head == Head::None) return hidden;
  return classifier_ ? classify(hidden) : head(before_head(hidden));
}

Tensor Transformer::before_head(const Tensor& hidden) {
  if (!masked_) return hidden;
  return masked_->norm->forward(activate(masked_->dense(hidden), config_->activation));
}

const QuantizedWeight* Transformer::quantized_head() const {
  return config_->tied ? embeddings_.quantized.of(embeddings_.tokens)
                       : head_.quantized.of(head_.weight);
}

Tensor Transformer::head(const Tensor& x) const {
  const Tensor bias = masked_ ? masked_->bias : Tensor();
  const QuantizedWeight* form = quantized_head();
  return form ? form->linear(x, bias) : x.linear(head_weight(), bias);
}

QuantizedPlaces Transformer::quantized_places() {
  QuantizedPlaces out;
  out[&embeddings_.tokens] = &embeddings_.quantized;
  for (Block& block : blocks_) block.places(out);
  if (head_.weight.defined()) out[&head_.weight] = &head_.quantized;
  return out;
}

// (B, 1, L, dims / 2), for all heads alike.
RopeTables Transformer::rope_tables(const Tensor& positions, const Tensor& length) {
  if (!rotary_) return {};
  rotary_->to(embeddings_.tokens.device());
  const RopeTables t = rotary_->tables(positions, length);
  return {t.cos.unsqueeze(1), t.sin.unsqueeze(1)};
}

Tensor Transformer::forward(const Inputs& in) { return logits(last_hidden(in)); }

Tensor Transformer::last_hidden(const Inputs& in) {
  LabelScope label("transformer");
  check_inputs(in);
  const Tensor columns = Tensor::arange(in.ids.size(1));
  const Tensor positions = in.positions.defined() ? in.positions : columns.unsqueeze(0);
  Context context;
  context.queries = context.keys = context.columns = columns;
  if (in.mask.defined()) {
    context.valid = as_mask(in.mask);
    const Tensor seen = context.valid.to(kI64).cumsum(1);
    context.padding = (seen == 0).to(kI64).sum(1);
  }
  context.rope = rope_tables(positions, Tensor());
  return run(embed(in, positions), context, nullptr);
}

Tensor Transformer::forward_cached(const CachedInputs& in, std::vector<LayerCache>& caches) {
  Context context;
  context.queries = in.step.at;
  context.keys = Tensor::arange(caches[0].keys.size(2)).narrow(0, 0, in.step.length);
  context.valid = context.keys.unsqueeze(0) >= in.padding.unsqueeze(1);
  context.padding = in.padding;
  context.columns = in.columns;
  context.step = &in.step;
  context.rope = rope_tables(in.positions, in.length);
  const Tensor x = run(embed(Inputs{in.ids}, in.positions), context, &caches);
  return logits(x.narrow(1, x.size(1) - 1, 1)).squeeze(1);
}

// In f32: a loss in bf16 would have two digits.
Tensor Transformer::loss(const Inputs& inputs, const Tensor& labels) {
  check(config_->head != Head::None, config_->type, ": a model without a head has no loss");
  if (config_->head == Head::Classifier) return cross_entropy(forward(inputs).to(kF32), labels);
  check(same(labels.shape(), inputs.ids.shape()), config_->type, ": labels of shape ",
        to_text(labels.shape()), " for ids of shape ", to_text(inputs.ids.shape()));
  Tensor x = before_head(last_hidden(inputs)), wanted = labels;
  if (config_->head != Head::MaskedLanguage) {
    const int64_t length = labels.size(1);
    check(length > 1, config_->type, ": a text of one token has no next one");
    x = x.narrow(1, 0, length - 1);
    wanted = wanted.narrow(1, 1, length - 1);
  }
  if (quantized_head()) return cross_entropy(head(x).to(kF32).flatten(0, 1), wanted.flatten());
  return linear_cross_entropy(x, head_weight(), wanted,
                              {.bias = masked_ ? masked_->bias : Tensor()});
}

}  // namespace tiny::models
