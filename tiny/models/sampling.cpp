#include "tiny/models/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tiny/base/error.h"

namespace tiny::models {

namespace {

struct Candidate {
  float logit;
  int64_t token;
  double weight = 0;  // in proportion to its probability
};

void penalize(std::span<float> logits, std::span<const int64_t> seen, double penalty) {
  if (penalty == 1) return;
  std::vector<int64_t> tokens(seen.begin(), seen.end());
  std::ranges::sort(tokens);
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  for (const int64_t token : tokens) {
    float& logit = logits[token];
    logit = static_cast<float>(logit < 0 ? logit * penalty : logit / penalty);
  }
}

bool is_better(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
}

// The k best tokens, in no order; k = 0: all of them.
std::vector<Candidate> candidates(std::span<const float> logits, size_t k) {
  std::vector<Candidate> list;
  list.reserve(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) list.push_back({logits[i], static_cast<int64_t>(i)});
  if (k == 0 || k >= list.size()) return list;
  std::nth_element(list.begin(), list.begin() + static_cast<std::ptrdiff_t>(k), list.end(),
                   is_better);
  list.resize(k);
  return list;
}

double total(const std::vector<Candidate>& list) {
  return std::accumulate(list.begin(), list.end(), 0.0,
                         [](double sum, const Candidate& c) { return sum + c.weight; });
}

// The fewest that add up to p of all, at least one. Tokens below (1 - p) / n of all n add up to
// less than what may be missing, so they need not be sorted.
void keep_top_p(std::vector<Candidate>& list, double p) {
  if (p >= 1) return;
  const double all = total(list), least = (1 - p) * all / static_cast<double>(list.size());
  std::erase_if(list, [&](const Candidate& c) { return c.weight < least; });
  std::ranges::sort(list, is_better);
  double sum = 0;
  size_t count = 0;
  while (count < list.size() && sum < p * all) sum += list[count++].weight;
  list.resize(std::max<size_t>(count, 1));
}

}  // namespace

void check_sampling(const SamplingOptions& o) {
  check(std::isfinite(o.temperature) && o.temperature >= 0, "generate: temperature ", o.temperature,
        ", expected 0 or more");
  check(o.top_k >= 0, "generate: top_k ", o.top_k, ", expected 0 (all) or more");
  check(o.top_p > 0 && o.top_p <= 1, "generate: top_p ", o.top_p, ", expected above 0, at most 1");
  check(o.min_p >= 0 && o.min_p <= 1, "generate: min_p ", o.min_p, ", expected 0 to 1");
  check(std::isfinite(o.repetition_penalty) && o.repetition_penalty > 0,
        "generate: repetition_penalty ", o.repetition_penalty, ", expected above 0");
}

// Two steps of the generator apart, so that neighbouring seeds and sequences share no numbers.
Sampler::Sampler(const SamplingOptions& options, uint64_t sequence)
    : options_(options), random_(SplitMix64(SplitMix64(options.seed).bits() ^ sequence).bits()) {
  check_sampling(options);
}

double Sampler::random() { return static_cast<double>(random_.bits() >> 11) * 0x1p-53; }

int64_t Sampler::next(std::span<float> logits, std::span<const int64_t> seen) {
  penalize(logits, seen, options_.repetition_penalty);
  check(std::ranges::none_of(logits, [](float x) { return std::isnan(x); }),
        "generate: a logit is NaN");
  const auto largest = std::ranges::max_element(logits);
  check(largest != logits.end() && std::isfinite(*largest), "generate: no logit is finite");
  if (options_.temperature == 0) return largest - logits.begin();
  std::vector<Candidate> list = candidates(logits, static_cast<size_t>(options_.top_k));
  for (Candidate& c : list)
    c.weight = std::exp((static_cast<double>(c.logit) - *largest) / options_.temperature);
  keep_top_p(list, options_.top_p);
  // The most probable one has the weight 1.
  std::erase_if(list, [&](const Candidate& c) { return c.weight < options_.min_p; });
  // In the order of tokens, as on a device (sampling_graph.h).
  if (list.size() < logits.size()) std::ranges::sort(list, {}, &Candidate::token);
  double left = random() * total(list);
  for (const Candidate& c : list)
    if ((left -= c.weight) < 0) return c.token;
  return largest - logits.begin();
}

}  // namespace tiny::models
