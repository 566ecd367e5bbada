#include "runtime/realize/realize.h"

#include <doctest/doctest.h>

#include "test/reference.h"
#include "tiny/base/error.h"

using namespace tiny;

namespace {

using Floats = std::vector<float>;

Tensor count(int64_t n, const Shape& shape) {
  return Tensor::arange(0, n, 1, kF32).reshape(shape).contiguous().realize();
}

Node base(const Tensor& t) {
  Node n = t.node()->realized ? t.node()->realized.load() : t.node();
  while (n->num_src) n = n->src(0);
  return n;
}
const void* memory(const Tensor& t) { return base(t)->arg<BufferArg>().buffer->data(); }

}  // namespace

TEST_CASE("an assignment works in the memory of the old value") {
  Tensor x = count(4, {4});
  const void* before = memory(x);
  x.assign(x * 2.0f + 1.0f).realize();
  CHECK(memory(x) == before);
  CHECK(x.to_vector<float>() == Floats{1, 3, 5, 7});
}

TEST_CASE("what was made from the old value still sees it") {
  Tensor x = count(4, {4});
  const Tensor doubled = x * 2.0f;
  x.assign(x + 10.0f);
  const Tensor later = x * 2.0f;
  x.realize();
  CHECK(x.to_vector<float>() == Floats{10, 11, 12, 13});
  CHECK(doubled.to_vector<float>() == Floats{0, 2, 4, 6});
  CHECK(later.to_vector<float>() == Floats{20, 22, 24, 26});
}

TEST_CASE("copies and views of the old value keep it") {
  Tensor x = count(6, {2, 3});
  const Tensor copy = x, view = x.t(), part = x.narrow(1, 1, 2);
  x.assign(Tensor::full({2, 3}, 9.0)).realize();
  CHECK(x.to_vector<float>() == Floats(6, 9.0f));
  CHECK(copy.to_vector<float>() == Floats{0, 1, 2, 3, 4, 5});
  CHECK(view.to_vector<float>() == Floats{0, 3, 1, 4, 2, 5});
  CHECK(part.to_vector<float>() == Floats{1, 2, 4, 5});
}

TEST_CASE("an assignment of a permuted self is right") {
  Tensor x = count(9, {3, 3});
  x.assign(x.t()).realize();
  CHECK(x.to_vector<float>() == Floats{0, 3, 6, 1, 4, 7, 2, 5, 8});
  x.assign(x.flip(0)).realize();
  CHECK(x.to_vector<float>() == Floats{2, 5, 8, 1, 4, 7, 0, 3, 6});
}

TEST_CASE("an assignment of a value that needs all of the old one is right") {
  Tensor x = count(4, {4});
  x.assign(x / x.sum()).realize();
  CHECK(x.to_vector<float>() == Floats{0, 1.0f / 6, 2.0f / 6, 3.0f / 6});
}

TEST_CASE("assignments in a row happen one after the other") {
  Tensor x = count(3, {3});
  for (int i = 0; i < 3; ++i) x.assign(x * 2.0f + 1.0f);
  CHECK(x.to_vector<float>() == Floats{7, 15, 23});
}

TEST_CASE("two tensors that are assigned to each other are exchanged") {
  Tensor x = count(3, {3}), y = (count(3, {3}) + 10.0f).realize();
  const Tensor old = x;
  x.assign(y);
  y.assign(old);
  Tensor* both[] = {&x, &y};
  Tensor::realize(both);
  CHECK(x.to_vector<float>() == Floats{10, 11, 12});
  CHECK(y.to_vector<float>() == Floats{0, 1, 2});
}

TEST_CASE("tensors outlive an error") {
  const Tensor x = count(4, {4});
  const Tensor y = x + 1.0f;
  CHECK_THROWS_AS(x.reshape({3}), Error);
  CHECK_THROWS_AS(Tensor(x).to("NOWHERE").realize(), Error);
  CHECK_THROWS_AS(x.item<float>(), Error);
  CHECK(x.to_vector<float>() == Floats{0, 1, 2, 3});
  CHECK(y.to_vector<float>() == Floats{1, 2, 3, 4});
}

