#include "tiny/data/command_line.h"

#include <doctest/doctest.h>

#include <iostream>
#include <map>
#include <sstream>

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

// A parser that knows the options that it was told of.
struct Parser {
  std::vector<std::string> known;
  struct Adder {
    Parser& to;
    void operator()(const char* name, const char* help, int = 0, const char* argument = "") {
      to.known.push_back(cat(name, '|', help, '|', argument));
    }
  };
  Adder add_options() { return {*this}; }
  Parsed parse(int count, char** words) const {
    Parsed out;
    for (int i = 1; i + 1 < count; i += 2) out.values[words[i]] = words[i + 1];
    return out;
  }
  std::string help() const {
    std::string out;
    for (const std::string& k : known) out += k + '\n';
    return out;
  }
};

// What a program prints on both outputs, and its exit code.
struct Told {
  std::string out, errors;
  int code;
};
template <class Run> Told run_with(std::vector<std::string> words, Run run) {
  std::vector<char*> argv;
  for (std::string& w : words) argv.push_back(w.data());
  std::ostringstream out, errors;
  std::streambuf *const to = std::cout.rdbuf(out.rdbuf()), *const to_errors =
                                                               std::cerr.rdbuf(errors.rdbuf());
  const int code = run_program("p", Parser(), 1, {{{"lr", "X", "rate"}, {"fast", "", "hurries"}}},
                               static_cast<int>(argv.size()), argv.data(), run);
  std::cout.rdbuf(to);
  std::cerr.rdbuf(to_errors);
  return {out.str(), errors.str(), code};
}

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

TEST_CASE("a program runs with its options, prints help, or says what is wrong") {
  const auto run = [](const auto& given) { std::cout << "lr " << given.number("lr", 0, 1); };
  const Told fine = run_with({"p", "lr", "0.5"}, run);
  CHECK(fine.code == 0);
  CHECK(fine.out == "lr 0.5");
  const Told help = run_with({"p", "help", ""}, run);
  CHECK(help.code == 0);
  CHECK(help.out.starts_with(
      "lr|rate|X\nfast|hurries|\nversion|prints the version|\nhelp|prints this|\n\nEnvironment"));
  CHECK(run_with({"p", "--version"}, run).out == cat("p ", version(), "\n"));
  const Told wrong = run_with({"p", "lr", "2"}, run);
  CHECK(wrong.code == 1);
  CHECK(wrong.errors == "p: --lr: '2' is no number from 0 to 1\n");
}

TEST_CASE("programs that train share options") {
  const Parsed some{{{"gpus", "2"}, {"device", "CPU:3"}, {"seed", "5"}, {"load", "net"}}};
  const EnvOverride folder("CIFAR_DIR", "/pictures");
  TrainingOptions o;
  read_training_options(Arguments(some), "CIFAR_DIR", o);
  CHECK(o.data == "/pictures");
  CHECK(o.devices == std::vector<std::string>{"CPU:3", "CPU:4"});
  CHECK(o.seed == 5);
  CHECK(o.load == "net");
  CHECK(o.save.empty());
  const Parsed ranks{{{"ranks", ""}, {"device", "CPU:3"}}};  // of one process
  read_training_options(Arguments(ranks), "CIFAR_DIR", o);
  CHECK(o.devices == std::vector<std::string>{"CPU:3"});
  const Parsed nowhere{{{"data", ""}}};
  CHECK_THROWS_WITH_AS(read_training_options(Arguments(nowhere), "CIFAR_DIR", o),
                       "--data: the name is empty", Error);
}
