// Numbers that several ranges and copies make up: what is accessed stays the same, and the proofs
// of writes count on it.
#include "codegen/proof/mixed_radix.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>

#include "codegen/proof/claims/bounds.h"
#include "codegen/proof/write_layout.h"
#include "tiny/base/splitmix.h"
#include "tiny/ir/print.h"
#include "tiny/rewrite/algebra.h"

using namespace tiny;

namespace {

using Domain = std::vector<Node>;

Node range(int id, int64_t extent) {
  return make(Op::Range, kIndex, {index(extent)}, RangeArg{id, RangeKind::Loop});
}
Node op(Op o, Node a, Node b) { return make(o, is_comparison(o) ? kBool : kIndex, {a, b}); }
Node add(Node a, Node b) { return op(Op::Add, a, b); }
Node mul(Node a, int64_t b) { return op(Op::Mul, a, index(b)); }
Node div(Node a, int64_t b) { return op(Op::FloorDiv, a, index(b)); }
Node mod(Node a, int64_t b) { return op(Op::FloorMod, a, index(b)); }

int64_t value(Node n, const std::map<Node, int64_t>& at) {
  if (n->is_const()) return n->int_value();
  if (n->is(Op::Range)) return at.at(n);
  const int64_t a = value(n->src(0), at), b = value(n->src(1), at);
  switch (n->op) {
    case Op::Add: return a + b;
    case Op::Sub: return a - b;
    case Op::Mul: return a * b;
    case Op::FloorDiv: return floor_div(a, b);
    case Op::FloorMod: return floor_mod(a, b);
    case Op::Lt: return a < b;
    case Op::Le: return a <= b;
    case Op::And: return a & b;
    default: FAIL("no operation of these tests: ", to_expression(n)); return 0;
  }
}

// How often each element is accessed.
std::map<int64_t, int> accessed(const std::vector<Claim>& claims,
                                const std::vector<Domain>& domains) {
  std::map<int64_t, int> out;
  for (size_t i = 0; i < claims.size(); ++i) {
    std::map<Node, int64_t> at;
    for (Node r : domains[i]) at[r] = 0;
    for (bool more = true; more;) {
      if (!claims[i].gate || value(claims[i].gate, at)) ++out[value(claims[i].index, at)];
      more = false;
      for (Node r : domains[i]) {
        if (++at[r] <= r->vmax) {
          more = true;
          break;
        }
        at[r] = 0;
      }
    }
  }
  return out;
}

Claim claim(Node at, Node gate, int64_t size) {
  Claim c{};
  c.index = simplify(at);
  c.gate = gate && !simplify(gate)->is_const(1) ? simplify(gate) : nullptr;
  c.size = size;
  return c;
}

// A kernel of `blocks` of `threads`, each thread with `copies` elements that lie all blocks apart
// or, `between` blocks, the threads of one, that writes the digits of its number in some order.
struct Numbered {
  std::vector<Claim> claims;
  std::vector<Domain> domains;
};

Numbered numbered(int64_t blocks, int64_t threads, int64_t copies, const Shape& digits,
                  const Shape& order, int64_t limit, bool between = false) {
  Numbered out;
  Node block = range(0, blocks), thread = range(1, threads);
  const int64_t size = limit;
  for (int64_t k = 0; k < copies; ++k) {
    const int64_t per_block = between ? threads * copies : threads;
    const int64_t apart = between ? threads : blocks * threads;
    Node number = add(add(mul(block, per_block), thread), index(k * apart));
    Node at = index(0);
    int64_t step = 1;
    for (size_t d = 0; d < digits.size(); ++d) {
      int64_t factor = 1;  // of the digits that come before it in the order
      for (size_t e = 0; order[e] != static_cast<int64_t>(d); ++e)
        factor *= digits[static_cast<size_t>(order[e])];
      Node q = div(number, step);
      at = add(at, mul(d + 1 == digits.size() ? q : mod(q, digits[d]), factor));
      step *= digits[d];
    }
    Node gate = limit < blocks * threads * copies ? op(Op::Lt, number, index(limit)) : nullptr;
    out.claims.push_back(claim(at, gate, size));
    out.domains.push_back({block, thread});
  }
  return out;
}

}  // namespace

