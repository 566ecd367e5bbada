// Conditions about claims (codegen/proof/claims/claim.h) as SMT-LIB text over integers, and z3,
// which decides them. z3's library is opened when first needed; without it nothing is decided.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tiny/ir/node.h"

namespace tiny {

// Declarations, the values that variables can have, and what is asserted. Names are given in
// order of use, so that the same question is the same text. Two copies of the variables may
// occur: two iterations of the same loops.
class SmtText {
 public:
  // The value of an Index or bool expression, a name or a number.
  std::string term(Node n, int copy = 0);
  void assert_that(std::string_view condition);

  std::string text() const { return declarations_ + asserted_; }

  struct Variable {
    std::string name;
    Node leaf;  // a Range, or an opaque leaf
    int copy;
  };
  const std::vector<Variable>& variables() const { return variables_; }

 private:
  std::string define(Node n, int copy);
  std::string operation(Node n, int copy);
  std::string variable(Node leaf, int copy, const std::string& name);

  std::string declarations_, asserted_;
  std::vector<Variable> variables_;
  NodeMap<std::string> names_[2];
  int definitions_ = 0, opaque_ = 0;
};

enum class Decision : uint8_t { Never, Sometimes, Unknown };  // the assertions can hold
struct SmtAnswer {
  Decision decision = Decision::Unknown;
  std::vector<int64_t> values;  // Sometimes: of the variables asked for (bools 0 and 1)
  int64_t steps = 0;            // of the solver that it took
};

// Whether z3's library could be opened; why not.
bool has_solver();
const char* why_no_solver();

// Steps of the solver (z3's rlimit) for a kernel at its first launch: twice what any has needed,
// and something like a tenth of a second.
constexpr int64_t kSolverSteps = 20000;

// The answer, or Unknown after so many steps: a question takes as many on any machine, and on a
// busy one. May run on any thread. Answers are remembered by the text, with their steps; Unknown is
// not.
SmtAnswer solve(const SmtText& question, int64_t steps);

// Where answers outlast the process, by the question's text. Both may run on any thread.
struct SmtMemory {
  std::optional<SmtAnswer> (*recall)(const std::string& question) = nullptr;
  void (*keep)(const std::string& question, const SmtAnswer& answer) = nullptr;
};
void set_memory(const SmtMemory& memory);

}  // namespace tiny
