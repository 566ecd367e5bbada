// Graphs of machine integers and bools over leaves as questions about bit-vectors for z3
// (codegen/proof/solver/smt.h asks about integers): for proofs of rewrite rules.
#pragma once
#include <map>
#include <string>

#include "codegen/proof/solver/smt.h"
#include "tiny/ir/node.h"

namespace tiny::test {

// Number i of the things that can have any value of the dtype.
Node leaf(DType t, int i);

// The text of graphs in SMT-LIB's terms. All may share leaves; what has to hold for them to have a
// value, and leaves that are bounded to lie there, is said in `assumed`.
class BitText {
 public:
  // With `opaque_divisions`, of the truncated quotient of signed numbers t and its remainder m it
  // is known only that m is nearer to 0 than the divisor and has no other sign than the dividend.
  // What holds of all such holds of those with a = b * t + m: products of wide unknowns are left
  // out.
  explicit BitText(bool opaque_divisions = false) : opaque_(opaque_divisions) {}
  std::string operator()(Node n);
  std::string leaves() const;  // (name sort)...
  const std::string& assumed() const { return assumed_; }

 private:
  std::string division(Op op, DType t, const std::string& a, const std::string& b);
  std::string division(Op op, DType t, const std::string& a, int64_t b);
  std::string opaque_division(Op op, DType t, const std::string& a, const std::string& b);

  bool opaque_;
  std::map<std::string, std::pair<std::string, std::string>> divisions_;  // by operands
  std::map<std::string, std::string> leaves_;
  std::string assumed_;
  int quotients_ = 0;
};

// Whether the condition, a text of SMT-LIB, can hold.
Decision decide(const std::string& condition);

}  // namespace tiny::test
