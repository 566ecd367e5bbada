#include "tiny/models/config/read_config.h"

#include <utility>

#include "tiny/ir/node.h"

namespace tiny::models {

namespace {

using Tokens = std::vector<int64_t>;

Activation read_activation(const Fields& f, const char* key, const std::string& without) {
  constexpr std::pair<const char*, Activation> kKnown[] = {
      {"gelu", Activation::Gelu},          {"gelu_python", Activation::Gelu},
      {"gelu_new", Activation::GeluTanh},  {"gelu_pytorch_tanh", Activation::GeluTanh},
      {"gelu_fast", Activation::GeluTanh}, {"quick_gelu", Activation::QuickGelu},
      {"relu", Activation::Relu},          {"relu2", Activation::SquaredRelu},
      {"silu", Activation::Silu},          {"swish", Activation::Silu},
      {"tanh", Activation::Tanh},          {"sigmoid", Activation::Sigmoid},
  };
  const std::string name = f.text({key}, without);
  std::string names;
  for (const auto& [known, activation] : kKnown) {
    if (name == known) return activation;
    names += cat(names.empty() ? "" : ", ", known);
  }
  f.unsupported(key, cat("only ", names));
}

// Ids of tokens; where the key is not there, the default, and where it is null, none.
Tokens read_tokens(const Fields& f, const char* key, Tokens without) {
  if (!f.has({key})) return f.is_null(key) ? Tokens{} : without;
  return f.integers({key});
}

std::optional<int64_t> read_token(const Fields& f, const char* key, Tokens without) {
  const Tokens ids = read_tokens(f, key, std::move(without));
  return ids.empty() ? std::nullopt : std::optional(ids[0]);
}

// The first of "architectures" decides what is on top of the layers; a file without it has what is
// most usual.
Head read_head(const Fields& f, std::initializer_list<std::pair<const char*, Head>> known) {
  const std::vector<std::string> names = f.texts({"architectures"});
  if (names.empty()) return known.begin()->second;
  std::string list;
  for (const auto& [name, head] : known) {
    if (names[0] == name) return head;
    list += cat(list.empty() ? "" : ", ", name);
  }
  f.unsupported("architectures", cat("only ", list));
}

void refuse_quantized(const Fields& f) {
  if (f.has({"quantization_config"}))
    f.unsupported("quantization_config", "only weights that are floats");
}

// --- Rotary positions ----------------------------------------------------------------------------

RopeKind read_rope_kind(const Fields& f) {
  constexpr std::pair<const char*, RopeKind> kKnown[] = {{"default", RopeKind::Default},
                                                         {"linear", RopeKind::Linear},
                                                         {"dynamic", RopeKind::Dynamic},
                                                         {"yarn", RopeKind::Yarn},
                                                         {"llama3", RopeKind::Llama3}};
  const std::string name = f.text({"rope_type", "type"}, "default");
  for (const auto& [known, kind] : kKnown)
    if (name == known) return kind;
  f.unsupported(f.has({"rope_type"}) ? "rope_type" : "type",
                "only default, linear, dynamic, yarn, llama3");
}

// What each kind has beside theta. `model`: the whole configuration.
void read_scaling(const Fields& f, const Fields& model, RopeConfig& r) {
  const bool trained = r.kind == RopeKind::Yarn || r.kind == RopeKind::Llama3;
  if (trained) {
    const int64_t without = f.integer({"original_max_position_embeddings"}, r.max_positions);
    r.original_positions = model.integer({"original_max_position_embeddings"}, without);
  }
  if (r.kind == RopeKind::Yarn) {
    r.factor = f.positive({"factor"}, static_cast<double>(r.max_positions) /
                                          static_cast<double>(r.original_positions));
    if (f.has({"attention_factor"})) r.attention_factor = f.positive({"attention_factor"}, 1);
    r.beta_fast = f.positive({"beta_fast"}, r.beta_fast);
    r.beta_slow = f.positive({"beta_slow"}, r.beta_slow);
    r.mscale = f.number({"mscale"}, 0);
    r.mscale_all_dim = f.number({"mscale_all_dim"}, 0);
    r.truncate = f.flag({"truncate"}, true);
    return;
  }
  r.factor = f.positive({"factor"}, {});
  if (r.kind != RopeKind::Llama3) return;
  r.low_freq_factor = f.positive({"low_freq_factor"}, {});
  r.high_freq_factor = f.positive({"high_freq_factor"}, {});
  if (r.high_freq_factor <= r.low_freq_factor)
    f.unsupported("high_freq_factor", cat("only above low_freq_factor, ", r.low_freq_factor));
}

// "rope_parameters" of transformers 5, "rope_theta" and "rope_scaling" of transformers 4.
RopeConfig read_rope(const Fields& model, int64_t head_dim, double theta, int64_t max_positions) {
  RopeConfig r;
  r.max_positions = max_positions;
  r.theta = model.positive({"rope_theta"}, theta);
  double part = model.positive({"partial_rotary_factor"}, 1);
  const char* key = model.has({"rope_parameters"}) ? "rope_parameters" : "rope_scaling";
  if (model.has({key})) {
    const Fields f = model.object({key});
    for (const char* nested : {"full_attention", "sliding_attention", "chunked_attention"})
      if (f.has({nested})) model.unsupported(key, "only one set for all layers");
    r.kind = read_rope_kind(f);
    r.theta = f.positive({"rope_theta"}, r.theta);
    part = f.positive({"partial_rotary_factor"}, part);
    if (r.kind != RopeKind::Default) read_scaling(f, model, r);
  }
  r.dims = static_cast<int64_t>(static_cast<double>(head_dim) * part);
  check(r.dims >= 2 && r.dims % 2 == 0 && r.dims <= head_dim, model.where(), ": head_dim ",
        head_dim, " with partial_rotary_factor ", part, " gives ", r.dims,
        " elements to rotate, expected an even number of at most head_dim");
  check(r.kind != RopeKind::Dynamic || r.dims > 2, model.where(), ": rope_type dynamic needs more ",
        "than ", r.dims, " elements to rotate");
  return r;
}

// --- The family of Llama -------------------------------------------------------------------------

// What transformers takes for keys that are not there. Of these 0 stands for what others give:
// as many kv_heads as heads, hidden / heads elements a head.
struct Defaults {
  int64_t vocab = 32000, hidden = 4096, ffn = 11008, layers = 32, heads = 32, kv_heads = 0;
  int64_t head_dim = 0, max_positions = 2048;
  double eps = 1e-6, theta = 10000;
  Tokens bos = {1}, eos = {2}, pad = {};
};

void read_heads(const Fields& f, const Defaults& d, ModelConfig& c) {
  c.hidden = f.integer({"hidden_size"}, d.hidden);
  c.heads = f.integer({"num_attention_heads"}, d.heads);
  const bool all = d.kv_heads == 0 || f.is_null("num_key_value_heads");
  c.kv_heads = f.integer({"num_key_value_heads"}, all ? c.heads : d.kv_heads);
  check(c.heads % c.kv_heads == 0, f.where(), ": num_key_value_heads is ", c.kv_heads,
        ", expected a divisor of num_attention_heads, ", c.heads);
  const bool given = f.has({"head_dim"}) || (d.head_dim != 0 && !f.is_null("head_dim"));
  check(given || c.hidden % c.heads == 0, f.where(), ": hidden_size is ", c.hidden,
        ", expected a multiple of num_attention_heads, ", c.heads);
  c.head_dim = f.integer({"head_dim"}, given && d.head_dim != 0 ? d.head_dim : c.hidden / c.heads);
}

ModelConfig read_family(const Fields& f, const Defaults& d, const char* causal, const char* base) {
  refuse_quantized(f);
  ModelConfig c;
  c.head = read_head(f, {{causal, Head::Language}, {base, Head::None}});
  c.vocab = f.integer({"vocab_size"}, d.vocab);
  read_heads(f, d, c);
  c.max_positions = f.integer({"max_position_embeddings"}, d.max_positions);
  c.rope = read_rope(f, c.head_dim, d.theta, c.max_positions);
  LayerConfig layer;
  layer.ffn = f.integer({"intermediate_size"}, d.ffn);
  c.layers.assign(static_cast<size_t>(f.integer({"num_hidden_layers"}, d.layers)), layer);
  c.norm_eps = f.positive({"rms_norm_eps"}, d.eps);
  c.activation = read_activation(f, "hidden_act", "silu");
  c.tied = f.flag({"tie_word_embeddings"}, false);
  c.qkv_bias = c.out_bias = f.flag({"attention_bias"}, false);
  c.dropout.attention = f.number({"attention_dropout"}, 0);
  c.init_deviation = f.number({"initializer_range"}, 0.02);
  c.eos = read_tokens(f, "eos_token_id", d.eos);
  c.bos = read_token(f, "bos_token_id", d.bos);
  c.pad = read_token(f, "pad_token_id", d.pad);
  return c;
}

// The window of all layers, or none where the key is null.
std::optional<int64_t> read_window(const Fields& f, std::optional<int64_t> without) {
  if (f.has({"sliding_window"})) return f.integer({"sliding_window"}, {});
  return f.is_null("sliding_window") ? std::nullopt : without;
}

// "layer_types", one of `known` for each layer; nothing where the key is not there.
std::vector<std::string> read_layer_types(const Fields& f, size_t layers,
                                          std::initializer_list<const char*> known) {
  const std::vector<std::string> types = f.texts({"layer_types"});
  if (types.empty()) return {};
  check(types.size() == layers, f.where(), ": layer_types has ", types.size(),
        " entries for num_hidden_layers ", layers);
  for (const std::string& type : types)
    check(contains(known, type), f.where(), ": layer_types has ", type,
          ", which is not supported: only ", *known.begin(), ", ", *(known.end() - 1));
  return types;
}

// Of Qwen: the layers from max_window_layers on have a window, where it is used at all.
void read_qwen_windows(const Fields& f, ModelConfig& c) {
  if (!f.flag({"use_sliding_window"}, false)) return;
  const std::optional<int64_t> window = read_window(f, 4096);
  if (!window) return;
  const int64_t first = f.integer({"max_window_layers"}, 28, 0);
  const auto types = read_layer_types(f, c.layers.size(), {"full_attention", "sliding_attention"});
  for (size_t i = 0; i < c.layers.size(); ++i) {
    const bool slides =
        types.empty() ? static_cast<int64_t>(i) >= first : types[i] == "sliding_attention";
    if (slides) c.layers[i].window = window;
  }
}

void read_experts(const Fields& f, int64_t count, int64_t active, ModelConfig& c) {
  c.experts.count = f.integer({"num_local_experts", "num_experts"}, count);
  c.experts.active = f.integer({"num_experts_per_tok"}, active);
  check(c.experts.active <= c.experts.count, f.where(), ": num_experts_per_tok is ",
        c.experts.active, ", expected at most the number of experts, ", c.experts.count);
  f.require_flag("output_router_logits", false);
  if (f.number({"router_jitter_noise"}, 0) != 0) f.unsupported("router_jitter_noise", "only 0");
}

}  // namespace

ModelConfig read_llama(const Fields& f) {
  ModelConfig c = read_family(f, {}, "LlamaForCausalLM", "LlamaModel");
  c.ffn_bias = f.flag({"mlp_bias"}, false);
  return c;
}

ModelConfig read_mistral(const Fields& f) {
  Defaults d;
  d.ffn = 14336;
  d.kv_heads = 8;
  d.max_positions = 131072;
  ModelConfig c = read_family(f, d, "MistralForCausalLM", "MistralModel");
  const auto window = read_window(f, 4096);
  const auto types = read_layer_types(f, c.layers.size(), {"full_attention", "sliding_attention"});
  for (size_t i = 0; i < c.layers.size(); ++i) {
    c.layers[i].window = window;
    if (!types.empty() && (types[i] == "sliding_attention") != window.has_value())
      f.unsupported("layer_types", "only the same kind for all layers, by sliding_window");
  }
  return c;
}

ModelConfig read_mixtral(const Fields& f) {
  Defaults d;
  d.ffn = 14336;
  d.kv_heads = 8;
  d.max_positions = 131072;
  d.eps = 1e-5;
  d.theta = 1e6;
  ModelConfig c = read_family(f, d, "MixtralForCausalLM", "MixtralModel");
  read_experts(f, 8, 2, c);
  c.experts.renormalize = true;
  for (LayerConfig& layer : c.layers) {
    layer.window = read_window(f, {});
    layer.experts = true;
  }
  return c;
}

ModelConfig read_olmoe(const Fields& f) {
  Defaults d;
  d.vocab = 50304;
  d.hidden = d.ffn = 2048;
  d.layers = d.heads = 16;
  d.max_positions = 4096;
  d.eps = 1e-5;
  d.bos = {};
  d.eos = {50279};
  d.pad = {1};
  ModelConfig c = read_family(f, d, "OlmoeForCausalLM", "OlmoeModel");
  read_experts(f, 64, 8, c);
  c.experts.renormalize = f.flag({"norm_topk_prob"}, false);
  if (f.has({"clip_qkv"})) c.clip_qkv = f.positive({"clip_qkv"}, {});
  c.qk_norm = QkNorm::Row;
  for (LayerConfig& layer : c.layers) layer.experts = true;
  return c;
}

namespace {

Defaults qwen_defaults() {
  Defaults d;
  d.vocab = 151936;
  d.ffn = 22016;
  d.kv_heads = 32;
  d.max_positions = 32768;
  d.bos = d.eos = {};
  return d;
}

}  // namespace

ModelConfig read_qwen2(const Fields& f) {
  ModelConfig c = read_family(f, qwen_defaults(), "Qwen2ForCausalLM", "Qwen2Model");
  c.qkv_bias = true;
  c.out_bias = false;
  read_qwen_windows(f, c);
  return c;
}

ModelConfig read_qwen3(const Fields& f) {
  Defaults d = qwen_defaults();
  d.head_dim = 128;
  ModelConfig c = read_family(f, d, "Qwen3ForCausalLM", "Qwen3Model");
  c.qk_norm = QkNorm::Head;
  read_qwen_windows(f, c);
  return c;
}

// --- Llama 4 -------------------------------------------------------------------------------------

namespace {

// Layers without rotary positions: every fourth, or as a list of 0 and 1 says.
void read_no_rope(const Fields& f, ModelConfig& c) {
  const int64_t interval = f.integer({"no_rope_layer_interval"}, 4);
  const Tokens list = f.integers({"no_rope_layers"});
  check(list.empty() || list.size() >= c.layers.size(), f.where(), ": no_rope_layers has ",
        list.size(), " entries for num_hidden_layers ", c.layers.size());
  for (size_t i = 0; i < c.layers.size(); ++i)
    c.layers[i].rope = list.empty() ? (static_cast<int64_t>(i) + 1) % interval != 0 : list[i] != 0;
}

void read_chunks(const Fields& f, ModelConfig& c) {
  const auto types = read_layer_types(f, c.layers.size(), {"full_attention", "chunked_attention"});
  const bool none = f.is_null("attention_chunk_size");
  const int64_t chunk = f.integer({"attention_chunk_size"}, 8192);
  for (size_t i = 0; i < c.layers.size(); ++i) {
    const bool chunked = types.empty() ? c.layers[i].rope : types[i] == "chunked_attention";
    if (chunked && !none) c.layers[i].chunk = chunk;
  }
}

// Experts in every layer, or in those of a list; others have a feed-forward part of another width.
void read_llama4_experts(const Fields& f, ModelConfig& c) {
  read_experts(f, 16, 1, c);
  c.experts.routing = Routing::SigmoidOfInput;
  c.experts.input_first = true;
  c.experts.shared_ffn = c.layers[0].ffn;
  const int64_t dense = f.integer({"intermediate_size_mlp"}, 16384);
  const int64_t step = f.integer({"interleave_moe_layer_step"}, 1);
  Tokens list = f.integers({"moe_layers"});
  if (!f.has({"moe_layers"}))
    for (int64_t i = step - 1; i < std::ssize(c.layers); i += step) list.push_back(i);
  for (const int64_t i : list) {
    check(i >= 0 && i < std::ssize(c.layers), f.where(), ": moe_layers has ", i,
          ", expected numbers of num_hidden_layers ", c.layers.size());
    c.layers[i].experts = true;
  }
  for (LayerConfig& layer : c.layers)
    if (!layer.experts) layer.ffn = dense;
}

}  // namespace

ModelConfig read_llama4(const Fields& f) {
  Defaults d;
  d.vocab = 202048;
  d.hidden = 5120;
  d.ffn = 8192;
  d.layers = 48;
  d.heads = 40;
  d.kv_heads = 8;
  d.head_dim = 128;
  d.max_positions = 131072;
  d.eps = 1e-5;
  d.theta = 500000;
  ModelConfig c = read_family(f, d, "Llama4ForCausalLM", "Llama4TextModel");
  c.rope->interleaved = true;
  if (f.flag({"use_qk_norm"}, true)) c.qk_norm = QkNorm::HeadAfterRope;
  if (f.flag({"attn_temperature_tuning"}, true))
    c.temperature = {f.number({"attn_scale"}, 0.1), f.positive({"floor_scale"}, 8192)};
  read_no_rope(f, c);
  read_chunks(f, c);
  read_llama4_experts(f, c);
  return c;
}

// --- GPT-2 and BERT ------------------------------------------------------------------------------

namespace {

void read_plain_heads(const Fields& f, const char* width_key, const char* heads_key,
                      ModelConfig& c) {
  c.kv_heads = c.heads;
  check(c.hidden % c.heads == 0, f.where(), ": ", width_key, " is ", c.hidden,
        ", expected a multiple of ", heads_key, ", ", c.heads);
  c.head_dim = c.hidden / c.heads;
}

}  // namespace

ModelConfig read_gpt2(const Fields& f) {
  refuse_quantized(f);
  f.require_flag("add_cross_attention", false);
  ModelConfig c;
  c.head = read_head(f, {{"GPT2LMHeadModel", Head::Language}, {"GPT2Model", Head::None}});
  c.vocab = f.integer({"vocab_size"}, 50257);
  c.hidden = f.integer({"n_embd", "hidden_size"}, 768);
  c.heads = f.integer({"n_head", "num_attention_heads"}, 12);
  read_plain_heads(f, "n_embd", "n_head", c);
  c.max_positions = f.integer({"n_positions", "max_position_embeddings"}, 1024);
  c.learned_positions = true;
  LayerConfig layer;
  layer.ffn = f.integer({"n_inner"}, 4 * c.hidden);
  c.layers.assign(static_cast<size_t>(f.integer({"n_layer", "num_hidden_layers"}, 12)), layer);
  c.norm = NormKind::Layer;
  c.norm_eps = f.positive({"layer_norm_epsilon"}, 1e-5);
  c.activation = read_activation(f, "activation_function", "gelu_new");
  c.gated = false;
  c.fused_qkv = c.input_first = true;
  c.qkv_bias = c.out_bias = c.ffn_bias = true;
  c.tied = f.flag({"tie_word_embeddings"}, true);
  c.scale_attention = f.flag({"scale_attn_weights"}, true);
  c.scale_attention_by_layer = f.flag({"scale_attn_by_inverse_layer_idx"}, false);
  c.dropout = {f.number({"embd_pdrop"}, 0.1), f.number({"attn_pdrop"}, 0.1),
               f.number({"resid_pdrop"}, 0.1), 0};
  c.init_deviation = f.number({"initializer_range"}, 0.02);
  c.eos = read_tokens(f, "eos_token_id", {50256});
  c.bos = read_token(f, "bos_token_id", {50256});
  c.pad = read_token(f, "pad_token_id", {});
  return c;
}

ModelConfig read_bert(const Fields& f) {
  refuse_quantized(f);
  f.require_flag("is_decoder", false);
  f.require_flag("add_cross_attention", false);
  if (f.text({"position_embedding_type"}, "absolute") != "absolute")
    f.unsupported("position_embedding_type", "only \"absolute\"");
  const std::string problem = f.text({"problem_type"}, "single_label_classification");
  if (problem != "single_label_classification")
    f.unsupported("problem_type", "only \"single_label_classification\"");
  ModelConfig c;
  c.head = read_head(f, {{"BertForMaskedLM", Head::MaskedLanguage},
                         {"BertForPreTraining", Head::MaskedLanguage},
                         {"BertForSequenceClassification", Head::Classifier},
                         {"BertModel", Head::None}});
  c.causal = c.norm_first = c.gated = false;
  c.vocab = f.integer({"vocab_size"}, 30522);
  c.hidden = f.integer({"hidden_size"}, 768);
  c.heads = f.integer({"num_attention_heads"}, 12);
  read_plain_heads(f, "hidden_size", "num_attention_heads", c);
  c.max_positions = f.integer({"max_position_embeddings"}, 512);
  c.learned_positions = true;
  c.token_types = f.integer({"type_vocab_size"}, 2);
  const int64_t named = f.size({"id2label"});
  c.labels = f.integer({"num_labels"}, named > 0 ? named : 2);
  LayerConfig layer;
  layer.ffn = f.integer({"intermediate_size"}, 3072);
  c.layers.assign(static_cast<size_t>(f.integer({"num_hidden_layers"}, 12)), layer);
  c.norm = NormKind::Layer;
  c.norm_eps = f.positive({"layer_norm_eps"}, 1e-12);
  c.activation = read_activation(f, "hidden_act", "gelu");
  c.qkv_bias = c.out_bias = c.ffn_bias = true;
  c.tied = f.flag({"tie_word_embeddings"}, true);
  const double hidden = f.number({"hidden_dropout_prob"}, 0.1);
  c.dropout = {hidden, f.number({"attention_probs_dropout_prob"}, 0.1), hidden,
               f.number({"classifier_dropout"}, hidden)};
  c.init_deviation = f.number({"initializer_range"}, 0.02);
  c.pad = read_token(f, "pad_token_id", {0});
  return c;
}

}  // namespace tiny::models
