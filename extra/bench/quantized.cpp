// Models whose weights stay quantised: tokens a second while a prompt is read and while one token
// follows another, with processor time as well, which other work on the machine changes less.
//
//   quantized model.gguf... [--floats]     prompt of 512 tokens; then tokens after a prompt of 8
//
// quantized_peer.mjs measures llama.cpp on the same files.
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <string>
#include <vector>

#include "extra/bench/record.h"
#include "extra/bench/timing.h"
#include "tiny/models.h"
#include "tiny/tiny.h"

using namespace tiny;

namespace {

constexpr int64_t kPrompt = 512, kShort = 8, kSteps = 48, kRounds = 4;

double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

models::Tokens prompt_of(int64_t length, int64_t words) {
  models::Tokens out;
  for (int64_t i = 0; i < length; ++i) out.push_back(words / 100 + i * 7919 % (words * 9 / 10));
  return out;
}

// The least seconds of a prompt, and of a token after the first two, which compile kernels.
struct Seconds {
  double wall = 1e30, processor = 1e30;
  void add(double w, double p) {
    wall = std::min(wall, w);
    processor = std::min(processor, p);
  }
};

Seconds prompts(models::Generator& write, int64_t words) {
  Seconds least;
  for (int round = 0; round < kRounds; ++round) {
    const double wall = bench::seconds(), processor = processor_seconds();
    write({prompt_of(kPrompt, words)}, {.max_new_tokens = 1, .eos = models::Tokens{}});
    if (round > 1) least.add(bench::seconds() - wall, processor_seconds() - processor);
  }
  return least;
}

Seconds tokens(models::Generator& write, int64_t words) {
  Seconds least;
  int64_t count = 0;
  double wall = 0, processor = 0;
  const auto on_token = [&](size_t, int64_t) {
    const double w = bench::seconds(), p = processor_seconds();
    if (count++ > 3) least.add(w - wall, p - processor);
    wall = w;
    processor = p;
  };
  write({prompt_of(kShort, words)},
        {.max_new_tokens = kSteps, .eos = models::Tokens{}, .on_token = on_token});
  return least;
}

void print(const std::string& name, double count, const Seconds& s) {
  std::printf(
      "%s, \"threads\": %s, \"name\": \"%s\", \"per_second\": %.1f, "
      "\"per_processor_second\": %.1f}\n",
      bench::record(bench::machine_name("CPU")).c_str(),
      std::getenv("THREADS") ? std::getenv("THREADS") : "0", name.c_str(), count / s.wall,
      count / s.processor);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> files(argv + 1, argv + argc);
  const bool floats = std::erase(files, "--floats") > 0;
  for (const std::string& file : files) {
    models::LoadOptions options;
    options.keep_quantized = floats ? QuantizedProduct::Floats : QuantizedProduct::Bytes;
    models::Transformer model = models::load(file, options);
    models::Generator write(model);
    const int64_t words = model.config().vocab;
    const std::string name = file.substr(file.find_last_of('/') + 1);
    print("decode " + name, 1, tokens(write, words));
    print("prefill " + name, static_cast<double>(kPrompt), prompts(write, words));
  }
}
