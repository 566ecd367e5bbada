#include "codegen/render/wgsl/helpers.h"

#include "codegen/render/c/dialect.h"

namespace tiny {

namespace {

// In the order in which they may use one another: later ones earlier ones. A variable is no
// constant expression, whatever is known of it.
constexpr Helper kHelpers[] = {
    {"not_finite",
     "var<private> any_bits: u32 = 0u;\n"
     "fn not_finite(bits: u32) -> f32 { return bitcast<f32>(bits | any_bits); }\n"},
    {"is_nan",
     "fn is_nan(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }\n"},
    {"max_of",
     "fn max_of(a: f32, b: f32) -> f32 {\n"
     "  return select(select(b, a, a > b), a, is_nan(a));\n}\n"},
    {"min_of",
     "fn min_of(a: f32, b: f32) -> f32 {\n"
     "  return select(select(b, a, a < b), a, is_nan(a));\n}\n"},
    {"div_i32",
     "fn div_i32(a: i32, b: i32) -> i32 { return select(a / select(b, 1, b == 0), 0, b == 0); }\n"},
    {"mod_i32", "fn mod_i32(a: i32, b: i32) -> i32 { return a % select(b, 1, b == 0); }\n"},
    {"div_u32",
     "fn div_u32(a: u32, b: u32) -> u32 { return select(a / select(b, 1u, b == 0u), 0u, b == 0u); "
     "}\n"},
    {"mod_u32", "fn mod_u32(a: u32, b: u32) -> u32 { return a % select(b, 1u, b == 0u); }\n"},
    {"f32_to_i32",
     "fn f32_to_i32(x: f32) -> i32 {\n"
     "  if (is_nan(x)) { return 0; }\n"
     "  if (x >= 2147483648.0f) { return 2147483647; }\n"
     "  return i32(max(x, -2147483648.0f));\n}\n"},
    {"f32_to_u32",
     "fn f32_to_u32(x: f32) -> u32 {\n"
     "  if (is_nan(x)) { return 0u; }\n"
     "  if (x >= 4294967296.0f) { return 4294967295u; }\n"
     "  return u32(max(x, 0.0f));\n}\n"},
};

}  // namespace

std::string wgsl_helpers(const std::string& text) { return needed(kHelpers, text); }

}  // namespace tiny
