// Options of the command line: what a parser (cxxopts) has found, as numbers and names that are
// checked, and what the main() of a program does with them.
#pragma once
#include <charconv>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <iostream>
#include <string>
#include <system_error>
#include <type_traits>
#include <vector>

#include "tiny/base/env.h"
#include "tiny/base/error.h"
#include "tiny/run/devices.h"
#include "tiny/run/ranks.h"
#include "tiny/run/version.h"

namespace tiny {

// The text as a number from `low` to `high`. Error, which names the option, for anything else.
template <class T>
T parse_number(const std::string& option, const std::string& text, T low, T high) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  check(error == std::errc() && end == text.data() + text.size() && value >= low && value <= high,
        "--", option, ": '", text, "' is no ", std::is_integral_v<T> ? "whole " : "",
        "number from ", low, " to ", high);
  return value;
}

// Reads what cxxopts has parsed, where every option is a text. An option that was not given has its
// default, else the `standard` named here.
template <class Parsed> class Arguments {
 public:
  // Error for words that are no options.
  explicit Arguments(const Parsed& parsed) : parsed_(parsed) {
    check(parsed.unmatched().empty(), "'", parsed.unmatched().empty() ? "" : parsed.unmatched()[0],
          "' is no option; --help lists them");
  }

  bool given(const char* name) const { return parsed_.count(name) > 0; }
  std::string text(const char* name, const std::string& standard = "") const {
    const bool known = given(name) || parsed_[name].has_default();
    return known ? parsed_[name].template as<std::string>() : standard;
  }
  int64_t whole(const char* name, int64_t low, int64_t high, int64_t standard = 0) const {
    return parse_number<int64_t>(name, text(name, std::to_string(standard)), low, high);
  }
  double number(const char* name, double low, double high, double standard = 0) const {
    return given(name) || parsed_[name].has_default()
               ? parse_number<double>(name, text(name), low, high)
               : standard;
  }
  // The position among these names.
  size_t choice(const char* name, const std::vector<std::string>& all, size_t standard = 0) const {
    const std::string word = text(name, all[standard]);
    std::string list;
    for (size_t i = 0; i < all.size(); ++i) {
      if (all[i] == word) return i;
      list += (i ? ", " : "") + all[i];
    }
    throw Error(cat("--", name, ": '", word, "' is none of ", list));
  }
  // A file to be written, in a folder that exists.
  std::string new_file(const char* name) const {
    const auto folder = std::filesystem::path(text(name)).parent_path();
    check(folder.empty() || std::filesystem::is_directory(folder), "--", name,
          ": there is no folder ", folder.string());
    return text(name);
  }

 private:
  const Parsed& parsed_;
};

// An option for --help. `argument`: what follows it, such as "N"; empty: nothing does.
struct OptionText {
  const char *name, *argument, *help;
};

// Options of programs that train on a data set.
struct TrainingOptions {
  std::string data, device, save, load;
  std::vector<std::string> devices;  // each works on a part of every batch
  int64_t seed = 0;
};

inline const std::vector<OptionText> kTrainingOptions{
    {"seed", "N", "of weights, order and drawn data [0]"},
    {"device", "NAME", "such as CPU or CUDA [a GPU where there is one]"},
    {"gpus", "N", "devices of that kind, each of which gets a part of every batch [1]"},
    {"ranks", "", "instead one device of each process that torchrun, mpirun or srun started"},
    {"save", "FILE", "writes the network to this safetensors file"},
    {"load", "FILE", "reads the network from it first"},
};

// Those, and "data", a file or folder for which an environment variable, if it has one, stands
// where it is not given.
template <class Parsed>
void read_training_options(const Arguments<Parsed>& given, const char* data_variable,
                           TrainingOptions& out) {
  out.data = given.text("data", data_variable ? env_text(data_variable) : "");
  check(!given.given("data") || !out.data.empty(), "--data: the name is empty");
  out.device = given.text("device");
  out.devices = devices_from(out.device, given.whole("gpus", 1, 1024, 1));
  if (given.given("ranks")) {
    const EnvOverride kind("DEVICE", out.device.empty() ? env_text("DEVICE") : out.device);
    out.devices = rank_devices();
  }
  out.seed = given.whole("seed", 0, INT64_MAX);
  out.save = given.new_file("save");
  out.load = given.text("load");
}

// The main() of a program: reads the options with `parser`, where `text` is the type of a value
// that is a text (cxxopts::value<std::string>()), and calls run(parsed), or prints --help or
// --version. The exit code; what is thrown goes to the standard error under the program's name.
template <class Parser, class Text, class Run>
int run_program(const char* name, Parser parser, Text text,
                const std::vector<std::vector<OptionText>>& options, int argc, char** argv,
                Run run) {
  if (print_version(name, argc, argv)) return 0;
  try {
    auto add = parser.add_options();
    for (const std::vector<OptionText>& some : options)
      for (const OptionText& o : some)
        if (*o.argument)
          add(o.name, o.help, text, o.argument);
        else
          add(o.name, o.help);
    add("version", "prints the version");
    add("help", "prints this");
    const auto parsed = parser.parse(argc, argv);
    if (parsed.count("help"))
      std::cout << parser.help() << '\n' << env_help();
    else
      run(Arguments(parsed));
    return 0;
  } catch (const std::exception& e) {
    std::cout << std::flush;
    std::cerr << name << ": " << e.what() << std::endl;
    return 1;
  }
}

}  // namespace tiny
