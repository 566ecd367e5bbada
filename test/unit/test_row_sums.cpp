#include "runtime/rewrites/scatter_rows.h"

#include <doctest/doctest.h>

#include <cmath>
#include <optional>
#include <random>

#include "codegen/lower.h"
#include "devices/cuda/nvrtc.h"
#include "runtime/realize/realize.h"
#include "runtime/schedule/normalize.h"
#include "runtime/schedule/schedule.h"
#include "test/devices.h"
#include "test/reference.h"
#include "tiny/base/env.h"
#include "tiny/ir/build.h"
#include "tiny/tensor/random.h"

using namespace tiny;

namespace {

constexpr const char* kGpu = "EMU:CUDA:sm_90a";

Tensor random_index(int64_t n, const Shape& shape, DType t = kI64) {
  return Tensor::randint(0, n, shape).to(t).realize();
}

// Small whole numbers: their sums are exact in any order.
Tensor whole(const Shape& shape, DType t = kF32) {
  return Tensor::randint(-4, 5, shape).to(t).realize();
}

Node find_scatter(Node root) {
  Node found = nullptr;
  for (Node n : topological(std::span<const Node>(&root, 1)))
    if (n->op == Op::Scatter) found = n;
  REQUIRE(found != nullptr);
  return found;
}

// The scatter in t, written by rows on the device, has the elements that the reference finds.
void check_written(const Tensor& t, const std::string& device = "CPU") {
  Node scatter = find_scatter(t.node());
  Node rows = written_rows(scatter);
  REQUIRE(rows != nullptr);
  const auto got = Tensor(rows).to(device).detach().contiguous().to(kF64).to_vector<double>();
  CHECK(got == evaluate(scatter).numbers());
}

// Values of shape [n, width] added at places [n] of a base of one number; places may lie outside.
Tensor scattered(const Tensor& place, const Tensor& values, int64_t places, int64_t base = 0) {
  const Shape shape{places, values.shape()[1]};
  const DType t = place.dtype();
  const Node at[] = {place.unsqueeze(1).expand(to_shape(values.shape())).node(),
                     build::iota(values.shape(), 1, t)};
  const Node from = build::full(shape, values.dtype(), base);
  return Tensor(build::scatter(from, values.node(), at, {Op::Add, false}));
}

Tensor embedding_gradient(const Tensor& table, const Tensor& index, const Tensor& g) {
  Tensor w = table.detach().requires_grad_();
  return Tensor::gradient((w.embedding(index) * g).sum(), {w})[0];
}

// Scatters that a GPU is left with: of integers that find rows, and others.
struct Left {
  int found = 0, plain = 0;
  bool operator==(const Left&) const = default;
};
Left scatters(const Tensor& t, const Target& target) {
  Node root = t.node();
  const std::vector<Node> roots = with_written_rows(normalize({&root, 1}).roots, target);
  Left left;
  for (Node n : topological(roots))
    if (n->op == Op::Scatter) ++(n->arg<ScatterArg>().op == Op::Max ? left.found : left.plain);
  return left;
}

std::shared_ptr<const Schedule> schedule_on(const std::string& device, const Tensor& t) {
  Node root = t.node();
  const Normalized graph = normalize({&root, 1});
  const int id = device_id(device);
  return schedule(graph, std::vector<int>(graph.buffers.size(), id), id);
}

}  // namespace

TEST_CASE("rows that are written have the sums of the plain scatter") {
  manual_seed(1);
  for (DType index : {kI32, kI64})
    for (int64_t places : {1, 3, 40, 500}) {  // nearly all left over, some, none
      CAPTURE(places);
      check_written(scattered(random_index(places, {60}, index), whole({60, 5}), places));
      check_written(scattered(random_index(places, {60}, index), whole({60, 5}), places, 3));
    }
  const Tensor in_order = Tensor::arange(0, 60, 1, kI64), same = Tensor::full({60}, 7, kI64);
  for (const Tensor& place : {in_order, 59 - in_order, floor_div(in_order, 2), same})
    check_written(scattered(place.contiguous(), whole({60, 5}), 60));
}

TEST_CASE("rows whose place lies outside are left out") {
  manual_seed(2);
  for (DType t : {kI32, kI64}) {
    const Tensor place = Tensor::randint(-3, 9, {50}).to(t).realize();
    check_written(scattered(place, whole({50, 4}), 6));
  }
  const Tensor far = Tensor::from<int64_t>({int64_t{1} << 32, -(int64_t{1} << 32), 1, 1, 1, 2});
  check_written(scattered(far, whole({6, 4}), 6));
}

