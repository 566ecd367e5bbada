// Moved and padded data of odd sizes, on the emulator and on the CPU.
#include <doctest/doctest.h>

#include "test/unit/emulated.h"

using namespace tiny;
using test::emulated_error;
using test::waves;

TEST_CASE("GPU streams: images that are padded to odd rows") {
  const auto padded = [] {
    const Tensor x = waves({8, 16, 67, 65});
    return std::vector<Tensor>{x.pad({{0, 0}, {0, 0}, {1, 2}, {3, 1}}),
                               x.pad({{0, 2}, {0, 0}, {1, 0}, {1, 1}}).relu()};
  };
  CHECK(emulated_error(padded) == 0);
}
