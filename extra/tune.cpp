// Searches options for kernels as DEBUG=5 prints them (the stage merge_ranges; others are skipped),
// prints the candidates and draws time against candidates tried:
//   DEBUG=5 DEBUG_PASS=merge_ranges program 2>kernels.txt; build/release/tune kernels.txt
// With --choice it only compares and times one candidate: how a wrong one is seen again.
#include <algorithm>
#include <cstdio>
#include <cxxopts.hpp>
#include <fstream>
#include <iostream>

#include "codegen/lower.h"
#include "extra/kernel_reader.h"
#include "runtime/search/search.h"
#include "runtime/search/space.h"
#include "tiny/run/version.h"

using namespace tiny;

namespace {

void print(const Searched& s, size_t most) {
  std::vector<const Candidate*> rows;
  for (const Candidate& c : s.candidates)
    if (c.least > 0 || !c.text.empty()) rows.push_back(&c);
  std::stable_sort(rows.begin(), rows.end(), [](const Candidate* a, const Candidate* b) {
    const auto rank = [](const Candidate* c) { return c->least > 0 ? c->least : 1e9; };
    return rank(a) < rank(b);
  });
  std::printf("  outcome      least us    median us   estimate us\n");
  for (size_t i = 0; i < std::min(rows.size(), most); ++i)
    std::printf("  %-8s %12.2f %12.2f %13.2f  %s%s%s\n", name_of(rows[i]->outcome),
                rows[i]->least * 1e6, rows[i]->median * 1e6, rows[i]->estimate * 1e6,
                to_text(rows[i]->choice).c_str(), rows[i]->text.empty() ? "" : "  # ",
                rows[i]->text.c_str());
  if (rows.size() > most) std::printf("  ... %zu more (--rows)\n", rows.size() - most);
  std::printf("heuristic %.2f us, best %.2f us: %.2fx; %d timed of %zu candidates in %.1f s%s\n",
              s.heuristic * 1e6, s.seconds * 1e6, s.speedup(), s.timed, s.candidates.size(),
              s.spent, s.exhausted ? ", none left" : "");
  std::printf("best: %s\n", to_text(s.best).c_str());
}

// A dot for each candidate in the order of timing, and a line for the best so far.
void draw(const Searched& s, const std::string& path) {
  constexpr double kWidth = 800, kHeight = 400, kMargin = 60;
  std::vector<double> times;
  std::vector<const Candidate*> timed;
  for (const Candidate& c : s.candidates)
    if (c.least > 0) timed.push_back(&c);
  std::stable_sort(timed.begin(), timed.end(),
                   [](const Candidate* a, const Candidate* b) { return a->at < b->at; });
  for (const Candidate* c : timed) times.push_back(c->least * 1e6);
  if (times.empty()) return;
  const double top = std::min(*std::max_element(times.begin(), times.end()), times[0] * 3);
  const auto x = [&](size_t i) {
    return kMargin + (kWidth - 2 * kMargin) * static_cast<double>(i) /
                         static_cast<double>(std::max<size_t>(times.size() - 1, 1));
  };
  const auto y = [&](double t) {
    return kHeight - kMargin - (kHeight - 2 * kMargin) * std::min(t, top) / top;
  };
  std::ofstream out(path);
  check(out.good(), "tune: cannot write ", path);
  out << "<svg xmlns='http://www.w3.org/2000/svg' width='" << kWidth << "' height='" << kHeight
      << "' font-family='sans-serif' font-size='12'>\n<rect width='100%' height='100%' "
         "fill='white'/>\n";
  std::string line;
  double best = times[0];
  for (size_t i = 0; i < times.size(); ++i) {
    best = std::min(best, times[i]);
    line += cat(x(i), ',', y(best), ' ');
    out << "<circle cx='" << x(i) << "' cy='" << y(times[i]) << "' r='3' fill='"
        << (timed[i]->outcome == Outcome::Wrong ? "red" : "steelblue") << "'><title>" << times[i]
        << " us: " << to_text(timed[i]->choice) << "</title></circle>\n";
  }
  out << "<polyline points='" << line << "' fill='none' stroke='black'/>\n<text x='" << kMargin
      << "' y='" << y(times[0]) - 8 << "'>heuristic " << times[0] << " us</text>\n<text x='"
      << kWidth - 3 * kMargin << "' y='" << y(best) + 16 << "'>best " << best
      << " us</text>\n<text x='" << kWidth / 2 << "' y='" << kHeight - 20
      << "'>candidates tried</text>\n<text x='8' y='" << kMargin / 2 << "'>us, up to " << top
      << "</text>\n</svg>\n";
}

int again(Node kernel, const Choice& choice, SearchTools& tools, SearchSettings settings) {
  settings.only = &choice;
  settings.cached = false;
  const Searched s = search_kernel(kernel, "k", tools, settings);
  print(s, 10);
  const bool wrong = std::any_of(s.candidates.begin(), s.candidates.end(), [](const Candidate& c) {
    return c.outcome != Outcome::Good && c.outcome != Outcome::Slow;
  });
  return wrong ? 1 : 0;
}

int run(int count, char** arguments) {
  cxxopts::Options options("tune", "Searches options for kernels printed by DEBUG=5.");
  options.add_options()("kernels", "file of kernels; - is standard input",
                        cxxopts::value<std::string>()->default_value("-"))(
      "seconds", "for each kernel", cxxopts::value<double>()->default_value("10"))(
      "width", "of the beam", cxxopts::value<int>()->default_value("4"))(
      "device", "where it runs", cxxopts::value<std::string>()->default_value("CPU"))(
      "rows", "of the table", cxxopts::value<size_t>()->default_value("25"))(
      "svg", "draws to FILE, FILE-1, ...",
      cxxopts::value<std::string>()->default_value("tune.svg"))(
      "choice", "tries these options alone", cxxopts::value<std::string>())(
      "in-process", "without processes of its own")("no-cache", "neither reads nor keeps times")(
      "version", "prints the version")("help", "this text");
  options.parse_positional({"kernels"});
  options.positional_help("[kernels.txt]");
  const auto given = options.parse(count, arguments);
  if (given.count("help")) {
    std::cout << options.help();
    return 0;
  }
  SearchSettings settings;
  settings.seconds = given["seconds"].as<double>();
  settings.width = given["width"].as<int>();
  settings.cached = given.count("no-cache") == 0;
  SearchTools tools(canonical_device(given["device"].as<std::string>()),
                    given.count("in-process") == 0);
  const auto path = given["kernels"].as<std::string>();
  std::ifstream file(path);
  check(path == "-" || file.good(), "tune: cannot read ", path);
  int status = 0, number = 0;
  read_kernels(path == "-" ? std::cin : file, "merge_ranges", [&](Node kernel) {
    if (given.count("choice")) {
      status |= again(kernel, choice_from_text(given["choice"].as<std::string>()), tools, settings);
      return;
    }
    const Searched s = search_kernel(kernel, cat("k_", number), tools, settings);
    if (!s.trouble.empty()) std::printf("not searched: %s\n", s.trouble.c_str());
    print(s, given["rows"].as<size_t>());
    std::string svg = given["svg"].as<std::string>();
    if (number++) svg.insert(std::min(svg.rfind(".svg"), svg.size()), cat("-", number - 1));
    draw(s, svg);
  });
  return status;
}

}  // namespace

int main(int count, char** arguments) {
  if (print_version("tune", count, arguments)) return 0;
  try {
    return run(count, arguments);
  } catch (const std::exception& e) {
    std::cerr << e.what() << '\n';
    return 2;
  }
}
