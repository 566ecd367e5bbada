// What a row of extra/bench/gpu is: some work, what a peer's line about the same holds, and what
// limits it.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "tiny/tiny.h"

namespace tiny::bench {

constexpr int64_t kPeerSize = 8192;

using Outputs = std::vector<Tensor>;
using Work = std::function<Outputs()>;

struct Row {
  std::string name;
  std::vector<std::string> peer;  // what a peer's line holds; the best of them counts
  double bytes, flops;            // at least to be read and written; 0: not what limits it
  std::function<Work()> prepare;  // makes the inputs
};

inline Tensor normal(const Shape& shape, DType dtype = kF32) {
  return Tensor::randn(shape).to(dtype).realize();
}

inline std::vector<std::string> peer(const std::string& name) {
  return {std::string("\"name\": \"") + name + '"'};
}

}  // namespace tiny::bench
