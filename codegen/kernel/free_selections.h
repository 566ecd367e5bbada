// Predicates (Op::Where) that cost nothing on a GPU: by the gate of a load that takes the other
// value itself, and of exponentials that the hardware flushes to zero.
#pragma once
#include <string>

#include "codegen/kernel/linear.h"
#include "tiny/ir/node.h"

namespace tiny {

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

class FreeSelections {
 public:
  explicit FreeSelections(const Linear& program);

  WholeTile whole;

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
