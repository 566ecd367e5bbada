#include "codegen/render/c/prelude_gpu.h"

#include <cmath>

#include "tiny/base/error.h"

namespace tiny {

namespace {

#define GROUP(name, F)                                                       \
  {                                                                          \
    "group_" name, "template <int width, class T> INLINE T group_" name      \
                   "(T x, T* shared) {\n"                                    \
                   "  return combine_group<width>(x, shared, " F "());\n}\n" \
  }
#define APART(name, F)                                                              \
  {                                                                                 \
    "apart_" name, "template <int width, int apart, class T> INLINE T apart_" name  \
                   "(T x, T* shared) {\n"                                           \
                   "  return combine_apart<width, apart>(x, shared, " F "());\n}\n" \
  }
#define PREFIX(name, F)                                                            \
  {                                                                                \
    "prefix_" name, "template <int width, class T> INLINE T prefix_" name          \
                    "(T x, T none, T* shared) {\n"                                 \
                    "  return prefix_group<width>(x, none, shared, " F "());\n}\n" \
  }
#define ATOMIC(name, F)                                           \
  {                                                               \
    "atomic_" name, "template <class T> INLINE void atomic_" name \
                    "(T* p, T x) {\n"                             \
                    "  atomic_update(p, x, " F "());\n}\n"        \
  }
// Registers of the matrix units from rows of elements along k (codegen/options/mma.h).
#define MMA_OF_HALVES(t)                                                  \
  {                                                                       \
    "mma_" t, "INLINE vec<f32, 4> mma_" t "(vec<" t ", 8> a, vec<" t      \
              ", 4> b, vec<f32, 4> c) {\n"                                \
              "  const auto x = bitcast<vec<u32, 4>>(a);\n"               \
              "  const auto y = bitcast<vec<u32, 2>>(b);\n"               \
              "  const u32 rows[4] = {x.v[0], x.v[2], x.v[1], x.v[3]};\n" \
              "  mma_m16n8k16_" t                                         \
              "(c.v, rows, y.v);\n"                                       \
              "  return c;\n"                                             \
              "}\n"                                                       \
  }
// The instruction's sums of 8-bit floats have few digits: each one's are added up apart.
#define MMA_OF_BYTES(name, t, sum, before, after)                                                  \
  {                                                                                                \
    "mma_" name, "INLINE vec<" sum ", 4> mma_" name "(vec<" t ", 16> a, vec<" t ", 8> b, vec<" sum \
                 ", 4> c) {\n"                                                                     \
                 "  const auto x = bitcast<vec<u32, 4>>(a);\n"                                     \
                 "  const auto y = bitcast<vec<u32, 2>>(b);\n"                                     \
                 "  const u32 rows[4] = {x.v[0], x.v[2], x.v[1], x.v[3]};\n" before                \
                 "  mma_m16n8k32_" name "(d.v, rows, y.v);\n" after "}\n"                          \
  }
#define MMA_OF_F8(name, t)                                \
  MMA_OF_BYTES(name, t, "f32", "  vec<f32, 4> d = {};\n", \
               "  UNROLL for (int i = 0; i < 4; ++i) c.v[i] += d.v[i];\n  return c;\n")
// AMD's, of which those with A and B alike compute the transpose of the product
// (codegen/options/mma.cpp).
#define MMA_OF(name, t, sum, each, results, instruction, operands)                             \
  {                                                                                            \
    name, "INLINE vec<" sum ", " results "> " name "(vec<" t ", " each "> a, vec<" t ", " each \
          "> b, vec<" sum ", " results "> c) {\n  " instruction "(c.v, " operands              \
          ");\n  return c;\n}\n"                                                               \
  }
constexpr const char* kNumbers = R"(typedef signed char i8;
typedef short i16;
typedef int i32;
typedef long long i64;
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned u32;
typedef unsigned long long u64;
typedef float f32;
typedef double f64;
)";

constexpr Helper kHalves[] = {
    {"f16", "struct f16 { u16 bits; };\n"},
    {"bf16", "struct bf16 { u16 bits; };\n"},
    {"f8e4m3", "struct f8e4m3 { u8 bits; };\n"},
    {"f8e5m2", "struct f8e5m2 { u8 bits; };\n"},
};

#define NATIVE(name, type, as, function)                                                 \
  "INLINE void atomic_" name "(" type "* p, " type " x) { " function "((" as "*)p, (" as \
  ")x); "                                                                                \
  "}\n"
#define NATIVE_INTS(name, function)    \
  NATIVE(name, "i32", "i32", function) \
  NATIVE(name, "u32", "u32", function) NATIVE(name, "u64", "u64", function)

// Atomics of the hardware, by the names that they have in CUDA.
constexpr Helper kNativeAtomics[] = {
    {"atomic_add", NATIVE_INTS("add", "atomicAdd") NATIVE("add", "i64", "u64", "atomicAdd") NATIVE(
                       "add", "f32", "f32", "atomicAdd") NATIVE("add", "f64", "f64", "atomicAdd")},
    {"atomic_max", NATIVE_INTS("max", "atomicMax") NATIVE("max", "i64", "i64", "atomicMax")},
    {"atomic_min", NATIVE_INTS("min", "atomicMin") NATIVE("min", "i64", "i64", "atomicMin")},
    {"atomic_and", NATIVE_INTS("and", "atomicAnd") NATIVE("and", "i64", "u64", "atomicAnd")},
    {"atomic_or", NATIVE_INTS("or", "atomicOr") NATIVE("or", "i64", "u64", "atomicOr")},
    {"atomic_xor", NATIVE_INTS("xor", "atomicXor") NATIVE("xor", "i64", "u64", "atomicXor")},
};

// Helpers on top of the primitives, the same everywhere.
constexpr Helper kHelpers[] = {
    {"vec", R"(INLINE constexpr int alignment(int bytes) {
  return (bytes & -bytes) < 16 ? bytes & -bytes : 16;
}
template <class T, int N> struct alignas(alignment(sizeof(T) * N)) vec {
  typedef T lane;
  T v[N];
  INLINE T& operator[](int i) { return v[i]; }
  INLINE const T& operator[](int i) const { return v[i]; }
};
)"},
    {"splat", "template <class V> INLINE V splat(typename V::lane x);\n"},
    {"convert", "template <class To, class From> INLINE To convert(From x);\n"},
    {"shuffle",
     R"(template <int... lanes, class T, int N>
INLINE vec<T, sizeof...(lanes)> shuffle(vec<T, N> a, vec<T, N> b) {
  return {(lanes < N ? a.v[lanes % N] : b.v[lanes % N])...};
}
)"},
    {"bitcast", R"(template <class To, class From> INLINE To bitcast(From x) {
  union { From from; To to; } u = {x};
  return u.to;
}
)"},
    {"Piece", R"(template <int bytes> struct Piece;
template <> struct Piece<1> { typedef u8 type; };
template <> struct Piece<2> { typedef u16 type; };
template <> struct Piece<4> { typedef u32 type; };
template <> struct Piece<8> { typedef u64 type; };
template <> struct Piece<16> { typedef u128 type; };
)"},
    {"load", R"(template <class V, int bytes, class T> INLINE V load(const T* p) {
  typedef typename Piece<bytes>::type P;
  union { V v; P pieces[sizeof(V) / bytes]; } u;
  UNROLL for (int i = 0; i < sizeof(V) / bytes; ++i) u.pieces[i] = ((const P*)p)[i];
  return u.v;
}
)"},
    {"mfma_f32", R"(INLINE vec<f32, 4> mfma_f32(f32 a, f32 b, vec<f32, 4> c) {
  mfma_f32_16x16x4_f32(c.v, &b, &a);
  return c;
}
)"},
    MMA_OF("mfma_f16", "f16", "f32", "4", "4", "mfma_f32_16x16x16_f16", "b.v, a.v"),
    MMA_OF("mfma_bf16", "bf16", "f32", "4", "4", "mfma_f32_16x16x16_bf16", "b.v, a.v"),
    MMA_OF("mfma_i8_16", "i8", "i32", "4", "4", "mfma_i32_16x16x16_i8", "b.v, a.v"),
    MMA_OF("mfma_i8", "i8", "i32", "8", "4", "mfma_i32_16x16x32_i8", "b.v, a.v"),
    // Four e4m3 as FNUZ's halves of them, which have no -0 and whose NaN is the code of it.
    {"to_fnuz", R"(INLINE u32 to_fnuz(u32 x) {
  const u32 signs = 0x80808080u, magnitude = x & ~signs;
  const u32 nan = (magnitude + 0x01010101u) & signs, some = (magnitude + ~signs) & signs;
  return (magnitude & ~(nan - (nan >> 7))) | (x & some) | nan;
}
)"},
    {"mfma_e4m3",
     R"(INLINE vec<f32, 4> mfma_e4m3(vec<f8e4m3, 8> a, vec<f8e4m3, 8> b, vec<f32, 4> c) {
  const auto x = bitcast<vec<u32, 2>>(a), y = bitcast<vec<u32, 2>>(b);
  const u32 rows[] = {to_fnuz(x.v[0]), to_fnuz(x.v[1])};
  const u32 columns[] = {to_fnuz(y.v[0]), to_fnuz(y.v[1])};
  vec<f32, 4> quarter = {};
  mfma_f32_16x16x32_fp8_fp8(quarter.v, columns, rows);
  UNROLL for (int i = 0; i < 4; ++i) c.v[i] += 4 * quarter.v[i];
  return c;
}
)"},
    MMA_OF("wmma_f16", "f16", "f32", "16", "8", "wmma_f32_16x16x16_f16", "a.v, b.v"),
    MMA_OF("wmma_bf16", "bf16", "f32", "16", "8", "wmma_f32_16x16x16_bf16", "a.v, b.v"),
    MMA_OF("wmma_i8", "i8", "i32", "16", "8", "wmma_i32_16x16x16_iu8", "a.v, b.v"),
    MMA_OF("wmma12_f16", "f16", "f32", "8", "8", "wmma_f32_16x16x16_f16_gfx12", "b.v, a.v"),
    MMA_OF("wmma12_bf16", "bf16", "f32", "8", "8", "wmma_f32_16x16x16_bf16_gfx12", "b.v, a.v"),
    MMA_OF("wmma12_i8", "i8", "i32", "8", "8", "wmma_i32_16x16x16_iu8_gfx12", "b.v, a.v"),
    MMA_OF("wmma12_e4m3", "f8e4m3", "f32", "8", "8", "wmma_f32_16x16x16_fp8_fp8_gfx12", "b.v, a.v"),
    MMA_OF("wmma12_e5m2", "f8e5m2", "f32", "8", "8", "wmma_f32_16x16x16_bf8_bf8_gfx12", "b.v, a.v"),
    MMA_OF_HALVES("f16"),
    MMA_OF_HALVES("bf16"),
    MMA_OF_BYTES("i8", "i8", "i32", "  vec<i32, 4> d = c;\n", "  return d;\n"),
    MMA_OF_F8("e4m3", "f8e4m3"),
    MMA_OF_F8("e5m2", "f8e5m2"),
    {"mma_tf32", R"(INLINE vec<f32, 4> mma_tf32(vec<u32, 4> a, vec<u32, 2> b, vec<f32, 4> c) {
  const u32 x[4] = {a.v[0], a.v[2], a.v[1], a.v[3]};
  mma_m16n8k8_tf32(c.v, x, b.v);
  return c;
}
)"},
    {"store", R"(template <int bytes, class V, class T> INLINE void store(T* p, V v) {
  typedef typename Piece<bytes>::type P;
  union { V v; P pieces[sizeof(V) / bytes]; } u = {v};
  UNROLL for (int i = 0; i < sizeof(V) / bytes; ++i) ((P*)p)[i] = u.pieces[i];
}
)"},
    {"bf16_to_f32", R"(INLINE f32 bf16_to_f32(bf16 x) { return bitcast<f32>((u32)x.bits << 16); }
)"},
    {"pair_to_f16", R"(INLINE u32 pair_to_f16(f32 a, f32 b) {  // a in the lower half
#if __CUDA_ARCH__ >= 800
  u32 y;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(b), "f"(a));
  return y;
