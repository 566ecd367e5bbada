// hiprtc of the stand-in.
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "test/fake/machine.h"

using namespace tiny::test;

extern "C" {

struct Program {
  std::string text, log, code;
};

const char* hiprtcGetErrorString(int status) {
  return status == 6 ? "HIPRTC_ERROR_COMPILATION" : "HIPRTC_ERROR";
}
int hiprtcCreateProgram(Program** program, const char* text, const char*, int, const char* const*,
                        const char* const*) {
  *program = new Program{text, {}, {}};
  return 0;
}
int hiprtcDestroyProgram(Program** program) {
  delete *program;
  *program = nullptr;
  return 0;
}
int hiprtcCompileProgram(Program* program, int count, const char* const* options) {
  std::lock_guard lock(mutex);
  std::string arch;
  for (int i = 0; i < count; ++i)
    if (std::string(options[i]).starts_with("--offload-arch=")) arch = options[i] + 15;
  fake.calls.push_back("hiprtcCompileProgram " + arch);
  const std::string known = fake.arch.substr(0, fake.arch.find(':'));
  if (arch != known) std::abort();  // as 5.2 does
  const std::string binary = fake.compile ? fake.compile(program->text, arch, program->log) : "";
  if (binary.empty()) return 6;
  // A kernel's parameters: the commas between its parentheses.
  const size_t kernel = program->text.find("KERNEL(", program->text.find("extern \"C\""));
  const size_t open = program->text.find('(', program->text.find(") ", kernel));
  const size_t close = program->text.find(')', open);
  CodeHeader header{{}, binary.size(), 1};
  std::memcpy(header.magic, CodeHeader::kMagic, 8);
  for (size_t i = open; i < close; ++i) header.arguments += program->text[i] == ',';
  program->code.assign(reinterpret_cast<const char*>(&header), sizeof header);
  program->code += binary;
  return 0;
}
int hiprtcGetProgramLogSize(Program* program, size_t* size) {
  *size = program->log.size() + 1;
  return 0;
}
int hiprtcGetProgramLog(Program* program, char* log) {
  std::memcpy(log, program->log.c_str(), program->log.size() + 1);
  return 0;
}
int hiprtcGetCodeSize(Program* program, size_t* size) {
  *size = program->code.size();
  return 0;
}
int hiprtcGetCode(Program* program, char* code) {
  std::memcpy(code, program->code.data(), program->code.size());
  return 0;
}

}  // extern "C"
