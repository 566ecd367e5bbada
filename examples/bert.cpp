// Trains BERT from scratch: first it fills gaps in texts, then a classifier on top of it learns
// from a few of them what they are about. Texts are the lines of a file, or stories that the
// program writes itself. `bert --help` lists the options.
//
// J. Devlin et al., "BERT", arXiv 1810.04805, without its second task (next sentences), and with
// other gaps each time that a text comes, as Y. Liu et al. have them ("RoBERTa", arXiv 1907.11692).
#include <cxxopts.hpp>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "examples/common/language.h"
#include "tiny/models.h"

namespace {

using namespace tiny;
using namespace tiny::examples;

constexpr int kStories = 4000, kLabelled = 1000;
constexpr int64_t kValidationBatches = 4, kTestBatch = 100;
constexpr double kGaps = 0.15;  // share of the words

// --- Options -------------------------------------------------------------------------------------

constexpr LanguageDefaults kDefaults{
    .steps = 300, .batch = 32, .context = 64, .layers = 2, .width = 96, .heads = 4, .lr = 2e-3};

struct Options : LanguageOptions {
  std::string labelled;
  int64_t vocabulary, examples, tune_steps;
  double tune_lr;
};

const std::vector<OptionText> kOptions{
    {"data", "FILE", "texts, one in a line; without it the program writes stories"},
    {"vocabulary", "N", "tokens at most [4000]"},
    {"labelled", "FILE",
     "texts to learn what they are about from: a label, a tab and a text in each line; without it "
     "stories and their topics"},
    {"examples", "N", "of them to learn from; the others are tests [64]"},
    {"tune-steps", "N", "of the classifier's training; 0: none [60]"},
    {"tune-lr", "X", "its highest learning rate [0.001]"},
};

template <class Given> Options read_options(const Given& given) {
  Options o;
  read_language_options(given, kDefaults, o);
  o.vocabulary = given.whole("vocabulary", 200, 1 << 20, 4000);
  o.labelled = given.text("labelled");
  o.examples = given.whole("examples", 1, 1 << 30, 64);
  o.tune_steps = given.whole("tune-steps", 0, 1 << 20, 60);
  o.tune_lr = given.number("tune-lr", 0, 10, 0.001);
  return o;
}

// --- Texts ---------------------------------------------------------------------------------------

std::vector<std::string> lines_of(const std::string& option, const std::string& path) {
  TextReader in(InputFile(option, path).read_all());
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);)
    if (!line.empty()) lines.push_back(line);
  check(!lines.empty(), option, ": ", path, " has no texts");
  return lines;
}

std::vector<std::string> find_texts(const Options& o) {
  if (!o.data.empty()) return lines_of("--data", o.data);
  std::cout << "no texts were given (--data): writing stories\n";
  std::vector<std::string> texts;
  for (const Story& s : write_stories(kStories, static_cast<uint64_t>(o.seed)))
    texts.push_back(s.text);
  return texts;
}

struct Labelled {
  std::vector<std::string> texts;
  std::vector<int32_t> labels;
  int64_t classes = 0;
};

// Labels get the numbers 0, 1, ... as they come.
Labelled find_labelled(const Options& o) {
  Labelled out;
  if (o.labelled.empty()) {
    for (const Story& s : write_stories(kLabelled, static_cast<uint64_t>(o.seed) + 1)) {
      out.texts.push_back(s.text);
      out.labels.push_back(s.topic);
    }
    out.classes = kStoryTopics;
    return out;
  }
  std::map<std::string, int32_t> known;
  for (const std::string& line : lines_of("--labelled", o.labelled)) {
    const size_t tab = line.find('\t');
    check(tab != line.npos, "--labelled: no tab in the line '", line, "'");
    const auto [at, is_new] =
        known.emplace(line.substr(0, tab), static_cast<int32_t>(known.size()));
    out.labels.push_back(at->second);
    out.texts.push_back(line.substr(tab + 1));
  }
  out.classes = static_cast<int64_t>(known.size());
  return out;
}

