// What the programs that train models of language share: options, and a training with its
// evaluations, checkpoints, curve and rates.
#pragma once
#include <algorithm>
#include <cmath>
#include <cxxopts.hpp>
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include "examples/common/peer_files.h"
#include "examples/common/tokenizers.h"
#include "tiny/models.h"

namespace tiny::examples {

// --- Options -------------------------------------------------------------------------------------

struct LanguageOptions : TrainingOptions {
  std::string checkpoint, curve, folder;
  int64_t steps, batch, accumulate, context, layers, width, heads, warmup, every, evaluate, stop;
  double lr, decay, clip, dropout, peak;
  DType dtype;
  PeerFiles peer;  // none but in programs that have its options
};

// What is not given, where a program's own defaults differ.
struct LanguageDefaults {
  int64_t steps, batch, context, layers, width, heads;
  double lr;
};

inline std::vector<OptionText> language_options(const LanguageDefaults& d) {
  static std::vector<std::string> texts;  // live as long as the program
  texts.clear();
  texts.reserve(16);
  const auto with = [](const char* text, auto standard) {
    texts.push_back(cat(text, " [", standard, "]"));
    return texts.back().c_str();
  };
  return {
      {"steps", "N", with("training steps", d.steps)},
      {"batch", "N", with("sequences of a step, on all devices together", d.batch)},
      {"accumulate", "N", "parts of a step's batch, one after the other [1]"},
      {"context", "N", with("tokens of a sequence", d.context)},
      {"layers", "N", with("of the model", d.layers)},
      {"width", "N", with("numbers for each token between layers", d.width)},
      {"heads", "N", with("of attention, a divisor of the width", d.heads)},
      {"dropout", "X", "share of what is dropped in training [0]"},
      {"lr", "X", with("highest learning rate", d.lr)},
      {"warmup", "N", "steps until it is reached [a twentieth of all]"},
      {"decay", "X", "weight decay, of matrices alone [0.1]"},
      {"clip", "X", "highest norm of all gradients; 0: none [1]"},
      {"dtype", "T",
       "of products: f32, bf16, or fp8, where those by weights are in 8-bit floats and others in "
       "bf16; parameters are f32 [GPU: bf16; CPU: f32]"},
      {"checkpoint", "FILE", "goes on from this file where it exists, and writes it"},
      {"every", "N", "steps from one checkpoint to the next [100]"},
      {"evaluate", "N", "steps from one look at other texts to the next [100]"},
      {"stop", "N", "ends after this step, as if something had stopped it [none]"},
      {"peak", "X", "TFLOP/s to compare with, such as a data sheet's [a product is measured]"},
      {"curve", "FILE", "draws the losses into this SVG file"},
      {"folder", "FOLDER", "writes config.json, model.safetensors and tokenizer.json there"},
  };
}

template <class Given>
void read_language_options(const Given& given, const LanguageDefaults& d, LanguageOptions& o) {
  read_training_options(given, nullptr, o);
  o.steps = given.whole("steps", 0, 10'000'000, d.steps);
  o.accumulate = given.whole("accumulate", 1, 1 << 16, 1);
  o.batch = given.whole("batch", 1, 1 << 20, d.batch);
  check(o.batch % o.accumulate == 0, "--accumulate: ", o.batch, " sequences are no multiple of ",
        o.accumulate);
  o.context = given.whole("context", 2, 1 << 20, d.context);
  o.layers = given.whole("layers", 1, 1000, d.layers);
  o.width = given.whole("width", 1, 1 << 16, d.width);
  o.heads = given.whole("heads", 1, 1 << 10, d.heads);
  check(o.width % o.heads == 0, "--heads: a width of ", o.width, " is no multiple of ", o.heads);
  o.dropout = given.number("dropout", 0, 0.99);
  o.lr = given.number("lr", 0, 10, d.lr);
  o.warmup = given.whole("warmup", 0, INT32_MAX, o.steps / 20);
  o.decay = given.number("decay", 0, 10, 0.1);
  o.clip = given.number("clip", 0, 1e9, 1);
  const bool gpu = runtime_seam::is_gpu(o.devices[0]);
  constexpr DType kDtypes[] = {kF32, kBF16, kF8E4M3};
  o.dtype = kDtypes[given.choice("dtype", {"f32", "bf16", "fp8"}, gpu)];
  o.checkpoint = given.new_file("checkpoint");
  o.every = given.whole("every", 1, INT64_MAX, 100);
  o.evaluate = given.whole("evaluate", 1, INT64_MAX, 100);
  o.stop = std::min(o.steps, given.whole("stop", 1, INT64_MAX, INT64_MAX));
  o.peak = given.number("peak", 0, 1e6);
  o.curve = given.new_file("curve");
  o.folder = given.text("folder");
}

// The ones that a checkpoint's training has to go on with.
inline Settings settings_of(const LanguageOptions& o) {
  Settings out;
  const auto add = [&](const char* name, auto value) { out[name] = cat(value); };
  add("--steps", o.steps);
  add("--batch", o.batch);
  add("--accumulate", o.accumulate);
  add("--context", o.context);
  add("--dropout", o.dropout);
  add("--lr", o.lr);
  add("--warmup", o.warmup);
  add("--decay", o.decay);
  add("--clip", o.clip);
  add("--dtype", o.dtype);
  add("--seed", o.seed);
  return out;
}

inline TrainerOptions trainer_options(const LanguageOptions& o) {
  return {.steps = o.steps,
          .accumulate = o.accumulate,
          .lr = o.lr,
          .warmup = o.warmup,
          .clip = o.clip,
          .dtype = o.dtype,
          .devices = o.devices};
}

// --- The model -----------------------------------------------------------------------------------

inline void prepare_model(models::Transformer& model, const LanguageOptions& o) {
  model.initialize();
  for (Tensor* t : model.tensors()) t->shard_(o.devices);
  if (!o.load.empty()) load(o.load, model.state_dict());
  int64_t count = 0;
  for (const Tensor* t : model.tensors()) count += t->numel();
  std::cout << formatted("a model of %.2f million parameters, products in ",
                         static_cast<double>(count) / 1e6)
            << o.dtype << " on " << o.devices[0]
            << (o.devices.size() > 1 ? cat(" and ", o.devices.size() - 1, " more") : "") << '\n';
}

// Operations for a token, forwards and backwards: two for each weight that multiplies it, and as
// many for each pair of its scores and sums in attention, three times (A. Chowdhery et al.,
// "PaLM", arXiv 2204.02311, appendix B).
inline double operations_of_token(models::Transformer& model, const LanguageOptions& o) {
  double weights = 0;
  for (const NamedTensor& named : model.state_dict())
    if (named.tensor->rank() >= 2 && !named.name.ends_with("wpe.weight") &&
        !named.name.ends_with("position_embeddings.weight"))
      weights += static_cast<double>(named.tensor->numel());
  return 6 * weights + 12.0 * static_cast<double>(o.layers * o.width * o.context);
}

// From several devices to the first of them, when the training is over.
inline void gather_model(models::Transformer& model, const LanguageOptions& o) {
  if (o.devices.size() > 1) model.to(o.devices[0]);
}

inline void save_model(models::Transformer& model, const std::string& tokenizer,
                       const LanguageOptions& o) {
  if (!o.save.empty()) save(o.save, model.state_dict());
  if (o.folder.empty()) return;
  std::filesystem::create_directories(o.folder);
  models::save(o.folder, model);
  FileAside file("tokenizer", o.folder + "/tokenizer.json");
  file.write(tokenizer);
  file.commit();
  std::cout << "wrote " << o.folder << '\n';
}

// --- Training ------------------------------------------------------------------------------------

class LanguageTraining {
 public:
  // `validation`: batches that are not trained on. `operations`: of a token.
  LanguageTraining(Trainer& trainer, const std::vector<Trainer::Batch>& validation,
                   double operations, const LanguageOptions& o)
      : trainer_(trainer),
        validation_(validation),
        operations_(operations),
        o_(o),
        record_(o.peer, {"tokens"}) {}

