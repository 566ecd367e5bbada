// Assignment: who sees the old value and who the new one, whatever is realized in which order.
#include <doctest/doctest.h>

#include <type_traits>

#include "runtime/realize/realize.h"
#include "tiny/base/error.h"
#include "tiny/ir/build.h"
#include "tiny/nn/functional.h"
#include "tiny/train/optim.h"

using namespace tiny;

namespace {

using Floats = std::vector<float>;

Tensor count(const Shape& shape) {
  return Tensor::arange(0, numel(shape), 1, kF32).reshape(shape).contiguous().realize();
}

Floats values(const Tensor& t) { return t.to_vector<float>(); }

template <class T>
concept Assignable = requires(T&& t, const Tensor& v) {
  std::forward<T>(t).assign(v);
};

}  // namespace

TEST_CASE("a part of a tensor is assigned by numbers, slices and new axes") {
  Tensor x = count({3, 4});
  x.assign({1}, 9);
  x.assign({-1, Slice{0, {}, 2}}, Tensor::from({-1.0f, -2.0f}));
  x.assign({Slice{0, 2}, kNewAxis, -1}, Tensor::from({7, 8}, {2, 1}));
  CHECK(values(x) == Floats{0, 1, 2, 7, 9, 9, 9, 8, -1, 9, -2, 11});
  x.assign({kEllipsis}, 0.5);
  CHECK(values(x) == Floats(12, 0.5f));
  x.assign({Slice{2, 2}}, 3);  // no rows
  CHECK(values(x) == Floats(12, 0.5f));
}

TEST_CASE("a part of a tensor is assigned by index tensors and masks") {
  Tensor x = count({2, 4});
  x.assign({1, Tensor::from<int64_t>({0, -1})}, Tensor::from({10.0f, 20.0f}));
  x.assign({x > 5.5}, -1);
  CHECK(values(x) == Floats{0, 1, 2, 3, -1, 5, -1, -1});
}

TEST_CASE("a part that is assigned from another part of itself sees the old one") {
  Tensor x = count({5});
  x.assign({Slice{1, {}}}, x.narrow(0, 0, 4));
  CHECK(values(x) == Floats{0, 0, 1, 2, 3});
  x.assign({Slice{0, 4}}, x.narrow(0, 1, 4));
  CHECK(values(x) == Floats{0, 1, 2, 3, 3});
  x.assign({Slice{}}, x.flip());
  CHECK(values(x) == Floats{3, 3, 2, 1, 0});
}

TEST_CASE("what was made before a part was assigned keeps the old value, what comes later not") {
  for (int order = 0; order < 4; ++order) {
    CAPTURE(order);
    Tensor x = count({4});
    Tensor copy = x, view = x.narrow(0, 1, 2), reader = x * 10;
    if (order & 1) view.realize();
    x.assign({Slice{1, 3}}, -1);
    Tensor later = x * 10, later_view = x.narrow(0, 1, 2);
    if (order & 2) later.realize();
    CHECK(values(later) == Floats{0, -10, -10, 30});
    CHECK(values(reader) == Floats{0, 10, 20, 30});
    CHECK(values(copy) == Floats{0, 1, 2, 3});
    CHECK(values(view) == Floats{1, 2});
    CHECK(values(later_view) == Floats{-1, -1});
    CHECK(values(x) == Floats{0, -1, -1, 3});
  }
}

TEST_CASE("a tensor and a reshaped one are assigned apart from each other") {
  Tensor x = count({2, 2}), y = x.reshape({4});
  y.assign(y + 10).realize();
  CHECK(values(x) == Floats{0, 1, 2, 3});
  CHECK(values(y) == Floats{10, 11, 12, 13});
  x.assign({0}, 5);
  y.assign({Slice{2, 4}}, 6);
  Tensor* const both[] = {&x, &y};
  Tensor::realize(both);
  CHECK(values(x) == Floats{5, 5, 2, 3});
  CHECK(values(y) == Floats{10, 11, 6, 6});
}

TEST_CASE("two copies that are assigned become two tensors") {
  Tensor x = count({3}), y = x;
  x.assign(x + 1);
  y.assign(y * 2);
  Tensor* const both[] = {&x, &y};
  Tensor::realize(both);
  CHECK(values(x) == Floats{1, 2, 3});
  CHECK(values(y) == Floats{0, 2, 4});
}