#else
  return f32_to_f16(a).bits | (u32)f32_to_f16(b).bits << 16;
#endif
}
)"},
    // Without the instruction: adds just under half a unit of the bits that are dropped, and one
    // more where the last bit kept is odd.
    {"f32_to_bf16", R"(INLINE bf16 f32_to_bf16(f32 x) {
  bf16 y;
#if __CUDA_ARCH__ >= 800
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
#else
  const u32 i = bitcast<u32>(x);
  y.bits = x != x ? 0x7fc0 : (i + 0x7fff + (i >> 16 & 1)) >> 16;
#endif
  return y;
}
)"},
    {"pair_to_bf16", R"(INLINE u32 pair_to_bf16(f32 a, f32 b) {  // a in the lower half
#if __CUDA_ARCH__ >= 800
  u32 y;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(b), "f"(a));
  return y;
#else
  return f32_to_bf16(a).bits | (u32)f32_to_bf16(b).bits << 16;
#endif
}
)"},
    {"max_of", R"(template <class T> INLINE T max_of(T a, T b) { return a > b || a != a ? a : b; }
#if __CUDA_ARCH__ >= 800
INLINE f32 max_of(f32 a, f32 b) {
  f32 y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}
#endif
)"},
    {"min_of", R"(template <class T> INLINE T min_of(T a, T b) { return a < b || a != a ? a : b; }
#if __CUDA_ARCH__ >= 800
INLINE f32 min_of(f32 a, f32 b) {
  f32 y;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}
#endif
)"},
    {"mul_add", R"(INLINE f32 mul_add(f32 a, f32 b, f32 c) { return fmaf(a, b, c); }
INLINE f64 mul_add(f64 a, f64 b, f64 c) { return fma(a, b, c); }
)"},
    {"sqrt_of", R"(INLINE f32 sqrt_of(f32 x) { return sqrtf(x); }
INLINE f64 sqrt_of(f64 x) { return sqrt(x); }
)"},
    {"floor_of", R"(INLINE f32 floor_of(f32 x) { return floorf(x); }
INLINE f64 floor_of(f64 x) { return floor(x); }
)"},
    {"trunc_of", R"(INLINE f32 trunc_of(f32 x) { return truncf(x); }
INLINE f64 trunc_of(f64 x) { return trunc(x); }
)"},
    {"exp2_of", R"(INLINE f32 exp2_of(f32 x) { return exp2f(x); }
INLINE f64 exp2_of(f64 x) { return exp2(x); }
)"},
    // 0 instead of less than a normal number.
    {"exp2_flushed", R"(INLINE f32 exp2_flushed(f32 x) {
#if defined(__CUDA_ARCH__)
  f32 y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return x < -126.0f ? 0.0f : exp2f(x);
#endif
}
)"},
    {"log2_of", R"(INLINE f32 log2_of(f32 x) { return log2f(x); }
INLINE f64 log2_of(f64 x) { return log2(x); }
)"},
    // As lower_sin in codegen/passes/decompose/transcendental.cpp, but with a branch for what is
    // seldom needed.
    {"sin_of", R"(INLINE f32 modulo_two_pi(f32 x) {
  const i32 i = bitcast<i32>(x), m = (i & 0x7fffff) | 0x800000;
  const int start = (i >> 23 & 255) - 142, by = start & 63;
  const u64 high = start & 64 ? 0x4a7f09d5f47d4d37ull : 0x0028be60db939105ull;
  const u64 low = start & 64 ? 0x7036d8a5664f10e4ull : 0x4a7f09d5f47d4d37ull;
  const u64 window = high << by | (low >> 1) >> (by ^ 63);
  return (f32)(i64)((u64)(i64)(i < 0 ? -m : m) * window) * 0x1.921fb6p-62f;
}
INLINE f32 sin_of(f32 x) {
  if (!(fabsf(x) < 1e5f)) x = fabsf(x) < bitcast<f32>(0x7f800000u) ? modulo_two_pi(x) : x - x;
  const f32 rounded = fmaf(x, 0.318309886f, 12582912.0f), n = rounded - 12582912.0f;
  f32 r = fmaf(n, -3.140625f, x);
  r = fmaf(n, -0.000961303711f, r);
  r = fmaf(n, -6.34789467e-06f, r);
  r = fmaf(n, -1.98418716e-09f, r);
  const f32 square = r * r;
  f32 p = fmaf(square, -2.38893847e-08f, 2.75258662e-06f);
  p = fmaf(p, square, -0.000198408903f);
  p = fmaf(p, square, 0.00833333097f);
  p = fmaf(p, square, -0.166666672f);
  return bitcast<f32>(bitcast<i32>(fmaf(r * square, p, r)) ^ bitcast<i32>(rounded) << 31);
}
)"},
    {"saturate", "template <class To, class From> INLINE To saturate(From x);\n"},
    {"combine_lanes",
     R"(template <class F, class T> INLINE T combine_lanes(F f, T a, T b) { return f(a, b); }
template <class F, class T, int N>
INLINE vec<T, N> combine_lanes(F f, vec<T, N> a, vec<T, N> b) {
  UNROLL for (int i = 0; i < N; ++i) a.v[i] = f(a.v[i], b.v[i]);
  return a;
}
)"},
    {"shuffle_xor",
     R"(template <class T, int N> INLINE vec<T, N> shuffle_xor(vec<T, N> x, int mask) {
  UNROLL for (int i = 0; i < N; ++i) x.v[i] = shuffle_xor(x.v[i], mask);
  return x;
}
)"},
    // Eight warps or fewer are combined by reading them all: as fast as three exchanges.
    {"combine_group", R"(template <int width, class T, class F>
INLINE T combine_group(T x, T* shared, F f) {
  UNROLL for (int i = 1; i < (width < WARP ? width : WARP); i *= 2)
    x = combine_lanes(f, x, shuffle_xor(x, i));
  if constexpr (width > WARP) {
    constexpr int warps = width / WARP;
    const int thread = thread_index(), warp = thread / WARP;
    if (thread % WARP == 0) shared[warp] = x;
    barrier();
    const T* group = shared + (width == THREADS ? 0 : warp / warps * warps);
    if constexpr (warps > 8 && (warps & warps - 1) == 0) {
      x = group[thread % warps];
      UNROLL for (int i = 1; i < warps; i *= 2) x = combine_lanes(f, x, shuffle_xor(x, i));
    } else {
      x = group[0];
      UNROLL for (int i = 1; i < warps; ++i) x = combine_lanes(f, x, group[i]);
    }
  }
  return x;
}
)"},
    // The same where threads of other groups lie between those of a group.
    {"combine_apart", R"(template <int width, int apart, class T, class F>
INLINE T combine_apart(T x, T* shared, F f) {
  UNROLL for (int i = apart; i < WARP && i < apart * width; i *= 2)
    x = combine_lanes(f, x, shuffle_xor(x, i));
  if constexpr (apart * width > WARP) {
    constexpr int kept = apart < WARP ? apart : WARP;  // values that a warp leaves
    constexpr int members = apart * width / (apart < WARP ? WARP : apart);
    const int thread = thread_index(), lane = thread % WARP;
    const int at = thread / WARP * kept + lane % kept, member = at / apart % members;
    if (lane < kept) shared[at] = x;
    barrier();
    UNROLL for (int n = members; n > 1; n = (n + 1) / 2) {
      const int half = (n + 1) / 2;
      if (lane < kept && member + half < n)
        shared[at] = x = combine_lanes(f, x, shared[at + half * apart]);
      barrier();
    }
    x = shared[at - member * apart];
  }
  return x;
}
)"},
    {"shuffle_up",
     R"(template <class T, int N> INLINE vec<T, N> shuffle_up(vec<T, N> x, int by) {
  UNROLL for (int i = 0; i < N; ++i) x.v[i] = shuffle_up(x.v[i], by);
  return x;
}
)"},
    // The combined values of the group's earlier threads.
    {"prefix_group", R"(template <int width, class T, class F>
INLINE T prefix_group(T x, T none, T* shared, F f) {
  constexpr int lanes = width < WARP ? width : WARP;
  const int thread = thread_index(), lane = thread % lanes;
  UNROLL for (int i = 1; i < lanes; i *= 2) {
    const T before = shuffle_up(x, i);
    if (lane >= i) x = combine_lanes(f, before, x);
  }
  const T last = shuffle_up(x, 1);
  T sum = lane > 0 ? last : none;
  if constexpr (width > WARP) {
    constexpr int warps = width / WARP;
    const int warp = thread / WARP;
    if (lane == WARP - 1) shared[warp] = x;
    barrier();
    const T* group = shared + warp / warps * warps;
    T before = none;
    if constexpr (warps > 4 && (warps & warps - 1) == 0 && warps <= WARP) {
      if (lane % warps < warp % warps) before = group[lane % warps];
      UNROLL for (int i = 1; i < warps; i *= 2)
        before = combine_lanes(f, before, shuffle_xor(before, i));
    } else {
      UNROLL for (int i = 0; i < warps - 1; ++i)
        if (i < warp % warps) before = combine_lanes(f, before, group[i]);
    }
    sum = combine_lanes(f, before, sum);
  }
  return sum;
}
)"},
    {"Wide", R"(template <class T> struct Wide { typedef u32 type; };  // its arithmetic wraps
template <> struct Wide<i64> { typedef u64 type; };
template <> struct Wide<u64> { typedef u64 type; };
template <> struct Wide<f32> { typedef f32 type; };
template <> struct Wide<f64> { typedef f64 type; };
)"},
    {"Add", R"(struct Add {
  template <class T> INLINE T operator()(T a, T b) const {
    typedef typename Wide<T>::type W;
    return (T)((W)a + (W)b);
  }
};
)"},
    {"Mul", R"(struct Mul {
  template <class T> INLINE T operator()(T a, T b) const {
    typedef typename Wide<T>::type W;
    return (T)((W)a * (W)b);
  }
};
)"},
    {"Max", R"(struct Max {
  template <class T> INLINE T operator()(T a, T b) const { return max_of(a, b); }
};
)"},
    {"Min", R"(struct Min {
  template <class T> INLINE T operator()(T a, T b) const { return min_of(a, b); }
};
)"},
    {"And", R"(struct And {
  template <class T> INLINE T operator()(T a, T b) const { return (T)(a & b); }
};
)"},
    {"Or", R"(struct Or {
  template <class T> INLINE T operator()(T a, T b) const { return (T)(a | b); }
};
)"},
    {"Xor", R"(struct Xor {
  template <class T> INLINE T operator()(T a, T b) const { return (T)(a ^ b); }
};
)"},
    PREFIX("add", "Add"),
    PREFIX("mul", "Mul"),
    PREFIX("max", "Max"),
    PREFIX("min", "Min"),
    PREFIX("and", "And"),
    PREFIX("or", "Or"),
    PREFIX("xor", "Xor"),
    GROUP("add", "Add"),
    GROUP("mul", "Mul"),
    GROUP("max", "Max"),
    GROUP("min", "Min"),
    GROUP("and", "And"),
    GROUP("or", "Or"),
    GROUP("xor", "Xor"),
    APART("add", "Add"),
    APART("mul", "Mul"),
    APART("max", "Max"),
    APART("min", "Min"),
    APART("and", "And"),
    APART("or", "Or"),
    APART("xor", "Xor"),
    {"OfHalves", R"(template <class F> struct OfHalves {
  INLINE f16 operator()(f16 a, f16 b) const {
    return f32_to_f16(F()(f16_to_f32(a), f16_to_f32(b)));
  }
  INLINE bf16 operator()(bf16 a, bf16 b) const {
    return f32_to_bf16(F()(bf16_to_f32(a), bf16_to_f32(b)));
  }
};
)"},
    // Where the hardware has no such operation: by compare-and-swap of the word around it.
    {"atomic_update", R"(template <class T, class F> INLINE void change_word(T* p, T x, F f) {
  constexpr int bytes = sizeof(T) < least_atomic ? least_atomic : sizeof(T);
  typedef typename Piece<sizeof(T)>::type Bits;
  typedef typename Piece<bytes>::type Word;
  const int shift = sizeof(T) < bytes ? (int)(u64)p % bytes * 8 : 0;
  Word* const at = (Word*)((u64)p - shift / 8);
  const Word mask = (Word)(Bits)~(Bits)0 << shift;
  Word old = *(volatile Word*)at, seen;
  do {
    seen = old;
    const Bits after = bitcast<Bits>(f(bitcast<T>((Bits)(seen >> shift)), x));
    const Word next = (seen & ~mask) | (Word)after << shift;
    if (next == seen) return;
    old = atomicCAS(at, seen, next);
  } while (old != seen);
}
template <class T, class F> INLINE void atomic_update(T* p, T x, F f) { change_word(p, x, f); }
template <class F> INLINE void atomic_update(f16* p, f16 x, F) { change_word(p, x, OfHalves<F>()); }
template <class F> INLINE void atomic_update(bf16* p, bf16 x, F) {
  change_word(p, x, OfHalves<F>());
}
)"},
    ATOMIC("add", "Add"),
    ATOMIC("mul", "Mul"),
    ATOMIC("max", "Max"),
    ATOMIC("min", "Min"),
    ATOMIC("and", "And"),
    ATOMIC("or", "Or"),
    ATOMIC("xor", "Xor"),
    {"atomic_add_lanes", R"(template <int N> INLINE void atomic_add_lanes(f32* p, vec<f32, N> x) {
#if __CUDA_ARCH__ >= 900
  UNROLL for (int i = 0; i < N; i += 4)
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(p + i), "f"(x.v[i]),
                 "f"(x.v[i + 1]), "f"(x.v[i + 2]), "f"(x.v[i + 3]) : "memory");
