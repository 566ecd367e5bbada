#include <doctest/doctest.h>

#include <cmath>
#include <numbers>

#include "test/error_of.h"
#include "tiny/models/config/config.h"
#include "tiny/models/rope.h"
#include "tiny/models/transformer.h"

using namespace tiny;
using namespace tiny::models;

namespace {

// A config.json of these members beside the type.
ModelConfig config_of(const std::string& type, const std::string& members = "") {
  const std::string more = members.empty() ? "" : ", " + members;
  return parse_config(cat(R"({"model_type": ")", type, '"', more, "}"));
}

std::string refusal(const std::string& type, const std::string& members) {
  return error_of([&] { config_of(type, members); });
}

}  // namespace

TEST_CASE("what a config.json leaves out is what transformers takes") {
  const ModelConfig llama = config_of("llama"), mistral = config_of("mistral"),
                    mixtral = config_of("mixtral"), qwen3 = config_of("qwen3"),
                    olmoe = config_of("olmoe"), gpt2 = config_of("gpt2"), bert = config_of("bert"),
                    llama4 = config_of("llama4_text");
  CHECK(llama.kv_heads == 32);
  CHECK(llama.layers.size() == 32);
  CHECK(llama.layers[0].ffn == 11008);
  CHECK(llama.rope->theta == 10000);
  CHECK(llama.eos == std::vector<int64_t>{2});
  CHECK_FALSE(llama.tied);
  CHECK(mistral.kv_heads == 8);
  CHECK(mistral.layers[31].window == 4096);
  CHECK(mixtral.rope->theta == 1e6);
  CHECK(mixtral.norm_eps == 1e-5);
  CHECK_FALSE(mixtral.layers[0].window);
  CHECK(qwen3.head_dim == 128);
  CHECK(qwen3.eos.empty());
  CHECK(olmoe.experts.count == 64);
  CHECK(olmoe.experts.active == 8);
  CHECK_FALSE(olmoe.experts.renormalize);
  CHECK(gpt2.layers[0].ffn == 4 * 768);
  CHECK(gpt2.tied);
  CHECK(gpt2.dropout.attention == 0.1);
  CHECK(bert.norm_eps == 1e-12);
  CHECK(bert.token_types == 2);
  CHECK(llama4.layers[3].rope == false);
  CHECK(llama4.layers[2].chunk == 8192);
  CHECK_FALSE(llama4.layers[3].chunk);
  CHECK(llama4.temperature->floor == 8192);
}

TEST_CASE("configurations of transformers 4 and 5 say the same in other words") {
  const ModelConfig four = config_of("llama", R"("rope_theta": 500000.0, "max_position_embeddings":
      131072, "rope_scaling": {"type": "yarn", "factor": 4.0,
      "original_max_position_embeddings": 8192}, "torch_dtype": "bfloat16")");
  const ModelConfig five = config_of("llama", R"("max_position_embeddings": 131072, "dtype":
      "bfloat16", "rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 500000.0,
      "original_max_position_embeddings": 8192})");
  for (const ModelConfig& c : {four, five}) {
    CHECK(c.rope->kind == RopeKind::Yarn);
    CHECK(c.rope->theta == 500000);
    CHECK(c.rope->factor == 4);
    CHECK(c.rope->original_positions == 8192);
  }
  CHECK(config_of("mixtral", R"("num_local_experts": 6)").experts.count == 6);
  CHECK(config_of("mixtral", R"("num_experts": 6)").experts.count == 6);
  CHECK(config_of("gpt2", R"("n_embd": 24, "n_head": 3)").head_dim == 8);
  CHECK(config_of("gpt2", R"("hidden_size": 24, "num_attention_heads": 3)").head_dim == 8);
}

TEST_CASE("windows and chunks are those of each layer") {
  CHECK_FALSE(config_of("mistral", R"("sliding_window": null)").layers[0].window);
  CHECK(config_of("mistral", R"("sliding_window": 7)").layers[0].window == 7);
  const ModelConfig qwen = config_of("qwen2", R"("use_sliding_window": true, "sliding_window": 5,
      "max_window_layers": 1, "num_hidden_layers": 3)");
  CHECK_FALSE(qwen.layers[0].window);
  CHECK(qwen.layers[2].window == 5);
  const ModelConfig listed = config_of("qwen3", R"("use_sliding_window": true, "num_hidden_layers":
      2, "layer_types": ["sliding_attention", "full_attention"])");
  CHECK(listed.layers[0].window == 4096);
  CHECK_FALSE(listed.layers[1].window);
  const ModelConfig llama4 = config_of("llama4_text", R"("num_hidden_layers": 4,
      "interleave_moe_layer_step": 2, "no_rope_layers": [], "attention_chunk_size": 16)");
  CHECK_FALSE(llama4.layers[0].experts);
  CHECK(llama4.layers[0].ffn == 16384);
  CHECK(llama4.layers[1].experts);
  CHECK(llama4.layers[1].ffn == 8192);
  CHECK(llama4.layers[2].chunk == 16);
  const ModelConfig whole =
      config_of("llama4", R"("text_config": {"model_type": "llama4_text", "hidden_size": 80})");
  CHECK(whole.type == "llama4_text");
  CHECK(whole.hidden == 80);
}

