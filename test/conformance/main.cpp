// conformance PREFIX: runs the suite PREFIX.json and ends with the line
// "N passed, N failed, N skipped". Exit status: 0 all passed, 1 some failed, 2 nothing was run.
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <cxxopts.hpp>
#include <iostream>
#include <map>
#include <optional>
#include <regex>
#include <string>

#include "runtime/kernels/proof.h"
#include "test/conformance/runner.h"
#include "test/conformance/suite.h"
#include "test/devices.h"
#include "tiny/base/env.h"
#include "tiny/base/error.h"
#include "tiny/run/version.h"

namespace tiny::conformance {
namespace {

// The case that is running, for the report of a crash.
const char* running = "";

// Names the case and then crashes all the same. Only async-signal-safe calls.
void report_crash(int signal) {
  const char* parts[] = {"FAIL ", running, ": crashed\n"};
  for (const char* part : parts)
    if (write(STDOUT_FILENO, part, strlen(part)) < 0) break;
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

// A sanitizer's handlers stay.
void watch_for_crashes() {
  for (int s : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) {
    const auto before = std::signal(s, report_crash);
    if (before != SIG_DFL) std::signal(s, before);
  }
}

struct Totals {
  int passed = 0, failed = 0;
  std::map<std::string, int> run_by_tag, failed_by_tag;

  void add(const Case& c, bool ok) {
    ++(ok ? passed : failed);
    for (const std::string& tag : c.tags) {
      ++run_by_tag[tag];
      if (!ok) ++failed_by_tag[tag];
    }
  }

  // Nothing is ever skipped: what is unsupported fails.
  void print() const {
    for (const auto& [tag, count] : failed_by_tag)
      std::cout << "tag " << tag << ": " << count << " of " << run_by_tag.at(tag) << " failed\n";
    std::cout << passed << " passed, " << failed << " failed, 0 skipped" << std::endl;
  }
};

cxxopts::Options make_options() {
  cxxopts::Options options("conformance", "Runs a conformance suite on the Tensor API.");
  auto add = options.add_options();
  add("prefix", "PREFIX.json and PREFIX.safetensors hold the suite", cxxopts::value<std::string>());
  add("device", "Device to run on", cxxopts::value<std::string>()->default_value(""));
  add("filter", "Only cases whose name holds a match of this regular expression",
      cxxopts::value<std::string>()->default_value(""));
  add("parts", "Only today's one in so many cases", cxxopts::value<int64_t>()->default_value("1"));
  add("devices", "Print the devices of this machine and run nothing");
  add("list", "Print the names of the cases and run nothing");
  add("reference",
      "Evaluate with the reference evaluator: tells defects of the front end from "
      "those of scheduling and code generation");
  add("verbose", "Print each case before it runs");
  add("version", "Print the version");
  add("help", "Print this");
  options.parse_positional({"prefix"});
  options.positional_help("PREFIX");
  return options;
}

std::vector<const Case*> chosen_cases(const Suite& suite, const std::string& filter,
                                      int64_t parts) {
  const std::regex pattern(filter);
  const TestPart part = test_part();
  std::vector<const Case*> out;
  for (const Case& c : suite.cases)
    if (std::regex_search(c.name, pattern) && is_in_turn(c.name, parts) && part.has(c.name))
      out.push_back(&c);
  return out;
}

int run_cases(const Suite& suite, const std::vector<const Case*>& cases, const RunOptions& options,
              bool verbose) {
  Totals totals;
  for (const Case* c : cases) {
    running = c->name.c_str();
    if (verbose) std::cout << c->name << std::endl;
    const std::vector<std::string> failures = run_case(suite, *c, options);
    for (const std::string& f : failures) std::cout << "FAIL " << c->name << ": " << f << std::endl;
    totals.add(*c, failures.empty());
  }
  totals.print();
  return totals.failed > 0 ? 1 : 0;
}

int main_with(const cxxopts::ParseResult& args) {
  const Suite suite = read_suite(args["prefix"].as<std::string>());
  const auto parts = args["parts"].as<int64_t>();
  const auto cases = chosen_cases(suite, args["filter"].as<std::string>(), parts);
  if (parts > 1)
    std::cout << cases.size() << " of " << suite.cases.size() << " cases (part " << today() % parts
              << " of " << parts << ")\n";
  check(!cases.empty(), "no case matches the filter");
  if (args.count("list")) {
    for (const Case* c : cases) std::cout << c->name << '\n';
    return 0;
  }
  // Also for what names no device: constants.
  std::optional<EnvOverride> device;
  const RunOptions options{args["device"].as<std::string>(), args.count("reference") > 0};
  if (!options.device.empty()) device.emplace("DEVICE", options.device);
  return run_cases(suite, cases, options, args.count("verbose") > 0);
}

}  // namespace
}  // namespace tiny::conformance

int main(int argc, char** argv) {
  if (tiny::print_version("conformance", argc, argv)) return 0;
  tiny::conformance::watch_for_crashes();
  try {
    cxxopts::Options options = tiny::conformance::make_options();
    const cxxopts::ParseResult args = options.parse(argc, argv);
    if (args.count("devices")) {
      for (const std::string& device : tiny::test_devices()) std::cout << device << '\n';
      return 0;
    }
    if (args.count("help") || !args.count("prefix")) {
      (args.count("help") ? std::cout : std::cerr) << options.help() << tiny::env_help();
      return args.count("help") ? 0 : 2;
    }
    const int status = tiny::conformance::main_with(args);
    const tiny::ProofCounts counts = tiny::proof_counts();
    if (counts.kernels) std::cout << tiny::to_text(counts) << '\n';
    return status;
  } catch (const std::exception& e) {
    std::cerr << "conformance: " << e.what() << '\n';
    return 2;
  }
}
