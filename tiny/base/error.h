// The three kinds of error that the library throws. It never exits the process.
//   Error        the caller asked for something that cannot work; the message says what would.
//   Bug          an invariant of the library does not hold.
//   DeviceError  a driver, a compiler or the operating system said no.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <string>

#include "tiny/base/text.h"

namespace tiny {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Bug : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

class DeviceError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

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
[[noreturn, gnu::cold]] void fail(std::initializer_list<TextPart> parts);      // an Error
[[noreturn, gnu::cold]] void fail_bug(std::initializer_list<TextPart> parts);  // a Bug

}  // namespace detail

// Joins its arguments into one text: cat("axis ", 3, " of ", shape).
template <class... Parts> std::string cat(const Parts&... parts) {
  return detail::join({parts...});
}

// Throws Error with the joined text unless `ok`. The text is only built on failure.
template <class... Parts> void check(bool ok, const Parts&... parts) {
  if (!ok) [[unlikely]]
    detail::fail({parts...});
}

// The same for an invariant of the library itself.
template <class... Parts> void expect(bool ok, const Parts&... parts) {
  if (!ok) [[unlikely]]
    detail::fail_bug({parts...});
}

}  // namespace tiny
