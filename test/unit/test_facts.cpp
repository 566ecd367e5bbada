#include "tiny/ir/facts.h"

#include <doctest/doctest.h>

#include <functional>
#include <optional>
#include <random>

#include "codegen/kernel/facts.h"
#include "tiny/base/error.h"
#include "tiny/ir/print.h"
#include "tiny/rewrite/algebra.h"

using namespace tiny;

namespace {

Node range(int id, int64_t extent) {
  return make(Op::Range, kIndex, {index(extent)}, RangeArg{id, RangeKind::Loop});
}

using Values = std::vector<int64_t>;  // of the ranges, by id

// The value of an Index or bool expression; nothing where it is undefined.
std::optional<int64_t> value_of(Node n, const Values& ranges) {
  if (n->is_const()) return n->int_value();
  if (n->op == Op::Range) return ranges[static_cast<size_t>(n->arg<RangeArg>().id)];
  const auto a = value_of(n->src(0), ranges);
  if (!a) return {};
  if (n->op == Op::Neg) return -*a;
  if (n->op == Op::Cast) return n->dtype.is_bool() ? *a != 0 : *a;
  const auto b = value_of(n->src(1), ranges);
  if (!b) return {};
  const bool divides = n->op >= Op::FloorDiv && n->op <= Op::TruncMod;
  if (divides && *b == 0) return {};
  switch (n->op) {
    case Op::Add: return *a + *b;
    case Op::Sub: return *a - *b;
    case Op::Mul: return *a * *b;
    case Op::FloorDiv: return floor_div(*a, *b);
    case Op::FloorMod: return floor_mod(*a, *b);
    case Op::TruncDiv: return *a / *b;
    case Op::TruncMod: return *a % *b;
    case Op::Max: return std::max(*a, *b);
    case Op::Min: return std::min(*a, *b);
    case Op::And: return *a & *b;
    case Op::Or: return *a | *b;
    case Op::Xor: return *a ^ *b;
    case Op::Lt: return *a < *b;
    case Op::Le: return *a <= *b;
    case Op::Eq: return *a == *b;
    case Op::Ne: return *a != *b;
    case Op::Where: return *a ? b : value_of(n->src(2), ranges);
    default: throw Bug(cat("value_of: ", n->op));
  }
}

class Expressions {
 public:
  explicit Expressions(uint64_t seed) : random_(seed) {}

  Node index_expression(int depth) {
    if (depth == 0 || below(8) == 0) return leaf();
    const Op ops[] = {Op::Add,      Op::Sub,      Op::Mul, Op::FloorDiv, Op::FloorMod,
                      Op::TruncDiv, Op::TruncMod, Op::Max, Op::Min,      Op::And,
                      Op::Or,       Op::Xor,      Op::Neg, Op::Where};
    const Op op = ops[below(std::size(ops))];
    Node a = index_expression(depth - 1);
    if (op == Op::Neg) return make(op, kIndex, {a});
    Node b = index_expression(depth - 1);
    if (op == Op::Where) return make(op, kIndex, {condition(a, b), a, index_expression(depth - 1)});
    return make(op, kIndex, {a, b});
  }

  Node condition(Node a, Node b) {
    const Op ops[] = {Op::Lt, Op::Le, Op::Eq, Op::Ne};
    return make(ops[below(4)], kBool, {a, b});
  }

 private:
  Node leaf() {
    if (below(2)) return index(static_cast<int64_t>(below(17)) - 8);
    const int64_t extents[] = {2, 5, 7};
    const auto id = static_cast<int>(below(3));
    return range(id, extents[id]);
  }
  size_t below(size_t n) { return random_() % n; }
  std::mt19937_64 random_;
};

void for_all_ranges(const std::function<void(const Values&)>& f) {
  for (int64_t i = 0; i < 2; ++i)
    for (int64_t j = 0; j < 5; ++j)
      for (int64_t k = 0; k < 7; ++k) f({i, j, k});
}

int64_t trunc_mod_min(int64_t low, int64_t high, int64_t d) {
  int64_t least = INT64_MAX;
  for (int64_t x = low; x <= high; ++x) least = std::min(least, x % d);
  return least;
}

}  // namespace

