#include "tiny/run/version.h"

#include <doctest/doctest.h>

#include <iostream>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

using namespace tiny;

namespace {

// What print_version writes for these words after the program's name; "-" where it was not asked.
std::string printed(std::vector<const char*> words) {
  words.insert(words.begin(), "--version");  // a program of that name
  std::ostringstream text;
  std::streambuf* before = std::cout.rdbuf(text.rdbuf());
  const bool asked = print_version("mnist", static_cast<int>(words.size()), words.data());
  std::cout.rdbuf(before);
  return asked ? text.str() : text.str() + "-";
}

}  // namespace

TEST_CASE("the version is three numbers, those of the headers") {
  CHECK(std::regex_match(version(), std::regex("[0-9]+\\.[0-9]+\\.[0-9]+")));
  CHECK(version() == std::string(TINY_VERSION));
}

TEST_CASE("--version prints the program's name and the version, whatever else is asked") {
  const std::string line = std::string("mnist ") + TINY_VERSION + "\n";
  CHECK(printed({"--version"}) == line);
  CHECK(printed({"--steps", "5", "--version"}) == line);
  CHECK(printed({}) == "-");
  CHECK(printed({"--versions", "-v"}) == "-");
}

TEST_CASE("a command line without even a name asks for nothing") {
  CHECK(!print_version("mnist", 0, nullptr));
}
