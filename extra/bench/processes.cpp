// A step of training a small GPT-2 data parallel on processes of one machine, beside what a model
// says of it (extra/bench/cluster.h).
//
//   THREADS=1 extra/launch -n 4 build/release/bench/processes
//
// In turns, seven times: all-reduces between two processes and a step of one alone, in as many
// processes at once as there are cores, while the others wait, from which the model is made; and a
// step of all. One JSON line for each batch: the medians of a step as the model and as the clock
// has them, and what the model takes for the exchange, in milliseconds.
#include <iostream>
#include <map>
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

 private:
  std::map<std::string, std::vector<double>> all_;
};

bench::Links links_of(const Medians& sums) {
  std::vector<bench::MeasuredSum> out;
  for (const int64_t bytes : kSums)
    out.push_back({static_cast<double>(bytes), sums(std::to_string(bytes))});
  return bench::fit_links(out, host(2));
}

void measure_sums(Medians& to) {
  const Devices all = rank_devices(), two(all.begin(), all.begin() + 2);
  for (const int64_t bytes : kSums)
    to.add(std::to_string(bytes), bench::time_all_reduce(two, bytes).each);
}

void tell(int64_t batch, const Medians& of) {
  bench::Cluster c = host(rank_count());
  c.inside = links_of(of);
  const bench::Exchange sums = exchange();
  const double modelled = bench::step_seconds(of("own"), sums, c);
  std::cout << bench::record(bench::cpu_name())
            << cat(", \"name\": \"processes_gpt2\", \"processes\": ", c.devices,
                   ", \"cores\": ", c.processors, ", \"batch\": ", batch,
                   ", \"message_us\": ", c.inside.seconds * 1e6,
                   ", \"gb_per_s\": ", c.inside.bytes_per_second * 1e-9,
                   ", \"own_ms\": ", of("own") * 1e3,
                   ", \"exchange_ms\": ", bench::exchange_seconds(sums, c) * 1e3,
                   ", \"modelled_ms\": ", modelled * 1e3, ", \"step_ms\": ", of("all") * 1e3,
                   ", \"deviation\": ", modelled / of("all") - 1, "}")
            << std::endl;
}

void run() {
  const int count = rank_count();
  check(count > 1, "one process alone: extra/launch -n 2 starts two");
  const nn::Training mode;
  const bool is_alone = rank() < host(count).processors;
  for (const int64_t batch : kBatches) {
    Jit own(training(batch, {"CPU"}).step), all(training(batch * count, rank_devices()).step);
    for (int i = 0; i < 4; ++i) all();
    Medians medians;
    for (int turn = 0; turn < 7; ++turn) {
      measure_sums(medians);
      meet();
      if (is_alone) medians.add("own", bench::time_replays(1, 4, {"CPU"}, [&] { own(); }));
      meet();
      medians.add("all", bench::time_replays(1, 4, rank_devices(), [&] { all(); }));
    }
    if (rank() == 0) tell(batch * count, medians);
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
