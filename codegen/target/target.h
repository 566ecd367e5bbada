// Hardware limits and capabilities that code generation depends on, as plain data.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "codegen/target/source.h"

namespace tiny {

struct Target {
  enum class Kind { Cpu, Gpu } kind = Kind::Cpu;
  enum class Language { LlvmIr, C, Cuda, Hip, Wgsl } language = Language::C;

  int vector_bytes = 16;      // width of a vector register
  int vector_registers = 16;  // how many of them
  int cores = 1;              // parallel workers (CPU) or multiprocessors (GPU)
  int64_t l1_bytes = 32 << 10, l2_bytes = 1 << 20;
  bool has_f16 = false, has_bf16 = false;  // conversions in hardware; of bf16 on GPUs alone

  // As the compiler names it: "sm_90a", "gfx942". Of a CPU the features that multiply matrices:
  // "amx-bf16 avx512bf16".
  std::string arch;
  bool emulates = false;  // CPU: instructions of those features are plain code, to test them

  // GPUs.
  int warp = 32;                    // threads that run in step
  int most_threads = 1024;          // of a block
  int64_t shared_bytes = 48 << 10;  // most that a block can have
  bool has_wgmma = false;           // matrix units as in codegen/wgmma/tile.h
  bool has_f8_mma = false;          // mma.sync (codegen/options/mma.h) multiplies 8-bit floats

  // Elements of a sum for each of the threads that share it, at the least: more where these meet in
  // shared memory than where they exchange registers.
  int least_of_thread = 1;

  int most_buffers = 1 << 10;             // of a kernel
  int64_t most_buffer_bytes = INT64_MAX;  // that it can see of one
  int64_t most_blocks = INT32_MAX;        // of a dimension of the grid, x; 65535 in y and z
};

// Whether vectors are loaded with some of their lanes off at no price: a CPU's from AVX2 on, in the
// language that says so.
bool loads_with_masks(const Target& target);

// Specifications of a GPU that kernels are compiled for where there is none: to compile and execute
// them in tests, and to tune them. A device of this machine reports its own.
struct GpuRow {
  const char* arch;
  const char* model;  // whose numbers these are
  Target::Language language;
  int warp, most_threads, cores;
  int shared_kb, l2_mb;
  int registers;             // of 32 bits, the most that a thread can have
  const char* matrix_units;  // their instructions
  bool has_fp8;              // in the matrix units
};
std::span<const GpuRow> gpu_table();

// The target of a row; throws Error for an architecture that has none, with those that have.
Target gpu_target(std::string_view arch);

// What every device of WebGPU has (the specification's default limits), whatever chip is below it.
Target webgpu_target();

// The workgroups of a dispatch for a launch. Where a dimension is larger than target.most_blocks
// they are `linear`: workgroup x + y * most_blocks of the dispatch is block number so many, x of
// the grid fastest; those beyond the grid do nothing.
struct Dispatch {
  int64_t groups[3] = {1, 1, 1};
  bool linear = false;
};
Dispatch dispatch_size(const LaunchSize& size, const Target& target);

}  // namespace tiny
