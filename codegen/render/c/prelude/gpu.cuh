// Types and helpers of CUDA and HIP kernels on top of the primitives in cuda.cuh and hip.hip
// (codegen/render/c/prelude_gpu.h lists their names).
//
// A helper's text goes from its line `//# name` to the next blank line, a table from `//## name`
// on. A kernel gets the helpers that it names, in this order: a text uses only names above it.

//## numbers

//# numbers
typedef signed char i8;
typedef short i16;
typedef int i32;
typedef long long i64;
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned u32;
typedef unsigned long long u64;
typedef float f32;
typedef double f64;

//## small floats

//# f16
struct f16 { u16 bits; };

//# bf16
struct bf16 { u16 bits; };

//# f8e4m3
struct f8e4m3 { u8 bits; };

//# f8e5m2
struct f8e5m2 { u8 bits; };

// Atomics of the hardware, by the names that they have in CUDA.
//## native atomics

//# atomic_add
INLINE void atomic_add(i32* p, i32 x) { atomicAdd((i32*)p, (i32)x); }
INLINE void atomic_add(u32* p, u32 x) { atomicAdd((u32*)p, (u32)x); }
INLINE void atomic_add(u64* p, u64 x) { atomicAdd((u64*)p, (u64)x); }
INLINE void atomic_add(i64* p, i64 x) { atomicAdd((u64*)p, (u64)x); }
INLINE void atomic_add(f32* p, f32 x) { atomicAdd((f32*)p, (f32)x); }
INLINE void atomic_add(f64* p, f64 x) { atomicAdd((f64*)p, (f64)x); }

//# atomic_max
INLINE void atomic_max(i32* p, i32 x) { atomicMax((i32*)p, (i32)x); }
INLINE void atomic_max(u32* p, u32 x) { atomicMax((u32*)p, (u32)x); }
INLINE void atomic_max(u64* p, u64 x) { atomicMax((u64*)p, (u64)x); }
INLINE void atomic_max(i64* p, i64 x) { atomicMax((i64*)p, (i64)x); }

//# atomic_min
INLINE void atomic_min(i32* p, i32 x) { atomicMin((i32*)p, (i32)x); }
INLINE void atomic_min(u32* p, u32 x) { atomicMin((u32*)p, (u32)x); }
INLINE void atomic_min(u64* p, u64 x) { atomicMin((u64*)p, (u64)x); }
INLINE void atomic_min(i64* p, i64 x) { atomicMin((i64*)p, (i64)x); }

//# atomic_and
INLINE void atomic_and(i32* p, i32 x) { atomicAnd((i32*)p, (i32)x); }
INLINE void atomic_and(u32* p, u32 x) { atomicAnd((u32*)p, (u32)x); }
INLINE void atomic_and(u64* p, u64 x) { atomicAnd((u64*)p, (u64)x); }
INLINE void atomic_and(i64* p, i64 x) { atomicAnd((u64*)p, (u64)x); }

//# atomic_or
INLINE void atomic_or(i32* p, i32 x) { atomicOr((i32*)p, (i32)x); }
INLINE void atomic_or(u32* p, u32 x) { atomicOr((u32*)p, (u32)x); }
INLINE void atomic_or(u64* p, u64 x) { atomicOr((u64*)p, (u64)x); }
INLINE void atomic_or(i64* p, i64 x) { atomicOr((u64*)p, (u64)x); }

//# atomic_xor
INLINE void atomic_xor(i32* p, i32 x) { atomicXor((i32*)p, (i32)x); }
INLINE void atomic_xor(u32* p, u32 x) { atomicXor((u32*)p, (u32)x); }
INLINE void atomic_xor(u64* p, u64 x) { atomicXor((u64*)p, (u64)x); }
INLINE void atomic_xor(i64* p, i64 x) { atomicXor((u64*)p, (u64)x); }

// Helpers on top of the primitives, the same everywhere.
//## helpers

