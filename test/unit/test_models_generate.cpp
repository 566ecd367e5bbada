#include <doctest/doctest.h>

#include <cmath>
#include <cstdio>

#include "runtime/kernels/kernel.h"
#include "test/error_of.h"
#include "test/unit/small_models.h"
#include "tiny/models/config/config.h"
#include "tiny/models/generate.h"
#include "tiny/models/sampling_graph.h"
#include "tiny/nn/lora.h"
#include "tiny/tensor/random.h"
#include "tiny/train/optim.h"

using namespace tiny;
using namespace tiny::models;

namespace {

// A small random model that does not end a text by itself.
Transformer small_model(const std::string& type, const std::string& members = "") {
  constexpr const char* kMore = R"("intermediate_size_mlp": 28, "num_experts": 6,
      "num_experts_per_tok": 2, "eos_token_id": null)";
  return test::random_model(
      test::small_config(type, cat(kMore, members.empty() ? "" : ", ", members)));
}

Tokens random_tokens(int64_t count, uint64_t seed) {
  SplitMix64 random(seed);
  Tokens out;
  for (int64_t i = 0; i < count; ++i) out.push_back(random.below(101));
  return out;
}

// Whether each of the tokens is the most probable one after what is before it, as the whole texts
// say. Texts shorter than the longest are padded on the left, with positions of their own.
bool are_most_probable(Transformer& model, std::vector<Tokens> texts,
                       const std::vector<Tokens>& next) {
  const NoGrad no_grad;
  size_t longest = 0;
  for (size_t i = 0; i < texts.size(); ++i) {
    texts[i].insert(texts[i].end(), next[i].begin(), next[i].end());
    longest = std::max(longest, texts[i].size());
  }
  Tokens ids, mask, positions;
  for (const Tokens& text : texts)
    for (size_t i = 0; i < longest; ++i) {
      const size_t padding = longest - text.size();
      ids.push_back(i < padding ? 0 : text[i - padding]);
      mask.push_back(i >= padding);
      positions.push_back(i < padding ? 0 : static_cast<int64_t>(i - padding));
    }
  const Shape shape{std::ssize(texts), static_cast<int64_t>(longest)};
  const Tensor logits = model.forward(Inputs{Tensor::from(ids, shape), Tensor::from(mask, shape),
                                             Tensor(), Tensor::from(positions, shape)});
  const auto best = logits.argmax(-1).to_vector<int64_t>();
  for (size_t i = 0; i < texts.size(); ++i)
    for (size_t j = 0; j < next[i].size(); ++j)
      if (best[(i + 1) * longest - next[i].size() - 1 + j] != next[i][j]) return false;
  return true;
}

}  // namespace

TEST_CASE("steps with a cache give what the whole text gives") {
  const std::pair<const char*, const char*> kinds[] = {
      {"llama", R"("rope_scaling": {"type": "linear", "factor": 3.0})"},
      {"llama", R"("rope_scaling": {"type": "dynamic", "factor": 2.0})"},
      {"mistral", R"("sliding_window": 6)"},
      {"mixtral", R"("num_experts": 6, "num_attention_heads": 2)"},
      {"olmoe", R"("num_experts": 16, "clip_qkv": 0.5)"},
      {"llama4_text", R"("attention_chunk_size": 8, "floor_scale": 4, "num_hidden_layers": 4,
          "interleave_moe_layer_step": 2)"},
      {"gpt2", R"("n_inner": 30)"},
      {"qwen3", R"("use_sliding_window": true, "sliding_window": 300, "max_window_layers": 1)"},
  };
  for (const auto& kind : kinds) {
    CAPTURE(kind.first);
    CAPTURE(kind.second);
    Transformer model = small_model(kind.first, kind.second);
    Generator write(model);
    const std::vector<Tokens> one{random_tokens(34, 1)};
    const std::vector<Tokens> three{random_tokens(9, 2), random_tokens(21, 3), random_tokens(3, 4)};
    for (const std::vector<Tokens>& prompts : {one, three}) {
      const Generated g = write(prompts, {.max_new_tokens = 5});
      CHECK(g.tokens.size() == prompts.size());
      CHECK(g.tokens[0].size() == 5);
      CHECK(are_most_probable(model, prompts, g.tokens));
    }
  }
}