TEST_CASE("bounds hold for every value of random index expressions") {
  Arena arena;
  ArenaScope scope(arena);
  Expressions expressions(1);
  for (int i = 0; i < 1500; ++i) {
    Node n = expressions.index_expression(3);
    if (i % 4 == 0) n = expressions.condition(n, expressions.index_expression(2));
    int64_t least = INT64_MAX, most = INT64_MIN;
    for_all_ranges([&](const Values& v) {
      const auto value = value_of(n, v);
      if (!value) return;
      least = std::min(least, *value);
      most = std::max(most, *value);
    });
    if (least > most) continue;
    INFO(to_expression(n) << " in [" << n->vmin << ", " << n->vmax << "]");
    CHECK(n->vmin <= least);
    CHECK(n->vmax >= most);
  }
}

TEST_CASE("bounds of a C remainder of negative values reach zero") {
  Arena arena;
  ArenaScope scope(arena);
  Node x = make(Op::Sub, kIndex, {range(0, 5), index(8)});  // -8 .. -4
  Node r = make(Op::TruncMod, kIndex, {x, index(4)});
  CHECK(r->vmax == 0);
  CHECK(r->vmin <= trunc_mod_min(-8, -4, 4));
}

TEST_CASE("bounds are exact for sums, products and quotients of ranges") {
  Arena arena;
  ArenaScope scope(arena);
  Node a = range(0, 4), b = range(1, 6);
  Node flat = make(Op::Add, kIndex, {make(Op::Mul, kIndex, {a, index(6)}), b});
  CHECK(flat->vmin == 0);
  CHECK(flat->vmax == 23);
  CHECK(make(Op::FloorDiv, kIndex, {flat, index(6)})->vmax == 3);
  CHECK(make(Op::FloorMod, kIndex, {flat, index(24)})->vmax == 23);
  CHECK(make(Op::FloorMod, kIndex, {flat, index(5)})->vmax == 4);
  CHECK(make(Op::Lt, kBool, {flat, index(24)})->vmin == 1);
}

TEST_CASE("machine integers that may wrap have the span of their dtype") {
  Arena arena;
  ArenaScope scope(arena);
  const int64_t arg[] = {0, 1};
  Node x = make(Op::Param, kI32, {}, Ints(arg));
  Node sum = make(Op::Add, kI32, {x, constant(kI32, 1)});
  CHECK(sum->vmin == INT32_MIN);
  CHECK(sum->vmax == INT32_MAX);
  Node small = make(Op::Cast, kI8, {make(Op::And, kI32, {x, constant(kI32, 255)})});
  CHECK(small->vmin == -128);
  CHECK(small->vmax == 127);
}

TEST_CASE("integers of 64 bits that may wrap have the span of their dtype") {
  Arena arena;
  ArenaScope scope(arena);
  const int64_t arg[] = {0, 1};
  Node x = make(Op::Param, kI64, {}, Ints(arg));
  Node positive = make(Op::Max, kI64, {x, constant(kI64, 0)});
  Node next = make(Op::Add, kI64, {positive, constant(kI64, 1)});
  CHECK(next->vmin == INT64_MIN);  // the largest value plus one
  Node u = make(Op::Param, kU64, {}, Ints(arg));
  CHECK(make(Op::Cast, kI64, {u})->vmin == INT64_MIN);  // 2^63 and above are negative there
}

TEST_CASE("an integer division by a range that may be zero has no bounds") {
  Arena arena;
  ArenaScope scope(arena);
  CHECK(make(Op::FloorDiv, kIndex, {index(6), range(0, 3)})->vmax == INT64_MAX);
}

