// Looks into the file in which searches for options (BEAM) keep what they found:
//   beam-cache [--file F] list             a line for each kernel
//   beam-cache [--file F] export FILE      writes all of it to a file, for another machine
//   beam-cache [--file F] import FILE      adds what another file knows
//   beam-cache [--file F] drop [TEXT]      forgets kernels whose name or key contains the text
//   beam-cache [--file F] explain TEXT     every candidate of these kernels, best first
#include <algorithm>
#include <cstdio>
#include <cxxopts.hpp>
#include <iostream>

#include "runtime/kernels/choice_cache.h"
#include "tiny/base/error.h"
#include "tiny/run/version.h"

using namespace tiny;

namespace {

void list(SearchCache& cache) {
  for (const KernelRecord& k : cache.all()) {
    std::printf("%.12s  %-48s %4zu tried", k.key.c_str(), k.name.c_str(), k.tries.size());
    if (k.done && k.done->best > 0)
      std::printf("  %10.1f us -> %10.1f us  %.2fx  width %d, %g s%s", k.done->heuristic * 1e6,
                  k.done->best * 1e6, k.done->heuristic / k.done->best, k.done->width,
                  k.done->budget, k.done->exhausted ? ", exhausted" : "");
    else if (k.done)
      std::printf("  passed over within %g s", k.done->budget);
    std::printf("\n");
  }
}

void explain(SearchCache& cache, const std::string& text) {
  for (const KernelRecord& k : cache.all()) {
    if (k.name.find(text) == k.name.npos && k.key.find(text) == k.key.npos) continue;
    std::printf("%s %s\n  %s\n", k.key.c_str(), k.name.c_str(), k.device.c_str());
    if (k.done) std::printf("  takes: %s\n", k.done->choice.c_str());
    std::vector<TryRecord> tries;
    for (const auto& [choice, t] : k.tries) tries.push_back(t);
    std::sort(tries.begin(), tries.end(), [](const TryRecord& a, const TryRecord& b) {
      return std::make_tuple(a.outcome, a.least, a.choice) <
             std::make_tuple(b.outcome, b.least, b.choice);
    });
    for (const TryRecord& t : tries)
      std::printf("  %-8s %10.1f us, median %10.1f us  %s\n", name_of(t.outcome), t.least * 1e6,
                  t.median * 1e6, t.choice.c_str());
  }
}

int run(int count, char** arguments) {
  cxxopts::Options options("beam-cache", "What searches for kernels' options have found.");
  const auto text_value = [] { return cxxopts::value<std::string>(); };
  auto add = options.add_options();
  add("file", "the file (BEAM_CACHE, else beam.jsonl in the cache's folder)", text_value());
  add("command", "list, export, import, drop, explain", text_value());
  add("text", "file, or a part of a kernel's name or key", text_value()->default_value(""));
  add("version", "prints the version");
  add("help", "this text");
  options.parse_positional({"command", "text"});
  options.positional_help("list | export FILE | import FILE | drop [TEXT] | explain TEXT");
  const auto given = options.parse(count, arguments);
  if (given.count("help") || !given.count("command")) {
    std::cout << options.help();
    return given.count("help") ? 0 : 2;
  }
  const auto command = given["command"].as<std::string>(), text = given["text"].as<std::string>();
  SearchCache own(given.count("file") ? given["file"].as<std::string>() : "");
  SearchCache& cache = given.count("file") ? own : SearchCache::current();
  if (command == "list") {
    list(cache);
  } else if (command == "explain") {
    explain(cache, text);
  } else if (command == "drop") {
    std::printf("%zu kernels forgotten\n", cache.drop(text));
  } else if (command == "import") {
    std::printf("%zu records added\n", cache.import(text));
  } else if (command == "export") {
    check(!text.empty(), "beam-cache: export to which file?");
    std::printf("%zu records written\n", SearchCache(text).import(cache.path()));
  } else {
    throw Error(cat("beam-cache: no command '", command, "'\n", options.help()));
  }
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  if (print_version("beam-cache", count, arguments)) return 0;
  try {
    return run(count, arguments);
  } catch (const std::exception& e) {
    std::cerr << e.what() << '\n';
    return 2;
  }
}