// i32 (texts, context), cut or padded.
Tensor encoded(const models::Tokenizer& tokenizer, const std::vector<std::string>& texts,
               const Options& o) {
  const models::TokenBatch batch = tokenizer.encode_batch(
      texts, {.max_length = o.context, .length = o.context, .padding_id = kPad});
  return Tensor::from(batch.ids, {batch.rows, batch.length});
}

models::Inputs inputs_of(const Tensor& ids) { return {.ids = ids, .mask = ids != int{kPad}}; }

// --- Gaps ----------------------------------------------------------------------------------------

struct Gaps {
  Tensor ids, labels;  // labels: -100 where there is no gap
};

// Of the words that are chosen eight in ten become [MASK], one another token, and one stays.
Gaps with_gaps(const Tensor& ids, int64_t vocabulary, const std::vector<std::string>& devices) {
  const Shape shape = to_shape(ids.shape());
  const auto spread = [&](const Tensor& t) { return devices.empty() ? t : t.shard(devices, 0); };
  const Tensor chosen = logical_and(spread(Tensor::rand(shape)) < kGaps, ids >= int{kFirstWord});
  const Tensor kind = spread(Tensor::rand(shape));
  const Tensor other = spread(Tensor::randint(kFirstWord, vocabulary, shape, kI32));
  const Tensor filled = where(kind < 0.8, int{kMask}, where(kind < 0.9, other, ids));
  return {where(chosen, filled, ids).to(kI32), where(chosen, ids, -100).to(kI32)};
}

// --- Both trainings ------------------------------------------------------------------------------

std::string config_of(const Options& o, int64_t vocabulary, int64_t classes) {
  return cat(R"({"model_type": "bert", "architectures": [")",
             classes ? "BertForSequenceClassification" : "BertForMaskedLM",
             R"("], "num_hidden_layers": )", o.layers, R"(, "hidden_size": )", o.width,
             R"(, "num_attention_heads": )", o.heads, R"(, "intermediate_size": )", 4 * o.width,
             R"(, "max_position_embeddings": )", o.context, R"(, "vocab_size": )", vocabulary,
             R"(, "hidden_dropout_prob": )", o.dropout, R"(, "attention_probs_dropout_prob": )",
             o.dropout, R"(, "type_vocab_size": 2, "pad_token_id": 0, "num_labels": )",
             std::max<int64_t>(classes, 2), "}");
}

// The last tenth of the texts, with gaps that stay the same.
std::vector<Trainer::Batch> validation_batches(const Tensor& ids, int64_t vocabulary,
                                               const Options& o) {
  const int64_t rows = o.batch / o.accumulate,
                count = std::min(kValidationBatches, ids.size(0) / rows);
  check(count > 0, "the last tenth of the texts are ", ids.size(0), ": fewer than the ", rows,
        " of a batch");
  std::vector<Trainer::Batch> out;
  for (int64_t i = 0; i < count; ++i) {
    Gaps gaps = with_gaps(ids.narrow(0, i * rows, rows), vocabulary, {});
    out.push_back({gaps.ids.contiguous().realize(), gaps.labels.contiguous().realize()});
  }
  return out;
}

void pretrain(models::Transformer& model, const Tensor& ids, const Options& o) {
  const int64_t vocabulary = model.config().vocab;
  const int64_t split = ids.size(0) - ids.size(0) / 10;
  AdamW optimizer(decay_matrices(model.tensors(), o.decay), o.lr, {.beta2 = 0.98});
  const auto loss = [&](const Trainer::Batch& batch) {
    const Gaps gaps =
        batch.size() == 2 ? Gaps{batch[0], batch[1]} : with_gaps(batch[0], vocabulary, o.devices);
    return model.loss(inputs_of(gaps.ids), gaps.labels);
  };
  Trainer trainer(model.state_dict("model."), optimizer, loss, trainer_options(o));
  const auto validation =
      validation_batches(ids.narrow(0, split, ids.size(0) - split), vocabulary, o);
  DataLoader loader({ids.narrow(0, 0, split)}, {.batch_size = o.batch,
                                                .shuffle = true,
                                                .drop_last = true,
                                                .seed = static_cast<uint64_t>(o.seed)});
  LanguageTraining(trainer, validation, operations_of_token(model, o), o).run(loader);
}

