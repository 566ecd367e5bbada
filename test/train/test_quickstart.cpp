// The programs of README.md and docs/quickstart.md, which `make test` compiles, as a user runs
// them: they end well and print what the page says.
#include <doctest/doctest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "test/command.h"
#include "tiny/base/error.h"

using namespace tiny;
using namespace tiny::test;

namespace {

namespace fs = std::filesystem;

const fs::path kBuild = TINY_BUILD;

std::string read(const fs::path& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

struct Program {
  std::string text;
  std::string output;  // of the text block behind it; empty: the page has none
};

// The C++ blocks of a page.
std::vector<Program> programs_of(const std::string& page) {
  std::istringstream in(page);
  std::vector<Program> out;
  std::string* inside = nullptr;
  bool next_is_output = false;  // nothing but empty lines since a program
  for (std::string line; std::getline(in, line);) {
    if (inside && line != "```") {
      *inside += line + "\n";
    } else if (inside) {
      next_is_output = inside == &out.back().text;
      inside = nullptr;
    } else if (line == "```cpp") {
      out.emplace_back();
      inside = &out.back().text;
    } else if (line == "```text" && next_is_output) {
      inside = &out.back().output;
    } else if (!line.empty()) {
      next_is_output = false;
    }
  }
  return out;
}

// Runs a program on the CPU, in an empty folder that is removed afterwards.
CommandResult run(const fs::path& program) {
  std::string folder = fs::temp_directory_path() / "tiny_quickstart_XXXXXX";
  REQUIRE(::mkdtemp(folder.data()) != nullptr);
  const CommandResult out =
      run_command(cat("cd '", folder, "' && DEVICE=CPU '", program.string(), "'"));
  fs::remove_all(folder);
  return out;
}

}  // namespace

TEST_CASE("every program of the quickstart runs and prints what the page says") {
  const auto programs = programs_of(read(fs::path(TINY_ROOT) / "docs/quickstart.md"));
  CHECK(programs.size() >= 8);
  for (size_t i = 0; i < programs.size(); ++i) {
    const std::string number = std::to_string(i + 1);
    CAPTURE(number);
    REQUIRE_MESSAGE(read(kBuild / "quickstart" / (number + ".cpp")) == programs[i].text,
                    "make test builds the programs of the quickstart");
    const CommandResult ended = run(kBuild / "quickstart" / number);
    CHECK(ended.status == 0);
    CHECK(ended.output == programs[i].output);
  }
}

TEST_CASE("the README's program trains a network") {
  REQUIRE(fs::exists(kBuild / "readme_example"));  // by make test
  const CommandResult ended = run(kBuild / "readme_example");
  CHECK(ended.status == 0);
  const size_t at = ended.output.find("accuracy ");
  REQUIRE(at != std::string::npos);
  CHECK(std::atof(ended.output.c_str() + at + 9) > 80);  // per cent
}

TEST_CASE("programs of a page have the output of the block right behind them") {
  const auto programs = programs_of(
      "```cpp\na\nb\n```\n\n```text\n1\n```\n\n```text\n2\n```\n```cpp\nc\n```\nWords.\n"
      "```text\n3\n```\n```console\n$ d\n```\n");
  REQUIRE(programs.size() == 2);
  CHECK(programs[0].text == "a\nb\n");
  CHECK(programs[0].output == "1\n");
  CHECK(programs[1].text == "c\n");
  CHECK(programs[1].output == "");
}
