// The plan of a saved program as plain data, and as JSON: what plan.json holds.
#pragma once
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "codegen/target/source.h"
#include "codegen/target/target.h"
#include "tiny/program/program.h"

namespace tiny {

// The number of elements of an axis, made of Variables: a number, an input that is one, or an
// operation of two such.
struct PlanLength {
  std::string op;  // "number", "input", "Add", "Sub", "Mul", "Max", "Min"
  int64_t number = 0;
  int input = -1;
  std::vector<PlanLength> of = {};
};

struct PlanBuffer {
  // Zero: state that begins as zeros, like caches, which no file has.
  enum class Kind { Arena, Input, Output, Weight, Own, Zero } kind = Kind::Own;
  int port = -1;       // of an input, of an output
  std::string weight;  // its name in weights.safetensors
  int64_t bytes = 0;
};

struct PlanOutput {
  ProgramPort port;
  int buffer = -1;
  std::vector<std::pair<int, PlanLength>> lengths = {};  // by axis
};

struct PlanKernel {
  std::string entry, code, file;  // WGSL as text, else the file that has the code
  LaunchSize size;
  Dispatch dispatch;  // of WebGPU
};

// Launches a kernel on parts of buffers in slot order, or, without one, copies the second to the
// first.
struct PlanStep {
  int kernel = -1;
  struct Part {
    int buffer;
    int64_t offset;
  };
  std::vector<Part> parts = {};
  int64_t bytes = 0;  // of a copy
  bool once = false;  // when the program is loaded: it depends on weights alone
};

struct Plan {
  std::string device, language, arch;
  int vector_bytes = 0;  // of a CPU
  std::vector<ProgramPort> inputs;
  std::vector<PlanOutput> outputs;
  std::vector<PlanBuffer> buffers;
  std::vector<PlanKernel> kernels;
  std::vector<PlanStep> steps;
};

std::string to_json(const Plan& plan);
// Throws Error, which names the file, for any other text.
Plan plan_of_json(const std::string& text, const std::string& path);

}  // namespace tiny
