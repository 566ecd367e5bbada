// Windows whose elements each result of a CPU reads alone, as depthwise convolutions and pools
// have them: loads without some lanes, of every second element, and stores of transposed tiles.
#include <doctest/doctest.h>

#include <functional>

#include "codegen/kernel/access.h"
#include "codegen/lower.h"
#include "codegen/passes/passes.h"
#include "runtime/device/device.h"
#include "test/unit/integers.h"
#include "test/unit/kernels.h"
#include "test/unit/schedules.h"
#include "tiny/base/env.h"
#include "tiny/ir/sizes.h"
#include "tiny/nn/functional.h"
#include "tiny/rewrite/algebra.h"
#include "tiny/tiny.h"

using namespace tiny;
using namespace tiny::test;

namespace {

Target cpu_target(int cores = 1) {
  Target t;
  t.language = Target::Language::LlvmIr;
  t.vector_bytes = 64;
  t.vector_registers = 32;
  t.cores = cores;
  return t;
}

// The same with all kernels as they come.
std::vector<float> plain(const std::function<Tensor()>& f) {
  const EnvOverride options("OPT", "0");
  return f().to_vector<float>();
}

// Sums of 3 x 3 windows of each channel, padded, `step` elements apart.
Node windows(int64_t channels, int64_t size, int64_t step) {
  Node x = build::pad(tensor_param(1, {channels, size, size}), Shape{0, 0, 1, 1, 1, 1});
  const int64_t out = (size - 1) / step + 1;
  const Shape shape{channels, out, out, 3, 3};
  const Shape map{0, 1, 0, 0, 0, 0, 0, 0, step, 0, 1, 0, 0, 0, 0, step, 0, 1};
  Node w = build::reshape(tensor_param(2, {channels, 3, 3}), Shape{channels, 1, 1, 3, 3});
  Node product = build::binary(Op::Mul, build::affine(x, shape, map), build::expand(w, shape));
  return kernel_of({build::reshape(sum(product, 24), Shape{channels, out, out})});
}

// (columns, k) by (k, rows), stored with rows innermost: columns are vectors.
Node turned_product(int64_t rows, int64_t columns, int64_t k) {
  Node x = build::expand(build::reshape(tensor_param(1, {k, rows}), Shape{1, k, rows}),
                         Shape{columns, k, rows});
  Node w = build::permute(tensor_param(2, {k, columns}), Shape{1, 0});
  w = build::expand(build::reshape(w, Shape{columns, k, 1}), Shape{columns, k, rows});
  return kernel_of({build::reshape(sum(build::binary(Op::Mul, x, w), 2), Shape{columns, rows})});
}

Node param_of(int slot, int64_t size) {
  return make(Op::Param, kF32, {}, Ints(std::vector<int64_t>{slot, size}));
}

int64_t core_iterations(const Lowered& l) {
  for (Node r : ranges_of(l.loops))
    if (kind(r) == RangeKind::Core) return extent(r);
  return 1;
}

}  // namespace

TEST_CASE("depthwise convolutions are right in all forms, of sizes that no vector divides") {
  const NoGrad no_grad;
  for (const int64_t size : {5, 7, 19, 33, 38})
    for (const int64_t kernel : {2, 3, 5})
      for (const int64_t stride : {1, 2, 3})
        for (const int64_t dilation : {1, 2})
          for (const int64_t each : {1, 2}) {
            const int64_t reach = dilation * (kernel - 1) + 1, padding = kernel / 2;
            if (reach > size + 2 * padding) continue;
            INFO(size, " ", kernel, " ", stride, " ", dilation, " ", each);
            const Tensor x = integers({2, 3, size + 1, size}, kF32, "CPU");
            const Tensor w = integers({3 * each, 1, kernel, kernel}, kF32, "CPU");
            const auto f = [&] {
              return conv2d(
                  x.relu(), w, Tensor(),
                  {.stride = stride, .padding = padding, .dilation = dilation, .groups = 3});
            };
            CHECK(f().to_vector<float>() == plain(f));
          }
}

TEST_CASE("pools with steps and padding are right") {
  for (const int64_t size : {6, 17, 40})
    for (const int64_t stride : {1, 2, 3}) {
      const Tensor x = integers({2, 3, size, size}, kF32, "CPU");
      const auto most = [&] { return max_pool2d(x, 3, {.stride = PerAxis(stride), .padding = 1}); };
      const auto mean = [&] { return avg_pool2d(x, 2, {.stride = PerAxis(stride)}); };
      CHECK(most().to_vector<float>() == plain(most));
      CHECK(mean().to_vector<float>() == plain(mean));
    }
}