TEST_CASE("no kernel is compiled for prompts of another length, nor for later steps") {
  Transformer model = small_model("llama");
  Generator write(model);
  write({random_tokens(40, 1)}, {.max_new_tokens = 4});
  const size_t kernels = kernel_count();
  for (const int64_t length : {1, 2, 31, 32, 33, 50, 64})
    CHECK(write({random_tokens(length, 2)}, {.max_new_tokens = 20}).tokens[0].size() == 20);
  CHECK(kernel_count() == kernels);
}

TEST_CASE("a cache grows by pages, and long prompts are read in large steps") {
  Transformer model = small_model("llama");
  Generator write(model);
  const std::vector<Tokens> prompts{random_tokens(330, 5)};
  const Generated g = write(prompts, {.max_new_tokens = 460});
  CHECK(g.tokens[0].size() == 460);
  const int64_t page = 4 * 2 * 4 * 256 * 4;  // tensors, kv_heads, head_dim, columns, f32
  const std::vector<int64_t>& bytes = g.report.step_cache_bytes;
  REQUIRE(bytes.size() == 459);
  // The prompt fills 352 columns, each step one.
  for (const int64_t step : {0, 160, 161, 415, 416, 458}) {
    CAPTURE(step);
    CHECK(bytes[static_cast<size_t>(step)] == (352 + step + 1 + 255) / 256 * page);
  }
  CHECK(g.report.cache_bytes == 4 * page);
  CHECK(write.cache_bytes() == 4 * page);
  CHECK(g.report.prompt_tokens == 330);
  CHECK(g.report.new_tokens == 460);
  CHECK(g.report.step_seconds.size() == 459);
  CHECK(g.report.peak_bytes >= g.report.cache_bytes);
  CHECK(has(to_text(g.report), "330 tokens read"));
  CHECK(are_most_probable(model, prompts, g.tokens));
  // In a cache that is whole from the beginning.
  CHECK(write(prompts, {.max_new_tokens = 460}).tokens == g.tokens);
}

TEST_CASE("a cache holds little more than its text") {
  Transformer model = small_model("llama");
  const int64_t column = 4 * 2 * 4 * 4;  // tensors, kv_heads, head_dim, f32
  for (const auto& [length, columns] : std::vector<std::pair<int64_t, int64_t>>{{1, 64},
                                                                                {33, 64},
                                                                                {65, 128},
                                                                                {255, 256},
                                                                                {257, 512},
                                                                                {1200, 1280},
                                                                                {2300, 2560},
                                                                                {4200, 5120}}) {
    CAPTURE(length);
    Generator write(model);
    write({random_tokens(length, 6)}, {.max_new_tokens = 1});
    CHECK(write.cache_bytes() == columns * column);
  }
}

TEST_CASE("end tokens, a stop function and the number of tokens end texts one by one") {
  Transformer model = small_model("llama");
  Generator write(model);
  const std::vector<Tokens> prompts{random_tokens(5, 1), random_tokens(8, 2)};
  const std::vector<Tokens> free = write(prompts, {.max_new_tokens = 12}).tokens;
  REQUIRE(free[0].size() == 12);
  const auto until = [](const Tokens& tokens, int64_t token) {
    const auto at = std::find(tokens.begin(), tokens.end(), token);
    return Tokens(tokens.begin(), at == tokens.end() ? at : at + 1);
  };
  const int64_t end = free[0][3];
  const auto ended = write(prompts, {.max_new_tokens = 12, .eos = Tokens{end}}).tokens;
  for (size_t i = 0; i < 2; ++i) CHECK(ended[i] == until(free[i], end));

  std::vector<Tokens> streamed(2);
  GenerateOptions options{.max_new_tokens = 12};
  options.on_token = [&](size_t text, int64_t token) { streamed[text].push_back(token); };
  options.stop = [](size_t text, const Tokens& tokens) { return text == 1 && tokens.size() == 2; };
  const auto stopped = write(prompts, options).tokens;
  CHECK(stopped[0] == free[0]);
  CHECK(stopped[1] == Tokens(free[1].begin(), free[1].begin() + 2));
  CHECK(streamed == stopped);
}

TEST_CASE("padding on either side is no part of a prompt") {
  const Tensor ids = Tensor::from({int64_t{9}, int64_t{5}, int64_t{6}, int64_t{7}}, {2, 2});
  const Tensor mask = Tensor::from({0, 1, 1, 0}, {2, 2});
  CHECK(unpadded(ids, mask) == std::vector<Tokens>{{5}, {6}});
  CHECK(has(error_of([&] { unpadded(ids, ids.flatten()); }), "a mask of shape (4)"));
}

