// What a proof about a kernel found.
#pragma once
#include <cstdint>
#include <string>

namespace tiny {

// Never mixed up: Wrong comes with a counterexample that the machine's arithmetic confirms, and
// Unproved says nothing about the kernel.
enum class Verdict : uint8_t { Proved, Unproved, Wrong };
enum class Method : uint8_t { Bounds, Walk, Solver, None };

struct Finding {
  Verdict verdict = Verdict::Proved;
  Method method = Method::Bounds;
  std::string text;  // the fault, or the claim that could not be settled
};

}  // namespace tiny
