// The options of a kernel, as a value and as a line of text, and those that it gets without any
// search (codegen/heuristics).
#pragma once
#include <string>
#include <vector>

#include "codegen/kernel/option.h"
#include "codegen/target/target.h"

namespace tiny {

struct Choice {
  std::vector<Opt> options;
  bool is_gemm = false;  // a matrix product or convolution
};

// The tile of a product's results that a CPU keeps in its registers.
struct RegisterTile {
  int rows = 0, vectors = 0;  // of columns
};

// The best tile for results of so many rows and vectors of columns. `extends`: the last rows may
// be computed in part, else the tile's rows divide them.
RegisterTile register_tile(const Target& target, int64_t rows, int64_t vectors, bool extends);

// Options for a kernel graph whose ranges are all of kind Loop and Reduce.
Choice choose_cpu_options(Node sink, const Target& target);
Choice choose_gpu_options(Node sink, const Target& target);

inline Choice choose_options(Node sink, const Target& target) {
  return target.kind == Target::Kind::Cpu ? choose_cpu_options(sink, target)
                                          : choose_gpu_options(sink, target);
}

// "gemm; split r0 8, bind r1 vector": a choice in one line, and back (throws Error).
std::string to_text(const Choice& choice);
Choice choice_from_text(const std::string& text);

}  // namespace tiny
