// Proofs of rewrite rules for all values of what they capture.
#pragma once
#include <string>
#include <vector>

#include "tiny/rewrite/rewrite.h"

namespace tiny::test {

inline const DType kDTypes[] = {kIndex, kBool, kI8, kI16, kI32, kI64, kU8, kU16, kU32, kU64};

// What an op takes for a result of dtype t, by source: each way; none where it has no such result.
std::vector<std::vector<DType>> sources_of(Op op, DType t);

struct RuleProof {
  std::string wrong;  // why, of the first case that is
  bool blind = true;  // it does the same whatever stands for the captures
  int proved = 0;     // cases
  int left_out = 0;   // products of unknown indices, left to lemmas
};

// The rule on graphs of every dtype that its pattern matches: over leaves of any value, and where
// it wants to know more of them, over leaves between bounds and sums, quotients and remainders of
// them. Equality is decided over integers where an Index occurs, else over bit-vectors of each
// width. `on_machine`: the rule never sees an Index, and looks at signs alone; `each_power`: and at
// which power of two a number is.
RuleProof prove_rule(const Rule& rule, bool on_machine = false, bool each_power = false);

}  // namespace tiny::test
