// What the emulator puts in front of a GPU kernel's text so that a C++17 compiler takes it: the
// primitives of the dialect (thread numbers, barrier, exchange between lanes, shared memory,
// atomics, 16-bit floats), and what they share with the device.
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
      int lane, lanes;         // its place in its warp, and how many the warp has
      char* slots;             // a slot of 16 bytes per lane of the warp, for this exchange
      char* shared;            // the block's shared memory
      long long shared_ready;  // how much of it was filled with the poison
      // Returns when all threads of the warp, or for a barrier of the block, wait at `line` for the
      // same `what`: 0 a barrier, else an exchange between lanes.
      void (*wait)(Emulated*, int what, int line);
      // Ends the kernel with an error; does not return.
      void (*fail)(Emulated*, const char* message, int line);
      // Gives an array of `bytes` its place in shared memory, for good.
      long long (*place)(Emulated*, long long* place, long long bytes, int line);
      // The same for an access that is not aligned.
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

extern "C" __attribute__((visibility("default"))) Emulated* (*tiny_emulated)() = 0;
// The same during all of a kernel's run in a thread, so that one call is enough.
__attribute__((const, noinline)) static Emulated& emulated() { return *tiny_emulated(); }

#define DEVICE static inline
#define RESTRICT __restrict
#define KERNEL(most_threads)                                                             \
  extern "C" __attribute__((visibility("default"))) const int tiny_threads = most_threads; \
  extern "C" __attribute__((visibility("default"))) void

DEVICE int block_x() { return emulated().block[0]; }
DEVICE int block_y() { return emulated().block[1]; }
DEVICE int block_z() { return emulated().block[2]; }
DEVICE int thread_x() { return emulated().thread[0]; }
DEVICE int thread_y() { return emulated().thread[1]; }
DEVICE int thread_z() { return emulated().thread[2]; }

DEVICE void barrier(int line = __builtin_LINE()) { emulated().wait(&emulated(), 0, line); }

// Value of lane `other`: each lane leaves its own in a slot, waits, and reads. The next exchange
// has other slots, since a lane may get there before this one has read.
template <class T> DEVICE T exchange(T x, int other, int what, int line) {
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
template <class T> DEVICE T shuffle_xor(T x, int mask, int line = __builtin_LINE()) {
  return exchange(x, emulated().lane ^ mask, mask << 8, line);
}

// Shared memory: the place of an array is found by the first thread that gets there.
DEVICE char* shared_array(long long* place, long long bytes, int line) {
  Emulated& e = emulated();
  long long at = __atomic_load_n(place, __ATOMIC_RELAXED);
  if (at < 0 || at + bytes > e.shared_ready) at = e.place(&e, place, bytes, line);
  return e.shared + at;
}
#define SHARED(type, name, count)          \
  static long long name##_place = -1;      \
  type* const name = (type*)shared_array(&name##_place, sizeof(type) * (count), __LINE__)

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
extern "C" __attribute__((visibility("hidden"))) void __ubsan_handle_type_mismatch_v1(
    Misalignment* where, const void* address) {
  __ubsan_handle_type_mismatch_v1_abort(where, address);
}

template <int bytes> struct bits_of;
template <> struct bits_of<1> { typedef u8 type; };
template <> struct bits_of<2> { typedef u16 type; };
template <> struct bits_of<4> { typedef u32 type; };
template <> struct bits_of<8> { typedef u64 type; };

template <class T, class F> DEVICE T atomic_update(T* p, F f) {
  typedef typename bits_of<sizeof(T)>::type Bits;
  Bits old = __atomic_load_n((Bits*)p, __ATOMIC_RELAXED), next;
  T before;
  do {
    __builtin_memcpy(&before, &old, sizeof(T));
    const T after = f(before);
    __builtin_memcpy(&next, &after, sizeof(T));
  } while (!__atomic_compare_exchange_n((Bits*)p, &old, next, true, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED));
  return before;
}
template <class T> DEVICE T atomic_add(T* p, T v) {
  return atomic_update(p, [=](T a) { return (T)(a + v); });
}
template <class T> DEVICE T atomic_mul(T* p, T v) {
  return atomic_update(p, [=](T a) { return (T)(a * v); });
}
template <class T> DEVICE T atomic_max(T* p, T v) {
  return atomic_update(p, [=](T a) { return a > v || a != a ? a : v; });
}
template <class T> DEVICE T atomic_min(T* p, T v) {
  return atomic_update(p, [=](T a) { return a < v || a != a ? a : v; });
}
template <class T> DEVICE T atomic_and(T* p, T v) {
  return atomic_update(p, [=](T a) { return (T)(a & v); });
}
template <class T> DEVICE T atomic_or(T* p, T v) {
  return atomic_update(p, [=](T a) { return (T)(a | v); });
}
template <class T> DEVICE T atomic_xor(T* p, T v) {
  return atomic_update(p, [=](T a) { return (T)(a ^ v); });
}

#define TINY_GROUP(name, expression)                                              \
  template <int width, class T> DEVICE T group_##name(T a, T* shared) {           \
    for (int mask = 1; mask < (width < WARP ? width : WARP); mask *= 2) {         \
      const T b = shuffle_xor(a, mask);                                           \
      a = expression;                                                             \
    }                                                                             \
    if (width <= WARP) return a;                                                  \
    const int warps = width / WARP, warp = thread_x() / WARP;                     \
    barrier();                                                                    \
    if (thread_x() % WARP == 0) shared[warp] = a;                                 \
    barrier();                                                                    \
    a = shared[0];                                                                \
    for (int w = 1; w < warps; ++w) {                                             \
      const T b = shared[w];                                                      \
      a = expression;                                                             \
    }                                                                             \
    return a;                                                                     \
  }
TINY_GROUP(add, a + b)
TINY_GROUP(max, a > b ? a : b)
)TEXT";

// What follows the kernel: its call with arguments from an array.
inline constexpr const char* kEmulatorEpilogue = R"TEXT(
template <int... i> struct Indices {};
template <int n, int... i> struct Count { typedef typename Count<n - 1, n - 1, i...>::type type; };
template <int... i> struct Count<0, i...> { typedef Indices<i...> type; };
template <class... P, int... i> static void tiny_call(void (*f)(P...), void** args, Indices<i...>) {
  f((P)args[i]...);
}
template <class... P> static void tiny_call(void (*f)(P...), void** args) {
  tiny_call(f, args, typename Count<sizeof...(P)>::type());
}
)TEXT";

}  // namespace tiny
