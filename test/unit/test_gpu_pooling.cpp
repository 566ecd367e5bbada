// Pools of odd sizes, on the emulator and on the CPU.
#include <doctest/doctest.h>

#include "test/unit/emulated.h"

using namespace tiny;
using test::emulated_error;
using test::waves;

TEST_CASE("GPU pooling: what a convolution gives, in windows that overlap and that do not") {
  const auto pools = [] {
    const Tensor y = conv2d(waves({2, 3, 83, 79}), waves({33, 3, 3, 3}), waves({33}));
    return std::vector<Tensor>{max_pool2d(y.relu(), 3, {.stride = 2}), max_pool2d(y, 2)};
  };
  CHECK(emulated_error(pools) < 1e-5);
}

TEST_CASE("GPU pooling: large windows, and windows of what is padded") {
  const auto pools = [] {
    const Tensor x = waves({3, 33, 217, 219}), cube = waves({3, 5, 31, 29, 33});
    const PoolOptions apart{.stride = 2, .padding = 1, .dilation = 3};
    return std::vector<Tensor>{avg_pool2d(x, 11), avg_pool2d(x, 3, {.stride = 2, .padding = 1}),
                               max_pool2d(x, 3, {.padding = 1}), max_pool3d(cube, 3, apart)};
  };
  CHECK(emulated_error(pools) < 1e-5);
}