  // From where the checkpoint left it, if there is one, to the last step.
  void run(DataLoader& loader) {
    if (load_checkpoint(o_.checkpoint, trainer_.state(), settings_of(o_)))
      std::cout << "going on with step " << trainer_.done() << " from " << o_.checkpoint << '\n';
    loader.go_to(trainer_.done() / loader.batches(), trainer_.done() % loader.batches());
    evaluate();
    std::cout << formatted("loss of other texts %.3f at the beginning", looks_.points[0].second)
              << std::endl;
    const int64_t begin = trainer_.done();
    const double start = seconds();
    if (begin < o_.stop) {
      train(loader);
      report(trainer_.done() - begin, seconds() - start);
    }
    if (rank() != 0) return;
    record_.write(trainer_);
    if (!o_.curve.empty())
      save_svg(o_.curve, {"Training", "step", "loss", {trainer_.losses("training"), looks_}});
  }

 private:
  int64_t tokens_of_step() const { return o_.batch * o_.context; }

  void train(DataLoader& loader) {
    Progress progress(o_.steps * tokens_of_step(), "tokens", trainer_.done() * tokens_of_step());
    int64_t shown = trainer_.done();
    while (trainer_.done() < o_.stop) {
      const nn::Training training;
      const double begin = seconds();
      const Trainer::Batch& batch = loader.next();
      record_.keep(batch);
      trainer_.step(batch);
      const int64_t done = trainer_.done();
      const bool is_last = done == o_.stop, looks = done % o_.evaluate == 0 || is_last;
      const bool saves = !o_.checkpoint.empty() && (done % o_.every == 0 || is_last);
      // Reading losses waits for their steps, which then are in the time that is measured.
      const bool due = rank_count() == 1 && progress.is_due();
      if (looks || saves || steps_ == 0 || due) {
        show(progress, trainer_.mean_loss(std::min(shown, done - 1), done));
        shown = done;
      }
      measured_ += ++steps_ > kFirst ? seconds() - begin : 0;
      if (looks) evaluate();
      if (saves) save_checkpoint(o_.checkpoint, trainer_.state(), settings_of(o_));
    }
    progress.finish();
  }

