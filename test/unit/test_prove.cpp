// Proofs: what holds is proved, what does not is refuted with an example that another evaluator
// confirms, and faults planted in the kernels of the operator tests are found.
#include "codegen/proof/prove.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>

#include "codegen/lower.h"
#include "codegen/options/thread_group.h"
#include "codegen/proof/claims/bounds.h"
#include "codegen/proof/solver/smt.h"
#include "extra/bench/networks.h"
#include "runtime/device/device.h"
#include "runtime/kernels/proof.h"
#include "runtime/schedule/schedule.h"
#include "test/ops/ops.h"
#include "test/unit/kernel_truth.h"
#include "test/unit/kernels.h"
#include "tiny/base/env.h"
#include "tiny/base/error.h"
#include "tiny/rewrite/algebra.h"
#include "tiny/rewrite/rewrite.h"

using namespace tiny;
using namespace tiny::test;

// --- what masks there are ------------------------------------------------------------------------

namespace {

// The verdict on reading an element of 11, which is that of trying all iterations.
Verdict agrees(Node r, Node at, Node gate) {
  Node kernel = sink({store(param(0, r->src(0)->vmax), r, load(param(1, 11), at, gate))});
  const Proof p = prove(kernel, patient());
  CHECK_MESSAGE(p.verdict == (truth_of(kernel)->inside ? Verdict::Proved : Verdict::Wrong), p.text);
  if (p.verdict == Verdict::Wrong) CHECK_MESSAGE(is_example(p.text, kernel), p.text);
  return p.verdict;
}

}  // namespace

TEST_CASE("a padded window with any stride and dilation is proved, and its gate is needed") {
  for (int64_t stride : {1, 2, 3})
    for (int64_t dilation : {1, 2})
      for (int64_t pad : {1, 2, 3}) {
        Arena arena;
        ArenaScope scope(arena);
        constexpr int64_t kSize = 11, kWindow = 3;
        const int64_t count = (kSize + 2 * pad - dilation * (kWindow - 1) - 1) / stride + 1;
        Node r = range(0, count * kWindow);
        Node i = op(Op::FloorDiv, r, num(kWindow)), k = op(Op::FloorMod, r, num(kWindow));
        Node at = add(add(mul(i, stride), mul(k, dilation)), num(-pad));
        Node low = above(-1, at), high = lt(at, kSize);
        CHECK(agrees(r, at, both_of(low, high)) == Verdict::Proved);
        CHECK(agrees(r, at, high) == Verdict::Wrong);
        agrees(r, at, low);
        agrees(r, at, both_of(above(-2, at), high));
        agrees(r, at, both_of(low, lt(at, kSize + 1)));
      }
}

TEST_CASE("an example names ranges, lane, element, buffer and operation") {
  Arena arena;
  ArenaScope scope(arena);
  Node r = range(0, 8);
  const auto read = [&](Node at, int lanes) {
    LabelScope label("conv2d");
    return load(param(1, 64), at, nullptr, lanes);
  };
  const Proof below = reading(read(add(mul(r, 9), num(-1)), 1), r);
  CHECK(below.verdict == Verdict::Wrong);
  CHECK(below.text == "wrong: r0=0: reads element -1 of 64 of buffer 1, from conv2d");
  Node vector = make(Op::Fold, kF32, {read(mul(r, 9), 4)}, OpArg{Op::Add});
  CHECK(reading(vector, r).text ==
        "wrong: r0=7, lane 3: reads element 66 of 64 of buffer 1, from conv2d");
}

TEST_CASE("triangular masks, flips, and concatenation are proved") {
  if (!has_solver()) return;
  Arena arena;
  ArenaScope scope(arena);
  Node r = range(0, 12), c = range(1, 12);
  Node flat = add(mul(r, 12), c);
  Node triangle = add(op(Op::FloorDiv, op(Op::Mul, r, add(r, num(1))), num(2)), c);
  Node lower_half = op(Op::Le, c, r);
  const auto square = [&](Node value) { return proof_of({store(param(0, 144), flat, value)}); };
  CHECK(square(load(param(1, 78), triangle, lower_half)).verdict == Verdict::Proved);
  CHECK(square(load(param(1, 77), triangle, lower_half)).verdict == Verdict::Wrong);
  CHECK(square(load(param(1, 78), add(triangle, num(-1)))).verdict == Verdict::Wrong);
  CHECK(square(load(param(1, 144), op(Op::Sub, num(143), flat))).verdict == Verdict::Proved);
  CHECK(square(load(param(1, 144), op(Op::Sub, num(144), flat))).verdict == Verdict::Wrong);
  // rows of 5 and of 7 side by side
  Node first = load(param(1, 60), add(mul(r, 5), c), lt(c, 5));
  Node second = load(param(2, 84), add(mul(r, 7), add(c, num(-5))), above(4, c));
  CHECK(square(make(Op::Where, kF32, {lt(c, 5), first, second})).verdict == Verdict::Proved);
  Node late = load(param(2, 84), add(mul(r, 7), add(c, num(-5))), above(3, c));
  CHECK(square(late).verdict == Verdict::Wrong);
}

