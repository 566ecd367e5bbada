// Writes on from what is typed, or from one prompt, with a language model of a folder as it was
// downloaded. Without one it trains a small model for seconds on a text that it carries, which then
// talks nonsense fluently. `chat --help` lists the options.
#include <cxxopts.hpp>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "examples/common/tokenizers.h"
#include "tiny/models.h"

namespace {

using namespace tiny;

const std::vector<OptionText> kOptions{
    {"model", "PATH",
     "a folder with config.json, safetensors files and tokenizer.json, or a GGUF file"},
    {"device", "NAME", "such as CPU or CUDA [a GPU where there is one]"},
    {"dtype", "NAME", "of the parameters: f32, f16 or bf16 [that of the files]"},
    {"prompt", "TEXT", "writes on from it and ends, instead of asking for lines"},
    {"wrap", "TEXT", "what a line is put into, {} stands for it, \\n for a new line [{}]"},
    {"tokens", "N", "most new tokens of an answer [128]"},
    {"stop", "TEXT", "an answer ends with it"},
    {"temperature", "X", "of the draws; 0 takes the most probable token [0.8]"},
    {"top-k", "N", "draws from the most probable tokens; 0: all [40]"},
    {"top-p", "X", "draws from the fewest tokens that add up to it [0.95]"},
    {"min-p", "X", "draws from tokens so probable beside the best one [0]"},
    {"repetition-penalty", "X", "divides logits of tokens that were there [1]"},
    {"page", "FOLDER", "writes a page there that does the same in a browser, by WebGPU"},
    {"context", "N",
     "tokens of a conversation on the page; 0: 512, or the model's positions where these are fewer "
     "[0]"},
    {"steps", "N", "of training, where no model is given [400]"},
    {"seed", "N", "of draws and training [0]"},
};

struct Options {
  std::string model, device, prompt, wrap, stop, page;
  std::optional<DType> dtype;
  bool is_one_shot = false;
  int64_t steps = 0, seed = 0, context = 0;
  models::GenerateOptions generate;
};

std::string with_new_lines(std::string text) {
  for (size_t at = 0; (at = text.find("\\n", at)) != text.npos; ++at) text.replace(at, 2, "\n");
  return text;
}

template <class Given> Options read_options(const Given& given) {
  Options o;
  o.model = given.text("model");
  o.device = given.text("device");
  if (given.given("dtype"))
    o.dtype = std::vector<DType>{kF32, kF16, kBF16}[given.choice("dtype", {"f32", "f16", "bf16"})];
  o.is_one_shot = given.given("prompt");
  o.prompt = with_new_lines(given.text("prompt"));
  o.wrap = with_new_lines(given.text("wrap", "{}"));
  check(o.wrap.find("{}") != o.wrap.npos, "--wrap: '", o.wrap, "' has no {} for the line");
  o.stop = with_new_lines(given.text("stop"));
  o.page = given.new_file("page");
  o.context = given.whole("context", 0, INT32_MAX);
  o.steps = given.whole("steps", 1, 1'000'000, 400);
  o.seed = given.whole("seed", 0, INT64_MAX);
  o.generate.max_new_tokens = given.whole("tokens", 1, 1'000'000, 128);
  models::SamplingOptions& s = o.generate.sampling;
  s.temperature = given.number("temperature", 0, 100, 0.8);
  s.top_k = given.whole("top-k", 0, INT64_MAX, 40);
  s.top_p = given.number("top-p", 0, 1, 0.95);
  s.min_p = given.number("min-p", 0, 1, 0);
  s.repetition_penalty = given.number("repetition-penalty", 0.01, 100, 1);
  s.seed = static_cast<uint64_t>(o.seed);
  models::check_sampling(s);
  return o;
}

// --- The model that is carried -------------------------------------------------------------------

constexpr const char* kText =
    "In the evening the old keeper of the lighthouse climbs the stairs and lights the lamp. "
    "The lamp turns slowly, and its light walks over the water. "
    "The fishers see the light and know where the harbour is. "
    "In the morning the keeper puts out the lamp and goes down to the water. "
    "He looks at the boats, and the boats look at the water. "
    "A gull sits on the wall and waits for the fishers. "
    "The fishers come home with the morning, and the gull is glad. "
    "When the wind is strong the boats stay in the harbour, and the keeper tells a story. "
    "The story is of a boat that followed the light over the water until it was home. "
    "Then the fishers are glad, and the gull on the wall waits for the wind to go down. ";

constexpr const char* kConfig = R"({
  "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 256,
  "hidden_size": 96, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
  "num_key_value_heads": 2, "max_position_embeddings": 1024, "rms_norm_eps": 1e-5,
  "tie_word_embeddings": true, "eos_token_id": 0, "bos_token_id": 0})";

// A token for each byte.
models::Tokens bytes_of(std::string_view text) {
  models::Tokens out;
  for (const char c : text) out.push_back(static_cast<unsigned char>(c));
  return out;
}

