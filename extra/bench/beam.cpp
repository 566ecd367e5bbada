// What searching for options (BEAM) gains, one JSON line per row: kernels with the heuristic's
// options and with those found take turns in this process, on the device of DEVICE.
//   beam [--seconds S] [--width W] [--append FILE] [--product bf16_nn_512x256x1024]...
//        [part of a row's name]...
// The search of a row has S seconds (60); its cache is CACHE_DIR's, so that a second run finds what
// the first one found, and so must a second search in this one: "again_s" is what it spends. Rows
// of a GPU are those of gpu.cpp, in time on the device with cold caches, with their share of a
// large copy's rate where memory limits them; of networks, and on a CPU, the host's time counts.
#include <cstdio>
#include <cxxopts.hpp>
#include <fstream>
#include <functional>
#include <iostream>

#include "extra/bench/gpu_rows.h"
#include "extra/bench/networks.h"
#include "extra/bench/record.h"
#include "extra/bench/timing.h"
#include "runtime/device/device.h"
#include "runtime/kernels/kernel.h"
#include "runtime/realize/realize.h"
#include "runtime/search/program.h"
#include "tiny/base/env.h"
#include "tiny/tiny.h"

using namespace tiny;
using namespace tiny::nn;

namespace {

using Work = std::function<void()>;
struct Row {
  std::string name;
  std::function<Work()> prepare;
  double bytes = 0;        // of memory, where it limits the row
  double flops = 0;        // of a product
  bool on_device = false;  // its time is the device's
};

constexpr int64_t kSide = 4096;

Tensor uniform(const Shape& shape) { return Tensor::rand(shape).realize(); }

Row of_matrix(const char* name, Tensor (*f)(const Tensor&)) {
  return {name, [f]() -> Work {
            const Tensor x = uniform({kSide, kSide});
            return [=] { f(x).realize(); };
          }};
}

Row product(const char* name, int64_t n) {
  return {name, [n]() -> Work {
            const Tensor a = uniform({n, n}), b = uniform({n, n});
            return [=] { a.matmul(b).realize(); };
          }};
}

Work mnist_step() {
  const auto model = std::make_shared<Sequential>(bench::mnist_network());
  const auto optimizer = std::make_shared<Adam>(model->tensors());
  const Tensor x = uniform({128, 1, 28, 28}), y = Tensor::randint(0, 10, {128}).realize();
  return [=] {
    const Training mode;
    Tensor loss = cross_entropy((*model)(x), y);
    loss.backward();
    optimizer->step({&loss});
  };
}

Work resnet50_step() {
  const auto model = std::make_shared<bench::ResNet50>(true);
  std::vector<Tensor*> parameters;
  for (Tensor& t : model->parameters()) parameters.push_back(&t);
  const auto optimizer = std::make_shared<SGD>(parameters, 1e-3);
  const Tensor x = uniform({8, 3, 64, 64}), y = Tensor::randint(0, 1000, {8}).realize();
  return [=] {
    const Training mode;
    Tensor loss = cross_entropy((*model)(x), y);
    loss.backward();
    optimizer->step({&loss});
  };
}

std::vector<Row> rows_of_networks() {
  return {{"mnist_step", mnist_step}, {"resnet50_step", resnet50_step}};
}

std::vector<Row> rows_of_cpu() {
  std::vector<Row> all = {
      of_matrix("sin", [](const Tensor& x) { return ((x + 1.0) * 2.0).sin(); }),
      of_matrix("softmax", [](const Tensor& x) { return x.softmax(1); }),
      of_matrix("layer_norm", [](const Tensor& x) { return layer_norm(x, {kSide}); }),
      of_matrix("transpose_add", [](const Tensor& x) { return x + x.t(); }),
      of_matrix("sum_all", [](const Tensor& x) { return x.sum(); }),
      of_matrix("sum_rows", [](const Tensor& x) { return x.sum({1}); }),
      of_matrix("sum_columns", [](const Tensor& x) { return x.sum({0}); }),
      product("matmul_512", 512),
      product("matmul_1024", 1024),
      product("matmul_2048", 2048),
  };
  for (Row& row : rows_of_networks()) all.push_back(std::move(row));
  return all;
}

// `products`: instead of the other rows.
std::vector<Row> rows(bool gpu, const std::vector<std::string>& products) {
  std::vector<Row> all;
  std::vector<bench::Row> kernels;
  for (const std::string& text : products) add_product(kernels, bench::product_from_text(text));
  if (gpu && products.empty()) kernels = bench::gpu_rows(bench::kPeerSize);
  for (const bench::Row& row : kernels)
    all.push_back({row.name,
                   [row]() -> Work {
                     const bench::Work work = row.prepare();
                     return [work] { bench::realize(work()); };
                   },
                   row.bytes, row.flops, gpu});
  if (!products.empty()) return all;
  const std::vector<Row> others = gpu ? rows_of_networks() : rows_of_cpu();
  all.insert(all.end(), others.begin(), others.end());
  return all;
}

// Runs it until the search has nothing more to do, which a run earns time for (runtime/
// search_program.cpp); the seconds that it spent.
SearchCounts search(const Work& work, const std::string& width, const std::string& seconds) {
  const EnvOverride beam("BEAM", width), budget("BEAM_BUDGET", seconds);
  reset_searches();
  clear_kernel_cache();
  double since = bench::seconds();
  for (int idle = 0; idle < 3 || bench::seconds() - since < 0.1; ++idle) {
    const double before = search_counts().seconds;
    Arena::global().collect();
    work();
    if (search_counts().seconds > before) idle = -1, since = bench::seconds();
  }
  return search_counts();
}

// The fastest of a few runs, with kernels made anew.
double block(const Row& row, const Work& work, Device& device, const std::string& width) {
  const EnvOverride beam("BEAM", width), spent("BEAM_BUDGET", "0");
  clear_kernel_cache();
  const auto run = [&] {
    Arena::global().collect();
    KernelClock clock;
    work();
    if (!row.on_device) device.synchronize();
    return clock.seconds;
  };
  run();
  if (!row.on_device) return bench::measure(3, run).best;
  std::vector<double> times;
  for (int i = 0; i < 5; ++i) times.push_back(run());
  return bench::summary(times).median;
}

void bench_row(const Row& row, const std::string& width, const std::string& seconds, double copy,
               std::ostream& out) {
  const int turns = row.on_device ? 5 : 15;
  const Work work = row.prepare();
  Device& device = find_device(runtime_seam::default_device());
  const SearchCounts first = search(work, width, seconds), again = search(work, width, seconds);
  std::vector<double> before, after, ratios;
  for (int i = 0; i < turns; ++i) {
    before.push_back(block(row, work, device, "0"));
    after.push_back(block(row, work, device, width));
    ratios.push_back(before.back() / after.back());
  }
  const double was = bench::summary(before).median, is = bench::summary(after).median;
  char line[400];
  std::snprintf(line, sizeof line,
                ", \"name\": \"beam_%s\", \"width\": %s, \"searched_s\": %.1f, \"again_s\": %.1f, "
                "\"timed\": %d, \"heuristic_ms\": %.4f, \"ms\": %.4f, \"speedup\": %.3f, "
                "\"speedup_of_best\": %.3f",
                row.name.c_str(), width.c_str(), first.seconds, again.seconds, first.timed,
                was * 1e3, is * 1e3, bench::summary(ratios).median,
                bench::summary(before).best / bench::summary(after).best);
  out << bench::record(bench::machine_name(runtime_seam::default_device())) << line;
  if (row.flops > 0) out << ", \"tflops\": " << row.flops / is / 1e12;
  if (row.bytes > 0 && copy > 0)
    out << ", \"heuristic_of_copy\": " << row.bytes / was / copy
        << ", \"of_copy\": " << row.bytes / is / copy;
  out << "}" << std::endl;
}

int run(int count, char** arguments) {
  cxxopts::Options options("beam", "Kernels before and after a search for their options.");
  options.add_options()("seconds", "for each row's search",
                        cxxopts::value<int>()->default_value("60"))(
      "width", "of the beam", cxxopts::value<int>()->default_value("2"))(
      "append", "to this file, besides printing", cxxopts::value<std::string>()->default_value(""))(
      "product", "as bench/gpu takes it, instead of the other rows",
      cxxopts::value<std::vector<std::string>>())(
      "row", "part of its name", cxxopts::value<std::vector<std::string>>()->default_value(""))(
      "version", "prints the version")("help", "this text");
  options.parse_positional({"row"});
  const auto given = options.parse(count, arguments);
  if (given.count("help")) {
    std::cout << options.help();
    return 0;
  }
  Device& device = find_device(runtime_seam::default_device());
  const bool gpu = device.target().kind == Target::Kind::Gpu;
  const double copy = gpu ? bench::copy_rate(device) : 0;
  const auto wanted = given["row"].as<std::vector<std::string>>();
  const auto products = given.count("product") ? given["product"].as<std::vector<std::string>>()
                                               : std::vector<std::string>();
  for (const Row& row : rows(gpu, products)) {
    if (std::none_of(wanted.begin(), wanted.end(), [&](const std::string& part) {
          return row.name.find(part) != std::string::npos;
        }))
      continue;
    std::ofstream file(given["append"].as<std::string>(), std::ios::app);
    std::ostringstream line;
    bench_row(row, cat(given["width"].as<int>()), cat(given["seconds"].as<int>()), copy, line);
    std::cout << line.str() << std::flush;
    if (file.is_open()) file << line.str();
  }
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  if (print_version("beam", count, arguments)) return 0;
  try {
    return run(count, arguments);
  } catch (const std::exception& e) {
    std::cerr << "beam: " << e.what() << '\n';
    return 1;
  }
}
