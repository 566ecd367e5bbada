// Preludes of CUDA and HIP kernels: text in front of each kernel. First names for everything that
// is not C++17, between `#ifndef TINY_PRELUDE` and `#endif`: another prelude that defines these
// (the emulator's, devices/emulator/prelude.h) makes a program for another machine of the same
// text. Then helpers on top of those names. No header is included: none of CUDA's or ROCm's is
// needed.
//
//   f32 f64 i8 i16 i32 i64 u8 u16 u32 u64, f16 and bf16 (structs of a u16 `bits`),
//   f8e4m3 and f8e5m2 (of a u8)
//   KERNEL(threads) RESTRICT          between `extern "C"` and the kernel's name; after a `*`
//   TILE_KERNEL(threads)              CUDA: KERNEL of a product without matrix units, to which more
//                                     registers are worth more than more blocks at a time
//   wait_for_earlier()                CUDA: before a kernel touches memory (LaunchSize::waits)
//   block_x() .. block_z(), thread_x() .. thread_z(): int
//   vec<T, N>                         an aggregate `T v[N]` with [], aligned to the power of two in
//                                     its size, at most 16; vec<bool, N> has bools
//   + - * / % & | ^ << >> - and comparisons of vectors; + - * << of integers wrap
//   splat<V>(x) convert<V>(v) where(mask, a, b) shuffle<lanes...>(a, b)     of vectors
//   bitcast<T>(x)                     scalars, or vectors of as many lanes
//   saturate<T>(x)                    float to integer: nearest end of the range, NaN gives 0
//   f16_to_f32 f32_to_f16 bf16_to_f32 f32_to_bf16                           nearest even
//   max_of(a, b) min_of(a, b)         NaN if either is (integers: of vectors alone)
//   sqrt_of floor_of trunc_of exp2_of log2_of sin_of                        f32 and f64
//   load<V, bytes>(p) store<bytes>(p, v)    a vector at an address that `bytes` divides
//   SHARED(type, name, count)         declares an array in shared memory
//   DYNAMIC_SHARED(name)              bytes of it, as many as the launch asks for, 16-byte aligned
//   Copies                            a thread's copies from memory to shared memory, which may be
//       under way: start<bytes>(to, from, on) with 4, 8 or 16 bytes, zeros where `on` is false;
//       commit() ends a group; wait<n>() until all but the last n groups are done, wait<0>() all
//   barrier() shuffle_xor(x, mask)
//   load_matrices<V, transposed>(p)   CUDA: a thread's words of matrices in shared memory, of which
//       it names a row of 16 bytes (codegen/options/load_matrix.h)
//   load_once(p)                      CUDA: a vector of 16 bytes that nothing reads again
//   group_add<width>(x, shared), also mul max min and or xor: of `width` threads with consecutive
//       numbers, a power of two up to a warp or whole warps. `shared` has an element for each warp
//       of the block. All threads of the block take part.
//   atomic_add(p, x), also mul max min and or xor: any scalar type; gives nothing
// The functions from sqrt_of to f32_to_bf16, max_of and min_of take scalars and vectors.
#pragma once
#include <span>
#include <string>
#include <string_view>

#include "codegen/render/c/dialect.h"

namespace tiny {

// The tables of helpers in the files of codegen/render/c/prelude: cuda.cuh, hip.hip, those of
// gpu.cuh, wgmma.cuh.
enum class PreludeTable { Cuda, Hip, Numbers, SmallFloats, NativeAtomics, Helpers, Wgmma };
std::span<const Helper> prelude_table(PreludeTable table);
std::string prelude_text(PreludeTable table, std::string_view name);  // Bug where there is none

// The parts that the kernel uses.
std::string cuda_prelude(const PreludeUse& use);
std::string hip_prelude(const PreludeUse& use);

// The same made of one language's primitives: all up to SHARED in the list above, conversions of
// f16, barrier, shuffle_xor, and for atomics `least_atomic` (bytes), atomicCAS and what it has of
// atomicAdd, Max, Min, And, Or, Xor.
std::string gpu_prelude(std::span<const Helper> primitives, const PreludeUse& use);

}  // namespace tiny
