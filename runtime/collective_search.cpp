#include "runtime/collective_search.h"

#include <algorithm>
#include <iostream>
#include <limits>
#include <map>
#include <numeric>

#include "runtime/device/disk_cache.h"
#include "runtime/device/trace.h"
#include "runtime/distributed/messages.h"
#include "runtime/jit/replay.h"
#include "runtime/launch/capture.h"
#include "runtime/realize/realize.h"
#include "tiny/base/env.h"
#include "tiny/base/error.h"
#include "tiny/base/text.h"
#include "tiny/ir/build.h"
#include "tiny/run/ranks.h"

namespace tiny {

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kGain = 0.97;   // of the default's time: less is noise
constexpr double kHopeless = 5;  // times the best estimate
constexpr double kRun = 2e-3;    // seconds of replays between two looks at the clock
constexpr int kRepetitions = 7;

// --- Ranks ---------------------------------------------------------------------------------------

// The largest of the ranks' numbers, on all of them; nobody goes on before all are here.
double largest_of_ranks(double mine) {
  const char* what = "a time of a collective";
  double largest = mine;
  for (int i = 1; i < rank_count() && rank() == 0; ++i) {
    double other = 0;
    receive_message(i, &other, sizeof other, what);
    largest = std::max(largest, other);
  }
  for (int i = 1; i < rank_count() && rank() == 0; ++i)
    send_message(i, &largest, sizeof largest, what);
  if (rank() > 0) {
    send_message(0, &mine, sizeof mine, what);
    receive_message(0, &largest, sizeof largest, what);
  }
  return largest;
}

// Rank 0's text, on all ranks.
std::string text_of_first_rank(std::string text) {
  std::vector<int> all(static_cast<size_t>(rank_count()));
  std::iota(all.begin(), all.end(), 0);
  return text_of_first(all, std::move(text), "the way of a collective");
}

// --- Measuring -----------------------------------------------------------------------------------

// A graph of pieces with memory of their own, ready to run again and again.
class Trial {
 public:
  Trial(const Collective& c, const std::function<Pieces(const Pieces&)>& build)
      : devices_(c.devices) {
    Pieces pieces;
    for (int d : c.devices) {
      const auto b = std::make_shared<Buffer>(device_name(d), c.dtype, c.size);
      b->label = "a collective that is measured";
      if (!find_device(device_name(d)).is_remote) {
        const std::vector<std::byte> zeros(static_cast<size_t>(c.size) * c.dtype.size());
        b->upload(zeros.data());
      }
      inputs_.push_back(b);
      pieces.push_back(buffer_node(b));
    }
    Pieces roots;
    for (Node n : build(pieces)) roots.push_back(build::contiguous(n));
    const Normalized graph = normalize(roots);
    std::vector<int> devices;
    CapturedRun run;
    for (Node b : graph.buffers) {
      devices.push_back(b->device);
      run.inputs.push_back(b->arg<BufferArg>().buffer);
    }
    run.schedule = schedule(graph, devices, c.devices[0]);
    run.results = tiny::run(*run.schedule, run.inputs);
    std::vector<Tensor> results;
    for (const auto& b : run.results)
      if (b) results.emplace_back(buffer_node(b));
    Capture capture({});
    capture.runs.push_back(std::move(run));
    replay_ = std::make_unique<Replay>(capture, results);
  }

  // Seconds of so many runs, on the slowest rank.
  double seconds(int runs) {
    largest_of_ranks(0);
    const double start = steady_seconds();
    for (int i = 0; i < runs; ++i) replay_->repeat();
    for (int d : devices_) find_device(device_name(d)).synchronize();
    return largest_of_ranks(steady_seconds() - start);
  }

