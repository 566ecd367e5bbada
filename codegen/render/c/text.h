// Literals of the C family, and which values of a linear program are printed where they are used.
#pragma once
#include <string>
#include <vector>

#include "codegen/kernel/linear.h"
#include "codegen/render/c/dialect.h"

namespace tiny {

// "+" of Add; WGSL has the same ones. Bug where there is none.
const char* symbol(Op op);

// Integers of the same width and lanes.
DType signed_of(DType t);
DType unsigned_of(DType t);

// A Const, one lane of it.
std::string scalar_text(Node n, const Dialect& dialect);

// count numbers with commas: from, from + step, ...
std::string numbers(int count, int from, int step);

// Without the parentheses around all of it.
std::string bare(const std::string& expression);

// Values that are used once, by a statement of the same loop: their expression is printed there.
class SingleUse {
 public:
  // The values that a statement reads.
  static std::vector<Node> uses_of(Node n);
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
  NodeMap<Use> uses_;
};

}  // namespace tiny