#else
  UNROLL for (int i = 0; i < N; ++i) atomic_add(p + i, x.v[i]);
#endif
}
)"},
};

#undef GROUP
#undef APART
#undef ATOMIC
#undef NATIVE
#undef NATIVE_INTS
#undef MMA_OF_HALVES
#undef MMA_OF

// --- functions of vectors
// --------------------------------------------------------------------------

std::string spelled(DType t) {
  return t.lanes > 1 ? cat("vec<", t.one().name(), ", ", t.lanes, ">") : t.one().name();
}

// "{expression of lane 0, of lane 1, ...}", {i} in the pattern being the lane.
std::string lanes(const std::string& pattern, int count) {
  std::string out;
  for (int i = 0; i < count; ++i) out += (i ? ", " : "") + fill(pattern, {{'i', cat(i)}});
  return "{" + out + "}";
}

std::string definition(const std::string& head, const std::string& pattern, DType to) {
  return cat("INLINE ", spelled(to), " ", head, " {\n  return ", lanes(pattern, to.lanes),
             ";\n}\n");
}

// The type in which lanes are computed so that they wrap.
std::string wide(const std::string& op, DType t) {
  const bool wraps = op == "+" || op == "-" || op == "*" || op == "<<";
  return t.is_int() && wraps ? (t.bits() == 64 ? "(u64)" : "(u32)") : "";
}

