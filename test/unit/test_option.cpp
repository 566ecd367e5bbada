#include "codegen/kernel/option.h"

#include <doctest/doctest.h>

#include "codegen/kernel/access.h"
#include "codegen/passes/passes.h"
#include "test/unit/kernels.h"
#include "tiny/base/error.h"
#include "tiny/ir/print.h"
#include "tiny/ir/verify.h"
#include "tiny/rewrite/algebra.h"
#include "tiny/tiny.h"

using namespace tiny;
using namespace tiny::test;

namespace {

constexpr auto kVectorKind = static_cast<int64_t>(RangeKind::Vector);
constexpr auto kUnrollKind = static_cast<int64_t>(RangeKind::Unroll);

Node negated(Shape shape) {
  return simplify(to_ranges(kernel_of({build::unary(Op::Neg, tensor_param(1, std::move(shape)))})));
}

std::string why_not(Node sink, const Opt& opt) {
  std::string why;
  CHECK_FALSE(is_legal(sink, opt, Target{}, &why));
  return why;
}

}  // namespace

TEST_CASE("options have a text") {
  CHECK(to_text(Opt{OptKind::Split, 1, 16, {}}) == "split r1 16");
  CHECK(to_text(Opt{OptKind::Merge, 0, 2, {}}) == "merge r0 r2");
  CHECK(to_text(Opt{OptKind::Bind, 4, kVectorKind, {}}) == "bind r4 vector");
  CHECK(to_text(Opt{OptKind::Order, 0, 0, {0, 2, 1}}) == "order r0 r2 r1");
  const std::vector<Opt> both{{OptKind::Split, 0, 4, {}}, {OptKind::Bind, 1, kUnrollKind, {}}};
  CHECK(to_text(both) == "split r0 4, bind r1 unroll");
}

TEST_CASE("the tile and the staged factor of an option have named fields") {
  const Opt tile = options_from_text("matrix r0 r1 x 192 rows 64 halved deep across 2 parts 4")[0];
  CHECK(tile.tile == TileShape{64, 192, true, false, true, 1, 2, 4});
  CHECK(to_text(tile) == "matrix r0 r1 x 192 rows 64 halved deep across 2 parts 4");
  const Opt stage = options_from_text("stage r2 factor 3 pad 4 r0 r3 x 3")[0];
  CHECK(stage.staged == StagedFactor{1, StagedFactor::Form::Raw, 4});
  CHECK(stage.axes == std::vector<int>{0, 3});
  CHECK(stage.amount == 3);
  CHECK(to_text(stage) == "stage r2 factor 3 pad 4 r0 r3 x 3");
  for (const char* wrong : {"matrix r0 r1 x 192 down 0", "matrix r0 r1 x 192 parts -2"})
    CHECK_THROWS_AS(options_from_text(wrong), Error);
}

TEST_CASE("what is not legal says why") {
  Arena arena;
  ArenaScope scope(arena);
  Node k = negated({6, 100});
  CHECK(why_not(k, {OptKind::Split, 7, 4, {}}) == "the kernel has no range r7");
  CHECK(why_not(k, {OptKind::Split, 0, 1, {}}) == "cannot split r0 by 1");
  CHECK(why_not(k, {OptKind::Merge, 0, 9, {}}) == "the kernel has no range r9");
  CHECK(why_not(k, {OptKind::Bind, 1, kUnrollKind, {}}) == "cannot unroll r1: 100 iterations");
  CHECK(why_not(k, {OptKind::Order, 0, 0, {0}}) ==
        "the order does not name each range of the kernel once");
  CHECK(is_legal(k, {OptKind::Order, 0, 0, {1, 0}}, Target{}));
  CHECK_THROWS_WITH_AS(apply(k, Opt{OptKind::Split, 7, 4, {}}, Target{}),
                       "split r7 4: the kernel has no range r7", Error);
}

TEST_CASE("a split by a divisor has no gate") {
  Arena arena;
  ArenaScope scope(arena);
  Node k = simplify(apply(negated({32}), Opt{OptKind::Split, 0, 8, {}}, Target{}));
  CHECK(ranges_of(k).size() == 2);
  CHECK(extent(range_with_id(k, 0)) == 4);
  CHECK(extent(range_with_id(k, 1)) == 8);
  CHECK(all_of(k, Op::Load)[0]->num_src == 2);
  CHECK(to_expression(all_of(k, Op::Load)[0]->src(1)) == "(r0*8)+r1");
}

TEST_CASE("a split with a tail gates loads and stores") {
  Arena arena;
  ArenaScope scope(arena);
  Node k = simplify(apply(negated({30}), Opt{OptKind::Split, 0, 8, {}}, Target{}));
  Node load = all_of(k, Op::Load)[0], store = all_of(k, Op::Store)[0];
  REQUIRE(load->num_src == 3);
  REQUIRE(store->num_src == 4);
  CHECK(to_expression(load->src(2)) == "((r0*8)+r1)<30");
  CHECK(store->src(3) == load->src(2));
  verify(k, Form::Kernel, "split");
}

