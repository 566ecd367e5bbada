// Training and generation on 1, 2, 4 ... devices. Data parallel: the MNIST example's network (f32),
// the CIFAR-10 example's, ResNet-50 and GPT-2 (bf16), with as many samples for each device (weak
// scaling) and with as many in all (strong scaling), and what a model of the step of one device and
// of the links says of these and of more (extra/bench/cluster.h). GPT-2 also with everything cut
// over the devices (fully_shard). A pipeline of products. Tensor parallel: two layers, and a
// decoder of Llama 3's form that generates token after token.
//
//   scaling [--device CUDA] [--counts 1,2,4] [--filter NAME,NAME] [--size full|small]
//           [--batch N] [--length N] [--layers N] [--svg FILE] [--append FILE]
//   scaling --model extra/bench/results/gpu.jsonl [--counts 1,2,4] [--filter NAME] [--piece MIB]
//
// One JSON line per row: milliseconds of a step, samples (and tokens) per second, the speed over
// one device, and the bytes that each device holds while steps are replayed, beside those of one
// device. With --svg: speed over devices, as a chart.
#include <algorithm>
#include <cxxopts.hpp>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "extra/bench/cluster.h"
#include "extra/bench/gpt2.h"
#include "extra/bench/llama.h"
#include "extra/bench/networks.h"
#include "extra/bench/record.h"
#include "extra/bench/replays.h"
#include "extra/bench/scaling_rows.h"
#include "tiny/data/command_line.h"
#include "tiny/run/version.h"

using namespace tiny;

