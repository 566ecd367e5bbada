// A model of training and generation on many devices: what a step takes on a cluster of hosts, from
// what it takes on one device and from what a message costs (docs/distributed.md, "A model of
// more"). Nothing that was measured on as many devices goes into it, so that such figures check it.
//
// A message of n bytes takes `seconds` + n / `bytes_per_second`. Collectives are those of R.
// Thakur, R. Rabenseifner and W. Gropp, "Optimization of collective communication operations in
// MPICH", 2005, and of P. Patarasuk and X. Yuan, "Bandwidth optimal all-reduce algorithms for
// clusters of workstations", 2009. Nothing is hidden behind the computation: sums beside a backward
// take from its multiprocessors, or cores, what they use themselves.
#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "tiny/base/error.h"

namespace tiny::bench {

// What a message costs a device.
struct Links {
  double bytes_per_second = 0, seconds = 0;
};

// Devices of one host reach one another by `inside`, each its partners on other hosts by `between`.
// `processors` > 0: devices are processes that share so many cores of their host, which compute and
// pass on messages, and sum in the ways that the runtime builds of copies.
struct Cluster {
  int hosts = 1, devices = 1;  // of a host
  Links inside = {}, between = {};
  int processors = 0;
};

// The bytes of gradients from which on the runtime sums those that GPUs hold, beside the backward
// (kWorthALaunch of runtime/schedule/copy_order.cpp).
constexpr double kPiece = 4 << 20;
// The bytes up to which processes send all that they sum to all others, as two always do (kSmall of
// runtime/distributed/collective.cpp).
constexpr double kAllAtOnce = 256 << 10;

// Seconds of a reduce-scatter of so many bytes on each of n devices, or of an all-gather that
// leaves as many on each: by halving or doubling for a power of two, else around a ring.
inline double half_seconds(double bytes, int n, const Links& links) {
  const auto count = static_cast<unsigned>(n);
  const int rounds = std::has_single_bit(count) ? std::bit_width(count) - 1 : n - 1;
  return rounds * links.seconds + bytes * (n - 1) / n / links.bytes_per_second;
}

// Seconds of an all-reduce of so many bytes on each of n devices: a reduce-scatter and an
// all-gather; or, for few bytes on a number of devices that is no power of two, the same on as many
// as are one, to which the others give theirs before and from which they get the sum.
inline double flat_all_reduce_seconds(double bytes, int n, const Links& links) {
  const int power = static_cast<int>(std::bit_floor(static_cast<unsigned>(n)));
  const double straight = 2 * half_seconds(bytes, n, links);
  if (power == n) return straight;
  const double message = links.seconds + bytes / links.bytes_per_second;
  return std::min(straight, 2 * (message + half_seconds(bytes, power, links)));
}

// Processes for each core, of a cluster of processes; 1 for other devices.
inline double crowding(const Cluster& c) {
  return c.processors ? std::max(1.0, static_cast<double>(c.devices) / c.processors) : 1;
}

// Of a host's processes, whose messages follow one another: each sends all that it has to all
// others, or a part of it to each and then the sum of a part.
inline double process_all_reduce_seconds(double bytes, const Cluster& c) {
  const int others = c.devices - 1;
  const bool at_once = c.devices <= 2 || bytes <= kAllAtOnce;
  const double messages = at_once ? others : 2 * others;
  const double sent = at_once ? bytes * others : 2 * bytes * others / c.devices;
  return crowding(c) * (messages * c.inside.seconds + sent / c.inside.bytes_per_second);
}

// Seconds of a reduce-scatter of so many bytes on each device, or of an all-gather that leaves as
// many: on each host, and of each device's slice between the hosts.
inline double half_seconds(double bytes, const Cluster& c) {
  const double inside = half_seconds(bytes, c.devices, c.inside);
  return c.hosts == 1 ? inside : inside + half_seconds(bytes / c.devices, c.hosts, c.between);
}

// Seconds of an all-reduce of so many bytes on each device: a reduce-scatter on each host, an
// all-reduce of each device's slice between the hosts, an all-gather on each host.
inline double all_reduce_seconds(double bytes, const Cluster& c) {
  if (c.processors) return process_all_reduce_seconds(bytes, c);
  if (c.hosts == 1) return flat_all_reduce_seconds(bytes, c.devices, c.inside);
  return 2 * half_seconds(bytes, c.devices, c.inside) +
         flat_all_reduce_seconds(bytes / c.devices, c.hosts, c.between);
}

// What the devices exchange in a step, one after the other.
struct Exchange {
  enum Kind {
    AllReduce,  // of gradients (data parallel), or of activations (tensor parallel)
    Sharded,    // f32 gradients reduce-scattered, weights all-gathered twice in bf16
    Pipeline    // a message of activations for each micro-batch, from each stage to the next
  } kind = AllReduce;
  std::vector<double> sums;  // bytes of each on each device; of gradients those in f32
};

// Gradients of so many bytes as GPUs sum them, and so many sums of a few bytes beside them.
inline Exchange gradients(Exchange::Kind kind, double bytes, int small = 0, double piece = kPiece) {
  const double count = std::max(1.0, std::ceil(bytes / piece));
  Exchange out{kind, std::vector<double>(static_cast<size_t>(count), bytes / count)};
  out.sums.insert(out.sums.end(), static_cast<size_t>(small), 0);
  return out;
}

inline double exchange_seconds(const Exchange& e, const Cluster& c) {
  double seconds = 0;
  for (const double bytes : e.sums)
    seconds += e.kind == Exchange::AllReduce
                   ? all_reduce_seconds(bytes, c)
                   : half_seconds(bytes, c) + 2 * half_seconds(bytes / 2, c);
  return seconds;
}

// The share of its time that each of so many stages waits.
inline double bubble(int stages, int micro_batches) {
  return static_cast<double>(stages - 1) / (micro_batches + stages - 1);
}

// Seconds of a step of a pipeline (nn::Pipeline) with a stage on each device, each of which has
// `own` seconds to do. As many forwards and backwards of a micro-batch follow one another as there
// are micro-batches and further stages, since a stage waits until the first one has come to it, and
// at the end for those before it (Y. Huang et al., "GPipe", 2019).
inline double pipeline_seconds(double own, const Exchange& e, const Cluster& c) {
  const int stages = c.hosts * c.devices;
  const auto count = static_cast<double>(e.sums.size());
  const Links& links = c.hosts > 1 ? c.between : c.inside;
  const double message = links.seconds + e.sums[0] / links.bytes_per_second;
  const double turn = own / count + (stages > 1 ? 2 * message : 0);
  return std::max((count + stages - 1) * turn, crowding(c) * own);
}

// Seconds of a step of whose work each device has what takes one alone `own` seconds.
inline double step_seconds(double own, const Exchange& e, const Cluster& c) {
  if (e.kind == Exchange::Pipeline) return pipeline_seconds(own, e, c);
  return crowding(c) * own + exchange_seconds(e, c);
}

// An all-reduce as it was measured.
struct MeasuredSum {
  double bytes = 0, seconds = 0;
};

// The links inside a host with which all-reduces on so many of its devices deviate least from what
// was measured (least squares of relative deviations). Throws Error for fewer than two sizes.
inline Links fit_links(std::span<const MeasuredSum> sums, Cluster c) {
  double aa = 0, ab = 0, bb = 0, a1 = 0, b1 = 0;
  for (const MeasuredSum& s : sums) {
    c.inside = {std::numeric_limits<double>::infinity(), 1};
    const double a = all_reduce_seconds(s.bytes, c) / s.seconds;
    c.inside = {1, 0};
    const double b = all_reduce_seconds(s.bytes, c) / s.seconds;
    aa += a * a, ab += a * b, bb += b * b, a1 += a, b1 += b;
  }
  const double determinant = aa * bb - ab * ab;
  check(determinant > 1e-9 * aa * bb, "all-reduces of ", sums.size(), " sizes on ", c.devices,
        " devices: two sizes or more tell latency from bandwidth");
  // Not below nothing, where what was measured is not quite a line.
  const double seconds = std::max(0.0, (a1 * bb - b1 * ab) / determinant);
  return {bb / (b1 - seconds * ab), seconds};
}

}  // namespace tiny::bench
