#include <doctest/doctest.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "tiny/models/generate.h"
#include "tiny/models/weights.h"
#include "tiny/train/optim.h"
#include "tiny/train/safetensors.h"

using namespace tiny;
using models::Transformer;

namespace {

using Floats = std::vector<float>;
using Entries = std::map<std::string, StateEntry>;

const std::string kFolder = std::string(TINY_ROOT) + "/../shared/models";

// Models made with transformers, and what it computes with them; without the folder a line says
// what is left out.
std::vector<std::string> sample_models() {
  if (!std::filesystem::exists(kFolder)) {
    MESSAGE("no ../shared/models: left out are comparisons with transformers");
    return {};
  }
  return {"bert",    "gpt2",    "llama", "llama2", "llama4_text",
          "mistral", "mixtral", "olmoe", "qwen2",  "qwen3"};
}

Entries read_entries(const std::string& path) {
  Entries out;
  for (StateEntry& e : read_safetensors(path).entries) out.emplace(e.name, std::move(e));
  return out;
}

Tensor tensor_of(const StateEntry& e) {
  return Tensor::from_bytes(e.data.data(), e.dtype, Shape(e.shape.begin(), e.shape.end()));
}

Floats floats_of(const StateEntry& e) { return tensor_of(e).to(kF32).to_vector<float>(); }

double largest(const Floats& values) {
  double most = 0;
  for (const float v : values) most = std::max(most, std::abs(static_cast<double>(v)));
  return most;
}

double difference(const Floats& a, const Floats& b) {
  REQUIRE(a.size() == b.size());
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i)
    most = std::max(most, std::abs(static_cast<double>(a[i]) - b[i]));
  return most;
}

}  // namespace

TEST_CASE(
    "logits, loss, gradients and AdamW steps of ten architectures are those of transformers") {
  for (const std::string& name : sample_models()) {
    CAPTURE(name);
    const std::string folder = cat(kFolder, "/", name);
    Entries expected = read_entries(folder + "/expected.safetensors");
    models::LoadReport report;
    // Its sample is of model.to(torch.bfloat16), which rounds more than the weights.
    const bool half = name == "llama2";
    Transformer model = models::load(folder, {.eager_attention = half}, &report);
    if (half) model.to(kBF16);
    CHECK(report.unexpected.empty());
    const models::Inputs inputs{tensor_of(expected["input_ids"]),
                                tensor_of(expected["attention_mask"])};
    const Floats logits = model.forward(inputs).to(kF32).to_vector<float>();
    const Floats wanted = floats_of(expected["logits"]);
    CHECK(difference(logits, wanted) <= 1e-4 * largest(wanted));
    if (!expected.contains("loss")) continue;

    const Tensor labels = tensor_of(expected["labels"]);
    Tensor loss = model.loss(inputs, labels);
    CHECK(std::abs(loss.item<float>() - floats_of(expected["loss"])[0]) <= 1e-5);
    loss.backward();
    std::ifstream file(folder + "/grad_norms.json");
    const nlohmann::json norms = nlohmann::json::parse(file);
    CHECK(norms.size() == model.state_dict().size());
    for (const NamedTensor& named : model.state_dict()) {
      CAPTURE(named.name);
      REQUIRE(norms.contains(named.name));
      const Floats gradient = named.tensor->grad().to_vector<float>();
      double square = 0;
      for (const float g : gradient) square += static_cast<double>(g) * g;
      // Gradients that are zero but for rounding have no digits to compare.
      const double norm = norms[named.name], bound = 1e-3 * norm + 1e-7;
      CHECK(std::abs(std::sqrt(square) - norm) <= bound);
      const Floats samples = floats_of(expected["grad." + named.name]);
      const size_t step = std::max<size_t>(1, gradient.size() / 64);
      for (size_t i = 0; i < samples.size(); ++i)
        CHECK(std::abs(gradient[i * step] - samples[i]) <= bound);
      named.tensor->zero_grad();
    }

    AdamW optimizer(model.tensors(), 1e-3, {.beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1});
    for (const float value : floats_of(expected["adamw_losses"])) {
      Tensor next = model.loss(inputs, labels);
      next.backward();
      clip_grad_norm_(model.tensors(), 1);
      optimizer.step({&next});
      CHECK(std::abs(next.item<float>() - value) <= 2e-5 * value);
    }
  }
}

TEST_CASE("greedy tokens of ten architectures are those of transformers, from a cache") {
  for (const std::string& name : sample_models()) {
    CAPTURE(name);
    const std::string folder = cat(kFolder, "/", name);
    Entries expected = read_entries(folder + "/expected.safetensors");
    if (!expected.contains("greedy")) continue;
    const bool half = name == "llama2";
    Transformer model = models::load(folder, {.eager_attention = half});
    if (half) model.to(kBF16);
    const Tensor ids = tensor_of(expected["input_ids"]);
    const auto tokens = ids.to_vector<int64_t>();
    const auto mask = tensor_of(expected["attention_mask"]).to_vector<int64_t>();
    const auto greedy = tensor_of(expected["greedy"]).to_vector<int64_t>();
    std::vector<models::Tokens> prompts(static_cast<size_t>(ids.size(0)));
    const auto length = static_cast<size_t>(ids.size(1));
    for (size_t i = 0; i < tokens.size(); ++i)
      if (mask[i]) prompts[i / length].push_back(tokens[i]);
    models::Generator write(model);
    const models::Generated g = write(prompts, {.max_new_tokens = 24, .eos = models::Tokens{}});
    for (size_t i = 0; i < prompts.size(); ++i)
      CHECK(g.tokens[i] == models::Tokens(greedy.begin() + i * 24, greedy.begin() + (i + 1) * 24));
  }
}
