// A sum of products in a kernel's graph, C[batch, m, n] = sum over k of A[batch, m, k] B[batch, n,
// k], as options and heuristics see it: the sum, its factors, and which ranges count what.
#pragma once
#include <optional>
#include <vector>

#include "codegen/kernel/access.h"

namespace tiny {

// Sets of ranges are masks of their ids.
struct Contraction {
  Node reduce = nullptr;
  Node product = nullptr;         // the Mul that is added up
  Node a = nullptr, b = nullptr;  // its factors: as they are written, or as an instruction has them
  uint64_t k = 0;                 // of the sum
  std::vector<Node> masks;        // each a Where around the product that is zero elsewhere
  bool is_converted = false;      // there is a Cast around the product

  uint64_t m() const { return a->ranges & ~b->ranges & ~k; }
  uint64_t n() const { return b->ranges & ~a->ranges & ~k; }
  uint64_t batch() const { return a->ranges & b->ranges & ~k; }
  bool is_plain() const { return masks.empty() && !is_converted; }
  Node gate() const;  // of terms that count; nullptr where all do
};

// Nothing where the Reduce is no sum of products.
std::optional<Contraction> contraction_of(Node reduce);

// That of the kernel's only reduction.
std::optional<Contraction> only_contraction(Node sink);

// The reductions that close the range.
std::vector<Node> reductions_along(Node sink, int id);

// Exchanges the factors where the store goes along rows: stores are wide along the columns.
void turn_to_store(Contraction& c, Node store);

}  // namespace tiny