//# Constant
template <bool value> struct Constant {
  INLINE constexpr operator bool() const { return value; }
};

//# vec
INLINE constexpr int alignment(int bytes) {
  return (bytes & -bytes) < 16 ? bytes & -bytes : 16;
}
template <class T, int N> struct alignas(alignment(sizeof(T) * N)) vec {
  typedef T lane;
  T v[N];
  INLINE T& operator[](int i) { return v[i]; }
  INLINE const T& operator[](int i) const { return v[i]; }
};

//# splat
template <class V> INLINE V splat(typename V::lane x);

//# convert
template <class To, class From> INLINE To convert(From x);

//# shuffle
template <int... lanes, class T, int N>
INLINE vec<T, sizeof...(lanes)> shuffle(vec<T, N> a, vec<T, N> b) {
  return {(lanes < N ? a.v[lanes % N] : b.v[lanes % N])...};
}

//# bitcast
template <class To, class From> INLINE To bitcast(From x) {
  union { From from; To to; } u = {x};
  return u.to;
}

//# Piece
template <int bytes> struct Piece;
template <> struct Piece<1> { typedef u8 type; };
template <> struct Piece<2> { typedef u16 type; };
template <> struct Piece<4> { typedef u32 type; };
template <> struct Piece<8> { typedef u64 type; };
template <> struct Piece<16> { typedef u128 type; };

//# load
template <class V, int bytes, class T> INLINE V load(const T* p) {
  typedef typename Piece<bytes>::type P;
  union { V v; P pieces[sizeof(V) / bytes]; } u;
  UNROLL for (int i = 0; i < sizeof(V) / bytes; ++i) u.pieces[i] = ((const P*)p)[i];
  return u.v;
}

//# mfma_f32
INLINE vec<f32, 4> mfma_f32(f32 a, f32 b, vec<f32, 4> c) {
  mfma_f32_16x16x4_f32(c.v, &b, &a);
  return c;
}

//# mfma_f16
INLINE vec<f32, 4> mfma_f16(vec<f16, 4> a, vec<f16, 4> b, vec<f32, 4> c) {
  mfma_f32_16x16x16_f16(c.v, b.v, a.v);
  return c;
}

//# mfma_bf16
INLINE vec<f32, 4> mfma_bf16(vec<bf16, 4> a, vec<bf16, 4> b, vec<f32, 4> c) {
  mfma_f32_16x16x16_bf16(c.v, b.v, a.v);
  return c;
}

//# mfma_i8_16
INLINE vec<i32, 4> mfma_i8_16(vec<i8, 4> a, vec<i8, 4> b, vec<i32, 4> c) {
  mfma_i32_16x16x16_i8(c.v, b.v, a.v);
  return c;
}

//# mfma_i8
INLINE vec<i32, 4> mfma_i8(vec<i8, 8> a, vec<i8, 8> b, vec<i32, 4> c) {
  mfma_i32_16x16x32_i8(c.v, b.v, a.v);
  return c;
}

// Four e4m3 halved, which makes them FNUZ: these have no -0, and NaN is the code of it.
//# to_fnuz
INLINE u32 to_fnuz(u32 x) {
  const u32 signs = 0x80808080u, magnitude = x & ~signs;
  const u32 nan = (magnitude + 0x01010101u) & signs, some = (magnitude + ~signs) & signs;
  return (magnitude & ~(nan - (nan >> 7))) | (x & some) | nan;
}

//# mfma_e4m3
INLINE vec<f32, 4> mfma_e4m3(vec<f8e4m3, 8> a, vec<f8e4m3, 8> b, vec<f32, 4> c) {
  const auto x = bitcast<vec<u32, 2>>(a), y = bitcast<vec<u32, 2>>(b);
  const u32 rows[] = {to_fnuz(x.v[0]), to_fnuz(x.v[1])};
  const u32 columns[] = {to_fnuz(y.v[0]), to_fnuz(y.v[1])};
  vec<f32, 4> quarter = {};
  mfma_f32_16x16x32_fp8_fp8(quarter.v, columns, rows);
  UNROLL for (int i = 0; i < 4; ++i) c.v[i] += 4 * quarter.v[i];
  return c;
}