TEST_CASE("rows go to places of several axes, from values of several, and are of every dtype") {
  manual_seed(3);
  for (const Shape& shape : {Shape{30, 3, 5}, Shape{3, 7, 3, 5}}) {
    const int rank = static_cast<int>(shape.size());
    Shape line = shape;
    line[rank - 1] = line[rank - 2] = 1;
    const Tensor i = Tensor::randint(-1, 5, line).contiguous().expand(shape);
    const Tensor j = Tensor::randint(-1, 7, line).contiguous().expand(shape);
    const Tensor zeros = Tensor::zeros({4, 6, 3, 5}), values = whole(shape);
    const Node at[] = {i.node(), j.node(), build::iota(shape, rank - 2, kI64),
                       build::iota(shape, rank - 1, kI64)};
    check_written(Tensor(build::scatter(zeros.node(), values.node(), at, {Op::Add, false})));
  }
  check_written(embedding_gradient(whole({9, 4}), random_index(9, {2, 3, 5}), whole({2, 3, 5, 4})));
  for (DType t : {kF16, kBF16, kF64})
    check_written(embedding_gradient(whole({9, 4}, t), random_index(9, {40}), whole({40, 4}, t)));
  check_written(scattered(random_index(5, {40}), whole({40, 4}, kI32), 5));
}

TEST_CASE("only sums of rows in a base of one number are written") {
  const auto written = [](const Tensor& t) { return written_rows(find_scatter(t.node())); };
  const Tensor at = random_index(4, {7}), rows = whole({7, 5}), base = Tensor::zeros({4, 5});
  CHECK(written(base.index_add(0, at, rows)) != nullptr);
  CHECK(written(whole({4, 5}).index_add(0, at, rows)) == nullptr);
  CHECK(written(Tensor::ones({3, 5}).pad({{0, 1}, {0, 0}}).index_add(0, at, rows)) == nullptr);
  CHECK(written(Tensor::zeros({5, 4}).index_add(1, at, whole({5, 7}))) == nullptr);  // columns
  CHECK(written(base.scatter_add(0, random_index(4, {7, 5}), rows)) == nullptr);     // each its own
  CHECK(written(base.index_put({at}, rows)) == nullptr);
  CHECK(written(Tensor::zeros({4, 6}).index_put({at, Slice{0, 5}}, rows, true)) == nullptr);
}

TEST_CASE("rows are written where that saves more than it costs") {
  const Target gpu = find_device(kGpu).target();
  const auto gradient = [](int64_t places, int64_t rows, int64_t width) {
    const Tensor w = Tensor::zeros({places, width}).contiguous().requires_grad_();
    const Tensor i = Tensor::zeros({rows}, kI64).contiguous(), g = Tensor::ones({rows, width});
    return Tensor::gradient((w.embedding(i) * g.contiguous()).sum(), {w})[0];
  };
  const Left as_it_was{0, 1}, replaced{1, 1};
  CHECK(scatters(gradient(50257, 32768, 768), gpu) == replaced);
  CHECK(scatters(gradient(50257, 32768, 768), find_device("CPU").target()) == as_it_was);
  CHECK(scatters(gradient(50257, 8192, 768), gpu) == as_it_was);       // most of it empty
  CHECK(scatters(gradient(100, 1 << 20, 768), gpu) == as_it_was);      // few places
  CHECK(scatters(gradient(8000, 32768, 512), gpu) == as_it_was);       // which a cache holds
  CHECK(scatters(gradient(1 << 18, 1 << 18, 128), gpu) == as_it_was);  // short rows
  CHECK(scatters(gradient(1 << 18, 1 << 18, 256), gpu) == replaced);
}

TEST_CASE("rows that are computed from several tensors are written where they are in memory") {
  const Target gpu = find_device(kGpu).target();
  const Tensor i = Tensor::zeros({32768}, kI64).contiguous();
  const Tensor base = Tensor::zeros({50257, 768});
  const auto made = [] { return Tensor::ones({32768, 768}).contiguous(); };
  const Tensor x = made() * 2, y = made() * Tensor::rand({32768, 768}).contiguous();
  CHECK(scatters(base.index_add(0, i, x), gpu) == Left{1, 1});
  CHECK(scatters(base.index_add(0, i, y), gpu) == Left{0, 1});
  CHECK(scatters(base.index_add(0, i, y).sum() + y.sum(), gpu) == Left{1, 1});
}

