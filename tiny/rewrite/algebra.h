// Integer algebra with bounds, constant folding, and the simplifications that hold for every dtype.
// Index arithmetic (dtype Index) is exact: it neither wraps nor truncates, `FloorDiv` and
// `FloorMod` go towards minus infinity.
#pragma once
#include <vector>

#include "tiny/rewrite/rewrite.h"

namespace tiny {

// An element-wise node whose sources are all Const, as a Const; nullptr where that is not so, or
// where the result is undefined (x / 0 on integers).
Node fold_constants(Node n);

// value = constant + sum of coefficient * atom. Atoms are no sums or constant multiples.
struct Sum {
  struct Term {
    Node atom;
    int64_t factor;
  };
  std::vector<Term> terms;
  int64_t constant = 0;
};
Sum to_sum(Node n);           // of an Index node
Node from_sum(const Sum& s);  // in one canonical order: atoms of outer ranges first

// Rules for any graph, for boolean logic and for Index arithmetic; `simplify_rules` is all of them.
const RuleTable& fold_rules();
const RuleTable& logic_rules();
const RuleTable& index_rules();
const RuleTable& simplify_rules();
Node simplify(Node n);

// Index arithmetic, simplified at once.
Node index(int64_t value);
Node index_add(Node a, Node b);
Node index_mul(Node a, int64_t factor);
Node index_div(Node a, int64_t divisor);
Node index_mod(Node a, int64_t divisor);
Node less(Node a, Node b);
Node both(Node a, Node b);  // conjunction; nullptr stands for true

}  // namespace tiny
