// The order in which the kernels of a schedule run: after what they read, little memory in use at a
// time, and a kernel that overwrites an input after all that read it.
#pragma once
#include <span>
#include <vector>

#include "runtime/fusion/fuse.h"
#include "tiny/ir/node.h"

namespace tiny {

struct OrderedGroups {
  std::vector<Group> groups;              // of each turn; some come once more
  std::vector<std::vector<Node>> deaths;  // the stored values that each is the last to need
  NodeMap<int> replaces;                  // of assignments: the input that they replace, or -1
  NodeMap<int> in_place;                  // of those that write over it
};

// `scatters`: those that are assignments to their base. `devices`: of the inputs. `limit`: bytes
// that all values which do not outlive the schedule should fit into, or -1.
OrderedGroups order_groups(std::span<const Node> roots, std::vector<Group> groups,
                           const NodeMap<char>& scatters, std::span<const int> devices,
                           int64_t limit);

// What the loops of a group's outputs read, looked for when it is first asked.
class GroupReads {
 public:
  explicit GroupReads(const Group& group) : group_(group) {}

  // Whether loops that write another output may read `input` after those that write `out`: they do
  // where that one waits for a reduction of the group that `out` does not wait for.
  bool is_read_later(Node out, Node input);

 private:
  // What an output is computed from.
  struct Needs {
    std::vector<Node> reductions, inputs;
  };
  void find();

  const Group& group_;
  std::vector<Needs> needs_;  // of each output
};

// The input that an Assign may overwrite: its old value is all of it, in the same order.
int overwritten_input(Node assign);

}  // namespace tiny
