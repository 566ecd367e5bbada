#include "tiny/models/generate.h"

#include <algorithm>
#include <bit>

#include "tiny/ir/sizes.h"
#include "tiny/run/memory.h"
#include "tiny/train/schedules.h"

namespace tiny::models {

namespace {

// Columns of a prompt are computed so many at a time: the first as often as they fit, the second
// for the rest, which is padded on the left.
constexpr int64_t kLargeStep = 256, kSmallStep = 32;
constexpr int64_t kMinCapacity = 64;
// New tokens that a cache has room for from the beginning; more make it grow.
constexpr int64_t kRoom = 128;

int64_t bytes_of(const Tensor& t) { return t.numel() * t.dtype().size(); }

// Columns of a cache that holds so many: whole pages, or a part of one for a short text. Each
// number of columns has captures of its own, so that beyond eight pages several are added at once,
// as many as an eighth of the next power of two: less than a quarter more than what is needed.
int64_t capacity_for(int64_t columns) {
  if (columns <= kCachePage)
    return std::max(kMinCapacity,
                    static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(columns))));
  const int64_t pages = ceil_div(columns, kCachePage);
  const auto power = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(pages)));
  return round_up(pages, std::max<int64_t>(power / 8, 1)) * kCachePage;
}

}  // namespace

double GenerateReport::prefill_tokens_per_second() const {
  return prefill_seconds > 0 ? static_cast<double>(prompt_tokens) / prefill_seconds : 0;
}

double GenerateReport::decode_tokens_per_second() const {
  if (step_seconds.empty()) return 0;
  std::vector<double> sorted = step_seconds;
  std::ranges::sort(sorted);
  const double median = sorted[sorted.size() / 2];
  return median > 0 ? 1 / median : 0;
}

std::string to_text(const GenerateReport& r) {
  return cat(r.prompt_tokens, " tokens read, ",
             formatted("%.1f a second; ", r.prefill_tokens_per_second()), r.new_tokens,
             " tokens written, ", formatted("%.1f a second; ", r.decode_tokens_per_second()),
             formatted("cache %.1f MB, peak %.1f MB", static_cast<double>(r.cache_bytes) * 1e-6,
                       static_cast<double>(r.peak_bytes) * 1e-6));
}

std::vector<Tokens> unpadded(const Tensor& ids, const Tensor& mask) {
  check(ids.rank() == 2 && same(ids.shape(), mask.shape()), "unpadded: ids of shape ",
        tiny::to_text(ids.shape()), " and a mask of shape ", tiny::to_text(mask.shape()),
        ", expected (batch, length) of both");
  const Tokens tokens = ids.to(kI64).to_vector<int64_t>();
  const Tokens seen = (mask != 0).to(kI64).to_vector<int64_t>();
  const auto length = static_cast<size_t>(ids.size(1));
  std::vector<Tokens> out(static_cast<size_t>(ids.size(0)));
  for (size_t i = 0; i < tokens.size(); ++i)
    if (seen[i]) out[i / length].push_back(tokens[i]);
  return out;
}

Generator::Generator(Transformer& model) : model_(model) {
  const ModelConfig& c = model.config();
  check(c.causal && c.head == Head::Language, "Generator: ", c.type,
        ": only causal models with a head for tokens write on");
}

// Captures are of the tensors that a model had, and of the adapters.
void Generator::begin_anew_if_changed() {
  std::vector<Known> now;
  for (const NamedTensor& t : model_.state_dict()) {
    const Node node = t.tensor->node();
    const std::weak_ptr<const void> memory = runtime_seam::memory_of(node);
    now.push_back({t.name, memory, memory.expired() ? node : nullptr});
  }
  const auto same = [](const Known& a, const Known& b) {
    return a.name == b.name && a.node == b.node && !a.memory.owner_before(b.memory) &&
           !b.memory.owner_before(a.memory);
  };
  if (!std::equal(now.begin(), now.end(), known_.begin(), known_.end(), same)) {
    steps_.clear();
    batch_ = 0;
  }
  known_ = std::move(now);
}

// Caches for so many columns at least. What is in them stays where the batch is the same.
void Generator::reserve(int64_t batch, int64_t columns) {
  if (batch == batch_ && columns <= capacity_) return;
  const int64_t capacity = capacity_for(columns);
  const ModelConfig& c = model_.config();
  const Tensor& like = *model_.state_dict()[0].tensor;
  steps_.clear();  // they refer to the caches
  const bool grows = batch == batch_;
  const int64_t filled = grows ? capacity_ : 0;
  if (!grows) {
    caches_.assign(c.layers.size(), LayerCache{});
    draws_.clear();  // they are of another batch
  }
  batch_ = 0;  // where memory ends, they begin anew the next time
  const NoGrad no_grad;
  for (LayerCache& cache : caches_)
    for (Tensor* t : {&cache.keys, &cache.values}) {
      const Shape shape{batch, c.kv_heads, capacity - filled, c.head_dim};
      const Tensor more = Tensor::zeros(shape, like.dtype()).to(like.device());
      *t = (grows ? Tensor::cat({*t, more}, 2) : more).contiguous().realize();
    }
  batch_ = batch;
  capacity_ = capacity;
}

