// Data-parallel training on 1, 2, 4 ... devices: steps per second of the MNIST example's network
// (f32), of the CIFAR-10 example's and of ResNet-50 (bf16), with as many samples for each device
// (weak scaling) and with as many in all (strong scaling), and what a model of the measured figures
// says of more GPUs. Tensor parallel: two layers that are cut over the devices.
//
//   scaling [--device CUDA] [--counts 1,2,4] [--svg FILE] [--append FILE] [--filter NAME]
//
// One JSON line per row. With --svg: speed over devices, as a chart.
#include <algorithm>
#include <cxxopts.hpp>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "extra/bench/networks.h"
#include "extra/bench/record.h"
#include "extra/bench/replays.h"
#include "tiny/data/command_line.h"
#include "tiny/run/version.h"

using namespace tiny;

namespace {

using Devices = std::vector<std::string>;
using Step = std::function<Tensor()>;

// A training step on random values, and the bytes of its largest sum over the devices.
struct TrainingStep {
  Step step;
  int64_t summed_bytes;
};

struct Task {
  const char* name;
  int64_t batch;
  bool for_each_device;  // the batch
  int norms;  // batch norms, each of which adds up three times where it takes all of the batch
  std::function<TrainingStep(int64_t batch, const Devices&, int64_t groups)> prepare;
};

int64_t bytes_of(const std::vector<Tensor*>& parameters) {
  int64_t bytes = 0;
  for (const Tensor* t : parameters) bytes += t->numel() * t->dtype().size();
  return bytes;
}

// Of a network that tells classes apart, on pictures (batch, ...picture) in this dtype; batch norm
// has statistics of `groups` groups of the batch.
struct Pictures {
  Shape picture;
  int classes;
  DType dtype;  // and that of the products
};

template <class Network, class Optimize>
TrainingStep classifier_step(std::shared_ptr<Network> model, const Pictures& of, int64_t batch,
                             const Devices& devices, Optimize optimize) {
  std::vector<Tensor*> parameters;
  for (Tensor* t : model->tensors()) {
    t->shard_(devices);
    if (t->requires_grad()) parameters.push_back(t);
  }
  Shape shape{batch};
  shape.insert(shape.end(), of.picture.begin(), of.picture.end());
  const auto optimizer = optimize(model->tensors());
  const Tensor x = Tensor::rand(shape).to(of.dtype).shard(devices, 0).realize();
  const Tensor y = Tensor::randint(0, of.classes, {batch}).shard(devices, 0).realize();
  const auto step = [=] {
    const Autocast products(of.dtype);
    Tensor loss = cross_entropy((*model)(x), y);
    loss.backward();
    optimizer->step({&loss});
    return loss;
  };
  return {step, bytes_of(parameters)};
}

std::shared_ptr<SGD> sgd(const std::vector<Tensor*>& tensors, const SgdOptions& options) {
  return std::make_shared<SGD>(tensors, 1e-3, options);
}

TrainingStep mnist_step(int64_t batch, const Devices& devices, int64_t groups) {
  return classifier_step(std::make_shared<nn::Sequential>(bench::mnist_network(groups)),
                         {{1, 28, 28}, 10, kF32}, batch, devices,
                         [](const auto& tensors) { return std::make_shared<Adam>(tensors); });
}

TrainingStep cifar_step(int64_t batch, const Devices& devices, int64_t groups) {
  return classifier_step(std::make_shared<nn::Sequential>(bench::cifar_network(groups)),
                         {{3, 32, 32}, 10, kBF16}, batch, devices, [](const auto& tensors) {
                           return sgd(tensors, {.momentum = 0.85, .nesterov = true});
                         });
}

TrainingStep resnet50_step(int64_t batch, const Devices& devices, int64_t groups) {
  return classifier_step(std::make_shared<bench::ResNet50>(true, groups),
                         {{3, 224, 224}, 1000, kBF16}, batch, devices,
                         [](const auto& tensors) { return sgd(tensors, {.momentum = 0.9}); });
}

// Two layers of a transformer in bf16, of whose hidden units each device has some: all have the
// batch, and what they add to the result is summed (examples/tensor_parallel.cpp).
TrainingStep tensor_parallel_step(int64_t batch, const Devices& devices, int64_t) {
  constexpr int64_t kWidth = 4096, kHidden = 16384;
  const auto up = std::make_shared<nn::Linear>(kWidth, kHidden);
  const auto down = std::make_shared<nn::Linear>(kHidden, kWidth);
  up->weight.shard_(devices, 0);
  up->bias.shard_(devices, 0);
  down->weight.shard_(devices, 1);
  down->bias.shard_(devices);
  const auto optimizer = std::make_shared<SGD>(
      std::vector<Tensor*>{&up->weight, &up->bias, &down->weight, &down->bias}, 1e-3,
      SgdOptions{.momentum = 0.9});
  const Tensor x = Tensor::randn({batch, kWidth}).to(kBF16).shard(devices).realize();
  const auto step = [=] {
    const Autocast half(kBF16);
    Tensor loss = (*down)((*up)(x).gelu()).to(kF32).square().mean();
    loss.backward();
    optimizer->step({&loss});
    return loss;
  };
  return {step, batch * kWidth * static_cast<int64_t>(kBF16.size())};
}

const std::vector<Task>& tasks() {
  static const std::vector<Task> all{{"mnist_weak", 512, true, 2, mnist_step},
                                     {"mnist_strong", 2048, false, 2, mnist_step},
                                     {"cifar_weak", 1024, true, 6, cifar_step},
                                     {"cifar_strong", 2048, false, 6, cifar_step},
                                     {"resnet50_weak", 256, true, 53, resnet50_step},
                                     {"tensor_parallel", 4096, false, 0, tensor_parallel_step}};
  return all;
}

// Seconds of a step, of which some are replayed one after the other.
double time_step(const Step& once, const Devices& devices) {
  const nn::Training mode;
  Jit step(once);
  for (int i = 0; i < 4; ++i) step();
  const double estimate = bench::time_replays(1, 1, devices, [&] { step(); });
  const int replays = std::clamp(static_cast<int>(0.3 / estimate), 3, 200);
  return bench::time_replays(3, replays, devices, [&] { step(); });
}

// What is assumed of two hosts of six GPUs each, beside what was measured on one.
constexpr int kGpusOfHost = 6;
constexpr double kNetwork = 50e9;  // bytes per second from a GPU of one host to one of the other
constexpr double kNetworkLatency = 10e-6;  // seconds of a message

// Seconds of a step on one host of n GPUs: those of one GPU and what the sums added where they were
// measured, of which the part that moves bytes grows as 2 (n - 1) / n, as it does for a
// reduce-scatter and an all-gather (P. Patarasuk and X. Yuan, "Bandwidth optimal all-reduce
// algorithms for clusters of workstations", 2009).
double modelled_step(double alone, double measured, double sum, double count, double n) {
  const auto share = [](double k) { return (k - 1) / k; };
  const double moved = std::min(sum, measured - alone);
  return measured + moved * (share(n) / share(count) - 1);
}

// On two such hosts each GPU also exchanges its slice of the sum with its partner on the other one.
double modelled_step_of_two(double step_of_host, double bytes, int sums) {
  return step_of_host + bytes / kGpusOfHost / kNetwork + sums * kNetworkLatency;
}

struct Options {
  std::string device, svg, append, filter, statistics;
  std::vector<int> counts;
};

Options read_options(int argc, char** argv) {
  cxxopts::Options options("scaling", "Data-parallel training on several devices.");
  const auto text = [](const char* standard) {
    return cxxopts::value<std::string>()->default_value(standard);
  };
  auto add = options.add_options();
  add("device", "the first one", text(""), "NAME");
  add("counts", "of devices, one first", text("1,2,4"), "N,N");
  add("filter", "part of a row's name", text(""), "TEXT");
  add("statistics",
      "of batch norm: of the samples of each device, as in PyTorch's data parallel "
      "training, or of all",
      text("each"), "each|all");
  add("svg", "a chart of the speeds", text(""), "FILE");
  add("append", "JSON lines go here too", text(""), "FILE");
  add("version", "prints the version");
  add("help", "prints this");
  const auto parsed = options.parse(argc, argv);
  if (parsed.count("help")) {
    std::cout << options.help();
    std::exit(0);
  }
  const Arguments given(parsed);
  Options o{given.text("device"), given.new_file("svg"),    given.new_file("append"),
            given.text("filter"), given.text("statistics"), {}};
  check(o.statistics == "each" || o.statistics == "all", "--statistics: each or all, not ",
        o.statistics);
  std::istringstream list(given.text("counts"));
  for (std::string n; std::getline(list, n, ',');)
    o.counts.push_back(parse_number<int>("counts", n, 1, 64));
  check(!o.counts.empty() && o.counts[0] == 1, "--counts: begins with 1, what others compare with");
  return o;
}

void run(const Options& o) {
  std::ofstream file;
  if (!o.append.empty()) file.open(o.append, std::ios::app);
  const auto say = [&](const std::string& line) {
    std::cout << line << std::endl;
    file << line << std::endl;
  };
  const EnvOverride device("DEVICE", o.device.empty() ? env_text("DEVICE") : o.device);
  const std::string machine = bench::machine_name(devices_from(o.device, 1)[0]);
  Chart chart{"training on several devices", "devices", "speed of one device", {}};
  const auto last = static_cast<double>(o.counts.back());
  chart.lines.push_back({"linear", {{1, 1}, {last, last}}});
  for (const Task& task : tasks()) {
    if (std::string(task.name).find(o.filter) == std::string::npos) continue;
    ChartLine line{task.name, {}};
    double alone = 0;  // seconds of a sample
    for (const int count : o.counts) {
      const Devices devices = devices_from(o.device, count);
      const int64_t batch = task.batch * (task.for_each_device ? count : 1);
      const bool each = o.statistics == "each";
      const TrainingStep training = task.prepare(batch, devices, each ? count : 1);
      const int64_t bytes = training.summed_bytes;
      const double step = time_step(training.step, devices);
      const double sum = count > 1 ? bench::time_all_reduce(devices, bytes).each : 0;
      if (count == 1) alone = step / static_cast<double>(batch);
      const double speed = alone / step * static_cast<double>(batch);
      line.points.push_back({count, speed});
      std::string text =
          cat(bench::record(machine), ", \"name\": \"scaling_", task.name,
              "\", \"devices\": ", count, ", \"batch\": ", batch, ", \"step_ms\": ", step * 1e3,
              ", \"samples_per_s\": ", static_cast<double>(batch) / step, ", \"speed\": ", speed,
              ", \"summed_bytes\": ", bytes, ", \"sum_us\": ", sum * 1e6);
      if (task.norms) text += cat(", \"statistics\": \"", o.statistics, '"');
      if (task.for_each_device && count > 1) {
        const double six =
            modelled_step(alone * static_cast<double>(task.batch), step, sum, count, kGpusOfHost);
        const int sums = 2 + (each ? 0 : 3 * task.norms);  // the count of labels, the gradients
        const double twelve = modelled_step_of_two(six, static_cast<double>(bytes), sums);
        text += cat(", \"modelled_ms_6\": ", six * 1e3, ", \"modelled_ms_2x6\": ", twelve * 1e3,
                    ", \"modelled_speed_2x6_over_6\": ", 2 * six / twelve);
      }
      say(text + "}");
    }
    chart.lines.push_back(line);
  }
  if (!o.svg.empty()) save_svg(o.svg, chart);
}

}  // namespace

int main(int argc, char** argv) {
  if (print_version("scaling", argc, argv)) return 0;
  try {
    run(read_options(argc, argv));
    return 0;
  } catch (const std::exception& e) {
    std::cerr << "scaling: " << e.what() << std::endl;
    return 1;
  }
}
