// Reads kernels as DEBUG=5 prints them (the stage index_width; others are skipped), proves each and
// prints the questions for a solver as SMT-LIB text. For bug reports:
//   DEBUG=5 DEBUG_PASS=index_width program 2>kernels.txt; build/release/prove kernels.txt
// Status 0 where all are proved, 1 where one is unproved, 2 where one is wrong or cannot be read.
#include "codegen/proof/prove.h"

#include <algorithm>
#include <fstream>
#include <iostream>
#include <sstream>

#include "extra/kernel_reader.h"
#include "tiny/run/version.h"

using namespace tiny;

namespace {

int report(Node kernel) {
  ProofSettings settings;
  settings.steps = 3000 * kSolverSteps;
  settings.iterations = int64_t{1} << 24;
  const Proof p = prove(kernel, settings);
  std::cout << to_smt(kernel) << "; " << name_of(p.verdict) << ": " << p.claims << " claims, "
            << p.settled[0] << " by intervals, " << p.settled[1] << " by walks, " << p.settled[2]
            << " by z3, " << p.settled[3] << " open\n";
  std::istringstream lines(p.text);
  for (std::string line; std::getline(lines, line);) std::cout << "; " << line << '\n';
  return static_cast<int>(p.verdict);
}

int prove_all(std::istream& in) {
  int worst = 0;
  read_kernels(in, "index_width", [&](Node kernel) { worst = std::max(worst, report(kernel)); });
  return worst;
}

}  // namespace

int main(int count, char** arguments) {
  if (print_version("prove", count, arguments)) return 0;
  try {
    if (count < 2) return prove_all(std::cin);
    std::ifstream file(arguments[1]);
    check(file.good(), "prove: cannot read ", arguments[1]);
    return prove_all(file);
  } catch (const std::exception& e) {
    std::cerr << e.what() << '\n';
    return 2;
  }
}
