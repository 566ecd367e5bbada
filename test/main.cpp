// The entry point of the unit tests; the other files of test/ only hold test cases.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <iostream>

#include "runtime/kernels/proof.h"

#ifdef __SANITIZE_THREAD__
// z3's timer locks with a time limit, in a way that this sanitizer does not see.
extern "C" const char* __tsan_default_suppressions() { return "mutex:libz3\n"; }
#endif

int main(int count, char** arguments) {
  doctest::Context context(count, arguments);
  const int status = context.run();
  const tiny::ProofCounts counts = tiny::proof_counts();
  if (counts.kernels) std::cout << tiny::to_text(counts) << '\n';
  return status;
}
