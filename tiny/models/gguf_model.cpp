#include "tiny/models/gguf_model.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "tiny/models/rope.h"

namespace tiny::models {

namespace {

using Json = nlohmann::ordered_json;

// The beginnings of names, and those that follow a layer's number.
constexpr std::pair<const char*, const char*> kNames[] = {
    {"model.embed_tokens.", "token_embd."},
    {"model.norm.", "output_norm."},
    {"lm_head.", "output."},
};
constexpr std::pair<const char*, const char*> kLayerNames[] = {
    {"input_layernorm.", "attn_norm."},
    {"self_attn.q_proj.", "attn_q."},
    {"self_attn.k_proj.", "attn_k."},
    {"self_attn.v_proj.", "attn_v."},
    {"self_attn.o_proj.", "attn_output."},
    {"self_attn.q_norm.", "attn_q_norm."},
    {"self_attn.k_norm.", "attn_k_norm."},
    {"post_attention_layernorm.", "ffn_norm."},
    {"mlp.gate_proj.", "ffn_gate."},
    {"mlp.up_proj.", "ffn_up."},
    {"mlp.down_proj.", "ffn_down."},
    {"mlp.gate.", "ffn_gate_inp."},
    {"mlp.experts.down_proj", "ffn_down_exps.weight"},
};
constexpr std::string_view kLayers = "model.layers.", kGatesAndUps = "mlp.experts.gate_up_proj";

template <class Table> std::string renamed(const Table& table, const std::string& name) {
  for (const auto& [from, to] : table)
    if (name.starts_with(from)) return to + name.substr(std::string_view(from).size());
  return name;
}

// The metadata of one architecture: "llama.block_count" is integer("block_count").
class GgufFields {
 public:
  explicit GgufFields(const TensorFile& file)
      : data_(file.metadata()), arch_(data_.text("general.architecture")) {}

  const std::string& arch() const { return arch_; }
  bool has(const std::string& key) const { return data_.contains(full(key)); }
  int64_t integer(const std::string& key) const { return data_.integer(full(key)); }
  double number(const std::string& key) const { return data_.number(full(key)); }
  std::string text(const std::string& key, const std::string& otherwise) const {
    return data_.text(full(key), otherwise);
  }
  const Metadata& all() const { return data_; }

 private:
  std::string full(const std::string& key) const { return cat(arch_, ".", key); }