 private:
  const std::vector<int> devices_;
  std::vector<std::shared_ptr<Buffer>> inputs_;
  std::unique_ptr<Replay> replay_;
};

// Seconds of one run, the median of repetitions; kNever where a rank cannot, or it takes too long.
double measure(const Collective& c, const std::function<Pieces(const Pieces&)>& build) {
  const auto limit = static_cast<double>(env_int("COLLECTIVE_BEAM_LIMIT"));
  const double start = steady_seconds();
  std::unique_ptr<Trial> trial;
  try {
    trial = std::make_unique<Trial>(c, build);
  } catch (const Error&) {  // said by all, below
  }
  if (largest_of_ranks(trial ? 0 : 1) != 0) return kNever;
  const double first = trial->seconds(1);
  const int runs = std::clamp(static_cast<int>(kRun / first), 1, 100);
  std::vector<double> times;
  for (int i = 0; i < kRepetitions; ++i) {
    times.push_back(trial->seconds(runs) / runs);
    if (largest_of_ranks(steady_seconds() - start) > limit) return kNever;
  }
  std::nth_element(times.begin(), times.begin() + kRepetitions / 2, times.end());
  return times[kRepetitions / 2];
}

struct LinkSpeed {
  double latency = 0, rate = 0;
};

// From the second device to the first one; measured once for a list of devices.
LinkSpeed measured_link(const std::vector<int>& devices) {
  static auto& known = *new std::map<std::vector<int>, LinkSpeed>;
  const auto [at, fresh] = known.try_emplace(devices);
  if (!fresh) return at->second;
  const auto fetch = [&](int64_t bytes) {
    return measure({"copy", Op::Copy, kU8, bytes, devices},
                   [&](const Pieces& pieces) { return Pieces{bring(pieces[1], devices[0])}; });
  };
  constexpr int64_t kLarge = 8 << 20;
  const double small = fetch(1), large = fetch(kLarge);
  return at->second = {small, static_cast<double>(kLarge) / std::max(large - small, 1e-9)};
}

std::string key_of(const Collective& c) {
  TextStream out;
  out << "collective 1\n"
      << c.name << ' ' << info(c.op).name << ' ' << c.dtype << ' ' << c.size << '\n'
      << rank_count() << " processes\n";
  for (int d : c.devices) {
    Device& device = find_device(device_name(d));
    out << device_name(d) << ' ' << device.target().arch << ' ' << device.target().cores << ' '
        << device.rank << ' ' << device.missing_for_all_reduce(SumBy::Library, c.dtype).empty();
    for (int other : c.devices) out << ' ' << device.reads(find_device(device_name(other)));
    out << ' ' << device.compiler_id() << '\n';
  }
  return out.str();
}

// Nothing of what is captured, watched or searched at present.
std::string search(const Collective& c, const std::vector<std::string>& ways,
                   const std::string& otherwise,
                   const std::function<Pieces(const std::string&, const Pieces&)>& build) {
  const CapturePause pause;
  const EnvOverride beam("BEAM", "0"), debug("DEBUG", "0"), nan("CHECK_NAN", "0");
  const LinkSpeed link = measured_link(c.devices);
  const double bytes = static_cast<double>(c.size) * static_cast<double>(c.dtype.size());
  std::map<std::string, double> estimate;
  double least = kNever;
  for (const std::string& w : ways) {
    estimate[w] = estimated_seconds(w, c.devices.size(), bytes, link.latency, link.rate);
    least = std::min(least, estimate[w]);
  }
  std::string best = otherwise, table;
  double best_time = 0;
  // The default first: what is tried after it has to be better.
  std::vector<std::string> order{otherwise};
  for (const std::string& w : ways)
    if (w != otherwise) order.push_back(w);
  for (const std::string& w : order) {
    if (w != otherwise && estimate[w] > kHopeless * least) continue;
    const double time = measure(c, [&](const Pieces& p) { return build(w, p); });
    table += cat(' ', w, ' ', time * 1e6, " us");
    if (w == otherwise) best_time = kGain * time;
    if (time >= best_time) continue;
    best = w;
    best_time = time;
  }
  if (env_int("COLLECTIVE_BEAM") >= 2 && rank() == 0)
    std::cerr << cat(c.name, " of ", c.dtype, "[", c.size, "] on ", c.devices.size(),
                     " devices: ", best, ";", table, "\n");
  return best;
}

}  // namespace

double estimated_seconds(const std::string& way, size_t devices, double bytes, double latency,
                         double rate) {
  const auto k = static_cast<double>(devices);
  const double all = (k - 1) * bytes / rate, parts = 2 * (k - 1) / k * bytes / rate;
  if (way == "ring") return 2 * (k - 1) * latency + parts;
  if (way == "two_shot" || way == "two_shot_direct") return 2 * latency + parts;
  if (way == "nccl" || way == "flags") return latency + parts;
  return latency + all;  // naive, one_shot
}

std::string fastest_way(const Collective& c, const std::vector<std::string>& ways,
                        const std::string& otherwise,
                        const std::function<Pieces(const std::string&, const Pieces&)>& build) {
  static auto& known = *new std::map<std::string, std::string>;
  const std::string key = key_of(c);
  std::string& way = known[key];
  if (!way.empty()) return way;
  const std::string folder = cache_folder(), file = hex(sha256(key));
  std::string found;
  if (rank() == 0 && !folder.empty()) found = cache_get(folder, file).value_or("");
  if (rank() == 0 && !contains(ways, found)) found.clear();
  if (rank_count() > 1) found = text_of_first_rank(found);
  if (found.empty()) {
    found = search(c, ways, otherwise, build);
    if (rank_count() > 1) found = text_of_first_rank(found);
    if (rank() == 0 && !folder.empty()) cache_put(folder, file, found);
  }
  return way = found;
}

}  // namespace tiny