TEST_CASE("gradients of depthwise convolutions are right") {
  for (const int64_t stride : {1, 2}) {
    const auto gradients = [&](bool of_weight) {
      Tensor x = integers({2, 3, 18, 19}, kF32, "CPU"), w = integers({3, 1, 3, 3}, kF32, "CPU");
      x.requires_grad_();
      w.requires_grad_();
      const Tensor y = conv2d(x, w, Tensor(), {.stride = stride, .padding = 1, .groups = 3});
      (y * integers(to_shape(y.shape()), kF32, "CPU")).sum().backward();
      return of_weight ? w.grad() : x.grad();
    };
    for (const bool of_weight : {false, true}) {
      const auto f = [&] { return gradients(of_weight); };
      CHECK(f().to_vector<float>() == plain(f));
    }
  }
}

TEST_CASE("a depthwise convolution reads what is before it where that is stored") {
  if (!loads_with_masks(find_device("CPU").target())) return;
  const NoGrad no_grad;
  const Tensor x = integers({1, 16, 28, 28}, kF32, "CPU");
  const Tensor a = integers({32, 16, 1, 1}, kF32, "CPU"), c = integers({16, 32, 1, 1}, kF32, "CPU");
  const Tensor b = integers({32, 1, 3, 3}, kF32, "CPU");
  for (const int64_t stride : {1, 2}) {
    const ConvOptions options{.stride = stride, .padding = 1, .groups = 32};
    const Tensor wide = conv2d(x, a).clamp(0, 6);
    const Tensor y = conv2d(conv2d(wide, b, Tensor(), options).clamp(0, 6), c);
    const auto s = schedule_on("CPU", {y});
    int products = 0;
    for (const Step& step : s->steps)
      products += !all_of(step.kernel.get(), Op::ReduceAxis).empty();
    CHECK(products == 3);
    // Nothing else but weights in panels.
    for (const Step& step : s->steps)
      if (all_of(step.kernel.get(), Op::ReduceAxis).empty())
        CHECK(s->values[static_cast<size_t>(step.values[0])].size <= 32 * 32);
  }
}

TEST_CASE("windows that overlap are loaded once for several rows, without their padding's lanes") {
  // 14 rows are two strips of seven, which read nine rows, each in three places.
  const Lowered dense = lower(windows(8, 14, 1), "k", cpu_target());
  CHECK(occurrences(dense.source.text, "call <16 x float> @llvm.masked.load") == 27);
  CHECK(occurrences(dense.source.text, "select <16 x i1>") == 0);
  // Every second element: two loads for each vector, of fifteen rows.
  const Lowered apart = lower(windows(8, 28, 2), "k", cpu_target());
  CHECK(occurrences(apart.source.text, "call <16 x float> @llvm.masked.load") == 90);
  CHECK(occurrences(apart.source.text, "extractelement") == 0);
}

TEST_CASE("only loads that may be far from their memory are moved where a gate leaves all out") {
  const auto moved = [](Node kernel) {
    return occurrences(lower(kernel, "k", cpu_target()).source.text, "select i1");
  };
  CHECK(moved(windows(8, 14, 1)) == 0);
  // A row of 2^20 with 100 elements, wherever they are not: megabytes away.
  Node x = build::pad(tensor_param(1, {100}), Shape{1 << 19, (1 << 19) - 100});
  CHECK(moved(kernel_of({build::unary(Op::Neg, x)})) > 0);
}

TEST_CASE("tiles whose rows lie next to each other are stored row by row") {
  // Columns are vectors, rows unrolled: what is stored of a column lies together, 4 KB from the
  // next.
  const auto stores = [](int64_t rows, int64_t each, const std::string& text) {
    Choice choice;
    choice.options = {{OptKind::Split, 0, 16, {}},
                      {OptKind::Split, 1, each, {}},
                      {OptKind::Bind, 3, static_cast<int64_t>(RangeKind::Vector), {}},
                      {OptKind::Bind, 4, static_cast<int64_t>(RangeKind::Unroll), {}}};
    const Lowered l = lower(turned_product(rows, 32, 20), "k", cpu_target(), {}, &choice);
    CHECK(occurrences(l.source.text, "store float ") == 0);
    return occurrences(l.source.text, text);
  };
  CHECK(stores(49, 7, "store <7 x float>") == 16);
  CHECK(stores(50, 7, "call void @llvm.masked.store.v7f32") == 16);  // with the last one's gate
  CHECK(stores(64, 8, "store <8 x float>") == 16);
  CHECK(stores(64, 16, "store <16 x float>") == 16 + 2 * 16);  // and of the sums, twice
}

