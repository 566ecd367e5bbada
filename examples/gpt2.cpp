// Trains GPT-2 from scratch on a text, or on stories that it writes itself: bf16 products with f32
// parameters on a GPU, gradients that add up in one captured step, clipping, a rate that warms up
// and falls, weight decay of matrices alone, checkpoints that go on bit for bit. `gpt2 --help`
// lists the options.
//
// A. Radford et al., "Language models are unsupervised multitask learners", 2019; its numbers for
// training are those of GPT-3 (T. Brown et al., arXiv 2005.14165) and of A. Karpathy's nanoGPT.
#include <cxxopts.hpp>
#include <functional>
#include <iostream>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "examples/common/language.h"
#include "tiny/models.h"

namespace {

using namespace tiny;
using namespace tiny::examples;

constexpr int kStories = 4000;
constexpr int64_t kValidationBatches = 4;

// --- Options -------------------------------------------------------------------------------------

constexpr LanguageDefaults kDefaults{
    .steps = 600, .batch = 8, .context = 128, .layers = 2, .width = 128, .heads = 4, .lr = 6e-3};

struct Options : LanguageOptions {
  std::string tokenizer, prompt;
  int64_t tokens;
};

const std::vector<OptionText> kOptions{
    {"data", "FILE",
     "a text, or its tokens as 16-bit numbers (.bin, as nanoGPT has them); without it the program "
     "writes stories"},
    {"tokenizer", "FILE", "tokenizer.json of the text or the tokens [each byte is a token]"},
    {"prompt", "TEXT", "what the model writes on from at the end [In the morning]"},
    {"tokens", "N", "of what it writes [160]"},
};

template <class Given> Options read_options(const Given& given) {
  Options o;
  read_language_options(given, kDefaults, o);
  o.peer.read(given);
  o.tokenizer = given.text("tokenizer");
  o.prompt = given.text("prompt", "In the morning");
  o.tokens = given.whole("tokens", 0, 1 << 20, 160);
  return o;
}

// --- The text ------------------------------------------------------------------------------------

struct Text {
  std::string tokenizer_json;
  models::Tokenizer tokenizer;
  int64_t size;  // tokens
  // i32 (begins, length).
  std::function<Tensor(const std::vector<int64_t>& begins, int64_t length)> windows;
};

// The text in memory, as tokens.
Text read_tokens(const Options& o, const std::string& json, const models::Tokenizer& tokenizer) {
  std::string text;
  if (o.data.empty()) {
    std::cout << "no text was given (--data): writing stories\n";
    for (const Story& s : write_stories(kStories, static_cast<uint64_t>(o.seed)))
      text += s.text + "\n";
  } else {
    text = InputFile("--data", o.data).read_all();
  }
  auto ids = std::make_shared<const std::vector<int32_t>>(tokenizer.encode(text, false));
  const auto windows = [ids](const std::vector<int64_t>& begins, int64_t length) {
    std::vector<int32_t> rows;
    for (const int64_t begin : begins)
      rows.insert(rows.end(), ids->begin() + begin, ids->begin() + begin + length);
    return Tensor::from(rows, {static_cast<int64_t>(begins.size()), length});
  };
  return {json, tokenizer, static_cast<int64_t>(ids->size()), windows};
}

Text find_text(const Options& o) {
  const std::string json =
      o.tokenizer.empty() ? byte_tokenizer() : InputFile("--tokenizer", o.tokenizer).read_all();
  const models::Tokenizer tokenizer = models::Tokenizer::from_json(json);
  if (!o.data.ends_with(".bin")) return read_tokens(o, json, tokenizer);
  auto file = std::make_shared<const TokenFile>(o.data);
  const auto windows = [file](const std::vector<int64_t>& begins, int64_t length) {
    return file->windows(begins, length);
  };
  return {json, tokenizer, file->size(), windows};
}

// --- The model -----------------------------------------------------------------------------------

std::string config_of(const Options& o, int64_t vocabulary) {
  return cat(R"({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": )",
             o.layers, R"(, "n_embd": )", o.width, R"(, "n_head": )", o.heads,
             R"(, "n_positions": )", o.context, R"(, "vocab_size": )", vocabulary,
             R"(, "embd_pdrop": )", o.dropout, R"(, "resid_pdrop": )", o.dropout,
             R"(, "attn_pdrop": )", o.dropout, R"(, "bos_token_id": null, "eos_token_id": null})");
}

