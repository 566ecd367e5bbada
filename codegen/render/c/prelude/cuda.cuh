// The primitives of codegen/render/c/prelude_gpu.h in CUDA C++. No header is included: the driver
// and NVRTC are all that a machine needs.
//
// A helper's text goes from its line `//# name` to the next blank line. A kernel gets the helpers
// that it names, in this order: a text uses only names above it.

//# KERNEL
#define KERNEL(threads) __global__ void __launch_bounds__(threads)
#define TILE_KERNEL(threads, blocks) __global__ void __launch_bounds__(threads, blocks)
#define RESTRICT __restrict__
#define INLINE __device__ __forceinline__
#define UNROLL _Pragma("unroll")

// See LaunchSize::waits.
//# wait_for_earlier
INLINE void wait_for_earlier() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// 16 bytes that are not read again.
//# load_once
template <class V> INLINE V load_once(const V* p) {
#if __CUDA_ARCH__ >= 800
  union { u32 from[4]; V to; } u;
  u64 policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  asm("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
      : "=r"(u.from[0]), "=r"(u.from[1]), "=r"(u.from[2]), "=r"(u.from[3])
      : "l"(p), "l"(policy));
  return u.to;
#else
  return *p;
#endif
}

//# u128
typedef uint4 u128;

//# block_x
INLINE int block_x() { return blockIdx.x; }

//# block_y
INLINE int block_y() { return blockIdx.y; }

//# block_z
INLINE int block_z() { return blockIdx.z; }

//# thread_x
INLINE int thread_x() { return threadIdx.x; }

//# thread_y
INLINE int thread_y() { return threadIdx.y; }

//# thread_z
INLINE int thread_z() { return threadIdx.z; }

//# barrier
INLINE void barrier() { __syncthreads(); }

//# SHARED
#define SHARED(type, name, count) __shared__ type name[count]

//# DYNAMIC_SHARED
#define DYNAMIC_SHARED(name) extern __shared__ __align__(16) char name[]

//# Copies
struct Copies {
  template <int bytes> INLINE void start(void* to, const void* from, bool on) {
    const u32 shared = (u32)__cvta_generic_to_shared(to);
    if constexpr (bytes == 16)
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                   ::"r"(shared), "l"(from), "r"(on ? 16 : 0));
    else
      asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
                   ::"r"(shared), "l"(from), "n"(bytes), "r"(on ? bytes : 0));
  }
  INLINE void commit() { asm volatile("cp.async.commit_group;"); }
  template <int groups> INLINE void wait() {
    if constexpr (groups == 0) asm volatile("cp.async.wait_all;" ::: "memory");
    else asm volatile("cp.async.wait_group %0;" ::"n"(groups) : "memory");
  }
};

//# f16_to_f32
INLINE f32 f16_to_f32(f16 x) {
  f32 y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
}

//# f32_to_f16
INLINE f16 f32_to_f16(f32 x) {
  f16 y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
}

//# thread_index
INLINE int thread_index() {
  return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}

//# warp_mask
INLINE u32 warp_mask() {  // the last warp may have fewer threads
  if (THREADS % 32 == 0 || (thread_index() | 31) < THREADS) return ~0u;
  return (1u << THREADS % 32) - 1;
}

//# shuffle_xor
template <class T> INLINE T shuffle_xor(T x, int mask) {
  if constexpr (sizeof(T) < 4) return (T)__shfl_xor_sync(warp_mask(), (int)x, mask);
  else return __shfl_xor_sync(warp_mask(), x, mask);
}

//# shuffle_up
template <class T> INLINE T shuffle_up(T x, int by) {  // or its own
  if constexpr (sizeof(T) < 4) return (T)__shfl_up_sync(warp_mask(), (int)x, by);
  else return __shfl_up_sync(warp_mask(), x, by);
}

// To nearest, ties away from zero: half a unit in the last place that the tensor core reads, which
// is as large as the exponent says, and lower bits are ignored. As exact as cvt.rna, which few
// units do; infinite and NaN stay so.
//# f32_to_tf32
INLINE u32 f32_to_tf32(f32 x) {
  const f32 unit = __uint_as_float(__float_as_uint(x) & 0xff800000u);
  return __float_as_uint(__fmaf_rn(unit, 0x1p-11f, x));
}

// ldmatrix: a thread's words of 2 or 4 matrices, of which it names a row.
//# load_matrices
template <class V, bool transposed> INLINE V load_matrices(const void* row) {
  union { u32 words[sizeof(V) / 4]; V v; } u;
  u32 (&x)[sizeof(V) / 4] = u.words;
  const u32 at = (u32)__cvta_generic_to_shared(row);
  if constexpr (sizeof(V) == 16 && transposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(at) : "memory");
  else if constexpr (sizeof(V) == 16)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(at) : "memory");
  else if constexpr (transposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(x[0]), "=r"(x[1]) : "r"(at) : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(x[0]), "=r"(x[1]) : "r"(at) : "memory");
  return u.v;
}

// d += a b
//# mma_m16n8k8_tf32
INLINE void mma_m16n8k8_tf32(f32* d, const u32* a, const u32* b) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

//# mma_m16n8k16_f16
INLINE void mma_m16n8k16_f16(f32* d, const u32* a, const u32* b) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

//# mma_m16n8k16_bf16
INLINE void mma_m16n8k16_bf16(f32* d, const u32* a, const u32* b) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

//# mma_m16n8k32_i8
INLINE void mma_m16n8k32_i8(i32* d, const u32* a, const u32* b) {
  asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

//# mma_m16n8k32_e4m3
INLINE void mma_m16n8k32_e4m3(f32* d, const u32* a, const u32* b) {
  asm volatile("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

//# mma_m16n8k32_e5m2
INLINE void mma_m16n8k32_e5m2(f32* d, const u32* a, const u32* b) {
  asm volatile("mma.sync.aligned.m16n8k32.row.col.f32.e5m2.e5m2.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

//# mma_m16n8k32_e4m3_e5m2
INLINE void mma_m16n8k32_e4m3_e5m2(f32* d, const u32* a, const u32* b) {
  asm volatile("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e5m2.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

//# mma_m16n8k32_e5m2_e4m3
INLINE void mma_m16n8k32_e5m2_e4m3(f32* d, const u32* a, const u32* b) {
  asm volatile("mma.sync.aligned.m16n8k32.row.col.f32.e5m2.e4m3.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

//# least_atomic
constexpr int least_atomic = 2;

//# atomic_add
INLINE void atomic_add(f16* p, f16 x) {
  asm volatile("red.add.noftz.f16 [%0], %1;" ::"l"(p), "h"(x.bits) : "memory");
}
#if __CUDA_ARCH__ >= 900
INLINE void atomic_add(bf16* p, bf16 x) {
  asm volatile("red.add.noftz.bf16 [%0], %1;" ::"l"(p), "h"(x.bits) : "memory");
}
#endif
