// Speed of generated kernels on a GPU: the rows of ../shared/peers/README.md beside a large copy on
// the same device and, with --peers, beside PyTorch's times from the gpu_peers.py there and here.
//
//   gpu [--device NAME] [--size N] [--filter TEXT]... [--product bf16_nn_512x256x1024]...
//       [--peers FILE]... [--append [FILE]] [--commit X]
//
// Times are medians of device time from the first kernel of the work to the last, with caches that
// are cold and clean when it begins (Device::launch_timed), as the peers' are by the gpu_peers.py
// here; "host" is what the host spends to build, schedule and launch the same. "of copy": bytes
// that must be read and written, per second, over those of the copy. "time/peer": below 1 we are
// faster. Sizes other than 8192 (1024 on a CPU, so that it can be tried there) have no peers.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "devices/cuda/driver.h"
#include "devices/cuda/nvrtc.h"
#include "extra/bench/gpu_rows.h"
#include "extra/bench/networks.h"
#include "extra/bench/record.h"
#include "extra/bench/timing.h"
#include "runtime/kernels/kernel.h"
#include "runtime/launch/launch.h"
#include "runtime/realize/realize.h"
#include "tiny/tiny.h"

using namespace tiny;
using namespace tiny::bench;

namespace {

struct Options {
  std::string device, append, commit, mnist_child;
  std::vector<std::string> filters, products, peers;  // products: instead of the other rows
  int64_t size = 0;
};

// --- Peers ---------------------------------------------------------------------------------------

struct Peer {
  double ms = 0;  // 0: none
  std::string who;
};

std::vector<std::string> read_lines(const std::vector<std::string>& paths) {
  std::vector<std::string> lines;
  for (const std::string& path : paths) {
    std::ifstream file(path);
    check(file.is_open(), "--peers: cannot open ", path);
    for (std::string line; std::getline(file, line);) lines.push_back(line);
  }
  return lines;
}

// The text after `"key": ` in a line of JSON; empty where there is none.
std::string after_key(const std::string& line, const std::string& key) {
  const std::string mark = '"' + key + "\": ";
  const size_t at = line.find(mark);
  return at == std::string::npos ? "" : line.substr(at + mark.size());
}

Peer find_peer(const std::vector<std::string>& lines, const std::vector<std::string>& parts) {
  Peer best;
  for (const std::string& line : lines) {
    const bool fits = std::all_of(parts.begin(), parts.end(), [&](const std::string& part) {
      return line.find(part) != std::string::npos;
    });
    const double ms = fits ? std::atof(after_key(line, "ms").c_str()) : 0;
    if (ms <= 0 || (best.ms > 0 && best.ms <= ms)) continue;
    const std::string impl = after_key(line, "impl");
    best = {ms, impl.empty() ? "peer" : impl.substr(1, impl.find('"', 1) - 1)};
  }
  return best;
}

// --- Reports -------------------------------------------------------------------------------------

// Prints rows and appends them as JSON lines.
class Report {
 public:
  explicit Report(const Options& o) : peers_(read_lines(o.peers)), has_peers_(o.size == kPeerSize) {
    if (!o.append.empty()) {
      file_.open(o.append, std::ios::app);
      check(file_.is_open(), "--append: cannot write ", o.append);
    }
    common_ = cat(bench::record(bench::machine_name(o.device), o.commit), ", \"device\": \"",
                  o.device, "\", \"size\": ", o.size);
    // Lines before this field came in had caches full of what was still to be written to memory.
    if (o.device.starts_with("CUDA")) common_ += ", \"caches\": \"clean\"";
  }

  // The time of a row; `details` are more fields, each a comma and JSON, `text` says them.
  void add(const std::string& name, double seconds, const std::vector<std::string>& peer_parts,
           const std::string& text, const std::string& details) {
    const Peer p = has_peers_ && !peer_parts.empty() ? find_peer(peers_, peer_parts) : Peer();
    std::printf("%-24s %9.4f ms  %s", name.c_str(), seconds * 1e3, text.c_str());
    std::string line = cat(common_, ", \"name\": \"", name, "\", \"ms\": ", seconds * 1e3, details);
    if (p.ms > 0) {
      std::printf("  %s %.4f ms  time/peer %.3f", p.who.c_str(), p.ms, seconds * 1e3 / p.ms);
      line += cat(", \"peer\": \"", p.who, "\", \"peer_ms\": ", p.ms,
                  ", \"ratio\": ", seconds * 1e3 / p.ms);
    }
    std::printf("\n");
    if (file_.is_open()) file_ << line << "}" << std::endl;
  }