namespace {

using Devices = std::vector<std::string>;
using Step = std::function<Tensor()>;

// Sizes of models of language, and what the program was given for them.
struct Sizes {
  bench::Gpt2Sizes gpt2;
  bench::LlamaSizes llama;
  int64_t batch = 0;  // 0: that of the task
};

// A step on random values, and the bytes of its largest sum over the devices.
struct TrainingStep {
  Step step;
  int64_t summed_bytes;
  int64_t tokens = 0;  // of a sample
};

struct Task {
  const char* name;
  int64_t batch;
  bool for_each_device;  // the batch
  int norms;  // batch norms, each of which adds up three times where it takes all of the batch
  std::function<TrainingStep(int64_t batch, const Devices&, int64_t groups)> prepare = {};
  std::function<TrainingStep(int64_t batch, const Devices&, const Sizes&)> of_sizes = {};
  bool is_trained = true;  // data parallel or fully sharded
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

// Products in bf16 as a pipeline, each device a stage of as many.
TrainingStep pipeline_step(int64_t batch, const Devices& devices, const Sizes& sizes) {
  constexpr size_t kLayers = 16;
  const int64_t width = 4 * sizes.gpt2.width;
  const auto stages = std::make_shared<std::vector<nn::Sequential>>(devices.size());
  for (size_t i = 0; i < kLayers; ++i) {
    nn::Sequential& stage = (*stages)[i * devices.size() / kLayers];
    stage.append(nn::Linear(width, width));
    stage.append(&Tensor::tanh);
  }
  std::vector<nn::Module*> modules;
  for (nn::Sequential& s : *stages) modules.push_back(&s);
  const auto pipeline = std::make_shared<nn::Pipeline>(
      modules, devices, nn::PipelineOptions{.micro_batches = bench::kMicroBatches});
  const auto optimizer =
      std::make_shared<SGD>(pipeline->tensors(), 1e-3, SgdOptions{.momentum = 0.9});
  const Tensor x = Tensor::randn({batch, width}).to(kBF16).to(devices[0]).realize();
  const auto step = [stages, pipeline, optimizer, x] {
    const Autocast half(kBF16);
    Tensor loss = pipeline->backward(
        x, x, [](const Tensor& y, const Tensor&) { return y.to(kF32).square().mean(); });
    optimizer->step({&loss});
    return loss;
  };
  return {step, batch / bench::kMicroBatches * width * static_cast<int64_t>(kBF16.size())};
}

// GPT-2 in bf16 from f32 weights, which each device has, or a part of each.
TrainingStep gpt2_step(int64_t batch, const Devices& devices, const Sizes& sizes, bool is_cut) {
  const bench::Gpt2Training t = bench::gpt2_training(sizes.gpt2, batch, {devices, is_cut});
  const int64_t bytes =
      std::accumulate(t.gradient_bytes.begin(), t.gradient_bytes.end(), int64_t{0});
  return {t.step, bytes, sizes.gpt2.positions};
}

TrainingStep llama_step(int64_t, const Devices& devices, const Sizes& sizes) {
  const auto model = std::make_shared<bench::Llama>(sizes.llama, devices);
  return {[model] { return model->step(); }, sizes.llama.width * static_cast<int64_t>(kBF16.size()),
          1};
}

const std::vector<Task>& tasks() {
  const auto gpt2 = [](bool is_cut) {
    return [is_cut](int64_t batch, const Devices& devices, const Sizes& sizes) {
      return gpt2_step(batch, devices, sizes, is_cut);
    };
  };
  static const std::vector<Task> all{
      {"mnist_weak", 512, true, 2, mnist_step},
      {"mnist_strong", 2048, false, 2, mnist_step},
      {"cifar_weak", 1024, true, 6, cifar_step},
      {"cifar_strong", 2048, false, 6, cifar_step},
      {"resnet50_weak", 256, true, 53, resnet50_step},
      {"gpt2_data_weak", 16, true, 0, {}, gpt2(false)},
      {"gpt2_sharded_weak", 16, true, 0, {}, gpt2(true)},
      {"gpt2_data_strong", 16, false, 0, {}, gpt2(false)},
      {"gpt2_sharded_strong", 16, false, 0, {}, gpt2(true)},
      {"tensor_parallel", 4096, false, 0, tensor_parallel_step, {}, false},
      {"pipeline", 8192, false, 0, {}, pipeline_step, false},
      {"llama_decode", 1, false, 0, {}, llama_step, false}};
  return all;
}

struct StepCost {
  double seconds = 0;
  int64_t bytes = 0;  // most that one of the devices holds between two replays
};

// A step, of which some are replayed one after the other.
StepCost cost_of(const Step& once, const Devices& devices) {
  const nn::Training mode;
  Jit step(once);
  for (int i = 0; i < 4; ++i) step();
  const double estimate = bench::time_replays(1, 1, devices, [&] { step(); });
  const int replays = std::clamp(static_cast<int>(0.3 / estimate), 3, 200);
  StepCost cost{bench::time_replays(3, replays, devices, [&] { step(); })};
  for (const DeviceMemory& m : memory_report(0).devices)
    for (const std::string& d : devices)
      if (canonical_device(d) == m.device) cost.bytes = std::max(cost.bytes, m.live_bytes);
  return cost;
}

// What is assumed of a network, beside what was measured on one host: each GPU's own share of it.
constexpr bench::Links kNetwork{50e9, 10e-6};

// The links between the devices of this host, from all-reduces of two.
bench::Links measure_links(const std::string& first) {
  const Devices two = devices_from(first, 2);
  std::vector<bench::MeasuredSum> sums;
  for (int64_t bytes = 1 << 10; bytes <= 64 << 20; bytes *= 4)
    sums.push_back({static_cast<double>(bytes), bench::time_all_reduce(two, bytes).each});
  bench::Cluster c;
  c.devices = 2;
  return bench::fit_links(sums, c);
}

// Fields of a JSON line: the milliseconds of a step on so many GPUs of one host and, `many`, on two
// hosts of six and on 128 hosts of eight.
std::string modelled_of(double own, const bench::Exchange& exchange, const bench::Links& inside,
                        int count, bool many) {
  const auto field = [&](const char* name, int hosts, int devices) {
    const bench::Cluster c{hosts, devices, inside, kNetwork};
    return cat(", \"modelled_ms", name, "\": ", bench::step_seconds(own, exchange, c) * 1e3);
  };
  return field("", 1, count) + (many ? field("_12", 2, 6) + field("_1024", 128, 8) : "");
}

struct Options {
  std::string device, svg, append, statistics, model;
  std::vector<std::string> filters;
  std::vector<int> counts;
  double piece = bench::kPiece;
  Sizes sizes;
};

std::vector<std::string> listed(const std::string& text) {
  std::vector<std::string> out;
  std::istringstream list(text);
  for (std::string part; std::getline(list, part, ',');) out.push_back(part);
  return out;
}

// Of models of language: `size` and what was given beside it.
Sizes read_sizes(const std::string& size, int64_t batch, int64_t length, int64_t layers) {
  check(size == "full" || size == "small", "--size: full or small, not ", size);
  Sizes s;
  if (size == "small") {
    s.gpt2 = {.vocabulary = 512, .positions = 32, .width = 128, .heads = 4, .layers = 4};
    s.llama = {.layers = 2, .width = 128, .heads = 8, .kv_heads = 4, .hidden = 256, .words = 500};
    s.llama.positions = 64;
    s.batch = 4;
  }
  if (batch) s.batch = batch;
  if (length) s.gpt2.positions = s.llama.positions = length;
  if (layers) s.gpt2.layers = s.llama.layers = layers;
  return s;
}

Options read_options(int argc, char** argv) {
  cxxopts::Options options("scaling", "Training and generation on several devices.");
  const auto text = [](const char* standard) {
    return cxxopts::value<std::string>()->default_value(standard);
  };
  auto add = options.add_options();
  add("device", "the first one", text(""), "NAME");
  add("counts", "of devices, one first", text("1,2,4"), "N,N");
  add("filter", "parts of rows' names", text(""), "TEXT,TEXT");
  add("size", "of the models of language: GPT-2 124M and Llama 3 8B, or a few layers", text("full"),
      "full|small");
  add("batch", "of GPT-2: texts in all or for each device; 0: 16, or 4 small ones", text("0"), "N");
  add("length", "tokens of a text and of the decoder's cache; 0: as many as usual", text("0"), "N");
  add("layers", "of these models; 0: as many as usual", text("0"), "N");
  add("statistics",
      "of batch norm: of the samples of each device, as in PyTorch's data parallel "
      "training, or of all",
      text("each"), "each|all");
  add("piece", "MiB of gradients that are summed at a time, for the model", text("4"), "N");
  add("model", "measures nothing: the newest rows of such a file beside what the model says",
      text(""), "FILE");
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
  Options o{given.text("device"),
            given.new_file("svg"),
            given.new_file("append"),
            given.text("statistics"),
            given.text("model"),
            listed(given.text("filter")),
            {},
            given.number("piece", 0.001, 1e6) * (1 << 20),
            {}};
  const auto number = [&](const char* name) {
    return parse_number<int64_t>(name, given.text(name), 0, 1 << 20);
  };
  o.sizes = read_sizes(given.text("size"), number("batch"), number("length"), number("layers"));
  check(o.statistics == "each" || o.statistics == "all", "--statistics: each or all, not ",
        o.statistics);
  for (const std::string& n : listed(given.text("counts")))
    o.counts.push_back(parse_number<int>("counts", n, 1, 64));
  check(!o.counts.empty() && o.counts[0] == 1, "--counts: begins with 1, what others compare with");
  return o;
}

// One row's figures on so many devices; those on one are what later ones compare with.
class Row {
 public:
  Row(const Task& task, const Options& options, const bench::Links& links)
      : task_(task), options_(options), links_(links) {}