TEST_CASE("an extended range reads its end again and stores nothing there") {
  Arena arena;
  ArenaScope scope(arena);
  Node plain = negated({30});
  const Opt opt{OptKind::Extend, 0, 8, {}};
  CHECK(to_text(opt) == "extend r0 8");
  CHECK(options_from_text("extend r0 8")[0] == opt);
  Node k = simplify(apply(plain, opt, Target{}));
  Node load = all_of(k, Op::Load)[0], store = all_of(k, Op::Store)[0];
  CHECK(extent(range_with_id(k, 0)) == 32);
  CHECK(load->num_src == 2);
  CHECK(load->src(1)->op == Op::Min);
  CHECK(load->src(1)->vmax == 29);
  REQUIRE(store->num_src == 4);
  CHECK(to_expression(store->src(1)) == "r0");
  CHECK(to_expression(store->src(3)) == "r0<30");
  verify(k, Form::Kernel, "extend");
  CHECK(apply(plain, Opt{OptKind::Extend, 0, 6, {}}, Target{}) == plain);
  Node sum = to_ranges(kernel_of({build::reduce(Op::Add, tensor_param(1, {30}), 1)}));
  CHECK(why_not(sum, opt) == "cannot extend r0 to a multiple of 8");
}

TEST_CASE("the tail of a reduction adds what changes nothing") {
  Arena arena;
  ArenaScope scope(arena);
  for (Op op : {Op::Add, Op::Max}) {
    Node r = build::reduce(op, tensor_param(1, {30}), 1);
    Node k = apply(to_ranges(kernel_of({r})), Opt{OptKind::Split, 0, 8, {}}, Target{});
    Node reduce = all_of(k, Op::Reduce)[0];
    CHECK(reduce->num_src == 3);
    REQUIRE(reduce->src(0)->op == Op::Where);
    CHECK(reduce->src(0)->src(2) == identity(op, kF32));
  }
}

TEST_CASE("a split by more than the extent leaves the inner range alone") {
  Arena arena;
  ArenaScope scope(arena);
  Node k = simplify(apply(negated({5}), Opt{OptKind::Split, 0, 8, {}}, Target{}));
  CHECK(ranges_of(k).size() == 1);
  CHECK(extent(ranges_of(k)[0]) == 8);
  CHECK(all_of(k, Op::Load)[0]->num_src == 3);
}

TEST_CASE("merging two ranges gives the arithmetic of one") {
  Arena arena;
  ArenaScope scope(arena);
  Node k = apply(negated({6, 10}), Opt{OptKind::Merge, 0, 1, {}}, Target{});
  REQUIRE(ranges_of(k).size() == 1);
  CHECK(extent(ranges_of(k)[0]) == 60);
  CHECK(to_expression(all_of(k, Op::Load)[0]->src(1)) == "r0");
}

TEST_CASE("an order renumbers the ranges") {
  Arena arena;
  ArenaScope scope(arena);
  Node k = simplify(apply(negated({6, 10}), Opt{OptKind::Order, 0, 0, {1, 0}}, Target{}));
  CHECK(extent(range_with_id(k, 0)) == 10);
  CHECK(stride(all_of(k, Op::Load)[0], 0) == 1);
}

TEST_CASE("loops that walk memory as one are merged, others are not") {
  Arena arena;
  ArenaScope scope(arena);
  CHECK(ranges_of(merge_ranges(negated({4, 5, 6}), Target{})).size() == 1);
  Node turned = build::permute(tensor_param(1, {4, 5}), Shape{1, 0});
  Node k = simplify(to_ranges(kernel_of({build::unary(Op::Neg, turned)})));
  CHECK(ranges_of(merge_ranges(k, Target{})).size() == 2);
  Node rows = simplify(to_ranges(kernel_of({sum(tensor_param(1, {4, 5}), 2)})));
  CHECK(ranges_of(merge_ranges(rows, Target{})).size() == 2);
}

TEST_CASE(
    "align: a range begins at the multiple before its rows do, and leaves values as they are") {
  for (const char* gpu : {"EMU:CUDA:sm_90a", "EMU:HIP:gfx942"})
    for (int64_t n : {513, 1003, 1024, 4097})
      for (DType t : {kF32, kBF16}) {
        CAPTURE(gpu);
        CAPTURE(n);
        std::vector<float> values(static_cast<size_t>(3 * n));
        for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i * 7919 % 97);
        const Tensor x = Tensor::from(values, {3, n}, gpu).to(t).realize();
        const Tensor y = Tensor::from(values, {3, n}, "CPU");
        CHECK(x.to(kF32).sum(1).to_vector<float>() == y.sum(1).to_vector<float>());
        CHECK((x + x.min(1, true)).to(kF32).to_vector<float>() ==
              (y + y.min(1, true)).to_vector<float>());
      }
}

TEST_CASE("loops in which not all stores run are not merged") {
  Arena arena;
  ArenaScope scope(arena);
  const Node x = tensor_param(2, {6, 5}), rows = build::reduce(Op::Max, x, 2);
  const Node k = simplify(to_ranges(kernel_of({rows, build::binary(Op::Sub, x, spread(rows, x))})));
  std::string why;
  CHECK_FALSE(is_legal(k, {OptKind::Merge, 0, 2, {}}, Target{}, &why));
  CHECK(why.find("runs in both") != std::string::npos);
}
