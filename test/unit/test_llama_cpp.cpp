// Greedy tokens of GGUF files beside llama.cpp's, which node-llama-cpp has prebuilt.
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>

#include "test/temporary_folder.h"
#include "test/unit/small_models.h"
#include "tiny/base/error.h"
#include "tiny/models/generate.h"
#include "tiny/models/weights.h"
#include "tiny/tiny.h"

using namespace tiny;
using models::Tokens;

namespace {

constexpr int64_t kVocab = 320, kLength = 40, kPrompt = 8;

// Bytes and some words, as sentencepiece has them.
Metadata vocabulary() {
  std::vector<std::string> tokens{"<unk>", "<s>", "</s>"};
  std::vector<int32_t> types{2, 3, 3};
  for (int byte = 0; byte < 256; ++byte) {
    constexpr const char* kDigits = "0123456789ABCDEF";
    tokens.push_back(cat("<0x", kDigits[byte / 16], kDigits[byte % 16], ">"));
    types.push_back(6);
  }
  while (std::ssize(tokens) < kVocab) {
    tokens.push_back(cat("\u2581w", tokens.size()));
    types.push_back(1);
  }
  Metadata out;
  out.set("tokenizer.ggml.model", std::string("llama"));
  out.set("tokenizer.ggml.scores", MetadataArray{std::vector<float>(tokens.size())});
  out.set("tokenizer.ggml.tokens", MetadataArray{tokens});
  out.set("tokenizer.ggml.token_type", MetadataArray{types});
  return out;
}

// Texts of a dozen words: what follows a word depends on those before it.
std::vector<Tokens> texts() {
  SplitMix64 random(7);
  std::vector<Tokens> out(6, Tokens{1});
  for (Tokens& text : out)
    while (std::ssize(text) < kLength) text.push_back(260 + random.below(12));
  return out;
}

// A model that has the texts by heart, so that no token depends on how sums are rounded.
models::Transformer trained_model(const char* architecture, const char* more) {
  models::ModelConfig config = models::parse_config(test::small_config(
      architecture, cat(R"("vocab_size": )", kVocab, R"(, "hidden_size": 128, "head_dim": 32,
      "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 3,
      "intermediate_size": 160, "max_position_embeddings": 256, "eos_token_id": null,
      "bos_token_id": 1)",
                        more)));
  config.init_deviation = 0.05;
  manual_seed(11);
  models::Transformer model(config);
  model.initialize();
  Tokens all;
  for (const Tokens& text : texts()) all.insert(all.end(), text.begin(), text.end());
  const Tensor ids = Tensor::from(all, {std::ssize(texts()), kLength});
  AdamW optimizer(model.tensors(), 2e-3);
  Jit step([&](const Tensor& batch) {
    Tensor loss = model.loss({batch}, batch);
    loss.backward();
    optimizer.step({&loss});
    return loss;
  });
  float loss = 0;
  for (int i = 0; i < 160; ++i) loss = step(ids).item<float>();
  REQUIRE(loss < 0.5);  // of which the second word, which nothing tells, is a part
  return model;
}

// Of a module, arguments: the file of tokens to write, models. Prints a line of tokens for each
// prompt and model.
constexpr const char* kScript = R"(
import {createRequire} from "node:module";
import {pathToFileURL} from "node:url";
const [modules, count, prompts, ...files] = process.argv.slice(2);
const found = createRequire(modules + "/").resolve("node-llama-cpp");
const {getLlama} = await import(pathToFileURL(found).href);
const llama = await getLlama({gpu: false, build: "never", maxThreads: 1, logLevel: "error"});
for (const file of files) {
  const model = await llama.loadModel({modelPath: file});
  const context = await model.createContext({contextSize: 256, threads: 1});
  const sequence = context.getSequence();
  for (const prompt of JSON.parse(prompts)) {
    await sequence.clearHistory();
    const tokens = [];
    for await (const token of sequence.evaluate(prompt, {temperature: 0, yieldEogToken: true})) {
      tokens.push(token);
      if (tokens.length == count) break;
    }
    console.log(tokens.join(" ") + " ");
  }
}
process.exit(0);
)";

}  // namespace

TEST_CASE("greedy tokens of Q8_0 and Q4_0 files are llama.cpp's") {
  const char* set = std::getenv("NODE_MODULES");
  const std::string modules = set ? set : TINY_ROOT "/build/node_modules";
  if (!std::filesystem::exists(modules + "/node-llama-cpp") ||
      std::system("node --version >/dev/null 2>&1") != 0) {
    std::cout << "left out: node or node-llama-cpp is not in $NODE_MODULES (docs/files.md)\n";
    return;
  }
  const test::TemporaryFolder folder("llama_cpp");
  std::string prompts, files, ours;
  for (const Tokens& text : texts()) {
    prompts += prompts.empty() ? "[[" : ",[";
    for (int64_t i = 0; i < kPrompt; ++i) prompts += cat(i > 0 ? "," : "", text[i]);
    prompts += "]";
  }
  const std::pair<const char*, const char*> kinds[] = {
      {"llama", ""},
      {"qwen3", ""},
      {"llama", R"(, "rope_scaling": {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 64})"},
      {"qwen2", R"(, "rope_scaling": {"rope_type": "yarn", "factor": 4.0,
          "original_max_position_embeddings": 64})"},
  };
  for (const auto& [architecture, more] : kinds) {
    CAPTURE(architecture);
    CAPTURE(more);
    models::Transformer model = trained_model(architecture, more);
    for (const char* type : {"Q8_0", "Q4_0"}) {
      const std::string file = folder.file(cat(files.size(), ".gguf"));
      save_gguf(file, model, stored_type(type), vocabulary());
      files += cat(" ", file);
      models::Transformer stored = models::load(file, {.keep_quantized = QuantizedProduct::Bytes});
      models::Generator write(stored);
      for (const Tokens& text : texts()) {
        const Tokens prompt(text.begin(), text.begin() + kPrompt);
        const Tokens answer = write({prompt}, {.max_new_tokens = kLength - kPrompt}).tokens[0];
        CHECK(answer == Tokens(text.begin() + kPrompt, text.end()));
        for (const int64_t token : answer) ours += cat(token, ' ');
        ours += '\n';
      }
    }
  }
  std::ofstream(folder.file("run.mjs")) << kScript;
  const std::string out = folder.file("tokens.txt");
  const std::string command = cat("node ", folder.file("run.mjs"), " ", modules, " ",
                                  kLength - kPrompt, " '", prompts, "]'", files, " >", out);
  REQUIRE(std::system(command.c_str()) == 0);
  std::ifstream in(out);
  CHECK(std::string(std::istreambuf_iterator<char>(in), {}) == ours);
}
