// The device that computes each node of a graph on several devices: layouts and kernels are chosen
// for its target.
#pragma once
#include <utility>
#include <vector>

#include "codegen/target/target.h"
#include "tiny/ir/node.h"

namespace tiny {

class NodeTargets {
 public:
  // One for all nodes; it is not copied.
  NodeTargets(const Target& all) : all_(&all) {}  // NOLINT: a target is that of all nodes

  // `inputs`: devices of Params by slot. A value of constants alone belongs to the device of all
  // inputs where they are on one, else to `fallback`.
  NodeTargets(const std::vector<int>& inputs, int fallback);

  const Target& of(Node n) const;
  // 0 for what is made of constants alone where the inputs are on several devices; with one target
  // for all nodes always 0.
  int device_of(Node n) const;

 private:
  const Target* all_ = nullptr;
  std::vector<int> inputs_;
  int common_ = 0;  // the device of all inputs, 0 where they are on several
  int fallback_ = 0;
  mutable NodeMap<int> known_;  // devices that follow from inputs
  mutable std::vector<std::pair<int, const Target*>> targets_;
};

}  // namespace tiny
