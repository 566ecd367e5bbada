// The primitives of codegen/render/c/prelude_gpu.h in HIP for AMD GPUs, as clang's language alone:
// its attributes and its builtins for amdgcn ("User Guide for AMDGPU Backend"). No header of ROCm
// and no device library is needed. Waves have 64 lanes on CDNA, 32 on RDNA: WARP.
//
// A helper's text goes from its line `//# name` to the next blank line. A kernel gets the helpers
// that it names, in this order: a text uses only names above it.

//# KERNEL
#define KERNEL(threads) \
  __attribute__((global, amdgpu_flat_work_group_size(1, threads))) void
#define RESTRICT __restrict__
#define INLINE inline __attribute__((device, always_inline))
#define UNROLL _Pragma("unroll")

//# u128
typedef u32 u128 __attribute__((ext_vector_type(4)));

//# block_x
INLINE int block_x() { return __builtin_amdgcn_workgroup_id_x(); }

//# block_y
INLINE int block_y() { return __builtin_amdgcn_workgroup_id_y(); }

//# block_z
INLINE int block_z() { return __builtin_amdgcn_workgroup_id_z(); }

//# thread_x
INLINE int thread_x() { return __builtin_amdgcn_workitem_id_x(); }

//# thread_y
INLINE int thread_y() { return __builtin_amdgcn_workitem_id_y(); }

//# thread_z
INLINE int thread_z() { return __builtin_amdgcn_workitem_id_z(); }

//# barrier
INLINE void barrier() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

//# SHARED
#define SHARED(type, name, count) __attribute__((shared)) type name[count]

//# DYNAMIC_SHARED
#define DYNAMIC_SHARED(name) \
  extern __attribute__((shared, aligned(16))) char name[]

//# Copies
template <int bytes> struct CopiedBytes;
template <> struct CopiedBytes<16> { typedef u128 type; };
template <> struct CopiedBytes<8> { typedef u64 type; };
template <> struct CopiedBytes<4> { typedef u32 type; };
struct Copies {  // done when the thread goes on
  template <int bytes> INLINE void start(void* to, const void* from, bool on) {
    typename CopiedBytes<bytes>::type x = {0};
    if (on) x = *(const decltype(x)*)from;
    *(decltype(x)*)to = x;
  }
  INLINE void commit() {}
  template <int groups> INLINE void wait() {}
};

//# f16_to_f32
INLINE f32 f16_to_f32(f16 x) { return __builtin_bit_cast(_Float16, x.bits); }

//# f32_to_f16
INLINE f16 f32_to_f16(f32 x) { return {__builtin_bit_cast(u16, (_Float16)x)}; }

// ds_bpermute reads the register of a lane: its first operand is four times the number.
//# thread_index
INLINE int thread_index() {
  const int x = __builtin_amdgcn_workitem_id_x(), y = __builtin_amdgcn_workitem_id_y();
  const int wide = __builtin_amdgcn_workgroup_size_x(), high = __builtin_amdgcn_workgroup_size_y();
  return x + wide * (y + high * (int)__builtin_amdgcn_workitem_id_z());
}

//# lane_index
INLINE int lane_index() {
  const int low = __builtin_amdgcn_mbcnt_lo(~0u, 0);
  return WARP == 32 ? low : __builtin_amdgcn_mbcnt_hi(~0u, low);
}

//# lane_value
template <class T> INLINE T lane_value(T x, int lane) {
  constexpr int words = (sizeof(T) + 3) / 4;
  union { int words[(sizeof(T) + 3) / 4]; T value; } u = {};
  u.value = x;
  UNROLL for (int i = 0; i < words; ++i)
    u.words[i] = __builtin_amdgcn_ds_bpermute(lane * 4, u.words[i]);
  return u.value;
}

//# shuffle_xor
template <class T> INLINE T shuffle_xor(T x, int mask) {
  return lane_value(x, lane_index() ^ mask);
}

//# shuffle_up
template <class T> INLINE T shuffle_up(T x, int by) {  // or its own
  const int lane = lane_index();
  return lane_value(x, lane < by ? lane : lane - by);
}

//# vector
template <class T, int n> using vector = T __attribute__((ext_vector_type(n)));

// One by one: of bytes that are copied as an array clang makes shifts of 128 bits.
//# gathered
template <class To, class T> INLINE To gathered(const T* from) {
  To to;
  if (sizeof(T) == 1) {
    vector<char, sizeof(To)> x;
    UNROLL for (int i = 0; i < sizeof(To); ++i) x[i] = ((const char*)from)[i];
    to = __builtin_bit_cast(To, x);
  } else {
    __builtin_memcpy(&to, from, sizeof to);
  }
  return to;
}

//# mfma_f32_16x16x4_f32
INLINE void mfma_f32_16x16x4_f32(f32* d, const f32* a, const f32* b) {
  const auto x = gathered<f32>(a), y = gathered<f32>(b);
  auto z = gathered<vector<f32, 4>>(d);
  z = __builtin_amdgcn_mfma_f32_16x16x4f32(x, y, z, 0, 0, 0);
  __builtin_memcpy(d, &z, sizeof z);
}