TEST_CASE("gathered elements need a gate, and negative ids their wrap") {
  if (!has_solver()) return;
  Arena arena;
  ArenaScope scope(arena);
  Node r = range(0, 16);
  for (DType t : {kI32, kI64}) {
    Node id = load(param(2, 16, t), r);
    Node wide = t == kI64 ? id : make(Op::Cast, kI64, {id});
    Node inside = both_of(above(-1, wide), lt(wide, 100));
    const auto verdict = [&](Node at, Node gate) {
      return reading(load(param(1, 100 * 8), at, gate), r).verdict;
    };
    Node row = mul(wide, 8);
    CHECK(verdict(row, inside) == Verdict::Proved);
    CHECK(verdict(row, nullptr) == Verdict::Wrong);
    CHECK(verdict(row, lt(wide, 100)) == Verdict::Wrong);
    CHECK(verdict(add(row, num(7)), inside) == Verdict::Proved);
    CHECK(verdict(add(row, num(8)), inside) == Verdict::Wrong);
    Node turned = make(Op::Where, kI64, {lt(wide, 0), add(wide, num(100)), wide});
    Node turned_inside = both_of(above(-1, turned), lt(turned, 100));
    CHECK(verdict(mul(turned, 8), turned_inside) == Verdict::Proved);
    Node clamped = op(Op::Min, op(Op::Max, wide, num(0)), num(99));
    CHECK(verdict(mul(clamped, 8), nullptr) == Verdict::Proved);
    Node masked = op(Op::And, wide, num(63));
    CHECK(verdict(masked, nullptr) == Verdict::Proved);
    CHECK(verdict(op(Op::And, wide, num(1023)), nullptr) == Verdict::Wrong);
    CHECK(verdict(op(Op::Xor, op(Op::And, wide, num(511)), num(0x155)), nullptr) ==
          Verdict::Proved);
  }
  const Proof p = reading(load(param(1, 8), load(param(2, 16, kI64), r)), r);
  CHECK(p.text.find("buffer 2 holding ") != std::string::npos);
}

TEST_CASE("arithmetic is the machine's: overflow, narrowing, both divisions, shifts") {
  if (!has_solver()) return;
  Arena arena;
  ArenaScope scope(arena);
  Node r = range(0, 65536);
  Node narrow = make(Op::Cast, kI32, {r});
  const auto verdict = [&](Node at, int64_t size) {
    return reading(load(param(1, size), at), r).verdict;
  };
  const int64_t all = int64_t{65535} * 65535 + 1;
  CHECK(verdict(op(Op::Mul, r, r), all) == Verdict::Proved);
  CHECK(verdict(op(Op::Mul, r, r), all - 1) == Verdict::Wrong);
  CHECK(verdict(op(Op::Mul, narrow, narrow), all) == Verdict::Wrong);  // 46341 squared is negative
  CHECK(verdict(mul(narrow, 32767), all) == Verdict::Proved);
  CHECK(verdict(mul(narrow, 32769), all) == Verdict::Wrong);
  CHECK(verdict(make(Op::Cast, kU8, {r}), 256) == Verdict::Proved);
  CHECK(verdict(make(Op::Cast, kI8, {r}), 65536) == Verdict::Wrong);
  Node shifted = add(r, num(-10));
  CHECK(verdict(add(op(Op::TruncDiv, shifted, num(4)), num(2)), 20000) == Verdict::Proved);
  CHECK(verdict(add(op(Op::FloorDiv, shifted, num(4)), num(2)), 20000) == Verdict::Wrong);
  CHECK(verdict(op(Op::FloorMod, shifted, num(7)), 7) == Verdict::Proved);
  CHECK(verdict(op(Op::TruncMod, shifted, num(7)), 7) == Verdict::Wrong);
  CHECK(verdict(add(op(Op::TruncMod, shifted, num(7)), num(6)), 13) == Verdict::Proved);
  CHECK(verdict(op(Op::Shr, r, num(6)), 1024) == Verdict::Proved);
  CHECK(verdict(op(Op::Shl, r, num(3)), 65536 * 8 - 7) == Verdict::Proved);
  CHECK(verdict(op(Op::Shl, r, num(3)), 65536 * 8 - 8) == Verdict::Wrong);
  CHECK(verdict(op(Op::Or, r, num(0x15)), 65536) == Verdict::Proved);
  CHECK(verdict(op(Op::Xor, r, num(1)), 65535) == Verdict::Wrong);
}