//# wmma_f16
INLINE vec<f32, 8> wmma_f16(vec<f16, 16> a, vec<f16, 16> b, vec<f32, 8> c) {
  wmma_f32_16x16x16_f16(c.v, a.v, b.v);
  return c;
}

//# wmma_bf16
INLINE vec<f32, 8> wmma_bf16(vec<bf16, 16> a, vec<bf16, 16> b, vec<f32, 8> c) {
  wmma_f32_16x16x16_bf16(c.v, a.v, b.v);
  return c;
}

//# wmma_i8
INLINE vec<i32, 8> wmma_i8(vec<i8, 16> a, vec<i8, 16> b, vec<i32, 8> c) {
  wmma_i32_16x16x16_iu8(c.v, a.v, b.v);
  return c;
}

//# wmma12_f16
INLINE vec<f32, 8> wmma12_f16(vec<f16, 8> a, vec<f16, 8> b, vec<f32, 8> c) {
  wmma_f32_16x16x16_f16_gfx12(c.v, b.v, a.v);
  return c;
}

//# wmma12_bf16
INLINE vec<f32, 8> wmma12_bf16(vec<bf16, 8> a, vec<bf16, 8> b, vec<f32, 8> c) {
  wmma_f32_16x16x16_bf16_gfx12(c.v, b.v, a.v);
  return c;
}

//# wmma12_i8
INLINE vec<i32, 8> wmma12_i8(vec<i8, 8> a, vec<i8, 8> b, vec<i32, 8> c) {
  wmma_i32_16x16x16_iu8_gfx12(c.v, b.v, a.v);
  return c;
}

//# wmma12_e4m3
INLINE vec<f32, 8> wmma12_e4m3(vec<f8e4m3, 8> a, vec<f8e4m3, 8> b, vec<f32, 8> c) {
  wmma_f32_16x16x16_fp8_fp8_gfx12(c.v, b.v, a.v);
  return c;
}

//# wmma12_e5m2
INLINE vec<f32, 8> wmma12_e5m2(vec<f8e5m2, 8> a, vec<f8e5m2, 8> b, vec<f32, 8> c) {
  wmma_f32_16x16x16_bf8_bf8_gfx12(c.v, b.v, a.v);
  return c;
}

//# mma_f16
INLINE vec<f32, 4> mma_f16(vec<f16, 8> a, vec<f16, 4> b, vec<f32, 4> c) {
  const auto x = bitcast<vec<u32, 4>>(a);
  const auto y = bitcast<vec<u32, 2>>(b);
  const u32 rows[4] = {x.v[0], x.v[2], x.v[1], x.v[3]};
  mma_m16n8k16_f16(c.v, rows, y.v);
  return c;
}

//# mma_bf16
INLINE vec<f32, 4> mma_bf16(vec<bf16, 8> a, vec<bf16, 4> b, vec<f32, 4> c) {
  const auto x = bitcast<vec<u32, 4>>(a);
  const auto y = bitcast<vec<u32, 2>>(b);
  const u32 rows[4] = {x.v[0], x.v[2], x.v[1], x.v[3]};
  mma_m16n8k16_bf16(c.v, rows, y.v);
  return c;
}

//# mma_i8
INLINE vec<i32, 4> mma_i8(vec<i8, 16> a, vec<i8, 8> b, vec<i32, 4> c) {
  const auto x = bitcast<vec<u32, 4>>(a);
  const auto y = bitcast<vec<u32, 2>>(b);
  const u32 rows[4] = {x.v[0], x.v[2], x.v[1], x.v[3]};
  vec<i32, 4> d = c;
  mma_m16n8k32_i8(d.v, rows, y.v);
  return d;
}