//# mfma_f32_16x16x16_f16
INLINE void mfma_f32_16x16x16_f16(f32* d, const f16* a, const f16* b) {
  const auto x = gathered<vector<_Float16, 4>>(a), y = gathered<vector<_Float16, 4>>(b);
  auto z = gathered<vector<f32, 4>>(d);
  z = __builtin_amdgcn_mfma_f32_16x16x16f16(x, y, z, 0, 0, 0);
  __builtin_memcpy(d, &z, sizeof z);
}

//# mfma_f32_16x16x16_bf16
INLINE void mfma_f32_16x16x16_bf16(f32* d, const bf16* a, const bf16* b) {
  const auto x = gathered<vector<short, 4>>(a), y = gathered<vector<short, 4>>(b);
  auto z = gathered<vector<f32, 4>>(d);
  z = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(x, y, z, 0, 0, 0);
  __builtin_memcpy(d, &z, sizeof z);
}

//# mfma_i32_16x16x16_i8
INLINE void mfma_i32_16x16x16_i8(i32* d, const i8* a, const i8* b) {
  const auto x = gathered<int>(a), y = gathered<int>(b);
  auto z = gathered<vector<i32, 4>>(d);
  z = __builtin_amdgcn_mfma_i32_16x16x16i8(x, y, z, 0, 0, 0);
  __builtin_memcpy(d, &z, sizeof z);
}

//# mfma_i32_16x16x32_i8
INLINE void mfma_i32_16x16x32_i8(i32* d, const i8* a, const i8* b) {
  const auto x = gathered<long>(a), y = gathered<long>(b);
  auto z = gathered<vector<i32, 4>>(d);
  z = __builtin_amdgcn_mfma_i32_16x16x32_i8(x, y, z, 0, 0, 0);
  __builtin_memcpy(d, &z, sizeof z);
}

//# mfma_f32_16x16x32_fp8_fp8
INLINE void mfma_f32_16x16x32_fp8_fp8(f32* d, const u32* a, const u32* b) {
  const auto x = gathered<long>(a), y = gathered<long>(b);
  auto z = gathered<vector<f32, 4>>(d);
  z = __builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8(x, y, z, 0, 0, 0);
  __builtin_memcpy(d, &z, sizeof z);
}

//# wmma_f32_16x16x16_f16
INLINE void wmma_f32_16x16x16_f16(f32* d, const f16* a, const f16* b) {
  const auto x = gathered<vector<_Float16, 16>>(a), y = gathered<vector<_Float16, 16>>(b);
  auto z = gathered<vector<f32, 8>>(d);
  z = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(x, y, z);
  __builtin_memcpy(d, &z, sizeof z);
}

//# wmma_f32_16x16x16_bf16
INLINE void wmma_f32_16x16x16_bf16(f32* d, const bf16* a, const bf16* b) {
  const auto x = gathered<vector<short, 16>>(a), y = gathered<vector<short, 16>>(b);
  auto z = gathered<vector<f32, 8>>(d);
  z = __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(x, y, z);
  __builtin_memcpy(d, &z, sizeof z);
}

//# wmma_i32_16x16x16_iu8
INLINE void wmma_i32_16x16x16_iu8(i32* d, const i8* a, const i8* b) {
  const auto x = gathered<vector<int, 4>>(a), y = gathered<vector<int, 4>>(b);
  auto z = gathered<vector<i32, 8>>(d);
  z = __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32(true, x, true, y, z, false);
  __builtin_memcpy(d, &z, sizeof z);
}

//# wmma_f32_16x16x16_f16_gfx12
INLINE void wmma_f32_16x16x16_f16_gfx12(f32* d, const f16* a, const f16* b) {
  const auto x = gathered<vector<_Float16, 8>>(a), y = gathered<vector<_Float16, 8>>(b);
  auto z = gathered<vector<f32, 8>>(d);
  z = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(x, y, z);
  __builtin_memcpy(d, &z, sizeof z);
}

//# wmma_f32_16x16x16_bf16_gfx12
INLINE void wmma_f32_16x16x16_bf16_gfx12(f32* d, const bf16* a, const bf16* b) {
  const auto x = gathered<vector<short, 8>>(a), y = gathered<vector<short, 8>>(b);
  auto z = gathered<vector<f32, 8>>(d);
  z = __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12(x, y, z);
  __builtin_memcpy(d, &z, sizeof z);
}

//# wmma_i32_16x16x16_iu8_gfx12
INLINE void wmma_i32_16x16x16_iu8_gfx12(i32* d, const i8* a, const i8* b) {
  const auto x = gathered<vector<int, 2>>(a), y = gathered<vector<int, 2>>(b);
  auto z = gathered<vector<i32, 8>>(d);
  z = __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32_gfx12(true, x, true, y, z, false);
  __builtin_memcpy(d, &z, sizeof z);
}

