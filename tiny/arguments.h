// Numbers from the command line.
#pragma once
#include <charconv>
#include <string>
#include <system_error>
#include <type_traits>

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

}  // namespace tiny
