// The tensors from outside that a step reads and assigns to, as the variables of the program that
// they are: whether each is still the tensor that it was at the capture.
#pragma once
#include <map>
#include <vector>

#include "runtime/device/buffer.h"

namespace tiny {

// The memory of a computed tensor or of one whose assignment waits, of the first piece where there
// are several; nullptr for a constant.
const Memory* memory_below(Node n);

class Holders {
 public:
  explicit Holders(const std::vector<Node>& nodes);  // of the tensors, as they are now
  // A variable that does not hold what it held, nor another node of the same elements of the same
  // memory, as after an assignment in place.
  struct Replaced {
    const Memory* then;
    Node now;          // nullptr for a variable that is gone
    bool is_assigned;  // it is the same tensor still, which has other memory
  };
  std::vector<Replaced> replaced() const;

 private:
  // The elements that a node stands for.
  struct Place {
    const Memory* memory = nullptr;
    std::vector<int64_t> view;  // of it, as numbers
    bool operator==(const Place&) const = default;
  };
  static Place place_of(Node n);

  std::map<Node, Place> places_;  // of the nodes, then; some are freed
  HandleLog log_;
};

}  // namespace tiny
