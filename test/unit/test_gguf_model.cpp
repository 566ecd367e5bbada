#include "tiny/models/gguf_model.h"

#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "test/error_of.h"
#include "test/unit/small_models.h"

#include "tiny/ir/dtype.h"
#include "tiny/models/files/formats/gguf.h"
#include "tiny/models/weights.h"
#include "tiny/tensor/random.h"

using namespace tiny;
using test::largest_difference;

namespace {

using Floats = std::vector<float>;

// Removed at the end, with all that is in it.
struct Folder {
  std::string path = (std::filesystem::temp_directory_path() / "tiny-XXXXXX").string();
  Folder() { REQUIRE(mkdtemp(path.data()) != nullptr); }
  ~Folder() { std::filesystem::remove_all(path); }
};

std::string config_of(const std::string& type, const std::string& more = "") {
  return R"({"model_type": ")" + type + R"(", "vocab_size": 67, "hidden_size": 64,
    "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
    "eos_token_id": 2, "bos_token_id": 1, "tie_word_embeddings": false)" +
         more + "}";
}

models::Transformer random_model(const std::string& config) {
  models::Transformer model = test::random_model(config);
  for (const NamedTensor& t : model.state_dict())  // biases and norms as well
    if (t.tensor->rank() == 1)
      *t.tensor = (*t.tensor + Tensor::randn({t.tensor->size(0)}) * 0.1).realize();
  return model;
}

Floats logits_of(models::Transformer& model) {
  const NoGrad no_grad;
  const Tensor ids =
      Tensor::from(std::vector<int64_t>{1, 5, 66, 3, 20, 8, 1, 30, 2, 7, 11, 13}, {2, 6});
  return model(ids).to(kF32).to_vector<float>();
}

// Of the matrices what Q8_0 keeps of them: blocks of 32 in a row, each a scale d of f16 times the
// integers nearest to x / d, of which the largest is 127.
void quantise(models::Transformer& model) {
  for (const NamedTensor& t : model.state_dict()) {
    if (t.tensor->rank() < 2) continue;
    Floats values = t.tensor->to_vector<float>();
    for (size_t begin = 0; begin < values.size(); begin += 32) {
      float largest = 0;
      for (size_t i = begin; i < begin + 32; ++i) largest = std::max(largest, std::abs(values[i]));
      const float d = largest / 127;
      for (size_t i = begin; i < begin + 32; ++i)
        values[i] = std::round(values[i] * (1 / d)) * f16_to_f32(f32_to_f16(d));
    }
    *t.tensor = Tensor::from(values, to_shape(t.tensor->shape()));
  }
}

}  // namespace

TEST_CASE("a model that went through a GGUF file computes the same") {
  const Folder folder;
  const std::vector<std::string> configs = {
      config_of("llama"),
      config_of("llama", R"(, "attention_bias": true)"),
      config_of("llama", R"(, "rope_scaling": {"rope_type": "linear", "factor": 3.0})"),
      config_of("llama", R"(, "rope_scaling": {"rope_type": "llama3", "factor": 8.0,
          "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 8192}, "rope_theta": 500000.0)"),
      config_of("llama", R"(, "rope_scaling": {"rope_type": "llama3", "factor": 16.0,
          "low_freq_factor": 1.5, "high_freq_factor": 3.0,
          "original_max_position_embeddings": 32})"),
      config_of("qwen2", R"(, "rope_scaling": {"rope_type": "yarn", "factor": 4.0,
          "original_max_position_embeddings": 16})"),
      config_of("mistral", R"(, "sliding_window": 3)"),
      config_of("qwen2"),
      config_of("qwen3"),
      config_of("mixtral", R"(, "num_local_experts": 4, "num_experts_per_tok": 2)")};
  for (const std::string& config : configs) {
    CAPTURE(config);
    models::Transformer model = random_model(config);
    const Floats expected = logits_of(model);
    const double largest = largest_difference(expected, Floats(expected.size(), 0));
    const std::string path = folder.path + "/model.gguf";
    save_gguf(path, model, stored_type("F32"));
    models::LoadReport report;
    models::Transformer again = models::load(path, {}, &report);
    CHECK(report.unexpected.empty());
    CHECK(again.config().type == model.config().type);
    CHECK(again.config().eos == std::vector<int64_t>{2});
    CHECK(largest_difference(logits_of(again), expected) < 1e-5 * largest);

    save_gguf(path, model, stored_type("Q8_0"));
    models::Transformer quantised = models::load(folder.path);  // the folder's only model
    quantise(model);
    CHECK(largest_difference(logits_of(quantised), logits_of(model)) < 1e-5 * largest);
  }
}