//# wmma_f32_16x16x16_fp8_fp8_gfx12
INLINE void wmma_f32_16x16x16_fp8_fp8_gfx12(f32* d, const f8e4m3* a, const f8e4m3* b) {
  const auto x = gathered<vector<int, 2>>(a), y = gathered<vector<int, 2>>(b);
  auto z = gathered<vector<f32, 8>>(d);
  z = __builtin_amdgcn_wmma_f32_16x16x16_fp8_fp8_w32_gfx12(x, y, z);
  __builtin_memcpy(d, &z, sizeof z);
}

//# wmma_f32_16x16x16_bf8_bf8_gfx12
INLINE void wmma_f32_16x16x16_bf8_bf8_gfx12(f32* d, const f8e5m2* a, const f8e5m2* b) {
  const auto x = gathered<vector<int, 2>>(a), y = gathered<vector<int, 2>>(b);
  auto z = gathered<vector<f32, 8>>(d);
  z = __builtin_amdgcn_wmma_f32_16x16x16_bf8_bf8_w32_gfx12(x, y, z);
  __builtin_memcpy(d, &z, sizeof z);
}

//# least_atomic
constexpr int least_atomic = 4;
template <class T> INLINE T atomicCAS(T* p, T expected, T next) {
  __hip_atomic_compare_exchange_strong(p, &expected, next, __ATOMIC_RELAXED, __ATOMIC_RELAXED,
                                       __HIP_MEMORY_SCOPE_AGENT);
  return expected;
}

//# atomicAdd
template <class T> INLINE void atomicAdd(T* p, T x) {
  __hip_atomic_fetch_add(p, x, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}

//# atomicMax
template <class T> INLINE void atomicMax(T* p, T x) {
  __hip_atomic_fetch_max(p, x, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}

//# atomicMin
template <class T> INLINE void atomicMin(T* p, T x) {
  __hip_atomic_fetch_min(p, x, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}

//# atomicAnd
template <class T> INLINE void atomicAnd(T* p, T x) {
  __hip_atomic_fetch_and(p, x, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}

//# atomicOr
template <class T> INLINE void atomicOr(T* p, T x) {
  __hip_atomic_fetch_or(p, x, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}

//# atomicXor
template <class T> INLINE void atomicXor(T* p, T x) {
  __hip_atomic_fetch_xor(p, x, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}

//# sqrtf
#define sqrtf __builtin_sqrtf

//# sqrt
#define sqrt __builtin_sqrt

//# floorf
#define floorf __builtin_floorf

//# floor
#define floor __builtin_floor

//# truncf
#define truncf __builtin_truncf

//# trunc
#define trunc __builtin_trunc

//# exp2f
#define exp2f __builtin_exp2f

//# expf
#define expf __builtin_expf

//# log2f
#define log2f __builtin_log2f

//# exp2
#define exp2 __builtin_exp2

//# exp
#define exp __builtin_exp

//# log2
#define log2 __builtin_log2

//# fabsf
#define fabsf __builtin_fabsf

//# fabs
#define fabs __builtin_fabs

//# fmaf
#define fmaf __builtin_fmaf

//# fma
#define fma __builtin_fma

//# __float2int_rz
INLINE i32 __float2int_rz(f32 x) {
  i32 y;
  asm("v_cvt_i32_f32 %0, %1" : "=v"(y) : "v"(x));
  return y;
}

//# __float2uint_rz
INLINE u32 __float2uint_rz(f32 x) {
  u32 y;
  asm("v_cvt_u32_f32 %0, %1" : "=v"(y) : "v"(x));
  return y;
}

//# __double2int_rz
INLINE i32 __double2int_rz(f64 x) {
  i32 y;
  asm("v_cvt_i32_f64 %0, %1" : "=v"(y) : "v"(x));
  return y;
}

//# __double2uint_rz
INLINE u32 __double2uint_rz(f64 x) {
  u32 y;
  asm("v_cvt_u32_f64 %0, %1" : "=v"(y) : "v"(x));
  return y;
}

//# __float2ll_rz
INLINE i64 __float2ll_rz(f32 x) {
  return x != x ? 0 : x >= 0x1p63f ? 0x7fffffffffffffffll : x <= (f32)(-0x7fffffffffffffffll - 1) ? (-0x7fffffffffffffffll - 1) : (i64)x;
}

//# __double2ll_rz
INLINE i64 __double2ll_rz(f64 x) {
  return x != x ? 0 : x >= 0x1p63 ? 0x7fffffffffffffffll : x <= (f64)(-0x7fffffffffffffffll - 1) ? (-0x7fffffffffffffffll - 1) : (i64)x;
}

//# __float2ull_rz
INLINE u64 __float2ull_rz(f32 x) {
  return x != x ? 0 : x >= 0x1p64f ? ~0ull : x <= (f32)0ull ? 0ull : (u64)x;
}

//# __double2ull_rz
INLINE u64 __double2ull_rz(f64 x) {
  return x != x ? 0 : x >= 0x1p64 ? ~0ull : x <= (f64)0ull ? 0ull : (u64)x;
}
