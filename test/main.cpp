// The entry point of the unit tests; the other files of test/ only hold test cases.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <iostream>

#include "runtime/proof.h"

int main(int count, char** arguments) {
  doctest::Context context(count, arguments);
  const int status = context.run();
  const tiny::ProofCounts counts = tiny::proof_counts();
  if (counts.kernels) std::cout << tiny::to_text(counts) << '\n';
  return status;
}
