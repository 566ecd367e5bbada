#include "tiny/autograd/windows.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>

#include "test/reference.h"
#include "tiny/ir/build.h"

using namespace tiny;

namespace {

struct Case {
  int64_t length;
  WindowArg window;
};

std::vector<Case> cases() {
  std::vector<Case> out;
  for (int64_t length : {7, 10})
    for (int64_t size : {1, 2, 3})
      for (int64_t step : {1, 2, 3, 5})
        for (int64_t dilation : {1, 2})
          if (dilation * (size - 1) < length) out.push_back({length, {size, step, dilation}});
  return out;
}

// [2, length, 3]: the element's own number.
Node numbered(int64_t length) {
  return build::reshape(build::iota(6 * length, kI64), Shape{2, length, 3});
}

}  // namespace

TEST_CASE("windows are where size, step and dilation say") {
  for (const auto& [length, w] : cases()) {
    const Node y = build::windows(numbered(length), 1, w);
    const int64_t count = y->shape()[1];
    CHECK(count == (length - w.dilation * (w.size - 1) - 1) / w.step + 1);
    const auto got = evaluate(y).integers();
    for (int64_t k = 0; k < static_cast<int64_t>(got.size()); ++k) {
      const int64_t j = k % w.size, channel = k / w.size % 3, i = k / w.size / 3 % count;
      const int64_t row = k / w.size / 3 / count;
      const int64_t at = i * w.step + j * w.dilation;
      CHECK_MESSAGE(got[k] == (row * length + at) * 3 + channel, "element ", k, " of size ", w.size,
                    ", step ", w.step, ", dilation ", w.dilation);
    }
  }
}

TEST_CASE("windows over several axes are windows over each of them") {
  for (const WindowArg& a : {WindowArg{3, 2, 1}, WindowArg{2, 3, 2}, WindowArg{3, 2, 2}})
    for (const WindowArg& b : {WindowArg{2, 1, 3}, WindowArg{3, 4, 2}, WindowArg{4, 2, 1}})
      for (int64_t padding : {0, 1, 2, 3}) {
        const Node x = build::reshape(build::iota(7 * 8 * 2, kI64), Shape{7, 8, 2});
        WindowArg padded = a;
        padded.padding = padding;  // changes how windows are built, not what they are
        const Node both = build::windows(x, 0, std::array{padded, b});
        const Node one = build::windows(build::windows(x, 0, a), 1, b);
        CHECK(evaluate(both).integers() == evaluate(one).integers());
      }
}

TEST_CASE("windows are movement alone") {
  for (const auto& [length, w] : cases())
    for (Node n : topological(build::windows(numbered(length), 1, w)))
      CHECK((is_movement(n->op) || n->op == Op::Iota));
}

TEST_CASE("what is cut off of a sum is not summed") {
  const Node x =
      build::cast(build::reshape(build::iota(2 * 4 * 3 * 5, kI64), Shape{2, 4, 3, 5}), kF32);
  const Node sum = build::permute(build::reduce(Op::Add, x, 8), Shape{1, 2, 0, 3});
  const Node merged = build::pad(build::reshape(sum, Shape{12, 2}), Shape{1, 2, 0, 0});
  for (int64_t begin : {0, 1, 3, 4, 5})
    for (int64_t end : {6, 8, 9, 13, 15}) {
      const Shape bounds{begin, end, 0, 2};
      const Node cropped = crop_sum(merged, bounds);
      CHECK(evaluate(cropped).numbers() == evaluate(build::shrink(merged, bounds)).numbers());
      // Whole rows of 3, one element after where they begin.
      const int64_t first = std::max<int64_t>(begin - 1, 0) / 3;
      const int64_t last = (std::min<int64_t>(end - 1, 12) + 2) / 3;
      for (Node n : topological(cropped))
        if (n->op == Op::ReduceAxis) CHECK(n->src(0)->shape()[1] == last - first);
    }
}

TEST_CASE("a shrink that ends no windows has no window gradient") {
  const Node x = build::cast(numbered(7), kF32);
  const Node s = build::shrink(x, Shape{0, 2, 1, 5, 0, 3});
  CHECK_FALSE(windows_grad(s, build::full(s->shape(), kF32, 1.0)).has_value());
}
