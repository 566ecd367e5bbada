// Runs one of the problems that extra/kernelbench/translate.py wrote as programs, which are linked
// with this. extra/kernelbench/run.py calls it; DEVICE chooses where.
//
//   kernelbench --list
//   kernelbench --problem LEVEL/NUMBER [--data FOLDER] [--seed N] what...
//     --compile          schedules and compiles its kernels and runs none; with an emulated GPU of
//                        NVIDIA as DEVICE by its compiler, for a GPU that is not here
//     --check FILE       computes it once and writes the outputs, raw, to FILE.0, FILE.1, ...
//     --time             times it
//
// Prints a line of JSON. Times are those of KernelBench's timing with events: several calls to warm
// up, then for each trial the caches are filled with other data (256 MB that are read), an event is
// recorded before the call and one after it, and the device is waited for. A call is what a user
// makes: a Jit that has recorded the problem's function.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <set>

#include "codegen/lower.h"
#include "extra/bench/timing.h"
#include "extra/kernelbench/problem.h"
#include "runtime/device/buffer.h"
#include "runtime/device/device.h"
#include "runtime/kernels/kernel.h"
#include "runtime/schedule/schedule.h"

using namespace tiny;
using namespace tiny::kernelbench;

namespace {

struct Options {
  std::string problem, check;
  bool list = false, compile = false, time = false;
  int64_t whole = int64_t{1} << 26;  // elements of an output that are written; else parts of it
};

std::string program_folder() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path().string();
}

Options read_options(int argc, char** argv) {
  Options o;
  draw_state().data = program_folder() + "/data";
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    const auto value = [&] {
      check(i + 1 < argc, name, ": a value is missing");
      return std::string(argv[++i]);
    };
    if (name == "--list")
      o.list = true;
    else if (name == "--problem")
      o.problem = value();
    else if (name == "--data")
      draw_state().data = value();
    else if (name == "--seed")
      draw_state().seed = static_cast<uint32_t>(std::stoul(value()));
    else if (name == "--compile")
      o.compile = true;
    else if (name == "--check")
      o.check = value();
    else if (name == "--whole")
      o.whole = std::stoll(value());
    else if (name == "--time")
      o.time = true;
    else
      throw Error(cat(name,
                      " is no option: known are --list, --problem, --data, --seed, --compile, ",
                      "--check, --whole, --time"));
  }
  return o;
}

const Problem& find_problem(const std::string& key) {
  for (const Problem& p : problems())
    if (cat(p.level, '/', p.number) == key) return p;
  throw Error(cat("--problem: there is no ", key, " among the ", problems().size(), " here"));
}

void realize_all(Tensors& tensors) {
  std::vector<Tensor*> all;
  for (Tensor& t : tensors) all.push_back(&t);
  Tensor::realize(all);
}

// One after the other: what is made on the way need not be there at the same time.
Tensors made(const Problem& problem) {
  Tensors given = problem.make();
  for (Tensor& t : given) t.realize();
  return given;
}

// --- Compiling -----------------------------------------------------------------------------------

struct Compiled {
  double schedule_seconds = 0, lower_seconds = 0, compile_seconds = 0;
  size_t kernels = 0, distinct = 0;
};

// For a GPU that is not here, on one core.
void compile_elsewhere(Compiled& out, const Schedule& plan, const Target& target) {
  std::set<Node> seen;
  for (const Step& step : plan.steps) {
    if (!step.kernel || !seen.insert(step.kernel.get()).second) continue;
    const double start = bench::seconds();
    const Lowered low = lower(step.kernel.get(), step.name, target);
    const double lowered = bench::seconds();
    compile_for("CUDA", target.arch, low.source);
    out.lower_seconds += lowered - start;
    const double compiled = bench::seconds();
    out.compile_seconds += compiled - lowered;
    if (env_int("DEBUG") >= 2)
      std::fprintf(stderr, "%-60s lower %7.3f s, compile %7.3f s\n", step.name.c_str(),
                   lowered - start, compiled - lowered);
    if (env_int("DEBUG") >= 4) std::fprintf(stderr, "%s\n", low.source.text.c_str());
  }
  out.distinct += seen.size();
}

void compile_into(Compiled& out, const Tensors& roots) {
  std::vector<Node> nodes;
  for (const Tensor& t : roots) nodes.push_back(t.node());
  const double start = bench::seconds();
  const Normalized graph = normalize(nodes);
  std::vector<int> devices;
  for (Node b : graph.buffers) devices.push_back(b->device);
  const std::string device = runtime_seam::default_device();
  const auto plan = schedule(graph, devices, device_id(device));
  const double scheduled = bench::seconds();
  out.schedule_seconds += scheduled - start;
  if (device.starts_with("EMU:CUDA")) {
    compile_elsewhere(out, *plan, find_device(device).target());
  } else {
    compile_kernels(*plan);
    out.compile_seconds += bench::seconds() - scheduled;
  }
  out.kernels += plan->steps.size();
}