TEST_CASE("lanes have indices and gates of their own") {
  Arena arena;
  ArenaScope scope(arena);
  Node r = range(0, 4);
  Node at = mul(r, 8), lanes = add(splat(at, 8), ramp(8));
  Node tail = lt(lanes, 30);
  Node one = constant(kF32.vec(8), 1.0);
  CHECK(proof_of({store(param(0, 32), at, one)}).verdict == Verdict::Proved);
  CHECK(proof_of({store(param(0, 30), at, one, tail)}).verdict == Verdict::Proved);
  CHECK(proof_of({store(param(0, 30), at, one)}).verdict == Verdict::Wrong);
  CHECK(proof_of({store(param(0, 30), at, one, lt(lanes, 31))}).text ==
        "wrong: r0=3, lane 6: writes element 30 of 30 of buffer 0");
  CHECK(proof_of({store(param(0, 31), at, one, tail)}).text ==
        "wrong: element 30 of 31 of buffer 0 is never written");
  Node turned = make(Op::Reverse, tail->dtype, {tail});
  CHECK(proof_of({store(param(0, 30), at, one, turned)}).verdict == Verdict::Wrong);
  Node scattered = op(Op::Sub, constant(kI64.vec(8), 31), lanes);
  CHECK(proof_of({store(param(0, 32), scattered, one)}).verdict == Verdict::Proved);
}

TEST_CASE("each element of an output is written once") {
  Arena arena;
  ArenaScope scope(arena);
  Node a = range(0, 6), b = range(1, 4), one = constant(kF32, 1.0);
  const auto text = [&](Node at, int64_t size) {
    return proof_of({store(param(0, size), at, one)}).text;
  };
  CHECK(text(add(mul(a, 4), b), 24) == "");
  CHECK(text(add(mul(b, 6), a), 24) == "");
  CHECK(text(add(mul(a, 3), b), 24) ==
        "wrong: r0=1, r1=0 and r0=0, r1=3 both write element 3 of 24 of buffer 0");
  CHECK(text(add(mul(a, 4), b), 25) == "wrong: element 24 of 25 of buffer 0 is never written");
  CHECK(text(mul(a, 2), 11) == "wrong: element 1 of 11 of buffer 0 is never written");
  // The value's ranges run around the store too.
  Node value = load(param(1, 4), b);
  CHECK(proof_of({store(param(0, 6), a, value)}).verdict == Verdict::Wrong);
}

TEST_CASE("parallel iterations of what combines or overwrites in order stay apart") {
  if (!has_solver()) return;
  Arena arena;
  ArenaScope scope(arena);
  Node core = range(0, 8, RangeKind::Core), inner = range(1, 5, RangeKind::Reduce);
  Node id = load(param(1, 40, kI64), add(mul(core, 5), inner));
  Node inside = both_of(above(-1, id), lt(id, 16));
  const auto verdict = [&](Node at, Node gate) {
    std::vector<Node> srcs{param(0, 128), at, constant(kF32, 1.0)};
    if (gate) srcs.push_back(gate);
    Node other = store(param(2, 8), core, constant(kF32, 1.0));
    return proof_of({make(Op::Store, kVoid, srcs, OpArg{Op::Add}), other}).verdict;
  };
  CHECK(verdict(add(mul(core, 16), id), inside) == Verdict::Proved);
  CHECK(verdict(add(mul(core, 15), id), inside) != Verdict::Proved);
  CHECK(verdict(op(Op::FloorDiv, core, num(2)), nullptr) == Verdict::Wrong);
  CHECK(verdict(inner, nullptr) == Verdict::Wrong);  // nothing of the parallel range in it
}

