#include "tiny/run/version.h"

#include <algorithm>
#include <iostream>
#include <string_view>

namespace tiny {

const char* version() { return TINY_VERSION; }

bool print_version(const char* name, int argc, const char* const* argv) {
  const bool asked = std::any_of(argv + std::min(argc, 1), argv + argc, [](const char* word) {
    return std::string_view(word) == "--version";
  });
  if (asked) std::cout << name << ' ' << version() << '\n';
  return asked;
}

}  // namespace tiny
