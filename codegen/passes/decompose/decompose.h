// Replaces what the target lacks by what it has: transcendental functions, arithmetic of halves
// and 8-bit floats, division towards minus infinity.
#pragma once
#include "codegen/target/target.h"
#include "tiny/rewrite/rewrite.h"

namespace tiny {

// On kernel graphs, with scalars or vectors. Halves (f16, bf16) and 8-bit floats are only loaded,
// stored, selected, reinterpreted and cast to and from f32 afterwards; each operation on them still
// rounds its result. Casts of f16 without target.has_f16 are integer arithmetic, as those of bf16
// are on CPUs, and those of 8-bit floats everywhere. GPUs have Exp2, Log2 and all other casts, and
// for f32 Sin.
Node decompose(Node sink, const Target& target);

// The rules of decompose, for tests that try each: division and bools; arithmetic of halves;
// transcendentals; casts of f8, f16, bf16.
const RuleTable& division_rules();
const RuleTable& half_rules();
const RuleTable& transcendental_rules();
const RuleTable& f8_cast_rules();
const RuleTable& f16_cast_rules();
const RuleTable& bf16_cast_rules();

}  // namespace tiny
