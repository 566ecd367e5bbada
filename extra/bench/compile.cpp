// `make bench-compile`: what it costs to turn a graph into source text. Nothing is computed.
//   node: one node that exists already    schedule: graph to kernels, nothing cached
//   lower: every distinct kernel to source text, on all cores
//   prove: every load and store of these kernels, on one core, and how it was settled
//   compile: the texts to machine code, on one core, where there is a compiler for the device: what
//     proofs are beside it
//   [--append FILE] [DEVICE...]: whose kernels these are; none: NULL, a CPU like this machine's.
// Matrix products are those of GPUs with wgmma; `ring` is the part of their proof that follows the
// stages in shared memory (codegen/wgmma/pipeline.h).
#include <atomic>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <thread>
#include <utility>

#include "codegen/kernel/access.h"
#include "codegen/lower.h"
#include "codegen/proof/prove.h"
#include "codegen/wgmma/pipeline.h"
#include "devices/cuda/nvrtc.h"
#include "extra/bench/networks.h"
#include "extra/bench/record.h"
#include "extra/bench/timing.h"
#include "runtime/device/device.h"
#include "runtime/schedule/schedule.h"
#include "tiny/base/env.h"
#include "tiny/base/error.h"
#include "tiny/ir/build.h"
#include "tiny/nn/layers.h"
#include "tiny/run/version.h"

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

std::vector<const Step*> distinct_kernels(const Schedule& schedule) {
  std::map<Node, const Step*> distinct;
  for (const Step& step : schedule.steps)
    if (step.kernel) distinct[step.kernel.get()] = &step;
  std::vector<const Step*> out;
  for (auto& [node, step] : distinct) out.push_back(step);
  return out;
}

// --- proofs beside compilers ---------------------------------------------------------------------

// "" where nothing here compiles for the device.
std::string compiler_of(const std::string& device) {
  const Target& target = find_device(device).target();
  if (target.kind != Target::Kind::Gpu) {
    const std::string id = device == "NULL" ? "" : find_device(device).compiler_id();
    return id.substr(0, id.find(' ', id.find(' ') + 1));  // name and version
  }
  const bool nvrtc = target.language == Target::Language::Cuda && nvrtc_available();
  return nvrtc ? "NVRTC " + nvrtc_version() : "";
}

double compile_seconds(const Lowered& low, const std::string& device) {
  const Target& target = find_device(device).target();
  const double start = bench::seconds();
  compile_for(target.kind == Target::Kind::Gpu ? "CUDA" : device, target.arch, low.source);
  return bench::seconds() - start;
}

double ring_seconds(const Lowered& low) {
  double total = 0;
  for (Node n : all_of(low.machine, Op::Matrix))
    total += bench::measure(3, [&] { prove_ring(ring_of(MatrixTile(n))); }).median;
  return total;
}

std::ofstream results;

