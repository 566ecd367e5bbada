#include <doctest/doctest.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "test/error_of.h"
#include "test/unit/small_models.h"
#include "tiny/models/config/config.h"
#include "tiny/models/generate.h"
#include "tiny/models/weights.h"
#include "tiny/tensor/random.h"
#include "tiny/train/optim.h"
#include "tiny/train/safetensors.h"

using namespace tiny;
using models::Transformer;
using test::largest_difference;
using tiny::test::random_model;
using tiny::test::small_config;

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
    CHECK(largest_difference(logits, wanted) <= 1e-4 * largest(wanted));
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
    const auto greedy = tensor_of(expected["greedy"]).to_vector<int64_t>();
    const std::vector<models::Tokens> prompts =
        models::unpadded(tensor_of(expected["input_ids"]), tensor_of(expected["attention_mask"]));
    models::Generator write(model);
    const models::Generated g = write(prompts, {.max_new_tokens = 24, .eos = models::Tokens{}});
    for (size_t i = 0; i < prompts.size(); ++i)
      CHECK(g.tokens[i] == models::Tokens(greedy.begin() + i * 24, greedy.begin() + (i + 1) * 24));
  }
}

// --- Small models made here ----------------------------------------------------------------------

namespace {

Tensor random_ids(const Shape& shape) { return Tensor::randint(0, 101, shape).realize(); }

Floats logits_of(Transformer& model, const Tensor& ids, const Tensor& mask = Tensor()) {
  return model(ids, mask).to_vector<float>();
}

Tensor& tensor_named(Transformer& model, const std::string& name) {
  for (const NamedTensor& named : model.state_dict())
    if (named.name == name) return *named.tensor;
  FAIL("no tensor " << name);
  throw Error(name);
}

// A folder that is removed again, with a model in it.
class Folder {
 public:
  explicit Folder(Transformer& model) { models::save(path, model); }
  ~Folder() { std::filesystem::remove_all(path); }
  const std::string path =
      cat(std::filesystem::temp_directory_path().string(), "/tiny_models_", getpid());
};

std::vector<StateEntry> entries_of(const std::string& folder) {
  return read_safetensors(folder + "/model.safetensors").entries;
}

}  // namespace

TEST_CASE("heads that share keys are heads with copies of them") {
  for (const int64_t groups : {1, 2, 3}) {
    CAPTURE(groups);
    Transformer few = random_model(small_config("llama", cat("\"num_key_value_heads\": ", groups)));
    Transformer all = random_model(small_config("llama", "\"num_key_value_heads\": 6"));
    // The last of two equal keys counts in JSON.
    REQUIRE(few.config().kv_heads == groups);
    const StateDict from = few.state_dict(), to = all.state_dict();
    for (size_t i = 0; i < from.size(); ++i) {
      Tensor value = from[i].tensor->detach();
      if (has(from[i].name, "k_proj") || has(from[i].name, "v_proj"))
        value = value.reshape({groups, 4, 24}).repeat_interleave(6 / groups, 0).reshape({24, 24});
      *to[i].tensor = value.contiguous().realize();
    }
    for (const int64_t batch : {1, 3}) {
      const Tensor ids = random_ids({batch, 9});
      CHECK(largest_difference(logits_of(few, ids), logits_of(all, ids)) < 1e-4);
    }
  }
}

TEST_CASE("experts that are looked up give what all experts give") {
  const char* kinds[] = {"mixtral", "olmoe", "llama4_text"};
  for (const int64_t experts : {6, 16})
    for (const char* type : kinds) {
      CAPTURE(experts);
      CAPTURE(type);
      Transformer model = random_model(
          small_config(type, cat("\"num_experts\": ", experts, ", \"num_experts_per_tok\": 2")));
      // One token has its experts looked up, nine go through all of them; the first of a causal
      // model sees itself alone.
      const Tensor ids = random_ids({1, 9});
      const Floats one = logits_of(model, ids.narrow(1, 0, 1)), nine = logits_of(model, ids);
      CHECK(largest_difference(one, Floats(nine.begin(), nine.begin() + 101)) < 1e-4);
      CHECK(largest_difference(one, Floats(nine.begin() + 101, nine.begin() + 202)) > 1e-2);
    }
}

TEST_CASE("of experts with the same weights the choice makes no difference") {
  for (const char* type : {"mixtral", "olmoe"}) {
    Transformer model = random_model(small_config(
        type, "\"num_experts\": 4, \"num_experts_per_tok\": 4, \"norm_topk_prob\": true"));
    for (const NamedTensor& named : model.state_dict())
      if (has(named.name, "experts."))
        *named.tensor =
            named.tensor->narrow(0, 0, 1).expand(to_shape(named.tensor->shape())).contiguous();
    const Tensor ids = random_ids({1, 5});
    const Floats before = logits_of(model, ids);
    for (int i = 0; i < 2; ++i) {
      Tensor& router = tensor_named(model, cat("model.layers.", i, ".mlp.gate.weight"));
      router = router.neg().realize();
    }
    CHECK(largest_difference(before, logits_of(model, ids)) < 1e-4);
  }
}