// Rows and tiles of columns, with a gathered digit between them and a tail under a gate.
TEST_CASE("parallel iterations stay apart where a gathered index lies between their digits") {
  Arena arena;
  ArenaScope scope(arena);
  Node tile = range(0, 28, RangeKind::Core), inner = range(1, 5, RangeKind::Reduce);
  Node column = range(2, 8), id = load(param(1, 5, kI64), inner);
  const auto settled = [&](int64_t tiles, int64_t step, int64_t ids, int64_t columns) {
    Node row = op(Op::FloorDiv, tile, num(7)), part = op(Op::FloorMod, tile, num(tiles));
    Node at = add(mul(part, 8), column);
    Node inside = both_of(both_of(above(-1, id), lt(id, ids)), lt(at, columns));
    std::vector<Node> srcs{param(0, 4096), add(add(mul(row, 988), mul(id, step)), at),
                           constant(kF32, 1.0), inside};
    ProofSettings hasty = patient();
    hasty.steps = kSolverSteps;
    const Proof p = prove(sink({make(Op::Store, kVoid, srcs, OpArg{Op::Add})}), hasty);
    return p.verdict == Verdict::Proved && p.settled[static_cast<int>(Method::Solver)] == 0;
  };
  CHECK(settled(7, 52, 19, 52));
  CHECK(settled(7, 52, 10, 52));
  CHECK_FALSE(settled(7, 51, 19, 52));  // the last column of a row is the next id's first
  CHECK_FALSE(settled(7, 52, 20, 52));  // the last id reaches the next row
  CHECK_FALSE(settled(7, 52, 19, 53));
  CHECK_FALSE(settled(6, 52, 19, 52));  // two tiles of a row are one
}

TEST_CASE("an element is read before it is written, by the iteration that writes it") {
  Arena arena;
  ArenaScope scope(arena);
  Node r = range(0, 8, RangeKind::Core), a = param(0, 8), b = param(1, 8);
  const auto verdict = [](std::vector<Node> stores) { return proof_of(std::move(stores)).verdict; };
  CHECK(verdict({store(a, r, load(a, r))}) == Verdict::Proved);
  // Another iteration's element, or one's own after it was written.
  if (has_solver()) {
    Node back = op(Op::Sub, num(7), r);
    const Proof p = proof_of({store(a, r, load(a, back))});
    CHECK(p.verdict == Verdict::Wrong);
    CHECK(p.text.find("is read, and r0 written by another iteration at r0") != std::string::npos);
    CHECK(verdict({store(a, r, load(a, op(Op::Min, add(r, num(1)), num(7))))}) == Verdict::Wrong);
  }
  Node first = store(a, r, add(load(a, r), load(b, r)));
  Node own = load(a, r);
  const Proof two = proof_of({first, store(param(2, 8), r, own)});
  CHECK(two.verdict == Verdict::Proved);  // the text has both loads before the store
  // Lanes: the same elements, or one further on.
  Node q = range(1, 2), at = mul(q, 4);
  const auto lanes = [&](Node from) {
    return proof_of({store(a, at, load(a, from, nullptr, 4))}).verdict;
  };
  CHECK(lanes(at) == Verdict::Proved);
  if (!has_solver()) return;
  CHECK(lanes(op(Op::Min, add(at, num(1)), num(4))) == Verdict::Wrong);
  // A sum that is gated to the element that it replaces.
  Node k = range(2, 2, RangeKind::Reduce);
  Node sum =
      make(Op::Reduce, kF32, {load(a, op(Op::Add, r, mul(k, 8)), lt(k, 1)), k}, OpArg{Op::Add});
  CHECK(verdict({store(a, r, sum)}) == Verdict::Proved);
  Node row = make(Op::Reduce, kF32, {load(a, mul(k, 4)), k}, OpArg{Op::Add});
  CHECK(verdict({store(a, r, add(row, load(b, r)))}) == Verdict::Wrong);
  // A range that was extended reads its last element again, where the store is gated.
  Node u = range(3, 12);
  CHECK(verdict({store(a, u, load(a, op(Op::Min, u, num(7))), lt(u, 8))}) == Verdict::Proved);
  CHECK(verdict({store(a, u, load(a, op(Op::Min, u, num(6))), lt(u, 8))}) == Verdict::Wrong);
}

