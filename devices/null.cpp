#include "devices/null.h"

#include <cstdlib>
#include <cstring>

#include "tiny/base/error.h"

namespace tiny {

NullDevice::NullDevice() {
  target_.language = Target::Language::LlvmIr;
  target_.vector_bytes = 64;
  target_.vector_registers = 32;
}

void* NullDevice::alloc(size_t bytes) {
  void* p = std::calloc(bytes ? bytes : 1, 1);
  if (!p) throw DeviceError(cat("NULL: out of memory: cannot allocate ", bytes, " bytes"));
  return p;
}

void NullDevice::free(void* ptr, size_t) { std::free(ptr); }
void NullDevice::upload(void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); }
void NullDevice::download(void* to, const void* from, size_t bytes) {
  std::memcpy(to, from, bytes);
}
void NullDevice::copy(void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); }

std::unique_ptr<Program> NullDevice::load(const std::string&, const std::string&) {
  return std::make_unique<Program>();
}

}  // namespace tiny