std::string saturation(DType to, DType from) {
  const std::string name = to.one().name(), x = from.scalar == Scalar::F32 ? "float" : "double";
  const char* width = to.bits() == 64            ? (to.is_signed() ? "ll" : "ull")
                      : to.scalar == Scalar::U32 ? "uint"
                                                 : "int";
  const std::string integer = cat("__", x, "2", width, "_rz(x)");
  const std::string head =
      cat("template <> INLINE ", name, " saturate<", name, ">(", from.one().name(), " x) {\n");
  // The instruction saturates, but not all of its forms give 0 for NaN.
  if (to.bits() >= 32) return cat(head, "  return x != x ? 0 : ", integer, ";\n}\n");
  return cat(head, "  const int i = x != x ? 0 : ", integer, ";\n  return i < ", int_min(to), " ? ",
             int_min(to), " : i > ", int_max(to), " ? ", int_max(to), " : i;\n}\n");
}

// Two lanes at a time.
std::string convert_pairs(const LaneFunction& f) {
  const std::string half = f.to.one().name(), head = cat(f.name, "(", spelled(f.from), " x)");
  if (f.to.lanes % 2) return definition(head, f.name + "(x.v[{i}])", f.to);
  std::string pairs;
  for (int i = 0; i < f.to.lanes; i += 2)
    pairs += cat(i ? ", " : "", "pair_to_", half, "(x.v[", i, "], x.v[", i + 1, "])");
  return cat("INLINE ", spelled(f.to), " ", head, " {\n  return bitcast<", spelled(f.to),
             ">(vec<u32, ", f.to.lanes / 2, ">{", pairs, "});\n}\n");
}

