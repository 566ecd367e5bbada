// A step of training a small GPT-2 data parallel on processes of one machine, beside what a model
// says of it (extra/bench/cluster.h).
//
//   THREADS=1 extra/launch -n 4 build/release/bench/processes
//
// First what the model is made from, while the other processes wait: a step of one process alone,
// in as many at once as there are cores, and all-reduces between two. Then a step of all. One JSON
// line for each batch: the milliseconds of a step as the model and as the clock has them, and those
// that the model takes for the exchange.
#include <iostream>
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

constexpr int64_t kBatches[] = {2, 8};  // texts of each process
constexpr bench::Gpt2Sizes kSizes{
    .vocabulary = 512, .positions = 32, .width = 256, .heads = 4, .layers = 2};

bench::Gpt2Training training(int64_t batch, const Devices& devices) {
  manual_seed(1);
  return bench::gpt2_training(kSizes, batch, {devices, /*is_cut=*/false, kF32});
}

// Seconds of a replayed step: the median of runs of four that follow one another.
double step_seconds(int64_t batch, const Devices& devices) {
  const nn::Training mode;
  Jit step(training(batch, devices).step);
  for (int i = 0; i < 4; ++i) step();
  return bench::time_replays(11, 4, devices, [&] { step(); });
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

bench::Links measure_links() {
  const Devices all = rank_devices(), two(all.begin(), all.begin() + 2);
  std::vector<bench::MeasuredSum> sums;
  for (int64_t bytes = 1 << 10; bytes <= 4 << 20; bytes *= 4)
    sums.push_back({static_cast<double>(bytes), bench::time_all_reduce(two, bytes).each});
  meet();
  return bench::fit_links(sums, host(2));
}

void run() {
  const int count = rank_count();
  check(count > 1, "one process alone: extra/launch -n 2 starts two");
  bench::Cluster c = host(count);
  c.inside = measure_links();
  const bench::Exchange sums = exchange();
  for (const int64_t batch : kBatches) {
    meet();
    const double own = rank() < c.processors ? step_seconds(batch, {"CPU"}) : 0;
    meet();
    const double measured = step_seconds(batch * count, rank_devices());
    const double modelled = bench::step_seconds(own, sums, c);
    std::cout << bench::record(bench::cpu_name())
              << cat(", \"name\": \"processes_gpt2\", \"processes\": ", count,
                     ", \"cores\": ", c.processors, ", \"batch\": ", batch * count,
                     ", \"message_us\": ", c.inside.seconds * 1e6,
                     ", \"gb_per_s\": ", c.inside.bytes_per_second * 1e-9,
                     ", \"own_ms\": ", own * 1e3,
                     ", \"exchange_ms\": ", bench::exchange_seconds(sums, c) * 1e3,
                     ", \"modelled_ms\": ", modelled * 1e3, ", \"step_ms\": ", measured * 1e3,
                     ", \"deviation\": ", modelled / measured - 1, "}")
              << std::endl;
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (print_version("processes", argc, argv)) return 0;
  try {
    mute_other_ranks();
    check(argc == 1, "'", argv[1], "': there are no options");
    run();
    return 0;
  } catch (const std::exception& e) {
    std::cerr << "processes: " << e.what() << std::endl;
    return 1;
  }
}