int64_t Generator::cache_bytes() const {
  int64_t bytes = 0;
  for (const LayerCache& cache : caches_) bytes += bytes_of(cache.keys) + bytes_of(cache.values);
  return bytes;
}

Generator::Step& Generator::step(int64_t tokens) {
  std::unique_ptr<Step>& step = steps_[tokens];
  if (step) return *step;
  step = std::make_unique<Step>([this, tokens](const Arguments& in, const Variable& first) {
    const NoGrad no_grad;
    const CacheStep place{Tensor::arange(tokens) + first.tensor(), first + tokens};
    const Tensor logits =
        model_.forward_cached({in[0], in[1], in[2], in[3], in[4], place}, caches_).to(kF32);
    return Arguments{logits, logits.argmax(-1)};
  });
  return *step;
}

Generator::Draw& Generator::draw(const SamplingParts& parts) {
  std::unique_ptr<Draw>& draw = draws_[parts];
  if (!draw)
    draw = std::make_unique<Draw>([parts](const Arguments& in) {
      const NoGrad no_grad;
      const Sampled sampled = sample({in[0], in[1], in[2], in[3]}, parts);
      return Arguments{sampled.tokens, sampled.seen};
    });
  return *draw;
}

// One call: the sequences of a batch and how far they are.
class Generator::Run {
 public:
  Run(Generator& generator, const std::vector<Tokens>& prompts, const GenerateOptions& options);
  Generated go();

 private:
  struct Sequence {
    Tokens tokens;    // prompt and answer
    int64_t padding;  // columns before it
    Sampler sampler;
    bool done = false;
  };

  void prefill();
  // Computes the columns from column_ on.
  Arguments compute(int64_t columns);
  void choose(const Arguments& result);
  Tokens choose_on_host(const Tensor& logits);
  Tokens choose_on_device(const Tensor& logits);
  void add(size_t i, int64_t token);
  bool all_done() const;

  Generator& g_;
  const GenerateOptions& options_;
  const Tokens eos_;
  std::vector<Sequence> sequences_;
  int64_t extra_ = 0;   // columns before the longest sequence
  int64_t column_ = 0;  // columns that are in the cache
  struct OnDevice {
    Tensor seen, numbers;  // of SamplingInputs
  } on_device_;
  Generated out_;
};

Generator::Run::Run(Generator& generator, const std::vector<Tokens>& prompts,
                    const GenerateOptions& options)
    : g_(generator), options_(options), eos_(options.eos.value_or(g_.model_.config().eos)) {
  const ModelConfig& c = g_.model_.config();
  check(!prompts.empty(), "generate: no prompt");
  check(options.max_new_tokens >= 1, "generate: max_new_tokens ", options.max_new_tokens,
        ", expected 1 or more");
  int64_t longest = 0;
  for (size_t i = 0; i < prompts.size(); ++i) {
    check(!prompts[i].empty(), "generate: prompt ", i, " has no token");
    for (const int64_t token : prompts[i])
      check(token >= 0 && token < c.vocab, "generate: prompt ", i, " has the token ", token,
            ", expected 0 to ", c.vocab - 1);
    longest = std::max(longest, std::ssize(prompts[i]));
  }
  check(!c.learned_positions || longest <= c.max_positions, "generate: a prompt of ", longest,
        " tokens, and there are ", c.max_positions, " positions");
  const int64_t columns = round_up(longest, kSmallStep);
  extra_ = columns - longest;
  for (size_t i = 0; i < prompts.size(); ++i) {
    sequences_.push_back(
        {prompts[i], columns - std::ssize(prompts[i]), Sampler(options.sampling, i)});
    out_.report.prompt_tokens += std::ssize(prompts[i]);
  }
  out_.tokens.resize(prompts.size());
}

Generator::Arguments Generator::Run::compute(int64_t columns) {
  Tokens ids, positions, at, padding;
  int64_t longest = 0;
  for (const Sequence& sequence : sequences_) {
    padding.push_back(sequence.padding);
    longest = std::max(longest, std::ssize(sequence.tokens));
    for (int64_t i = column_; i < column_ + columns; ++i) {
      const int64_t position = i - sequence.padding;
      ids.push_back(position < 0 ? 0 : sequence.tokens[position]);
      positions.push_back(std::max<int64_t>(position, 0));
    }
  }
  for (int64_t i = column_; i < column_ + columns; ++i)
    at.push_back(std::max<int64_t>(i - extra_, 0));
  const int64_t batch = std::ssize(sequences_);
  const std::string device = g_.caches_[0].keys.device();
  const auto integers = [&](const Tokens& values, const Shape& shape) {
    return Tensor::from(values, shape, device);
  };
  const Variable first("first", 0, g_.capacity_ - columns);
  column_ += columns;
  return g_.step(columns)(
      Arguments{integers(ids, {batch, columns}), integers(positions, {batch, columns}),
                integers(at, {columns}), integers(padding, {batch}), integers({longest}, {1})},
      first.bind(column_ - columns, device));
}

