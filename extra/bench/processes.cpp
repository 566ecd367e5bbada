// A step of training a small GPT-2 data parallel on processes of one machine, or a network of
// products in a pipeline of as many stages, beside what a model says of it (extra/bench/cluster.h).
//
//   THREADS=1 extra/launch -n 4 build/release/bench/processes
//   THREADS=1 extra/launch -n 2 build/release/bench/processes --pipeline
//
// In turns, seven times: all-reduces of all processes two by two, and a step of each alone, at
// once, so that they take caches and cores from one another as those of the run do, from which the
// model is made; and a step of all. One JSON line for each batch, medians in milliseconds: what the
// model says of a step, and of its exchange; what it took of the cores, process 0's seconds on its
// core times the processes on each; and the same by the clock, which others who use the machine
// change: there a step of each alone takes until the slowest of them is done.
//
// Of a pipeline a line for each number of micro-batches, by the clock alone, since its stages wait:
// what process 0 takes for the same micro-batches through all stages is what the model is made of.
// Least seconds of many turns, which others who use the machine change less.
#include <algorithm>
#include <ctime>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "extra/bench/cluster.h"
#include "extra/bench/gpt2.h"
#include "extra/bench/record.h"
#include "extra/bench/replays.h"
#include "tiny/run/version.h"

using namespace tiny;

namespace {

using Devices = std::vector<std::string>;
using Step = std::function<void()>;

constexpr const char* kByClock = " by the clock";  // behind the name of what was measured
constexpr int64_t kBatches[] = {2, 8};             // texts of each process
constexpr int64_t kSums[] = {1 << 10, 8 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20};  // bytes
constexpr bench::Gpt2Sizes kSizes{
    .vocabulary = 512, .positions = 32, .width = 256, .heads = 4, .layers = 2};

bench::Gpt2Training training(int64_t batch, const Devices& devices) {
  manual_seed(1);
  return bench::gpt2_training(kSizes, batch, {devices, /*is_cut=*/false, kF32});
}

// All are here when one returns.
void meet() { (Tensor::zeros({rank_count(), 1}).shard(rank_devices(), 0) + 1).sum().item<float>(); }

bench::Exchange exchange() {
  bench::Exchange out;
  for (const int64_t bytes : training(kBatches[0], {"CPU"}).gradient_bytes)
    out.sums.push_back(static_cast<double>(bytes));
  return out;
}

bench::Cluster host(int processes) {
  bench::Cluster c;
  c.devices = processes;
  c.processors = static_cast<int>(std::thread::hardware_concurrency());
  return c;
}

// Medians of what is measured in turns.
class Medians {
 public:
  void add(const std::string& name, double seconds) { all_[name].push_back(seconds); }
  double operator()(const std::string& name) const { return bench::summary(all_.at(name)).median; }
  double least(const std::string& name) const { return std::ranges::min(all_.at(name)); }

