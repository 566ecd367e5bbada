// Text that reads and prints the same whatever the program's locales are, C++'s global one and C's:
// neither groups of digits nor a decimal comma. All text of the library is made and read by these.
#pragma once
#include <sstream>
#include <string>

namespace tiny {

class TextStream : public std::ostringstream {
 public:
  TextStream();
  ~TextStream() override;
  std::string str() const;  // as of the base class, but compiled once
};

class TextReader : public std::istringstream {
 public:
  explicit TextReader(const std::string& text);
  ~TextReader() override;
};

// The text that printf would print in the C locale.
[[gnu::format(printf, 1, 2)]] std::string formatted(const char* format, ...);

// Letters and digits of ASCII.
constexpr bool is_digit(char c) { return '0' <= c && c <= '9'; }
constexpr char to_lower(char c) { return 'A' <= c && c <= 'Z' ? static_cast<char>(c + 32) : c; }
constexpr bool is_letter(char c) { return 'a' <= to_lower(c) && to_lower(c) <= 'z'; }

}  // namespace tiny
