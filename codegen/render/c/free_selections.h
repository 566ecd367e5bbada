// Predicates (Op::Where) that cost nothing on a GPU: by the gate of a load that takes the other
// value itself, and of exponentials that the hardware flushes to zero.
#pragma once
#include "codegen/kernel/linear.h"
#include "tiny/ir/node.h"

namespace tiny {

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
