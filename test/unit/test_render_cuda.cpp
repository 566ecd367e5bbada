// Kernels in CUDA, compiled with NVRTC (no GPU is needed) for three generations of GPUs. Where
// NVRTC is missing only their text is looked at.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "codegen/kernel/facts.h"
#include "codegen/lower.h"
#include "devices/cuda/nvrtc.h"
#include "test/unit/cuda_kernels.h"
#include "test/unit/kernels.h"
#include "tiny/base/error.h"

using namespace tiny;
using namespace tiny::test;

namespace {

// Compiles the kernel for each GPU: no warning, no register spilled, no array in local memory.
void check_text_compiles(const Source& source, const std::vector<std::string>& archs) {
  if (!nvrtc_available()) return;
  for (const std::string& arch : archs) {
    std::string log;
    compile_cuda(source.text, arch, &log, source.entry);
    const CudaResources used = cuda_resources(log);
    INFO(source.text, "\n", arch, "\n", log);
    CHECK(log.find("warning") == std::string::npos);
    CHECK(used.stack_bytes == 0);
    CHECK(used.spill_bytes == 0);
  }
}

void check_compiles(const Linear& linear,
                    const std::vector<std::string>& archs = {"sm_80", "sm_90a", "sm_120"}) {
  check_text_compiles(render_c(linear, cuda_target()), archs);
}

}  // namespace

TEST_CASE("CUDA: element-wise operations of all dtypes compile, as scalars and vectors") {
  for (DType t : all_dtypes())
    for (int lanes : {1, std::max(2, 16 / t.size())})
      check_compiles(elementwise(cat("all_", t.name(), "_", lanes), t, lanes, formulas_of(t)),
                     {lanes == 1 ? "sm_75" : "sm_90a"});
}

TEST_CASE("CUDA: casts between all dtypes and bits of floats compile") {
  for (DType t : all_dtypes())
    for (int lanes : {1, std::max(2, 16 / t.size())})
      check_compiles(elementwise(cat("casts_", t.name(), "_", lanes), t, lanes, casts_of(t)),
                     {lanes == 1 ? "sm_120" : "sm_75"});
}

TEST_CASE("CUDA: a vector is read and written in pieces as large as its alignment is known to be") {
  for (DType t : {kBool, kU8, kF16, kF32, kF64}) {
    const int lanes = 32 / t.size();
    const DType v = t.vec(lanes);
    const Node block = range(0, 1 << 10, RangeKind::Block, kI32);
    const Node thread = range(1, 64, RangeKind::Thread, kI32);
    Statements s(cat("pieces_", t.name()));
    s.loop(block).loop(thread);
    const Node row = op(Op::Mul, block, constant(kI32, 1 << 12));
    for (int step = 1; step <= 2 * lanes; step *= 2) {
      const Node at = op(Op::Add, row, op(Op::Mul, thread, constant(kI32, step)));
      const Node x = make(Op::Load, v, {param(0, t), at});
      s.values(make(Op::Store, kVoid, {param(1, t), at, x}));
    }
    s.end(thread).end(block);
    check_compiles(s.linear(), {"sm_90a"});
    const std::string text = render_c(s.linear(), cuda_target()).text;
    const DType m = t.is_bool() ? kU8 : t;
    for (int bytes = t.size(); bytes < 16; bytes *= 2) {
      CHECK(text.find(cat("load<", m.vec(lanes).name(), ", ", bytes, ">(b0 + ")) != text.npos);
      CHECK(text.find(cat("store<", bytes, ">(b1 + ")) != text.npos);
    }
    CHECK(text.find(cat("*(const ", m.vec(lanes).name(), "*)(b0 + ")) != text.npos);
    CHECK(text.find(cat("*(", m.vec(lanes).name(), "*)(b1 + ")) != text.npos);
  }
}

