// The options of a kernel, as a value and as a line of text.
#pragma once
#include <string>
#include <vector>

#include "codegen/kernel/option.h"

namespace tiny {

struct Choice {
  std::vector<Opt> options;
  bool is_gemm = false;  // a matrix product or convolution
};

// "gemm; split r0 8, bind r1 vector": a choice in one line, and back (throws Error).
std::string to_text(const Choice& choice);
Choice choice_from_text(const std::string& text);

}  // namespace tiny
