// Bounds of Index expressions under assumptions: intervals, in which sums that occur in an assumed
// comparison count as one value. That settles most proofs about a kernel without a solver.
// Independent of the rewrite rules, whose work it checks.
#pragma once
#include <vector>

#include "tiny/ir/facts.h"
#include "tiny/ir/node.h"

namespace tiny {

// Whether |x| > limit >= 0, also of the least integer, which has no absolute value.
inline bool exceeds(int64_t x, int64_t limit) { return x > limit || x < -limit; }

// Constant + sum of factor * atom; no atom is a sum or a constant multiple.
struct LinearForm {
  struct Term {
    Node atom;
    int64_t factor;
  };
  std::vector<Term> terms;  // by the atoms' ids
  int64_t constant = 0;

  int64_t factor_of(Node atom) const;
  void add(Node atom, int64_t factor);  // a factor that becomes 0 keeps its term
  void add(const LinearForm& form, int64_t factor);
};

// A form without a constant, and the interval that it lies in.
struct LinearFact {
  LinearForm form;
  Bounds bounds;
};

class Assumptions {
 public:
  // Takes the condition (bool; nullptr: true) to hold, or not to hold.
  void assume(Node condition, bool holds = true);

  // Of an Index expression, or a bool (0 and 1). Least above greatest: the assumptions contradict
  // each other.
  Bounds bounds(Node n);

  // The expression as a linear form; arithmetic that cannot wrap under the assumptions is exact.
  LinearForm linear(Node n);
  Bounds bounds(const LinearForm& form);

  const std::vector<LinearFact>& facts() const { return facts_; }
  // Every part of every condition became a fact.
  bool is_linear() const { return is_linear_; }
  bool is_contradictory() const { return is_contradictory_; }

 private:
  Bounds of(Node n);
  void derive(Node quotient);
  void add_terms(LinearForm& sum, Node n, int64_t factor);
  void add_comparison(Node condition, bool holds);
  void add_fact(LinearForm form, Bounds bounds);
  void refine();
  Bounds plain(const LinearForm& form);
  Bounds of_atom(Node atom);
  Bounds opened(Node atom, Bounds known);
  Bounds of_condition(Node condition);
  Bounds of_where(Node n);

  std::vector<LinearFact> facts_;
  bool is_linear_ = true, is_contradictory_ = false;
  NodeMap<Bounds> known_;  // of atoms, from the facts
  NodeMap<Bounds> done_, atoms_;
  NodeMap<char> derived_;  // quotients about which facts were added
  NodeMap<char> open_;     // selections whose branches are looked at
  int splits_ = 0;         // how often one was
};

}  // namespace tiny