TEST_CASE("CUDA: gates, gathers, scatters and lane shuffles compile") {
  for (DType t : all_dtypes())
    for (int lanes : {1, 4, 16}) {
      const DType v = t.vec(lanes);
      const Node block = range(0, 64, RangeKind::Block, kI32);
      const Node thread = range(1, 96, RangeKind::Thread, kI32);
      const Node at = op(Op::Mul, op(Op::Add, op(Op::Mul, block, constant(kI32, 96)), thread),
                         constant(kI32, lanes));
      const Node first = op(Op::Lt, thread, constant(kI32, 7));
      const Node i = make(Op::Load, kI64.vec(lanes), {param(1, kI64), at});
      const Node inside = op(Op::Lt, i, constant(i->dtype, 1000));
      Statements s(cat("gates_", v.name()));
      s.loop(block).loop(thread);
      const Node a = make(Op::Load, v, {param(0, t), at, first});
      Node b = make(Op::Load, v, {param(0, t), at, inside});
      const Node c = make(Op::Load, v, {param(0, t), i, inside});
      if (lanes > 1) b = make(Op::Reverse, v, {b});
      const Node d = make(Op::Where, v, {inside, c, a});
      s.values(make(Op::Store, kVoid, {param(2, t), at, a, first}));
      s.values(make(Op::Store, kVoid, {param(3, t), at, b, inside}));
      s.values(make(Op::Store, kVoid, {param(4, t), i, d, inside}));
      s.values(make(Op::Store, kVoid, {param(5, t), i, d}));
      if (lanes == 4) {
        const int64_t order[] = {0, 4, 3, 7};
        const Node mixed = make(Op::Shuffle, v, {a, c}, Ints(order));
        s.values(make(Op::Store, kVoid, {param(6, t), at, mixed}));
      }
      if (lanes > 1 && !t.is_half())
        for (Op o : {Op::Add, Op::Mul, Op::Max, Op::Min}) {
          const Node f = make(Op::Fold, t, {d}, OpArg{o});
          s.values(make(Op::Store, kVoid, {param(7 + static_cast<int>(o == Op::Max), t), at, f}));
        }
      s.end(thread).end(block);
      check_compiles(s.linear(), {lanes == 4 ? "sm_120" : "sm_90a"});
    }
}

TEST_CASE("CUDA: combining stores are atomic for every dtype and operation") {
  for (DType t : all_dtypes()) {
    std::vector<Op> ops = {Op::Add, Op::Mul, Op::Max, Op::Min};
    if (!t.is_float()) ops.insert(ops.end(), {Op::And, Op::Or, Op::Xor});
    const Node thread = range(0, 96, RangeKind::Thread, kI32);
    const auto combine = [&](Statements& s, Op o, int lanes) {
      const Node at = op(Op::Mul, thread, constant(kI32, lanes));
      const Node i = make(Op::Load, kI32.vec(lanes), {param(1, kI32), at});
      const Node x = make(Op::Load, t.vec(lanes), {param(0, t), at});
      const Node gate = op(Op::Le, i, constant(i->dtype, 5));
      s.values(make(Op::Store, kVoid, {param(2, t), i, x, gate}, OpArg{o}));
    };
    Statements all(cat("combine_", t.name()));
    all.loop(thread);
    for (Op o : ops) combine(all, o, 1);
    check_compiles(all.end(thread).linear(), {"sm_80"});
    Statements lanes(cat("combine_lanes_", t.name()));
    lanes.loop(thread);
    combine(lanes, Op::Add, 4);
    check_compiles(lanes.end(thread).linear(), {"sm_90a"});
  }
}

TEST_CASE("CUDA: threads that would repeat a combining store leave it to the first") {
  const Node rows = range(0, 8, RangeKind::Block, kI32), row = range(1, 4, RangeKind::Thread, kI32);
  const Node thread = range(2, 32, RangeKind::Thread, kI32);
  Statements s("once");
  s.loop(rows).loop(row).loop(thread);
  s.values(make(Op::Store, kVoid, {param(0, kF32), row, constant(kF32, 1.0)}, OpArg{Op::Add}));
  s.end(thread).end(row).end(rows);
  const std::string text = render_c(s.linear(), cuda_target()).text;
  CHECK(text.find("if (r0 == 0 && r2 == 0) atomic_add(b0 + r1, ") != text.npos);
  check_compiles(s.linear());
}