TEST_CASE("tiles of products hold the factors that are fewer, and one of the others at a time") {
  // Fourteen rows of two vectors: with all rows' elements held there would be too few registers.
  Choice choice;
  choice.options = {{OptKind::Split, 0, 16, {}},
                    {OptKind::Bind, 3, static_cast<int64_t>(RangeKind::Vector), {}},
                    {OptKind::Bind, 0, static_cast<int64_t>(RangeKind::Unroll), {}},
                    {OptKind::Split, 1, 14, {}},
                    {OptKind::Bind, 4, static_cast<int64_t>(RangeKind::Unroll), {}}};
  const Lowered l = lower(turned_product(56, 32, 20), "k", cpu_target(), {}, &choice);
  const std::string& text = l.source.text;
  CHECK(occurrences(text, "= alloca <16 x float>") == 28);
  size_t element = 0, vector = 0;
  for (int i = 0; i < 3; ++i) element = text.find("= load float,", element + 1);
  for (int i = 0; i < 2; ++i) vector = text.find("= load <16 x float>,", vector + 1);
  REQUIRE(element != std::string::npos);
  REQUIRE(vector != std::string::npos);
  CHECK(vector < element);
}

TEST_CASE("vectors lie along the axis whose number of them makes good tiles") {
  // 49 vectors of rows make tiles of seven and three columns, 48 those of four and six.
  const auto sums = [](int64_t rows, int64_t columns) {
    const Lowered l = lower(turned_product(rows, columns, 300), "k", cpu_target());
    return occurrences(l.source.text, "= alloca <16 x float>");
  };
  CHECK(sums(784, 128) == 21);
  CHECK(sums(784, 96) == 21);
  CHECK(sums(768, 112) == 24);  // seven vectors of columns, 48 of rows
}

TEST_CASE("products that are stored transposed are right, of sizes that no tile divides") {
  for (const int64_t size : {5, 7, 8, 9, 13})
    for (const int64_t out : {16, 40, 160})
      for (const int64_t in : {3, 33}) {
        const Tensor x = integers({1, in, size, size}, kF32, "CPU");
        const Tensor w = integers({out, in, 1, 1}, kF32, "CPU");
        const auto f = [&] { return conv2d(x, w).clamp(-20, 50); };
        INFO(size, " ", out, " ", in);
        CHECK(f().to_vector<float>() == plain(f));
        const Tensor picture = integers({1, 3, 2 * size, 2 * size}, kF32, "CPU");
        const Tensor taps = integers({out, 3, 3, 3}, kF32, "CPU");
        const auto g = [&] { return conv2d(picture, taps, Tensor(), {.stride = 2, .padding = 1}); };
        CHECK(g().to_vector<float>() == plain(g));
      }
}

TEST_CASE("a product's panels are cut further where a core would have nothing to do at the end") {
  // 320 columns are five panels: two cores would take as long as three panels.
  for (const int cores : {2, 4}) {
    const Lowered l = lower(turned_product(49, 320, 300), "k", cpu_target(cores));
    const int64_t n = core_iterations(l);
    CAPTURE(n);
    CHECK(n >= 5);
    CHECK(static_cast<double>(ceil_div(n, cores) * cores) <= 1.2 * static_cast<double>(n));
  }
}

TEST_CASE("of a gate's conditions those are left that no other implies") {
  Arena arena;
  ArenaScope scope(arena);
  Node i = make(Op::Range, kIndex, {index(64)}, RangeArg{0});
  const auto below = [&](int64_t plus, int64_t end) {
    return make(Op::Lt, kBool, {index_add(i, index(plus)), index(end)});
  };
  CHECK(is_implied(below(0, 56), below(1, 56)));
  CHECK(is_implied(below(0, 56), below(0, 56)));
  CHECK_FALSE(is_implied(below(1, 56), below(0, 56)));
  CHECK_FALSE(is_implied(below(0, 56), make(Op::Lt, kBool, {index(3), i})));
  Node gate = make(Op::And, kBool, {below(0, 56), below(1, 56)});
  Node load = make(Op::Load, kF32, {param_of(1, 56), i, gate});
  Node where = make(Op::Where, kF32, {below(0, 56), load, constant(kF32, 0)});
  Node sink = make(Op::Sink, kVoid, {make(Op::Store, kVoid, {param_of(0, 64), i, where})});
  const Node cpu = lower_gates(sink, cpu_target());
  REQUIRE(all_of(cpu, Op::Load).size() == 1);
  CHECK(all_of(cpu, Op::Where).empty());
  CHECK(all_of(cpu, Op::Load)[0]->src(2) == below(1, 56));
  // Of a condition that the load does not have, zeros are selected.
  Node more = make(Op::Where, kF32, {below(2, 56), load, constant(kF32, 0)});
  sink = make(Op::Sink, kVoid, {make(Op::Store, kVoid, {param_of(0, 64), i, more})});
  CHECK(all_of(lower_gates(sink, cpu_target()), Op::Where).size() == 1);
}