TEST_CASE("an embedding's gradient takes four kernels, and with ROW_SUMS=0 has the same values") {
  manual_seed(4);
  std::string device = "CPU";
  for (const std::string& name : test_devices())
    if (name == "CUDA" || name == "EMULATOR") device = name;
  if (device == "CPU") return;
  const auto on = [&](const Tensor& t) { return Tensor(t.to(device).contiguous()).realize(); };
  const int64_t width = 768, rows = 11000 + 5;
  const int64_t places = find_device(device).target().l2_bytes / (4 * width) + 5;  // no cache's
  const Tensor w = on(Tensor::zeros({places, width})), g = on(whole({rows, width}));
  const double most = std::log(static_cast<double>(places));
  const Tensor skewed = on((Tensor::rand({rows}) * most).exp().to(kI64));  // as words of a text
  std::optional<std::vector<float>> sums;
  for (const char* setting : {"0", "1"}) {
    const EnvOverride row_sums("ROW_SUMS", setting), check("CHECK", "1");
    const Tensor y = embedding_gradient(w, skewed, g);
    CHECK(schedule_on(device, y)->steps.size() == (*setting == '1' ? 4 : 2));
    const auto values = y.to_vector<float>();
    if (!sums) sums = values;
    CHECK(values == *sums);
  }
}

TEST_CASE("with DETERMINISTIC=1 rows are added in order, not written") {
  const EnvOverride setting("DETERMINISTIC", "1");
  const Tensor w = Tensor::zeros({50257, 768}).contiguous(), g = w.narrow(0, 0, 32768);
  const Tensor y = embedding_gradient(w, Tensor::zeros({32768}, kI64).contiguous(), g);
  const auto steps = [&](const char* row_sums) {
    const EnvOverride written("ROW_SUMS", row_sums);
    return to_text(*schedule_on(kGpu, y));
  };
  CHECK(steps("1") == steps("0"));
}

TEST_CASE("the kernels of written rows compile for NVIDIA's GPUs without spilling") {
  if (!nvrtc_available()) return;
  const Tensor w = Tensor::zeros({40000, 768}).contiguous(), g = w.narrow(0, 0, 16384);
  const Tensor y = embedding_gradient(w, Tensor::zeros({16384}, kI64).contiguous(), g);
  for (const char* arch : {"sm_80", "sm_90a", "sm_120"}) {
    const std::string device = cat("EMU:CUDA:", arch);
    const Target target = find_device(device).target();
    CHECK(scatters(y, target) == Left{1, 1});
    for (const Step& step : schedule_on(device, y)->steps) {
      CAPTURE(step.name);
      std::string log;
      const Lowered low = lower(step.kernel.get(), step.name, target);
      CHECK(!compile_cuda(low.source.text, arch, &log).empty());
      CHECK(cuda_resources(log).spill_bytes <= 0);  // -1: NVRTC had it in a cache of its own
    }
  }
}

TEST_CASE("every device writes rows of whole vectors and of odd widths") {
  manual_seed(5);
  for (const std::string& device : test_devices()) {
    CAPTURE(device);
    const auto on = [&](const Tensor& t) { return Tensor(t.to(device).contiguous()).realize(); };
    for (int64_t width : {384, 37})
      check_written(scattered(on(Tensor::randint(-1, 41, {1500})), on(whole({1500, width})), 40),
                    device);
  }
}

TEST_CASE("rows of random sizes, places and indices are those of the plain scatter") {
  manual_seed(6);
  std::mt19937 random(7);
  const auto up_to = [&](int n) {
    return static_cast<int64_t>(random() % static_cast<unsigned>(n));
  };
  for (int turn = 0; turn < 40; ++turn) {
    CAPTURE(turn);
    const int64_t places = 1 + up_to(turn % 2 ? 8 : 300), rows = 1 + up_to(200);
    const int64_t width = 2 + up_to(20), outside = up_to(3);
    const Tensor at =
        Tensor::randint(-outside, places + outside, {rows}).to(turn % 3 ? kI64 : kI32);
    check_written(scattered(at.contiguous(), whole({rows, width}), places, turn % 4));
  }
}