TEST_CASE("CUDA: groups of threads of every width compile for all operations") {
  for (int width : {2, 8, 32, 64, 96, 256, 512, 1024}) {
    const DType t = width <= 64 ? kF32.vec(4) : kF32;
    check_compiles(grouped(Op::Add, t, width, 1, 1), {"sm_90a"});
  }
  check_compiles(grouped(Op::Add, kF32, 8, 3, 1));
  check_compiles(grouped(Op::Max, kF32.vec(2), 64, 4, 5));
  for (DType t : {kBool, kI8, kU16, kI32, kI64, kF32, kF64}) {  // 16-bit floats are reduced as f32
    for (Op o : {Op::Add, Op::Mul, Op::Max, Op::Min})
      check_compiles(grouped(o, t, 64, 2, 1), {"sm_80"});
    check_compiles(grouped(Op::Max, t.vec(4), 16, 1, 1), {"sm_75"});
  }
}

TEST_CASE("CUDA: a group has a place for each warp of the block, two in turns inside a loop") {
  const auto text = [](const Linear& linear) { return render_c(linear, cuda_target()).text; };
  const std::string once = text(grouped(Op::Add, kF32, 64, 4, 1));
  CHECK(once.find("KERNEL(256)") != once.npos);
  CHECK(once.find("const i32 r3 = thread_x();") != once.npos);
  CHECK(once.find("const i32 r2 = thread_y();") != once.npos);
  CHECK(once.find("SHARED(f32, shared1, 8);") != once.npos);
  CHECK(once.find("acc1 = group_add<64>(acc1, shared1);") != once.npos);
  const std::string loop = text(grouped(Op::Add, kF32, 64, 4, 5));
  CHECK(loop.find("SHARED(f32, shared1, 16);") != loop.npos);
  CHECK(loop.find("acc1 = group_add<64>(acc1, shared1 + (turn1 ^= 8));") != loop.npos);
  const std::string warp = text(grouped(Op::Max, kF32, 32, 1, 5));  // no shared memory is used
  CHECK(warp.find("SHARED(f32, shared1, 1);") != warp.npos);
  CHECK(warp.find("turn1") == warp.npos);
  const std::string bools = text(grouped(Op::Max, kBool, 32, 1, 1));
  CHECK(bools.find("acc1 = group_or<32>(acc1, shared1);") != bools.npos);
}

TEST_CASE("CUDA: slots that a kernel does not use are parameters nevertheless") {
  const Node thread = range(0, 32, RangeKind::Thread, kI32);
  Statements s("slots");
  const Node x = make(Op::Load, kF16, {param(3, kF16), thread});
  s.loop(thread).values(make(Op::Store, kVoid, {param(1, kF16), thread, x})).end(thread);
  const std::string text = render_c(s.linear(), cuda_target()).text;
  CHECK(text.find("slots(const u8* b0, f16* RESTRICT b1, const u8* b2, const f16* RESTRICT b3)") !=
        text.npos);
  check_compiles(s.linear());
}

TEST_CASE("CUDA: a prelude has no more than the kernel uses") {
  const std::string text =
      render_c(elementwise("add", kF32, 4, {with(Op::Add)}), cuda_target()).text;
  CHECK(text.starts_with("#ifndef TINY_PRELUDE\n"));
  CHECK(text.find("operator+(vec<f32, 4> a, vec<f32, 4> b)") != text.npos);
  for (const char* name : {"operator*", "bitcast", "f16", "shuffle", "THREADS", "atomic", "group"})
    CHECK_MESSAGE(text.find(name) == text.npos, name);
  CHECK(text.find("#include") == text.npos);
}

TEST_CASE(
    "CUDA: kernels of rows, columns and transposed tiles compile from tensors to machine code") {
  Target target = cuda_target();
  target.cores = 132;
  target.shared_bytes = 227 << 10;
  for (DType t : {kF32, kF16}) {
    const Node x = tensor_param(1, {1000, 4096}, t);
    const Node flipped = build::permute(tensor_param(2, {4096, 1000}, t), Shape{1, 0});
    const std::vector<std::pair<const char*, Node>> values = {
        {"k_softmax", softmax(x, 2)},
        {"k_sum_rows", sum(x, 2)},
        {"k_sum_columns", sum(x, 1)},
        {"k_sin", build::unary(Op::Sin, x)},
        {"k_transposed", build::binary(Op::Add, x, flipped)},
        {"k_all", build::reduce(Op::Max, x, 3)},
    };
    for (const auto& [name, value] : values)
      check_text_compiles(lower(kernel_of({value}), name, target).source, {"sm_90a"});
  }
}
