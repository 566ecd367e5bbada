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
     "  return select(select(select(b, a, a > b), a, is_nan(a)), b, is_nan(b));\n}\n"},
    {"min_of",
     "fn min_of(a: f32, b: f32) -> f32 {\n"
     "  return select(select(select(b, a, a < b), a, is_nan(a)), b, is_nan(b));\n}\n"},
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
    {"half", "alias half = f16;  //+f16\nalias half = u32;  //-f16\n"},
    {"half_of",
     "fn half_of(bits: u32) -> half { return bitcast<vec2<f16>>(bits).x; }  //+f16\n"
     "fn half_of(bits: u32) -> half { return bits; }  //-f16\n"},
    {"half_bits",
     "fn half_bits(x: half) -> u32 { return bitcast<u32>(vec2<f16>(x, f16())); }  //+f16\n"
     "fn half_bits(x: half) -> u32 { return x; }  //-f16\n"},
    {"f16_to_f32",
     "fn f16_to_f32(x: half) -> f32 { return f32(x); }  //+f16\n"
     "fn f16_to_f32(x: half) -> f32 { return unpack2x16float(x).x; }  //-f16\n"},
    // To the nearest, ties to even, where f16(x) and pack2x16float may round in any way. Beyond
    // 65520 it is infinity, below 2^-14 a sum with 1/2 rounds, whose last bit has the weight of
    // theirs.
    {"f32_to_f16",
     "fn f32_to_f16(x: f32) -> half {\n"
     "  let bits = bitcast<u32>(x);\n"
     "  let size = bits & 0x7fffffffu;\n"
     "  var out = (size - 0x37fff001u + ((size >> 13u) & 1u)) >> 13u;\n"
     "  if (size < 0x38800000u) { out = bitcast<u32>(bitcast<f32>(size) + 0.5f) - 0x3f000000u; }\n"
     "  if (size >= 0x477ff000u) { out = select(0x7c00u, 0x7e00u, size > 0x7f800000u); }\n"
     "  return half_of(out | ((bits >> 16u) & 0x8000u));\n}\n"},
    {"halves", "alias halves = vec2<f16>;  //+f16\nalias halves = u32;  //-f16\n"},
    {"halves_of",
     "fn halves_of(a: half, b: half) -> halves { return vec2<f16>(a, b); }  //+f16\n"
     "fn halves_of(a: half, b: half) -> halves { return a | (b << 16u); }  //-f16\n"},
    {"low_half",
     "fn low_half(x: halves) -> half { return x.x; }  //+f16\n"
     "fn low_half(x: halves) -> half { return x & 0xffffu; }  //-f16\n"},
    {"high_half",
     "fn high_half(x: halves) -> half { return x.y; }  //+f16\n"
     "fn high_half(x: halves) -> half { return x >> 16u; }  //-f16\n"},
    // Integers of 64 bits: the low word, then the high one.
    {"wide_i32",
     "fn wide_i32(x: i32) -> vec2<u32> { return vec2<u32>(bitcast<u32>(x), bitcast<u32>(x >> "
     "31u)); "
     "}\n"},
    {"add_64",
     "fn add_64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {\n"
     "  let x = a.x + b.x;\n"
     "  return vec2<u32>(x, a.y + b.y + select(0u, 1u, x < a.x));\n}\n"},
    {"sub_64",
     "fn sub_64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {\n"
     "  return vec2<u32>(a.x - b.x, a.y - b.y - select(0u, 1u, a.x < b.x));\n}\n"},
    {"mul_64",
     "fn mul_64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {\n"
     "  let p = (a.x & 0xffffu) * (b.x & 0xffffu);\n"
     "  let q = (a.x & 0xffffu) * (b.x >> 16u);\n"
     "  let r = (a.x >> 16u) * (b.x & 0xffffu);\n"
     "  let middle = (p >> 16u) + (q & 0xffffu) + (r & 0xffffu);\n"
     "  let high = (a.x >> 16u) * (b.x >> 16u) + (q >> 16u) + (r >> 16u) + (middle >> 16u);\n"
     "  return vec2<u32>((p & 0xffffu) | (middle << 16u), high + a.x * b.y + a.y * b.x);\n}\n"},
    {"shl_64",
     "fn shl_64(a: vec2<u32>, n: u32) -> vec2<u32> {\n"
     "  if (n == 0u) { return a; }\n"
     "  if (n >= 32u) { return vec2<u32>(0u, a.x << (n - 32u)); }\n"
     "  return vec2<u32>(a.x << n, (a.y << n) | (a.x >> (32u - n)));\n}\n"},
    {"shr_u64",
     "fn shr_u64(a: vec2<u32>, n: u32) -> vec2<u32> {\n"
     "  if (n == 0u) { return a; }\n"
     "  if (n >= 32u) { return vec2<u32>(a.y >> (n - 32u), 0u); }\n"
     "  return vec2<u32>((a.x >> n) | (a.y << (32u - n)), a.y >> n);\n}\n"},
    {"shr_i64",
     "fn shr_i64(a: vec2<u32>, n: u32) -> vec2<u32> {\n"
     "  let y = bitcast<i32>(a.y);\n"
     "  if (n == 0u) { return a; }\n"
     "  if (n >= 32u) { return vec2<u32>(bitcast<u32>(y >> (n - 32u)), bitcast<u32>(y >> 31u)); }\n"
     "  return vec2<u32>((a.x >> n) | (a.y << (32u - n)), bitcast<u32>(y >> n));\n}\n"},
    {"lt_u64",
     "fn lt_u64(a: vec2<u32>, b: vec2<u32>) -> bool {\n"
     "  return select(a.y < b.y, a.x < b.x, a.y == b.y);\n}\n"},
    {"lt_i64",
     "fn lt_i64(a: vec2<u32>, b: vec2<u32>) -> bool {\n"
     "  return select(bitcast<i32>(a.y) < bitcast<i32>(b.y), a.x < b.x, a.y == b.y);\n}\n"},
    {"max_u64",
     "fn max_u64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { return select(a, b, lt_u64(a, b)); "
     "}\n"},
    {"max_i64",
     "fn max_i64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { return select(a, b, lt_i64(a, b)); "
     "}\n"},
    {"min_u64",
     "fn min_u64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { return select(a, b, lt_u64(b, a)); "
     "}\n"},
    {"min_i64",
     "fn min_i64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { return select(a, b, lt_i64(b, a)); "
     "}\n"},
    {"abs_i64",
     "fn abs_i64(a: vec2<u32>) -> vec2<u32> {\n"
     "  return select(a, sub_64(vec2<u32>(), a), a.y >= 0x80000000u);\n}\n"},
    // Quotient and rest, bit by bit.
    {"divmod_u64",
     "fn divmod_u64(a: vec2<u32>, b: vec2<u32>) -> vec4<u32> {\n"
     "  var q = vec2<u32>();\n"
     "  var r = vec2<u32>();\n"
     "  if (all(b == vec2<u32>())) { return vec4<u32>(); }\n"
     "  for (var i = 0u; i < 64u; i += 1u) {\n"
     "    let carries = (r.y >> 31u) == 1u;\n"
     "    r = shl_64(r, 1u) | vec2<u32>(shr_u64(a, 63u - i).x & 1u, 0u);\n"
     "    q = shl_64(q, 1u);\n"
     "    if (carries || !lt_u64(r, b)) {\n"
     "      r = sub_64(r, b);\n"
     "      q.x |= 1u;\n"
     "    }\n"
     "  }\n"
     "  return vec4<u32>(q, r);\n}\n"},
    {"div_u64",
     "fn div_u64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { return divmod_u64(a, b).xy; }\n"},
    {"mod_u64",
     "fn mod_u64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { return divmod_u64(a, b).zw; }\n"},
    {"div_i64",
     "fn div_i64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {\n"
     "  let q = divmod_u64(abs_i64(a), abs_i64(b)).xy;\n"
     "  return select(q, sub_64(vec2<u32>(), q), ((a.y ^ b.y) >> 31u) == 1u);\n}\n"},
    {"mod_i64",
     "fn mod_i64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {\n"
     "  let r = divmod_u64(abs_i64(a), abs_i64(b)).zw;\n"
     "  return select(r, sub_64(vec2<u32>(), r), (a.y >> 31u) == 1u);\n}\n"},
    // 24 bits, to the nearest, ties to even; those beyond a word count as one that stands for them.
    {"u64_to_f32",
     "fn u64_to_f32(a: vec2<u32>) -> f32 {\n"
     "  if (all(a == vec2<u32>())) { return 0.0f; }\n"
     "  let n = select(countLeadingZeros(a.y), 32u + countLeadingZeros(a.x), a.y == 0u);\n"
     "  let b = shl_64(a, n);\n"
     "  let v = b.y | select(0u, 1u, b.x != 0u);\n"
     "  let rest = v & 0xffu;\n"
     "  let up = rest > 128u || (rest == 128u && (v & 256u) != 0u);\n"
     "  return f32((v >> 8u) + select(0u, 1u, up)) * bitcast<f32>((167u - n) << 23u);\n}\n"},
    {"i64_to_f32",
     "fn i64_to_f32(a: vec2<u32>) -> f32 {\n"
     "  let x = u64_to_f32(abs_i64(a));\n"
     "  return select(x, -x, a.y >= 0x80000000u);\n}\n"},
    {"f32_to_u64",
     "fn f32_to_u64(x: f32) -> vec2<u32> {\n"
     "  if (is_nan(x) || x <= 0.0f) { return vec2<u32>(); }\n"
     "  if (x >= 18446744073709551616.0f) { return vec2<u32>(0xffffffffu, 0xffffffffu); }\n"
     "  let high = floor(x * 2.3283064365386963e-10f);\n"
     "  return vec2<u32>(u32(x - high * 4294967296.0f), u32(high));\n}\n"},
    {"f32_to_i64",
     "fn f32_to_i64(x: f32) -> vec2<u32> {\n"
     "  if (x >= 9223372036854775808.0f) { return vec2<u32>(0xffffffffu, 0x7fffffffu); }\n"
     "  if (x <= -9223372036854775808.0f) { return vec2<u32>(0u, 0x80000000u); }\n"
     "  let y = f32_to_u64(abs(x));\n"
     "  return select(y, sub_64(vec2<u32>(), y), x < 0.0f);\n}\n"},
};

}  // namespace

std::string wgsl_helpers(const std::string& text) { return needed(kHelpers, text); }

}  // namespace tiny
