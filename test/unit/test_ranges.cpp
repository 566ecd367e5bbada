#include "codegen/passes/passes.h"

#include <doctest/doctest.h>

#include "codegen/kernel/access.h"
#include "codegen/kernel/option.h"
#include "test/unit/kernels.h"
#include "tiny/ir/print.h"
#include "tiny/ir/verify.h"
#include "tiny/rewrite/algebra.h"

using namespace tiny;
using namespace tiny::test;

namespace {

// The one load of a kernel and where it reads.
Node only_load(Node sink) {
  const std::vector<Node> loads = all_of(sink, Op::Load);
  REQUIRE(loads.size() == 1);
  return loads[0];
}

Node ranged(const std::vector<Node>& values) {
  Node k = simplify(to_ranges(kernel_of(values)));
  verify(k, Form::Kernel, "ranges");
  return k;
}

}  // namespace

TEST_CASE("movement becomes arithmetic on indices") {
  Arena arena;
  ArenaScope scope(arena);
  Node x = tensor_param(1, {4, 6});
  const auto at = [&](Node view) { return to_expression(only_load(ranged({view}))->src(1)); };
  CHECK(at(build::permute(x, Shape{1, 0})) == "r0+(r1*6)");
  CHECK(at(build::flip(x, Shape{0, 1})) == "((r0*6)+(r1*-1))+5");
  CHECK(at(build::stride(x, Shape{2, 3})) == "(r0*12)+(r1*3)");
  CHECK(at(build::shrink(x, Shape{1, 3, 2, 6})) == "((r0*6)+r1)+8");
  CHECK(at(build::reshape(x, Shape{24})) == "r0");
  CHECK(at(build::reshape(x, Shape{2, 12})) == "(r0*12)+r1");
}

TEST_CASE("padding becomes a gate, and zero outside") {
  Arena arena;
  ArenaScope scope(arena);
  Node k = ranged({build::pad(tensor_param(1, {5}), Shape{1, 2})});
  Node load = only_load(k);
  REQUIRE(load->num_src == 3);
  CHECK(to_expression(load->src(2)) == "(0<r0)&(r0<6)");
  CHECK(to_expression(load->src(1)) == "r0+-1");
}

TEST_CASE("padding by nothing on one side is half a gate") {
  Arena arena;
  ArenaScope scope(arena);
  Node load = only_load(ranged({build::pad(tensor_param(1, {5}), Shape{0, 2})}));
  CHECK(to_expression(load->src(2)) == "r0<5");
}

TEST_CASE("two sums over the same axis share its range") {
  Arena arena;
  ArenaScope scope(arena);
  Node x = tensor_param(2, {8, 16}), y = build::binary(Op::Mul, x, x);
  Node k = ranged({sum(x, 2), sum(y, 2)});
  CHECK(ranges_of(k).size() == 2);
  CHECK(all_of(k, Op::Reduce).size() == 2);
  CHECK(all_of(k, Op::Load).size() == 1);
}

TEST_CASE("a softmax loads its input in the places of its three passes") {
  Arena arena;
  ArenaScope scope(arena);
  Node k = ranged({softmax(tensor_param(1, {8, 16}), 2)});
  CHECK(all_of(k, Op::Reduce).size() == 2);
  CHECK(ranges_of(k).size() == 3);  // rows, columns, and the one that both reductions close
  CHECK(all_of(k, Op::Load).size() == 2);
}

TEST_CASE("an axis of size one has no range") {
  Arena arena;
  ArenaScope scope(arena);
  Node k = ranged({build::unary(Op::Neg, tensor_param(1, {1, 7, 1}))});
  CHECK(ranges_of(k).size() == 1);
}

TEST_CASE("a padded broadcast of a sum leaves the sum outside of the gate") {
  Arena arena;
  ArenaScope scope(arena);
  Node total = build::expand(sum(tensor_param(1, {6}), 1), Shape{4});
  Node k = ranged({build::pad(total, Shape{2, 2})});
  const std::vector<Node> reduces = all_of(k, Op::Reduce);
  REQUIRE(reduces.size() == 1);
  CHECK(reduces[0]->ranges == 0);
  CHECK(only_load(k)->num_src == 2);
}

TEST_CASE("an element of an empty tensor is never loaded") {
  Arena arena;
  ArenaScope scope(arena);
  Node empty = build::reshape(tensor_param(1, {0, 5}), Shape{0});
  Node k = ranged({build::pad(empty, Shape{3, 0})});
  CHECK(all_of(k, Op::Load).empty());
}

TEST_CASE("a gather gates its load by the size of the data") {
  Arena arena;
  ArenaScope scope(arena);
  Node data = tensor_param(1, {10}), at = tensor_param(2, {4}, kI32);
  Node k = ranged({build::gather(data, std::span(&at, 1))});
  int gated = 0;
  for (Node l : all_of(k, Op::Load)) gated += l->num_src == 3;
  CHECK(gated == 1);
  CHECK(all_of(k, Op::Load).size() == 2);
}

TEST_CASE("a scatter runs in order along what its indices do not tell apart") {
  Arena arena;
  ArenaScope scope(arena);
  Node base = tensor_param(0, {10}), values = tensor_param(1, {4}), at = tensor_param(2, {4}, kI32);
  const auto kernel = [&](bool unique) {
    Node s = build::scatter(base, values, std::span(&at, 1), ScatterArg{Op::Add, unique});
    return to_ranges(make(Op::Sink, kVoid, {make(Op::Store, kVoid, {base, s})}));
  };
  CHECK(kind(ranges_of(kernel(false))[0]) == RangeKind::Reduce);
  CHECK(kind(ranges_of(kernel(true))[0]) == RangeKind::Loop);
}

TEST_CASE("source_indices gives where an element comes from") {
  Arena arena;
  ArenaScope scope(arena);
  Node x = tensor_param(0, {4, 6});
  Node gate = nullptr;
  const std::vector<Node> at{index(5), index(1)};
  Node padded = build::pad(x, Shape{2, 0, 0, 0});
  const std::vector<Node> from = source_indices(padded, at, gate);
  CHECK(from[0] == index(3));
  CHECK(from[1] == index(1));
  CHECK(gate == nullptr);
}