TEST_CASE("a text ends where learned positions do") {
  Transformer model = small_model("gpt2");
  Generator write(model);
  CHECK(write({random_tokens(38, 1)}, {.max_new_tokens = 9}).tokens[0].size() == 3);
  CHECK(has(error_of([&] { write({random_tokens(41, 1)}); }),
            "a prompt of 41 tokens, and there are 40 positions"));
}

TEST_CASE("a seed repeats a text, and draws do not depend on the rest of the batch") {
  Transformer model = small_model("llama");
  Generator write(model);
  const GenerateOptions options{.max_new_tokens = 10,
                                .sampling = {.temperature = 0.9, .top_k = 50, .seed = 3}};
  GenerateOptions other = options;
  other.sampling.seed = 4;
  const Tokens prompt = random_tokens(6, 1);
  const auto once = write({prompt}, options).tokens, again = write({prompt}, options).tokens;
  CHECK(once == again);
  CHECK(once != write({prompt}, other).tokens);
  CHECK(write({prompt, random_tokens(11, 2)}, options).tokens[0] == once[0]);
}

TEST_CASE("a model may be changed between calls: trained, converted, given adapters") {
  Transformer model = small_model("llama");
  Generator write(model);
  const std::vector<Tokens> prompts{random_tokens(6, 1)};
  std::vector<std::vector<Tokens>> all;
  // What a new generator of the model writes; two steps, so that both are captured.
  const auto check_same = [&](const char* what) {
    CAPTURE(what);
    write(prompts, {.max_new_tokens = 3});
    all.push_back(write(prompts, {.max_new_tokens = 8}).tokens);
    CHECK(Generator(model)(prompts, {.max_new_tokens = 8}).tokens == all.back());
    CHECK(are_most_probable(model, prompts, all.back()));
  };
  check_same("as it is");
  const Tensor ids = Tensor::from(random_tokens(20, 7), {1, 20});
  AdamW optimizer(model.tensors(), 0.03);
  for (int i = 0; i < 3; ++i) {
    Tensor loss = model.loss({ids}, ids);
    loss.backward();
    optimizer.step({&loss});
  }
  check_same("trained in place");
  for (const NamedTensor& t : model.state_dict()) t.tensor->requires_grad_(false);
  check_same("without gradients");
  nn::add_lora(model, {"q_proj", "v_proj", "down_proj"}, {.rank = 2, .alpha = 8});
  for (const NamedTensor& t : nn::lora_state_dict(model))
    *t.tensor = Tensor::randn(to_shape(t.tensor->shape())).realize();
  check_same("with adapters");
  nn::merge_lora(model);
  check_same("merged");
  nn::remove_lora(model);
  for (const NamedTensor& t : model.state_dict()) *t.tensor = (*t.tensor * 1.5).realize();
  check_same("other weights");
  for (const NamedTensor& t : model.state_dict()) *t.tensor = *t.tensor * 0.5 + 0.01;
  check_same("weights that are not computed");
  model.to(kBF16);
  check_same("in bf16");
  CHECK(all[0] != all[1]);
  CHECK(all[2] != all[3]);
  CHECK(all[4] != all[5]);
}

TEST_CASE("dropout does not act on what is written, also while a model is trained") {
  ModelConfig config = small_model("llama").config();
  config.dropout.residual = config.dropout.embedding = 0.5;
  manual_seed(3);
  Transformer model(config);
  model.initialize();
  Generator write(model);
  const std::vector<Tokens> prompts{random_tokens(6, 1)};
  std::vector<Tokens> in_training;
  {
    const nn::Training training;
    in_training = write(prompts, {.max_new_tokens = 9}).tokens;
    CHECK(nn::is_training());
  }
  CHECK(write(prompts, {.max_new_tokens = 9}).tokens == in_training);
}

TEST_CASE("tokens drawn on the device are those drawn on the host") {
  Transformer model = small_model("llama");
  Generator write(model);
  const std::vector<Tokens> prompts{random_tokens(5, 1), random_tokens(11, 2)};
  const SamplingOptions settings[] = {
      {.temperature = 0.9, .top_k = 20, .top_p = 0.9, .repetition_penalty = 1.3, .seed = 3},
      {.temperature = 1.5, .min_p = 0.05, .seed = 4},
      {.repetition_penalty = 2},
  };
  for (const SamplingOptions& sampling : settings) {
    GenerateOptions options{.max_new_tokens = 12, .sampling = sampling, .sample_on_device = true};
    options.stop = [](size_t text, const Tokens& tokens) {
      return text == 1 && tokens.size() == 5;
    };
    const auto there = write(prompts, options).tokens, again = write(prompts, options).tokens;
    CHECK(there == again);
    options.sample_on_device = false;
    CHECK(write(prompts, options).tokens == there);
  }
}