  void show(Progress& progress, double loss) {
    std::string fields = formatted("loss %.3f", loss);
    if (!looks_.points.empty()) fields += formatted("  other %.3f", looks_.points.back().second);
    progress.update(trainer_.done() * tokens_of_step(),
                    fields + formatted("  lr %.1e", trainer_.lr()));
  }

  void evaluate() {
    const nn::Training testing(false);
    looks_.points.emplace_back(trainer_.done(), trainer_.evaluate(validation_));
  }

  void report(int64_t steps, double time) const {
    std::cout << "trained " << steps << " steps of " << tokens_of_step()
              << formatted(" tokens in %.1f s: loss of other texts %.3f\n", time,
                           looks_.points.back().second);
    if (steps_ <= kFirst) return;
    const double tokens = static_cast<double>((steps_ - kFirst) * tokens_of_step()) / measured_;
    const double rate = tokens * operations_ / 1e9;
    std::cout << formatted("%.0f tokens/s, %.1f GFLOP/s", tokens, rate);
    if (o_.peak > 0) {
      std::cout << formatted(": %.1f %% of %.1f TFLOP/s", rate / o_.peak / 10, o_.peak)
                << std::endl;
      return;
    }
    const bool emulated = o_.devices[0].starts_with("EMU");
    const int64_t size = emulated ? 32 : runtime_seam::is_gpu(o_.devices[0]) ? 8192 : 1024;
    const double peak =
        product_rate(o_.dtype, size, o_.devices[0]) / 1e9 * static_cast<double>(o_.devices.size());
    std::cout << formatted(": %.0f %% of the %.1f GFLOP/s that products of ", 100 * rate / peak,
                           peak)
              << o_.dtype << " matrices of " << size << " reach" << std::endl;
  }

  static constexpr int64_t kFirst = 2;  // steps that compile

  Trainer& trainer_;
  const std::vector<Trainer::Batch>& validation_;
  const double operations_;
  const LanguageOptions& o_;
  PeerRecord record_;
  ChartLine looks_{"other texts", {}};  // by step
  int64_t steps_ = 0;                   // of this run
  double measured_ = 0;                 // seconds of its steps after the first
};

}  // namespace tiny::examples
