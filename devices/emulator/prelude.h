// The emulator's prelude: text before a GPU kernel's so that a C++17 compiler takes it. The
// primitives of the dialect (thread numbers, barrier, exchange between lanes, shared memory,
// atomics, 16-bit floats), and the structs that they share with the device.
#pragma once

namespace tiny {

// Declares its arguments here and gives their text the name: kernels and the device both have them.
#define TINY_DECLARE_TWICE(name, ...) \
  __VA_ARGS__                         \
  inline constexpr const char* name = #__VA_ARGS__;

// What a running kernel sees of the thread of the system that executes it. Threads of a block are
// fibers that change only inside `wait`; the first numbers are those of the one that runs.
TINY_DECLARE_TWICE(
    kEmulatedText, struct Emulated {
      int thread[3];
      int block[3];
      int grid[3];
      int index;                 // of the thread in its block
      int lane, lanes;           // its place in its warp, and how many the warp has
      char* slots;               // a slot of 16 bytes per lane of the warp, for this exchange
      char* shared;              // the block's shared memory
      long long shared_ready;    // how much of it was filled with the poison
      long long dynamic_shared;  // bytes of it that the launch asked for
      bool flushes;              // MFMA takes subnormals in products of 16-bit floats for zeros
      // Returns when all threads of the warp, or for a barrier of the block, wait at `line` for the
      // same `what`: 0 a barrier, positive an exchange between lanes; at some later time for -2.
      // For -3: all threads of the cluster, wherever they are.
      void (*wait)(Emulated*, int what, int line);
      // Ends the kernel with an error; does not return.
      void (*fail)(Emulated*, const char* message, int line);
      // Gives an array of `bytes` its place in shared memory, for good.
      long long (*place)(Emulated*, long long* place, long long bytes, int line);
      // Ends the kernel if the access from the instruction `at` is outside of its buffers, or meets
      // another thread's in shared memory.
      void (*access)(Emulated*, const void* address, long long bytes, int writes, const void* at);
      // The matrix units and what goes with them (devices/emulator/matrix_units.h). mbarrier and
      // products give 0 where the thread must wait and ask again.
      int (*mbarrier)(Emulated*, int what, unsigned barrier, unsigned value, int line);
      void (*copy_box)(Emulated*, unsigned to, const void* map, unsigned barrier, const int* at,
                       int rank, int blocks, int line);
      // 16 bytes to the shared memory of a block of the cluster, or of what was stored in one's own
      // where the block's number is negative.
      void (*words)(Emulated*, unsigned address, int block, void* words, int line);
      void (*multiply)(Emulated*, void* acc, int columns, unsigned long long a,
                       unsigned long long b, int form, int line);
      int (*products)(Emulated*, int what, int groups, int line);
      // Ends it for an access that is not aligned.
      void (*misaligned)(Emulated*, const void* address, long long alignment, int line);
    };)

// Line numbers from here on are those of the prelude, not of the kernel.
inline constexpr int kEmulatorPreludeLine = 1000000;

inline constexpr const char* kEmulatorPrelude = R"TEXT(
#define TINY_PRELUDE
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

#define EXPORTED __attribute__((visibility("default")))
#define INLINE inline __attribute__((always_inline))
#define UNROLL
#define RESTRICT __restrict
#define KERNEL(most) const int tiny_threads EXPORTED = most; extern "C" EXPORTED void
#define TILE_KERNEL(threads, blocks) KERNEL(threads)

extern "C" EXPORTED Emulated* (*tiny_emulated)() = 0;
// Without the compiler's hooks on accesses.
#ifdef __clang__  // which hooks atomics all the same
#define UNHOOKED __attribute__((disable_sanitizer_instrumentation, noinline))
#else
#define UNHOOKED __attribute__((no_sanitize("thread"), noinline))
#endif
// The same during all of a kernel's run in a thread, so that one call is enough.
__attribute__((const)) UNHOOKED static Emulated& emulated() { return *tiny_emulated(); }

// What the compiler calls before each access to memory (-fsanitize=thread). Those to the stack and
// to what lies in the program itself are nobody else's.
extern "C" __attribute__((visibility("hidden"))) char __ehdr_start, _end;
UNHOOKED static void note_access(const void* address, long long bytes, int writes, const void* at) {
  const char *p = (const char*)address, *frame = (const char*)__builtin_frame_address(0);
  Emulated& e = emulated();
  const bool is_shared = p >= e.shared && p < e.shared + e.shared_ready;  // it may lie near a stack
  if (!is_shared && p > frame - (128 << 10) && p < frame + (128 << 10)) return;
  if (p >= &__ehdr_start && p < &_end) return;
  e.access(&e, address, bytes, writes, at);
}
#define TINY_HOOK(name, parameters, ...)                                                   \
  extern "C" __attribute__((visibility("hidden"))) UNHOOKED void __tsan_##name parameters { \
    __VA_ARGS__;                                                                           \
  }