std::string function_text(const LaneFunction& f) {
  const std::string to = spelled(f.to), from = spelled(f.from), one = f.to.one().name();
  const auto special = [&](const std::string& argument, const std::string& pattern) {
    return "template <> " + definition(cat(f.name, "<", to, ">(", argument, " x)"), pattern, f.to);
  };
  const auto binary = [&](const std::string& name, const std::string& pattern) {
    return definition(cat(name, "(", from, " a, ", from, " b)"), pattern, f.to);
  };
  if (f.name == "splat") return special(one, "x");
  if (f.name == "convert") return special(from, cat("(", one, ")x.v[{i}]"));
  if (f.name == "bitcast") return special(from, cat("bitcast<", one, ">(x.v[{i}])"));
  if (f.name == "saturate") return special(from, cat("saturate<", one, ">(x.v[{i}])"));
  if (f.name == "where") {
    // Halves by their bits: of two structs clang chooses the address, and puts them into memory.
    const char* lane = f.to.is_narrow() ? "{T}{m.v[{i}] ? a.v[{i}].bits : b.v[{i}].bits}"
                                        : "m.v[{i}] ? a.v[{i}] : b.v[{i}]";
    return definition(cat("where(", spelled(kBool.vec(f.to.lanes)), " m, ", to, " a, ", to, " b)"),
                      fill(lane, {{'T', one}}), f.to);
  }
  if (f.name == "negative") return definition(cat("operator-(", from, " x)"), "-x.v[{i}]", f.to);
  if (f.name == "mul_add")
    return definition(cat("mul_add(", to, " a, ", to, " b, ", to, " c)"),
                      "mul_add(a.v[{i}], b.v[{i}], c.v[{i}])", f.to);
  if (f.name == "max_of" || f.name == "min_of")
    return binary(f.name, cat(f.name, "(a.v[{i}], b.v[{i}])"));
  if (f.name == "f32_to_f16" || f.name == "f32_to_bf16") return convert_pairs(f);
  if (f.name.find('_') != std::string::npos)
    return definition(cat(f.name, "(", from, " x)"), cat(f.name, "(x.v[{i}])"), f.to);
  const std::string w = wide(f.name, f.from);
  const std::string result = cat(w, "a.v[{i}] ", f.name, " ", w, "b.v[{i}]");
  const bool promoted = f.to.is_int() || (f.to.is_bool() && f.from.is_bool());
  return binary("operator" + f.name, promoted ? cat("(", one, ")(", result, ")") : result);
}

}  // namespace

std::string gpu_prelude(std::span<const Helper> primitives, const PreludeUse& use) {
  std::string functions;
  std::set<std::tuple<Scalar, Scalar>> saturated;
  for (const LaneFunction& f : use.functions) {
    if (f.name == "saturate" && saturated.emplace(f.to.scalar, f.from.scalar).second)
      functions += saturation(f.to, f.from);
    if (f.to.lanes > 1) functions += function_text(f);
  }
  const std::string helpers = needed(kHelpers, "vec " + functions + use.text);
  const std::string atomics = needed(kNativeAtomics, helpers + functions + use.text);
  const std::string all = atomics + helpers + functions + use.text;
  const std::string base = needed(primitives, "KERNEL " + all);
  const auto defined = [&](const char* name, int value) {
    const bool used = (base + all).find(name) != std::string::npos;
    return used ? cat("#define ", name, " ", value, "\n") : "";
  };
  return cat(defined("THREADS", use.threads), defined("WARP", use.warp), "#ifndef TINY_PRELUDE\n",
             kNumbers, needed(kHalves, base + all), base, atomics, "#endif\n", helpers, functions);
}

}  // namespace tiny