  // A JSON line without its machine and its end.
  std::string measure(int count) {
    const Devices devices = devices_from(options_.device, count);
    const int64_t own = task_.of_sizes && options_.sizes.batch && task_.is_trained
                            ? options_.sizes.batch
                            : task_.batch;
    const int64_t batch = own * (task_.for_each_device ? count : 1);
    const bool each = options_.statistics == "each";
    clear_caches();
    const TrainingStep step = task_.of_sizes ? task_.of_sizes(batch, devices, options_.sizes)
                                             : task_.prepare(batch, devices, each ? count : 1);
    const StepCost cost = cost_of(step.step, devices);
    const double sum = count > 1 ? bench::time_all_reduce(devices, step.summed_bytes).each : 0;
    const double per_second = static_cast<double>(batch) / cost.seconds;
    if (count == 1) alone_ = {cost.seconds / static_cast<double>(batch), cost.bytes};
    speed = alone_.seconds * per_second;
    std::string text = cat(", \"name\": \"scaling_", task_.name, "\", \"devices\": ", count,
                           ", \"batch\": ", batch, ", \"step_ms\": ", cost.seconds * 1e3,
                           ", \"samples_per_s\": ", per_second, ", \"speed\": ", speed,
                           ", \"summed_bytes\": ", step.summed_bytes, ", \"sum_us\": ", sum * 1e6,
                           ", \"device_bytes\": ", cost.bytes, ", \"memory_of_one\": ",
                           static_cast<double>(cost.bytes) / static_cast<double>(alone_.bytes));
    if (step.tokens)
      text += cat(", \"tokens_per_s\": ", per_second * static_cast<double>(step.tokens));
    if (task_.norms) text += cat(", \"statistics\": \"", options_.statistics, '"');
    if (count > 1 && links_.bytes_per_second) text += modelled(step.summed_bytes, batch, count);
    return text;
  }

