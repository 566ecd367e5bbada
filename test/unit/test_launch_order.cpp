#include "runtime/launch/launch_order.h"

#include <doctest/doctest.h>

#include <random>

using namespace tiny;

namespace {

Touched reads(int memory, int64_t begin = 0, int64_t end = 8) {
  return {memory, begin, end, false};
}
Touched writes(int memory, int64_t begin = 0, int64_t end = 8) {
  return {memory, begin, end, true};
}

using Orders = std::vector<std::vector<int>>;

}  // namespace

TEST_CASE("a launch waits for what writes its operands, and for what reads what it writes") {
  CHECK(order_launches({{{writes(0)}}, {{writes(1)}}, {{reads(0), reads(1), writes(2)}}}) ==
        Orders{{}, {}, {0, 1}});
  CHECK(order_launches({{{reads(0)}}, {{reads(0)}}, {{writes(0)}}, {{writes(0)}}}) ==
        Orders{{}, {}, {0, 1}, {2}});
}

TEST_CASE("bytes that do not overlap are apart") {
  CHECK(order_launches({{{writes(0, 0, 8)}}, {{reads(0, 8, 16)}}, {{reads(0, 7, 9)}}}) ==
        Orders{{}, {}, {0}});
}

TEST_CASE("what is waited for through another launch is left out") {
  CHECK(
      order_launches({{{writes(0)}}, {{reads(0), writes(1)}}, {{reads(0), reads(1), writes(2)}}}) ==
      Orders{{}, {0}, {1}});
}

TEST_CASE("launches that fill the device stay in order, others run beside them") {
  const auto large = [](int memory) { return LaunchUses{{writes(memory)}, true}; };
  CHECK(order_launches({large(0), {{writes(1)}}, large(2), {{reads(0), writes(3)}}, large(4)}) ==
        Orders{{}, {}, {0}, {0}, {2}});
  Target gpu;
  gpu.cores = 100;
  LaunchSize size;
  size.grid[0] = 50;
  CHECK(!fills(size, gpu));
  size.grid[1] = 2;
  CHECK(fills(size, gpu));
}

TEST_CASE("orders of random launches keep each pair that touches the same bytes") {
  std::mt19937 random(5);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  for (int round = 0; round < 50; ++round) {
    std::vector<LaunchUses> launches(static_cast<size_t>(2 + below(30)));
    for (LaunchUses& l : launches) {
      l.fills = below(3) == 0;
      for (int k = below(4); k >= 0; --k) {
        const int begin = below(12);
        l.uses.push_back({below(3), begin, begin + 1 + below(4), below(3) == 0});
      }
    }
    const auto after = order_launches(launches);
    std::vector<std::vector<bool>> follows(launches.size());
    for (size_t i = 0; i < launches.size(); ++i) {
      follows[i].resize(launches.size());
      for (int j : after[i]) {
        CHECK(!follows[i][static_cast<size_t>(j)]);  // none is waited for twice
        follows[i][static_cast<size_t>(j)] = true;
        for (size_t k = 0; k < i; ++k)
          if (follows[static_cast<size_t>(j)][k]) follows[i][k] = true;
      }
      for (size_t j = 0; j < i; ++j) {
        bool meet = launches[i].fills && launches[j].fills;
        for (const Touched& x : launches[i].uses)
          for (const Touched& y : launches[j].uses)
            meet |= (x.written || y.written) && x.memory == y.memory && x.begin < y.end &&
                    y.begin < x.end;
        if (meet) CHECK(follows[i][j]);
      }
    }
  }
}