TEST_CASE("what is accessed stays the same when ranges and copies become one number") {
  Arena arena;
  ArenaScope scope(arena);
  SplitMix64 random(7);
  int rewritten = 0, proved = 0, tried = 0;
  for (int i = 0; i < 300; ++i) {
    const auto below = [&](int n) { return int64_t{random.below(n)}; };
    const Shape digits{2 + below(6), 2 + below(4), 1 + below(5)};
    Shape order{0, 1, 2};
    for (size_t k = 2; k > 0; --k)
      std::swap(order[k], order[static_cast<size_t>(below(static_cast<int>(k) + 1))]);
    // The digit that is not taken modulo anything is the highest in memory too, or its numbers end.
    const int64_t limit = digits[0] * digits[1] * digits[2];
    const int64_t threads = 1 + below(9), copies = 1 + below(3);
    const int64_t blocks = (limit + threads * copies - 1) / (threads * copies);
    if ((copies - 1) * blocks * threads >= limit) continue;  // copies that do nothing
    Numbered n = numbered(blocks, threads, copies, digits, order, limit, i % 2 == 1);
    const auto before = accessed(n.claims, n.domains);
    const auto claims = n.claims;
    count_numbers(n.claims, n.domains);
    INFO(to_expression(claims[0].index),
         claims[0].gate ? " where " + to_expression(claims[0].gate) : "", " with ", copies,
         " copies of ", blocks, " x ", threads, " became ", to_expression(n.claims[0].index));
    CHECK(accessed(n.claims, n.domains) == before);
    ++tried;
    rewritten += n.claims[0].index != claims[0].index;
    proved += written_once(n.claims, n.domains);
    // Each element is written once; of a larger buffer that is not so.
    for (Claim& c : n.claims) ++c.size;
    CHECK_FALSE(written_once(n.claims, n.domains));
  }
  CHECK(rewritten > tried / 2);
  CHECK_MESSAGE(proved > tried / 2, proved, " of ", tried);
}

TEST_CASE("a wrong copy, order or limit keeps numbers from being written once") {
  Arena arena;
  ArenaScope scope(arena);
  const auto once = [](Numbered n) {
    const auto before = accessed(n.claims, n.domains);
    count_numbers(n.claims, n.domains);
    CHECK(accessed(n.claims, n.domains) == before);
    return written_once(n.claims, n.domains);
  };
  // Rows of 49 in threads of 512, the number's digits exchanged in memory.
  const auto rows = [] { return numbered(1, 512, 7, {49, 64}, {1, 0}, 3136); };
  CHECK(once(rows()));
  Numbered missing = rows();
  missing.claims.erase(missing.claims.begin() + 3);
  missing.domains.pop_back();
  CHECK_FALSE(once(missing));
  Numbered twice = rows();
  twice.claims[3] = twice.claims[2];
  CHECK_FALSE(once(twice));
  Numbered shifted = rows();
  shifted.claims[3].index = add(shifted.claims[3].index, index(1));
  CHECK_FALSE(once(shifted));
  Numbered ends = rows();
  ends.claims.back().gate = nullptr;
  CHECK_FALSE(once(ends));
  CHECK_FALSE(once(numbered(1, 512, 7, {49, 64}, {1, 0}, 3135)));
  // The same in three blocks, whose threads' copies lie between them.
  const auto blocks = [] { return numbered(3, 210, 5, {49, 64}, {1, 0}, 3136, true); };
  CHECK(once(blocks()));
  Numbered lacks = blocks();
  lacks.claims.erase(lacks.claims.begin() + 2);
  lacks.domains.pop_back();
  CHECK_FALSE(once(lacks));
  Numbered again = blocks();
  again.claims[2] = again.claims[1];
  CHECK_FALSE(once(again));
}

TEST_CASE("an index of one number keeps its bounds") {
  Arena arena;
  ArenaScope scope(arena);
  // (r1 + 1024 r2) / 784 and its remainder, as the simplifier leaves them
  Node r1 = range(1, 1024), r2 = range(2, 25), number = add(r1, mul(r2, 1024));
  Claim c = claim(add(mul(div(number, 784), 802816), mul(mod(number, 784), 4)),
                  op(Op::Lt, number, index(25088)), 0);
  std::vector<Claim> claims{c};
  std::vector<Domain> domains{{r1, r2}};
  count_numbers(claims, domains);
  Assumptions gate;
  gate.assume(claims[0].gate);
  const Bounds b = gate.bounds(claims[0].index);
  CHECK(b.min == 0);
  CHECK(b.max == 31 * 802816 + 783 * 4);
}