#define TINY_HOOKED(name, bytes, writes)                                 \
  TINY_HOOK(name##bytes, (void* p),                                      \
            note_access(p, bytes, writes, __builtin_return_address(0))) \
  TINY_HOOK(unaligned_##name##bytes, (void* p),                          \
            note_access(p, bytes, writes, __builtin_return_address(0)))
#define TINY_HOOKS(bytes) TINY_HOOKED(read, bytes, 0) TINY_HOOKED(write, bytes, 1)
TINY_HOOKS(1)
TINY_HOOKS(2)
TINY_HOOKS(4)
TINY_HOOKS(8)
TINY_HOOKS(16)
TINY_HOOK(read_range, (void* p, unsigned long n),
          note_access(p, n, 0, __builtin_return_address(0)))
TINY_HOOK(write_range, (void* p, unsigned long n),
          note_access(p, n, 1, __builtin_return_address(0)))
// Copies of structures, by Clang, and loops that fill or copy.
#define TINY_MEMORY(name, parameters, first, ...)                                         \
  extern "C" __attribute__((visibility("hidden"))) UNHOOKED void* __tsan_##name(          \
      void* to, parameters, unsigned long bytes) {                                        \
    note_access(to, bytes, 1, __builtin_return_address(0));                               \
    __VA_ARGS__;                                                                          \
    return __builtin_##name(to, first, bytes);                                            \
  }
TINY_MEMORY(memset, int x, x, )
TINY_MEMORY(memcpy, const void* from, from,
            note_access(from, bytes, 0, __builtin_return_address(0)))
TINY_MEMORY(memmove, const void* from, from,
            note_access(from, bytes, 0, __builtin_return_address(0)))
TINY_HOOK(init, (), )
TINY_HOOK(func_entry, (void*), )
TINY_HOOK(func_exit, (), )

INLINE int block_x() { return emulated().block[0]; }
INLINE int block_y() { return emulated().block[1]; }
INLINE int block_z() { return emulated().block[2]; }
INLINE int thread_x() { return emulated().thread[0]; }
INLINE int thread_y() { return emulated().thread[1]; }
INLINE int thread_z() { return emulated().thread[2]; }
INLINE int thread_index() { return emulated().index; }

INLINE void barrier(int line = __builtin_LINE()) { emulated().wait(&emulated(), 0, line); }

// Value of lane `other`: each lane leaves its own in a slot, waits, and reads. The next exchange
// has other slots, since a lane may get there before this one has read.
template <class T> static T exchange(T x, int other, int what, int line) {
  static_assert(sizeof(T) <= 16, "an exchange between lanes of more than 16 bytes");
  Emulated& e = emulated();
  char* const slots = e.slots;
  __builtin_memcpy(slots + e.lane * 16, &x, sizeof(T));
  e.wait(&e, what | (int)sizeof(T), line);
  if (other < 0 || other >= e.lanes) e.fail(&e, "reads a lane that does not exist", line);
  T y;
  __builtin_memcpy(&y, slots + other * 16, sizeof(T));
  return y;
}
template <class T> INLINE T shuffle_xor(T x, int mask, int line = __builtin_LINE()) {
  return exchange(x, emulated().lane ^ mask, mask << 8, line);
}

template <class T> INLINE T shuffle_up(T x, int by, int line = __builtin_LINE()) {
  const int lane = emulated().lane;
  return exchange(x, lane < by ? lane : lane - by, by << 8 | 1 << 7, line);
}

// What `count` lanes of the warp have each: pieces of 16 bytes change hands one after the other.
template <int count, class T> static void gather(const T& own, T* all, int what, int line) {
  Emulated& e = emulated();
  if (e.lanes != count) e.fail(&e, "multiplies matrices in a warp that is not full", line);
  for (int at = 0; at < (int)sizeof(T); at += 16) {
    const int bytes = sizeof(T) - at < 16 ? sizeof(T) - at : 16;
    char* const slots = e.slots;
    __builtin_memcpy(slots + e.lane * 16, (const char*)&own + at, bytes);
    e.wait(&e, 1 << 16 | what << 8 | at, line);
    for (int lane = 0; lane < count; ++lane)
      __builtin_memcpy((char*)(all + lane) + at, slots + lane * 16, bytes);
  }
}

