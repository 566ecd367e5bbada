// Speed of generated kernels on a GPU: the rows of ../shared/peers/README.md beside a large copy on
// the same device and, with --peers, beside PyTorch's times from the gpu_peers.py there and here.
//
//   gpu [--device NAME] [--size N] [--filter TEXT]... [--peers FILE]... [--append [FILE]]
//       [--commit X]
//
// Times are medians of device time from the first kernel of the work to the last, with caches that
// are cold when it begins (Device::launch_timed), as the peers' are; "host" is what the host spends
// to build, schedule and launch the same. "of copy": bytes that must be read and written, per
// second, over those of the copy. "time/peer": below 1 we are faster. Sizes other than 8192 (1024
// on a CPU, so that it can be tried there) have no peers.
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

#include "extra/bench/gpu_products.h"
#include "extra/bench/networks.h"
#include "extra/bench/record.h"
#include "extra/bench/timing.h"
#include "runtime/kernel.h"
#include "runtime/launch.h"
#include "runtime/realize.h"
#include "tiny/tiny.h"

using namespace tiny;
using namespace tiny::bench;

namespace {

constexpr int64_t kClasses = 50257, kWidth = 768;  // GPT-2's tokens and embedding

struct Options {
  std::string device, append, commit, mnist_child;
  std::vector<std::string> filters, peers;
  int64_t size = 0;
};

// --- Rows ----------------------------------------------------------------------------------------

void add_elementwise(std::vector<Row>& rows, int64_t n) {
  const double square = static_cast<double>(n * n);
  rows.push_back({"copy", peer("copy fp32 8192^2"), 8 * square, 0, [n] {
                    const Tensor x = normal({n, n});
                    return [x] { return Outputs{x.contiguous()}; };
                  }});
  rows.push_back({"sin", peer("fused (x+1)*2 sin"), 8 * square, 0, [n] {
                    const Tensor x = normal({n, n});
                    return [x] { return Outputs{((x + 1) * 2).sin()}; };
                  }});
  rows.push_back({"transpose_add", peer("transpose+add"), 12 * square, 0, [n] {
                    const Tensor x = normal({n, n}), y = normal({n, n});
                    return [x, y] { return Outputs{x.t() + y}; };
                  }});
  rows.push_back({"transpose", {}, 8 * square, 0, [n] {
                    const Tensor x = normal({n, n});
                    return [x] { return Outputs{x.t().contiguous()}; };
                  }});
  rows.push_back({"gelu", peer("gelu(x+b)*y"), 12 * square, 0, [n] {
                    const Tensor x = normal({n, n}), y = normal({n, n}), b = normal({n});
                    return [x, y, b] { return Outputs{(x + b).gelu() * y}; };
                  }});
}

void add_reductions(std::vector<Row>& rows, int64_t n) {
  const double square = static_cast<double>(n * n);
  // A row of a function of one matrix; `bytes`: of an element, read and written.
  const auto add = [&](const char* name, const char* peer_name, double bytes, DType dtype,
                       Tensor (*f)(const Tensor&)) {
    rows.push_back({name, peer(peer_name), bytes * square, 0, [=] {
                      const Tensor x = normal({n, n}, dtype);
                      return [=] { return Outputs{f(x)}; };
                    }});
  };
  add("softmax_f32", "softmax fp32 8192^2", 8, kF32, [](const Tensor& x) { return x.softmax(1); });
  add("softmax_bf16", "softmax bf16 8192^2", 4, kBF16,
      [](const Tensor& x) { return x.softmax(1); });
  add("sum_all", "sum all fp32", 4, kF32, [](const Tensor& x) { return x.sum(); });
  add("sum_axis0", "sum axis0 fp32", 4, kF32, [](const Tensor& x) { return x.sum(0); });
  add("sum_axis1", "sum axis1 fp32", 4, kF32, [](const Tensor& x) { return x.sum(1); });
  add("argmax", "argmax axis1", 4, kF32, [](const Tensor& x) { return x.argmax(1); });
  add("cumsum", "cumsum axis1", 8, kF32, [](const Tensor& x) { return x.cumsum(1); });
  rows.push_back({"layer_norm", peer("layernorm fp32 8192^2"), 8 * square, 0, [n] {
                    const Tensor x = normal({n, n}), w = normal({n});
                    return [=] { return Outputs{layer_norm(x, {n}, w, w)}; };
                  }});
  rows.push_back({"rms_norm", peer("rmsnorm fp32 8192^2"), 8 * square, 0, [n] {
                    const Tensor x = normal({n, n}), w = normal({n});
                    return [=] { return Outputs{rms_norm(x, {n}, w)}; };
                  }});
}

void add_network(std::vector<Row>& rows, int64_t n) {
  const double logits = static_cast<double>(n * kClasses);
  rows.push_back({"cross_entropy", peer("cross_entropy 8192x50257 bf16"), 2 * logits, 0, [n] {
                    const Tensor x = normal({n, kClasses}, kBF16);
                    const Tensor y = Tensor::randint(0, kClasses, {n}).realize();
                    return [=] { return Outputs{cross_entropy(x.to(kF32), y)}; };
                  }});
  const int64_t tokens = 4 * n;
  const double picked = 4.0 * static_cast<double>(tokens * kWidth);
  const double table = 4.0 * static_cast<double>(kClasses * kWidth);
  rows.push_back({"embedding", peer("embedding 50257x768 fp32"), 2 * picked, 0, [tokens] {
                    const Tensor w = normal({kClasses, kWidth});
                    const Tensor i = Tensor::randint(0, kClasses, {tokens}).realize();
                    return [=] { return Outputs{w.embedding(i)}; };
                  }});
  rows.push_back({"embedding_gradient", peer("embedding gradient 50257x768 fp32"), picked + table,
                  0, [tokens] {
                    const Tensor w = normal({kClasses, kWidth}).requires_grad_();
                    const Tensor i = Tensor::randint(0, kClasses, {tokens}).realize();
                    const Tensor g = normal({tokens, kWidth});
                    return [=] { return Tensor::gradient((w.embedding(i) * g).sum(), {w}); };
                  }});
  const int64_t batch = n / 32;
  const double pixels = static_cast<double>(batch * 64 * 112 * 112);
  rows.push_back({"max_pool", peer("max pool 3/2 256x64x112^2 fp32"), 5 * pixels, 0, [batch] {
                    const Tensor x = normal({batch, 64, 112, 112});
                    const PoolOptions options{.stride = 2, .padding = 1};
                    return [=] { return Outputs{max_pool2d(x, 3, options)}; };
                  }});
}

// Statistics take a pass of their own over what does not fit into the cache.
void add_batch_norm(std::vector<Row>& rows, int64_t n) {
  const Shape shape{n / 32, 64, 56, 56};
  const double bytes = 4.0 * static_cast<double>(numel(shape));
  const BatchNormOptions options{.training = true};
  rows.push_back({"batch_norm", peer("batch norm 256x64x56^2 fp32"), 3 * bytes, 0, [=] {
                    const Tensor x = normal(shape), w = normal({64}), m = normal({64});
                    return [=] {
                      const BatchNormResult r = batch_norm(x, w, w, m, m, options);
                      return Outputs{r.y, r.running_mean, r.running_var};
                    };
                  }});
  rows.push_back(
      {"batch_norm_both", peer("batch norm forward+backward 256x64x56^2 fp32"), 8 * bytes, 0, [=] {
         const Tensor x = normal(shape).requires_grad_(), g = normal(shape);
         const Tensor w = normal({64}).requires_grad_(), m = normal({64});
         const Tensor b = normal({64}).requires_grad_();
         return [=] {
           const BatchNormResult r = batch_norm(x, w, b, m, m, options);
           Outputs out = Tensor::gradient((r.y * g).sum(), {x, w, b});
           out.insert(out.end(), {r.y, r.running_mean, r.running_var});
           return out;
         };
       }});
}

// Images of h x h pixels, kernels of k x k.
struct Convolution {
  int64_t images, in, h, out, k, stride;
};

// All of it with channels innermost in memory, as the peer's: the result, and the gradients of
// input and weight from the result's.
void add_convolution(std::vector<Row>& rows, const Convolution& c, DType dtype) {
  const int64_t padding = c.k / 2, after = (c.h + 2 * padding - c.k) / c.stride + 1;
  const double flops = 2.0 * static_cast<double>(c.images * c.out * after * after) *
                       static_cast<double>(c.in * c.k * c.k);
  std::string shape;
  for (int64_t v : {c.images, c.in, c.h, c.out, c.k, c.stride}) shape += cat(", ", v);
  const std::string type = dtype == kBF16 ? "bf16" : "f16",
                    name = cat("conv_", type, '_', c.in, 'x', c.h, "_", c.out, "_k", c.k);
  const auto channels_last = [dtype](int64_t n, int64_t channels, int64_t size) {
    return normal({n, size, size, channels}, dtype).permute({0, 3, 1, 2});
  };
  for (const char* what : {"", "_dx", "_dw"}) {
    const std::string peer_name = *what == 0       ? "conv2d"
                                  : what[2] == 'x' ? "conv2d gradient of input"
                                                   : "conv2d gradient of weight";
    const auto prepare = [=]() -> Work {
      const Tensor x = channels_last(c.images, c.in, c.h), w = channels_last(c.out, c.in, c.k);
      const Tensor g = channels_last(c.images, c.out, after);
      return [=] {
        Tensor input = x.detach(), weight = w.detach();
        if (what[0] != 0) (what[2] == 'x' ? input : weight).requires_grad_();
        Tensor y = conv2d(input, weight, {}, {.stride = c.stride, .padding = padding});
        if (what[0] != 0) {
          y.backward(g);
          y = (what[2] == 'x' ? input : weight).grad();
        }
        return Outputs{y.permute({0, 2, 3, 1}).contiguous()};
      };
    };
    rows.push_back({name + what,
                    {cat("\"name\": \"", peer_name, '"'), type == "bf16" ? "bfloat16" : "float16",
                     cat("\"shape\": [", shape.substr(2), ']')},
                    0,
                    flops,
                    prepare});
  }
}

void add_convolutions(std::vector<Row>& rows, int64_t n) {
  const int64_t large = n == kPeerSize ? 1 : 64;  // tried with a few images elsewhere
  for (const Convolution& c : {Convolution{256, 64, 56, 64, 3, 1},
                               {256, 128, 28, 128, 3, 1},
                               {256, 256, 14, 256, 3, 1},
                               {256, 3, 224, 64, 7, 2},
                               {256, 256, 56, 64, 1, 1},
                               {512, 64, 31, 64, 3, 1}})
    add_convolution(rows, {c.images / large, c.in, c.h, c.out, c.k, c.stride}, kBF16);
  for (const Convolution& c : {Convolution{2000, 24, 31, 64, 3, 1},
                               {2000, 32, 31, 64, 3, 1},
                               {2000, 64, 15, 64, 3, 1},
                               {2000, 64, 15, 256, 3, 1},
                               {2000, 256, 7, 256, 3, 1}})
    add_convolution(rows, {c.images / large, c.in, c.h, c.out, c.k, c.stride}, kF16);
}

// --- Measuring -----------------------------------------------------------------------------------

struct Measured {
  double seconds = 0, host_seconds = 0;
  int kernels = 0;
};

void realize(Outputs outputs) {
  std::vector<Tensor*> all;
  for (Tensor& t : outputs) all.push_back(&t);
  Tensor::realize(all);
}

Measured measure(const Work& work, Device& device) {
  Measured m;
  std::vector<double> times, host;
  double total = 0;
  for (int i = -3; i < 5 || (total < 0.3 && i < 50); ++i) {
    Arena::global().collect();  // what the last round computed is computed again
    KernelClock clock;
    realize(work());
    if (i < 0) continue;
    times.push_back(clock.seconds);
    total += clock.seconds;
    m.kernels = clock.kernels;
  }
  for (int i = 0; i < 9; ++i) {
    device.synchronize();
    Arena::global().collect();
    const double start = bench::seconds();
    realize(work());
    host.push_back(bench::seconds() - start);
  }
  device.synchronize();
  m.seconds = bench::summary(times).median;
  m.host_seconds = bench::summary(host).median;
  return m;
}

// Bytes read and written per second by a copy that no cache holds.
double copy_rate(Device& device) {
  const size_t bytes = device.target().kind == Target::Kind::Gpu ? size_t{1} << 30 : 64 << 20;
  void *from = device.alloc(bytes), *to = device.alloc(bytes);
  constexpr int kTimes = 4;
  const bench::Timing t = bench::measure(9, [&] {
    for (int i = 0; i < kTimes; ++i) device.copy(to, from, bytes);
    device.synchronize();
  });
  device.free(from, bytes);
  device.free(to, bytes);
  return 2.0 * kTimes * static_cast<double>(bytes) / t.median;
}

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

// Seconds of one of `count` launches that `work` makes.
template <class F> double per_launch(Device& device, size_t count, F work) {
  const bench::Timing t = bench::measure(9, [&] {
    work();
    device.synchronize();
  });
  return t.median / static_cast<double>(count);
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
  const double alone = per_launch(device, kCount, [&] {
    for (size_t i = 0; i < kCount; ++i) device.launch(*kernel.program, kernel.launch, args);
  });
  const auto add = [&](const char* row, double seconds, const std::string& what) {
    report.add(row, seconds, {}, text_of("%7.3f us for ", seconds * 1e6) + what, "");
  };
  add("launch", alone, "a kernel launched alone");
  const auto recording =
      device.record({kCount, LaunchItem{kernel.program.get(), kernel.launch, args}});
  add("launch_recorded", per_launch(device, kCount, [&] { recording->launch(); }),
      "a kernel of a recording");
  device.free(out, bytes);

  const EnvOverride apart("FUSE", "0");  // a step for each link
  Tensor chain = x;
  for (size_t i = 0; i < kChain; ++i) chain = (chain + y).contiguous();
  const Scheduled list = schedule_of(chain, name);
  const size_t steps = list.schedule->steps.size();
  add("launch_scheduled", per_launch(device, steps, [&] { run(*list.schedule, list.inputs); }),
      cat("a step of a schedule of ", steps));
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
      throw Error(cat(name, " is no option: known are --device, --size, --filter, --peers, ",
                      "--append, --commit"));
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
  std::vector<Row> rows;
  add_elementwise(rows, o.size);
  add_reductions(rows, o.size);
  add_network(rows, o.size);
  add_batch_norm(rows, o.size);
  add_products(rows, o.size);
  add_convolutions(rows, o.size);
  const double copy = copy_rate(device);
  std::printf("%s, size %lld; a large copy moves %.1f GB/s\n", o.device.c_str(),
              static_cast<long long>(o.size), copy * 1e-9);
  for (const Row& row : rows)
    attempt(row.name, [&] { report_row(row, measure(row.prepare(), device), copy, report); });
  attempt("launch", [&] { bench_launches(o.device, device, report); });
  attempt("mnist", [&] { bench_mnist(o, report); });
  return failures;
}

}  // namespace

int main(int argc, char** argv) {
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
