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
  std::sort(tokens.begin(), tokens.end());
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  for (const int64_t token : tokens) {
    float& logit = logits[static_cast<size_t>(token)];
    logit = static_cast<float>(logit < 0 ? logit * penalty : logit / penalty);
  }
}

// The k most probable tokens, best first; of equals the first ones.
std::vector<Candidate> best(std::span<const float> logits, size_t k) {
  std::vector<Candidate> all;
  for (size_t i = 0; i < logits.size(); ++i) all.push_back({logits[i], static_cast<int64_t>(i)});
  const auto before = [](const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
  };
  k = std::min(k, all.size());
  std::partial_sort(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(k), all.end(), before);
  all.resize(k);
  return all;
}

double total(const std::vector<Candidate>& list) {
  return std::accumulate(list.begin(), list.end(), 0.0,
                         [](double sum, const Candidate& c) { return sum + c.weight; });
}

// The fewest that add up to p of all, at least one.
void keep_top_p(std::vector<Candidate>& list, double p) {
  if (p >= 1) return;
  const double wanted = p * total(list);
  double sum = 0;
  size_t count = 0;
  while (count < list.size() && sum < wanted) sum += list[count++].weight;
  list.resize(std::max<size_t>(count, 1));
}

void keep_min_p(std::vector<Candidate>& list, double p) {
  const double least = p * list[0].weight;
  while (list.back().weight < least) list.pop_back();
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

// Two steps of the generator apart, so that neighbouring seeds and texts share no numbers.
Sampler::Sampler(const SamplingOptions& options, uint64_t text)
    : options_(options), random_(SplitMix64(SplitMix64(options.seed).bits() ^ text).bits()) {
  check_sampling(options);
}

int64_t Sampler::next(std::span<float> logits, std::span<const int64_t> seen) {
  penalize(logits, seen, options_.repetition_penalty);
  const auto largest = std::max_element(logits.begin(), logits.end());
  check(largest != logits.end() && std::isfinite(*largest), "generate: no logit is finite");
  if (options_.temperature == 0) return largest - logits.begin();
  const size_t k = options_.top_k == 0 ? logits.size() : static_cast<size_t>(options_.top_k);
  std::vector<Candidate> list = best(logits, k);
  for (Candidate& c : list)
    c.weight = std::exp((static_cast<double>(c.logit) - list[0].logit) / options_.temperature);
  keep_top_p(list, options_.top_p);
  keep_min_p(list, options_.min_p);
  double left = static_cast<double>(random_.bits() >> 11) * 0x1p-53 * total(list);
  for (const Candidate& c : list)
    if ((left -= c.weight) < 0) return c.token;
  return list[0].token;
}

}  // namespace tiny::models
