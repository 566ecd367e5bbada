// WebGPU in a browser, for tests: kernels are printed as WGSL and run by a headless Chromium, which
// a child process (node) opens at first use. Nothing is opened for what only prints or exports
// kernels.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "runtime/device/device.h"

namespace tiny {

class Browser;  // devices/webgpu/browser.h

class WebGpuDevice : public Device {
 public:
  WebGpuDevice();
  ~WebGpuDevice() override;

  const Target& target() const override { return target_; }
  void* alloc(size_t bytes) override;
  void free(void* ptr, size_t bytes) override;
  void upload(void* to, const void* from_host, size_t bytes) override;
  void download(void* to_host, const void* from, size_t bytes) override;
  void copy(void* to, const void* from, size_t bytes) override;
  std::string compiler_id() const override { return "wgsl"; }
  std::string compile(const Source& source) override;
  std::unique_ptr<Program> load(const std::string& binary, const std::string& entry) override;
  void launch(Program& program, const LaunchSize& size, const std::vector<void*>& args) override;
  void synchronize() override;

 private:
  struct Place {                      // of an address
    uint32_t buffer = 0, offset = 0;  // bytes
  };
  Place place_of(const void* address) const;
  std::string read(const Place& from, size_t bytes);

  Target target_;
  std::shared_ptr<Browser> browser_;
  std::mutex mutex_;
  // By address. Memory is not addressable: each buffer has a range of numbers of its own.
  std::map<uintptr_t, std::pair<uint32_t, size_t>> buffers_;
  uintptr_t next_address_ = 1 << 20;
  uint32_t next_number_ = 1;
};

// Why no browser with WebGPU can be opened here, empty where one can: what a test says before it
// passes. Looks once.
std::string missing_for_webgpu();

}  // namespace tiny