TEST_CASE("a model whose weights stay quantised computes as with their values") {
  const Folder folder;
  const std::string path = folder.path + "/model.gguf";
  for (const std::string& config :
       {config_of("llama", R"(, "attention_bias": true)"), config_of("qwen3"),
        config_of("mixtral", R"(, "num_local_experts": 4, "num_experts_per_tok": 2)")})
    for (const char* type : {"Q8_0", "Q4_0"}) {
      CAPTURE(config);
      CAPTURE(type);
      models::Transformer model = random_model(config);
      save_gguf(path, model, stored_type(type));
      models::Transformer floats = models::load(path);
      const Floats expected = logits_of(floats);
      const double largest = largest_difference(expected, Floats(expected.size(), 0));
      models::Transformer kept = models::load(path, {.keep_quantized = QuantizedProduct::Floats});
      CHECK(kept.quantized_places().size() > 9);
      CHECK(largest_difference(logits_of(kept), expected) < 1e-5 * largest);
      models::Transformer bytes = models::load(path, {.keep_quantized = QuantizedProduct::Bytes});
      const double error = largest_difference(logits_of(bytes), expected);
      CHECK(error > 0);                                       // activations are rounded
      const bool routes = floats.config().experts.count > 0;  // others where two are about as good
      CHECK((routes || error < 0.05 * largest));

      // The weights are those of the file, however they are kept.
      const StateDict one = floats.state_dict(), two = bytes.state_dict();
      REQUIRE(one.size() == two.size());
      for (size_t i = 0; i < one.size(); ++i)
        CHECK(one[i].tensor->to_vector<float>() == two[i].tensor->to_vector<float>());

      // Who gives it other values has a model with those.
      for (size_t i = 0; i < one.size(); ++i) {
        const Tensor other = (one[i].tensor->detach() * 0.5).realize();
        *one[i].tensor = other;
        *two[i].tensor = other;
      }
      const Floats halves = logits_of(floats);
      CHECK(largest_difference(logits_of(bytes), halves) < 1e-5 * largest);
    }
}

TEST_CASE("rows in pairs are those of llama.cpp") {
  const Tensor rows = Tensor::from(Floats{0, 1, 2, 3, 10, 11, 12, 13}, {8, 1});
  const Floats paired{0, 2, 1, 3, 10, 12, 11, 13};
  CHECK(models::paired_rows(rows, 2).to_vector<float>() == paired);
  CHECK(models::unpaired_rows(Tensor::from(paired, {8, 1}), 2).to_vector<float>() ==
        rows.to_vector<float>());
  const models::ModelConfig llama = models::parse_config(config_of("llama"));
  const models::ModelConfig qwen = models::parse_config(config_of("qwen2"));
  CHECK(models::paired_heads(llama, "model.layers.0.self_attn.q_proj.weight") == 4);
  CHECK(models::paired_heads(llama, "model.layers.0.self_attn.k_proj.weight") == 2);
  CHECK(models::paired_heads(llama, "model.layers.0.self_attn.v_proj.weight") == 0);
  CHECK(models::paired_heads(qwen, "model.layers.0.self_attn.q_proj.weight") == 0);
}

TEST_CASE("tensors have llama.cpp's names") {
  using Names = std::vector<std::string>;
  CHECK(models::gguf_names("model.embed_tokens.weight") == Names{"token_embd.weight"});
  CHECK(models::gguf_names("lm_head.weight") == Names{"output.weight"});
  CHECK(models::gguf_names("model.layers.12.self_attn.o_proj.weight") ==
        Names{"blk.12.attn_output.weight"});
  CHECK(models::gguf_names("model.layers.0.mlp.gate.weight") == Names{"blk.0.ffn_gate_inp.weight"});
  CHECK(models::gguf_names("model.layers.0.mlp.gate_proj.weight") ==
        Names{"blk.0.ffn_gate.weight"});
  CHECK(models::gguf_names("model.layers.3.mlp.experts.gate_up_proj") ==
        Names{"blk.3.ffn_gate_exps.weight", "blk.3.ffn_up_exps.weight"});
}

namespace {

// The metadata and the tokens' weight of a file: what a configuration is read from.
void write_config(const std::string& path, Metadata metadata, const Tensor& divisors = Tensor()) {
  std::vector<OutputTensor> tensors{output_tensor("token_embd.weight", Tensor::zeros({9, 32}))};
  if (divisors.defined()) tensors.push_back(output_tensor("rope_freqs.weight", divisors));
  write_gguf(path, metadata, tensors);
}

Metadata llama_metadata() {
  return models::gguf_metadata(models::parse_config(config_of("llama")));
}

// Of Llama 3.1: factor 8, from 1 at wavelengths below 8192 / 4 to 8 at those above 8192.
Floats llama3_divisors(double theta, int64_t dims) {
  Floats out;
  for (int64_t i = 0; i < dims / 2; ++i) {
    const double length =
        2 * M_PI * std::pow(theta, 2.0 * static_cast<double>(i) / static_cast<double>(dims));
    const double at = (8192 / length - 1) / 3;
    const double divisor = length < 2048 ? 1 : length > 8192 ? 8 : 1 / ((1 - at) / 8 + at);
    out.push_back(static_cast<float>(divisor));
  }
  return out;
}

}  // namespace

