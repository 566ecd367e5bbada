#include "devices/emulator/emulator.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "devices/compilers/system_compiler.h"
#include "devices/cpu/cpu.h"
#include "devices/emulator/grid.h"
#include "devices/emulator/llvm.h"
#include "devices/emulator/matrix_units.h"
#include "devices/emulator/prelude.h"
#include "tiny/base/env.h"
#include "tiny/base/error.h"
#include "tiny/ir/sizes.h"

namespace tiny {
namespace {

// Beside each buffer: bytes that no kernel may write.
constexpr size_t kAlignment = 256, kMargin = 4096;
constexpr char kMarginByte = '\xC5', kFreshByte = '\xFF';  // the latter NaN in every float

// Arithmetic as the GPU's compiler does it: products are fused with sums where the text says so,
// NaN is NaN.
const SystemCompiler& cxx_compiler() {
  static const auto& compiler =
      *new SystemCompiler{"C++",
                          "CXX",
                          {"g++", "clang++", "c++"},
                          ".cpp",
                          {"-std=c++17",
#if defined(__x86_64__)
                           "-march=native",
#elif defined(__aarch64__)
                           "-mcpu=native",
#endif
                           "-O1",
                           "-fPIC",
                           "-shared",
                           "-nostdlib",
                           "-fvisibility=hidden",
                           "-fno-exceptions",
                           "-fno-rtti",
                           "-fno-asynchronous-unwind-tables",
                           "-fno-threadsafe-statics",
                           "-g1",
                           "-fsanitize=alignment,thread",
                           "-fno-sanitize-recover=alignment",
                           "-fno-math-errno",
                           "-fno-trapping-math",
                           "-ffp-contract=off",
                           "-fwrapv",
                           "-fno-strict-aliasing",
                           "-w"},
                          "install one (apt install g++) or set CXX to one"};
  return compiler;
}

int choose_threads() {
  const int64_t wanted = env_int("THREADS");
  return static_cast<int>(wanted > 0 ? wanted : std::max(1u, std::thread::hardware_concurrency()));
}

size_t padded(size_t bytes) { return round_up(bytes, kAlignment); }

// The first byte of these that is not as alloc left it, -1 if there is none; mends them.
ptrdiff_t find_damage(char* begin, size_t bytes) {
  static const auto& whole = *new std::string(kMargin + kAlignment, kMarginByte);
  if (std::memcmp(begin, whole.data(), bytes) == 0) return -1;
  const char* hit = std::find_if(begin, begin + bytes, [](char c) { return c != kMarginByte; });
  std::memset(begin, kMarginByte, bytes);
  return hit - begin;
}

// The side of a buffer that was overwritten, empty if neither; mends it.
std::string damage(char* begin, size_t bytes) {
  const auto before = find_damage(begin - kMargin, kMargin);
  const auto after = find_damage(begin + bytes, padded(bytes) - bytes + kMargin);
  if (before >= 0) return cat(static_cast<ptrdiff_t>(kMargin) - before, " bytes before the start");
  if (after >= 0) return cat(after, " bytes after the end");
  return "";
}

void check_size(const EmulatedProgram& program, const LaunchSize& size, const Target& target) {
  int64_t threads = 1;
  for (int i = 0; i < 3; ++i) {
    if (size.grid[i] < 1 || size.block[i] < 1 || (i > 0 && size.grid[i] > 65535))
      throw DeviceError(cat("kernel ", program.name(), ": a launch of ", size.grid[i],
                            " blocks of ", size.block[i], " threads in dimension ", i));
    threads *= size.block[i];
  }
  if (threads > std::min(target.most_threads, program.most_threads()))
    throw DeviceError(cat("kernel ", program.name(), ": blocks of ", threads, " threads, of ",
                          std::min(target.most_threads, program.most_threads()), " at most"));
  if (size.cluster < 1 || size.cluster > 8 || size.grid[0] % size.cluster)
    throw DeviceError(cat("kernel ", program.name(), ": clusters of ", size.cluster, " of ",
                          size.grid[0], " blocks"));
  if (size.shared_bytes > target.shared_bytes)
    throw DeviceError(cat("kernel ", program.name(), ": ", size.shared_bytes,
                          " bytes of shared memory, of ", target.shared_bytes, " at most"));
}

}  // namespace

EmulatorDevice::EmulatorDevice(std::string name, const Target& target)
    : name_(std::move(name)), target_(target), pool_(choose_threads()) {}

// --- memory ----------------------------------------------------------------------------------

void* EmulatorDevice::alloc(size_t bytes) {
  const size_t size = padded(bytes) + 2 * kMargin;
  void* block = size < bytes ? nullptr : std::aligned_alloc(kAlignment, size);
  if (block == nullptr)
    throw DeviceError(cat(name_, ": out of memory: cannot allocate ", bytes, " bytes"));
  char* begin = static_cast<char*>(block) + kMargin;
  std::memset(block, kMarginByte, size);
  std::memset(begin, kFreshByte, bytes);
  std::lock_guard lock(mutex_);
  buffers_[begin] = bytes;
  return begin;
}

void EmulatorDevice::free(void* ptr, size_t bytes) {
  {
    std::lock_guard lock(mutex_);
    const auto found = buffers_.find(static_cast<char*>(ptr));
    if (found == buffers_.end() || found->second != bytes)
      throw DeviceError(cat(name_, ": freeing ", bytes, " bytes that were not allocated"));
    buffers_.erase(found);
  }
  const std::string where = damage(static_cast<char*>(ptr), bytes);
  std::free(static_cast<char*>(ptr) - kMargin);
  if (!where.empty())
    throw DeviceError(
        cat(name_, ": memory was written ", where, " of a buffer of ", bytes, " bytes"));
}

EmulatorDevice::Buffers::iterator EmulatorDevice::buffer_at(const void* address) {
  const auto* at = static_cast<const char*>(address);
  auto found = buffers_.upper_bound(const_cast<char*>(at));
  if (found == buffers_.begin()) return buffers_.end();
  --found;
  return static_cast<size_t>(at - found->first) <= found->second ? found : buffers_.end();
}

void EmulatorDevice::check_range(const char* what, const void* begin, size_t bytes) {
  if (bytes == 0) return;
  std::lock_guard lock(mutex_);
  const auto buffer = buffer_at(begin);
  if (buffer != buffers_.end() &&
      bytes <= buffer->second - (static_cast<const char*>(begin) - buffer->first))
    return;
  throw DeviceError(cat(name_, ": ", what, " of ", bytes, " bytes outside of any buffer"));
}

std::vector<EmulatedBuffer> EmulatorDevice::buffers_of(const std::vector<void*>& args) {
  std::lock_guard lock(mutex_);
  std::vector<EmulatedBuffer> out;
  for (size_t i = 0; i < args.size(); ++i) {
    const auto buffer = buffer_at(args[i]);
    if (buffer != buffers_.end())
      out.push_back({buffer->first, static_cast<int64_t>(buffer->second), static_cast<int>(i)});
  }
  return out;
}

// Throws when memory beside one of the buffers that the arguments point into was written.
void EmulatorDevice::check_margins(const std::string& kernel, const std::vector<void*>& args) {
  std::lock_guard lock(mutex_);
  for (size_t i = 0; i < args.size(); ++i) {
    const auto buffer = buffer_at(args[i]);
    if (buffer == buffers_.end()) continue;
    const std::string where = damage(buffer->first, buffer->second);
    if (!where.empty())
      throw DeviceError(cat(name_, ": kernel ", kernel, " wrote ", where, " of argument ", i,
                            ", a buffer of ", buffer->second, " bytes"));
  }
}

void EmulatorDevice::upload(void* to, const void* from_host, size_t bytes) {
  check_range("an upload", to, bytes);
  if (bytes > 0) std::memmove(to, from_host, bytes);
}

void EmulatorDevice::download(void* to_host, const void* from, size_t bytes) {
  check_range("a download", from, bytes);
  if (bytes > 0) std::memmove(to_host, from, bytes);
}

void EmulatorDevice::copy(void* to, const void* from, size_t bytes) {
  check_range("a copy", to, bytes);
  check_range("a copy", from, bytes);
  if (bytes > 0) std::memmove(to, from, bytes);
}

// --- kernels ---------------------------------------------------------------------------------

std::string EmulatorDevice::compiler_id() const {
  const bool ir = target_.language == Target::Language::LlvmIr;
  return cat("emulator ", ir ? emulated_llvm_id() + " " : "", system_compiler_id(cxx_compiler()),
             " ", host_cpu_id(), " ",
             std::hash<std::string>()(cat(kEmulatedText, kEmulatorPrelude, kEmulatorEpilogue)));
}

std::string EmulatorDevice::compile(const Source& source) {
  expect(static_cast<int>(source.language) == static_cast<int>(target_.language), name_,
         ": kernel ", source.entry, " is in another language");
  return compile_shared_object(
      cxx_compiler(), source.entry,
      cat(kEmulatedText, "\n#line ", kEmulatorPreludeLine + 1, kEmulatorPrelude, "#line 1\n",
          source.language == Source::Language::LlvmIr ? emulated_llvm_text(source) : source.text,
          "\n#line ", kEmulatorPreludeLine + 1, kEmulatorEpilogue,
          "extern \"C\" __attribute__((visibility(\"default\"))) void ",
          "tiny_run(void** args) { tiny_call(", source.entry, ", args); }\n"));
}

std::unique_ptr<Program> EmulatorDevice::load(const std::string& binary, const std::string& entry) {
  return std::make_unique<EmulatedProgram>(binary, entry);
}

void EmulatorDevice::launch(Program& program, const LaunchSize& size,
                            const std::vector<void*>& args) {
  auto& kernel = static_cast<EmulatedProgram&>(program);
  check_size(kernel, size, target_);
  std::vector<EmulatedMap> maps;
  for (const TensorMap& map : size.maps)
    maps.push_back({map, static_cast<char*>(args.at(static_cast<size_t>(map.slot))) + map.offset});
  std::vector<void*> arguments;
  for (EmulatedMap& map : maps) arguments.push_back(&map);
  arguments.insert(arguments.end(), args.begin(), args.end());
  EmulatedLaunch launch{kernel, size, arguments.data(), target_, buffers_of(args), {}, {}, {}};
  const int64_t blocks = size.grid[0] * size.grid[1] * size.grid[2];
  const int64_t threads = blocks * size.block[0] * size.block[1] * size.block[2];
  constexpr int64_t kWorthAnother = 2048;  // waking a thread costs as much as running these
  const int64_t workers =
      std::clamp<int64_t>(threads / kWorthAnother, 1, std::min<int64_t>(blocks, pool_.threads()));
  pool_.parallel_for(
      workers, [](void* l, int64_t, int64_t) { run_blocks(*static_cast<EmulatedLaunch*>(l)); },
      &launch);
  if (!launch.error.empty())
    throw DeviceError(cat(name_, ": kernel ", kernel.name(), ", ", launch.error));
  check_margins(kernel.name(), args);
}

}  // namespace tiny
