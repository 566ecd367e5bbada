// Hopper's instructions and helpers of the GEMM main loop that codegen/render/c/wgmma.cpp prints
// (PTX ISA: wgmma, mbarrier, cp.async.bulk.tensor, clusters).
//
// A text goes from its line `//# name` to the next blank line.

// PTX instructions behind names of our own; the emulator's prelude defines them otherwise.
//# instructions
#define MATRIX_KERNEL(threads, blocks) __global__ void __launch_bounds__(threads, blocks)
#define CLUSTER(blocks) __cluster_dims__(blocks, 1, 1)
#define TENSOR_MAP(name) const __grid_constant__ TensorMap name
struct alignas(64) TensorMap { char bytes[128]; };
INLINE int grid_x() { return gridDim.x; }
INLINE u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }
INLINE void mbarrier_init(u32 barrier, u32 count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count));
}
INLINE void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
INLINE void mbarrier_wait(u32 barrier, u32 parity) {
  asm volatile("{ .reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;"
               " @!p bra again; }" ::"r"(barrier), "r"(parity) : "memory");
}
INLINE void mbarrier_expect(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
               "r"(bytes) : "memory");
}
INLINE void mbarrier_arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
template <int count> INLINE void fewer_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
}
template <int count> INLINE void more_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
}
INLINE void products_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
INLINE void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int groups> INLINE void products_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(groups) : "memory");
}
// Products are done: the compiler must not have read their sums before.
INLINE void settle(f32& x) { asm volatile("" : "+f"(x)::"memory"); }
INLINE void settle(i32& x) { asm volatile("" : "+r"(x)::"memory"); }
template <class T> INLINE T of_lane_xor(T x, int mask) {
  return __shfl_xor_sync(0xffffffffu, x, mask);
}

// Barriers and addresses of a cluster. An address in shared memory is mapped to the same offset in
// another block. A block at the barrier has done all earlier work, and so has its TMA.
//# cluster
INLINE u32 of_block(u32 address, u32 block) {
  u32 there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(block));
  return there;
}
INLINE void mbarrier_arrive_at(u32 barrier, u32 block) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];"
               ::"r"(of_block(barrier, block)) : "memory");
}
INLINE void fence_cluster() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
INLINE void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.release; barrier.cluster.wait.acquire;" ::: "memory");
}
INLINE void store_at(u32 address, u32 block, const u32* x) {
  asm volatile("st.shared::cluster.v4.b32 [%0], {%1, %2, %3, %4};"
               ::"r"(of_block(address, block)), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
               : "memory");
}
INLINE void load_own(u32 address, u32* x) {
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(address) : "memory");
}

// Split-K within a cluster: each block has partial sums of the same tile. A block adds up some of
// the threads' elements, of all blocks, and these threads run the epilogue.
//# add_parts
template <class T> union Words {
  T of[4];
  u32 bits[4];
};
template <int parts, int threads, class T, int pieces, int n>
INLINE bool add_parts(T (&acc)[pieces][n], u32 memory, int block) {
  constexpr int each = threads / parts;
  const int own = thread_x() % each, of = thread_x() / each;
  cluster_barrier();  // all stages have been read
  if (of != block) {
    u32 to = memory + (((block - of + parts) % parts - 1) * (pieces * n / 4) * each + own) * 16;
    UNROLL
    for (int i = 0; i < pieces * n; i += 4, to += each * 16) {
      Words<T> x;
      UNROLL
      for (int j = 0; j < 4; ++j) x.of[j] = acc[(i + j) / n][(i + j) % n];
      store_at(to, of, x.bits);
    }
  }
  cluster_barrier();
  if (of != block) return false;
  for (int part = 0; part < parts - 1; ++part) {
    u32 from = memory + (part * (pieces * n / 4) * each + own) * 16;
    UNROLL
    for (int i = 0; i < pieces * n; i += 4, from += each * 16) {
      Words<T> x;
      load_own(from, x.bits);
      UNROLL
      for (int j = 0; j < 4; ++j) acc[(i + j) / n][(i + j) % n] += x.of[j];
    }
  }
  return true;
}

//# exchange
// Of four threads with two of every eight columns each to eight columns each: number i of what
// thread q has of 32 columns becomes number q of thread i. Other rows lie between.
template <class T, int n> INLINE void exchange(T (&acc)[n]) {
  UNROLL
  for (int bit = 1; bit < 4; bit *= 2) {
    const bool odd = thread_x() & bit;
    UNROLL
    for (int i = 0; i < n; ++i) {
      if (i / 4 & bit) continue;
      T &low = acc[i], &high = acc[i + 4 * bit];
      const T other = of_lane_xor(odd ? low : high, bit);
      low = odd ? other : low;
      high = odd ? high : other;
    }
  }
}

// Of a stage that is swizzled by 128 bytes: where a matrix begins, and its next box.
//# swizzled
INLINE u64 matrix_descriptor(const void* first, u32 box) {
  const u32 address = shared_address(first);
  return (u64)(address >> 4 & 0x3fff) | (u64)(box >> 4) << 16 | 64ull << 32 | 1ull << 62;
}
INLINE char* swizzled_stages(char* memory) { return memory + (-shared_address(memory) & 1023); }
template <class T, int n> INLINE void settle_all(T (&x)[n]) {
  UNROLL
  for (int i = 0; i < n; ++i) settle(x[i]);
}
