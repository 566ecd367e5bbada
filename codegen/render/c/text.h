// Literals of the C family, and which values of a linear program are printed where they are used.
#pragma once
#include <string>
#include <vector>

#include "codegen/kernel/linear.h"
#include "codegen/render/c/dialect.h"

namespace tiny {

// Integers of the same width and lanes.
DType signed_of(DType t);
DType unsigned_of(DType t);

// A Const, one lane of it.
std::string scalar_text(Node n, const Dialect& dialect);

// count numbers with commas: from, from + step, ...
std::string numbers(int count, int from, int step);

// Without the parentheses around all of it.
std::string bare(const std::string& expression);

// What says of a tile of a chain's scores that no mask hides anything of it (whole_tiles in
// codegen/passes/passes.h): a bool that is the same for all threads in an iteration of a loop, and
// one side of several Or whose other depends on the thread.
struct WholeTile {
  Node test = nullptr, loop = nullptr;
  std::string text;  // of the test outside, while the function is being written

  void find(const Linear& program);
  bool is_test(Node n) const { return test && n == test; }
  bool is_open_in(Node range) const { return !text.empty() && range == loop; }
};

// Values that are used once, by a statement of the same loop: their expression is printed there.
class SingleUse {
 public:
  explicit SingleUse(const Linear& program);
  bool operator()(Node n) const {
    const Use* use = uses_.find(n);
    return use && use->inside;
  }

 private:
  struct Use {
    int count = 0, block = 0;
    bool inside = false;
  };
  static std::vector<Node> uses_of(Node n);
  NodeMap<Use> uses_;
};

}  // namespace tiny