TEST_CASE("errors of generation name what is wrong") {
  Transformer model = small_model("llama");
  Generator write(model);
  CHECK(has(error_of([&] { write({}); }), "no prompt"));
  CHECK(has(error_of([&] { write({{1}, {}}); }), "prompt 1 has no token"));
  CHECK(has(error_of([&] { write({{1, 101}}); }), "prompt 0 has the token 101, expected 0 to 100"));
  CHECK(has(error_of([&] { write({{-1}}); }), "the token -1"));
  CHECK(has(error_of([&] { write({{1}}, {.max_new_tokens = 0}); }), "max_new_tokens 0"));
  const std::pair<SamplingOptions, const char*> wrong[] = {
      {{.temperature = -0.5}, "temperature -0.5, expected 0 or more"},
      {{.temperature = NAN}, "temperature nan"},
      {{.top_k = -1}, "top_k -1"},
      {{.top_p = 0}, "top_p 0, expected above 0"},
      {{.top_p = 1.5}, "top_p 1.5"},
      {{.min_p = 2}, "min_p 2"},
      {{.repetition_penalty = 0}, "repetition_penalty 0"},
  };
  for (const auto& row : wrong)
    CHECK(has(error_of([&] { write({{1}}, {.sampling = row.first}); }), row.second));
  ModelConfig bert = parse_config(R"({"model_type": "bert", "hidden_size": 24,
      "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 8, "vocab_size": 9})");
  Transformer masked(bert);
  CHECK(has(error_of([&] { Generator generator(masked); }), "bert: only causal models"));
}

// --- Sampling ------------------------------------------------------------------------------------

namespace {

// How often each token is drawn, of 4000.
std::vector<int> counts(const SamplingOptions& options, const std::vector<float>& logits,
                        const Tokens& seen = {}) {
  Sampler sampler(options, 0);
  std::vector<int> out(logits.size());
  for (int i = 0; i < 4000; ++i) {
    std::vector<float> copy = logits;
    ++out[static_cast<size_t>(sampler.next(copy, seen))];
  }
  return out;
}

// Probabilities 0.5, 0.25, 0.15, 0.1.
const std::vector<float> kLogits{std::log(0.25f), std::log(0.5f), std::log(0.1f), std::log(0.15f)};

}  // namespace

TEST_CASE("tokens are drawn as often as their probabilities say") {
  const auto n = counts({.temperature = 1, .seed = 1}, kLogits);
  CHECK(std::abs(n[1] - 2000) < 150);
  CHECK(std::abs(n[0] - 1000) < 130);
  CHECK(std::abs(n[3] - 600) < 110);
  // At temperature 0.5 probabilities are squared: 0.25 of 0.345.
  CHECK(std::abs(counts({.temperature = 0.5, .seed = 1}, kLogits)[1] - 2899) < 150);
  CHECK(counts({}, kLogits)[1] == 4000);
}

TEST_CASE("top-k, top-p and min-p leave the most probable tokens") {
  const auto kept = [](const SamplingOptions& options) {
    std::string out;
    for (const int n : counts(options, kLogits)) out += n > 0 ? 'x' : '.';
    return out;
  };
  CHECK(kept({.temperature = 1, .top_k = 1}) == ".x..");
  CHECK(kept({.temperature = 1, .top_k = 2}) == "xx..");
  CHECK(kept({.temperature = 1, .top_k = 9}) == "xxxx");
  CHECK(kept({.temperature = 1, .top_p = 0.4}) == ".x..");
  CHECK(kept({.temperature = 1, .top_p = 0.74}) == "xx..");
  CHECK(kept({.temperature = 1, .top_p = 0.76}) == "xx.x");
  CHECK(kept({.temperature = 1, .min_p = 0.25}) == "xx.x");
  CHECK(kept({.temperature = 1, .min_p = 0.4}) == "xx..");
  // After top-k the rest adds up to 1 again: 0.5 of 0.75.
  CHECK(kept({.temperature = 1, .top_k = 2, .top_p = 0.6}) == ".x..");
}

