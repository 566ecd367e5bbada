// Proofs about a kernel before it may run: that every load and store stays inside its buffer, and
// that every element of an output is written exactly once. Intervals settle most of them, an
// exhaustive walk those of small kernels, z3 the rest.
#pragma once
#include <cstdint>
#include <map>
#include <string>

#include "codegen/kernel/finding.h"
#include "codegen/proof/claims/claim.h"
#include "codegen/proof/solver/smt.h"
#include "codegen/target/target.h"

namespace tiny {

struct ProofSettings {
  int64_t steps = kSolverSteps;  // of the solver that a kernel may take
  uint64_t scattered = 0;        // slots that are written here and there: not every element, and
                                 // some perhaps again and again, in order
  uint64_t declared = 0;         // slots among them whose elements the program declares distinct
  bool atomic = false;         // stores that combine with an element may do so from several threads
  int64_t iterations = 20000;  // most that a walk may take
  int warp = 0;                // threads of one; 0: 32, and 64 as well
  std::map<int, int64_t> sizes;  // elements of the buffers by slot
};

struct Proof {
  Verdict verdict = Verdict::Proved;
  std::string text;               // of the findings that are not proofs, a line each
  int claims = 0;                 // accesses, and buffers written
  int settled[4] = {0, 0, 0, 0};  // by Method
  int declared = 0;               // buffers whose writes are not proved but declared
  double seconds = 0;
};

// `sink` is a kernel's graph at Form::Machine. Pure; may run on any thread.
Proof prove(Node sink, const ProofSettings& settings);

// The same text as questions for a solver: for bug reports.
std::string to_smt(Node sink);

// That two integer or bool nodes have the same value for all values of their ranges and of memory.
Finding prove_equal(Node before, Node after, int64_t steps);

// A RuleWatcher that throws Bug with the rule's name where the two are not equal. Nodes that are no
// integers, or not decided in twenty times a kernel's steps, pass.
void check_rewrite(const char* rule, Node before, Node after);
struct RewriteCounts {  // of integers and bools so far
  int64_t proved = 0;
  std::map<std::string, int64_t> open;  // not decided, by rule
};
RewriteCounts rewrite_counts();

const char* name_of(Verdict verdict);

// Reads the settings that a kernel (in tensor form) and its target imply.
void read_kernel(Node kernel, const Target& target, ProofSettings& settings);

}  // namespace tiny