// ldmatrix (PTX ISA, "Warp-level matrix load instruction: ldmatrix"): thread 8 i + r of the warp
// names row r of matrix i, 16 bytes. Thread t gets word t % 4 of row t / 4 of each matrix, or where
// they are transposed the elements of 16 bits in column t / 4 of rows t % 4 * 2 and t % 4 * 2 + 1.
template <class V, bool transposed>
static V load_matrices(const void* row, int line = __builtin_LINE()) {
  constexpr int count = sizeof(V) / 4;
  struct alignas(16) Row { u16 of[8]; } own = {}, all[32];
  Emulated& e = emulated();
  if ((u64)row % 16) e.fail(&e, "loads a matrix's row that is not at a multiple of 16 bytes", line);
  if (e.lane < 8 * count) own = *(const Row*)row;
  gather<32>(own, all, count + 4 * transposed, line);
  union { u16 of[2 * count]; V v; } u;
  const int group = e.lane / 4, place = e.lane % 4 * 2;
  for (int i = 0; i < 2 * count; ++i)
    u.of[i] = transposed ? all[i / 2 * 8 + place + i % 2].of[group]
                         : all[i / 2 * 8 + group].of[place + i % 2];
  return u.v;
}

// mma.sync m16n8k8, m16n8k16 and m16n8k32 (PTX ISA, "Matrix fragments for mma.m16n8k8" and so on):
// lane t has rows t / 4 and t / 4 + 8 of A, column t / 4 of B, in words along k of `each` elements,
// and of D, to which the product is added, columns t % 4 * 2 and the next one. A word of A: row + 8
// where it is odd, k + 4 words for 2, 3.
template <int each, class T, class Element>
static void mma_m16n8(T* d, const u32* a, const u32* b, Element element, int line) {
  struct Words { u32 a[4], b[2]; };
  const int lane = emulated().lane, group = lane / 4, place = lane % 4;
  Words all[32];
  gather<32>(Words{{a[0], a[1], a[2], a[3]}, {b[0], b[1]}}, all, each, line);
  T rows[2][8 * each], columns[2][8 * each];
  for (int t = 0; t < 4; ++t)
    for (int word = 0; word < 4; ++word)
      for (int e = 0; e < each; ++e) {
        const int k = (word / 2 * 4 + t) * each + e;
        rows[word % 2][k] = element(all[group * 4 + t].a[word], e, false);
        columns[word % 2][k] = element(all[(place * 2 + word % 2) * 4 + t].b[word / 2], e, true);
      }
  for (int i = 0; i < 4; ++i)
    for (int k = 0; k < 8 * each; ++k) d[i] += rows[i / 2][k] * columns[i % 2][k];
}