TEST_CASE("floor division and its remainder go towards minus infinity") {
  for (int64_t a = -20; a <= 20; ++a)
    for (int64_t b : {-7, -3, -1, 1, 2, 5}) {
      const int64_t q = floor_div(a, b), r = floor_mod(a, b);
      CHECK(q * b + r == a);
      CHECK((r == 0 || (r < 0) == (b < 0)));
      CHECK(std::abs(r) < std::abs(b));
    }
}

TEST_CASE("a float has a normal inverse where it is known to be neither tiny nor huge") {
  Arena arena;
  ArenaScope scope(arena);
  const int64_t arg[] = {0, 4};
  Node x = make(Op::Load, kF32, {make(Op::Param, kF32, {}, Ints(arg)), index(0)});
  const auto number = [](double v) { return constant(kF32, v); };
  const auto op = [](Op o, Node a, Node b) { return make(o, kF32, {a, b}); };
  const auto unary = [](Op o, Node a) { return make(o, kF32, {a}); };
  Node size = op(Op::Max, x, unary(Op::Neg, x)), less = op(Op::Min, x, unary(Op::Neg, x));
  Node power = unary(Op::Exp2, op(Op::Mul, less, number(3)));
  CHECK(has_normal_inverse(op(Op::Add, power, number(1))));
  CHECK(has_normal_inverse(op(Op::Add, number(1), power)));
  CHECK(has_normal_inverse(unary(Op::Sqrt, op(Op::Add, power, number(1)))) == false);
  CHECK(!has_normal_inverse(power));
  CHECK(!has_normal_inverse(op(Op::Add, unary(Op::Exp2, x), number(1))));
  CHECK(!has_normal_inverse(op(Op::Add, op(Op::Mul, x, x), number(1))));
  CHECK(has_normal_inverse(op(Op::Min, op(Op::Add, size, number(2)), number(10))));
  CHECK(!has_normal_inverse(op(Op::Add, op(Op::Mul, less, number(-1)), number(1))));
  CHECK(!has_normal_inverse(op(Op::Sub, power, number(2))));
  CHECK(!has_normal_inverse(number(0)));
  CHECK(!has_normal_inverse(number(INFINITY)));
  CHECK(has_normal_inverse(number(-3)) == false);
  Node test = make(Op::Lt, kBool, {x, number(0)});
  CHECK(has_normal_inverse(make(Op::Where, kF32, {test, number(1), number(7)})));
  CHECK(!has_normal_inverse(make(Op::Where, kF32, {test, number(1), x})));
}

TEST_CASE("a node depends on the ranges below it that no reduction closes") {
  Arena arena;
  ArenaScope scope(arena);
  Node a = range(0, 4), b = range(1, 6);
  Node value = make(Op::Cast, kF32, {make(Op::Add, kIndex, {a, b})});
  CHECK(value->ranges == 3);
  CHECK(make(Op::Reduce, kF32, {value, b}, OpArg{Op::Add})->ranges == 1);
}

TEST_CASE("shapes follow from movement") {
  Arena arena;
  ArenaScope scope(arena);
  const int64_t arg[] = {0, 4, 6};
  Node x = make(Op::Param, kF32, {}, Ints(arg));
  const auto shape = [&](Op op, Shape ints) {
    return to_text(make(op, kF32, {x}, Ints(ints))->shape());
  };
  CHECK(shape(Op::Permute, {1, 0}) == "(6,4)");
  CHECK(shape(Op::Pad, {1, 2, 0, 3}) == "(7,9)");
  CHECK(shape(Op::Shrink, {1, 3, 2, 6}) == "(2,4)");
  CHECK(shape(Op::Stride, {3, 4}) == "(2,2)");
  CHECK(shape(Op::Flip, {1, 0}) == "(4,6)");
  CHECK(to_text(make(Op::ReduceAxis, kF32, {x}, ReduceArg{Op::Add, 2})->shape()) == "(4,1)");
}
