// `make bench-compile`: what it costs to turn a graph into source text. Nothing is computed.
//   node: one node that exists already    schedule: graph to kernels, nothing cached
//   lower: every distinct kernel to source text, on all cores
//   prove: every load and store of these kernels, on one core, and how it was settled
// Arguments: devices whose kernels these are; none: NULL, a CPU like this machine's.
#include <atomic>
#include <cstdio>
#include <map>
#include <thread>

#include "codegen/lower.h"
#include "codegen/prove.h"
#include "extra/bench/resnet50.h"
#include "extra/bench/timing.h"
#include "runtime/device.h"
#include "runtime/schedule.h"
#include "tiny/build.h"
#include "tiny/env.h"

using namespace tiny;

namespace {

void bench_nodes() {
  const Tensor a = Tensor::from(std::vector<float>(16, 1.0f)), b = a + 1.0, c = a + b;
  constexpr int kCount = 1 << 20;
  const bench::Timing t = bench::measure(5, [&] {
    for (int i = 0; i < kCount; ++i) make(Op::Add, kF32, {a.node(), b.node()});
  });
  std::printf("node that exists: %.1f ns\n", t.best / kCount * 1e9);
}

struct Scheduled {
  Normalized graph;
  std::shared_ptr<const Schedule> schedule;
};

Scheduled schedule_roots(const std::vector<Node>& roots, const std::string& device) {
  Scheduled out;
  out.graph = normalize(roots);
  std::vector<int> devices;
  for (Node b : out.graph.buffers) devices.push_back(b->device);
  out.schedule = schedule(out.graph, devices, device_id(device));
  return out;
}

void bench_proofs(const char* what, const std::vector<const Step*>& jobs, const Target& target) {
  std::vector<Lowered> kernels;
  for (const Step* step : jobs) kernels.push_back(lower(step->kernel.get(), step->name, target));
  int verdicts[3] = {}, settled[4] = {}, claims = 0;
  double seconds = 0, longest = 0;
  for (const Lowered& low : kernels) {
    const Proof p = prove(low.machine, {});
    if (p.verdict != Verdict::Proved)
      std::printf("%s: %s\n", low.source.entry.c_str(), p.text.c_str());
    ++verdicts[static_cast<int>(p.verdict)];
    for (int i = 0; i < 4; ++i) settled[i] += p.settled[i];
    claims += p.claims;
    seconds += p.seconds;
    longest = std::max(longest, p.seconds);
  }
  std::printf(
      "%s: prove %.1f ms on one core, %.1f the longest: %d kernels proved, %d unproved, %d "
      "wrong; %d claims, %d by intervals, %d by walks, %d by z3, %d open\n",
      what, seconds * 1e3, longest * 1e3, verdicts[0], verdicts[1], verdicts[2], claims, settled[0],
      settled[1], settled[2], settled[3]);
}

void bench_schedule(const char* what, const std::vector<Tensor>& tensors,
                    const std::string& device) {
  std::vector<Node> roots;
  for (const Tensor& t : tensors) roots.push_back(t.node());
  Scheduled s;
  const bench::Timing t = bench::measure(5, [&] {
    clear_schedule_cache();
    Arena::global().collect();
    s = schedule_roots(roots, device);
  });
  std::map<Node, const Step*> distinct;
  for (const Step& step : s.schedule->steps)
    if (step.kernel) distinct[step.kernel.get()] = &step;
  std::printf("%s: %zu nodes, %zu kernels, %zu distinct; schedule %.1f ms\n", what,
              topological(roots).size(), s.schedule->steps.size(), distinct.size(), t.best * 1e3);

  std::vector<const Step*> jobs;
  for (auto& [node, step] : distinct) jobs.push_back(step);
  const Target& target = find_device(device).target();
  const auto lower_all = [&](size_t threads) {
    std::atomic<size_t> next{0};
    std::vector<std::thread> pool;
    for (size_t i = 0; i < threads; ++i)
      pool.emplace_back([&] {
        for (size_t j; (j = next++) < jobs.size();)
          lower(jobs[j]->kernel.get(), jobs[j]->name, target);
      });
    for (std::thread& th : pool) th.join();
  };
  const size_t cores = std::max(1u, std::thread::hardware_concurrency());
  std::printf("%s: lower %.1f ms on one core, %.1f ms on %zu\n", what,
              bench::measure(3, [&] { lower_all(1); }).best * 1e3,
              bench::measure(3, [&] { lower_all(cores); }).best * 1e3, cores);
  bench_proofs(what, jobs, target);
}

void bench_resnet(const std::string& device) {
  EnvOverride use("DEVICE", device);
  const Tensor x = Tensor::from(std::vector<float>(64 * 3 * 224 * 224), {64, 3, 224, 224});
  bench::ResNet50 forward(false);
  bench_schedule("ResNet-50 forward, batch 64", {forward(x)}, device);

  bench::ResNet50 trained(true);
  const Tensor labels = Tensor::from(std::vector<int32_t>(64));
  const Tensor loss = cross_entropy(trained(x), labels);
  std::vector<Tensor> step = Tensor::gradient(loss, trained.parameters());
  step.push_back(loss);
  bench_schedule("ResNet-50 loss and gradients, batch 64", step, device);
}

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  std::vector<std::string> devices(argv + 1, argv + argc);
  if (devices.empty()) devices = {"NULL"};
  {
    EnvOverride device("DEVICE", "NULL");
    bench_nodes();
  }
  for (const std::string& device : devices) {
    if (devices.size() > 1) std::printf("as %s would get it\n", device.c_str());
    bench_resnet(device);
  }
}
