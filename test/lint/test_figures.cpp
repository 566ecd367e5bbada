// Figures of speed in README.md and docs/measurements.md are results in extra/bench/results: a row
// of README's table has a result of its date with these times, a row of a table in the measurements
// that names a benchmark one of that name.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <regex>
#include <string>
#include <vector>

#include "extra/bench/results.h"

using namespace tiny::bench;

namespace {

namespace fs = std::filesystem;

struct Result {
  std::string name, date;
  double ms, peer_ms;
};

Result result_of(const std::string& line) {
  return {field(line, "name"), field(line, "date"), number_field(line, "ms"),
          number_field(line, "peer_ms")};
}

std::vector<Result> results() {
  std::vector<Result> out;
  for (const auto& entry : fs::directory_iterator(fs::path(TINY_ROOT) / "extra/bench/results"))
    for (const std::string& line : result_lines(entry.path())) out.push_back(result_of(line));
  return out;
}

// A row of a table: "| a | b |" is " a " and " b ", each without its spaces.
std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> out;
  if (!line.starts_with("| ")) return out;
  for (size_t at = 1, end; (end = line.find('|', at)) != line.npos; at = end + 1) {
    const size_t begin = std::min(line.find_first_not_of(' ', at), end);
    const size_t last = line.find_last_not_of(' ', end - 1);
    out.push_back(line.substr(begin, last < begin ? 0 : last + 1 - begin));
  }
  return out;
}

// Whether a text begins with the number, rounded to as many digits behind the point as it has.
bool shows(const std::string& text, double value) {
  const std::string digits = text.substr(0, text.find_first_not_of("0123456789."));
  const size_t point = digits.find('.');
  if (digits.empty()) return false;
  const int decimals = point == digits.npos ? 0 : static_cast<int>(digits.size() - point - 1);
  char rounded[32];
  std::snprintf(rounded, sizeof rounded, "%.*f", decimals, value);
  return digits == rounded;
}

bool is_measured(const std::vector<std::string>& cells, const std::vector<Result>& all) {
  static const std::regex date("\\d{4}-\\d{2}-\\d{2}");
  std::smatch m;
  const bool has_name = cells[1].starts_with('`');
  const size_t tiny = has_name ? 2 : 1;
  const std::string name = has_name ? cells[1].substr(1, cells[1].size() - 2) : "";
  const std::string day = std::regex_search(cells[3], m, date) ? m[0].str() : "";
  return std::any_of(all.begin(), all.end(), [&](const Result& r) {
    return (has_name ? r.name == name : r.date == day) && shows(cells[tiny], r.ms) &&
           shows(cells[tiny + 1], r.peer_ms);
  });
}

// Rows with figures that no result has.
std::vector<std::string> unmeasured(const fs::path& page, size_t* rows) {
  static const std::vector<Result> all = results();
  static const std::regex named("`[a-z0-9_]+`"), dated(".*, \\d{4}-\\d{2}-\\d{2}");
  std::ifstream in(page);
  std::vector<std::string> out;
  for (std::string line; std::getline(in, line);) {
    const auto cells = cells_of(line);
    if (cells.size() < 5) continue;
    if (!std::regex_match(cells[1], named) && !std::regex_match(cells[3], dated)) continue;
    ++*rows;
    if (!is_measured(cells, all)) out.push_back(line);
  }
  return out;
}

}  // namespace

TEST_CASE("figures in the README and the measurements are results of benchmarks") {
  size_t in_readme = 0, in_measurements = 0;
  for (const std::string& line : unmeasured(fs::path(TINY_ROOT) / "README.md", &in_readme))
    FAIL_CHECK(line);
  for (const std::string& line :
       unmeasured(fs::path(TINY_ROOT) / "docs/measurements.md", &in_measurements))
    FAIL_CHECK(line);
  CHECK(in_readme >= 10);
  CHECK(in_measurements >= 40);
}

TEST_CASE("a figure is a result when it is that one rounded, of that day or name") {
  const std::vector<Result> all{result_of(
      "{\"date\": \"2026-11-21\", \"name\": \"sin\", \"ms\": 4.753, \"peer_ms\": 72.474}")};
  const auto measured = [&](const char* line) { return is_measured(cells_of(line), all); };
  CHECK(measured("| a | 4.75 | 72.5 PyTorch | EPYC, 2026-11-21 | c |"));
  CHECK(measured("| a | `sin` | 4.8 | 72 | 0.07 |"));
  CHECK_FALSE(measured("| a | 4.76 | 72.5 PyTorch | EPYC, 2026-11-21 | c |"));
  CHECK_FALSE(measured("| a | 4.75 | 72.4 PyTorch | EPYC, 2026-11-21 | c |"));
  CHECK_FALSE(measured("| a | 4.75 | 72.5 PyTorch | EPYC, 2026-11-22 | c |"));
  CHECK_FALSE(measured("| a | `cos` | 4.75 | 72.5 | 0.07 |"));
}
