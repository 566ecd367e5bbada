// Who reads the values of a tensor graph.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "tiny/ir/node.h"

namespace tiny {

class Uses {
 public:
  // `order`: all nodes below the roots, sources before users.
  Uses(std::span<const Node> roots, std::span<const Node> order);

  size_t count(Node n) const { return of(n).size(); }
  std::span<const Node> of(Node n) const;

  // The sum into which a value goes, by movement and products only: each element is then read for
  // many results. Null where there is none.
  Node product_of(Node n) const;

  // Whether all that is made of a value, element by element, ends in one: it is computed once for
  // each element of that, as the two words of a random number's rounds are.
  bool meet_again(Node n) const;

 private:
  NodeMap<uint32_t> position_;
  std::vector<Node> users_;      // of all nodes by position
  std::vector<uint32_t> first_;  // and where those of each begin
  NodeMap<char> is_root_;
};

}  // namespace tiny
