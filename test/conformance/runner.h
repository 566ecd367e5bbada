// Runs one case: its steps, its outputs, and its gradients by the recipe of the suites' README.md.
#pragma once
#include <string>
#include <vector>

#include "test/conformance/suite.h"

namespace tiny::conformance {

struct RunOptions {
  std::string device;      // "": the default one
  bool reference = false;  // by the reference evaluator, without scheduling and code generation
};

// One text for each output and gradient that is wrong; empty where the case passes. An operation
// that is unknown and whatever is thrown count as wrong.
std::vector<std::string> run_case(const Suite& suite, const Case& c, const RunOptions& options);

}  // namespace tiny::conformance
