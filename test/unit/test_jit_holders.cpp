// A Jit of a step that reads tensors from outside, which change places with others between calls
// while all of them live: what a replay gives is what a call would.
#include <doctest/doctest.h>

#include <algorithm>

#include "test/error_of.h"
#include "tiny/ir/build.h"
#include "tiny/run/jit.h"

using namespace tiny;

namespace {

using Floats = std::vector<float>;

Tensor floats(const Floats& values) { return Tensor::from(values).realize(); }

// A step that reads the first of three tensors, and what happens to those between calls.
template <class F> void check_reads(F between) {
  std::vector<Tensor> t = {floats({1, 2}), floats({3, 5}), floats({8, 13})};
  Jit step([&](const Tensor& x) { return x * t[0]; });
  for (int i = 0; i < 30; ++i) {
    const float x = static_cast<float>(i);
    const Floats first = t[0].to_vector<float>();
    const Tensor y = step(floats({x, x}));
    CHECK(y.to_vector<float>() == Floats{x * first[0], x * first[1]});
    between(t, i);
  }
  CHECK(step.statistics().replays >= 3);
}

}  // namespace

TEST_CASE("tensors that change places between calls are read where they are then") {
  SUBCASE("two of them, once") {
    check_reads([](auto& t, int i) {
      if (i == 5) std::swap(t[0], t[1]);
    });
  }
  SUBCASE("two of them, after every third call") {
    check_reads([](auto& t, int i) {
      if (i % 3 == 2) std::swap(t[0], t[1]);
    });
  }
  SUBCASE("all of them") {
    check_reads([](auto& t, int i) {
      if (i % 4 == 3) std::rotate(t.begin(), t.begin() + 1, t.end());
    });
  }
  SUBCASE("an old one is kept, and another takes its place") {
    std::vector<Tensor> kept;
    check_reads([&](auto& t, int i) {
      if (i % 4 != 3) return;
      kept.push_back(t[0]);
      t[0] = t[i % 3];
    });
  }
  SUBCASE("one is moved away, and another takes its place") {
    check_reads([](auto& t, int i) {
      if (i % 4 != 3) return;
      Tensor first = std::move(t[0]);
      t[0] = t[1];
      t[1] = first;
    });
  }
  SUBCASE("after one was assigned to in place") {
    check_reads([](auto& t, int i) {
      t[i % 3].assign(t[i % 3] + 1).realize();
      if (i % 4 == 3) std::swap(t[0], t[2]);
    });
  }
}

TEST_CASE("parts of one tensor that change places are told from each other") {
  const Tensor whole = floats({1, 2, 3, 4, 5, 6});
  Tensor a = whole.narrow(0, 0, 2), b = whole.narrow(0, 3, 2);
  Jit step([&](const Tensor& x) { return x * a; });
  for (int i = 0; i < 12; ++i) {
    const Floats first = i / 4 % 2 ? Floats{4, 5} : Floats{1, 2};
    CHECK(step(floats({1, 1})).to_vector<float>() == first);
    if (i % 4 == 3) std::swap(a, b);
  }
}

TEST_CASE("what a step reads and what it assigns to change places") {
  for (const int every : {1, 4}) {
    Tensor now = floats({1, 2}), next = floats({0, 0});
    Jit step([&](const Tensor& x) { next.assign(now * 2 + x); });
    Floats wanted = {1, 2};
    for (int i = 0; i < 16; ++i) {
      step(floats({1, 0}));
      const Floats made = {wanted[0] * 2 + 1, wanted[1] * 2};
      CHECK(next.to_vector<float>() == made);
      if (i % every != every - 1) continue;
      std::swap(now, next);
      wanted = made;
    }
  }
}

TEST_CASE("a step that puts tensors from outside in each other's places is an error") {
  Tensor a = floats({1, 2}), b = floats({3, 4});
  Jit step([&](const Tensor& x) {
    std::swap(a, b);
    return x * a;
  });
  CHECK(step(floats({1, 1})).to_vector<float>() == Floats{3, 4});
  const std::string text = error_of([&] { step(floats({1, 1})); });
  CHECK(text ==
        "Jit: the step puts a tensor from outside, f32 (2), in another's place, as std::swap and = "
        "do, which no replay would do: assign() its values, or do it between calls");
}

TEST_CASE("copies of tensors, host reads and assignments in place need no new capture") {
  std::vector<Tensor> t = {floats({1, 2}), floats({3, 5})};
  Tensor part = t[1].narrow(0, 1, 1);
  Jit step([&](const Tensor& x) { return x * t[0] + t[1] * part; });
  for (int i = 0; i < 20; ++i) {
    const Floats a = t[0].to_vector<float>(), b = t[1].to_vector<float>();
    const float p = part.to_vector<float>()[0];
    CHECK(step(floats({1, 1})).to_vector<float>() == Floats{a[0] + b[0] * p, a[1] + b[1] * p});
    {
      std::vector<Tensor> copies = t;
      std::reverse(copies.begin(), copies.end());
      std::swap(copies[0], copies[1]);
    }
    t[0].assign((t[0] + t[1]) * 0.5f).realize();
    std::swap(t[0], t[1]);
    std::swap(t[0], t[1]);
  }
  CHECK(step.statistics().captures == 1);
  CHECK(step.statistics().replays == 18);
}

// The new value takes the norm of the old one, all of which it overwrites: it has memory of its
// own.
TEST_CASE("a tensor whose new value between calls is in other memory is read there") {
  Tensor w = floats({3, 4}).realize();
  Jit step([&](const Tensor& x) { return x * w; });
  const Tensor one = floats({1, 1}).realize();
  for (int i = 0; i < 2; ++i) step(one);
  for (int i = 0; i < 10; ++i) {  // more often than a step is recorded again
    w.assign(w / w.norm() * 5 + 1);
    w.realize();
    CHECK(step(one).to_vector<float>() == w.to_vector<float>());
  }
  w = floats({1, 2});
  CHECK(error_of([&] { step(one); }).find("was replaced") != std::string::npos);
}

TEST_CASE("a log of handles follows those that held a node when it was made") {
  const Node n = build::detach(floats({1}).node()), other = build::detach(floats({2}).node());
  NodeRef a(n), b(other);
  const HandleLog log({n});
  {
    NodeRef copy = a;
    const NodeRef moved = std::move(copy);
    NodeRef assigned;
    assigned = moved;
    CHECK(log.changes().empty());
  }
  std::swap(a, b);
  REQUIRE(log.changes().size() == 1);
  CHECK((log.changes()[0].then == n));
  CHECK((log.changes()[0].now == nullptr));  // nothing says where `a` went from there
  std::swap(a, b);
  CHECK(log.changes().empty());
  a = b;
  REQUIRE(log.changes().size() == 1);
  CHECK((log.changes()[0].now == other));
  const NodeRef third = std::move(a);
  CHECK((log.changes()[0].now == nullptr));
  a = NodeRef(n);
  CHECK(log.changes().empty());
}

TEST_CASE("a log of handles tells a tensor that was assigned to from another one") {
  Tensor t = floats({1}), kept = t, other = floats({2});
  const HandleLog log({t.node()});
  t.assign(other);
  REQUIRE(log.changes().size() == 1);
  CHECK(log.changes()[0].is_assigned);
  t.realize();
  CHECK(log.changes()[0].is_assigned);
  CHECK((log.changes()[0].now == t.node()));
  t = other;
  CHECK_FALSE(log.changes()[0].is_assigned);
}
