// A device that compiles and runs nothing: schedules and code generation run anywhere with it, and
// the cost of everything but the kernels can be measured. Its memory is real but never computed.
#pragma once
#include "runtime/device/device.h"

namespace tiny {

class NullDevice : public Device {
 public:
  NullDevice();
  const Target& target() const override { return target_; }
  void* alloc(size_t bytes) override;
  void free(void* ptr, size_t bytes) override;
  void upload(void* to, const void* from_host, size_t bytes) override;
  void download(void* to_host, const void* from, size_t bytes) override;
  void copy(void* to, const void* from, size_t bytes) override;
  std::string compiler_id() const override { return "null"; }
  std::string compile(const Source& source) override { return source.text; }
  std::unique_ptr<Program> load(const std::string& binary, const std::string& entry) override;
  void launch(Program&, const LaunchSize&, const std::vector<void*>&) override {}
  void synchronize() override {}

 private:
  Target target_;
};

}  // namespace tiny
