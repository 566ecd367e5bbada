// Running sums on GPUs: one kernel that reads each element once, right for every length.
#include <doctest/doctest.h>

#include "codegen/kernel/access.h"
#include "codegen/kernel/linear.h"
#include "codegen/kernel/option.h"
#include "codegen/lower.h"
#include "codegen/options/thread_group.h"
#include "codegen/passes/passes.h"
#include "test/devices.h"
#include "tiny/rewrite/algebra.h"
#include "tiny/tiny.h"

using namespace tiny;

namespace {

constexpr const char* kGpus[] = {"EMU:CUDA:sm_90a", "EMU:HIP:gfx942", "EMU:HIP:gfx1201"};

std::vector<int64_t> numbers(int64_t count, int64_t modulus) {
  std::vector<int64_t> out(static_cast<size_t>(count));
  for (size_t i = 0; i < out.size(); ++i)
    out[i] = static_cast<int64_t>(i * 7919 % 1009) % modulus - modulus / 2;
  return out;
}

template <class F> std::vector<int64_t> scanned(std::vector<int64_t> x, int64_t row, F combine) {
  for (size_t i = 1; i < x.size(); ++i)
    if (i % static_cast<size_t>(row)) x[i] = combine(x[i - 1], x[i]);
  return x;
}

Node loop(int64_t n, int id, RangeKind kind) {
  return make(Op::Range, kIndex, {index(n)}, RangeArg{id, kind});
}

// out[r] = the sum of in[q] over q <= r, or q >= r.
Node triangle(int64_t n, bool backwards) {
  const int64_t out[] = {0, n}, in[] = {1, n};
  const Node r = loop(n, 0, RangeKind::Loop), q = loop(n, 1, RangeKind::Reduce);
  const Node x = make(Op::Load, kF32, {make(Op::Param, kF32, {}, Ints(in)), q});
  const Node seen = backwards ? less(r, index_add(q, index(1))) : less(q, index_add(r, index(1)));
  const Node term = make(Op::Where, kF32, {seen, x, constant(kF32, 0)});
  const Node sum = make(Op::Reduce, kF32, {term, q}, OpArg{Op::Add});
  return make(Op::Sink, kVoid,
              {make(Op::Store, kVoid, {make(Op::Param, kF32, {}, Ints(out)), r, sum})});
}

}  // namespace

TEST_CASE("a scan on a GPU is right for every length") {
  for (const char* gpu : kGpus)
    for (int64_t n :
         {1, 16, 17, 33, 64, 100, 1000, 1001, 4097, 16384, 16385, 20000, 32768, 32769}) {
      CAPTURE(gpu);
      CAPTURE(n);
      const auto x = numbers(2 * n, 7);
      const Tensor t = Tensor::from(x, {2, n}, gpu);
      CHECK(t.cumsum(1).to_vector<int64_t>() ==
            scanned(x, n, [](int64_t a, int64_t b) { return a + b; }));
      auto backwards = t.to(kF32).flip({1}).cumsum(1).flip({1}).to(kI64).to_vector<int64_t>();
      for (int64_t row : {0, 1})
        std::reverse(backwards.begin() + row * n, backwards.begin() + (row + 1) * n);
      auto turned = x;
      for (int64_t row : {0, 1})
        std::reverse(turned.begin() + row * n, turned.begin() + (row + 1) * n);
      CHECK(backwards == scanned(turned, n, [](int64_t a, int64_t b) { return a + b; }));
      if (n > 1001) continue;
      CHECK(t.cummax(1).values.to_vector<int64_t>() ==
            scanned(x, n, [](int64_t a, int64_t b) { return std::max(a, b); }));
      const auto signs = numbers(2 * n, 2);  // -1 and 0
      CHECK(((Tensor::from(signs, {2, n}, gpu) * 2 + 1).to(kF32).cumprod(1) > 0)
                .to(kI64)
                .to_vector<int64_t>() ==
            scanned(
                [&] {
                  std::vector<int64_t> out;
                  for (int64_t s : signs) out.push_back(s == 0);
                  return out;
                }(),
                n, [](int64_t a, int64_t b) { return static_cast<int64_t>(a == b); }));
    }
}

