#include "tiny/models/config/architectures.h"

#include <algorithm>

#include "tiny/models/config/read_config.h"

namespace tiny::models {

namespace {

constexpr TensorNames llama_names() {
  TensorNames n;
  n.base = "model.";
  n.tokens = "model.embed_tokens.weight";
  n.layers = "model.layers.";
  n.q = "self_attn.q_proj.";
  n.k = "self_attn.k_proj.";
  n.v = "self_attn.v_proj.";
  n.out = "self_attn.o_proj.";
  n.q_norm = "self_attn.q_norm.";
  n.k_norm = "self_attn.k_norm.";
  n.attention_norm = "input_layernorm.";
  n.ffn_norm = "post_attention_layernorm.";
  n.ffn = "mlp.";
  n.gate = "gate_proj.";
  n.up = "up_proj.";
  n.down = "down_proj.";
  n.router = "mlp.gate.";
  n.experts = "mlp.experts.";
  n.norm = "model.norm.";
  n.head = "lm_head.";
  return n;
}

constexpr TensorNames llama4_names() {
  TensorNames n = llama_names();
  n.ffn = "feed_forward.";
  n.router = "feed_forward.router.";
  n.experts = "feed_forward.experts.";
  n.shared = "feed_forward.shared_expert.";
  return n;
}

constexpr TensorNames gpt2_names() {
  TensorNames n;
  n.base = "transformer.";
  n.tokens = "transformer.wte.weight";
  n.positions = "transformer.wpe.weight";
  n.layers = "transformer.h.";
  n.qkv = "attn.c_attn.";
  n.out = "attn.c_proj.";
  n.attention_norm = "ln_1.";
  n.ffn_norm = "ln_2.";
  n.ffn = "mlp.";
  n.up = "c_fc.";
  n.down = "c_proj.";
  n.norm = "transformer.ln_f.";
  n.head = "lm_head.";
  return n;
}

constexpr TensorNames bert_names() {
  TensorNames n;
  n.base = "bert.";
  n.tokens = "bert.embeddings.word_embeddings.weight";
  n.positions = "bert.embeddings.position_embeddings.weight";
  n.token_types = "bert.embeddings.token_type_embeddings.weight";
  n.embedding_norm = "bert.embeddings.LayerNorm.";
  n.layers = "bert.encoder.layer.";
  n.q = "attention.self.query.";
  n.k = "attention.self.key.";
  n.v = "attention.self.value.";
  n.out = "attention.output.dense.";
  n.attention_norm = "attention.output.LayerNorm.";
  n.ffn_norm = "output.LayerNorm.";
  n.up = "intermediate.dense.";
  n.down = "output.dense.";
  n.head = "cls.predictions.decoder.";
  n.head_dense = "cls.predictions.transform.dense.";
  n.head_norm = "cls.predictions.transform.LayerNorm.";
  n.head_bias = "cls.predictions.bias";
  n.pooler = "bert.pooler.dense.";
  n.classifier = "classifier.";
  return n;
}

constexpr ExpertFileNames kNoExpertFiles{};
constexpr ExpertFileNames kMixtralFiles{"block_sparse_moe.gate.", "block_sparse_moe.experts.", "w1",
                                        "w3", "w2"};
constexpr ExpertFileNames kOlmoeFiles{"mlp.gate.", "mlp.experts.", "gate_proj", "up_proj",
                                      "down_proj"};

constexpr Architecture kArchitectures[] = {
    {"bert", bert_names(), kNoExpertFiles, read_bert},
    {"gpt2", gpt2_names(), kNoExpertFiles, read_gpt2},
    {"llama", llama_names(), kNoExpertFiles, read_llama},
    {"llama4_text", llama4_names(), kNoExpertFiles, read_llama4},
    {"mistral", llama_names(), kNoExpertFiles, read_mistral},
    {"mixtral", llama_names(), kMixtralFiles, read_mixtral},
    {"olmoe", llama_names(), kOlmoeFiles, read_olmoe},
    {"qwen2", llama_names(), kNoExpertFiles, read_qwen2},
    {"qwen3", llama_names(), kNoExpertFiles, read_qwen3},
};

}  // namespace

std::span<const Architecture> architectures() { return kArchitectures; }

const Architecture& find_architecture(const std::string& type, const std::string& where) {
  const auto* found = std::find_if(std::begin(kArchitectures), std::end(kArchitectures),
                                   [&](const Architecture& row) { return row.type == type; });
  std::string known;
  for (const Architecture& row : kArchitectures) known += cat(known.empty() ? "" : ", ", row.type);
  check(found != std::end(kArchitectures), where, ": model_type is \"", type,
        "\", which is not supported: only ", known);
  return *found;
}

}  // namespace tiny::models
