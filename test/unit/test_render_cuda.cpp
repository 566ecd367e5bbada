// Kernels in CUDA, compiled with NVRTC (no GPU is needed) for three generations of GPUs. Where
// NVRTC is missing only their text is looked at.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "codegen/decompose.h"
#include "codegen/render.h"
#include "devices/cuda_nvrtc.h"
#include "test/unit/run_kernel.h"
#include "tiny/error.h"

using namespace tiny;
using namespace tiny::test;

namespace {

Target cuda_target() {
  Target target;
  target.kind = Target::Kind::Gpu;
  target.language = Target::Language::Cuda;
  target.has_f16 = target.has_bf16 = true;
  return target;
}

// Compiles the kernel for each GPU: no warning, no register spilled, no array in local memory.
void check_compiles(const Linear& linear,
                    const std::vector<std::string>& archs = {"sm_80", "sm_90a", "sm_120"}) {
  const std::string text = render_c(linear, cuda_target()).text;
  if (!nvrtc_available()) return;
  for (const std::string& arch : archs) {
    std::string log;
    compile_cuda(text, arch, &log, linear.name);
    const CudaResources used = cuda_resources(log);
    INFO(text, "\n", arch, "\n", log);
    CHECK(log.find("warning") == std::string::npos);
    CHECK(used.stack_bytes == 0);
    CHECK(used.spill_bytes == 0);
  }
}

// What an element-wise kernel of x (slot 0) and y (slot 1) computes.
using Formula = std::function<Node(Node x, Node y)>;

// Each formula is an output of one kernel: a thread has `lanes` elements, in 16 blocks of 128.
Linear elementwise(const std::string& name, DType t, int lanes,
                   const std::vector<Formula>& formulas) {
  const Node block = range(0, 16, RangeKind::Block, kI32);
  const Node thread = range(1, 128, RangeKind::Thread, kI32);
  const Node i = op(Op::Add, op(Op::Mul, block, constant(kI32, 128)), thread);
  const Node at = op(Op::Mul, i, constant(kI32, lanes));
  const Node x = make(Op::Load, t.vec(lanes), {param(0, t), at});
  const Node y = make(Op::Load, t.vec(lanes), {param(1, t), at});
  Statements s(name);
  s.loop(block).loop(thread);
  int slot = 2;
  for (const Formula& f : formulas) {
    const Node v = f(x, y);
    const Node store = make(Op::Store, kVoid, {param(slot++, v->dtype.one()), at, v});
    s.values(decompose(store, cuda_target()));
  }
  s.end(thread).end(block);
  return s.linear();
}

Formula with(Op o) {
  return [o](Node x, Node y) { return op(o, x, y); };
}
Formula one(Op o) {
  return [o](Node x, Node) { return make(o, x->dtype, {x}); };
}
const std::vector<DType> kFloats = {kF16, kBF16, kF32, kF64};
const std::vector<DType> kInts = {kI8, kI16, kI32, kI64, kU8, kU16, kU32, kU64};

std::vector<DType> all_dtypes() {
  std::vector<DType> all = {kBool};
  all.insert(all.end(), kInts.begin(), kInts.end());
  all.insert(all.end(), kFloats.begin(), kFloats.end());
  return all;
}

std::vector<Formula> formulas_of(DType t) {
  std::vector<Formula> out;
  for (Op o : {Op::Lt, Op::Le, Op::Eq, Op::Ne}) out.push_back(with(o));
  out.push_back([](Node x, Node y) { return make(Op::Where, x->dtype, {op(Op::Lt, x, y), x, y}); });
  if (t.is_bool()) {
    for (Op o : {Op::And, Op::Or, Op::Xor}) out.push_back(with(o));
    return out;
  }
  for (Op o : {Op::Add, Op::Sub, Op::Mul, Op::Max, Op::Min}) out.push_back(with(o));
  out.push_back(one(Op::Neg));
  if (t.is_float()) {
    for (Op o : {Op::Recip, Op::Sqrt, Op::Exp2, Op::Log2, Op::Sin, Op::Floor, Op::Trunc})
      out.push_back(one(o));
    out.push_back(with(Op::Div));
    for (double c : {0.0, HUGE_VAL, -HUGE_VAL, double(NAN), -1.5})
      out.push_back([c](Node x, Node) { return op(Op::Max, x, constant(x->dtype, c)); });
    return out;
  }
  for (Op o : {Op::FloorDiv, Op::FloorMod, Op::TruncDiv, Op::TruncMod, Op::And, Op::Or, Op::Xor,
               Op::Shl, Op::Shr})
    out.push_back(with(o));
  return out;
}

}  // namespace

TEST_CASE("CUDA: element-wise operations of all dtypes compile, as scalars and vectors") {
  for (DType t : all_dtypes())
    for (int lanes : {1, std::max(2, 16 / t.size())})
      check_compiles(elementwise(cat("all_", t.name(), "_", lanes), t, lanes, formulas_of(t)),
                     {lanes == 1 ? "sm_90a" : "sm_80"});
}