  const Metadata& data_;
  const std::string arch_;
};

// Divisors of the frequencies, one for each pair.
std::vector<float> divisors_of(const RopeConfig& scaled) {
  RopeConfig plain = scaled;
  plain.kind = RopeKind::Default;
  const std::vector<double> from = inverse_frequencies(plain), to = inverse_frequencies(scaled);
  std::vector<float> out;
  for (size_t i = 0; i < from.size(); ++i) out.push_back(static_cast<float>(from[i] / to[i]));
  return out;
}

// Files of Llama 3 hold the divisors themselves. What they are made from stands under keys that
// save_gguf() adds; without them there are the constants that all of its models have, 1, 4 and
// 8192, and the factor is the largest divisor.
constexpr const char* kLlama3Factor = "rope.scaling.llama3.factor";
constexpr const char* kLlama3Low = "rope.scaling.llama3.low_freq_factor";
constexpr const char* kLlama3High = "rope.scaling.llama3.high_freq_factor";
constexpr const char* kLlama3Positions = "rope.scaling.llama3.original_context_length";

Json llama3_scaling(const GgufFields& in, const TensorFile& file, double theta) {
  const std::vector<float> divisors =
      file.load("rope_freqs.weight", "CPU", kF32).to_vector<float>();
  check(!divisors.empty(), file.path(), ": rope_freqs.weight has no elements");
  const auto number = [&](const char* key, double otherwise) {
    return in.has(key) ? in.number(key) : otherwise;
  };
  RopeConfig rope{.kind = RopeKind::Llama3, .theta = theta, .dims = 2 * std::ssize(divisors)};
  rope.factor = number(kLlama3Factor, *std::ranges::max_element(divisors));
  rope.low_freq_factor = number(kLlama3Low, 1);
  rope.high_freq_factor = number(kLlama3High, 4);
  rope.original_positions = in.has(kLlama3Positions) ? in.integer(kLlama3Positions) : 8192;
  const std::vector<float> expected = divisors_of(rope);
  for (size_t i = 0; i < divisors.size(); ++i)
    check(std::abs(divisors[i] - expected[i]) <= 1e-3f * expected[i], file.path(),
          ": rope_freqs.weight: element ", i, " is ", divisors[i], ", expected ", expected[i],
          " as in Llama 3");
  return {{"rope_type", "llama3"},
          {"factor", rope.factor},
          {"low_freq_factor", rope.low_freq_factor},
          {"high_freq_factor", rope.high_freq_factor},
          {"original_max_position_embeddings", rope.original_positions}};
}

// rope_scaling of a config.json; null where positions are not scaled.
Json scaling_of(const GgufFields& in, const TensorFile& file, double theta) {
  if (file.find("rope_freqs.weight")) return llama3_scaling(in, file, theta);
  const std::string type = in.text("rope.scaling.type", "none");
  if (type == "none") return nullptr;
  Json out{{"rope_type", type}, {"factor", in.number("rope.scaling.factor")}};
  if (in.has("rope.scaling.original_context_length"))
    out["original_max_position_embeddings"] = in.integer("rope.scaling.original_context_length");
  if (in.has("rope.scaling.attn_factor"))
    out["attention_factor"] = in.number("rope.scaling.attn_factor");
  return out;
}

// model_type of a config.json.
std::string type_of(const GgufFields& in, const std::string& path) {
  const std::string& arch = in.arch();
  check(arch == "llama" || arch == "qwen2" || arch == "qwen3", path, ": general.architecture is \"",
        arch, "\", which is not supported: only llama, qwen2, qwen3");
  if (arch != "llama") return arch;
  if (in.has("expert_count") && in.integer("expert_count") > 0) return "mixtral";
  return in.has("attention.sliding_window") ? "mistral" : "llama";
}

void add_experts(const GgufFields& in, Json& out) {
  out["num_local_experts"] = in.integer("expert_count");
  out["num_experts_per_tok"] = in.integer("expert_used_count");
}

// What scaling_of() reads. llama.cpp scales cos and sin of YaRN by a number of its own, and has
// nothing that grows with the text.
void set_scaling(const RopeConfig& rope, const std::string& arch, Metadata& out) {
  const auto number = [&](const char* key, double value) {
    out.set(arch + key, static_cast<float>(value));
  };
  if (rope.kind == RopeKind::Default) return;
  if (rope.kind == RopeKind::Llama3) {  // besides the divisors
    number(kLlama3Factor, rope.factor);
    number(kLlama3Low, rope.low_freq_factor);
    number(kLlama3High, rope.high_freq_factor);
    out.set(arch + kLlama3Positions, static_cast<uint32_t>(rope.original_positions));
    return;
  }
  check(rope.kind != RopeKind::Dynamic,
        "save_gguf: rotary positions that are scaled by \"dynamic\" cannot be written");
  const bool is_yarn = rope.kind == RopeKind::Yarn;
  const RopeConfig usual;
  check(!is_yarn || (!rope.attention_factor && rope.beta_fast == usual.beta_fast &&
                     rope.beta_slow == usual.beta_slow && rope.mscale == 0 && rope.truncate),
        "save_gguf: rotary positions that are scaled by \"yarn\" with attention_factor, beta_fast, "
        "beta_slow, mscale or truncate cannot be written");
  out.set(arch + "rope.scaling.type", std::string(is_yarn ? "yarn" : "linear"));
  number("rope.scaling.factor", rope.factor);
  if (is_yarn)
    out.set(arch + "rope.scaling.original_context_length",
            static_cast<uint32_t>(rope.original_positions));
}

// Whether llama.cpp's architecture "llama" stands for the type.
bool is_of_llama(const ModelConfig& config) {
  return config.type == "llama" || config.type == "mistral" || config.type == "mixtral";
}

template <class T> void read_token(const Metadata& data, const char* name, T& out) {
  const std::string key = cat("tokenizer.ggml.", name);
  if (data.contains(key)) out = static_cast<int32_t>(data.integer(key));
}

}  // namespace

ModelConfig gguf_config(const TensorFile& file) {
  const GgufFields in(file);
  const std::string type = type_of(in, file.path());
  const int64_t hidden = in.integer("embedding_length"), heads = in.integer("attention.head_count");
  const double theta = in.has("rope.freq_base") ? in.number("rope.freq_base") : 10000;
  check(heads > 0, file.path(), ": attention.head_count is ", heads);
  Json out{{"model_type", type},
           {"vocab_size", file.at("token_embd.weight").shape[0]},
           {"hidden_size", hidden},
           {"num_hidden_layers", in.integer("block_count")},
           {"intermediate_size", in.integer("feed_forward_length")},
           {"num_attention_heads", heads},
           {"max_position_embeddings", in.integer("context_length")},
           {"rms_norm_eps", in.number("attention.layer_norm_rms_epsilon")},
           {"rope_theta", theta},
           {"rope_scaling", scaling_of(in, file, theta)},
           {"tie_word_embeddings", file.find("output.weight") == nullptr}};
  out["num_key_value_heads"] =
      in.has("attention.head_count_kv") ? in.integer("attention.head_count_kv") : heads;
  out["head_dim"] =
      in.has("attention.key_length") ? in.integer("attention.key_length") : hidden / heads;
  if (type == "llama") out["attention_bias"] = file.find("blk.0.attn_q.bias") != nullptr;
  if (in.has("attention.sliding_window") && type != "qwen2" && type != "qwen3")
    out["sliding_window"] = in.integer("attention.sliding_window");
  if (type == "mixtral") add_experts(in, out);
  if (in.all().contains("tokenizer.ggml.eos_token_id"))
    out["eos_token_id"] = in.all().integer("tokenizer.ggml.eos_token_id");
  if (in.all().contains("tokenizer.ggml.bos_token_id"))
    out["bos_token_id"] = in.all().integer("tokenizer.ggml.bos_token_id");
  return parse_config(out.dump(), file.path());
}

std::vector<float> gguf_divisors(const ModelConfig& config) {
  const bool has = config.rope && config.rope->kind == RopeKind::Llama3;
  return has ? divisors_of(*config.rope) : std::vector<float>();
}

Metadata gguf_metadata(const ModelConfig& config) {
  const bool is_llama = is_of_llama(config);
  const std::string arch = is_llama ? "llama" : config.type;
  check(is_llama || arch == "qwen2" || arch == "qwen3", "save_gguf: no models of type ", arch,
        ": only llama, mistral, mixtral, qwen2, qwen3");
  expect(config.rope.has_value(), "save_gguf: ", arch, " without rotary positions");
  Metadata out;
  out.set("general.architecture", arch);
  const auto integer = [&](const char* key, int64_t value) {
    out.set(cat(arch, ".", key), static_cast<uint32_t>(value));
  };
  integer("block_count", std::ssize(config.layers));
  integer("context_length", config.max_positions);
  integer("embedding_length", config.hidden);
  integer("feed_forward_length", config.layers[0].ffn);
  integer("attention.head_count", config.heads);
  integer("attention.head_count_kv", config.kv_heads);
  integer("attention.key_length", config.head_dim);
  integer("attention.value_length", config.head_dim);
  integer("rope.dimension_count", config.rope->dims);
  out.set(cat(arch, ".rope.freq_base"), static_cast<float>(config.rope->theta));
  set_scaling(*config.rope, arch + ".", out);
  out.set(cat(arch, ".attention.layer_norm_rms_epsilon"), static_cast<float>(config.norm_eps));
  if (is_llama && config.layers[0].window)
    integer("attention.sliding_window", *config.layers[0].window);
  if (config.experts.count > 0) {
    integer("expert_count", config.experts.count);
    integer("expert_used_count", config.experts.active);
  }
  if (!config.eos.empty())
    out.set("tokenizer.ggml.eos_token_id", static_cast<uint32_t>(config.eos[0]));
  if (config.bos) out.set("tokenizer.ggml.bos_token_id", static_cast<uint32_t>(*config.bos));
  return out;
}

GgufVocabulary gguf_vocabulary(const Metadata& data) {
  GgufVocabulary out;
  out.model = data.text("tokenizer.ggml.model");
  out.pre = data.text("tokenizer.ggml.pre", "");
  out.tokens = data.texts("tokenizer.ggml.tokens");
  if (data.contains("tokenizer.ggml.merges")) out.merges = data.texts("tokenizer.ggml.merges");
  if (data.contains("tokenizer.ggml.scores"))
    for (const double score : data.numbers("tokenizer.ggml.scores"))
      out.scores.push_back(static_cast<float>(score));
  if (data.contains("tokenizer.ggml.token_type"))
    for (const int64_t type : data.integers("tokenizer.ggml.token_type"))
      out.token_types.push_back(static_cast<int32_t>(type));
  if (data.contains("tokenizer.ggml.precompiled_charsmap"))
    for (const int64_t byte : data.integers("tokenizer.ggml.precompiled_charsmap"))
      out.precompiled_charsmap += static_cast<char>(byte);
  read_token(data, "bos_token_id", out.bos);
  read_token(data, "eos_token_id", out.eos);
  read_token(data, "unknown_token_id", out.unknown);
  read_token(data, "seperator_token_id", out.separator);  // the format's spelling
  read_token(data, "padding_token_id", out.padding);
  read_token(data, "cls_token_id", out.cls);
  read_token(data, "mask_token_id", out.mask);
  for (const auto& [name, flag] :
       {std::pair("add_bos_token", &out.add_bos), std::pair("add_eos_token", &out.add_eos),
        std::pair("add_sep_token", &out.add_sep),
        std::pair("add_space_prefix", &out.add_space_prefix),
        std::pair("remove_extra_whitespaces", &out.remove_extra_whitespaces)})
    if (const std::string key = cat("tokenizer.ggml.", name); data.contains(key))
      *flag = data.flag(key);
  return out;
}

Metadata gguf_metadata(const GgufVocabulary& v) {
  Metadata out;
  const auto set = [&](const char* key, MetadataValue value) {
    out.set(cat("tokenizer.ggml.", key), std::move(value));
  };
  set("model", v.model);
  if (!v.pre.empty()) set("pre", v.pre);
  set("tokens", MetadataArray{v.tokens});
  if (!v.scores.empty()) set("scores", MetadataArray{v.scores});
  if (!v.token_types.empty()) set("token_type", MetadataArray{v.token_types});
  if (!v.merges.empty()) set("merges", MetadataArray{v.merges});
  for (const auto& [key, id] :
       {std::pair("bos_token_id", v.bos), std::pair("eos_token_id", v.eos),
        std::pair("unknown_token_id", v.unknown), std::pair("padding_token_id", v.padding)})
    if (id) set(key, static_cast<uint32_t>(*id));
  for (const auto& [key, flag] :
       {std::pair("add_bos_token", v.add_bos), std::pair("add_eos_token", v.add_eos),
        std::pair("add_space_prefix", v.add_space_prefix)})
    if (flag) set(key, *flag);
  return out;
}

std::vector<std::string> gguf_names(const std::string& name) {
  if (!name.starts_with(kLayers)) return {renamed(kNames, name)};
  const size_t point = name.find('.', kLayers.size());
  const std::string rest = name.substr(point + 1);
  const std::string layer = cat("blk.", name.substr(kLayers.size(), point - kLayers.size()), ".");
  if (rest == kGatesAndUps) return {layer + "ffn_gate_exps.weight", layer + "ffn_up_exps.weight"};
  return {layer + renamed(kLayerNames, rest)};
}

int64_t paired_heads(const ModelConfig& config, const std::string& name) {
  if (!is_of_llama(config)) return 0;
  if (name.find(".self_attn.q_proj.") != name.npos) return config.heads;
  return name.find(".self_attn.k_proj.") != name.npos ? config.kv_heads : 0;
}

namespace {

// Rows of each head as (a, b), in the order (b, a).
Tensor turned_rows(const Tensor& rows, int64_t heads, bool are_pairs) {
  const int64_t half = rows.size(0) / heads / 2, rest = rows.numel() / rows.size(0);
  const Shape split = are_pairs ? Shape{heads, half, 2, rest} : Shape{heads, 2, half, rest};
  return rows.reshape(split).transpose(1, 2).reshape(to_shape(rows.shape()));
}

}  // namespace

Tensor unpaired_rows(const Tensor& rows, int64_t heads) { return turned_rows(rows, heads, true); }
Tensor paired_rows(const Tensor& rows, int64_t heads) { return turned_rows(rows, heads, false); }

}  // namespace tiny::models
