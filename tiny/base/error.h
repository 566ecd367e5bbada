// The three kinds of error that the library throws. It never exits the process.
//   Error        the caller asked for something that cannot work; the message says what would.
//   Bug          an invariant of the library does not hold.
//   DeviceError  a driver, a compiler or the operating system said no.
#pragma once
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

// Literals of every length are one type: functions of texts are compiled once for all of them.
inline const char* as_part(const char* text) { return text; }
template <class Part> const Part& as_part(const Part& part) { return part; }

template <class... Parts> [[gnu::noinline]] std::string join(const Parts&... parts) {
  TextStream out;
  (out << ... << parts);
  return out.str();
}

template <class Exception, class... Parts>
[[noreturn, gnu::noinline, gnu::cold]] void fail(const Parts&... parts) {
  throw Exception(join(parts...));
}

}  // namespace detail

// Joins its arguments into one text: cat("axis ", 3, " of ", shape).
template <class... Parts> std::string cat(const Parts&... parts) {
  return detail::join(detail::as_part(parts)...);
}

// Throws Error with the joined text unless `ok`. The text is only built on failure.
template <class... Parts> void check(bool ok, const Parts&... parts) {
  if (!ok) [[unlikely]]
    detail::fail<Error>(detail::as_part(parts)...);
}

// The same for an invariant of the library itself.
template <class... Parts> void expect(bool ok, const Parts&... parts) {
  if (!ok) [[unlikely]]
    detail::fail<Bug>(detail::as_part(parts)...);
}

}  // namespace tiny
