// Elements that a kernel leaves out: the last iterations of a loop that is cut unevenly, those
// before and behind a row that begins anywhere, padding. A reduction takes its identity instead of
// them, and each load has a gate.
#pragma once
#include <optional>

#include "codegen/kernel/linear.h"
#include "codegen/target/target.h"
#include "tiny/ir/node.h"

namespace tiny {

// Selects as far down as possible, so that one of them serves all reductions over a row: a sum of
// exp2(c (x - m)), m the largest x and c > 0, leaves out what is -infinity instead of x. Gates of
// loads become the conditions by which what is loaded is selected. On a GPU such a sum also leaves
// out what is less than a normal number, which no bit of it depends on, since exp2(0) is one of its
// terms.
Node lower_gates(Node sink, const Target& target);

// Selections that cost nothing where a GPU's kernel is printed.
class FreeSelections {
 public:
  explicit FreeSelections(const Linear& program);

  // Of a load whose users all select what is loaded by its gate: the constant that takes its place
  // elsewhere, of its dtype, one lane; nullptr for any other load. The Where is its second source.
  Node constant_of(Node load) const { return find(constants_, load); }
  bool is_done(Node where) const { return done_.contains(where); }

  // x of exp2(x) that is 0 where it is less than a normal number, as the hardware has it; nullptr
  // for any other Where. Its sources are not needed where nobody else has them.
  Node flushed(Node where) const { return find(flushed_, where); }
  bool is_hidden(Node n) const { return hidden_.contains(n); }

 private:
  static Node find(const NodeMap<Node>& map, Node n) {
    const Node* found = map.find(n);
    return found ? *found : nullptr;
  }
  void find_loads(const Linear& program);
  void find_exponentials(const Linear& program);

  NodeMap<Node> constants_, flushed_;
  NodeMap<char> done_, hidden_;
};

}  // namespace tiny
