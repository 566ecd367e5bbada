#include "codegen/passes/decompose/decompose.h"

#include <cmath>

#include <bit>

#include "codegen/options/mma.h"
#include "codegen/passes/decompose/transcendental.h"
#include "codegen/passes/passes.h"

namespace tiny {

namespace {

Node same_type(Op op, Node a, Node b) { return make(op, a->dtype, {a, b}); }
Node with_const(Op op, Node a, int64_t b) { return same_type(op, a, constant(a->dtype, b)); }
Node test(Op op, Node a, Node b) { return make(op, kBool.vec(a->dtype.lanes), {a, b}); }
Node cast(Node x, DType to) { return make(Op::Cast, to.vec(x->dtype.lanes), {x}); }
Node bitcast(Node x, DType to) { return make(Op::Bitcast, to.vec(x->dtype.lanes), {x}); }
Node where(Node condition, Node a, Node b) { return make(Op::Where, a->dtype, {condition, a, b}); }

// --- division ------------------------------------------------------------------------------------

// k where the divisor is 2^k, else -1.
int log2_of_divisor(Node division) {
  const Node b = division->src(1);
  if (!b->is_const() || b->int_value() <= 0) return -1;
  const auto value = static_cast<uint64_t>(b->int_value());
  return std::has_single_bit(value) ? std::countr_zero(value) : -1;
}

bool rounds_alike(Node n) {  // floor and truncation agree
  return n->dtype.is_unsigned() || (n->src(0)->vmin >= 0 && n->src(1)->vmin >= 0);
}

// An arithmetic shift and a mask round towards minus infinity: of truncations they are right only
// for what is not negative.
Node power_of_two_division(const Match& m) {
  const Node n = m.root;
  const int k = log2_of_divisor(n);
  const bool floors = n->is(Op::FloorDiv) || n->is(Op::FloorMod);
  if (k < 0 || (!floors && !rounds_alike(n))) return nullptr;
  if (n->is(Op::FloorMod) || n->is(Op::TruncMod))
    return with_const(Op::And, n->src(0), n->src(1)->int_value() - 1);
  return with_const(Op::Shr, n->src(0), k);
}

// The remainder has the sign of the dividend; where that is not the divisor's, go down by one.
Node floor_division(const Match& m) {
  const Node n = m.root, a = n->src(0), b = n->src(1);
  const bool mod = n->is(Op::FloorMod);
  const Node quotient = same_type(Op::TruncDiv, a, b), rest = same_type(Op::TruncMod, a, b);
  if (rounds_alike(n)) return mod ? rest : quotient;
  const Node zero = constant(n->dtype, 0);
  const Node differs = test(Op::Lt, same_type(Op::Xor, rest, b), zero);
  const Node down = make(Op::And, differs->dtype, {differs, test(Op::Ne, rest, zero)});
  if (mod) return where(down, same_type(Op::Add, rest, b), rest);
  return where(down, with_const(Op::Sub, quotient, 1), quotient);
}

Node bool_extremum(const Match& m) {
  return make(m.root->is(Op::Max) ? Op::Or : Op::And, m.root->dtype, m.root->srcs());
}

// --- halves --------------------------------------------------------------------------------------

bool has_half_source(Node n) {
  for (Node s : n->srcs())
    if (s->dtype.is_narrow()) return true;
  return false;
}

OpSet half_arithmetic() {
  OpSet ops = op_set(Op::Fold, Op::Reduce, Op::Prefix);
  for (int i = 0; i < kOps; ++i) ops.set(i, ops[i] || is_elementwise(static_cast<Op>(i)));
  return ops & ~op_set(Op::Cast, Op::Bitcast, Op::Where);
}

// The result is rounded to the half after each operation, as it would be by one on halves.
Node half_in_f32(const Match& m) {
  const Node n = m.root;
  std::vector<Node> srcs;
  for (Node s : n->srcs()) srcs.push_back(s->dtype.is_narrow() ? cast(s, kF32) : s);
  if (!n->dtype.is_narrow()) return with_sources(n, srcs);
  return cast(make(n->op, kF32.vec(n->dtype.lanes), srcs, n->payload), n->dtype);
}

bool skips_f32(Node n) {  // a cast between a half and anything but f32
  const Scalar from = n->src(0)->dtype.scalar, to = n->dtype.scalar;
  const bool half = n->dtype.is_narrow() || n->src(0)->dtype.is_narrow();
  return half && from != to && from != Scalar::F32 && to != Scalar::F32;
}
Node cast_by_f32(const Match& m) { return cast(cast(m.root->src(0), kF32), m.root->dtype); }

// What halves hold in full: a byte, or the 8 bits of another float.
bool fits_halves(DType t) { return t.is_bool() || t.is_f8() || (!t.is_float() && t.size() == 1); }

// A byte as a half as f32.
bool is_widened_again(Node n) {
  Node half = n->src(0);
  if (n->dtype.scalar != Scalar::F32 || half->op != Op::Cast || !half->dtype.is_half())
    return false;
  Node value = half->src(0);
  if (value->op == Op::Cast && value->dtype.scalar == Scalar::F32) value = value->src(0);
  return fits_halves(value->dtype.one());
}
Node widened_once(const Match& m) {
  Node value = m.root->src(0)->src(0);
  return value->dtype.scalar == Scalar::F32 ? value : cast(value, kF32);
}

template <Scalar from, Scalar to> bool casts(Node n) {
  return n->src(0)->dtype.scalar == from && n->dtype.scalar == to;
}

Node bf16_to_f32(const Match& m) {
  const Node wide = cast(bitcast(m.root->src(0), kU16), kU32);
  return bitcast(with_const(Op::Shl, wide, 16), kF32);
}

// Adds just under half a unit of the bits that are dropped, and one more where the last bit kept is
// odd. NaN, whose bits the addition might carry to infinity, becomes the quiet one.
Node f32_to_bf16(const Match& m) {
  const Node x = m.root->src(0), i = bitcast(x, kU32);
  const Node odd = with_const(Op::And, with_const(Op::Shr, i, 16), 1);
  const Node up = same_type(Op::Add, with_const(Op::Add, i, 0x7fff), odd);
  const Node rounded = with_const(Op::Shr, up, 16);
  const Node bits = where(test(Op::Ne, x, x), constant(i->dtype, 0x7fc0), rounded);
  return bitcast(cast(bits, kU16), kBF16);
}

// Exponent and fraction at their place in f32, times 2^112, which makes up for the difference of
// the biases and normalises subnormals; infinity and NaN get f32's exponent.
Node f16_to_f32(const Match& m) {
  const Node h = cast(bitcast(m.root->src(0), kU16), kU32);
  const Node size = with_const(Op::Shl, with_const(Op::And, h, 0x7fff), 13);
  const Node sign = with_const(Op::Shl, with_const(Op::And, h, 0x8000), 16);
  const Node power = constant(kF32.vec(h->dtype.lanes), 0x1p112);
  const Node number = bitcast(same_type(Op::Mul, bitcast(size, kF32), power), kU32);
  const Node finite = test(Op::Lt, size, constant(size->dtype, 0x7c00 << 13));
  const Node magnitude = where(finite, number, with_const(Op::Or, size, 0x7f800000));
  return bitcast(same_type(Op::Or, magnitude, sign), kF32);
}

// Normal results are rounded as those of bf16 are. Subnormal ones by adding 1/2, whose last bit
// has the weight of theirs.
Node f32_to_f16(const Match& m) {
  const Node x = m.root->src(0), i = bitcast(x, kU32);
  const Node size = with_const(Op::And, i, 0x7fffffff);
  const Node odd = with_const(Op::And, with_const(Op::Shr, size, 13), 1);
  const Node up = same_type(Op::Add, with_const(Op::Add, size, 0xfff - (112 << 23)), odd);
  const Node normal = with_const(Op::Shr, up, 13);
  const Node half = constant(x->dtype, 0.5);
  const Node sum = bitcast(same_type(Op::Add, bitcast(size, kF32), half), kU32);
  const Node subnormal = with_const(Op::Sub, sum, 0x3f000000);
  const auto below = [&](int64_t limit) {
    return test(Op::Lt, size, constant(size->dtype, limit));
  };
  const Node finite = where(below(0x38800000), subnormal, normal);                    // 2^-14
  const Node bounded = where(below(0x477ff000), finite, constant(i->dtype, 0x7c00));  // 65520
  const Node magnitude = where(test(Op::Ne, x, x), constant(i->dtype, 0x7e00), bounded);
  const Node sign = with_const(Op::And, with_const(Op::Shr, i, 16), 0x8000);
  return bitcast(cast(same_type(Op::Or, magnitude, sign), kU16), kF16);
}

// The same for the two of 8 bits (tiny/ir/dtype.cpp), of which e4m3 has no infinity.
struct Float8 {
  DType dtype;
  int drop;                     // mantissa bits that f32 has more
  int shift;                    // difference of the biases
  int largest, overflow, none;  // codes: of the largest number, beyond it, and of no number
};
constexpr Float8 kE4M3{kF8E4M3, 20, 120, 0x7e, 0x7e, 0x7f},
    kE5M2{kF8E5M2, 21, 112, 0x7b, 0x7c, 0x7c};

template <const Float8& f> Node f8_to_f32(const Match& m) {
  const Node code = cast(bitcast(m.root->src(0), kU8), kU32);
  const Node low = with_const(Op::And, code, 0x7f);
  const Node size = with_const(Op::Shl, low, f.drop);
  const Node sign = with_const(Op::Shl, with_const(Op::And, code, 0x80), 24);
  const Node power = constant(kF32.vec(code->dtype.lanes), std::ldexp(1.0, f.shift));
  const Node number = bitcast(same_type(Op::Mul, bitcast(size, kF32), power), kU32);
  const Node finite = test(Op::Lt, low, constant(low->dtype, f.none));
  const Node magnitude = where(finite, number, with_const(Op::Or, size, 0x7f800000));
  return bitcast(same_type(Op::Or, magnitude, sign), kF32);
}

template <const Float8& f> Node f32_to_f8(const Match& m) {
  const Node x = m.root->src(0), i = bitcast(x, kU32);
  const Node size = with_const(Op::And, i, 0x7fffffff);
  const Node odd = with_const(Op::And, with_const(Op::Shr, size, f.drop), 1);
  const int64_t below_half = (int64_t{1} << (f.drop - 1)) - 1 - (int64_t{f.shift} << 23);
  const Node normal =
      with_const(Op::Shr, same_type(Op::Add, with_const(Op::Add, size, below_half), odd), f.drop);
  // An f32 whose last bit has the weight of a subnormal's.
  const int exponent = f.shift + f.drop - 126;
  const Node unit = constant(x->dtype, std::ldexp(1.0, exponent));
  const Node sum = bitcast(same_type(Op::Add, bitcast(size, kF32), unit), kU32);
  const Node subnormal = with_const(Op::Sub, sum, int64_t{exponent + 127} << 23);
  const auto below = [&](Node n, int64_t limit) {
    return test(Op::Lt, n, constant(n->dtype, limit));
  };
  const Node code = where(below(size, int64_t{f.shift + 1} << 23), subnormal, normal);
  const Node bounded = where(below(code, f.largest + 1), code, constant(i->dtype, f.overflow));
  const Node magnitude = where(test(Op::Ne, x, x), constant(i->dtype, 0x7f), bounded);
  const Node sign = with_const(Op::And, with_const(Op::Shr, i, 24), 0x80);
  return bitcast(cast(same_type(Op::Or, magnitude, sign), kU8), f.dtype);
}

// For targets that take subnormal f32 for zero: subnormal codes, those below 2^mantissa, are small
// integers times the format's least number, 2^exponent.
template <Node (*convert)(const Match&), int mantissa, int exponent>
Node without_subnormals(const Match& m) {
  const Node x = m.root->src(0);
  const Node code = cast(bitcast(x, kU8), kU32);
  const Node size = with_const(Op::And, code, 0x7f);
  const Node least = constant(kF32.vec(code->dtype.lanes), std::ldexp(1.0, exponent));
  const Node number = bitcast(same_type(Op::Mul, cast(size, kF32), least), kU32);
  const Node sign = with_const(Op::Shl, with_const(Op::And, code, 0x80), 24);
  const Node small = test(Op::Lt, size, constant(size->dtype, int64_t{1} << mantissa));
  return where(small, bitcast(same_type(Op::Or, number, sign), kF32), convert(m));
}

template <Node (*lower)(Node)> Node lowered(const Match& m) { return lower(m.root->src(0)); }
template <Node (*lower)(Node, bool), bool plain = false> Node lowered(const Match& m) {
  return lower(m.root->src(0), plain);
}

}  // namespace

// Row j of a matrix of n vectors after `stage` rounds in which rows i and i + n/2 are interleaved
// to rows 2i and 2i + 1. After log2(n) rounds the matrix is transposed (a perfect shuffle of row
// and column numbers moves one bit from the one to the other); columns share the rounds they need.
Node interleaved(Node tile, int stage, int j) {
  const auto n = static_cast<int>(tile->num_src) - 1;
  if (stage == 0) return tile->src(j);
  Node a = interleaved(tile, stage - 1, j / 2), b = interleaved(tile, stage - 1, j / 2 + n / 2);
  std::vector<int64_t> lanes;
  for (int i = 0; i < n / 2; ++i) {
    const int lane = i + (j % 2) * n / 2;
    lanes.insert(lanes.end(), {lane, n + lane});
  }
  return make(Op::Shuffle, tile->dtype, {a, b}, Ints(lanes));
}

Node column(const Match& m) {
  const auto n = static_cast<unsigned>(m.root->num_src) - 1;
  return interleaved(m.root, std::countr_zero(n),
                     static_cast<int>(m.root->srcs().back()->int_value()));
}

const RuleTable& shuffle_rules() {
  static const RuleTable& table = *new RuleTable({
      {"column of a tile", pat::any_of(op_set(Op::Column)), column},
      {"elements of a fragment", pat::any_of(op_set(Op::Mma)),
       [](const Match& m) { return mma_elements(m.root); }},
      {"sum of a fragment's elements", pat::any_of(op_set(Op::Reduce)),
       [](const Match& m) { return mma_sum(m.root); }},
  });
  return table;
}

const RuleTable& division_rules() {
  static const OpSet divisions = op_set(Op::FloorDiv, Op::FloorMod, Op::TruncDiv, Op::TruncMod);
  static const RuleTable& table = *new RuleTable({
      {"divide by a power of two", pat::any_of(divisions), power_of_two_division},
      {"floor division by truncation", pat::any_of(op_set(Op::FloorDiv, Op::FloorMod)),
       floor_division},
      {"max and min of bools",
       pat::any_of(op_set(Op::Max, Op::Min)).when([](Node n) { return n->dtype.is_bool(); }),
       bool_extremum},
  });
  return table;
}

const RuleTable& half_rules() {
  static const RuleTable& table = *new RuleTable({
      {"arithmetic of 16-bit floats in f32", pat::any_of(half_arithmetic()).when(has_half_source),
       half_in_f32},
      {"cast halves by way of f32", pat::any_of(op_set(Op::Cast)).when(skips_f32), cast_by_f32},
      {"f32 of a half that holds a byte", pat::any_of(op_set(Op::Cast)).when(is_widened_again),
       widened_once},
  });
  return table;
}

const RuleTable& sin_rules() {
  static const RuleTable& table = *new RuleTable({
      {"sin", pat::any_of(op_set(Op::Sin)), lowered<lower_sin>},
  });
  return table;
}

const RuleTable& exponential_rules() {
  static const RuleTable& table = *new RuleTable({
      {"exp2", pat::any_of(op_set(Op::Exp2)), lowered<lower_exp2>},
      {"exp", pat::any_of(op_set(Op::Exp)), lowered<lower_exp>},
      {"log2", pat::any_of(op_set(Op::Log2)), lowered<lower_log2>},
  });
  return table;
}

const RuleTable& transcendental_rules() {
  static const RuleTable& table = *new RuleTable({&exponential_rules(), &sin_rules()});
  return table;
}

const RuleTable& wgsl_transcendental_rules() {
  static const RuleTable& table = *new RuleTable({
      {"exp2", pat::any_of(op_set(Op::Exp2)), lowered<lower_exp2, true>},
      {"exp", pat::any_of(op_set(Op::Exp)), lowered<lower_exp, true>},
      {"log2", pat::any_of(op_set(Op::Log2)), lowered<lower_log2>},
      {"sin", pat::any_of(op_set(Op::Sin)), lowered<lower_sin, true>},
  });
  return table;
}

// CUDA's compiler has the others, and sin of f32 in a form that suits GPUs.
bool is_f64(Node n) { return n->dtype.scalar == Scalar::F64; }
const RuleTable& cuda_transcendental_rules() {
  static const RuleTable& table = *new RuleTable({
      {"sin of f64", pat::any_of(op_set(Op::Sin)).when(is_f64), lowered<lower_sin>},
  });
  return table;
}

// clang without device libraries has the instructions of f32 alone.
const RuleTable& hip_transcendental_rules() {
  static const RuleTable& table = *new RuleTable({
      {"exp2 of f64", pat::any_of(op_set(Op::Exp2)).when(is_f64), lowered<lower_exp2>},
      {"exp of f64", pat::any_of(op_set(Op::Exp)).when(is_f64), lowered<lower_exp>},
      {"log2 of f64", pat::any_of(op_set(Op::Log2)).when(is_f64), lowered<lower_log2>},
  });
  return table;
}

const RuleTable& f8_cast_rules() {
  static const Pattern& any_cast = *new Pattern(pat::any_of(op_set(Op::Cast)));
  static const RuleTable& table = *new RuleTable({
      {"e4m3 to f32", any_cast.when(casts<Scalar::F8E4M3, Scalar::F32>), f8_to_f32<kE4M3>},
      {"f32 to e4m3", any_cast.when(casts<Scalar::F32, Scalar::F8E4M3>), f32_to_f8<kE4M3>},
      {"e5m2 to f32", any_cast.when(casts<Scalar::F8E5M2, Scalar::F32>), f8_to_f32<kE5M2>},
      {"f32 to e5m2", any_cast.when(casts<Scalar::F32, Scalar::F8E5M2>), f32_to_f8<kE5M2>},
  });
  return table;
}

const RuleTable& wgsl_cast_rules() {
  static const Pattern& any_cast = *new Pattern(pat::any_of(op_set(Op::Cast)));
  static const RuleTable& table = *new RuleTable({
      {"e4m3 to f32", any_cast.when(casts<Scalar::F8E4M3, Scalar::F32>),
       without_subnormals<f8_to_f32<kE4M3>, 3, -9>},
      {"e5m2 to f32", any_cast.when(casts<Scalar::F8E5M2, Scalar::F32>),
       without_subnormals<f8_to_f32<kE5M2>, 2, -16>},
  });
  return table;
}

const RuleTable& f16_cast_rules() {
  static const Pattern& any_cast = *new Pattern(pat::any_of(op_set(Op::Cast)));
  static const RuleTable& table = *new RuleTable({
      {"f16 to f32", any_cast.when(casts<Scalar::F16, Scalar::F32>), f16_to_f32},
      {"f32 to f16", any_cast.when(casts<Scalar::F32, Scalar::F16>), f32_to_f16},
  });
  return table;
}

const RuleTable& bf16_cast_rules() {
  static const Pattern& any_cast = *new Pattern(pat::any_of(op_set(Op::Cast)));
  static const RuleTable& table = *new RuleTable({
      {"bf16 to f32", any_cast.when(casts<Scalar::BF16, Scalar::F32>), bf16_to_f32},
      {"f32 to bf16", any_cast.when(casts<Scalar::F32, Scalar::BF16>), f32_to_bf16},
  });
  return table;
}

namespace {

// Bytes of a word are shifted to its top and back, which extends them.
Node byte_dot(const Match& m) {
  const Node n = m.root;
  Node sum = n->src(2);
  for (int at = 0; at < 32; at += 8) {
    const Node x = with_const(Op::And, with_const(Op::Shr, n->src(0), at), 255);
    const Node y = with_const(Op::Shr, with_const(Op::Shl, n->src(1), 24 - at), 24);
    sum = same_type(Op::Add, sum, same_type(Op::Mul, x, y));
  }
  return sum;
}

// vpdpbusd takes vectors of 16, 32 or 64 bytes.
bool has_byte_dot(int lanes) { return lanes == 4 || lanes == 8 || lanes == 16; }

template <bool native> const RuleTable& byte_dot_rules() {
  static const RuleTable& table = *new RuleTable({
      {"byte_dot", pat::any_of(op_set(Op::ByteDot)).when([](Node n) {
         return !native || !has_byte_dot(n->dtype.lanes);
       }),
       byte_dot},
  });
  return table;
}

}  // namespace

Node decompose(Node sink, const Target& target) {
  const bool native = target.kind == Target::Kind::Cpu && !target.emulates &&
                      target.language == Target::Language::LlvmIr &&
                      target.arch.find("avx512vnni") != std::string::npos;
  sink = rewrite(sink, native ? byte_dot_rules<true>() : byte_dot_rules<false>());
  // Halves first: transcendentals take f32 and f64 only.
  static const RuleTable& simple =
      *new RuleTable({&shuffle_rules(), &division_rules(), &half_rules(), &f8_cast_rules()});
  static const RuleTable& cuda = *new RuleTable({&simple, &cuda_transcendental_rules()});
  static const RuleTable& hip = *new RuleTable({&cuda, &hip_transcendental_rules()});
  const bool wgsl = target.language == Target::Language::Wgsl;  // bf16 and 8-bit floats are bits
  if (wgsl) {
    static const RuleTable& table = *new RuleTable(
        {&wgsl_cast_rules(), &simple, &wgsl_transcendental_rules(), &bf16_cast_rules()});
    return rewrite(sink, table);
  }
  if (target.kind == Target::Kind::Gpu && target.language != Target::Language::LlvmIr)
    return rewrite(sink, target.language == Target::Language::Hip ? hip : cuda);
  static const RuleTable& amd = *new RuleTable({&hip, &sin_rules(), &bf16_cast_rules()});
  if (target.kind == Target::Kind::Gpu) return rewrite(sink, amd);
  static const RuleTable& common = *new RuleTable({&simple, &transcendental_rules()});
  static const RuleTable& bf16 = *new RuleTable({&common, &bf16_cast_rules()});
  static const RuleTable& both = *new RuleTable({&bf16, &f16_cast_rules()});
  // C has no half that every compiler knows.
  return rewrite(sink, target.has_f16 && target.language != Target::Language::C ? bf16 : both);
}

}  // namespace tiny
