// What the partitioner (shard.h) makes of a node on a group of devices: a piece for each of them.
#pragma once
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "runtime/distributed/collective.h"
#include "tiny/ir/node.h"

namespace tiny {

struct Distribution {
  int axis = -1;  // -1: each device has all
  Shape cuts = {};
  bool operator==(const Distribution&) const = default;
};

struct Parts {
  Pieces pieces;
  Distribution layout = {};
  std::optional<Op> partial = {};  // the pieces are still to be combined by it
  bool gathered_for_use = false;   // a weight (fully_shard), or a view or cast of one
};

// The pieces in another layout, by copies between the devices.
Pieces in_layout(const Parts& p, const Distribution& to, std::span<const int> devices);

// The part of `shape` on device i.
Shape part_of(Ints shape, const Distribution& layout, size_t i);

// The same movement of another source, with another argument.
Node moved_piece(Node n, Node x, Ints arg);

// Weights that are cut until they are used: each use gathers its own whole copy, which is freed
// behind it, in the backward as in the forward. So that the copies of all layers do not come first,
// that of a use waits for what the use before it waits for: while one layer computes, the weights
// of the next one are on their way (S. Rajbhandari et al., "ZeRO: memory optimizations toward
// training trillion parameter models", 2020, stage 3).
class WeightGatherer {
 public:
  // The whole weight on each device, in the shape of the last of `views`: the user's nodes from
  // the weight's memory up, and their parts. `with`: what the weight is used with.
  Parts gather(const std::vector<Node>& views, const std::vector<const Parts*>& parts,
               const Pieces& with, std::span<const int> devices);

 private:
  std::map<int, Pieces> before_;  // what the last use on these devices was with, by the first one
};

}  // namespace tiny