// The kernels of a problem go into the cache on the disk; no memory is taken for it.
void compile(const Problem& problem) {
  Compiled making, c;
  const double start = bench::seconds();
  Tensors given;
  for (const Tensor& t : problem.make()) {
    compile_into(making, {t});
    const auto buffer = std::make_shared<Buffer>(runtime_seam::default_device(), t.dtype(),
                                                 std::max<int64_t>(1, t.numel()));
    given.push_back(Tensor(buffer_node(buffer)).reshape(Shape(t.shape().begin(), t.shape().end())));
  }
  draw_state().by_formula = false;  // as it is timed
  const double begin = bench::seconds();
  const Tensors before = given;
  Tensors roots = problem.forward(given);
  const double built = bench::seconds();
  for (size_t i = 0; i < given.size(); ++i)
    if (given[i].node() != before[i].node()) roots.push_back(given[i]);
  compile_into(c, roots);
  std::printf(
      "{\"compile\": true, \"kernels\": %zu, \"distinct\": %zu, \"build_s\": %.3f, "
      "\"schedule_s\": %.3f, \"lower_s\": %.3f, \"compile_s\": %.3f, \"inputs_s\": %.3f}\n",
      c.kernels, c.distinct, built - begin, c.schedule_seconds, c.lower_seconds, c.compile_seconds,
      begin - start);
}

// --- Outputs -------------------------------------------------------------------------------------

// Where the parts of an output begin that are compared, and how long they are: all of it, or 64
// parts from its beginning to its end (extra/kernelbench/peer.py has the same).
std::vector<std::pair<int64_t, int64_t>> parts_of(int64_t count, int64_t whole) {
  if (count <= whole) return {{0, count}};
  const int64_t parts = 64, length = whole / parts;
  std::vector<std::pair<int64_t, int64_t>> out;
  for (int64_t i = 0; i < parts; ++i) out.emplace_back((count - length) / (parts - 1) * i, length);
  return out;
}

void write_output(const Tensor& t, const std::string& path, int64_t whole) {
  std::ofstream file(path, std::ios::binary);
  check(file.is_open(), "--check: cannot write ", path);
  const Tensor flat = t.reshape({-1});
  for (const auto& [begin, length] : parts_of(t.numel(), whole)) {
    std::vector<char> bytes(static_cast<size_t>(length) * t.dtype().size());
    (length == t.numel() ? flat : flat.narrow(0, begin, length)).to_bytes(bytes.data());
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }
  check(file.good(), "--check: ", path, " could not be written");
}

void compute(const Problem& problem, const Options& o) {
  const double start = bench::seconds();
  Tensors given = made(problem);
  const double begin = bench::seconds();
  Tensors outputs = problem.forward(given);
  realize_all(outputs);
  find_device(runtime_seam::default_device()).synchronize();
  const double end = bench::seconds();
  std::string shapes;
  for (size_t i = 0; i < outputs.size(); ++i) {
    write_output(outputs[i], cat(o.check, '.', i), o.whole);
    shapes += cat(i ? ", " : "", "[\"", to_text(outputs[i].shape()), "\", \"",
                  outputs[i].dtype().name(), "\"]");
  }
  std::printf("{\"check\": true, \"outputs\": [%s], \"first_s\": %.3f, \"inputs_s\": %.3f}\n",
              shapes.c_str(), end - begin, begin - start);
}

// --- Times ---------------------------------------------------------------------------------------

// Reads so many bytes that no cache holds what was there before.
class Flush {
 public:
  explicit Flush(Device& device) : device_(device) {
    const bool gpu = device.target().kind == Target::Kind::Gpu;
    x_ = Tensor::full({gpu ? 64 << 20 : 1 << 20}, 1.0).contiguous().realize();
  }
  void operator()() { sum_(x_); }

 private:
  Device& device_;
  Tensor x_;
  Jit<Tensor (*)(const Tensor&)> sum_{[](const Tensor& x) { return x.sum(); }};
};

void time(const Problem& problem) {
  draw_state().by_formula = true;
  Tensors given = made(problem);
  draw_state().by_formula = false;
  Device& device = find_device(runtime_seam::default_device());
  Jit call([&] { return problem.forward(given); });
  const auto wall = [&] {
    const double start = bench::seconds();
    call();
    device.synchronize();
    return bench::seconds() - start;
  };
  const double first = wall(), second = wall();
  Flush flush(device);
  for (int i = 0; i < 3; ++i) flush(), call();
  std::vector<double> times;
  for (double total = 0; times.size() < 10 || (total < 1 && times.size() < 100);) {
    device.synchronize();
    flush();
    const int64_t begin = device.mark();
    const Tensors out = call();
    const int64_t end = device.mark();
    const double from = device.time_of(begin);
    times.push_back(device.time_of(end) - from);
    total += times.back();
  }
  const double mean = std::accumulate(times.begin(), times.end(), 0.0) / times.size();
  const bench::Timing t = bench::summary(times);
  double peak = 0;
  for (const DeviceMemory& d : memory_report(0).devices)
    peak = std::max(peak, static_cast<double>(d.peak_bytes));
  std::printf(
      "{\"time\": true, \"ms\": %.6f, \"median_ms\": %.6f, \"best_ms\": %.6f, \"trials\": %zu, "
      "\"kernels\": %zu, \"first_s\": %.3f, \"second_s\": %.3f, \"peak_gb\": %.3f}\n",
      mean * 1e3, t.median * 1e3, t.best * 1e3, times.size(), call.statistics().kernels, first,
      second, peak * 1e-9);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Options o = read_options(argc, argv);
    if (o.list)
      for (const Problem& p : problems())
        std::printf("%d/%d %s\n", p.level, p.number, p.name.c_str());
    if (o.problem.empty()) return 0;
    const Problem& problem = find_problem(o.problem);
    const NoGrad no_grad;
    if (o.compile) compile(problem);
    if (!o.check.empty()) compute(problem, o);
    if (o.time) time(problem);
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "kernelbench: %s\n", e.what());
    return 1;
  }
}