//# mma_e4m3
INLINE vec<f32, 4> mma_e4m3(vec<f8e4m3, 16> a, vec<f8e4m3, 8> b, vec<f32, 4> c) {
  const auto x = bitcast<vec<u32, 4>>(a);
  const auto y = bitcast<vec<u32, 2>>(b);
  const u32 rows[4] = {x.v[0], x.v[2], x.v[1], x.v[3]};
  vec<f32, 4> d = {};
  mma_m16n8k32_e4m3(d.v, rows, y.v);
  UNROLL for (int i = 0; i < 4; ++i) c.v[i] += d.v[i];
  return c;
}

//# mma_e5m2
INLINE vec<f32, 4> mma_e5m2(vec<f8e5m2, 16> a, vec<f8e5m2, 8> b, vec<f32, 4> c) {
  const auto x = bitcast<vec<u32, 4>>(a);
  const auto y = bitcast<vec<u32, 2>>(b);
  const u32 rows[4] = {x.v[0], x.v[2], x.v[1], x.v[3]};
  vec<f32, 4> d = {};
  mma_m16n8k32_e5m2(d.v, rows, y.v);
  UNROLL for (int i = 0; i < 4; ++i) c.v[i] += d.v[i];
  return c;
}

//# mma_e4m3_e5m2
INLINE vec<f32, 4> mma_e4m3_e5m2(vec<f8e4m3, 16> a, vec<f8e5m2, 8> b, vec<f32, 4> c) {
  const auto x = bitcast<vec<u32, 4>>(a);
  const auto y = bitcast<vec<u32, 2>>(b);
  const u32 rows[4] = {x.v[0], x.v[2], x.v[1], x.v[3]};
  vec<f32, 4> d = {};
  mma_m16n8k32_e4m3_e5m2(d.v, rows, y.v);
  UNROLL for (int i = 0; i < 4; ++i) c.v[i] += d.v[i];
  return c;
}

//# mma_e5m2_e4m3
INLINE vec<f32, 4> mma_e5m2_e4m3(vec<f8e5m2, 16> a, vec<f8e4m3, 8> b, vec<f32, 4> c) {
  const auto x = bitcast<vec<u32, 4>>(a);
  const auto y = bitcast<vec<u32, 2>>(b);
  const u32 rows[4] = {x.v[0], x.v[2], x.v[1], x.v[3]};
  vec<f32, 4> d = {};
  mma_m16n8k32_e5m2_e4m3(d.v, rows, y.v);
  UNROLL for (int i = 0; i < 4; ++i) c.v[i] += d.v[i];
  return c;
}

//# mma_tf32
INLINE vec<f32, 4> mma_tf32(vec<u32, 4> a, vec<u32, 2> b, vec<f32, 4> c) {
  const u32 x[4] = {a.v[0], a.v[2], a.v[1], a.v[3]};
  mma_m16n8k8_tf32(c.v, x, b.v);
  return c;
}

//# store
template <int bytes, class V, class T> INLINE void store(T* p, V v) {
  typedef typename Piece<bytes>::type P;
  union { V v; P pieces[sizeof(V) / bytes]; } u = {v};
  UNROLL for (int i = 0; i < sizeof(V) / bytes; ++i) ((P*)p)[i] = u.pieces[i];
}

//# bf16_to_f32
INLINE f32 bf16_to_f32(bf16 x) { return bitcast<f32>((u32)x.bits << 16); }

//# pair_to_f16
INLINE u32 pair_to_f16(f32 a, f32 b) {  // a in the lower half
#if __CUDA_ARCH__ >= 800
  u32 y;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(b), "f"(a));
  return y;
#else
  return f32_to_f16(a).bits | (u32)f32_to_f16(b).bits << 16;
#endif
}