void bench_proofs(const std::string& what, const std::vector<const Step*>& jobs,
                  const std::string& device) {
  const std::string compiler = compiler_of(device);
  int verdicts[3] = {}, settled[4] = {}, claims = 0;
  double lowered = 0, proved = 0, rings = 0, longest = 0, compiled = 0;
  bool first = true;
  for (const Step* step : jobs) {
    const double start = bench::seconds();
    const Lowered low = lower(step->kernel.get(), step->name, find_device(device).target());
    lowered += bench::seconds() - start;
    const Proof p = prove(low.machine, {});
    if (p.verdict != Verdict::Proved)
      std::printf("%s: %s\n", low.source.entry.c_str(), p.text.c_str());
    ++verdicts[static_cast<int>(p.verdict)];
    for (int i = 0; i < 4; ++i) settled[i] += p.settled[i];
    claims += p.claims;
    proved += p.seconds;
    longest = std::max(longest, p.seconds);
    rings += ring_seconds(low);
    if (compiler.empty()) continue;
    if (std::exchange(first, false)) compile_seconds(low, device);  // the compiler's own start
    compiled += compile_seconds(low, device);
  }
  std::printf(
      "%s: prove %.1f ms on one core, %.1f the longest: %d kernels proved, %d unproved, %d "
      "wrong; %d claims, %d by intervals, %d by walks, %d by z3, %d open\n",
      what.c_str(), proved * 1e3, longest * 1e3, verdicts[0], verdicts[1], verdicts[2], claims,
      settled[0], settled[1], settled[2], settled[3]);
  if (compiler.empty()) return;
  const double share = proved / (lowered + compiled);
  std::printf(
      "%s: lower %.1f ms, compile %.1f ms (%s): proofs are %.1f %% of that, rings %.1f ms\n",
      what.c_str(), lowered * 1e3, compiled * 1e3, compiler.c_str(), share * 100, rings * 1e3);
  if (results.is_open())
    results << bench::record(bench::cpu_name())
            << cat(", \"name\": \"prove ", what, "\", \"device\": \"", device,
                   "\", \"kernels\": ", jobs.size(), ", \"ms\": ", proved * 1e3,
                   ", \"ring_ms\": ", rings * 1e3, ", \"lower_ms\": ", lowered * 1e3,
                   ", \"compile_ms\": ", compiled * 1e3, ", \"compiler\": \"", compiler,
                   "\", \"ratio\": ", share, "}")
            << std::endl;
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
  const std::vector<const Step*> jobs = distinct_kernels(*s.schedule);
  std::printf("%s: %zu nodes, %zu kernels, %zu distinct; schedule %.1f ms\n", what,
              topological(roots).size(), s.schedule->steps.size(), jobs.size(), t.best * 1e3);

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
  bench_proofs(what, jobs, device);
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

void bench_mnist(const std::string& device) {
  EnvOverride use("DEVICE", device);
  nn::Sequential model = bench::mnist_network();
  const Tensor x = Tensor::from(std::vector<float>(128 * 784), {128, 1, 28, 28});
  const Tensor loss = cross_entropy(model(x), Tensor::from(std::vector<int32_t>(128)));
  std::vector<Tensor> parameters;
  for (const Tensor* p : model.parameters()) parameters.push_back(*p);
  std::vector<Tensor> step = Tensor::gradient(loss, parameters);
  step.push_back(loss);
  bench_schedule("MNIST loss and gradients, batch 128", step, device);
}

// Of each shape of tile and each order of the operands.
void bench_products(const std::string& device) {
  EnvOverride use("DEVICE", device);
  for (int64_t n : {512, 1152, 2048})
    for (const char* order : {"AB", "AtB", "ABt", "AtBt"}) {
      const std::vector<char> zeros(static_cast<size_t>(2 * n * n));
      const auto matrix = [&] { return Tensor::from_bytes(zeros.data(), kBF16, {n, n}); };
      const bool turn_a = order[1] == 't', turn_b = order[std::strlen(order) - 1] == 't';
      const Tensor a = matrix(), b = matrix();
      const Tensor c = (turn_a ? a.t() : a).matmul(turn_b ? b.t() : b);
      const Scheduled s = schedule_roots({c.node()}, device);
      bench_proofs(cat("product ", order, ' ', n, " bf16"), distinct_kernels(*s.schedule), device);
    }
}

}  // namespace

int main(int argc, char** argv) {
  if (print_version("compile", argc, argv)) return 0;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  std::vector<std::string> devices;
  for (int i = 1; i < argc; ++i)
    if (argv[i] == std::string("--append") && i + 1 < argc)
      results.open(argv[++i], std::ios::app);
    else
      devices.emplace_back(argv[i]);
  if (devices.empty()) devices = {"NULL"};
  {
    EnvOverride device("DEVICE", "NULL");
    bench_nodes();
  }
  for (const std::string& device : devices) {
    if (devices.size() > 1) std::printf("as %s would get it\n", device.c_str());
    bench_resnet(device);
    bench_mnist(device);
    if (find_device(device).target().has_wgmma) bench_products(device);
  }
}
