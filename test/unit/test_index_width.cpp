// Which indices have 32 bits, and kernels of more elements than those count.
#include "codegen/passes/passes.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include "codegen/lower.h"
#include "codegen/proof/prove.h"
#include "devices/cuda/cuda.h"
#include "runtime/device/device.h"
#include "test/unit/kernels.h"
#include "tiny/tiny.h"

using namespace tiny;
using namespace tiny::test;

namespace {

constexpr int64_t kMany = (int64_t{1} << 31) + 16;

// Kernels of about as many elements as a matrix of these sizes has.
struct Form {
  const char* name;
  Node (*of)(int64_t rows, int64_t columns);
};

Node plus_one(Node x) {
  const int64_t one[] = {1};
  Node unit = build::reshape(constant(x->dtype, 1), std::span(one, static_cast<size_t>(1)));
  return build::binary(Op::Add, x, spread(unit, x));
}

constexpr Form kForms[] = {
    {"x + 1", [](int64_t m, int64_t n) { return plus_one(tensor_param(1, {m * n}, kU8)); }},
    {"transposed",
     [](int64_t m, int64_t n) {
       const int64_t order[] = {1, 0};
       Node x = tensor_param(1, {m, n}, kU8);
       return build::contiguous(make(Op::Permute, x->dtype, {x}, Ints(order)));
     }},
    {"sums of rows",
     [](int64_t m, int64_t n) {
       return sum(tensor_param(1, {m, n}), 2);
     }},
    {"sums of columns",
     [](int64_t m, int64_t n) {
       return sum(tensor_param(1, {m, n}), 1);
     }},
    {"softmax",
     [](int64_t m, int64_t n) {
       return softmax(tensor_param(1, {m, n}, kBF16), 2);
     }},
};

std::vector<Target> targets() {
  std::vector<Target> out{find_device("CPU").target()};
  for (const GpuRow& gpu : gpu_table()) out.push_back(gpu_target(gpu.arch));
  return out;
}

// Loads and stores by numbers of 64 bits.
int wide_accesses(const Lowered& low) {
  int count = 0;
  for (Node n : topological(low.machine))
    if (n->op == Op::Load || n->op == Op::Store) count += n->src(1)->dtype.scalar == Scalar::I64;
  return count;
}

}  // namespace

TEST_CASE("more elements than 32 bits count have indices of 64 bits, which are proved") {
  for (const Target& target : targets())
    for (const Form& form : kForms)
      for (const bool many : {false, true}) {
        CAPTURE(target.arch);
        CAPTURE(form.name);
        CAPTURE(many);
        Arena arena;
        ArenaScope scope(arena);
        Node kernel = kernel_of({many ? form.of(65536, 32776) : form.of(6560, 32776)});
        const Lowered low = lower(kernel, "k", target);
        if (target.kind == Target::Kind::Gpu) CHECK((wide_accesses(low) > 0) == many);
        ProofSettings settings;
        settings.steps = 100 * kSolverSteps;
        read_kernel(kernel, target, settings);
        const Proof proof = prove(low.machine, settings);
        CHECK_MESSAGE(proof.verdict == Verdict::Proved, proof.text);
      }
}

TEST_CASE("2^31 + 16 elements are written, read and summed, on a GPU and on the CPU") {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return;  // it would take minutes
#endif
  std::vector<std::string> devices;
  if (sysconf(_SC_PHYS_PAGES) >= (int64_t{8} << 30) / sysconf(_SC_PAGESIZE))
    devices.push_back("CPU");
  if (cuda_available()) devices.push_back("CUDA");
  for (const std::string& device : devices) {
    CAPTURE(device);
    const EnvOverride on("DEVICE", device);
    const Tensor x = (Tensor::arange(0, kMany) & 127).to(kU8).contiguous().realize();
    for (int64_t i : {int64_t{5}, (int64_t{1} << 31) - 1, int64_t{1} << 31, kMany - 1})
      CHECK((x + 1).narrow(0, i, 1).item<uint8_t>() == (i & 127) + 1);
    CHECK(x.to(kI64).sum().item<int64_t>() == (kMany / 128) * 64 * 127 + 15 * 16 / 2);
    const Tensor y = (x.reshape({kMany / 8, 8}) + 1).contiguous().realize();
    CHECK(y.narrow(0, kMany / 8 - 2, 2).to_vector<uint8_t>() ==
          std::vector<uint8_t>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16});
  }
}