  double speed = 1;  // of the last one, in devices

 private:
  // What a model says that a step takes; of as many samples for each device also on two hosts of
  // six and on 128 hosts of eight.
  std::string modelled(int64_t bytes, int64_t batch, int count) const {
    bench::RowOptions exchange{options_.sizes.llama.layers, 1, options_.piece};
    if (options_.statistics == "all") exchange.small += 3 * task_.norms;
    const double own = alone_.seconds * static_cast<double>(batch) / count;
    return modelled_of(own, bench::exchange_of(task_.name, static_cast<double>(bytes), exchange),
                       links_, count, task_.for_each_device);
  }

  const Task& task_;
  const Options& options_;
  const bench::Links links_;  // none: no model, which is of GPUs
  StepCost alone_;            // of a sample on one device
};

bool is_wanted(const Options& o, const std::string& name) {
  return o.filters.empty() ||
         std::any_of(o.filters.begin(), o.filters.end(),
                     [&](const std::string& f) { return name.find(f) != std::string::npos; });
}

// What the model makes of the newest rows of one GPU in a file, beside those of more.
void compare(const Options& o) {
  const std::vector<std::string> lines = bench::result_lines(o.model);
  check(!lines.empty(), "--model: ", o.model, " has no rows");
  const bench::Links links = bench::gpu_links(lines);
  std::cout << cat("{\"message_us\": ", links.seconds * 1e6,
                   ", \"gb_per_s\": ", links.bytes_per_second * 1e-9, "}\n");
  for (const int count : o.counts) {
    if (count == 1) continue;
    for (const auto& [name, p] : bench::newest_pairs(bench::scaling_rows(lines), count)) {
      if (!is_wanted(o, name)) continue;
      const double modelled = bench::modelled_seconds(p, links, {.piece = o.piece});
      const bool weak = p.many.batch > p.alone.batch;
      std::cout << cat(
          "{\"name\": \"", name, "\", \"commit\": \"", p.many.commit, "\", \"devices\": ", count,
          ", \"one_ms\": ", p.alone.seconds * 1e3, ", \"step_ms\": ", p.many.seconds * 1e3,
          ", \"deviation\": ", modelled / p.many.seconds - 1,
          modelled_of(bench::own_seconds(p.alone, p.many.batch, count),
                      bench::exchange_of(name, p.many.summed_bytes, {.piece = o.piece}), links,
                      count, weak),
          "}\n");
    }
  }
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
  const bool gpus = find_device(devices_from(o.device, 1)[0]).target().kind == Target::Kind::Gpu;
  const bench::Links links = gpus && o.counts.size() > 1 ? measure_links(o.device) : bench::Links();
  for (const Task& task : tasks()) {
    if (!is_wanted(o, task.name)) continue;
    ChartLine line{task.name, {}};
    Row row(task, o, links);
    for (const int count : o.counts) {
      say(bench::record(count > 1 ? cat(count, " x ", machine) : machine) + row.measure(count) +
          "}");
      line.points.push_back({count, row.speed});
    }
    chart.lines.push_back(line);
  }
  if (!o.svg.empty()) save_svg(o.svg, chart);
}

}  // namespace

int main(int argc, char** argv) {
  if (print_version("scaling", argc, argv)) return 0;
  try {
    const Options o = read_options(argc, argv);
    o.model.empty() ? run(o) : compare(o);
    return 0;
  } catch (const std::exception& e) {
    std::cerr << "scaling: " << e.what() << std::endl;
    return 1;
  }
}
