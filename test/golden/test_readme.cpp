// The generated parts of README.md are what the program says: the table of environment variables
// and the stages of a kernel. `make golden-update` writes them anew. A part stands between
//   <!-- generated: environment -->    or    <!-- generated: row_sum, options, 20 lines -->
// and `<!-- end -->`; `4+7 lines` shows seven lines after the first four.
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>

#include "tiny/env.h"
#include "tiny/error.h"

using namespace tiny;

namespace {

const std::filesystem::path kRoot = TINY_ROOT;

std::string read(const std::filesystem::path& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

// Lines skip .. skip + count - 1 of a section of a golden file, as a block.
std::string stage(const std::string& file, const std::string& section, int skip, int count) {
  std::istringstream in(read(kRoot / "test/golden" / (file + ".txt")));
  std::string out = "```text\n", line;
  while (std::getline(in, line) && line != "--- " + section) {
  }
  int at = 0, shown = 0;
  for (; std::getline(in, line) && !line.starts_with("--- "); ++at) {
    if (at < skip || shown == count) continue;
    out += line + "\n";
    ++shown;
  }
  return out + (at > skip + shown ? "...\n" : "") + "```\n";
}

std::string generated(const std::string& what) {
  if (what == "environment") return env_table_markdown();
  std::smatch m;
  const std::regex form("(\\w+), (.+), (?:(\\d+)\\+)?(\\d+) lines");
  check(std::regex_match(what, m, form), "README.md: cannot generate '", what, "'");
  return stage(m[1], m[2], m[3].matched ? std::stoi(m[3]) : 0, std::stoi(m[4]));
}

// The text with its generated parts made anew.
std::string filled(const std::string& text) {
  const std::string begin = "<!-- generated: ", close = " -->\n", end = "<!-- end -->";
  std::string out;
  size_t at = 0;
  for (size_t mark; (mark = text.find(begin, at)) != std::string::npos;) {
    const size_t name = mark + begin.size(), body = text.find(close, name);
    const size_t last = text.find(end, mark);
    check(body < last && last != std::string::npos, "README.md: a generated part has no end");
    out += text.substr(at, body + close.size() - at) + generated(text.substr(name, body - name));
    at = last;
  }
  return out + text.substr(at);
}

}  // namespace

TEST_CASE("the generated parts of the README are up to date") {
  const auto path = kRoot / "README.md";
  const std::string text = read(path);
  CHECK(text.find("<!-- generated: environment -->") != std::string::npos);
  if (std::getenv("GOLDEN_UPDATE"))
    std::ofstream(path) << filled(text);
  else
    CHECK_MESSAGE(filled(text) == text, "make golden-update writes README.md anew");
}

TEST_CASE("a generated part of a README is replaced, the rest stays") {
  const std::string before = "a\n<!-- generated: environment -->\nold\n<!-- end -->\nb\n";
  const std::string after = filled(before);
  CHECK(after ==
        "a\n<!-- generated: environment -->\n" + env_table_markdown() + "<!-- end -->\nb\n");
  CHECK(filled(after) == after);
  CHECK_THROWS_WITH_AS(filled("<!-- generated: x -->\n<!-- end -->"),
                       "README.md: cannot generate 'x'", Error);
}
