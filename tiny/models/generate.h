// Writing on from prompts: keys and values of past tokens are cached, so that each step computes
// what is new. Prompts of any length and all steps share a few captures, since the cache's length
// is a Variable; it grows by pages.
//
//   models::Generator write(model);
//   models::Generated g = write({{1, 306, 4658}}, {.max_new_tokens = 50});
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tiny/models/sampling_graph.h"
#include "tiny/models/transformer.h"
#include "tiny/run/jit.h"

namespace tiny::models {

using Tokens = std::vector<int64_t>;

// Positions by which a cache grows.
inline constexpr int64_t kCachePage = 256;

struct GenerateOptions {
  int64_t max_new_tokens = 128;
  SamplingOptions sampling = {};
  // Where tokens are drawn: on the model's device, or on the host, which is given all logits. The
  // same tokens but for the rounding of sums. By default on the device where that is a GPU.
  std::optional<bool> sample_on_device = {};
  // Tokens that end a sequence, and are its last; by default those of the model's configuration.
  std::optional<Tokens> eos = {};
  // Called with each new token and the number of its prompt, as soon as it is known.
  std::function<void(size_t sequence, int64_t token)> on_token = {};
  // Whether a sequence ends here, for strings that stop it: called with all of its new tokens.
  std::function<bool(size_t sequence, const Tokens& tokens)> stop = {};
};

// Seconds, and bytes of device memory.
struct GenerateReport {
  int64_t prompt_tokens = 0, new_tokens = 0;   // of all sequences
  double prefill_seconds = 0;                  // until the first tokens are known
  std::vector<double> step_seconds = {};       // of each later step; the first ones compile kernels
  std::vector<int64_t> step_cache_bytes = {};  // of keys and values after each of these steps
  int64_t cache_bytes = 0;                     // at the end
  int64_t peak_bytes = 0;                      // of all devices, most that were ever live

  double prefill_tokens_per_second() const;
  double decode_tokens_per_second() const;  // of a sequence, by the median step
};

// As a line for people.
std::string to_text(const GenerateReport& report);

struct Generated {
  std::vector<Tokens> tokens;  // what follows each prompt
  GenerateReport report;
};

// The sequences of a padded batch: ids, integers (B, L), where the mask (B, L) is not 0, on
// whichever side the padding is.
std::vector<Tokens> unpadded(const Tensor& ids, const Tensor& mask);

// Belongs to a model, which has to live longer. Between calls it may be trained, converted and
// given adapters. Dropout does not act, also while an nn::Training lives.
class Generator {
 public:
  // Error for a model that is not causal, or has no head.
  explicit Generator(Transformer& model);
  Generator(const Generator&) = delete;
  Generator& operator=(const Generator&) = delete;

  // Error for no prompt, an empty one, tokens that the model does not have, more tokens than
  // learned positions, and options out of range.
  Generated operator()(const std::vector<Tokens>& prompts, const GenerateOptions& options = {});

  int64_t cache_bytes() const;  // held for the next call

 private:
  class Run;
  // Arguments of a step: ids, positions, columns, padding, length; and the first new column. It
  // gives logits (B, vocab) and the most probable tokens (B).
  using Arguments = std::vector<Tensor>;
  using Step = Jit<std::function<Arguments(const Arguments&, const Variable&)>>;

  // Arguments of a draw: those of SamplingInputs. It gives what Sampled has.
  using Draw = Jit<std::function<Arguments(const Arguments&)>>;

  // A tensor of the model, by which it is known again.
  struct Known {
    std::string name;
    std::weak_ptr<const void> memory;
    Node node;  // of values that are not computed; else nullptr
  };

  void begin_anew_if_changed();
  void reserve(int64_t batch, int64_t columns);
  Step& step(int64_t tokens);
  Draw& draw(const SamplingParts& parts);

  Transformer& model_;
  int64_t batch_ = 0, capacity_ = 0;
  std::vector<LayerCache> caches_;
  std::map<int64_t, std::unique_ptr<Step>> steps_;  // by the number of new columns
  std::map<SamplingParts, std::unique_ptr<Draw>> draws_;
  std::vector<Known> known_;  // the model that steps are of
};

}  // namespace tiny::models