TEST_CASE("a repetition penalty moves logits of tokens that were there towards nothing") {
  std::vector<float> logits{2, 3, -1, -1.5f};
  Sampler sampler({.repetition_penalty = 2}, 0);
  const Tokens seen{1, 2, 1};
  CHECK(sampler.next(logits, seen) == 0);
  CHECK(logits == std::vector<float>{2, 1.5f, -2, -1.5f});
}

TEST_CASE("logits that say nothing are errors") {
  Sampler sampler({.temperature = 1}, 0);
  std::vector<float> none{-INFINITY, -INFINITY}, broken{1, NAN}, one{-INFINITY, 0};
  CHECK(has(error_of([&] { sampler.next(none, {}); }), "no logit is finite"));
  CHECK(has(error_of([&] { sampler.next(broken, {}); }), "a logit is NaN"));
  CHECK(sampler.next(one, {}) == 1);
}

namespace {

// What the graph gives for logits (B, vocab) after other draws, which it gives as well.
struct GraphSampler {
  GraphSampler(const SamplingOptions& options, const Shape& shape, const std::string& device)
      : parts(options),
        seen((Tensor::zeros(shape) != 0).to(device).contiguous().realize()),
        numbers(Tensor::from(sampling_numbers(options), {5}, device)) {}

  Tokens next(const Tensor& logits, const std::vector<double>& random) {
    const std::string device = seen.device();
    const Tensor draws = Tensor::from(random, {std::ssize(random)}, device);
    Sampled sampled = sample({logits.to(device), seen, numbers, draws}, parts);
    seen = sampled.seen.realize();
    return sampled.tokens.to_vector<int64_t>();
  }

  SamplingParts parts;
  Tensor seen, numbers;
};

const SamplingOptions kSettings[] = {
    {.temperature = 0.7},
    {.temperature = 1, .top_k = 3},
    {.temperature = 1, .top_k = 4000},
    {.temperature = 2, .top_p = 0.5},
    {.temperature = 1, .top_p = 1e-9},
    {.temperature = 1, .min_p = 0.2},
    {.temperature = 1.5, .min_p = 1},
    {.repetition_penalty = 3},
    {.temperature = 8, .repetition_penalty = 0.02},
    {.temperature = 1.2, .top_k = 30, .top_p = 0.8, .min_p = 0.01, .repetition_penalty = 1.4},
};

}  // namespace

TEST_CASE("a graph draws what the host draws, also of equal logits") {
  const NoGrad no_grad;
  constexpr int64_t kBatch = 3, kVocab = 211;
  for (const std::string device : {"CPU", "EMU:CUDA:sm_90a"})
    for (const SamplingOptions& options : kSettings) {
      CAPTURE(device);
      CAPTURE(&options - kSettings);
      GraphSampler graph(options, {kBatch, kVocab}, device);
      std::vector<Sampler> samplers;
      for (uint64_t i = 0; i < kBatch; ++i) samplers.emplace_back(options, i);
      std::vector<Tokens> seen(kBatch);
      for (int round = 0; round < (device == "CPU" ? 12 : 2); ++round) {
        // In steps of a quarter, below and above 0: many are equal.
        Tensor logits = ((Tensor::randn({kBatch, kVocab}) * 6).round() / 4).realize();
        if (round == 1) logits = where(logits < 0, -INFINITY, logits);
        std::vector<float> values = logits.to_vector<float>();
        std::vector<double> random;
        for (const Sampler& sampler : samplers) random.push_back(Sampler(sampler).random());
        const Tokens tokens = graph.next(logits, random);
        for (size_t i = 0; i < kBatch; ++i) {
          const auto row = std::span(values).subspan(i * kVocab, kVocab);
          CHECK(samplers[i].next(row, seen[i]) == tokens[i]);
          seen[i].push_back(tokens[i]);
        }
      }
    }
}

TEST_CASE("a graph says that logits say nothing") {
  const NoGrad no_grad;
  for (const SamplingOptions& options : kSettings) {
    GraphSampler graph(options, {4, 2}, "CPU");
    const std::vector<float> logits{-INFINITY, -INFINITY, 1, NAN, -INFINITY, 0, INFINITY, 0};
    const Tokens tokens = graph.next(Tensor::from(logits, {4, 2}), {0.5, 0.5, 0.5, 0.5});
    CHECK(tokens == Tokens{kNoFiniteLogit, kNanLogit, 1, kNoFiniteLogit});
  }
  CHECK(has(error_of([] { check_sampled(kNoFiniteLogit); }), "no logit is finite"));
  CHECK(has(error_of([] { check_sampled(kNanLogit); }), "a logit is NaN"));
}