// As many sums of a layer's results lie on the way of a token, whose weights begin smaller.
void shrink_residual_weights(models::Transformer& model, int64_t layers) {
  for (const NamedTensor& named : model.state_dict())
    if (named.name.ends_with("c_proj.weight"))
      named.tensor->assign(*named.tensor / std::sqrt(2.0 * static_cast<double>(layers))).realize();
}

void write_sample(models::Transformer& model, const Text& text, const Options& o) {
  const std::vector<int32_t> prompt = text.tokenizer.encode(o.prompt, false);
  const auto room = o.context - static_cast<int64_t>(prompt.size());
  if (o.tokens == 0 || prompt.empty() || room < 1) return;
  const NoGrad no_grad;
  models::Generator write(model);
  models::GenerateOptions options{.max_new_tokens = std::min(o.tokens, room)};
  options.sampling.temperature = 0.7;
  options.sampling.seed = static_cast<uint64_t>(o.seed);
  const models::Tokens said = write({{prompt.begin(), prompt.end()}}, options).tokens[0];
  std::cout << "it writes: " << o.prompt
            << text.tokenizer.decode(std::vector<int32_t>(said.begin(), said.end())) << std::endl;
}

// --- The program ---------------------------------------------------------------------------------

// Windows that follow one another, from a token on.
DataLoader::Fetch windows_from(const Text& text, int64_t first, int64_t context) {
  return [&text, first, context](const std::vector<int64_t>& positions) {
    std::vector<int64_t> begins;
    for (const int64_t at : positions) begins.push_back(first + at * context);
    return DataLoader::Batch{text.windows(begins, context)};
  };
}

std::vector<Trainer::Batch> validation_batches(const Text& text, int64_t first, const Options& o) {
  const int64_t rows = o.batch / o.accumulate;
  const int64_t count = std::min(kValidationBatches, (text.size - first) / (o.context * rows));
  check(count > 0, "the text has ", text.size, " tokens: its last tenth is shorter than the ",
        rows * o.context, " of a batch");
  DataLoader loader(count * rows, windows_from(text, first, o.context),
                    {.batch_size = rows, .prefetch = 0});
  std::vector<Trainer::Batch> out;
  for (const DataLoader::Batch& batch : loader) out.push_back(batch);
  return out;
}

void run(const Options& o) {
  const EnvOverride device("DEVICE", o.device.empty() ? env_text("DEVICE") : o.device);
  mute_other_ranks();
  manual_seed(static_cast<uint64_t>(o.seed));
  const Text text = find_text(o);
  const int64_t split = text.size - text.size / 10;
  std::cout << text.size << " tokens of " << text.tokenizer.id_end()
            << " kinds, the last tenth for "
            << "looks at other texts\n";
  models::Transformer model(models::parse_config(config_of(o, text.tokenizer.id_end()), "gpt2"));
  prepare_model(model, o);
  if (o.load.empty()) shrink_residual_weights(model, o.layers);
  if (!o.peer.initial.empty()) save(o.peer.initial, model.state_dict());

  AdamW optimizer(decay_matrices(model.tensors(), o.decay), o.lr, {.beta2 = 0.95});
  const auto loss = [&](const Trainer::Batch& batch) { return model.loss({batch[0]}, batch[0]); };
  Trainer trainer(model.state_dict("model."), optimizer, loss, trainer_options(o));
  DataLoader loader(split / o.context, windows_from(text, 0, o.context),
                    {.batch_size = o.batch,
                     .shuffle = true,
                     .drop_last = true,
                     .seed = static_cast<uint64_t>(o.seed)});
  const auto validation = validation_batches(text, split, o);
  LanguageTraining(trainer, validation, operations_of_token(model, o), o).run(loader);
  gather_model(model, o);
  write_sample(model, text, o);
  save_model(model, text.tokenizer_json, o);
}

}  // namespace

int main(int argc, char** argv) {
  return run_program("gpt2", cxxopts::Options("gpt2", "Trains GPT-2 from scratch."),
                     cxxopts::value<std::string>(),
                     {kOptions, language_options(kDefaults), kPeerOptions, kTrainingOptions}, argc,
                     argv, [](const auto& given) { run(read_options(given)); });
}
