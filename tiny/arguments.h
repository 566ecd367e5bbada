// Options of the command line: what a parser has found, as numbers and names that are checked.
#pragma once
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <string>
#include <system_error>
#include <type_traits>
#include <vector>

#include "tiny/error.h"

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

}  // namespace tiny
