// Autotuning of collectives: the fastest algorithm, measured once (COLLECTIVE_BEAM=1) and kept in
// the cache on disk.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "runtime/distributed/collective.h"

namespace tiny {

// A collective of pieces of `size` elements, one on each device.
struct Collective {
  std::string name;  // "all_reduce"
  Op op = Op::Add;
  DType dtype;
  int64_t size = 0;
  std::vector<int> devices;
};

// The fastest of `ways`, which `build` makes of pieces; the default, one of them, unless another
// takes 3 % less. Ways that an estimate from the measured links puts far behind are not tried, nor
// further when they have taken COLLECTIVE_BEAM_LIMIT seconds.
//
// With several ranks all must ask for the same collectives in the same order: rank 0 says what is
// known, or all measure together, a repetition takes as long as it does on the slowest of them, and
// what one cannot do none does.
std::string fastest_way(const Collective& c, const std::vector<std::string>& ways,
                        const std::string& otherwise,
                        const std::function<Pieces(const std::string& way, const Pieces&)>& build);

// Seconds that a way should take for pieces of so many bytes on so many devices, where a copy from
// one device to another takes `latency` seconds and moves `rate` bytes a second beyond that: what
// a device has to fetch, and how many steps wait for one another (R. Thakur, R. Rabenseifner and
// W. Gropp, "Optimization of Collective Communication Operations in MPICH", 2005).
double estimated_seconds(const std::string& way, size_t devices, double bytes, double latency,
                         double rate);

}  // namespace tiny
