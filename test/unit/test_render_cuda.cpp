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
Formula to(DType t) {
  return [t](Node x, Node) { return make(Op::Cast, t.vec(x->dtype.lanes), {x}); };
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

TEST_CASE("CUDA: casts between all dtypes and bits of floats compile") {
  for (DType t : all_dtypes())
    for (int lanes : {1, std::max(2, 16 / t.size())}) {
      std::vector<Formula> casts;
      for (DType other : all_dtypes()) casts.push_back(to(other));
      for (DType other : all_dtypes())
        if (other.size() == t.size() && !other.is_bool() && !t.is_bool())
          casts.push_back(
              [other](Node x, Node) { return make(Op::Bitcast, other.vec(x->dtype.lanes), {x}); });
      check_compiles(elementwise(cat("casts_", t.name(), "_", lanes), t, lanes, casts),
                     {lanes == 1 ? "sm_120" : "sm_80"});
    }
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

namespace {

// Each block reduces `rows` rows (thread y) of `width` threads (thread x), `times` times in a loop.
Linear grouped(Op o, DType t, int width, int rows, int times) {
  const Node block = range(0, 64, RangeKind::Block, kI32);
  const Node again = range(1, times, RangeKind::Loop, kI32);
  const Node row = range(2, rows, RangeKind::Thread, kI32);
  const Node column = range(3, width, RangeKind::Thread, kI32);
  const auto inside = [](Node outer, Node inner, int extent) {
    return extent > 1 ? op(Op::Add, op(Op::Mul, outer, constant(kI32, extent)), inner) : outer;
  };

  const Node at = inside(inside(block, again, times), row, rows);
  const Node from = op(Op::Add, op(Op::Mul, at, constant(kI32, width)), column);
  const Node i = op(Op::Mul, from, constant(kI32, t.lanes));
  const Node x = make(Op::Load, t, {param(0, t.one()), i});
  const Node reduce = make(Op::Reduce, t, {x, column}, OpArg{o});
  const Node to = op(Op::Mul, at, constant(kI32, t.lanes));
  Statements s(cat("group_", o, "_", t.name(), "_", width));
  s.loop(block);
  if (rows > 1) s.loop(row);
  s.loop(column);
  if (times > 1) s.loop(again);
  s.accumulate(reduce).update(reduce).group(reduce).result(reduce);
  s.values(make(Op::Store, kVoid, {param(1, t.one()), to, reduce}));
  if (times > 1) s.end(again);
  s.end(column);
  if (rows > 1) s.end(row);
  s.end(block);
  return s.linear();
}

}  // namespace

TEST_CASE("CUDA: groups of threads of every width compile for all operations") {
  for (int width : {2, 8, 32, 64, 96, 256, 512, 1024}) {
    const DType t = width <= 64 ? kF32.vec(4) : kF32;
    check_compiles(grouped(Op::Add, t, width, 1, 1), {"sm_90a"});
  }
  check_compiles(grouped(Op::Add, kF32, 8, 3, 1));
  check_compiles(grouped(Op::Max, kF32.vec(2), 64, 4, 5));
  for (DType t : all_dtypes()) {
    if (t.is_half()) continue;  // are reduced as f32
    for (Op o : {Op::Add, Op::Mul, Op::Max, Op::Min}) {
      check_compiles(grouped(o, t, 64, 2, 1), {"sm_80"});
      if (o == Op::Add || o == Op::Max) check_compiles(grouped(o, t.vec(4), 16, 1, 1), {"sm_90a"});
    }
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
  CHECK(loop.find("acc1 = group_add<64>(acc1, shared1 + turn1);") != loop.npos);
  CHECK(loop.find("turn1 ^= 8;") != loop.npos);
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