TEST_CASE("a copy of an assigned tensor has its value, whichever is realized") {
  Tensor x = count({3}), p = count({3}).requires_grad_();
  x.assign(x + 1);
  p.assign(p + 1);
  const Tensor copy = x, leaf = p;
  x.realize();
  p.realize();
  CHECK(values(copy) == Floats{1, 2, 3});
  CHECK(values(leaf) == Floats{1, 2, 3});
}

TEST_CASE("of two equal expressions one is assigned, in any order of realizing") {
  const Tensor base = count({2, 2});
  for (int order = 0; order < 16; ++order) {
    CAPTURE(order);
    const auto expression = [&] {
      return order & 8 ? (Tensor::full({2, 2}, 1) + Tensor::eye(2)).contiguous() : base * 2 + 1;
    };
    Tensor a = expression(), b = expression();
    if (order & 1) a.realize();
    if (order & 2) b.realize();
    a.assign(a + 10);
    if (order & 4) a.realize();
    CHECK(values(b) == (order & 8 ? Floats{2, 1, 1, 2} : Floats{1, 3, 5, 7}));
    b.assign(b * 2).realize();
    CHECK(values(a) == (order & 8 ? Floats{12, 11, 11, 12} : Floats{11, 13, 15, 17}));
    CHECK(values(b) == (order & 8 ? Floats{4, 2, 2, 4} : Floats{2, 6, 10, 14}));
  }
}

TEST_CASE("a copy that is realized before an assignment to a lazy tensor keeps its value") {
  Tensor x = count({3}) * 2, y = x;
  const Tensor z = x;
  x.assign(x + 1);
  y.realize();
  x.realize();
  CHECK(values(x) == Floats{1, 3, 5});
  CHECK(values(y) == Floats{0, 2, 4});
  CHECK(values(z) == Floats{0, 2, 4});
}

namespace {

// A node that no tensor holds, as one that another thread is about to use.
class InFlight {
 public:
  explicit InFlight(Node n) : node_(n) { Arena::global().watch(n); }
  ~InFlight() { Arena::global().unwatch(node_); }
  Tensor arrived() const { return Tensor(node_); }

 private:
  Node node_;
};

}  // namespace

TEST_CASE("what is about to be made of a copy keeps the old value of an assigned tensor") {
  Tensor x = count({2, 2});
  const Tensor copy = x.detach().requires_grad_();
  const InFlight flat(build::reshape(x.node(), Shape{4}));
  const InFlight assigned(build::assign(x.node(), (x * 10).node()));
  x.assign(x + 1).realize();
  CHECK(values(flat.arrived()) == Floats{0, 1, 2, 3});
  CHECK(values(assigned.arrived()) == Floats{0, 10, 20, 30});
  CHECK(values(copy) == Floats{0, 1, 2, 3});
  CHECK(values(x) == Floats{1, 2, 3, 4});
}

TEST_CASE("equal tensors of constants have memory of their own") {
  const auto make_one = [] { return Tensor::full({4}, 2.0).contiguous(); };
  Tensor a = make_one(), b = make_one();
  a.realize();
  b.realize();
  CHECK(whole_buffer(a.node()) != whole_buffer(b.node()));
  const InFlight sum((b * 3).node());
  b = Tensor();
  a.assign(a + 1).realize();
  CHECK(values(sum.arrived()) == Floats(4, 6));
  CHECK(values(a) == Floats(4, 3));
}

TEST_CASE("an assignment that has to run early keeps what others read of its tensor") {
  Tensor x = count({3}), y = count({3}), z = x;
  const Tensor reader = x * 2;
  z.assign(y - 1);  // over the memory of x, and needs the old y
  y.assign(y * 10).realize();
  CHECK(values(x) == Floats{0, 1, 2});
  CHECK(values(reader) == Floats{0, 2, 4});
  CHECK(values(z) == Floats{-1, 0, 1});
  CHECK(values(y) == Floats{0, 10, 20});
}

TEST_CASE("a tensor that has not been computed can be assigned") {
  Tensor x = count({3}) + 1;
  const Tensor before = x * 2;
  x.assign({1}, 7);
  CHECK(values(x) == Floats{1, 7, 3});
  CHECK(values(before) == Floats{2, 4, 6});
  Tensor constant = Tensor::zeros({2});
  constant.assign({0}, 1);
  CHECK(values(constant) == Floats{1, 0});
  CHECK(values(Tensor::zeros({2})) == Floats{0, 0});
}