void Generator::Run::prefill() {
  const int64_t columns = sequences_[0].padding + std::ssize(sequences_[0].tokens);
  g_.reserve(std::ssize(sequences_), columns + std::min(options_.max_new_tokens - 1, kRoom));
  Arguments result;
  while (column_ < columns)
    result = compute(columns - column_ >= kLargeStep ? kLargeStep : kSmallStep);
  choose(result);
}

// The next token of each sequence that goes on. The most probable ones are in the step's result.
void Generator::Run::choose(const Arguments& result) {
  const SamplingOptions& s = options_.sampling;
  const bool on_device =
      options_.sample_on_device.value_or(runtime_seam::is_gpu(g_.caches_[0].keys.device()));
  const Tokens tokens = s.temperature == 0 && s.repetition_penalty == 1
                            ? result[1].to_vector<int64_t>()
                        : on_device ? choose_on_device(result[0])
                                    : choose_on_host(result[0]);
  for (size_t i = 0; i < sequences_.size(); ++i)
    if (!sequences_[i].done) add(i, tokens[i]);
}

Tokens Generator::Run::choose_on_host(const Tensor& logits) {
  std::vector<float> all = logits.to_vector<float>();
  const size_t vocab = all.size() / sequences_.size();
  Tokens tokens(sequences_.size());
  for (size_t i = 0; i < sequences_.size(); ++i) {
    Sequence& sequence = sequences_[i];
    if (!sequence.done)
      tokens[i] = sequence.sampler.next(std::span(all).subspan(i * vocab, vocab), sequence.tokens);
  }
  return tokens;
}

Tokens Generator::Run::choose_on_device(const Tensor& logits) {
  const int64_t batch = logits.size(0), vocab = logits.size(1);
  std::vector<double> random;
  for (Sequence& sequence : sequences_) random.push_back(sequence.sampler.random());
  if (!on_device_.seen.defined()) {
    std::vector<uint8_t> seen(static_cast<size_t>(batch * vocab));
    for (size_t i = 0; i < sequences_.size(); ++i)
      for (const int64_t token : sequences_[i].tokens)
        seen[i * static_cast<size_t>(vocab) + static_cast<size_t>(token)] = 1;
    on_device_.seen = (Tensor::from(seen, {batch, vocab}, logits.device()) != 0).realize();
    on_device_.numbers =
        Tensor::from(sampling_numbers(options_.sampling), {5}, logits.device()).realize();
  }
  const SamplingParts parts(options_.sampling);
  const Arguments sampled = g_.draw(parts)(Arguments{
      logits, on_device_.seen, on_device_.numbers, Tensor::from(random, {batch}, logits.device())});
  on_device_.seen = sampled[1];
  const Tokens tokens = sampled[0].to_vector<int64_t>();
  for (size_t i = 0; i < sequences_.size(); ++i)
    if (!sequences_[i].done) check_sampled(tokens[i]);
  return tokens;
}

void Generator::Run::add(size_t i, int64_t token) {
  const ModelConfig& c = g_.model_.config();
  Sequence& sequence = sequences_[i];
  sequence.tokens.push_back(token);
  Tokens& answer = out_.tokens[i];
  answer.push_back(token);
  ++out_.report.new_tokens;
  if (options_.on_token) options_.on_token(i, token);
  sequence.done = std::ssize(answer) >= options_.max_new_tokens || contains(eos_, token) ||
                  (c.learned_positions && std::ssize(sequence.tokens) > c.max_positions) ||
                  (options_.stop && options_.stop(i, answer));
}

bool Generator::Run::all_done() const {
  return std::ranges::all_of(sequences_, [](const Sequence& t) { return t.done; });
}

Generated Generator::Run::go() {
  GenerateReport& report = out_.report;
  double before = seconds();
  prefill();
  report.prefill_seconds = seconds() - before;
  while (!all_done()) {
    before = seconds();
    // Sequences that have ended go on with tokens that nobody sees.
    for (Sequence& sequence : sequences_)
      if (sequence.done) sequence.tokens.push_back(0);
    g_.reserve(std::ssize(sequences_), column_ + 1);
    choose(compute(1));
    report.step_seconds.push_back(seconds() - before);
    report.step_cache_bytes.push_back(g_.cache_bytes());
  }
  report.cache_bytes = g_.cache_bytes();
  for (const DeviceMemory& memory : memory_report(0).devices)
    report.peak_bytes += memory.peak_bytes;
  return std::move(out_);
}

Generated Generator::operator()(const std::vector<Tokens>& prompts,
                                const GenerateOptions& options) {
  check_sampling(options.sampling);
  const nn::Training evaluation(false);
  begin_anew_if_changed();
  return Run(*this, prompts, options).go();
}

}  // namespace tiny::models
