// Products on CPUs, whose operands runtime/layout/panels.h stores in panels.
#include <doctest/doctest.h>

#include "codegen/heuristics/heuristics.h"
#include "codegen/kernel/access.h"
#include "runtime/device/device.h"
#include "runtime/schedule/schedule.h"
#include "test/unit/integers.h"
#include "tiny/base/env.h"
#include "tiny/tiny.h"

using namespace tiny;

namespace {

// A product with either factor stored with its axes exchanged.
Tensor product(const Shape& sizes, bool turn_a, bool turn_b, DType t, const std::string& device) {
  const int64_t m = sizes[0], n = sizes[1], k = sizes[2];
  const Tensor a = turn_a ? integers({k, m}, t, device).t() : integers({m, k}, t, device);
  const Tensor b = turn_b ? integers({n, k}, t, device).t() : integers({k, n}, t, device);
  return a.matmul(b);
}

}  // namespace

TEST_CASE("products of a CPU in panels are right in all forms, of sizes that no tile divides") {
  for (const Shape& sizes : {Shape{70, 300, 601}, Shape{37, 45, 70}, Shape{520, 257, 530}})
    for (int form = 0; form < 4; ++form)
      for (DType t : {kF32, kBF16}) {
        CAPTURE(sizes[0]);
        CAPTURE(form);
        const Tensor fast = product(sizes, form & 1, form & 2, t, "CPU").to(kF32);
        const std::vector<float> is = fast.to_vector<float>();
        const EnvOverride plain("OPT", "0");
        const Tensor slow = product(sizes, form & 1, form & 2, t, "CPU").to(kF32);
        CHECK(is == slow.to_vector<float>());
      }
}

TEST_CASE("tiles of results fill the registers, and divide the vectors of columns") {
  Target target;
  target.vector_bytes = 64;
  target.vector_registers = 32;
  const RegisterTile tile = register_tile(target, 2048, 128, true);
  CHECK(tile.rows == 6);
  CHECK(tile.vectors == 4);
  CHECK(register_tile(target, 2048, 128, false).rows == 4);
  CHECK(register_tile(target, 2048, 63, true).vectors == 3);
}

TEST_CASE("a CPU's GEMMs of 16-bit floats read f32, which was converted once") {
  const EnvOverride device("DEVICE", "NULL");
  const Tensor y = product({512, 512, 512}, false, false, kBF16, "NULL");
  const std::vector<Node> roots{y.node()};
  const Normalized graph = normalize(roots);
  std::vector<int> devices;
  for (Node b : graph.buffers) devices.push_back(b->device);
  int products = 0;
  for (const Step& step : schedule(graph, devices, device_id("NULL"))->steps) {
    if (!step.kernel || all_of(step.kernel.get(), Op::ReduceAxis).empty()) continue;
    ++products;
    for (Node p : all_of(step.kernel.get(), Op::Param))
      CHECK((p->dtype == kF32 || p->ints()[0] == 0));
  }
  CHECK(products == 1);
}