TEST_CASE("Llama 3's scaled positions are known by the divisors in the file, others are errors") {
  const Folder folder;
  const std::string path = folder.path + "/llama3.gguf";
  Metadata metadata = llama_metadata();
  metadata.set("llama.rope.freq_base", 500000.0f);
  Floats divisors = llama3_divisors(500000, 16);
  write_config(path, metadata, Tensor::from(divisors, {8}));
  const models::ModelConfig config = models::gguf_config(TensorFile(path));
  REQUIRE(config.rope.has_value());
  CHECK(config.rope->kind == models::RopeKind::Llama3);
  CHECK(config.rope->factor == doctest::Approx(8));
  CHECK(config.rope->original_positions == 8192);
  divisors[6] = 3;
  write_config(path, metadata, Tensor::from(divisors, {8}));
  CHECK(has(error_of([&] { models::gguf_config(TensorFile(path)); }),
            "rope_freqs.weight: element 6 is 3"));
}

TEST_CASE("metadata that are missing or of other models are errors with key and value") {
  const Folder folder;
  const std::string path = folder.path + "/model.gguf";
  const auto error = [&](Metadata metadata) {
    write_config(path, std::move(metadata));
    return error_of([&] { models::gguf_config(TensorFile(path)); });
  };
  Metadata other = llama_metadata();
  other.set("general.architecture", std::string("rwkv"));
  CHECK(has(error(other), "general.architecture is \"rwkv\", which is not supported"));
  Metadata missing;
  missing.set("general.architecture", std::string("llama"));
  CHECK(has(error(missing), "llama.embedding_length"));
  Metadata scaled = llama_metadata();
  scaled.set("llama.rope.scaling.type", std::string("spiral"));
  scaled.set("llama.rope.scaling.factor", 2.0f);
  CHECK(has(error(scaled), "spiral"));
  scaled.set("llama.rope.scaling.type", std::string("linear"));
  write_config(path, scaled);
  CHECK(models::gguf_config(TensorFile(path)).rope->kind == models::RopeKind::Linear);
  const std::pair<const char*, const char*> kinds[] = {
      {R"("rope_type": "dynamic")", "scaled by \"dynamic\""},
      {R"("rope_type": "yarn", "attention_factor": 2.0)",
       "scaled by \"yarn\" with attention_factor"},
  };
  for (const auto& [kind, message] : kinds) {
    models::Transformer model =
        random_model(config_of("llama", cat(R"(, "rope_scaling": {"factor": 2.0, )", kind, "}")));
    CHECK(has(error_of([&] { save_gguf(path, model, stored_type("F32")); }), message));
  }
}

TEST_CASE("a file's vocabulary makes its tokenizer") {
  const Folder folder;
  const std::string path = folder.path + "/model.gguf";
  Metadata metadata = llama_metadata();
  CHECK(has(error_of([&] { models::gguf_vocabulary(metadata); }), "tokenizer.ggml.model"));
  metadata.set("tokenizer.ggml.model", std::string("llama"));
  std::vector<std::string> tokens{"<unk>", "<s>", "</s>", "\u2581", "a", "b", "ab", "\u2581ab"};
  metadata.set("tokenizer.ggml.tokens", MetadataArray{tokens});
  metadata.set("tokenizer.ggml.scores", MetadataArray{Floats{0, 0, 0, -5, -6, -7, -1, -2}});
  metadata.set("tokenizer.ggml.token_type",
               MetadataArray{std::vector<int32_t>{2, 3, 3, 1, 1, 1, 1, 1}});
  write_config(path, metadata);
  const models::Tokenizer tokenizer = models::load_tokenizer(path);
  CHECK(tokenizer.encode("ab a") == std::vector<int32_t>{1, 7, 3, 4});
  CHECK(tokenizer.decode(std::vector<int32_t>{1, 7, 3, 4}) == "ab a");

  // And goes into the file of another model.
  models::Transformer model = random_model(config_of("llama"));
  const std::string copy = folder.path + "/copy.gguf";
  save_gguf(copy, model, stored_type("F32"), models::vocabulary_metadata(path));
  CHECK(models::load_tokenizer(copy).encode("ab a") == std::vector<int32_t>{1, 7, 3, 4});
  CHECK(models::load(copy).config().vocab == 67);
}

