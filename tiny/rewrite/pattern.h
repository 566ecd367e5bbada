// Patterns over graphs: the left-hand side of a rewrite rule, as data. A test can walk a pattern to
// make random graphs that match it.
#pragma once
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "tiny/ir/node.h"

namespace tiny {

inline constexpr int kMaxCaptures = 8;

struct Match {
  Node root = nullptr;
  std::array<Node, kMaxCaptures> captured{};
  Node operator[](int i) const { return captured[i]; }
};

struct Pattern {
  OpSet ops;                     // empty: any op
  std::vector<Pattern> sources;  // with any_sources: not looked at
  bool any_sources = true;
  int8_t capture = -1;            // the same capture twice: the same node
  std::optional<double> value;    // a Const of this value
  bool (*where)(Node) = nullptr;  // a further condition

  Pattern as(int i) const {
    Pattern p = *this;
    p.capture = static_cast<int8_t>(i);
    return p;
  }
  Pattern when(bool (*condition)(Node)) const {
    Pattern p = *this;
    p.where = condition;
    return p;
  }
};

namespace pat {

inline Pattern any(int capture) { return Pattern{}.as(capture); }
inline Pattern number(double value) {
  Pattern p;
  p.ops = op_set(Op::Const);
  p.value = value;
  return p;
}
inline Pattern constant(int capture) {
  Pattern p;
  p.ops = op_set(Op::Const);
  return p.as(capture);
}
// A node of any of `ops`, whatever its sources.
inline Pattern any_of(OpSet ops) {
  Pattern p;
  p.ops = ops;
  return p;
}
inline Pattern node(OpSet ops, std::vector<Pattern> sources) {
  Pattern p;
  p.ops = ops;
  p.sources = std::move(sources);
  p.any_sources = false;
  return p;
}
template <class... Sources> Pattern node(Op op, Sources... sources) {
  return node(op_set(op), {std::move(sources)...});
}

}  // namespace pat

// Tries `p` at `n`; the sources of a commutative op match in either order.
bool match(const Pattern& p, Node n, Match& m);

}  // namespace tiny