TEST_CASE("a realized tensor is computed once") {
  Tensor x = (count(4, {4}) * 3.0f).realize();
  const void* first = memory(x);
  x.realize();
  CHECK(memory(x) == first);
}

TEST_CASE("a view is realized without a kernel and shares memory") {
  const Tensor x = count(6, {2, 3});
  Tensor view = x.t();
  view.realize();
  CHECK(memory(view) == memory(x));
}

TEST_CASE("gradients flow through a tensor that was read") {
  Tensor x = count(3, {3}).requires_grad_();
  const Tensor y = x * x;
  const Tensor loss = y.sum();
  CHECK(loss.item<float>() == 5.0f);
  CHECK(y.to_vector<float>() == Floats{0, 1, 4});
  loss.backward();
  CHECK(x.grad().to_vector<float>() == Floats{0, 2, 4});
}

TEST_CASE("a training loop leaves no nodes and no memory behind") {
  const Tensor data = count(32, {8, 4}), target = count(8, {8, 1});
  Tensor w = Tensor::full({4, 1}, 0.01).contiguous().realize().requires_grad_();
  Tensor momentum = Tensor::zeros({4, 1}).contiguous().realize();
  const auto step = [&] {
    const Tensor loss = (data.matmul(w) - target).square().mean();
    w.zero_grad();
    loss.backward();
    const NoGrad no_grad;
    momentum.assign(momentum * 0.9f + w.grad());
    w.assign(w.detach() - momentum * 1e-4f);
    Tensor* all[] = {&w, &momentum};
    Tensor::realize(all);
    return loss.item<float>();
  };
  float first = 0, last = 0;
  for (int i = 0; i < 10; ++i) first = i == 0 ? step() : (step(), first);
  w.zero_grad();
  const Live after_ten = live();
  for (int i = 0; i < 290; ++i) last = step();
  w.zero_grad();
  const Live after_all = live();
  CHECK(after_all.nodes == after_ten.nodes);
  CHECK(after_all.buffers == after_ten.buffers);
  CHECK(after_all.bytes == after_ten.bytes);
  CHECK(last < first);
}

TEST_CASE("values on two devices meet only after a copy") {
  const Tensor x = count(3, {3});
  Tensor there = x.to("CPU:2");
  CHECK_THROWS_AS(there + x, Error);
  CHECK((there * 2.0f).to("CPU").to_vector<float>() == Floats{0, 2, 4});
}

TEST_CASE("a constant that wants a gradient can be realized and used again") {
  Tensor x = Tensor::zeros({0, 1}).requires_grad_();
  Tensor y = x.pad({{1, 0}, {0, 0}});
  CHECK(y.realize().to_vector<float>() == Floats{0});
  CHECK((y + 1.0f).to_vector<float>() == Floats{1});
}

TEST_CASE("a value that an empty tensor was made from is computed") {
  Tensor x = count(1, {1}) + 2.0f;
  Tensor empty = x.reshape({1, 1}).expand({0, 1}) - Tensor::zeros({0, 1});
  Tensor* both[] = {&x, &empty};
  Tensor::realize(both);
  CHECK(x.to_vector<float>() == Floats{2});
}

TEST_CASE("a sum over an axis that its value does not depend on counts each element") {
  const Tensor x = Tensor::from({1.0f, 2.0f}, {2, 1});
  const Tensor wide = x.expand({2, 2});
  const Tensor y = wide * count(4, {2, 2}) + wide.sum({0, 1}, true);
  CHECK(y.sum(1).to_vector<float>() == Floats{13, 22});
}

TEST_CASE("tensors without elements and without axes are realized") {
  Tensor empty = Tensor::zeros({0, 3}) + 1.0f;
  CHECK(empty.to_vector<float>().empty());
  CHECK(empty.sum().item<float>() == 0.0f);
  CHECK((Tensor(2.0f) * 3.0f).item<float>() == 6.0f);
}
