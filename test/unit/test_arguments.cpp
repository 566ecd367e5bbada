#include "tiny/arguments.h"

#include <doctest/doctest.h>

#include <map>

using namespace tiny;

namespace {

// What cxxopts gives, of options without a default but for "steps".
struct Parsed {
  struct Value {
    std::string value;
    bool standard;
    bool has_default() const { return standard; }
    template <class T> T as() const { return value; }
  };
  std::map<std::string, std::string> values;
  std::vector<std::string> others = {};

  size_t count(const std::string& name) const { return values.count(name); }
  std::vector<std::string> unmatched() const { return others; }
  Value operator[](const std::string& name) const {
    const bool steps = name == "steps";
    return {count(name) ? values.at(name) : steps ? "7" : "", steps};
  }
};

}  // namespace

TEST_CASE("numbers of the command line are read whole and in their bounds") {
  CHECK(parse_number<int64_t>("steps", "12", 0, 12) == 12);
  CHECK(parse_number<double>("lr", "2.5e-3", 0, 1) == 2.5e-3);
  CHECK_THROWS_WITH_AS(parse_number<int64_t>("steps", "13", 0, 12),
                       "--steps: '13' is no whole number from 0 to 12", Error);
  for (const char* text : {"", "1x", "x", "1.5", " 1", "-1"})
    CHECK_THROWS_AS(parse_number<int64_t>("steps", text, 0, 12), Error);
  CHECK_THROWS_WITH_AS(parse_number<double>("lr", "nan", 0, 1),
                       "--lr: 'nan' is no number from 0 to 1", Error);
}

TEST_CASE("options that were not given have their default, else what the caller names") {
  const Parsed nothing, some{{{"lr", "0.5"}, {"recipe", "plain"}, {"steps", "9"}}};
  CHECK(Arguments(nothing).whole("steps", 0, 10, 3) == 7);
  CHECK(Arguments(nothing).whole("epochs", 0, 10, 3) == 3);
  CHECK(Arguments(nothing).number("lr", 0, 1, 1000) == 1000);
  CHECK(Arguments(nothing).text("name", "none") == "none");
  CHECK(Arguments(nothing).choice("recipe", {"record", "plain"}) == 0);
  CHECK(Arguments(nothing).choice("recipe", {"record", "plain"}, 1) == 1);
  CHECK(Arguments(some).whole("steps", 0, 10) == 9);
  CHECK(Arguments(some).number("lr", 0, 1) == 0.5);
  CHECK(Arguments(some).choice("recipe", {"record", "plain"}) == 1);
  CHECK(Arguments(some).given("lr"));
  CHECK_FALSE(Arguments(some).given("epochs"));
}

TEST_CASE("options that cannot work are named") {
  const Parsed wrong{{{"recipe", "fast"}, {"save", "/no/such/folder/file"}, {"load", "file"}}};
  CHECK_THROWS_WITH_AS(Arguments(wrong).choice("recipe", {"record", "plain"}),
                       "--recipe: 'fast' is none of record, plain", Error);
  CHECK_THROWS_WITH_AS(Arguments(wrong).new_file("save"),
                       "--save: there is no folder /no/such/folder", Error);
  CHECK(Arguments(wrong).new_file("load") == "file");
  const Parsed other{{}, {"word"}};
  CHECK_THROWS_WITH_AS(Arguments{other}, "'word' is no option; --help lists them", Error);
}
