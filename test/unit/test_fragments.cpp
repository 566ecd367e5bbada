// Chains of products on a warp's matrix units: on the emulator, beside the same kernel without any
// options.
#include "codegen/options/fragments.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "codegen/kernel/access.h"
#include "codegen/lower.h"
#include "codegen/proof/prove.h"
#include "runtime/device/device.h"
#include "test/unit/kernels.h"
#include "tiny/base/env.h"
#include "tiny/base/error.h"
#include "tiny/base/text.h"

using namespace tiny;
using namespace tiny::test;
namespace B = tiny::build;

namespace {

struct Sizes {
  int64_t batch = 2, m = 64, n = 128, e = 32, d = 32;
};

Node widened(Node n) { return n->dtype == kF32 ? n : B::cast(n, kF32); }
Node product(Node a, Node b, Shape first, Shape second, Shape all, int axis, Shape out) {
  Node mul = B::binary(Op::Mul, B::expand(B::reshape(a, first), all),
                       B::expand(B::reshape(b, second), all));
  return B::reshape(sum(mul, 1u << axis), out);
}
Node scores(const Sizes& s, Node q, Node k) {
  return product(widened(q), widened(k), {s.batch, s.m, 1, s.e}, {s.batch, 1, s.n, s.e},
                 {s.batch, s.m, s.n, s.e}, 3, {s.batch, s.m, s.n});
}
Node weighted(const Sizes& s, Node p, Node v) {
  return product(widened(p), widened(v), {s.batch, s.m, s.n, 1}, {s.batch, 1, s.n, s.d},
                 {s.batch, s.m, s.n, s.d}, 2, {s.batch, s.m, s.d});
}

Node attention(const Sizes& s, Node q, Node k, Node v) {
  Node x = scores(s, q, k);
  x = B::binary(Op::Mul, x, B::full(to_shape(x->shape()), kF32, 0.25));
  Node e = B::unary(Op::Exp2, B::binary(Op::Sub, x, spread(B::reduce(Op::Max, x, 4), x)));
  e = widened(B::cast(e, q->dtype));
  Node total = B::reshape(sum(e, 4), Shape{s.batch, s.m, 1});
  return B::binary(Op::Div, weighted(s, e, v), B::expand(total, Shape{s.batch, s.m, s.d}));
}

class OnDevice {
 public:
  OnDevice(Device& d, size_t bytes) : d_(d), bytes_(bytes), data_(d.alloc(bytes)) {}
  ~OnDevice() { d_.free(data_, bytes_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  void* data() const { return data_; }

 private:
  Device& d_;
  size_t bytes_;
  void* data_;
};

std::vector<float> run(Node value, Device& device, const Choice* choice,
                       const std::vector<std::vector<uint16_t>>& in, bool check) {
  const Lowered lowered = lower(kernel_of({value}), "chain", device.target(), nullptr, choice);
  if (getenv("SHOW")) puts(lowered.source.text.c_str());
  if (check) {
    CHECK(to_text(lowered.options).find("fragments") != std::string::npos);
    ProofSettings settings;
    read_kernel(kernel_of({value}), device.target(), settings);
    const Proof proof = prove(lowered.machine, settings);
    INFO(proof.text);
    CHECK(proof.verdict == Verdict::Proved);
  }
  const auto program = device.load(device.compile(lowered.source), lowered.source.entry);
  std::vector<float> out(static_cast<size_t>(numel(value->shape())));
  OnDevice to(device, out.size() * 4);
  std::vector<std::unique_ptr<OnDevice>> buffers;
  std::vector<void*> args{to.data()};
  for (const auto& v : in) {
    buffers.push_back(std::make_unique<OnDevice>(device, v.size() * 2));
    device.upload(buffers.back()->data(), v.data(), v.size() * 2);
    args.push_back(buffers.back()->data());
  }
  device.launch(*program, lowered.launch, args);
  device.download(out.data(), to.data(), out.size() * 4);
  return out;
}

void check_chain(const Sizes& s, const std::string& name) {
  CAPTURE(name);
  Device& device = find_device(name);
  Arena arena;
  ArenaScope scope(arena);
  Node q = tensor_param(1, {s.batch, s.m, s.e}, kBF16),
       k = tensor_param(2, {s.batch, s.n, s.e}, kBF16),
       v = tensor_param(3, {s.batch, s.n, s.d}, kBF16);
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<std::vector<uint16_t>> in(3);
  for (Node p : {q, k, v})
    for (int64_t i = 0; i < numel(p->shape()); ++i) {
      const float x = normal(random);
      uint32_t bits = 0;
      std::memcpy(&bits, &x, 4);
      in[static_cast<size_t>(p->ints()[0] - 1)].push_back(static_cast<uint16_t>(bits >> 16));
    }
  Node value = attention(s, q, k, v);
  const Choice none;
  const std::vector<float> plain = run(value, device, &none, in, false),
                           fused = run(value, device, nullptr, in, true);
  double worst = 0, size = 0;
  for (size_t i = 0; i < plain.size(); ++i) {
    CHECK(std::isnan(plain[i]) == std::isnan(fused[i]));
    worst = std::fmax(worst, std::fabs(plain[i] - fused[i]));
    size = std::fmax(size, std::fabs(plain[i]));
  }
  INFO(worst, " of ", size);
  CHECK(worst <= 4e-3 * size);
}

}  // namespace

TEST_CASE("fragments: attention in one kernel") { check_chain({}, "EMU:CUDA:sm_90a"); }
