#include "devices/webgpu/webgpu.h"

#include <cstring>

#include "devices/webgpu/browser.h"
#include "tiny/base/error.h"

namespace tiny {

namespace {

using Command = Browser::Command;

struct WebGpuProgram : Program {
  WebGpuProgram(std::shared_ptr<Browser> opened, uint32_t given)
      : browser(std::move(opened)), number(given) {}
  ~WebGpuProgram() override {
    try {
      browser->send(Command::Unload, {number});
    } catch (const DeviceError&) {  // the browser has ended
    }
  }
  std::shared_ptr<Browser> browser;
  const uint32_t number;
};

}  // namespace

WebGpuDevice::WebGpuDevice() : target_(webgpu_target()), browser_(std::make_shared<Browser>()) {}
WebGpuDevice::~WebGpuDevice() = default;

WebGpuDevice::Place WebGpuDevice::place_of(const void* address) const {
  const auto at = reinterpret_cast<uintptr_t>(address);
  auto next = buffers_.upper_bound(at);
  expect(next != buffers_.begin(), "WEBGPU: an address of no buffer");
  const auto& [begin, buffer] = *--next;
  expect(at - begin <= buffer.second, "WEBGPU: an address beyond a buffer");
  return {buffer.first, static_cast<uint32_t>(at - begin)};
}

// Words of 4 bytes, of which a kernel may change a part.
void* WebGpuDevice::alloc(size_t bytes) {
  constexpr size_t kLargest = size_t{4} << 30, kStep = 256;
  if (bytes >= kLargest - 4)
    throw DeviceError(cat("WEBGPU: out of memory: cannot allocate ", bytes, " bytes"));
  const std::lock_guard lock(mutex_);
  const size_t size = (bytes + 3) / 4 * 4;
  const uint32_t number = next_number_++;
  browser_->send(Command::Alloc, {number, static_cast<uint32_t>(size)});
  const uintptr_t address = next_address_;
  next_address_ += (size / kStep + 2) * kStep;
  buffers_[address] = {number, size};
  return reinterpret_cast<void*>(address);
}

void WebGpuDevice::free(void* ptr, size_t) {
  const std::lock_guard lock(mutex_);
  browser_->send(Command::Free, {place_of(ptr).buffer});
  buffers_.erase(reinterpret_cast<uintptr_t>(ptr));
}

std::string WebGpuDevice::read(const Place& from, size_t bytes) {
  return browser_->ask(Command::Read, {from.buffer, from.offset, static_cast<uint32_t>(bytes)});
}

// Whole words are written: those at the ends are read first where a part of them stays.
void WebGpuDevice::upload(void* to, const void* from, size_t bytes) {
  if (!bytes) return;
  const std::lock_guard lock(mutex_);
  Place place = place_of(to);
  const uint32_t before = place.offset % 4;
  const size_t size = (before + bytes + 3) / 4 * 4;
  place.offset -= before;
  if (size == bytes)
    return browser_->send(Command::Upload, {place.buffer, place.offset},
                          {static_cast<const char*>(from), bytes});
  std::string words = read(place, size);
  std::memcpy(words.data() + before, from, bytes);
  browser_->send(Command::Upload, {place.buffer, place.offset}, words);
}

void WebGpuDevice::download(void* to, const void* from, size_t bytes) {
  if (!bytes) return;
  const std::lock_guard lock(mutex_);
  Place place = place_of(from);
  const uint32_t before = place.offset % 4;
  place.offset -= before;
  const std::string words = read(place, (before + bytes + 3) / 4 * 4);
  std::memcpy(to, words.data() + before, bytes);
}

void WebGpuDevice::copy(void* to, const void* from, size_t bytes) {
  if (!bytes || to == from) return;
  {
    const std::lock_guard lock(mutex_);
    const Place a = place_of(to), b = place_of(from);
    if (a.offset % 4 == 0 && b.offset % 4 == 0 && bytes % 4 == 0 && a.buffer != b.buffer)
      return browser_->send(Command::Copy,
                            {a.buffer, a.offset, b.buffer, b.offset, static_cast<uint32_t>(bytes)});
  }
  std::string host(bytes, 0);
  download(host.data(), from, bytes);
  upload(to, host.data(), bytes);
}

std::string WebGpuDevice::compile(const Source& source) {
  expect(source.language == Source::Language::Wgsl, "WEBGPU: kernel ", source.entry,
         " is not WGSL");
  return source.text;
}

std::unique_ptr<Program> WebGpuDevice::load(const std::string& binary, const std::string&) {
  const std::lock_guard lock(mutex_);
  const uint32_t number = next_number_++;
  browser_->send(Command::Load, {number}, binary);
  return std::make_unique<WebGpuProgram>(browser_, number);
}

void WebGpuDevice::launch(Program& program, const LaunchSize& size,
                          const std::vector<void*>& args) {
  const std::lock_guard lock(mutex_);
  std::vector<uint32_t> words{static_cast<WebGpuProgram&>(program).number};
  for (int64_t n : dispatch_size(size, target_).groups) words.push_back(static_cast<uint32_t>(n));
  for (size_t slot = 0; slot < args.size(); ++slot) {
    const Place p = args[slot] ? place_of(args[slot]) : Place();
    words.insert(words.end(), {static_cast<uint32_t>(slot), p.buffer, p.offset});
  }
  browser_->send(Command::Launch, words.data(), words.size());
}

void WebGpuDevice::synchronize() {
  if (browser_->is_open()) browser_->ask(Command::Synchronize, {});
}

std::string missing_for_webgpu() {
  static const std::string why = [] {
    try {
      Browser().adapter();
      return std::string();
    } catch (const DeviceError& e) {
      return std::string(e.what());
    }
  }();
  return why;
}

}  // namespace tiny
