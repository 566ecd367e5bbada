// What a transformer's graph is made from: sizes, kinds of norms, positions, attention and experts.
// Filled from the config.json of transformers 4 and 5.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tiny::models {

enum class Activation { Gelu, GeluTanh, QuickGelu, Relu, SquaredRelu, Silu, Tanh, Sigmoid };

enum class NormKind { Layer, Rms };

// Norms of queries and keys: none, of each head or of the whole row before they are rotated, or of
// each head without weights after that.
enum class QkNorm { None, Head, Row, HeadAfterRope };

enum class RopeKind { Default, Linear, Dynamic, Yarn, Llama3 };

// J. Su et al., "RoFormer", arXiv 2104.09864; the scalings of B. Peng et al., "YaRN", arXiv
// 2309.00071, and of Llama 3.1.
struct RopeConfig {
  RopeKind kind = RopeKind::Default;
  double theta = 10000;
  int64_t dims = 0;          // leading elements of a head that are rotated, even
  bool interleaved = false;  // pairs are elements 2i and 2i + 1, not i and i + dims / 2
  double factor = 1;
  int64_t max_positions = 0;                    // of Dynamic: a longer sequence raises theta
  int64_t original_positions = 0;               // of Yarn and Llama3: those of the first training
  std::optional<double> attention_factor = {};  // of cos and sin; of Yarn by default from factor
  double beta_fast = 32, beta_slow = 1;         // of Yarn: turns where its ramp begins and ends
  double mscale = 0, mscale_all_dim = 0;        // of Yarn: where both are given, of its factor
  bool truncate = true;                         // of Yarn: the ramp's ends are whole numbers
  double low_freq_factor = 1, high_freq_factor = 4;  // of Llama3
};

// What one layer sees and is made of.
struct LayerConfig {
  std::optional<int64_t> window = {};  // of the latest positions, the query's own included
  std::optional<int64_t> chunk = {};   // sequences are cut into parts of so many positions
  bool rope = true;                    // queries and keys are rotated
  bool experts = false;
  int64_t ffn = 0;  // width of the feed-forward part, or of each expert
};

// Of a softmax over all experts the largest are taken; or the largest of all, each through a
// sigmoid that scales what goes into it.
enum class Routing { Softmax, SigmoidOfInput };

struct ExpertsConfig {
  int64_t count = 0, active = 0;  // active: for each token
  Routing routing = Routing::Softmax;
  bool renormalize = false;  // weights of those that were taken add up to 1
  int64_t shared_ffn = 0;    // width of an expert for all tokens; 0: there is none
  bool input_first = false;  // weights are (experts, in, out) and not (experts, out, in)
};

// Queries of layers without rotary positions are multiplied by
// 1 + scale log(1 + floor((position + 1) / floor)) (K. Nakanishi, arXiv 2501.19399).
struct TemperatureConfig {
  double scale = 0;
  double floor = 1;
};

struct DropoutConfig {
  double embedding = 0, attention = 0, residual = 0, classifier = 0;
};

enum class Head { None, Language, MaskedLanguage, Classifier };

struct ModelConfig {
  std::string type;         // "llama": the row of the table in architectures.h
  std::string source = {};  // the JSON that it was read from
  Head head = Head::Language;
  bool causal = true;

  int64_t vocab = 0, hidden = 0, heads = 0, kv_heads = 0, head_dim = 0;
  int64_t max_positions =
      0;  // of sequences that it was trained on; of learned positions their number
  int64_t token_types = 0;  // 0: none
  int64_t labels = 2;       // of a classifier
  bool learned_positions = false;
  std::optional<RopeConfig> rope = {};
  std::vector<LayerConfig> layers = {};

  NormKind norm = NormKind::Rms;
  double norm_eps = 1e-6;
  bool norm_first = true;  // before attention and feed-forward; else after the sum with their input
  QkNorm qk_norm = QkNorm::None;
  Activation activation = Activation::Silu;
  bool gated = true;  // down(act(gate(x)) * up(x)), else down(act(up(x)))

  bool fused_qkv = false;    // one product for queries, keys and values
  bool input_first = false;  // weights of products are (in, out)
  bool qkv_bias = false, out_bias = false, ffn_bias = false;
  bool tied = false;                      // the head's weight is that of the tokens
  bool scale_attention = true;            // by 1 / sqrt(head_dim)
  bool scale_attention_by_layer = false;  // and by 1 / (layer + 1)
  std::optional<double> clip_qkv = {};    // to [-clip, clip]
  std::optional<TemperatureConfig> temperature = {};
  // Scores and weights of attention are stored and rounded, as transformers' attn_implementation
  // "eager" does; else their products may be one kernel.
  bool eager_attention = false;
  ExpertsConfig experts = {};
  DropoutConfig dropout = {};

  double init_deviation = 0.02;  // of weights that are not read from a file
  std::vector<int64_t> eos = {};
  std::optional<int64_t> bos = {}, pad = {};
};

// From the text of a config.json. `where`: what errors begin with, its path. Throws Error, naming
// key and value, for what is no JSON, of another type, out of range or not supported.
ModelConfig parse_config(const std::string& json, const std::string& where = "config.json");

// The end tokens that a generation_config.json names; nothing where it names none.
std::vector<int64_t> parse_end_tokens(const std::string& json, const std::string& where);

}  // namespace tiny::models