// What makes the value is left out when it is computed: it equals the tensor that it is made from.
TEST_CASE("a value that turns out to be another tensor's is assigned in memory of its own") {
  for (const bool whole : {true, false}) {
    const Tensor x = count({4}).to(kBF16).contiguous().realize();
    Tensor y = x.to(kF32).to(kBF16);
    if (whole)
      y.assign(Tensor::full({4}, 9));
    else
      y.assign({Index(1)}, 9);
    y.realize();
    CHECK(values(y.to(kF32)) == (whole ? Floats{9, 9, 9, 9} : Floats{0, 9, 2, 3}));
    CHECK(values(x.to(kF32)) == Floats{0, 1, 2, 3});
  }
}

TEST_CASE("a leaf stays one when a part of it is assigned") {
  Tensor x = count({3}).requires_grad_();
  const Tensor before = x.square().sum();
  x.assign({0}, 4);
  (before + x.sum() * 10).backward();
  CHECK(values(x.grad()) == Floats{10, 12, 14});
  CHECK(values(x) == Floats{4, 1, 2});
}

TEST_CASE("gradients flow through an assignment to what was put in") {
  Tensor a = count({4}).requires_grad_(), v = Tensor::from({5.0f, 6.0f}).requires_grad_();
  Tensor x = a * 2;
  x.assign({Slice{1, 3}}, v * 3);
  (x * Tensor::from({1.0f, 10.0f, 100.0f, 1000.0f})).sum().backward();
  CHECK(values(a.grad()) == Floats{2, 0, 0, 2000});
  CHECK(values(v.grad()) == Floats{30, 300});
}

TEST_CASE("a view of a view that was computed reads that, and not what has been overwritten") {
  Tensor x = count({4});
  const Tensor flipped = (x * 2).flip();
  x.assign(x + 1).realize();  // computes what needs the old value
  CHECK(values(flipped.flip()) == Floats{0, 2, 4, 6});
  CHECK(values(flipped.reshape({2, 2}).reshape({4})) == Floats{6, 4, 2, 0});
}

TEST_CASE("a gradient that needs a value that was overwritten is an error, and changes nothing") {
  Tensor p = count({3}).requires_grad_(), other = count({3});
  const Tensor square = p * p;
  p.assign(p + 1).realize();
  CHECK(values(square) == Floats{0, 1, 4});
  square.sum().backward();
  const void* before = whole_buffer(other.node())->data();
  other.assign(other + p.grad());
  CHECK_THROWS_AS(other.realize(), Error);
  CHECK(whole_buffer(p.node())->data() != before);
  CHECK(values(p) == Floats{1, 2, 3});
}

TEST_CASE("a parameter read before a step keeps its old value") {
  Tensor p = count({3}).requires_grad_();
  SGD optimizer({&p}, 1);
  Tensor before = p.detach() * 1;
  const Tensor view = p.detach().narrow(0, 1, 2);
  (p * p).sum().backward();
  optimizer.step();
  CHECK(values(before) == Floats{0, 1, 2});
  CHECK(values(view) == Floats{1, 2});
  CHECK(values(p) == Floats{0, -1, -2});
}

TEST_CASE("the value is cast to the dtype of what it is assigned to") {
  Tensor x = Tensor::zeros({2}, kI32).contiguous();
  x.assign({0}, Tensor::from({2.75f}));
  CHECK(x.to_vector<int32_t>() == std::vector<int32_t>{2, 0});
  x.assign(Tensor::from({-1.5f, 300.5f}));
  CHECK(x.to_vector<int32_t>() == std::vector<int32_t>{-1, 300});
}

TEST_CASE("an assignment that cannot be is an error, and changes nothing") {
  Tensor x = count({2, 3});
  CHECK_THROWS_WITH_AS(x.assign(Tensor::zeros({3})),
                       "assign: a tensor of shape (2,3) cannot become one of shape (3)", Error);
  CHECK_THROWS_WITH_AS(x.assign({Slice{}, 0}, Tensor::zeros({3})),
                       "assign: a value of shape (3) does not fit the place of shape (2)", Error);
  CHECK_THROWS_WITH_AS(x.assign({0}, Tensor::zeros({2, 3})),
                       "assign: a value of shape (2,3) does not fit the place of shape (3)", Error);
  CHECK_THROWS_AS(x.assign({2}, 0), Error);
  CHECK_THROWS_AS(x.assign({0, 0, 0}, 0), Error);
  CHECK_THROWS_AS(x.assign(count({2, 3}).to("CPU:2")), Error);
  CHECK(values(x) == Floats{0, 1, 2, 3, 4, 5});
  // A temporary view is no place: this would not change x.
  static_assert(Assignable<Tensor&>);
  static_assert(!Assignable<Tensor>);
}