void train(models::Transformer& model, const Options& o) {
  constexpr int64_t kBatch = 16, kLength = 64;
  const Tensor text = Tensor::from(bytes_of(kText));
  manual_seed(static_cast<uint64_t>(o.seed));
  model.initialize();
  const nn::Training training;
  AdamW optimizer(model.tensors(), 3e-3);
  const Tensor columns = Tensor::arange(0, kLength, 1, kI64);
  Jit step([&] {
    const Tensor begin = Tensor::randint(0, text.size(0) - kLength, {kBatch, 1}, kI64);
    const Tensor ids = text.index({begin + columns});
    Tensor loss = model.loss({.ids = ids}, ids);
    loss.backward();
    optimizer.step({&loss});
    return loss;
  });
  Progress progress(o.steps, "steps");
  for (int64_t i = 1; i <= o.steps; ++i) {
    const Tensor loss = step();
    if (i % 20 == 0 || i == o.steps) progress.update(i, formatted("loss %.3f", loss.item<float>()));
  }
}

// --- Talking -------------------------------------------------------------------------------------

struct Speaker {
  std::unique_ptr<models::Transformer> model;
  models::Tokenizer tokenizer;

  models::Tokens encode(const std::string& text) const {
    const std::vector<int32_t> ids = tokenizer.encode(text);
    return {ids.begin(), ids.end()};
  }
  std::string decode(const models::Tokens& tokens) const {
    return tokenizer.decode(std::vector<int32_t>(tokens.begin(), tokens.end()));
  }
};

Speaker load_speaker(const Options& o) {
  Speaker speaker{nullptr, models::load_tokenizer(o.model)};
  std::optional<Progress> progress;
  models::LoadOptions options{.dtype = o.dtype};
  options.on_tensor = [&](int64_t done, int64_t all) {
    if (!progress) progress.emplace(all, "parameters");
    progress->update(done);
  };
  speaker.model = std::make_unique<models::Transformer>(models::load(o.model, options));
  return speaker;
}

Speaker make_speaker(const Options& o) {
  std::cout << "no model was given (--model): training one of "
            << "two layers on a text of " << std::string(kText).size() << " letters\n";
  Speaker speaker{std::make_unique<models::Transformer>(models::parse_config(kConfig, "chat")),
                  models::Tokenizer::from_json(examples::byte_tokenizer())};
  train(*speaker.model, o);
  return speaker;
}

// Prints the answer while it comes; gives prompt and answer.
std::string answer(const Speaker& speaker, models::Generator& write, const std::string& prompt,
                   const Options& o) {
  models::GenerateOptions options = o.generate;
  models::DecodeStream stream(speaker.tokenizer);
  options.on_token = [&](size_t, int64_t token) {
    std::cout << stream.push(static_cast<int32_t>(token)) << std::flush;
  };
  if (!o.stop.empty())
    options.stop = [&](size_t, const models::Tokens& tokens) {
      return speaker.decode(tokens).find(o.stop) != std::string::npos;
    };
  const models::Generated done = write({speaker.encode(prompt)}, options);
  std::cout << stream.finish() << "\n[" << models::to_text(done.report) << "]" << std::endl;
  return prompt + speaker.decode(done.tokens[0]);
}

// A page on which the model writes on from what is typed.
void write_page(const Speaker& speaker, const Options& o) {
  std::string tokenizer = examples::byte_tokenizer();
  if (!o.model.empty()) {
    const std::string path = o.model + "/tokenizer.json";
    check(std::filesystem::is_regular_file(path), "--page: the page reads a tokenizer.json, and ",
          path, " is not there");
    tokenizer = InputFile("--page", path).read_all();
  }
  models::ChatPageOptions options{.context = o.context,
                                  .max_new_tokens = o.generate.max_new_tokens,
                                  .sampling = o.generate.sampling,
                                  .wrap = o.wrap,
                                  .stop = o.stop};
  if (!o.model.empty()) options.title = std::filesystem::path(o.model).filename().string();
  models::export_chat(*speaker.model, tokenizer, o.page, options);
  std::cout << "wrote " << o.page << ": serve it (python3 -m http.server -d " << o.page
            << ") and open http://127.0.0.1:8000" << std::endl;
}

void run(const Options& o) {
  const EnvOverride device("DEVICE", o.device.empty() ? env_text("DEVICE") : o.device);
  const Speaker speaker = o.model.empty() ? make_speaker(o) : load_speaker(o);
  const NoGrad no_grad;
  if (!o.page.empty()) write_page(speaker, o);
  if (!o.page.empty() && !o.is_one_shot) return;
  models::Generator write(*speaker.model);
  const auto wrapped = [&](const std::string& line) {
    std::string text = o.wrap;
    return text.replace(text.find("{}"), 2, line);
  };
  if (o.is_one_shot) {
    std::cout << o.prompt;
    answer(speaker, write, wrapped(o.prompt), o);
    return;
  }
  std::cout << "type a line; an empty one begins anew, the end of the input ends\n";
  std::string text;
  for (std::string line; std::cout << "> " << std::flush, std::getline(std::cin, line);) {
    if (line.empty())
      text.clear();
    else
      text = answer(speaker, write, text + wrapped(line), o);
  }
  std::cout << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  return run_program("chat", cxxopts::Options("chat", "Writes on from what is typed."),
                     cxxopts::value<std::string>(), {kOptions}, argc, argv,
                     [](const auto& given) { run(read_options(given)); });
}
