// The rule tables of the pass `decompose`, for tests that try each: division and bools; arithmetic
// of 16-bit floats; transcendentals; casts of f8, f16, bf16.
#pragma once
#include "tiny/rewrite/rewrite.h"

namespace tiny {

const RuleTable& division_rules();
const RuleTable& half_rules();
const RuleTable& transcendental_rules();
const RuleTable& f8_cast_rules();
const RuleTable& f16_cast_rules();
const RuleTable& bf16_cast_rules();

}  // namespace tiny
