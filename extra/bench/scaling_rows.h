// Rows of bench/scaling and of all-reduces (extra/bench/results/gpu.jsonl) as figures for the model
// of extra/bench/cluster.h.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "extra/bench/cluster.h"
#include "extra/bench/results.h"

namespace tiny::bench {

struct RowOptions {
  int64_t layers = 32;  // of the decoder
  int small = 1;        // sums of a few bytes beside gradients, of which the count of labels is one
  double piece = kPiece;  // bytes of gradients that are summed at a time
};

constexpr int kMicroBatches = 16;  // of the row of a pipeline

// What a step of the row of that name exchanges, whose largest sum, or message, is of so many
// bytes.
inline Exchange exchange_of(const std::string& name, double bytes, const RowOptions& o = {}) {
  if (name.find("llama") != name.npos)
    return {Exchange::AllReduce, std::vector<double>(static_cast<size_t>(2 * o.layers), bytes)};
  if (name.find("tensor_parallel") != name.npos) return {Exchange::AllReduce, {bytes}};
  if (name.find("pipeline") != name.npos)
    return {Exchange::Pipeline, std::vector<double>(kMicroBatches, bytes)};
  const bool is_cut = name.find("sharded") != name.npos;
  return gradients(is_cut ? Exchange::Sharded : Exchange::AllReduce, bytes, o.small, o.piece);
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

// Of one name: the newest row of so many devices, and that of one device of the same commit.
struct RowPair {
  ScalingRow alone, many;
};

inline std::map<std::string, RowPair> newest_pairs(const std::vector<ScalingRow>& rows,
                                                   int devices) {
  std::map<std::string, RowPair> out;
  std::map<std::string, ScalingRow> alone;
  for (const ScalingRow& r : rows) {
    if (r.devices == 1) alone[r.name] = r;
    if (r.devices == devices && alone.count(r.name) && alone[r.name].commit == r.commit)
      out[r.name] = {alone[r.name], r};
  }
  return out;
}

// What the model makes of the row of one device on a host of as many as the other has.
inline double modelled_seconds(const RowPair& p, const Links& links, const RowOptions& o = {}) {
  const double own = own_seconds(p.alone, p.many.batch, p.many.devices);
  return step_seconds(own, exchange_of(p.many.name, p.many.summed_bytes, o),
                      {.devices = p.many.devices, .inside = links});
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

// The links of two H200 of one host.
inline Links gpu_links(const std::vector<std::string>& lines) {
  return fit_links(all_reduce_rows(lines, "2 x NVIDIA H200"), {.devices = 2});
}

}  // namespace tiny::bench