// AMD's matrix instructions, D += A B of 16 x 16 x depth. `where_a`, `where_b` and `where_d` say
// which lane has an element, and which of its own it is, as the instruction set manuals' tables of
// registers do.
struct Place { int lane, element; };
INLINE f32 number(f32 x) { return x; }
INLINE i32 number(i32 x) { return x; }
INLINE i32 number(i8 x) { return x; }
template <int lanes, int depth, int each, int results, class S, class T, class A, class B, class D>
static void matrix_16x16(S* d, const T* a, const T* b, A where_a, B where_b, D where_d, int line) {
  struct Operands { T a[each], b[each]; } own, all[lanes];
  for (int i = 0; i < each; ++i) own.a[i] = a[i], own.b[i] = b[i];
  gather<lanes>(own, all, depth, line);
  S sums[results] = {};
  for (int i = 0; i < 16; ++i)
    for (int j = 0; j < 16; ++j) {
      const Place to = where_d(i, j);
      if (to.lane != emulated().lane) continue;
      for (int k = 0; k < depth; ++k) {
        const Place x = where_a(i, k), y = where_b(k, j);
        sums[to.element] += number(all[x.lane].a[x.element]) * number(all[y.lane].b[y.element]);
      }
    }
  for (int i = 0; i < results; ++i) d[i] += sums[i];
}
// On gfx90a alone, products of 16-bit floats take subnormals for zeros in A, B and D, before and
// after (MIOpen's documentation, "MI200 matrix fused multiply-add (MFMA) behavior specifics").
template <class T> INLINE f32 least_normal(T) { return 0; }
template <class T> INLINE T flushed(T x, f32 least) {
  return __builtin_fabsf(number(x)) < least ? T{} : x;
}
// CDNA 2 and 3, "Dense matrix register layouts": the lanes in four groups of 16, each of which has
// depth / 4 neighbours along k of a row of A and a column of B, and four rows of D.
template <int depth, class S, class T>
static void mfma_16x16(S* d, const T* a, const T* b, int line) {
  constexpr int each = depth / 4;
  const f32 least = emulated().flushes ? least_normal(T{}) : 0, least_f32 = least ? 0x1p-126f : 0;
  T x[each], y[each];
  for (int i = 0; i < each; ++i) x[i] = flushed(a[i], least), y[i] = flushed(b[i], least);
  for (int i = 0; i < 4; ++i) d[i] = flushed(d[i], least_f32);
  matrix_16x16<64, depth, each, 4>(
      d, x, y, [](int i, int k) { return Place{k / each * 16 + i, k % each}; },
      [](int k, int j) { return Place{k / each * 16 + j, k % each}; },
      [](int i, int j) { return Place{i / 4 * 16 + j, i % 4}; }, line);
  for (int i = 0; i < 4; ++i) d[i] = flushed(d[i], least_f32);
}
// RDNA 3, "Wave Matrix Multiply Accumulate": all of a row of A and a column of B in each lane of
// one half of the wave, and again in the other. Here some are read from one, some from the other.
template <class S, class T> static void wmma_16x16(S* d, const T* a, const T* b, int line) {
  matrix_16x16<32, 16, 16, 8>(
      d, a, b, [](int i, int k) { return Place{i % 2 * 16 + i, k}; },
      [](int k, int j) { return Place{k / 8 * 16 + j, k}; },
      [](int i, int j) { return Place{i % 2 * 16 + j, i / 2}; }, line);
}
// RDNA 4: eight neighbours along k in each half of the wave, and eight rows of D.
template <class S, class T> static void wmma12_16x16(S* d, const T* a, const T* b, int line) {
  matrix_16x16<32, 16, 8, 8>(
      d, a, b, [](int i, int k) { return Place{k / 8 * 16 + i, k % 8}; },
      [](int k, int j) { return Place{k / 8 * 16 + j, k % 8}; },
      [](int i, int j) { return Place{i / 8 * 16 + j, i % 8}; }, line);
}
#define TINY_MATRIX(name, S, T, function)                                              \
  INLINE void name(S* d, const T* a, const T* b, int line = __builtin_LINE()) {        \
    function(d, a, b, line);                                                           \
  }
TINY_MATRIX(mfma_f32_16x16x4_f32, f32, f32, mfma_16x16<4>)
TINY_MATRIX(mfma_i32_16x16x16_i8, i32, i8, mfma_16x16<16>)
TINY_MATRIX(mfma_i32_16x16x32_i8, i32, i8, mfma_16x16<32>)
TINY_MATRIX(wmma_i32_16x16x16_iu8, i32, i8, wmma_16x16)
TINY_MATRIX(wmma_i32_16x16x16_iu8_gfx12, i32, i8, wmma12_16x16)
// Rounded to 10 bits after the point, ties away from zero; the matrix unit ignores the others.
INLINE u32 f32_to_tf32(f32 x) {
  u32 bits;
  __builtin_memcpy(&bits, &x, 4);
  return x != x || (bits & 0x7f800000) == 0x7f800000 ? bits : bits + 0x1000;
}
INLINE void mma_m16n8k8_tf32(f32* d, const u32* a, const u32* b, int line = __builtin_LINE()) {
  mma_m16n8<1>(d, a, b, [](u32 word, int, bool) {
    f32 x;
    word &= 0xffffe000u;
    __builtin_memcpy(&x, &word, 4);
    return x;
  }, line);
}