TEST_CASE("errors of configurations name key and value") {
  const std::string type = error_of([] { parse_config(R"({"model_type": "mamba"})", "x.json"); });
  CHECK(has(type, R"(x.json: model_type is "mamba", which is not supported)"));
  CHECK(has(type, "llama4_text"));
  CHECK(has(error_of([] { parse_config("{}"); }), "there is no model_type"));
  CHECK(has(error_of([] { parse_config("[1"); }), "config.json: no JSON"));
  CHECK(has(error_of([] { parse_config("[1]"); }), "expected an object and not [1]"));
  const std::pair<const char*, const char*> wrong[] = {
      {R"("hidden_act": "gelu_10")", R"(hidden_act is "gelu_10", which is not supported)"},
      {R"("hidden_size": "64")", R"(hidden_size is "64", expected an integer of at least 1)"},
      {R"("hidden_size": -1)", "hidden_size is -1, expected an integer"},
      {R"("hidden_size": 18446744073709551615)", "hidden_size is 18446744073709551615"},
      {R"("hidden_size": 65)", "hidden_size is 65, expected a multiple of num_attention_heads, 32"},
      {R"("num_key_value_heads": 5)", "num_key_value_heads is 5, expected a divisor"},
      {R"("rms_norm_eps": 0)", "rms_norm_eps is 0, expected a number above 0"},
      {R"("tie_word_embeddings": 1)", "tie_word_embeddings is 1, expected true or false"},
      {R"("architectures": ["LlamaForTokenClassification"])", "LlamaForTokenClassification"},
      {R"("quantization_config": {"bits": 4})", R"(quantization_config is {"bits":4})"},
      {R"("rope_scaling": {"rope_type": "longrope"})", R"(rope_type is "longrope")"},
      {R"("rope_scaling": {"type": "mrope"})", R"(type is "mrope")"},
      {R"("rope_scaling": {"type": "linear"})", "rope_scaling: there is no factor"},
      {R"("rope_scaling": {"type": "linear", "factor": -2})", "factor is -2"},
      {R"("rope_scaling": 3)", "rope_scaling is 3, expected an object"},
      {R"("rope_parameters": {"full_attention": {"rope_theta": 1}})", "rope_parameters is"},
      {R"("head_dim": 15)", "head_dim 15"},
      {R"("partial_rotary_factor": 2.0)", "partial_rotary_factor 2"},
  };
  for (const auto& row : wrong) {
    const std::string refused = refusal("llama", row.first);
    CAPTURE(row.first);
    CAPTURE(refused);
    CHECK(has(refused, row.second));
  }
  CHECK(has(refusal("mixtral", R"("num_experts_per_tok": 9)"), "num_experts_per_tok is 9"));
  CHECK(has(refusal("mixtral", R"("output_router_logits": true)"), "output_router_logits is true"));
  CHECK(has(refusal("qwen2", R"("use_sliding_window": true, "layer_types": ["full_attention"])"),
            "layer_types has 1 entries for num_hidden_layers 32"));
  CHECK(has(refusal("bert", R"("position_embedding_type": "relative_key")"), "relative_key"));
  CHECK(has(refusal("bert", R"("is_decoder": true)"), "is_decoder is true"));
  CHECK(has(refusal("llama4_text", R"("moe_layers": [99])"), "moe_layers has 99"));
}

// --- Rotary positions ----------------------------------------------------------------------------

namespace {

RopeConfig rope_of(const std::string& parameters) {
  return *config_of("llama", cat(R"("hidden_size": 64, "num_attention_heads": 4,
      "max_position_embeddings": 256, "rope_theta": 10000.0, "rope_scaling": )",
                                 parameters))
              .rope;
}

void check_close(double got, double wanted, double relative = 1e-12) {
  CHECK(std::abs(got - wanted) <= relative * std::abs(wanted));
}

}  // namespace

TEST_CASE("linear positions are divided by the factor") {
  const auto f = inverse_frequencies(rope_of(R"({"type": "linear", "factor": 2.5})"));
  REQUIRE(f.size() == 8);
  for (size_t i = 0; i < 8; ++i) check_close(f[i], std::pow(10000, -2.0 * i / 16) / 2.5);
}

