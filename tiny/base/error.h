// The three kinds of error that the library throws. It never exits the process.
//   Error        the caller asked for something that cannot work; the message says what would.
//   Bug          an invariant of the library does not hold.
//   DeviceError  a driver, a compiler or the operating system said no.
#pragma once
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

[[noreturn, gnu::cold, gnu::noinline]] inline void fail(std::initializer_list<TextPart> parts) {
  throw Error(join(parts));
}
[[noreturn, gnu::cold, gnu::noinline]] inline void fail_bug(std::initializer_list<TextPart> parts) {
  throw Bug(join(parts));
}

}  // namespace detail

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