TEST_CASE("a window longer than the text is none, and a shorter one hides the past") {
  Transformer none = random_model(small_config("mistral", "\"sliding_window\": null"));
  Transformer longer = random_model(small_config("mistral", "\"sliding_window\": 12"));
  Transformer shorter = random_model(small_config("mistral", "\"sliding_window\": 3"));
  const Tensor ids = random_ids({2, 12});
  const Floats free = logits_of(none, ids), cut = logits_of(shorter, ids);
  CHECK(largest_difference(free, logits_of(longer, ids)) < 1e-5);
  const size_t row = 3 * 101;  // three tokens see all before them
  CHECK(largest_difference(Floats(free.begin(), free.begin() + row),
                           Floats(cut.begin(), cut.begin() + row)) < 1e-5);
  CHECK(largest_difference(free, cut) > 1e-2);
  // Two layers of three positions: the last of five tokens never hears of the first of six.
  const Tensor tail = ids.narrow(0, 0, 1).narrow(1, 0, 6);
  const Tensor other = Tensor::cat({mod(tail.narrow(1, 0, 1) + 1, 101), tail.narrow(1, 1, 5)}, 1);
  const Floats a = logits_of(shorter, tail), b = logits_of(shorter, other);
  CHECK(largest_difference(Floats(a.begin() + 5 * 101, a.end()),
                           Floats(b.begin() + 5 * 101, b.end())) < 1e-6);
}

TEST_CASE("padding on either side changes nothing for the tokens") {
  for (const char* type : {"llama", "mixtral", "llama4_text"}) {
    CAPTURE(type);
    Transformer model = random_model(small_config(
        type,
        "\"num_experts\": 4, \"attention_chunk_size\": 4, \"attn_temperature_tuning\": false"));
    const Tensor ids = random_ids({1, 7}), pad = Tensor::zeros({1, 3}, kI64);
    const Tensor ones = Tensor::ones({1, 7}, kI64);
    const Floats plain = logits_of(model, ids);
    const Floats left = logits_of(model, Tensor::cat({pad, ids}, 1), Tensor::cat({pad, ones}, 1));
    const Floats right = logits_of(model, Tensor::cat({ids, pad}, 1), Tensor::cat({ones, pad}, 1));
    CHECK(largest_difference(plain, Floats(left.begin() + 3 * 101, left.end())) < 1e-4);
    CHECK(largest_difference(plain, Floats(right.begin(), right.begin() + 7 * 101)) < 1e-4);
    for (const float v : left) CHECK(std::isfinite(v));
  }
}

TEST_CASE("a classifier of BERT has a logit for each label, and a loss that goes down") {
  const char* more =
      R"("num_key_value_heads": 6, "architectures": ["BertForSequenceClassification"],
      "id2label": {"0": "a", "1": "b", "2": "c"})";
  Transformer model = random_model(small_config("bert", more));
  const models::Inputs inputs{random_ids({4, 8}), Tensor(), Tensor::ones({4, 8}, kI64)};
  CHECK(to_shape(model.forward(inputs).shape()) == Shape{4, 3});
  const Tensor labels = Tensor::from({int64_t{0}, int64_t{2}, int64_t{1}, int64_t{2}});
  AdamW optimizer(model.tensors(), 3e-3);
  float first = 0, last = 0;
  for (int i = 0; i < 6; ++i) {
    Tensor loss = model.loss(inputs, labels);
    loss.backward();
    optimizer.step({&loss});
    last = loss.item<float>();
    if (i == 0) first = last;
  }
  CHECK(last < 0.5f * first);
}

TEST_CASE("dropout changes a model in training alone") {
  Transformer model = random_model(small_config("llama", "\"attention_dropout\": 0.5"));
  const Tensor ids = random_ids({2, 9});
  const Floats plain = logits_of(model, ids);
  CHECK(largest_difference(plain, logits_of(model, ids)) == 0);
  const nn::Training training;
  CHECK(largest_difference(plain, logits_of(model, ids)) > 1e-2);
}

