// The text of the Error that a call throws.
#pragma once
#include <string>

#include "tiny/base/error.h"

namespace tiny {

// "no error" where it throws none; what is no Error goes on to the caller.
template <class Call> std::string error_of(const Call& call) {
  try {
    call();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

inline bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace tiny