TEST_CASE("large kernels are settled without walking them") {
  if (!has_solver()) return;
  Arena arena;
  ArenaScope scope(arena);
  Node g = range(0, 1 << 20, RangeKind::Core), v = range(1, 100);
  Node row = op(Op::FloorDiv, g, num(1 << 10)), column = op(Op::FloorMod, g, num(1 << 10));
  Node one = constant(kF32, 1.0);
  const auto transposed = [&](int64_t step) {
    Node at = add(mul(add(mul(column, step), row), 100), v);
    return proof_of({store(param(0, int64_t{100} << 20), at, one)});
  };
  CHECK(transposed(1 << 10).verdict == Verdict::Proved);
  CHECK(transposed(1 << 10).settled[static_cast<int>(Method::Bounds)] == 2);
  CHECK(transposed((1 << 10) - 1).verdict == Verdict::Wrong);
}

TEST_CASE("without steps or a solver a kernel is unproved, never wrong") {
  Arena arena;
  ArenaScope scope(arena);
  // a * b < 10^6 for coprime remainders of one number: beyond intervals
  Node r = range(0, 1000003 * 7);
  Node x = op(Op::FloorMod, r, num(1009)), y = op(Op::FloorMod, r, num(1013));
  Node at = op(Op::Sub, op(Op::Mul, x, y), op(Op::Mul, y, x));
  Node gate = lt(add(x, y), 1000);
  ProofSettings none = patient();
  none.steps = 0;
  Node hard = add(op(Op::FloorDiv, op(Op::Mul, x, y), num(1000)), at);
  const Proof p =
      prove(sink({store(param(0, 1000003 * 7), r, load(param(1, 700), hard, gate))}), none);
  CHECK(p.verdict == Verdict::Unproved);
  CHECK(p.text.find("unproved: load from buffer 1 of 700: element ") == 0);
}

TEST_CASE("threads that combine through shared memory never meet in it") {
  for (const int threads : {32, 64, 96, 256, 1024})
    for (const int width : {1, 2, 32, 64, 96, 256, 1024}) {
      if (threads % width) continue;
      for (const bool in_loop : {false, true}) {
        ThreadGroup g{threads, width};
        g.turns = in_loop && width > 32;
        INFO(threads << " threads, " << width << " together");
        CHECK(prove_group(g, in_loop).verdict == Verdict::Proved);
      }
    }
  const auto problem = [](ThreadGroup g, bool in_loop) {
    const Finding f = prove_group(g, in_loop);
    CHECK(f.verdict == Verdict::Wrong);
    return f.text;
  };
  CHECK(
      problem({.threads = 128, .width = 64}, true) ==
      "threads that combine 64 of 128: thread 0 may read element 0 when another writes it for the "
      "next iteration");
  CHECK(problem({.threads = 48, .width = 48}, false) ==
        "threads that combine 48 of 48: not whole warps and groups");
  CHECK(problem({.threads = 160, .width = 64}, false) ==
        "threads that combine 64 of 160: not whole warps and groups");
  CHECK(problem({.threads = 32, .width = 12}, false) ==
        "threads that combine 12 of 32: a warp of 32 is not whole groups");
}

TEST_CASE("threads that combine lie together, or evenly apart") {
  Arena arena;
  ArenaScope scope(arena);
  Node y = range(0, 4, RangeKind::Thread), x = range(1, 32, RangeKind::Thread);
  const auto sum_over = [&](std::vector<Node> over, Node row) {
    std::vector<Node> srcs{load(param(1, 128), add(mul(y, 32), x))};
    srcs.insert(srcs.end(), over.begin(), over.end());
    Node sum = make(Op::Reduce, kF32, srcs, OpArg{Op::Add});
    const int64_t size = row ? row->vmax + 1 : 1;
    return proof_of({store(param(0, size), row ? row : num(0), sum)});
  };
  CHECK(sum_over({x}, y).verdict == Verdict::Proved);
  CHECK(sum_over({y, x}, nullptr).verdict == Verdict::Proved);
  CHECK(sum_over({y}, x).verdict == Verdict::Proved);
  Node z = range(2, 2, RangeKind::Thread);
  Node at = add(mul(add(mul(y, 32), x), 2), z);
  Node sum = make(Op::Reduce, kF32, {load(param(1, 256), at), y, z}, OpArg{Op::Add});
  const Proof apart = proof_of({store(param(0, 32), x, sum)});
  CHECK(apart.verdict == Verdict::Wrong);
  CHECK(apart.text == "wrong: threads that combine r0 lie apart: r1 runs between them");
}

