// Text that reads and prints the same whatever the program's locales are, C++'s global one and C's:
// neither groups of digits nor a decimal comma. All text of the library is made and read by these.
#pragma once
#include <cstdint>
#include <initializer_list>
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

namespace detail {

template <class T> void print_part(std::ostream& out, const void* value) {
  out << *static_cast<const T*>(value);
}
extern template void print_part<char>(std::ostream&, const void*);
extern template void print_part<int>(std::ostream&, const void*);
extern template void print_part<int64_t>(std::ostream&, const void*);
extern template void print_part<size_t>(std::ostream&, const void*);
extern template void print_part<const char*>(std::ostream&, const void*);
extern template void print_part<std::string>(std::ostream&, const void*);

// A value that a stream prints, its type erased: joining and failing are compiled once, and
// literals of every length are one type. It refers to the value.
class TextPart {
 public:
  TextPart(const char* const& text) : TextPart(&text, print_part<const char*>) {}
  template <class T> TextPart(const T& value) : TextPart(&value, print_part<T>) {}

 private:
  TextPart(const void* value, void (*print)(std::ostream&, const void*))
      : value_(value), print_(print) {}
  friend std::string join(std::initializer_list<TextPart> parts);
  const void* value_;
  void (*print_)(std::ostream&, const void*);
};

std::string join(std::initializer_list<TextPart> parts);

}  // namespace detail

// Joins its arguments into one text: cat("axis ", 3, " of ", shape).
template <class... Parts> std::string cat(const Parts&... parts) {
  return detail::join({parts...});
}

// Letters and digits of ASCII.
constexpr bool is_digit(char c) { return '0' <= c && c <= '9'; }
constexpr char to_lower(char c) { return 'A' <= c && c <= 'Z' ? static_cast<char>(c + 32) : c; }
constexpr bool is_letter(char c) { return 'a' <= to_lower(c) && to_lower(c) <= 'z'; }

}  // namespace tiny
