// How far a computed value may be from the reference: a running error analysis (Higham, Accuracy
// and Stability of Numerical Algorithms, section 3.3), itself a tensor graph.
#pragma once
#include "tiny/ir/node.h"

namespace tiny::fuzz {

// In f64 and the node's shape: the bound on the error of a float node in units of its dtype's
// rounding error, nullptr where the value is exact. Sums may be added up in any order.
class ErrorBounds {
 public:
  Node of(Node root);

 private:
  Node made(Node n);
  Node source(Node n, int i);
  NodeMap<Node> known_;
};

}  // namespace tiny::fuzz
