// Copies on a CPU that read along one axis and write along another: numbers of all dtypes, what is
// transposed in registers, and stores that pass the caches.
#include <doctest/doctest.h>

#include "codegen/kernel/access.h"
#include "codegen/kernel/facts.h"
#include "codegen/lower.h"
#include "devices/compilers/llvm_library.h"
#include "runtime/device/buffer.h"
#include "runtime/schedule/schedule.h"
#include "test/unit/schedules.h"
#include "tiny/tiny.h"

using namespace tiny;
using namespace tiny::test;

namespace {

// Numbers that differ between neighbours along both axes, as many as the dtype has.
Tensor numbers(const Shape& shape, DType t) {
  const int64_t modulus = t.is_bool() ? 2 : 113;
  return mod(Tensor::arange(numel(shape)) * 7, modulus).reshape(shape).to(t).realize();
}

std::vector<double> transposed(const std::vector<double>& x, int64_t batch, int64_t m, int64_t n) {
  std::vector<double> out(x.size());
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j)
        out[static_cast<size_t>((b * n + j) * m + i)] = x[static_cast<size_t>((b * m + i) * n + j)];
  return out;
}

// The only kernel, lowered for vectors of 64 bytes.
Lowered lowered(const Tensor& t) {
  Target target = find_device("CPU").target();
  target.vector_bytes = 64;
  target.vector_registers = 32;
  for (const Step& step : schedule_on("CPU", {t})->steps)
    if (step.kernel) return lower(step.kernel.get(), "k", target);
  return {};
}

// Whether vectors of neighbours are loaded and stored, and nothing is gathered or scattered.
bool reads_and_writes_neighbours(const Lowered& l) {
  bool all = true;
  for (Op op : {Op::Load, Op::Store})
    for (Node n : all_of(l.machine, op)) {
      const DType t = op == Op::Load ? n->dtype : n->src(2)->dtype;
      all &= t.lanes >= 16 && n->src(1)->dtype.lanes == 1;
    }
  return all;
}

}  // namespace

TEST_CASE("transposes of every dtype and of sizes that are no whole vectors") {
  for (DType t : {kBool, kI8, kU8, kI16, kF16, kBF16, kI32, kF32, kI64, kF64})
    for (const auto& [batch, m, n] : {std::tuple<int64_t, int64_t, int64_t>{1, 64, 64},
                                      {2, 96, 160},
                                      {3, 32, 48},
                                      {1, 33, 64},
                                      {2, 64, 31},
                                      {1, 16, 32},
                                      {1, 512, 1024}}) {
      CAPTURE(t.name());
      CAPTURE(m);
      CAPTURE(n);
      const Tensor x = numbers({batch, m, n}, t);
      const auto wanted = transposed(x.to(kF64).to_vector<double>(), batch, m, n);
      const Tensor y = x.transpose(1, 2).contiguous().realize();
      CHECK(y.to(kF64).to_vector<double>() == wanted);
      const Tensor z = (x.transpose(1, 2).to(kF32) + 1).to(t).contiguous().realize();
      if (!t.is_bool()) {
        const std::vector<double> got = z.to(kF64).to_vector<double>();
        bool is_same = true;
        for (size_t i = 0; i < got.size(); ++i) is_same &= got[i] == wanted[i] + 1;
        CHECK(is_same);
      }
    }
}

TEST_CASE("tiles of rows, as the matrix units of a CPU read a transposed operand") {
  for (DType t : {kBF16, kU8, kF32}) {
    CAPTURE(t.name());
    const Tensor x = numbers({2, 128, 96}, t);  // 4 blocks of 32 terms by 6 of 16 rows
    const auto tiles = [](const Tensor& v) {
      return v.reshape({2, 4, 32, 6, 16}).permute({0, 3, 1, 4, 2}).contiguous();
    };
    const std::vector<double> from = x.to(kF64).to_vector<double>(),
                              got = tiles(x).to(kF64).to_vector<double>();
    size_t at = 0, wrong = 0;
    for (size_t b = 0; b < 2; ++b)
      for (size_t rows = 0; rows < 6; ++rows)
        for (size_t terms = 0; terms < 4; ++terms)
          for (size_t row = 0; row < 16; ++row)
            for (size_t k = 0; k < 32; ++k)
              wrong += got[at++] != from[(b * 128 + terms * 32 + k) * 96 + rows * 16 + row];
    CHECK(wrong == 0);
  }
}

TEST_CASE("elements that no instruction gathers are transposed in registers") {
  if (!llvm_available()) return;
  for (DType t : {kBF16, kF16, kI16, kI8}) {
    CAPTURE(t.name());
    CHECK(reads_and_writes_neighbours(lowered(numbers({256, 256}, t).t().contiguous())));
  }
}

TEST_CASE("a cache line is not streamed in parts") {
  if (!llvm_available()) return;
  constexpr int64_t kRows = 4096;  // 32 MB of 16 bits
  const auto streams = [](const Lowered& l) {
    size_t n = 0;
    for (Node store : l.machine->srcs()) n += is_streaming_store(store);
    return std::pair(n, l.machine->srcs().size());
  };
  const auto empty = [](int64_t m, int64_t n) {
    return Tensor::zeros({m, n}, kBF16).contiguous().realize();
  };
  const auto [whole, stores] = streams(lowered(empty(kRows, kRows).t().contiguous()));
  CHECK(whole == stores);
  const auto [parts, of] = streams(lowered(empty(kRows + 16, kRows).t().contiguous()));
  CHECK(of > 1);
  CHECK(parts == 0);  // 16 columns at a time: the next ones come an iteration later
  const auto [copied, all] = streams(lowered((empty(kRows, kRows) + 1).contiguous()));
  CHECK(copied == all);
}
