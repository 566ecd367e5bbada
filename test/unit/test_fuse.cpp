#include "runtime/fusion/fuse.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "test/unit/kernels.h"
#include "tiny/base/env.h"

using namespace tiny;
using namespace tiny::test;

namespace {

std::vector<Group> groups(const std::vector<Node>& roots) { return fuse(roots); }
Node op(Op o, Node a, Node b) { return build::binary(o, a, b); }

Node mean(Node x, uint32_t axes) {
  Node s = sum(x, axes);
  const double share =
      static_cast<double>(numel(s->shape())) / static_cast<double>(numel(x->shape()));
  return op(Op::Mul, s, build::full(s->shape(), x->dtype, share));
}

Node normalized(Node x, uint32_t axes) {
  Node centered = op(Op::Sub, x, spread(mean(x, axes), x));
  Node variance = mean(op(Op::Mul, centered, centered), axes);
  Node scale = build::unary(Op::Recip, build::unary(Op::Sqrt, variance));
  return op(Op::Mul, centered, spread(scale, x));
}

}  // namespace

TEST_CASE("an element-wise chain is one kernel") {
  Arena arena;
  ArenaScope scope(arena);
  Node x = tensor_param(0, {64, 32});
  Node y = build::unary(Op::Sin, op(Op::Mul, op(Op::Add, x, x), x));
  CHECK(groups({build::permute(y, Shape{1, 0})}).size() == 1);
}

TEST_CASE("a view alone needs no kernel") {
  Arena arena;
  ArenaScope scope(arena);
  Node x = tensor_param(0, {64, 32});
  CHECK(groups({build::permute(x, Shape{1, 0})}).empty());
  CHECK(groups({build::shrink(x, Shape{1, 3, 2, 4})}).empty());
  CHECK(groups({build::full(Shape{3, 3}, kF32, 1.0)}).empty());
}

TEST_CASE("softmax and layer norm over rows are one kernel each") {
  Arena arena;
  ArenaScope scope(arena);
  Node x = tensor_param(0, {512, 256});
  CHECK(groups({softmax(x, 2)}).size() == 1);
  CHECK(groups({normalized(x, 2)}).size() == 1);
}

TEST_CASE("a cross entropy of rows is one kernel until its mean") {
  Arena arena;
  ArenaScope scope(arena);
  Node x = tensor_param(0, {128, 10}), target = tensor_param(1, {128, 10});
  Node most = spread(build::reduce(Op::Max, x, 2), x);
  Node shifted = op(Op::Sub, x, most);
  Node total = sum(build::unary(Op::Exp2, shifted), 2);
  Node loss = op(Op::Sub, build::unary(Op::Log2, total), sum(op(Op::Mul, shifted, target), 2));
  CHECK(groups({loss}).size() == 1);
  CHECK(groups({mean(loss, 1)}).size() <= 2);
}

TEST_CASE("a matrix product takes its bias and its relu into its kernel") {
  Arena arena;
  ArenaScope scope(arena);
  Node product = matmul(tensor_param(0, {64, 48}), tensor_param(1, {48, 32}));
  Node bias = build::expand(tensor_param(2, {1, 32}), Shape{64, 32});
  Node y = op(Op::Add, product, bias);
  CHECK(groups({op(Op::Max, y, build::full(y->shape(), kF32, 0.0))}).size() == 1);
}

TEST_CASE("two products in a row are two kernels") {
  Arena arena;
  ArenaScope scope(arena);
  Node a = tensor_param(0, {64, 64}), b = tensor_param(1, {64, 64});
  CHECK(groups({matmul(matmul(a, b), b)}).size() == 2);
}

TEST_CASE("batch norm statistics need one kernel") {
  Arena arena;
  ArenaScope scope(arena);
  Node x = tensor_param(0, {64, 16, 8, 8});
  Node average = mean(x, 0b1101);
  Node centered = op(Op::Sub, x, spread(average, x));
  const std::vector<Group> g = groups({average, mean(op(Op::Mul, centered, centered), 0b1101)});
  CHECK(g.size() == 1);
  CHECK(g[0].outputs.size() == 2);
}

TEST_CASE("two outputs that read the same input share a kernel") {
  Arena arena;
  ArenaScope scope(arena);
  Node x = tensor_param(0, {64, 32}), y = tensor_param(1, {64, 32});
  const std::vector<Group> g = groups({op(Op::Add, x, y), op(Op::Mul, x, y)});
  CHECK(g.size() == 1);
  CHECK(g[0].outputs.size() == 2);
  CHECK(groups({sum(x, 2), build::reduce(Op::Max, x, 2)}).size() == 1);
}

TEST_CASE("sums of rows and of columns do not go into one kernel") {
  Arena arena;
  ArenaScope scope(arena);
  Node x = tensor_param(0, {8, 8});
  Node y = op(Op::Add, spread(sum(x, 1), x), spread(sum(x, 2), x));
  CHECK(groups({y}).size() >= 2);
}

TEST_CASE("FUSE=0 gives every reduction a kernel of its own") {
  const EnvOverride off("FUSE", "0");
  Arena arena;
  ArenaScope scope(arena);
  CHECK(groups({softmax(tensor_param(0, {512, 256}), 2)}).size() >= 3);
}

TEST_CASE("groups come in an order in which they can run") {
  Arena arena;
  ArenaScope scope(arena);
  Node a = tensor_param(0, {64, 64}), b = tensor_param(1, {64, 64});
  Node c = matmul(a, b);
  std::vector<Node> made;
  for (const Group& g : groups({matmul(c, op(Op::Add, c, a))})) {
    for (Node in : g.inputs)
      CHECK((in->op == Op::Param || std::find(made.begin(), made.end(), in) != made.end()));
    made.insert(made.end(), g.outputs.begin(), g.outputs.end());
  }
}

TEST_CASE("base_of is the node below all movement") {
  Arena arena;
  ArenaScope scope(arena);
  Node x = build::unary(Op::Neg, tensor_param(0, {4, 6}));
  CHECK(base_of(build::flip(build::permute(x, Shape{1, 0}), Shape{1, 0})) == x);
}
