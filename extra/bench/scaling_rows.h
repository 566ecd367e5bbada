// Rows of bench/scaling and of all-reduces (extra/bench/results/gpu.jsonl) as figures for the model
// of extra/bench/cluster.h.
#pragma once
#include <string>
#include <vector>

#include "extra/bench/cluster.h"
#include "extra/bench/results.h"

namespace tiny::bench {

// What a step of the row of that name exchanges. `bytes`: of its largest sum; `layers`: of the
// decoder; `small`: sums of a few bytes beside the gradients, of which the count of labels is one.
inline Exchange exchange_of(const std::string& name, double bytes, int64_t layers = 32,
                            int small = 1) {
  if (name.find("llama") != name.npos)
    return {Exchange::AllReduce, std::vector<double>(static_cast<size_t>(2 * layers), bytes)};
  if (name.find("tensor_parallel") != name.npos) return {Exchange::AllReduce, {bytes}};
  const bool is_cut = name.find("sharded") != name.npos;
  return gradients(is_cut ? Exchange::Sharded : Exchange::AllReduce, bytes, small);
}

struct ScalingRow {
  std::string name, commit;
  int devices = 0;
  double batch = 0, seconds = 0, summed_bytes = 0;
};

// In the order of the lines.
inline std::vector<ScalingRow> scaling_rows(const std::vector<std::string>& lines) {
  std::vector<ScalingRow> out;
  for (const std::string& line : lines) {
    if (const std::string name = field(line, "name"); name.starts_with("scaling_"))
      out.push_back({name, field(line, "commit"), static_cast<int>(number_field(line, "devices")),
                     number_field(line, "batch"), number_field(line, "step_ms") * 1e-3,
                     number_field(line, "summed_bytes")});
  }
  return out;
}

// Seconds of what one device alone has to do in a step of so many devices, whose samples together
// are `batch`, where a step of all takes `alone` seconds.
inline double own_seconds(const ScalingRow& alone, double batch, int devices) {
  return alone.seconds * batch / alone.batch / devices;
}

// All-reduces of so many GPUs of that machine, each size as it was measured last.
inline std::vector<MeasuredSum> all_reduce_rows(const std::vector<std::string>& lines,
                                                const std::string& machine) {
  std::vector<MeasuredSum> out;
  for (const std::string& line : lines) {
    const std::string name = field(line, "name"), prefix = "all_reduce_";
    if (!name.starts_with(prefix) || field(line, "machine") != machine) continue;
    const MeasuredSum sum{std::atof(name.c_str() + prefix.size()), number_field(line, "us") * 1e-6};
    std::erase_if(out, [&](const MeasuredSum& s) { return s.bytes == sum.bytes; });
    out.push_back(sum);
  }
  return out;
}

}  // namespace tiny::bench
