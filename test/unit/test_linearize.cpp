#include "codegen/passes/passes.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "codegen/kernel/access.h"
#include "codegen/kernel/option.h"
#include "test/unit/kernels.h"
#include "tiny/rewrite/algebra.h"

using namespace tiny;
using namespace tiny::test;

namespace {

Linear program(const std::vector<Node>& values) {
  return linearize(simplify(to_ranges(kernel_of(values))), "k");
}

// Every loop is closed, and what a statement needs was defined in a loop that is still open.
bool is_well_formed(const Linear& p) {
  std::vector<std::vector<Node>> open(1);
  const auto defined = [&](Node n) {
    if (n->op == Op::Range || n->op == Op::Param || n->is_const()) return true;
    for (const auto& block : open)
      if (std::find(block.begin(), block.end(), n) != block.end()) return true;
    return false;
  };
  for (Node n : p.body) {
    if (n->op == Op::Loop) {
      open.emplace_back();
    } else if (n->op == Op::EndLoop) {
      open.pop_back();
    } else if (n->op == Op::Acc) {
      open.back().push_back(n);
    } else if (n->op == Op::Update) {
      if (!defined(n->src(0)->src(0))) return false;
    } else {
      for (Node s : n->op == Op::Reduce ? std::span<const Node>() : n->srcs())
        if (!defined(s)) return false;
      open.back().push_back(n);
    }
  }
  return open.size() == 1;
}

}  // namespace

TEST_CASE("an element-wise kernel is one loop nest with one store") {
  Arena arena;
  ArenaScope scope(arena);
  const Linear p = program({build::unary(Op::Neg, tensor_param(1, {4, 8}))});
  CHECK(count_op(p, Op::Loop) == 2);
  CHECK(count_op(p, Op::Store) == 1);
  CHECK(p.written == std::vector<bool>{true, false});
  CHECK(is_well_formed(p));
}

TEST_CASE("two sums over the same input share one loop and one load") {
  Arena arena;
  ArenaScope scope(arena);
  Node x = tensor_param(2, {8, 16});
  const Linear p = program({sum(x, 2), sum(build::binary(Op::Mul, x, x), 2)});
  CHECK(count_op(p, Op::Loop) == 2);
  CHECK(count_op(p, Op::Load) == 1);
  CHECK(count_op(p, Op::Acc) == 2);
  CHECK(count_op(p, Op::Update) == 2);
  CHECK(is_well_formed(p));
}

TEST_CASE("a softmax over rows passes three times over each row") {
  Arena arena;
  ArenaScope scope(arena);
  const Linear p = program({softmax(tensor_param(1, {8, 16}), 2)});
  CHECK(count_op(p, Op::Loop) == 4);  // rows, and three over the columns
  CHECK(count_op(p, Op::Load) == 3);
  CHECK(is_well_formed(p));
}

TEST_CASE("a softmax over columns has the columns' loop outermost") {
  Arena arena;
  ArenaScope scope(arena);
  const Linear p = program({softmax(tensor_param(1, {8, 16}), 1)});
  CHECK(count_op(p, Op::Loop) == 4);
  REQUIRE(p.body.size() > 0);
  Node first = nullptr;
  for (Node n : p.body)
    if (n->op == Op::Loop && !first) first = n->src(0);
  CHECK(extent(first) == 16);
  CHECK(is_well_formed(p));
}

TEST_CASE("a reduction that depends on no loop runs before those that do") {
  Arena arena;
  ArenaScope scope(arena);
  Node x = tensor_param(1, {8, 16}), y = tensor_param(2, {32});
  Node rows = spread(sum(x, 2), x);
  Node total = build::expand(build::reshape(sum(y, 1), Shape{1, 1}), Shape{8, 16});
  const Linear p = program({build::binary(Op::Mul, x, build::binary(Op::Add, rows, total))});
  CHECK(count_op(p, Op::Loop) == 4);  // the total, rows, the sum of a row, columns
  CHECK(is_well_formed(p));
}

TEST_CASE("a reduction that is needed by way of another one runs as far out as it can") {
  Arena arena;
  ArenaScope scope(arena);
  Node x = tensor_param(1, {4, 8, 16});
  Node scaled = build::binary(Op::Mul, x, spread(sum(x, 6), x));  // by the sum of each x[i]
  const Linear p = program({sum(scaled, 4)});
  // The only enclosing loop of the first accumulator is that over i.
  const auto first =
      std::find_if(p.body.begin(), p.body.end(), [](Node n) { return n->op == Op::Acc; });
  CHECK(std::count_if(p.body.begin(), first, [](Node n) { return n->op == Op::Loop; }) == 1);
  CHECK(count_op(p, Op::Acc) == 2);
  CHECK(is_well_formed(p));
}

TEST_CASE("what does not depend on an inner loop is computed outside of it") {
  Arena arena;
  ArenaScope scope(arena);
  Node row = build::expand(build::unary(Op::Exp2, tensor_param(1, {4, 1})), Shape{4, 8});
  const Linear p = program({build::binary(Op::Mul, row, tensor_param(2, {4, 8}))});
  int depth = 0, depth_of_exp2 = -1;
  for (Node n : p.body) {
    depth += n->op == Op::Loop;
    depth -= n->op == Op::EndLoop;
    if (n->op == Op::Exp2) depth_of_exp2 = depth;
  }
  CHECK(depth_of_exp2 == 1);
}

TEST_CASE("all loads come before the first store of a loop") {
  Arena arena;
  ArenaScope scope(arena);
  Node x = tensor_param(2, {8}), y = tensor_param(3, {8});
  const Linear p = program({build::binary(Op::Add, x, y), build::binary(Op::Sub, x, y)});
  bool stored = false;
  for (Node n : p.body) {
    stored |= n->op == Op::Store;
    CHECK_FALSE((stored && n->op == Op::Load));
  }
  CHECK(count_op(p, Op::Store) == 2);
  CHECK(count_op(p, Op::Loop) == 1);
}

TEST_CASE("sums in one loop are in the same order wherever their nodes lie in memory") {
  std::string first;
  for (int round = 0; round < 8; ++round) {  // nodes of the last round leave their places to these
    Arena::global().collect();
    std::vector<Node> sums;
    for (int slot = 1; slot <= 12; ++slot) sums.push_back(sum(tensor_param(slot, {4, 8}), 2));
    Node total = sums[0];
    for (size_t i = 1; i < sums.size(); ++i) total = build::binary(Op::Add, total, sums[i]);
    const std::string text = to_text(program({total}));
    if (first.empty()) first = text;
    CHECK(text == first);
  }
}