namespace {

// Tensors of shape (3, 4) beside what they must hold.
class Mirror {
 public:
  explicit Mirror(uint32_t seed) : state_(seed) {
    for (int i = 0; i < 3; ++i) {
      tensors_.push_back((count({3, 4}) + i * 20).realize());
      Floats v;
      for (int k = 0; k < 12; ++k) v.push_back(static_cast<float>(k + i * 20));
      expected_.push_back(v);
    }
  }

  void step() {
    const size_t i = pick(tensors_.size()), j = pick(tensors_.size());
    switch (pick(6)) {
      case 0:
        return make(tensors_[i] - tensors_[j] * 0.5f,
                    [&](size_t k) { return expected_[i][k] - expected_[j][k] * 0.5f; });
      case 1:
        return make(tensors_[i].flip(1),
                    [&](size_t k) { return expected_[i][k / 4 * 4 + 3 - k % 4]; });
      case 2: return make(tensors_[i], [&](size_t k) { return expected_[i][k]; });
      case 3: {
        tensors_[i].assign(tensors_[j].roll({1}, 0));
        const Floats old = expected_[j];
        for (size_t k = 0; k < 12; ++k) expected_[i][k] = old[(k + 8) % 12];
        return;
      }
      case 4: {
        const auto row = static_cast<int64_t>(pick(3));
        tensors_[i].assign({row, Slice{0, {}, 2}}, tensors_[j].index({2 - row, Slice{0, 2}}));
        const Floats old = expected_[j];
        for (size_t k = 0; k < 2; ++k)
          expected_[i][static_cast<size_t>(row) * 4 + 2 * k] =
              old[static_cast<size_t>(2 - row) * 4 + k];
        return;
      }
      default: tensors_[i].realize();
    }
  }

  void check() {
    for (size_t i = 0; i < tensors_.size(); ++i) {
      CAPTURE(i);
      CHECK(values(tensors_[i]) == expected_[i]);
    }
  }

 private:
  size_t pick(size_t n) {
    state_ = state_ * 1664525u + 1013904223u;  // Numerical Recipes' generator
    return (state_ >> 16) % n;
  }
  template <class F> void make(const Tensor& t, F f) {
    Floats v;
    for (size_t k = 0; k < 12; ++k) v.push_back(f(k));
    tensors_.push_back(t);
    expected_.push_back(v);
  }

  uint32_t state_;
  std::vector<Tensor> tensors_;
  std::vector<Floats> expected_;
};

}  // namespace

TEST_CASE("random programs of assignments, views and reads agree with a mirror on the host") {
  for (uint32_t seed = 1; seed <= 40; ++seed) {
    CAPTURE(seed);
    Mirror mirror(seed);
    for (int i = 0; i < 14; ++i) mirror.step();
    mirror.check();
  }
}

// Also where memory is read in another shape than it has; not where the new value is turned.
TEST_CASE("weights and moments of several axes are updated in their memory") {
  const auto address = [](const Tensor& t) { return whole_buffer(t.node())->data(); };
  Tensor w = count({6, 5, 3, 3}).requires_grad_(), v = count({7, 4}).requires_grad_();
  const Tensor x = count({2, 5, 8, 8}), y = count({3, 4});
  AdamW adam({&w, &v});
  const auto step = [&] {
    (conv2d(x, w).relu().sum() + y.matmul(v.t()).sum()).backward();
    adam.step();
  };
  step();
  const void *at_w = address(w), *at_v = address(v);
  step();
  CHECK(address(w) == at_w);
  CHECK(address(v) == at_v);

  Tensor square = count({3, 3});
  square.assign(square.t()).realize();
  CHECK(values(square) == Floats{0, 3, 6, 1, 4, 7, 2, 5, 8});
  Tensor cube = count({2, 3, 4});
  cube.assign(cube.reshape({4, 3, 2}).permute({2, 1, 0})).realize();
  CHECK(values(cube)[1] == 6);
  CHECK(values(cube)[4] == 2);
}

TEST_CASE("no gradient flows into a value that is assigned where none is wanted") {
  const Tensor w = count({2}).requires_grad_();
  const auto gradient_past = [&](bool wanted) {
    Tensor state = (count({2}) + 1).contiguous().realize();
    const Tensor next = w * state;
    if (wanted) {
      state.assign(next);
    } else {
      const NoGrad no_grad;
      state.assign(next);
    }
    CHECK(state.requires_grad() == wanted);
    return values(Tensor::gradient((w * state).sum(), {w})[0]);
  };
  CHECK(gradient_past(false) == Floats{0, 2});
  CHECK(gradient_past(true) == Floats{0, 4});  // made of w
}