 private:
  std::map<std::string, std::vector<double>> all_;
};

// `seconds`: of a name.
template <class F> bench::Links links_of(F seconds) {
  std::vector<bench::MeasuredSum> out;
  for (const int64_t bytes : kSums)
    out.push_back({static_cast<double>(bytes), seconds(std::to_string(bytes))});
  return bench::fit_links(out, host(2));
}

// So many steps that follow one another: what each takes by the clock, and of this process's core.
void measure(const std::string& name, const Devices& devices, const Step& step, Medians& to,
             int times = 4) {
  step();
  bench::wait(devices);
  const double start = bench::seconds();
  const std::clock_t used = std::clock();
  for (int i = 0; i < times; ++i) step();
  bench::wait(devices);
  to.add(name + kByClock, (bench::seconds() - start) / times);
  to.add(name, static_cast<double>(std::clock() - used) / CLOCKS_PER_SEC / times);
}

template <class F> Step replayed(const F& once) {
  const auto jit = std::make_shared<Jit<F>>(once);
  return [jit] { (*jit)(); };
}

// All-reduces of so many bytes, of all processes two by two, at once.
Step sum_of(int64_t bytes, const Devices& devices) {
  std::vector<Tensor> pairs;
  for (size_t i = 0; i + 1 < devices.size(); i += 2)
    pairs.push_back(
        (Tensor::zeros({2, bytes / 4}).shard({devices[i], devices[i + 1]}, 0) + 1).realize());
  return replayed([pairs] {
    std::vector<Tensor> sums;
    for (const Tensor& pair : pairs) sums.push_back(pair.sum(0));
    return sums;
  });
}

std::string field(const char* name, double value) { return cat(", \"", name, "\": ", value); }

// What the model says of a step, from seconds of the cores, or from those by the clock, which with
// several processes on a core are those of all of them, and those until the slowest is done.
struct Modelled {
  bench::Links links;
  double own, exchange, step;
};
Modelled modelled(const Medians& of, bool by_clock) {
  const std::string suffix = by_clock ? kByClock : "";
  bench::Cluster c = host(rank_count());
  const double shared = by_clock ? bench::crowding(c) : 1;
  c.inside = links_of([&](const std::string& name) { return of(name + suffix) / shared; });
  const bench::Exchange sums = exchange();
  const double own = of((by_clock ? "slowest" : "own") + suffix) / shared;
  return {c.inside, own, bench::exchange_seconds(sums, c), bench::step_seconds(own, sums, c)};
}

void tell(int64_t batch, const Medians& of) {
  const bench::Cluster c = host(rank_count());
  const Modelled cores = modelled(of, false), clock = modelled(of, true);
  const double used = bench::crowding(c) * of("all"), taken = of(cat("all", kByClock));
  std::cout << bench::record(bench::cpu_name()) << ", \"name\": \"processes_gpt2\""
            << field("processes", c.devices) << field("cores", c.processors)
            << field("batch", static_cast<double>(batch))
            << field("message_us", cores.links.seconds * 1e6)
            << field("gb_per_s", cores.links.bytes_per_second * 1e-9)
            << field("own_ms", cores.own * 1e3) << field("exchange_ms", cores.exchange * 1e3)
            << field("modelled_ms", cores.step * 1e3) << field("cores_ms", used * 1e3)
            << field("deviation", cores.step / used - 1)
            << field("step_modelled_ms", clock.step * 1e3) << field("step_ms", taken * 1e3)
            << field("step_deviation", clock.step / taken - 1) << "}" << std::endl;
}

// --- Pipelines -----------------------------------------------------------------------------------

constexpr int64_t kWidth = 256, kRows = 32;  // of a product, of a micro-batch
constexpr int kMicroBatches[] = {1, 2, 4, 8, 16};

void tell_pipeline(int micro_batches, const Medians& of) {
  bench::Cluster c = host(rank_count());
  c.inside = links_of([&](const std::string& name) { return of.least(name + kByClock); });
  const double own = of.least(cat("own", kByClock)), all = of.least(cat("all", kByClock));
  const double bytes = kRows * kWidth * sizeof(float);
  const bench::Exchange messages{bench::Exchange::Pipeline,
                                 std::vector<double>(static_cast<size_t>(micro_batches), bytes)};
  const double modelled = bench::step_seconds(own / c.devices, messages, c);
  std::cout << bench::record(bench::cpu_name()) << ", \"name\": \"processes_pipeline\""
            << field("processes", c.devices) << field("cores", c.processors)
            << field("micro_batches", micro_batches)
            << field("bubble", bench::bubble(c.devices, micro_batches))
            << field("message_us", c.inside.seconds * 1e6)
            << field("gb_per_s", c.inside.bytes_per_second * 1e-9) << field("own_ms", own * 1e3)
            << field("modelled_ms", modelled * 1e3) << field("step_ms", all * 1e3)
            << field("step_deviation", modelled / all - 1) << "}" << std::endl;
}

// Training steps of so many stages, a network that lives as long as they do.
Step pipeline_step(const Devices& devices, int stages, int micro_batches) {
  manual_seed(1);
  std::vector<nn::Module*> modules;
  std::vector<std::shared_ptr<nn::Sequential>> all;
  for (int s = 0; s < stages; ++s) {
    if (all.size() < devices.size()) all.push_back(std::make_shared<nn::Sequential>());
    for (int layer = 0; layer < 4; ++layer) {
      all.back()->append(nn::Linear(kWidth, kWidth));
      all.back()->append(&Tensor::tanh);
    }
  }
  for (const auto& stage : all) modules.push_back(stage.get());
  const auto pipeline = std::make_shared<nn::Pipeline>(
      modules, devices, nn::PipelineOptions{.micro_batches = micro_batches});
  const auto optimizer = std::make_shared<SGD>(pipeline->tensors(), 1e-3);
  const Tensor x = Tensor::randn({kRows * micro_batches, kWidth}).realize();
  return replayed([=] {
    static_cast<void>(all);
    Tensor loss = pipeline->backward(
        x, x, [](const Tensor& y, const Tensor& t) { return (y - t).square().mean(); });
    optimizer->step({&loss});
    return loss.to("CPU");
  });
}

void run_pipeline() {
  const int count = rank_count();
  check(count > 1, "one process alone: extra/launch -n 2 starts two");
  const nn::Training mode;
  const Devices ranks = rank_devices();
  std::vector<Step> sums;
  for (const int64_t bytes : kSums) sums.push_back(sum_of(bytes, ranks));
  for (const int m : kMicroBatches) {
    const Step own = pipeline_step({"CPU"}, count, m), all = pipeline_step(ranks, count, m);
    Medians medians;
    for (int turn = 0; turn < 100; ++turn) {
      for (size_t i = 0; i < sums.size(); ++i)
        measure(std::to_string(kSums[i]), ranks, sums[i], medians, 5);
      meet();
      if (rank() == 0) measure("own", {"CPU"}, own, medians, 1);
      meet();
      measure("all", ranks, all, medians, 1);
    }
    if (rank() == 0) tell_pipeline(m, medians);
  }
}

void run() {
  const int count = rank_count();
  check(count > 1, "one process alone: extra/launch -n 2 starts two");
  const nn::Training mode;
  const Devices ranks = rank_devices();
  std::vector<Step> sums;
  for (const int64_t bytes : kSums) sums.push_back(sum_of(bytes, ranks));
  for (const int64_t batch : kBatches) {
    const Step own = replayed(training(batch, {"CPU"}).step);
    const Step all = replayed(training(batch * count, ranks).step);
    const Step together = replayed(
        [one = (Tensor::zeros({count, 1}).shard(ranks, 0) + 1).realize()] { return one.sum(0); });
    const Step slowest = [&] {
      own();
      bench::wait({"CPU"});
      together();
      bench::wait(ranks);
    };
    for (int i = 0; i < 4; ++i) {
      for (const Step& sum : sums) sum();
      all();
    }
    Medians medians;
    for (int turn = 0; turn < 7; ++turn) {
      for (size_t i = 0; i < sums.size(); ++i)
        measure(std::to_string(kSums[i]), ranks, sums[i], medians, 50);
      meet();
      measure("own", {"CPU"}, own, medians);
      meet();
      measure("slowest", ranks, slowest, medians);
      measure("all", ranks, all, medians);
    }
    if (rank() == 0) tell(batch * count, medians);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (print_version("processes", argc, argv)) return 0;
  try {
    mute_other_ranks();
    const std::string option = argc > 1 ? argv[1] : "";
    check(argc <= 2 && (option.empty() || option == "--pipeline"), "'", argv[argc - 1],
          "': the only option is --pipeline");
    option.empty() ? run() : run_pipeline();
    return 0;
  } catch (const std::exception& e) {
    std::cerr << "processes: " << e.what() << std::endl;
    return 1;
  }
}