// Without the instruction: adds just under half a unit of the bits that are dropped, and one
// more where the last bit kept is odd.
//# f32_to_bf16
INLINE bf16 f32_to_bf16(f32 x) {
  bf16 y;
#if __CUDA_ARCH__ >= 800
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
#else
  const u32 i = bitcast<u32>(x);
  y.bits = x != x ? 0x7fc0 : (i + 0x7fff + (i >> 16 & 1)) >> 16;
#endif
  return y;
}

//# pair_to_bf16
INLINE u32 pair_to_bf16(f32 a, f32 b) {  // a in the lower half
#if __CUDA_ARCH__ >= 800
  u32 y;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(b), "f"(a));
  return y;
#else
  return f32_to_bf16(a).bits | (u32)f32_to_bf16(b).bits << 16;
#endif
}

//# max_of
template <class T> INLINE T max_of(T a, T b) { return a > b || a != a ? a : b; }
#if __CUDA_ARCH__ >= 800
INLINE f32 max_of(f32 a, f32 b) {
  f32 y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}
#endif

//# min_of
template <class T> INLINE T min_of(T a, T b) { return a < b || a != a ? a : b; }
#if __CUDA_ARCH__ >= 800
INLINE f32 min_of(f32 a, f32 b) {
  f32 y;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}
#endif

//# mul_add
INLINE f32 mul_add(f32 a, f32 b, f32 c) { return fmaf(a, b, c); }
INLINE f64 mul_add(f64 a, f64 b, f64 c) { return fma(a, b, c); }

//# sqrt_of
INLINE f32 sqrt_of(f32 x) { return sqrtf(x); }
INLINE f64 sqrt_of(f64 x) { return sqrt(x); }

//# floor_of
INLINE f32 floor_of(f32 x) { return floorf(x); }
INLINE f64 floor_of(f64 x) { return floor(x); }

//# trunc_of
INLINE f32 trunc_of(f32 x) { return truncf(x); }
INLINE f64 trunc_of(f64 x) { return trunc(x); }

//# exp2_of
INLINE f32 exp2_of(f32 x) { return exp2f(x); }
INLINE f64 exp2_of(f64 x) { return exp2(x); }

//# exp_of
INLINE f32 exp_of(f32 x) { return expf(x); }
INLINE f64 exp_of(f64 x) { return exp(x); }

// 0 instead of less than a normal number.
//# exp2_flushed
INLINE f32 exp2_flushed(f32 x) {
#if defined(__CUDA_ARCH__)
  f32 y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return x < -126.0f ? 0.0f : exp2f(x);
#endif
}