TEST_CASE("Llama 3's positions are kept, divided or between by their wavelength") {
  const auto f = inverse_frequencies(rope_of(R"({"rope_type": "llama3", "factor": 8.0,
      "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64})"));
  int kept = 0, divided = 0, between = 0;
  for (size_t i = 0; i < 8; ++i) {
    const double plain = std::pow(10000, -2.0 * i / 16), wave = 2 * std::numbers::pi / plain;
    if (wave < 64.0 / 4) {
      check_close(f[i], plain);
      ++kept;
    } else if (wave > 64.0) {
      check_close(f[i], plain / 8);
      ++divided;
    } else {
      const double smooth = (64 / wave - 1) / 3;
      check_close(f[i], (1 - smooth) * plain / 8 + smooth * plain);
      ++between;
    }
  }
  CHECK(kept > 0);
  CHECK(divided > 0);
  CHECK(between > 0);
}

TEST_CASE("YaRN's positions lie on a ramp, and its attention is scaled") {
  const char* text = R"({"rope_type": "yarn", "factor": 4.0, "beta_fast": 8, "beta_slow": 1,
      "original_max_position_embeddings": 64)";
  const RopeConfig c = rope_of(cat(text, "}"));
  const auto f = inverse_frequencies(c);
  // Pairs that turn 8 times and once in 64 positions.
  const auto pair = [](double turns) {
    return 16 * std::log(64 / (turns * 2 * std::numbers::pi)) / (2 * std::log(10000.0));
  };
  const double low = std::max(0.0, std::floor(pair(8))), high = std::ceil(pair(1));
  for (size_t i = 0; i < 8; ++i) {
    const double plain = std::pow(10000, -2.0 * i / 16);
    const double slow = std::min(1.0, std::max(0.0, (i - low) / (high - low)));
    check_close(f[i], plain / 4 * slow + plain * (1 - slow));
  }
  check_close(attention_factor(c), 0.1 * std::log(4.0) + 1);
  check_close(attention_factor(rope_of(cat(text, R"(, "attention_factor": 0.7})"))), 0.7);
  check_close(attention_factor(rope_of(cat(text, R"(, "mscale": 0.5, "mscale_all_dim": 2.0})"))),
              (0.05 * std::log(4.0) + 1) / (0.2 * std::log(4.0) + 1));
  const auto smooth = inverse_frequencies(rope_of(cat(text, R"(, "truncate": false})")));
  CHECK(smooth[2] != f[2]);
  // Without a factor it is the ratio of the lengths.
  check_close(rope_of(R"({"rope_type": "yarn", "original_max_position_embeddings": 64})").factor,
              4);
}

TEST_CASE("dynamic positions follow the length of the text") {
  const RopeConfig c = rope_of(R"({"type": "dynamic", "factor": 3.0})");
  const RotaryEmbedding rotary(c);
  for (const int64_t length : {100, 256, 257, 400}) {
    CAPTURE(length);
    const double longer = std::max<double>(length, 256);
    const double theta = 10000 * std::pow(3 * longer / 256 - 2, 16.0 / 14);
    const Tensor positions = Tensor::arange(length).unsqueeze(0);
    const auto given = rotary.tables(positions.narrow(1, 0, 50), Tensor::from({length}));
    for (const RopeTables& t : {rotary.tables(positions), given}) {
      const auto cos = t.cos.to_vector<float>(), sin = t.sin.to_vector<float>();
      for (size_t i = 0; i < 8; ++i) {
        const double angle = 49 * std::pow(theta, -2.0 * i / 16);
        CHECK(std::abs(cos[49 * 8 + i] - std::cos(angle)) < 2e-5);
        CHECK(std::abs(sin[49 * 8 + i] - std::sin(angle)) < 2e-5);
      }
    }
  }
}

TEST_CASE("a part of each head is rotated, by halves or by pairs") {
  RopeConfig c;
  c.dims = 4;
  const RotaryEmbedding rotary(c);
  const RopeTables t = rotary.tables(Tensor::from({int64_t{3}}));
  const Tensor x = Tensor::from({1.0f, 2.0f, 3.0f, 4.0f, 5.0f, 6.0f}, {1, 6});
  const double c0 = std::cos(3.0), s0 = std::sin(3.0), c1 = std::cos(0.03), s1 = std::sin(0.03);
  const std::vector<double> halves{
      1 * c0 - 3 * s0, 2 * c1 - 4 * s1, 3 * c0 + 1 * s0, 4 * c1 + 2 * s1, 5, 6};
  const std::vector<double> pairs{
      1 * c0 - 2 * s0, 2 * c0 + 1 * s0, 3 * c1 - 4 * s1, 4 * c1 + 3 * s1, 5, 6};
  for (const bool interleaved : {false, true}) {
    c.interleaved = interleaved;
    const auto y = apply_rope(x, t, c).to_vector<float>();
    for (size_t i = 0; i < 6; ++i) CHECK(std::abs(y[i] - (interleaved ? pairs : halves)[i]) < 1e-6);
  }
}