TEST_CASE("the gradient of a scan runs backwards, in one kernel") {
  const int64_t n = 1000;
  Tensor x = Tensor::ones({3, n}).to("EMU:CUDA:sm_90a").realize().requires_grad_();
  const Tensor w = Tensor::arange(n).to(kF32).to("EMU:CUDA:sm_90a").realize();
  const Tensor g = Tensor::gradient((x.cumsum(1) * w).sum(), {x})[0];
  std::vector<float> expected;
  for (int64_t row = 0; row < 3; ++row)
    for (int64_t i = 0; i < n; ++i)
      expected.push_back(static_cast<float>((n - i) * (n - 1 + i) / 2));
  CHECK(g.to_vector<float>() == expected);
}

TEST_CASE("a scan of terms that are divided by a reduction along the same axis is right") {
  const auto gradient = [](const char* device) {
    Tensor x = Tensor::arange(0, 33, 1, kF64).sin().reshape({1, 33}).to(device).realize();
    x.requires_grad_();
    const Tensor largest = x.cumsum(1).max({}, true);
    return Tensor::gradient((largest * 0.7).sum(), {x})[0].to("CPU").to_vector<double>();
  };
  CHECK(gradient("EMU:CUDA:sm_90a") == gradient("CPU"));
}

TEST_CASE("a triangle becomes a Prefix, which options may split and bind but not merge") {
  const Target& gpu = find_device("EMU:CUDA:sm_90a").target();
  for (bool backwards : {false, true}) {
    const Node k = find_scans(triangle(4096, backwards));
    REQUIRE(all_of(k, Op::Prefix).size() == 1);
    CHECK(all_of(k, Op::Reduce).empty());
    CHECK(all_of(k, Op::Load).size() == 1);
    CHECK(is_legal(k, {OptKind::Split, 0, 64, {}}, gpu));
    const Node two = apply(k, {OptKind::Split, 0, 64, {}}, gpu);
    CHECK(!is_legal(two, {OptKind::Merge, 0, 1, {}}, gpu));
  }
  CHECK(all_of(find_scans(triangle(16, false)), Op::Prefix).empty());  // few terms
  // q < r is no triangle of this kind, and a term that depends on r is none.
  const Node k = triangle(4096, false);
  const Node sum = all_of(k, Op::Reduce)[0], r = k->src(0)->src(1);
  const Node shifted = substitute(k, sum->src(0)->src(0), less(sum->src(1), r));
  CHECK(find_scans(shifted) == shifted);
  const Node x = sum->src(0)->src(1);
  const Node other =
      substitute(k, x, make(Op::Mul, kF32, {x, simplify(make(Op::Cast, kF32, {r}))}));
  CHECK(find_scans(other) == other);
}

TEST_CASE("whatever its ranges are bound to, a scan is right") {
  const std::string gpu = "EMU:CUDA:sm_90a";
  Device& device = find_device(gpu);
  const int64_t n = 192;
  const std::vector<std::string> all{
      "",
      "bind r0 block",
      "bind r0 thread",
      "split r0 8, bind r1 vector",
      "split r0 32, bind r1 thread, bind r0 block",
      "split r0 32, bind r1 thread, bind r0 unroll",
      "split r0 4, bind r1 vector, split r0 8, bind r2 thread, bind r0 unroll, order r2 r0 r1",
      "split r0 128, bind r1 thread",  // gated
      "split r0 5, bind r1 unroll",
  };
  for (const std::string& text : all) {
    CAPTURE(text);
    const Choice choice{options_from_text(text), false};
    const Lowered low = lower(find_scans(triangle(n, false)), "k", device.target(), {},
                              text.empty() ? nullptr : &choice);
    for (const Finding& f : prove_groups(low.machine)) CHECK(f.verdict == Verdict::Proved);
    const auto program = device.load(device.compile(low.source), low.source.entry);
    std::vector<float> in(n), out(n), expected(n);
    for (int64_t i = 0; i < n; ++i)
      expected[i] = (i ? expected[i - 1] : 0) + (in[i] = float(i % 7));
    void *to = device.alloc(n * 4), *from = device.alloc(n * 4);
    device.upload(from, in.data(), n * 4);
    device.launch(*program, low.launch, {to, from});
    device.synchronize();
    device.download(out.data(), to, n * 4);
    CHECK(out == expected);
    device.free(to, n * 4);
    device.free(from, n * 4);
  }
}

TEST_CASE("a scan over threads alone brings what its source needs") {
  const Target gpu = gpu_target("sm_90a");
  const Choice choice{options_from_text("split r0 128, bind r1 thread, bind r0 block"), false};
  const std::string text =
      lower(find_scans(triangle(4096, false)), "k", gpu, {}, &choice).source.text;
  CHECK(text.find("INLINE int thread_index()") < text.find("thread_index(), lane"));
}