TEST_CASE("parallel iterations may combine where that is atomic") {
  Arena arena;
  ArenaScope scope(arena);
  Node thread = range(0, 8, RangeKind::Thread);
  Node kernel = sink(
      {make(Op::Store, kVoid, {param(0, 4), op(Op::FloorDiv, thread, num(2)), constant(kF32, 1.0)},
            OpArg{Op::Add})});
  ProofSettings settings = patient();
  CHECK(prove(kernel, settings).verdict == Verdict::Wrong);
  settings.atomic = true;
  CHECK(prove(kernel, settings).verdict == Verdict::Proved);
}

TEST_CASE("a wrong kernel is an error before it is loaded, a proved one is proved once") {
  const std::string folder = cat(TINY_BUILD, "/test_prove_cache");
  const EnvOverride cache("CACHE", "1"), where("CACHE_DIR", folder), on("CHECK_OOB", "1");
  std::filesystem::remove_all(folder);
  Step step;
  step.name = "shifted";
  step.kernel = NodeRef(kernel_of({build::unary(Op::Neg, tensor_param(1, {64}))}));
  const auto finish = [&](const Lowered& low) {
    PendingProof(low, step, small_target()).finish();
    return proof_counts();
  };
  Lowered low = lower(step.kernel.get(), "k", small_target());
  const ProofCounts before = proof_counts();
  CHECK(finish(low).verdicts[0] == before.verdicts[0] + 1);
  CHECK(finish(low).recalled == before.recalled + 1);
  CHECK(proof_counts().verdicts[0] == before.verdicts[0] + 1);
  std::filesystem::remove_all(folder);
  Arena arena;
  ArenaScope scope(arena);
  low.machine = with_fault(low.machine, accesses_of(low.machine).back(), Fault::PlusOne);
  try {
    finish(low);
    FAIL("no error");
  } catch (const Bug& e) {
    const std::string text = e.what();
    CHECK(text.find("kernel shifted is wrong:\nwrong: r0=") == 0);
    CHECK(text.find("writes element 64 of 64 of buffer 0") != text.npos);
  }
  const EnvOverride off("CHECK_OOB", "0");
  CHECK_NOTHROW(finish(low));
  std::filesystem::remove_all(folder);
}

TEST_CASE("bounds under assumptions see sums that are compared") {
  Arena arena;
  ArenaScope scope(arena);
  const auto var = [](int id, int64_t extent) {
    return make(Op::Range, kIndex, {index(extent)}, RangeArg{id, RangeKind::Loop});
  };
  Node a = var(0, 28), k = var(1, 3), c = var(2, 28);
  Node at = index_add(index_add(a, k), index(-1));
  Assumptions gate;
  gate.assume(make(Op::And, kBool, {less(index(-1), at), less(at, index(28))}));
  const Bounds b = gate.bounds(index_add(index_mul(at, 28), c));
  CHECK(b.min == 0);
  CHECK(b.max == 783);
  CHECK(gate.bounds(at).max == 27);
  CHECK(gate.bounds(index_add(at, index(1))).min == 1);
  Assumptions never;
  never.assume(less(a, index(0)));
  CHECK(never.is_contradictory());
  Assumptions other;
  other.assume(less(a, index(5)), false);
  CHECK(other.bounds(a).min == 5);
}

TEST_CASE("questions for the solver are text that it reads") {
  if (!has_solver()) return;
  Arena arena;
  ArenaScope scope(arena);
  Node x = make(Op::Range, kIndex, {index(100)}, RangeArg{3, RangeKind::Loop});
  SmtText q;
  q.assert_that(cat("(= ", q.term(make(Op::FloorDiv, kIndex, {x, index(7)})), " 9)"));
  CHECK(q.text() ==
        "(declare-const r3 Int)\n(assert (<= 0 r3 99))\n(define-fun t0 () Int (div r3 7))\n"
        "(assert (= t0 9))\n");
  const SmtAnswer yes = solve(q, kSolverSteps);
  CHECK(yes.decision == Decision::Sometimes);
  CHECK(yes.values[0] / 7 == 9);
  q.assert_that("(< r3 60)");
  CHECK(solve(q, kSolverSteps).decision == Decision::Never);
}