 private:
  std::vector<std::string> peers_;
  bool has_peers_;
  std::string common_;
  std::ofstream file_;
};

std::string text_of(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

void report_row(const Row& row, const Measured& m, double copy, Report& report) {
  std::string text, details;
  if (row.bytes > 0) {
    const double rate = row.bytes / m.seconds;
    text = text_of("%8.1f GB/s  ", rate * 1e-9) + text_of("%5.3f of copy", rate / copy);
    details = cat(", \"gbps\": ", rate * 1e-9, ", \"of_copy\": ", rate / copy);
  } else {
    text = text_of("%8.2f TFLOP/s            ", row.flops / m.seconds * 1e-12);
    details = cat(", \"tflops\": ", row.flops / m.seconds * 1e-12);
  }
  text += text_of("  %2.0f kernels", m.kernels) + text_of("  host %6.1f us", m.host_seconds * 1e6);
  details += cat(", \"kernels\": ", m.kernels, ", \"host_us\": ", m.host_seconds * 1e6);
  report.add(row.name, m.seconds, row.peer, text, details);
}

// --- Launching -----------------------------------------------------------------------------------

struct Scheduled {
  std::shared_ptr<const Schedule> schedule;
  std::vector<std::shared_ptr<Buffer>> inputs;
};

Scheduled schedule_of(const Tensor& t, const std::string& device) {
  const Normalized graph = normalize(std::vector<Node>{t.node()});
  Scheduled out;
  std::vector<int> devices;
  for (Node b : graph.buffers) {
    devices.push_back(b->device);
    out.inputs.push_back(b->arg<BufferArg>().buffer);
  }
  out.schedule = schedule(graph, devices, device_id(device));
  return out;
}

// Seconds of a launch: until all are done, and those that the host takes to give them to the
// device, which may take less or, while it waits for the host, as long.
struct PerLaunch {
  double total = 0, host = 0;
};

// Of one of `count` launches that `work` makes.
template <class Work, class Wait> PerLaunch per_launch(size_t count, Work work, Wait wait) {
  std::vector<double> host;
  const Timing t = bench::measure(9, [&] {
    const double start = bench::seconds();
    work();
    host.push_back(bench::seconds() - start);
    wait();
  });
  const auto all = static_cast<double>(count);
  return {t.median / all, bench::summary(std::move(host)).median / all};
}

// An empty kernel's launch by the driver alone: what no program on it can do better without
// recordings or early launches. Zero where there is no NVIDIA GPU.
PerLaunch bare_launch(const std::string& name, size_t count) {
  if (!name.starts_with("CUDA")) return {};
  const GpuDriver& driver = cuda_driver();
  std::string log;
  const std::string binary = compile_cuda("extern \"C\" __global__ void empty(int*) {}",
                                          find_device(name).target().arch, &log, "empty");
  GpuModule module = nullptr;
  GpuFunction function = nullptr;
  GpuStream stream = nullptr;
  driver.check(driver.module_load(&module, binary.c_str()), "load an empty kernel");
  driver.check(driver.module_function(&function, module, "empty"), "find the empty kernel");
  driver.check(driver.stream_create(&stream, kGpuStreamNonBlocking), "create a stream");
  void *pointer = nullptr, *params[] = {&pointer};
  const auto launch = [&] {
    for (size_t i = 0; i < count; ++i)
      driver.launch(function, 4, 1, 1, 256, 1, 1, 0, stream, params, nullptr);
  };
  const PerLaunch t = per_launch(count, launch, [&] { driver.stream_synchronize(stream); });
  driver.stream_destroy(stream);
  driver.module_unload(module);
  return t;
}

// What a kernel of 1024 elements costs: alone, as a step of a schedule, and in a recording.
void bench_launches(const std::string& name, Device& device, Report& report) {
  constexpr size_t kCount = 1000, kChain = 200;
  const Tensor x = normal({1024}), y = normal({1024});
  const Scheduled one = schedule_of(x + y, name);
  const Kernel& kernel = *compile_kernels(*one.schedule).at(0);
  const size_t bytes = 4096;
  void* out = device.alloc(bytes);
  const std::vector<void*> args{out, one.inputs[0]->data(), one.inputs[1]->data()};
  const auto wait = [&] { device.synchronize(); };
  const auto add = [&](const char* row, const PerLaunch& t, const std::string& what) {
    const std::string host = text_of(", %.3f us of the host's", t.host * 1e6);
    report.add(row, t.total, {}, text_of("%7.3f us for ", t.total * 1e6) + what + host,
               cat(", \"host_us\": ", t.host * 1e6));
  };
  const auto launch = [&] {
    for (size_t i = 0; i < kCount; ++i) device.launch(*kernel.program, kernel.launch, args);
  };
  const PerLaunch alone = per_launch(kCount, launch, wait);
  if (const PerLaunch bare = bare_launch(name, kCount); bare.total > 0)
    add("launch_driver", bare, "an empty kernel launched by the driver's own function");
  add("launch", alone, "a kernel launched alone");
  const auto recording =
      device.record({kCount, LaunchItem{kernel.program.get(), kernel.launch, args}});
  const auto replay = [&] { recording->launch(); };
  add("launch_recorded", per_launch(kCount, replay, wait), "a kernel of a recording");
  device.free(out, bytes);

  const EnvOverride apart("FUSE", "0");  // a step for each link
  Tensor chain = x;
  for (size_t i = 0; i < kChain; ++i) chain = (chain + y).contiguous();
  const Scheduled list = schedule_of(chain, name);
  const size_t steps = list.schedule->steps.size();
  const auto run_all = [&] { run(*list.schedule, list.inputs); };
  add("launch_scheduled", per_launch(steps, run_all, wait), cat("a step of a schedule of ", steps));
}

// --- MNIST ---------------------------------------------------------------------------------------

// Trains the network of the MNIST example and says when (monotonic clock) the tenth step had ended
// and how long a later one takes. Runs in a process of its own, so that the first step compiles.
int train_mnist(int64_t batch, int64_t steps) {
  using namespace tiny::nn;
  Sequential model = bench::mnist_network();
  Adam optimizer(model.tensors());
  const Training mode;
  const Tensor x = Tensor::rand({60000, 1, 28, 28}).realize();
  const Tensor y = Tensor::randint(0, 10, {60000}).realize();
  double tenth = 0;
  Jit train([&] {
    const Tensor at = Tensor::randint(0, 60000, {batch}, kI32);
    Tensor loss = cross_entropy(model(x.index_select(0, at)), y.index_select(0, at));
    loss.backward();
    optimizer.step({&loss});
    return loss;
  });
  for (int64_t i = 0; i < 10 + steps; ++i) {
    const Tensor loss = train();
    if (i != 9 && i != 9 + steps) continue;
    loss.item<float>();  // waits
    if (i == 9) tenth = bench::seconds();
  }
  const double step = (bench::seconds() - tenth) / static_cast<double>(steps);
  std::printf("{\"tenth\": %.6f, \"step\": %.9f}\n", tenth, step);
  return 0;
}

void bench_mnist(const Options& o, Report& report) {
  namespace fs = std::filesystem;
  const int64_t batch = o.size == kPeerSize ? 512 : 32;
  const fs::path cache = fs::temp_directory_path() / cat("tiny_bench_gpu_", ::getpid());
  const std::string command =
      cat("CACHE_DIR='", cache.string(), "' '", fs::read_symlink("/proc/self/exe").string(),
          "' --mnist-child ", batch, " --size ", o.size, " --device ", o.device);
  // The peer rounds operands of convolutions to TF32, and so does the example.
  for (const char* state : {"cold", "warm", "f32"}) {
    const bool rounds = std::string(state) != "f32";
    const double start = bench::seconds();
    const std::string line = bench::output_of(cat("ALLOW_TF32=", rounds ? 1 : 0, ' ', command));
    check(!after_key(line, "step").empty(), "the training process failed: ", command);
    const double tenth = std::atof(after_key(line, "tenth").c_str()) - start;
    const double step = std::atof(after_key(line, "step").c_str());
    report.add(cat("mnist_step_", state), step,
               rounds ? peer("mnist train step bs512") : std::vector<std::string>{},
               text_of("start to 10th step %.2f s", tenth),
               cat(", \"batch\": ", batch, ", \"allow_tf32\": ", rounds ? 1 : 0,
                   ", \"tenth_step_s\": ", tenth));
  }
  fs::remove_all(cache);
}

// --- The program ---------------------------------------------------------------------------------

Options read_options(int argc, char** argv) {
  Options o;
  const auto value = [&](int& i) {
    check(i + 1 < argc, argv[i], ": a value is missing");
    return std::string(argv[++i]);
  };
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--device")
      o.device = value(i);
    else if (name == "--size")
      o.size = std::atoll(value(i).c_str());
    else if (name == "--filter")
      o.filters.push_back(value(i));
    else if (name == "--product")
      o.products.push_back(value(i));
    else if (name == "--peers")
      o.peers.push_back(value(i));
    else if (name == "--commit")
      o.commit = value(i);
    else if (name == "--mnist-child")
      o.mnist_child = value(i);
    else if (name == "--append")
      o.append =
          i + 1 < argc && argv[i + 1][0] != '-' ? argv[++i] : "extra/bench/results/gpu.jsonl";
    else
      throw Error(cat(name, " is no option: known are --device, --size, --filter, --product, ",
                      "--peers, --append, --commit"));
  }
  o.device = canonical_device(o.device.empty() ? runtime_seam::default_device() : o.device);
  const bool gpu = find_device(o.device).target().kind == Target::Kind::Gpu;
  if (o.size == 0) o.size = gpu ? kPeerSize : 1024;
  check(o.size >= 32 && o.size % 32 == 0, "--size: ", o.size, " is no multiple of 32");
  return o;
}

bool is_wanted(const Options& o, const std::string& name) {
  const auto fits = [&](const std::string& part) { return name.find(part) != std::string::npos; };
  return o.filters.empty() || std::any_of(o.filters.begin(), o.filters.end(), fits);
}

// A row that fails does not keep the others from being measured. The number of failures.
int run_rows(const Options& o, Device& device, Report& report) {
  int failures = 0;
  const auto attempt = [&](const std::string& name, const std::function<void()>& work) {
    if (!is_wanted(o, name)) return;
    try {
      work();
    } catch (const std::exception& e) {
      ++failures;
      std::printf("%-20s failed: %s\n", name.c_str(), e.what());
    }
  };
  const double copy = copy_rate(device);
  std::printf("%s, size %lld; a large copy moves %.1f GB/s\n", o.device.c_str(),
              static_cast<long long>(o.size), copy * 1e-9);
  std::vector<Row> rows;
  for (const std::string& text : o.products) add_product(rows, product_from_text(text));
  const bool all = rows.empty();
  if (all) rows = gpu_rows(o.size);
  for (const Row& row : rows)
    attempt(row.name, [&] { report_row(row, measure(row.prepare(), device), copy, report); });
  if (!all) return failures;
  attempt("launch", [&] { bench_launches(o.device, device, report); });
  attempt("mnist", [&] { bench_mnist(o, report); });
  return failures;
}

}  // namespace

int main(int argc, char** argv) {
  if (print_version("gpu", argc, argv)) return 0;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  try {
    const Options o = read_options(argc, argv);
    const EnvOverride device("DEVICE", o.device);
    if (!o.mnist_child.empty())
      return train_mnist(std::atoll(o.mnist_child.c_str()), o.size == kPeerSize ? 300 : 3);
    Report report(o);
    return run_rows(o, find_device(o.device), report) ? 1 : 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "gpu: %s\n", e.what());
    return 1;
  }
}