namespace {

// A tokenizer.json of BPE, with a few letters and merges.
std::string tokenizer_json(const std::string& model, const std::string& rest) {
  return R"({"added_tokens": [{"id": 0, "content": "<s>", "special": true},
      {"id": 12, "content": "<tool>", "special": false,
       "normalized": false}],
    "post_processor": {"type": "TemplateProcessing",
      "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
          {"Sequence": {"id": "A", "type_id": 0}}],
      "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
      "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}},
    "model": {"type": "BPE", )" +
         model + "}, " + rest + "}";
}

}  // namespace

TEST_CASE("a tokenizer.json goes into a GGUF file as its vocabulary") {
  const Folder folder;
  const std::string json = folder.path + "/tokenizer.json", path = folder.path + "/model.gguf";
  const auto write = [&](const std::string& text) { std::ofstream(json) << text; };
  const std::string bytes = R"("vocab": {"<s>": 0, "a": 1, "b": 2, "c": 3, "\u0120": 4, "ab": 5,
      "\u0120c": 6, "abc": 7, "1": 8, "ca": 9, "d": 10, "e": 11},
      "merges": ["c a", ["a", "b"], "\u0120 c", "ab c"])";
  const std::string spaces = R"("byte_fallback": true, "unk_token": "<unk>",
      "vocab": {"<s>": 0, "<unk>": 1, "a": 2, "b": 3, "c": 4, "\u2581": 5, "ab": 6, "\u2581c": 7,
      "abc": 8, "ca": 9, "<0xC3>": 10, "<0xA9>": 11},
      "merges": ["c a", "a b", "\u2581 c", "ab c"])";
  const std::string of_bytes = R"("pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
      "decoder": {"type": "ByteLevel"})";
  const std::string of_spaces = R"("normalizer": {"type": "Sequence", "normalizers": [
      {"type": "Prepend", "prepend": "\u2581"},
      {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]}, "decoder": {"type":
      "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
      {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1,
      "stop": 0}]})";
  models::Transformer model = random_model(config_of("llama"));
  for (const auto& [kind, text] : {std::pair("gpt2", tokenizer_json(bytes, of_bytes)),
                                   std::pair("llama", tokenizer_json(spaces, of_spaces))}) {
    CAPTURE(kind);
    write(text);
    const Metadata vocabulary = models::vocabulary_metadata(json);
    CHECK(vocabulary.text("tokenizer.ggml.model") == kind);
    save_gguf(path, model, stored_type("F32"), vocabulary);
    const Metadata written = TensorFile(path).metadata();
    CHECK(written.integer("tokenizer.ggml.bos_token_id") == 0);  // the vocabulary's
    CHECK(written.integer("tokenizer.ggml.eos_token_id") == 2);  // the model's
    CHECK(written.texts("tokenizer.ggml.tokens").size() == 67);  // as many as the model has
    const models::Tokenizer there = models::load_tokenizer(json);
    const models::Tokenizer here = models::load_tokenizer(path);
    for (const char* sample : {"abc ca", "cab", "c c", "ab<tool>bca", "a", "abcabc cc"}) {
      CAPTURE(sample);
      const std::vector<int32_t> ids = there.encode(sample);
      CHECK(ids.size() > 1);
      CHECK(here.encode(sample) == ids);
      CHECK(here.decode(ids) == there.decode(ids));
    }
    if (std::string(kind) == "llama") CHECK(here.encode("\u00e9") == there.encode("\u00e9"));
  }

  const auto error = [&](const std::string& text) {
    write(text);
    return error_of([&] { models::vocabulary_metadata(folder.path); });
  };
  CHECK(has(error(tokenizer_json(bytes, R"("pre_tokenizer": {"type": "Sequence", "pretokenizers": [
      {"type": "Split", "pattern": {"Regex": "x+"}, "behavior": "Isolated"},
      {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]})")),
            "pre_tokenizer is not supported"));
  CHECK(has(error(tokenizer_json(bytes, of_bytes + R"(, "normalizer": {"type": "Lowercase"})")),
            "normalizer is not supported"));
  CHECK(has(error(R"({"model": {"type": "WordPiece", "vocab": {"[UNK]": 0}, "unk_token": "[UNK]",
      "continuing_subword_prefix": "##", "max_input_chars_per_word": 9}})"),
            "model.type is not supported: \"WordPiece\""));
  models::GgufVocabulary large;
  large.model = "gpt2";
  large.tokens.assign(68, "x");
  CHECK(has(error_of([&] { save_gguf(path, model, stored_type("F32"), gguf_metadata(large)); }),
            "a vocabulary of 68 tokens for a model of 67"));
}