// Shared memory: the place of an array is found by the first thread that gets there.
INLINE char* shared_array(long long* place, long long bytes, int line) {
  Emulated& e = emulated();
  long long at = *(volatile long long*)place;
  if (at < 0 || at + bytes > e.shared_ready) at = e.place(&e, place, bytes, line);
  return e.shared + at;
}
#define SHARED(type, name, count)          \
  static long long name##_place = -1;      \
  type* const name = (type*)shared_array(&name##_place, sizeof(type) * (count), __LINE__)

// A thread's copies to shared memory (cp.async): done when they are waited for, as late as may be.
struct Copies {
  struct Copy { void* to; const void* from; int bytes; bool on; };
  Copy* all = nullptr;
  int begin = 0, end = 0, room = 0, groups = 0, ends[16] = {};
  ~Copies() { __builtin_free(all); }
  template <int bytes>
  UNHOOKED void start(void* to, const void* from, bool on, int line = __builtin_LINE()) {
    static_assert(bytes == 4 || bytes == 8 || bytes == 16, "a copy of 4, 8 or 16 bytes");
    if (((u64)to | (on ? (u64)from : 0)) % bytes)
      emulated().misaligned(&emulated(), (u64)to % bytes ? to : from, bytes, line);
    if (end == room) {
      room = 2 * room + 64;
      all = (Copy*)__builtin_realloc(all, sizeof(Copy) * room);
    }
    all[end++] = {to, from, bytes, on};
  }
  UNHOOKED void commit() { ends[groups++ % 16] = end; }
  template <int pending> UNHOOKED void wait() {
    static_assert(pending < 16, "more than 15 groups of copies under way");
    const int until = groups > pending ? ends[(groups - pending - 1) % 16] : 0;
    for (const void* at = __builtin_return_address(0); begin < (pending ? until : end); ++begin) {
      const Copy& c = all[begin];
      note_access(c.to, c.bytes, 1, at);
      if (c.on) note_access(c.from, c.bytes, 0, at);
      if (c.on)
        __builtin_memcpy(c.to, c.from, c.bytes);
      else
        __builtin_memset(c.to, 0, c.bytes);
    }
    if (begin < end) return;
    begin = end = 0;
    for (int& e : ends) e = 0;
  }
};

constexpr int least_atomic = 1;

// Of kernels with matrix units (codegen/render/c/wgmma.cpp). Addresses in shared memory are its
// bytes' numbers.
struct TensorMap { char opaque; };  // the device's, behind a reference
#define MATRIX_KERNEL(threads, blocks) KERNEL(threads)
#define CLUSTER(blocks)
#define TENSOR_MAP(name) const TensorMap& name
#define DYNAMIC_SHARED(name)                  \
  static long long name##_place = -1;         \
  char* const name = shared_array(&name##_place, emulated().dynamic_shared, __LINE__)
INLINE void wait_for_earlier() {}
template <class V> INLINE V load_once(const V* p) { return *p; }
INLINE int grid_x() { return emulated().grid[0]; }
INLINE u32 shared_address(const void* p) { return (u32)((const char*)p - emulated().shared); }
INLINE void mbarrier_init(u32 barrier, u32 count, int line = __builtin_LINE()) {
  emulated().mbarrier(&emulated(), 0, barrier, count, line);
}
INLINE void fence_async(int line = __builtin_LINE()) {
  emulated().mbarrier(&emulated(), 1, 0, 0, line);
}
INLINE void mbarrier_wait(u32 barrier, u32 parity, int line = __builtin_LINE()) {
  while (!emulated().mbarrier(&emulated(), 2, barrier, parity, line))
    emulated().wait(&emulated(), -2, line);
}
INLINE void mbarrier_expect(u32 barrier, u32 bytes, int line = __builtin_LINE()) {
  emulated().mbarrier(&emulated(), 3, barrier, bytes, line);
}
INLINE void mbarrier_arrive(u32 barrier, int line = __builtin_LINE()) {
  emulated().mbarrier(&emulated(), 4, barrier, 0, line);
}
INLINE void mbarrier_arrive_at(u32 barrier, u32 block, int line = __builtin_LINE()) {
  emulated().mbarrier(&emulated(), 5, barrier, block, line);
}
INLINE void fence_cluster(int line = __builtin_LINE()) {
  emulated().mbarrier(&emulated(), 6, 0, 0, line);
}
INLINE void cluster_barrier(int line = __builtin_LINE()) { emulated().wait(&emulated(), -3, line); }
INLINE void store_at(u32 address, u32 block, u32* x, int line = __builtin_LINE()) {
  emulated().words(&emulated(), address, (int)block, x, line);
}
INLINE void load_own(u32 address, u32* x, int line = __builtin_LINE()) {
  emulated().words(&emulated(), address, -1, x, line);
}
template <int count> INLINE void fewer_registers() {}
template <int count> INLINE void more_registers() {}
INLINE void products_fence(int line = __builtin_LINE()) {
  emulated().products(&emulated(), 0, 0, line);
}
INLINE void products_commit(int line = __builtin_LINE()) {
  emulated().products(&emulated(), 1, 0, line);
}
template <class T> INLINE void settle(T&) {}
template <class T> INLINE T of_lane_xor(T x, int mask, int line = __builtin_LINE()) {
  return shuffle_xor(x, mask, line);
}
template <int groups> INLINE void products_wait(int line = __builtin_LINE()) {
  while (!emulated().products(&emulated(), 2, groups, line)) emulated().wait(&emulated(), -2, line);
}
// To the blocks of the cluster of which `blocks` has the bit.
template <class... I>
INLINE void copy_box_to(u32 to, const TensorMap& map, u32 arrival, int blocks, I... x) {
  const int at[] = {x...};
  emulated().copy_box(&emulated(), to, &map, arrival, at, sizeof...(x), blocks, 0);
}
template <class... I> INLINE void copy_box(u32 to, const TensorMap& map, u32 arrival, I... x) {
  copy_box_to(to, map, arrival, 0, x...);
}
template <class... I> INLINE void copy_box_once(u32 to, const TensorMap& map, u32 arrival, I... x) {
  copy_box_to(to, map, arrival, 0, x...);
}
template <class... I>
INLINE void copy_box_once_to(u32 to, const TensorMap& map, u32 arrival, int blocks, I... x) {
  copy_box_to(to, map, arrival, blocks, x...);
}
template <class... I>
INLINE void copy_windows_to(u32 to, const TensorMap& map, u32 arrival, int blocks, I... x) {
  const int at[] = {x...};
  emulated().copy_box(&emulated(), to, &map, arrival, at, -(int)sizeof...(x), blocks, 0);
}
template <class... I> INLINE void copy_windows(u32 to, const TensorMap& map, u32 arrival, I... x) {
  copy_windows_to(to, map, arrival, 0, x...);
}
#define MULTIPLY(name, T, type)                                                            \
  template <int turn_a, int turn_b, int n>                                                 \
  INLINE void name(T (&acc)[n], u64 a, u64 b, int line = __builtin_LINE()) {               \
    emulated().multiply(&emulated(), acc, n * 2, a, b, turn_a | turn_b << 1 | type, line); \
  }
MULTIPLY(multiply_tf32, f32, 8) MULTIPLY(multiply_s8, i32, 12)
MULTIPLY(multiply_bf16, f32, 4) MULTIPLY(multiply_f16, f32, 0)
#define MULTIPLY_F8(name, type)                                                                    \
  template <int turn_a, int turn_b, int n>                                                         \
  INLINE void multiply_##name(f32 (&acc)[n], u64 a, u64 b, int adds, int line = __builtin_LINE()) {\
    const int form = turn_a | turn_b << 1 | type | (adds ? 0 : 32);                                \
    emulated().multiply(&emulated(), acc, n * 2, a, b, form, line);                                \
  }
MULTIPLY_F8(e4m3, 16) MULTIPLY_F8(e5m2, 20) MULTIPLY_F8(e4m3_e5m2, 24) MULTIPLY_F8(e5m2_e4m3, 28)
// Bits of the form: 5: does not add; 6: the first operand's words are in registers.
template <class T> INLINE u64 first_operand(T& a) {
  if constexpr (sizeof(T) == 8) return a;
  else return (u64)&(a = {a.v[0], a.v[2], a.v[1], a.v[3]});
}
#define MULTIPLY_IN_CHAIN(name, type)                                                       \
  template <int turn_a, int turn_b, int adds, int n, class A>                               \
  INLINE void name(f32 (&acc)[n], A a, u64 b, int line = __builtin_LINE()) {                \
    const int form = turn_a | turn_b << 1 | type | (adds ? 0 : 32) | (sizeof(A) == 8 ? 0 : 64); \
    emulated().multiply(&emulated(), acc, n * 2, first_operand(a), b, form, line);          \
  }
MULTIPLY_IN_CHAIN(multiply_bf16, 4) MULTIPLY_IN_CHAIN(multiply_f16, 0)

template <class T> UNHOOKED static T atomicCAS(T* p, T expected, T next) {
  note_access(p, sizeof(T), 1, __builtin_return_address(0));
  __atomic_compare_exchange_n(p, &expected, next, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return expected;
}

struct f16 { u16 bits; };
struct bf16 { u16 bits; };
struct f8e4m3 { u8 bits; };
struct f8e5m2 { u8 bits; };
struct alignas(16) u128 { u32 x, y, z, w; };

// IEEE 754 binary16 as in tiny/ir/dtype.cpp.
INLINE f32 f16_to_f32(f16 x) {
  const u32 magnitude = x.bits & 0x7fffu;
  u32 bits = (magnitude << 13) + (magnitude >= 0x7c00u ? 0x70000000u : 0x38000000u);
  f32 y = (f32)magnitude * 0x1p-24f;
  if (magnitude < 0x400u) __builtin_memcpy(&bits, &y, 4);
  bits |= (u32)(x.bits & 0x8000u) << 16;
  __builtin_memcpy(&y, &bits, 4);
  return y;
}
INLINE f32 number(f16 x) { return f16_to_f32(x); }
INLINE f32 number(bf16 x) {
  const u32 bits = (u32)x.bits << 16;
  f32 y;
  __builtin_memcpy(&y, &bits, 4);
  return y;
}
INLINE void mma_m16n8k16_f16(f32* d, const u32* a, const u32* b, int line = __builtin_LINE()) {
  mma_m16n8<2>(d, a, b, [](u32 word, int e, bool) { return number(f16{(u16)(word >> 16 * e)}); },
               line);
}
INLINE void mma_m16n8k16_bf16(f32* d, const u32* a, const u32* b, int line = __builtin_LINE()) {
  mma_m16n8<2>(d, a, b, [](u32 word, int e, bool) { return number(bf16{(u16)(word >> 16 * e)}); },
               line);
}
INLINE void mma_m16n8k32_i8(i32* d, const u32* a, const u32* b, int line = __builtin_LINE()) {
  mma_m16n8<4>(d, a, b, [](u32 word, int e, bool) { return (i32)(i8)(word >> 8 * e); }, line);
}
// e4m3 is a half with fewer digits and an exponent that is 8 less, e5m2 the first byte of a half.
INLINE f32 e4m3_to_f32(u32 bits, u32 nan) {
  const u32 half = bits == nan || bits == (nan | 0x80u) ? 0x7fffu : (bits & 0x7fu) << 7;
  return 256 * f16_to_f32(f16{(u16)(half | (bits & 0x80u) << 8)});
}
INLINE f32 number(f8e4m3 x) { return e4m3_to_f32(x.bits, 0x7f); }
INLINE f32 number(f8e5m2 x) { return f16_to_f32(f16{(u16)(x.bits << 8)}); }
#define MMA_F8(name, A, B)                                                                        \
  INLINE void mma_m16n8k32_##name(f32* d, const u32* a, const u32* b, int l = __builtin_LINE()) { \
    mma_m16n8<4>(d, a, b, [](u32 word, int e, bool is_b) {                                        \
      return is_b ? number(B{(u8)(word >> 8 * e)}) : number(A{(u8)(word >> 8 * e)});              \
    }, l);                                                                                        \
  }
MMA_F8(e4m3, f8e4m3, f8e4m3) MMA_F8(e4m3_e5m2, f8e4m3, f8e5m2)
MMA_F8(e5m2, f8e5m2, f8e5m2) MMA_F8(e5m2_e4m3, f8e5m2, f8e4m3)
INLINE f32 least_normal(f16) { return 0x1p-14f; }
INLINE f32 least_normal(bf16) { return 0x1p-126f; }
// CDNA 3's 8-bit floats, FNUZ: the exponent is one less, and the code of -0 is the only NaN.
struct f8e4m3_fnuz { u8 bits; };
INLINE f32 number(f8e4m3_fnuz x) { return e4m3_to_f32(x.bits, 0x80) / 2; }
TINY_MATRIX(mfma_f32_16x16x16_f16, f32, f16, mfma_16x16<16>)
TINY_MATRIX(mfma_f32_16x16x16_bf16, f32, bf16, mfma_16x16<16>)
TINY_MATRIX(wmma_f32_16x16x16_f16, f32, f16, wmma_16x16)
TINY_MATRIX(wmma_f32_16x16x16_bf16, f32, bf16, wmma_16x16)
TINY_MATRIX(wmma_f32_16x16x16_f16_gfx12, f32, f16, wmma12_16x16)
TINY_MATRIX(wmma_f32_16x16x16_bf16_gfx12, f32, bf16, wmma12_16x16)
TINY_MATRIX(wmma_f32_16x16x16_fp8_fp8_gfx12, f32, f8e4m3, wmma12_16x16)
TINY_MATRIX(wmma_f32_16x16x16_bf8_bf8_gfx12, f32, f8e5m2, wmma12_16x16)
INLINE void mfma_f32_16x16x32_fp8_fp8(f32* d, const u32* a, const u32* b,
                                      int line = __builtin_LINE()) {
  f8e4m3_fnuz x[8], y[8];
  __builtin_memcpy(x, a, 8), __builtin_memcpy(y, b, 8);
  mfma_16x16<32>(d, x, y, line);
}
INLINE f16 f32_to_f16(f32 x) {
  u32 bits;
  __builtin_memcpy(&bits, &x, 4);
  const u32 magnitude = bits & 0x7fffffffu, sign = bits >> 16 & 0x8000u;
  const f32 sum = __builtin_fabsf(x) + 0.5f;
  __builtin_memcpy(&bits, &sum, 4);
  const u32 rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
  const u32 y = magnitude > 0x7f800000u    ? 0x7fffu
                : magnitude >= 0x477ff000u ? 0x7c00u
                : magnitude < 0x38800000u  ? bits - 0x3f000000u
                                           : (rounded - 0x38000000u) >> 13;
  return {(u16)(sign | y)};
}

extern "C" {
float sqrtf(float), floorf(float), truncf(float), exp2f(float), expf(float), log2f(float);
float fabsf(float), fmaf(float, float, float);
double sqrt(double), floor(double), trunc(double), exp2(double), exp(double), log2(double);
double fabs(double), fma(double, double, double);
}

// Conversions that round toward zero and saturate.
template <class To, class From> INLINE To saturated(From x, From above, To lowest, To highest) {
  return x != x ? 0 : x >= above ? highest : x <= (From)lowest ? lowest : (To)x;
}
#define TINY_SATURATED(name, To, From, above, lowest, highest) \
  INLINE To name(From x) { return saturated<To, From>(x, above, lowest, highest); }
TINY_SATURATED(__float2int_rz, i32, f32, 0x1p31f, -2147483647 - 1, 2147483647)
TINY_SATURATED(__double2int_rz, i32, f64, 0x1p31, -2147483647 - 1, 2147483647)
TINY_SATURATED(__float2uint_rz, u32, f32, 0x1p32f, 0u, ~0u)
TINY_SATURATED(__double2uint_rz, u32, f64, 0x1p32, 0u, ~0u)
TINY_SATURATED(__float2ll_rz, i64, f32, 0x1p63f, -0x7fffffffffffffffll - 1, 0x7fffffffffffffffll)
TINY_SATURATED(__double2ll_rz, i64, f64, 0x1p63, -0x7fffffffffffffffll - 1, 0x7fffffffffffffffll)
TINY_SATURATED(__float2ull_rz, u64, f32, 0x1p64f, 0ull, ~0ull)
TINY_SATURATED(__double2ull_rz, u64, f64, 0x1p64, 0ull, ~0ull)

// Called by the compiler's alignment checks, which pass where in the source and the logarithm of
// the alignment.
struct Misalignment {
  const char* file;
  unsigned line, column;
  const void* type;
  unsigned char log_alignment, kind;
};
extern "C" __attribute__((visibility("hidden"))) void __ubsan_handle_type_mismatch_v1_abort(
    Misalignment* where, const void* address) {
  emulated().misaligned(&emulated(), address, 1ll << where->log_alignment, where->line);
}
)TEXT";

// What follows the kernel: its call with arguments from an array.
inline constexpr const char* kEmulatorEpilogue = R"TEXT(
template <class P> struct Argument {
  static P of(void* a) { return (P)a; }
};
template <> struct Argument<const TensorMap&> {
  static const TensorMap& of(void* a) { return *(const TensorMap*)a; }
};
template <int... i> struct Indices {};
template <int n, int... i> struct Count { typedef typename Count<n - 1, n - 1, i...>::type type; };
template <int... i> struct Count<0, i...> { typedef Indices<i...> type; };
template <class... P, int... i>
UNHOOKED static void tiny_call(void (*f)(P...), void** args, Indices<i...>) {
  f(Argument<P>::of(args[i])...);
}
template <class... P> static void tiny_call(void (*f)(P...), void** args) {
  tiny_call(f, args, typename Count<sizeof...(P)>::type());
}
)TEXT";

}  // namespace tiny
