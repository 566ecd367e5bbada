#include "tiny/run/memory.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "runtime/device/buffer.h"
#include "runtime/realize/realize.h"
#include "runtime/schedule/schedule.h"
#include "tiny/base/env.h"
#include "tiny/nn/functional.h"
#include "tiny/run/jit.h"

using namespace tiny;

namespace {

Tensor ones(const Shape& shape) { return Tensor::ones(shape).contiguous().realize(); }

DeviceMemory memory_of(const std::string& device) {
  for (const DeviceMemory& d : memory_report(0).devices)
    if (d.device == device) return d;
  return {};
}

}  // namespace

TEST_CASE("the memory report names the largest holders, their owner and operation") {
  const EnvOverride cpu("DEVICE", "CPU");
  const Tensor x = Tensor::from(std::vector<float>(1 << 20));
  Tensor y = (x.reshape({1024, 1024}).softmax(1) + 1).realize();
  Jit step([](const Tensor& in) { return (in.matmul(in).relu().matmul(in)).sum(); });
  for (int i = 0; i < 3; ++i) step(y);
  const MemoryReport r = memory_report(1000);
  const auto holder = [&](const std::string& owner, const std::string& made_by, int64_t bytes) {
    return std::any_of(r.largest.begin(), r.largest.end(), [&](const MemoryHolder& h) {
      return h.owner == owner && h.made_by == made_by && h.bytes >= bytes && h.device == "CPU";
    });
  };
  CHECK(holder("tensor", "upload", 4 << 20));
  CHECK(holder("tensor", "softmax, add", 4 << 20));
  CHECK(holder("Jit", "intermediate values", 4 << 20));
  CHECK(std::is_sorted(r.largest.begin(), r.largest.end(),
                       [](const auto& a, const auto& b) { return a.bytes > b.bytes; }));
  CHECK(r.captures >= 1);
  CHECK(r.recordings >= 1);
  CHECK(r.kernels >= 3);
  CHECK(r.file_handles >= 3);
  CHECK(to_text(r).find("4.00  CPU         tensor    f32 x 1048576  softmax, add\n") !=
        std::string::npos);
  CHECK(memory_report(3).largest.size() == 3);
}

TEST_CASE("memory is counted by device: live, kept and the peak") {
  const DeviceMemory before = memory_of("CPU:7");
  {
    const Tensor x = Tensor::from(std::vector<float>(1000), {1000}, "CPU:7");
    const DeviceMemory with = memory_of("CPU:7");
    CHECK(with.live_bytes == before.live_bytes + 4000);
    CHECK(with.buffers == before.buffers + 1);
    CHECK(with.peak_bytes >= 4000);
  }
  const DeviceMemory after = memory_of("CPU:7");
  CHECK(after.live_bytes == before.live_bytes);
  CHECK(after.cached_bytes >= 4000);
  clear_caches();
  CHECK(memory_of("CPU:7").cached_bytes == 0);
}

TEST_CASE("clear_caches gives back schedules, kernels and the memory of captures") {
  const EnvOverride cpu("DEVICE", "CPU");
  const Tensor x = ones({96, 96});  // too wide for one kernel of both products
  Jit step([](const Tensor& in) { return in.matmul(in).relu().matmul(in); });
  for (int i = 0; i < 3; ++i) step(x);
  const auto before = step(x).to_vector<float>();
  const int64_t live = memory_use().bytes;
  clear_caches();
  CHECK(memory_use().bytes < live);  // the intermediate values
  const MemoryReport r = memory_report(0);
  CHECK(r.schedules == 0);
  for (const DeviceMemory& d : r.devices) CHECK(d.cached_bytes == 0);
  // Other memory lies where the old one was.
  const Tensor other = Tensor::full({64, 64}, 7.0).contiguous().realize();
  const auto replays = step.statistics().replays;
  CHECK(step(x).to_vector<float>() == before);
  CHECK(step.statistics().replays == replays + 1);
  CHECK(other.to_vector<float>() == std::vector<float>(64 * 64, 7.0f));
  CHECK((x + 1).sum().item<float>() == 2 * 96 * 96);
}

TEST_CASE("a constant that was realized is no tensor that a step reads from outside") {
  const EnvOverride cpu("DEVICE", "CPU");
  Tensor::full({}, 0.0).realize();
  Jit step([](const Tensor& in) { return in.relu() * 2; });  // the same 0
  const Tensor x = ones({4});
  for (int i = 0; i < 3; ++i) step(x);
  clear_caches();
  CHECK(step(x).to_vector<float>() == std::vector<float>(4, 2.0f));
}

TEST_CASE("schedules and kernels are kept up to a number of them") {
  const EnvOverride cpu("DEVICE", "CPU"), few("CACHE_SCHEDULES", "5");
  clear_caches();
  const size_t kernels = memory_report(0).kernels;
  const Tensor x = ones({40});
  for (int64_t n = 1; n <= 40; ++n) CHECK((x.narrow(0, 0, n) * 3).sum().item<float>() == 3.0f * n);
  const MemoryReport r = memory_report(0);
  CHECK(r.schedules <= 5);
  CHECK(r.kernels <= kernels + 20 + 2);
}

TEST_CASE("what can be made again is given back before memory runs out") {
  const EnvOverride cpu("DEVICE", "CPU");
  const Tensor x = ones({96, 96});  // too wide for one kernel of both products
  Jit step([](const Tensor& in) { return in.matmul(in).relu().matmul(in); });
  for (int i = 0; i < 3; ++i) step(x);
  CHECK(memory_report(0).schedules > 0);
  // No machine has that much.
  CHECK_THROWS_WITH_AS(Buffer("CPU", kF32, int64_t{1} << 55).data(),
                       doctest::Contains("the largest of "), DeviceError);
  CHECK(memory_report(0).schedules == 0);
  CHECK(memory_of("CPU").cached_bytes == 0);
  CHECK(step(x).to_vector<float>() == x.matmul(x).relu().matmul(x).to_vector<float>());
}

TEST_CASE("a function that a Jit captures cannot clear the caches") {
  Jit step([](const Tensor& in) {
    clear_caches();
    return in + 1;
  });
  const Tensor x = ones({4});
  step(x);
  CHECK_THROWS_WITH_AS(step(x), doctest::Contains("call it outside of the step"), Error);
}