// Two units in the last place off at most.
//# quotient
INLINE f32 quotient(f32 a, f32 b) {
#if defined(__CUDA_ARCH__)
  f32 y;
  asm("div.full.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
#else
  return a / b;
#endif
}

// 1 / x of a number whose inverse is a normal one, a unit in the last place off at most.
//# inverse
INLINE f32 inverse(f32 x) {
#if defined(__CUDA_ARCH__)
  f32 y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return 1.0f / x;
#endif
}

//# size_of
INLINE f32 size_of(f32 x) { return fabsf(x); }
INLINE f64 size_of(f64 x) { return fabs(x); }

//# log2_of
INLINE f32 log2_of(f32 x) { return log2f(x); }
INLINE f64 log2_of(f64 x) { return log2(x); }

// As lower_sin in codegen/passes/decompose/transcendental.cpp, but with a branch for large
// arguments, which are seldom.
//# sin_of
INLINE f32 modulo_two_pi(f32 x) {
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
  // Its sign is that of r, also where r is -0, or the other one.
  const u32 sign = bitcast<u32>(r) ^ bitcast<u32>(rounded) << 31;
  const u32 sine = bitcast<u32>(fmaf(r * square, p, r));
  return bitcast<f32>((sine & 0x7fffffffu) | (sign & 0x80000000u));
}

//# saturate
template <class To, class From> INLINE To saturate(From x);

//# combine_lanes
template <class F, class T> INLINE T combine_lanes(F f, T a, T b) { return f(a, b); }
template <class F, class T, int N>
INLINE vec<T, N> combine_lanes(F f, vec<T, N> a, vec<T, N> b) {
  UNROLL for (int i = 0; i < N; ++i) a.v[i] = f(a.v[i], b.v[i]);
  return a;
}

//# shuffle_xor
template <class T, int N> INLINE vec<T, N> shuffle_xor(vec<T, N> x, int mask) {
  UNROLL for (int i = 0; i < N; ++i) x.v[i] = shuffle_xor(x.v[i], mask);
  return x;
}

// Eight warps or fewer are combined by reading them all: as fast as three exchanges.
//# combine_group
template <int width, class T, class F>
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

// The same where threads of other groups lie between the threads of a group.
//# combine_apart
template <int width, int apart, class T, class F>
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

//# shuffle_up
template <class T, int N> INLINE vec<T, N> shuffle_up(vec<T, N> x, int by) {
  UNROLL for (int i = 0; i < N; ++i) x.v[i] = shuffle_up(x.v[i], by);
  return x;
}

// The combined values of the group's earlier threads.
//# prefix_group
template <int width, class T, class F>
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

//# Wide
template <class T> struct Wide { typedef u32 type; };  // its arithmetic wraps
template <> struct Wide<i64> { typedef u64 type; };
template <> struct Wide<u64> { typedef u64 type; };
template <> struct Wide<f32> { typedef f32 type; };
template <> struct Wide<f64> { typedef f64 type; };

//# Add
struct Add {
  template <class T> INLINE T operator()(T a, T b) const {
    typedef typename Wide<T>::type W;
    return (T)((W)a + (W)b);
  }
};

//# Mul
struct Mul {
  template <class T> INLINE T operator()(T a, T b) const {
    typedef typename Wide<T>::type W;
    return (T)((W)a * (W)b);
  }
};

//# Max
struct Max {
  template <class T> INLINE T operator()(T a, T b) const { return max_of(a, b); }
};

//# Min
struct Min {
  template <class T> INLINE T operator()(T a, T b) const { return min_of(a, b); }
};

//# And
struct And {
  template <class T> INLINE T operator()(T a, T b) const { return (T)(a & b); }
};

//# Or
struct Or {
  template <class T> INLINE T operator()(T a, T b) const { return (T)(a | b); }
};

//# Xor
struct Xor {
  template <class T> INLINE T operator()(T a, T b) const { return (T)(a ^ b); }
};

//# prefix_add
template <int width, class T> INLINE T prefix_add(T x, T none, T* shared) {
  return prefix_group<width>(x, none, shared, Add());
}

//# prefix_mul
template <int width, class T> INLINE T prefix_mul(T x, T none, T* shared) {
  return prefix_group<width>(x, none, shared, Mul());
}

//# prefix_max
template <int width, class T> INLINE T prefix_max(T x, T none, T* shared) {
  return prefix_group<width>(x, none, shared, Max());
}

//# prefix_min
template <int width, class T> INLINE T prefix_min(T x, T none, T* shared) {
  return prefix_group<width>(x, none, shared, Min());
}

//# prefix_and
template <int width, class T> INLINE T prefix_and(T x, T none, T* shared) {
  return prefix_group<width>(x, none, shared, And());
}

//# prefix_or
template <int width, class T> INLINE T prefix_or(T x, T none, T* shared) {
  return prefix_group<width>(x, none, shared, Or());
}

//# prefix_xor
template <int width, class T> INLINE T prefix_xor(T x, T none, T* shared) {
  return prefix_group<width>(x, none, shared, Xor());
}

//# group_add
template <int width, class T> INLINE T group_add(T x, T* shared) {
  return combine_group<width>(x, shared, Add());
}

//# group_mul
template <int width, class T> INLINE T group_mul(T x, T* shared) {
  return combine_group<width>(x, shared, Mul());
}

//# group_max
template <int width, class T> INLINE T group_max(T x, T* shared) {
  return combine_group<width>(x, shared, Max());
}

//# group_min
template <int width, class T> INLINE T group_min(T x, T* shared) {
  return combine_group<width>(x, shared, Min());
}

//# group_and
template <int width, class T> INLINE T group_and(T x, T* shared) {
  return combine_group<width>(x, shared, And());
}

//# group_or
template <int width, class T> INLINE T group_or(T x, T* shared) {
  return combine_group<width>(x, shared, Or());
}

//# group_xor
template <int width, class T> INLINE T group_xor(T x, T* shared) {
  return combine_group<width>(x, shared, Xor());
}

//# apart_add
template <int width, int apart, class T> INLINE T apart_add(T x, T* shared) {
  return combine_apart<width, apart>(x, shared, Add());
}

//# apart_mul
template <int width, int apart, class T> INLINE T apart_mul(T x, T* shared) {
  return combine_apart<width, apart>(x, shared, Mul());
}

//# apart_max
template <int width, int apart, class T> INLINE T apart_max(T x, T* shared) {
  return combine_apart<width, apart>(x, shared, Max());
}

//# apart_min
template <int width, int apart, class T> INLINE T apart_min(T x, T* shared) {
  return combine_apart<width, apart>(x, shared, Min());
}

//# apart_and
template <int width, int apart, class T> INLINE T apart_and(T x, T* shared) {
  return combine_apart<width, apart>(x, shared, And());
}

//# apart_or
template <int width, int apart, class T> INLINE T apart_or(T x, T* shared) {
  return combine_apart<width, apart>(x, shared, Or());
}

//# apart_xor
template <int width, int apart, class T> INLINE T apart_xor(T x, T* shared) {
  return combine_apart<width, apart>(x, shared, Xor());
}

//# OfHalves
template <class F> struct OfHalves {
  INLINE f16 operator()(f16 a, f16 b) const {
    return f32_to_f16(F()(f16_to_f32(a), f16_to_f32(b)));
  }
  INLINE bf16 operator()(bf16 a, bf16 b) const {
    return f32_to_bf16(F()(bf16_to_f32(a), bf16_to_f32(b)));
  }
};

// Where the hardware has no such operation: by compare-and-swap of the word around it.
//# atomic_update
template <class T, class F> INLINE void change_word(T* p, T x, F f) {
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

//# atomic_add
template <class T> INLINE void atomic_add(T* p, T x) {
  atomic_update(p, x, Add());
}

//# atomic_mul
template <class T> INLINE void atomic_mul(T* p, T x) {
  atomic_update(p, x, Mul());
}

//# atomic_max
template <class T> INLINE void atomic_max(T* p, T x) {
  atomic_update(p, x, Max());
}

//# atomic_min
template <class T> INLINE void atomic_min(T* p, T x) {
  atomic_update(p, x, Min());
}

//# atomic_and
template <class T> INLINE void atomic_and(T* p, T x) {
  atomic_update(p, x, And());
}

//# atomic_or
template <class T> INLINE void atomic_or(T* p, T x) {
  atomic_update(p, x, Or());
}

//# atomic_xor
template <class T> INLINE void atomic_xor(T* p, T x) {
  atomic_update(p, x, Xor());
}

//# atomic_add_lanes
template <int N> INLINE void atomic_add_lanes(f32* p, vec<f32, N> x) {
#if __CUDA_ARCH__ >= 900
  UNROLL for (int i = 0; i < N; i += 4)
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(p + i), "f"(x.v[i]),
                 "f"(x.v[i + 1]), "f"(x.v[i + 2]), "f"(x.v[i + 3]) : "memory");
#else
  UNROLL for (int i = 0; i < N; ++i) atomic_add(p + i, x.v[i]);
#endif
}
