// What code generation must know of the hardware: limits and capabilities as plain data.
#pragma once
#include <cstdint>
#include <string>

namespace tiny {

struct Target {
  enum class Kind { Cpu, Gpu } kind = Kind::Cpu;
  enum class Language { LlvmIr, C, Cuda, Hip } language = Language::C;

  int vector_bytes = 16;      // width of a vector register
  int vector_registers = 16;  // how many of them
  int cores = 1;              // parallel workers (CPU) or multiprocessors (GPU)
  int64_t l1_bytes = 32 << 10, l2_bytes = 1 << 20;
  bool has_f16 = false, has_bf16 = false;  // arithmetic or conversions in hardware

  // GPUs. `arch` as the compiler names it: "sm_90a", "gfx942".
  std::string arch;
  int warp = 32;                    // threads that run in step
  int most_threads = 1024;          // of a block
  int64_t shared_bytes = 48 << 10;  // most that a block can have
  bool has_wgmma = false;           // matrix units as in codegen/matrix.h
};

}  // namespace tiny