TEST_CASE("the solver's budget is counted in its steps, not in time") {
  if (!has_solver()) return;
  Arena arena;
  ArenaScope scope(arena);
  SmtText q;
  // No cubes of 1 to 6 add up to one of 1 to 8, which takes some thousand steps to see.
  std::string cubes[3];
  for (int i = 0; i < 3; ++i) {
    Node r = make(Op::Range, kIndex, {index(6 + i)}, RangeArg{i, RangeKind::Loop});
    const std::string x = q.term(make(Op::Add, kIndex, {r, index(1)}));
    cubes[i] = cat("(* ", x, " ", x, " ", x, ")");
  }
  q.assert_that(cat("(= (+ ", cubes[0], " ", cubes[1], ") ", cubes[2], ")"));
  set_memory({});  // what an earlier process has asked
  CHECK(solve(q, 100).decision == Decision::Unknown);
  const SmtAnswer answer = solve(q, 100 * kSolverSteps);
  CHECK(answer.decision == Decision::Never);
  CHECK(answer.steps > 100);
  CHECK(solve(q, 100).steps == answer.steps);  // what is known counts as much
}

TEST_CASE("the solver's answers outlast the process where there is a place for them") {
  if (!has_solver()) return;
  Arena arena;
  ArenaScope scope(arena);
  static std::map<std::string, SmtAnswer> kept;
  set_memory({[](const std::string& q) -> std::optional<SmtAnswer> {
                const auto at = kept.find(q);
                return at == kept.end() ? std::nullopt : std::optional(at->second);
              },
              [](const std::string& q, const SmtAnswer& a) { kept[q] = a; }});
  Node x = make(Op::Range, kIndex, {index(1009)}, RangeArg{3, RangeKind::Loop});
  const auto above = [&](int64_t limit) {
    SmtText q;
    q.assert_that(cat("(< ", limit, " ", q.term(x), ")"));
    return q;
  };
  CHECK(solve(above(1008), kSolverSteps).decision == Decision::Never);
  CHECK(kept.size() == 1);
  CHECK(kept.begin()->second.decision == Decision::Never);
  // What is there is not asked again: only so can the solver say something else.
  kept[above(7).text()] = {Decision::Sometimes, {42}};
  CHECK(solve(above(7), kSolverSteps).values == std::vector<int64_t>{42});
  CHECK(kept.size() == 2);
  set_memory({});
}

// Kernels of sizes that no walk settles.
TEST_CASE("CHECK_OOB=2 has the patience to walk all rows of 50257 that begin anywhere") {
  const EnvOverride device("DEVICE", "EMU:CUDA:sm_80"), proofs("CHECK_OOB", "2");
  const EnvOverride nothing_known("CACHE", "0");
  const Tensor x = Tensor::zeros({64, 50257}).contiguous().realize();
  const Tensor y = x.softmax(1).realize();  // throws where a kernel stays unproved
  CHECK(y.narrow(0, 63, 1).narrow(1, 50256, 1).item<float>() == doctest::Approx(1 / 50257.0));
}

TEST_CASE("every kernel of a training step of ResNet-50 is proved, for CPUs and for GPUs") {
  if (!has_solver()) return;
  for (const char* name : {"NULL", "EMULATOR"}) {
    const EnvOverride device("DEVICE", name);
    bench::ResNet50 network(true);
    const Tensor x = Tensor::rand({64, 3, 224, 224});
    const Tensor loss = cross_entropy(network(x), Tensor::from(std::vector<int32_t>(64)));
    std::vector<Node> roots{loss.node()};
    const std::vector<Tensor> gradients = Tensor::gradient(loss, network.parameters());
    for (const Tensor& g : gradients) roots.push_back(g.node());
    const Normalized graph = normalize(roots);
    std::vector<int> devices;
    for (Node b : graph.buffers) devices.push_back(b->device);
    const Target& target = find_device(name).target();
    std::set<Node> distinct;
    for (const Step& step : schedule(graph, devices, device_id(name))->steps) {
      if (!step.kernel || !distinct.insert(step.kernel.get()).second) continue;
      ProofSettings settings;
      settings.steps = 20 * kSolverSteps;
      read_kernel(step.kernel.get(), target, settings);
      const Proof p = prove(lower(step.kernel.get(), step.name, target).machine, settings);
      CHECK_MESSAGE(p.verdict == Verdict::Proved, name, ", ", step.name, ": ", p.text);
    }
    CHECK(distinct.size() > 200);
  }
}