// The tensors that both models have: all but the heads.
void take_over(models::Transformer& to, models::Transformer& from) {
  const StateDict there = from.state_dict();
  for (const NamedTensor& named : to.state_dict())
    for (const NamedTensor& same : there)
      if (same.name == named.name) named.tensor->assign(same.tensor->detach()).realize();
}

// Learns from the first texts and tests with the others.
void tune(models::Transformer& model, const Tensor& ids, const Labelled& data, const Options& o) {
  const int64_t count = ids.size(0), learned = o.examples;
  check(learned < count, "--examples: ", learned, " of ", count, " texts leave none for a test");
  const Tensor labels = Tensor::from(data.labels);
  AdamW optimizer(decay_matrices(model.tensors(), o.decay), o.tune_lr);
  const auto loss = [&](const Trainer::Batch& batch) {
    return model.loss(inputs_of(batch[0]), batch[1]);
  };
  TrainerOptions options = trainer_options(o);
  options.steps = o.tune_steps;
  options.accumulate = 1;
  options.lr = o.tune_lr;
  options.warmup = o.tune_steps / 10;
  Trainer trainer(model.state_dict(), optimizer, loss, options);
  DataLoader loader({ids.narrow(0, 0, learned), labels.narrow(0, 0, learned)},
                    {.batch_size = std::min(o.batch, learned),
                     .shuffle = true,
                     .drop_last = true,
                     .seed = static_cast<uint64_t>(o.seed)});
  {
    const nn::Training training;
    while (trainer.done() < o.tune_steps) trainer.step(loader.next());
  }
  const Tensor rest =
      ids.narrow(0, learned, count - learned).contiguous().realize().shard(o.devices);
  const Tensor wanted = labels.narrow(0, learned, count - learned).contiguous().realize();
  ClassifierTest test(wanted.shard(o.devices), kTestBatch, data.classes, o.devices,
                      [&](const Tensor& at, const Tensor&) {
                        const Autocast mixed(o.dtype);
                        return model(rest.index_select(0, at),
                                     rest.index_select(0, at) != int{kPad});
                      });
  const int64_t known = test.count();
  std::cout << "learned from " << learned << " labelled texts, knows " << known << " of "
            << count - learned << " others: "
            << formatted("accuracy %.1f %%",
                         100.0 * static_cast<double>(known) / static_cast<double>(count - learned))
            << std::endl;
}

void run(const Options& o) {
  const EnvOverride device("DEVICE", o.device.empty() ? env_text("DEVICE") : o.device);
  mute_other_ranks();
  manual_seed(static_cast<uint64_t>(o.seed));
  const std::vector<std::string> texts = find_texts(o);
  const std::string json = word_tokenizer(texts, static_cast<size_t>(o.vocabulary));
  const models::Tokenizer tokenizer = models::Tokenizer::from_json(json);
  const int64_t vocabulary = tokenizer.id_end();
  std::cout << texts.size() << " texts, " << vocabulary << " tokens\n";
  models::Transformer model(models::parse_config(config_of(o, vocabulary, 0), "bert"));
  prepare_model(model, o);
  pretrain(model, encoded(tokenizer, texts, o), o);

  if (o.tune_steps > 0) {
    const Labelled data = find_labelled(o);
    models::Transformer classifier(
        models::parse_config(config_of(o, vocabulary, data.classes), "bert"));
    classifier.initialize();
    for (Tensor* t : classifier.tensors()) t->shard_(o.devices);
    take_over(classifier, model);
    tune(classifier, encoded(tokenizer, data.texts, o), data, o);
  }
  gather_model(model, o);
  save_model(model, json, o);
}

}  // namespace

int main(int argc, char** argv) {
  return run_program("bert", cxxopts::Options("bert", "Trains BERT from scratch."),
                     cxxopts::value<std::string>(),
                     {kOptions, language_options(kDefaults), kTrainingOptions}, argc, argv,
                     [](const auto& given) { run(read_options(given)); });
}
