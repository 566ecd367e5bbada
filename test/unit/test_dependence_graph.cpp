#include "runtime/fusion/dependence_graph.h"

#include <doctest/doctest.h>

#include <algorithm>

using namespace tiny;

namespace {

// Each vertex with its producers, 0 first.
DependenceGraph graph(const std::vector<std::vector<int>>& producers) {
  DependenceGraph g;
  for (const std::vector<int>& p : producers) g.set_producers(g.add(), p);
  return g;
}

}  // namespace

TEST_CASE("a path through a third vertex keeps two from becoming one") {
  const DependenceGraph g = graph({{}, {0}, {0, 1}, {2}});
  CHECK(g.depends(3, 0));
  CHECK_FALSE(g.depends(1, 2));
  CHECK(g.reaches_otherwise(0, 2));
  CHECK_FALSE(g.reaches_otherwise(0, 1));
  CHECK(g.between(0, 3) == std::vector<int>{2, 1});
}

TEST_CASE("a merged vertex is found under its old number") {
  DependenceGraph g = graph({{}, {0}, {0, 1}, {1, 2}});
  g.merge(1, 2);
  g.set_producers(2, {0, 1});
  CHECK(g.find(1) == 2);
  CHECK(g.producers(2) == std::vector<int>{0});
  CHECK(g.producers(3) == std::vector<int>{2});
  CHECK_FALSE(g.reaches_otherwise(0, 2));
  CHECK(g.sources_first() == std::vector<int>{0, 2, 3});
}

TEST_CASE("a later vertex that waits for others may become part of an earlier one") {
  // 0 -> 1 -> 2 and 3 -> 4 -> 5: 4 into 1, so that 2 and 5 wait for 0 and 3.
  DependenceGraph g = graph({{}, {0}, {1}, {}, {3}, {4}});
  g.merge(4, 1);
  g.set_producers(1, {0, 3});
  for (int before : {0, 3})
    for (int after : {1, 2, 5}) CHECK(g.depends(after, before));
  CHECK_FALSE(g.depends(2, 5));
  CHECK(g.reaches_otherwise(3, 2));
  const std::vector<int> order = g.sources_first();
  const auto place = [&](int v) { return std::ranges::find(order, v) - order.begin(); };
  CHECK(order.size() == 5);
  CHECK(place(3) < place(1));
  CHECK(place(1) < place(5));
}
