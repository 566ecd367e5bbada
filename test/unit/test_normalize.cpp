#include "runtime/schedule/normalize.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "test/reference.h"
#include "tiny/base/splitmix.h"
#include "tiny/tensor/tensor.h"

using namespace tiny;

namespace {

// A random program of tensors with few elements, or none.
class SmallTensors {
 public:
  explicit SmallTensors(uint64_t seed) : random_(seed) {
    for (const Shape& s : {Shape{0, 6}, Shape{}, Shape{1, 1}, Shape{2, 0, 3}, Shape{2, 3}})
      keep(leaf(s));
  }

  void step() {
    const Tensor x = any();
    const int axis = x.rank() ? static_cast<int>(pick(x.rank())) : 0;
    switch (pick(x.rank() ? 12 : 3)) {
      case 0: return keep(x * 2 + 1);
      case 1: return keep(x.reshape(same_count(x.numel())));
      case 2: return keep(x.unsqueeze(0).expand(with_first(x, pick(3))));
      case 3: return keep(x.pad(paddings(x), PadMode::Constant, static_cast<int>(pick(2))));
      case 4: return keep(x.narrow(axis, 0, pick(x.size(axis) + 1)));
      case 5: return keep(x.sum(axis, pick(2)));
      case 6: return keep(x.flip().transpose(0, axis));
      case 7: return keep(Tensor::cat({x, x + 1}, axis));
      case 8: return keep(x.cumsum(axis));
      case 9: return keep(x.index_select(axis, Tensor::from<int64_t>({0, 2})));
      case 10: return keep(x.size(axis) ? x.max(axis) : x.prod(axis));
      default: return keep(x.softmax(axis).matmul(leaf({x.size(-1), pick(3)})));
    }
  }

  void check() {
    std::vector<Node> nodes;
    for (const Tensor& t : all_) nodes.push_back(t.node());
    const std::vector<HostTensor> expected = evaluate(nodes);
    for (size_t i = 0; i < all_.size(); ++i) {
      CAPTURE(i);
      const std::vector<float> got = all_[i].to_vector<float>();
      const std::vector<double> want = expected[i].numbers();
      REQUIRE(got.size() == want.size());
      for (size_t k = 0; k < got.size(); ++k)
        CHECK(static_cast<double>(got[k]) == doctest::Approx(want[k]).epsilon(1e-5));
    }
  }

 private:
  int64_t pick(int64_t n) { return random_.below(static_cast<int>(n)); }
  Tensor any() { return all_[static_cast<size_t>(pick(static_cast<int64_t>(all_.size())))]; }

  void keep(const Tensor& t) {
    if (t.numel() > 100 || t.rank() > 5) return;
    all_.push_back(t);
    if (pick(3) == 0) all_.back().realize();
  }

  Tensor leaf(const Shape& shape) {
    std::vector<float> values(static_cast<size_t>(numel(shape)));
    for (float& v : values) v = static_cast<float>(pick(7)) - 3;
    return Tensor::from(values, shape);
  }

  Shape same_count(int64_t count) {
    if (count) return pick(2) ? Shape{1, count} : Shape{-1};
    Shape shape(static_cast<size_t>(1 + pick(4)));
    for (int64_t& s : shape) s = pick(8);
    shape[static_cast<size_t>(pick(static_cast<int64_t>(shape.size())))] = 0;
    return shape;
  }

  static Shape with_first(const Tensor& x, int64_t size) {
    Shape shape = to_shape(x.shape());
    shape.insert(shape.begin(), size);
    return shape;
  }

  std::vector<Padding> paddings(const Tensor& x) {
    std::vector<Padding> out(static_cast<size_t>(x.rank()));
    for (Padding& p : out) p = {pick(2), pick(2)};
    return out;
  }

  SplitMix64 random_;
  std::vector<Tensor> all_;
};

}  // namespace

TEST_CASE("random programs of tensors with no, one or few elements agree with the reference") {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    CAPTURE(seed);
    SmallTensors tensors(seed);
    for (int i = 0; i < 12; ++i) tensors.step();
    tensors.check();
  }
}

TEST_CASE("reshapes between empty shapes below a pad or a reduction are never read") {
  const Tensor empty = Tensor::ones({4, 6}).contiguous().realize().narrow(0, 1, 0);
  const Tensor padded = (empty * 2).reshape({7, 0, 5}).pad({{0, 0}, {1, 1}, {0, 0}});
  CHECK(padded.sum().item<float>() == 0);
  CHECK(empty.reshape({2, 0}).pad({{0, 1}, {2, 0}}).sum(0).to_vector<float>() ==
        std::vector<float>{0, 0});
  CHECK(empty.reshape({2, 3, 0}).sum(2).to_vector<float>() == std::vector<float>(6, 0));
  const Tensor at = Tensor::zeros({2, 3}, kI64);
  CHECK(empty.reshape({0, 3}).gather(0, at.narrow(1, 0, 3)).to_vector<float>() ==
        std::vector<float>(6, 0));
  for (Node n : normalize(std::vector<Node>{padded.node()}).roots) {
    REQUIRE(n->op == Op::Copy);  // to where its sources lie
    CHECK(n->src(0)->device == 0);
  }
}

TEST_CASE("what is computed from no elements lies on their device") {
  const Tensor empty = Tensor::zeros({2, 0}, kF32).to("CPU:1").contiguous().realize();
  const Tensor other = Tensor::ones({2, 1}).to("CPU:1").contiguous().realize();
  for (Tensor t : {empty.sum(1, true), empty.prod(1, true), empty.pad({{0, 0}, {1, 0}})}) {
    t.realize();
    CHECK(t.device() == "CPU:1");
    CHECK((t + other).to_vector<float>().size() == 2);
  }
  const Tensor at = Tensor::zeros({0}, kI64), nothing = empty.reshape({0});
  Tensor added = Tensor::ones({2}).index_add(0, at, nothing).realize();
  CHECK((added + other.reshape({2})).to_vector<float>() == std::vector<float>{2, 2});
  const std::vector<std::string> devices{"CPU", "CPU:1", "CPU:2"};
  Tensor sum = Tensor::zeros({1, 0, 0}).shard(devices).sum({1, 2});
  sum.realize();
  CHECK(sum.matmul(Tensor::ones({1}).shard(devices)).item<float>() == 0);
}
