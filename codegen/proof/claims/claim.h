// Memory accesses of a kernel as exact integer arithmetic, for proofs: every load and store of a
// Machine-stage graph, with its index and gate as scalar expressions over the kernel's ranges, one
// of which stands for the lanes of a vector. Index values neither wrap nor truncate; an operation
// that may wrap in the machine is an explicit cast to its dtype and back.
#pragma once
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "codegen/kernel/facts.h"
#include "tiny/ir/node.h"

namespace tiny {

struct Claim {
  Node access;          // Load or Store
  Node index;           // Index
  Node gate = nullptr;  // bool; nullptr: always
  Node lane = nullptr;  // the Range of the lanes; nullptr: there is one
  int64_t size = 0;     // elements of the buffer

  bool is_store() const { return access->is(Op::Store); }
  int slot() const { return slot_of(access->src(0)); }
};

// All loads and stores of a kernel, in the order of its graph.
std::vector<Claim> claims_of(Node sink);

// An integer or bool node (a lane of it, as a number or a range) in the exact form: Index or bool.
Node exact_form(Node n, Node lane = nullptr);

// Values of floats, of other loads and of whatever else is not followed are opaque: leaves
// Load(value, lane) of one lane, of which any value of the dtype is possible.
inline bool is_opaque(Node n) { return n->is(Op::Load) || n->is(Op::Bound); }

// Cast(Index, Cast(machine integer, exact)): arithmetic that wraps unless the exact value fits the
// dtype. The inner cast, or nullptr for any other node.
Node wrapping_cast(Node n);

// Whether all of [vmin, vmax] lies in an integer dtype; a bound at the end of int64 says nothing.
bool fits(int64_t vmin, int64_t vmax, DType t);

// One iteration of a kernel: values of its ranges, and of opaque leaves of its claims.
struct Point {
  std::array<int64_t, 64> ranges{};  // by id
  std::vector<std::pair<Node, int64_t>> opaque;
};

// An integer or bool node of the kernel itself, or one of its lanes, by the machine's arithmetic.
// Nothing where it depends on what the point does not say, or has no value (a division by zero).
std::optional<int64_t> evaluate(Node n, int lane, const Point& point);

}  // namespace tiny