TEST_CASE("a model that is saved is found again, under the names of files") {
  for (const char* type : {"mixtral", "gpt2", "llama4_text"}) {
    CAPTURE(type);
    Transformer model = random_model(small_config(type, "\"num_experts\": 3"));
    const Folder folder(model);
    std::vector<std::string> names;
    for (const StateEntry& e : entries_of(folder.path)) names.push_back(e.name);
    const std::string expert = "model.layers.1.block_sparse_moe.experts.2.w3.weight";
    const bool one_by_one = std::string(type) == "mixtral";
    CHECK((std::find(names.begin(), names.end(), expert) != names.end()) == one_by_one);
    models::LoadReport report;
    Transformer again = models::load(folder.path, {}, &report);
    CHECK(report.unexpected.empty());
    CHECK(report.tensors == std::ssize(model.state_dict()));
    const Tensor ids = random_ids({1, 6});
    CHECK(largest_difference(logits_of(model, ids), logits_of(again, ids)) == 0);
    Transformer half = models::load(folder.path, {.dtype = kBF16});
    CHECK(half.state_dict()[0].tensor->dtype() == kBF16);
    CHECK(half(ids).dtype() == kBF16);
  }
}

TEST_CASE("a model is loaded onto a device, and writes on there") {
  Transformer model = random_model(small_config("llama"));
  const Folder folder(model);
  Transformer there = models::load(folder.path, {.device = "CPU:1"});
  for (Tensor* t : there.tensors()) CHECK(t->device() == "CPU:1");
  const Tensor ids = random_ids({1, 6});
  CHECK(largest_difference(logits_of(model, ids), logits_of(there, ids.to("CPU:1"))) < 1e-5);
  models::Generator here_writes(model), there_writes(there);
  const std::vector<models::Tokens> prompts{{3, 1, 4, 1, 5}};
  CHECK(there_writes(prompts, {.max_new_tokens = 6}).tokens ==
        here_writes(prompts, {.max_new_tokens = 6}).tokens);
}

TEST_CASE("files of a model without a head, and tensors that nobody expects, are taken") {
  Transformer model = random_model(small_config("gpt2"));
  const Folder folder(model);
  std::vector<StateEntry> entries = entries_of(folder.path);
  for (StateEntry& e : entries) e.name = e.name.substr(std::string("transformer.").size());
  entries.push_back({"h.0.attn.bias", kF32, {2}, std::vector<std::byte>(8)});
  write_safetensors(folder.path + "/model.safetensors", entries);
  models::LoadReport report;
  Transformer again = models::load(folder.path, {}, &report);
  CHECK(report.unexpected == std::vector<std::string>{"h.0.attn.bias"});
  const Tensor ids = random_ids({1, 6});
  CHECK(largest_difference(logits_of(model, ids), logits_of(again, ids)) == 0);
}

TEST_CASE("tensors that are missing or of another shape are errors with all names") {
  Transformer model = random_model(small_config("llama"));
  const Folder folder(model);
  std::vector<StateEntry> entries = entries_of(folder.path);
  std::erase_if(entries, [](const StateEntry& e) {
    return e.name == "lm_head.weight" || has(e.name, "0.mlp.up_proj");
  });
  for (StateEntry& e : entries)
    if (e.name == "model.norm.weight") {
      e.shape = {12};
      e.data.resize(48);
    }
  write_safetensors(folder.path + "/model.safetensors", entries);
  const std::string text = error_of([&] { models::load(folder.path); });
  CHECK(has(text, "missing: lm_head.weight (101,24)"));
  CHECK(has(text, "missing: model.layers.0.mlp.up_proj.weight (20,24)"));
  CHECK(has(text, "shape: model.norm.weight is (12) in the file and (24) in the model"));
  std::filesystem::remove(folder.path + "/model.safetensors");
  CHECK(has(error_of([&] { models::load(folder.path); }), "has no model: neither"));
  CHECK(has(error_of([] { models::load("/nowhere"); }), "cannot open /nowhere"));
}

TEST_CASE("an index names files of its folder that are there") {
  Transformer model = random_model(small_config("llama"));
  const Folder folder(model);
  std::filesystem::rename(folder.path + "/model.safetensors", folder.path + "/part.safetensors");
  const auto load_with = [&](const std::string& file) {
    std::ofstream(folder.path + "/model.safetensors.index.json")
        << R"({"weight_map": {"model.norm.weight": ")" << file << "\"}}";
    return error_of([&] { models::load(folder.path); });
  };
  CHECK(load_with("part.safetensors") == "no error");
  CHECK(has(load_with("../part.safetensors"),
            "is '../part.safetensors', which is none in its folder"));
  CHECK(has(load_with("other.safetensors"), "other.safetensors"));
}

TEST_CASE("inputs that do not fit are errors with their shapes") {
  Transformer model = random_model(small_config("gpt2"));
  CHECK(has(error_of([&] { model(Tensor::ones({2, 3})); }), "token ids are integers"));
  CHECK(has(error_of([&] { model(random_ids({1, 41})); }), "41 tokens, and there are 40"));
  CHECK(has(error_of([&] { model(random_ids({1, 4}), Tensor::ones({1, 5}, kI64)); }), "(1,5)"));
  CHECK(has(error_of([&] { model.loss({random_ids({1, 4})}, random_ids({1, 3})); }), "(1,3)"));
}
