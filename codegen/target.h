// What code generation must know of the hardware: limits and capabilities as plain data.
#pragma once
#include <cstdint>

namespace tiny {

struct Target {
  enum class Kind { Cpu, Gpu } kind = Kind::Cpu;
  enum class Language { LlvmIr, C, Cuda, Hip } language = Language::C;

  int vector_bytes = 16;      // width of a vector register
  int vector_registers = 16;  // how many of them
  int cores = 1;              // parallel workers (CPU) or multiprocessors (GPU)
  int64_t l1_bytes = 32 << 10, l2_bytes = 1 << 20;
  bool has_f16 = false, has_bf16 = false;  // arithmetic or conversions in hardware
};

}  // namespace tiny
