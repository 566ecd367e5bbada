// Linear programs for GPUs that have every operation and dtype, for tests of their text and values.
#pragma once
#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "codegen/passes/passes.h"
#include "test/unit/run_kernel.h"
#include "tiny/base/error.h"

namespace tiny::test {

inline Target cuda_target() {
  Target target;
  target.kind = Target::Kind::Gpu;
  target.language = Target::Language::Cuda;
  target.has_f16 = target.has_bf16 = true;
  return target;
}

// What an element-wise kernel of x (slot 0) and y (slot 1) computes.
using Formula = std::function<Node(Node x, Node y)>;

// Each formula is an output of one kernel: a thread has `lanes` elements, in kBlocks blocks of
// kThreads; on a CPU that is one loop.
inline constexpr int64_t kBlocks = 4, kThreads = 96;
inline Linear elementwise(const std::string& name, DType t, int lanes,
                          const std::vector<Formula>& formulas,
                          const Target& target = cuda_target()) {
  const bool gpu = target.kind == Target::Kind::Gpu;
  const Node block = gpu ? range(0, kBlocks, RangeKind::Block, kI32)
                         : range(0, kBlocks * kThreads, RangeKind::Core);
  const Node thread = range(1, kThreads, RangeKind::Thread, kI32);
  const Node i = gpu ? op(Op::Add, op(Op::Mul, block, constant(kI32, kThreads)), thread) : block;
  const Node at = op(Op::Mul, i, constant(i->dtype, lanes));
  const Node x = make(Op::Load, t.vec(lanes), {param(0, t), at});
  const Node y = make(Op::Load, t.vec(lanes), {param(1, t), at});
  Statements s(name);
  s.loop(block);
  if (gpu) s.loop(thread);
  int slot = 2;
  for (const Formula& f : formulas) {
    const Node v = f(x, y);
    const Node store = make(Op::Store, kVoid, {param(slot++, v->dtype.one()), at, v});
    s.values(decompose(store, target));
  }
  if (gpu) s.end(thread);
  s.end(block);
  return s.linear();
}

inline Formula with(Op o) {
  return [o](Node x, Node y) { return op(o, x, y); };
}
inline Formula one(Op o) {
  return [o](Node x, Node) { return make(o, x->dtype, {x}); };
}
inline Formula to(DType t) {
  return [t](Node x, Node) { return make(Op::Cast, t.vec(x->dtype.lanes), {x}); };
}

inline std::vector<DType> all_dtypes() {
  return {kBool, kI8, kI16, kI32, kI64, kU8, kU16, kU32, kU64, kF16, kBF16, kF32, kF64};
}

inline std::vector<Formula> formulas_of(DType t) {
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

// To every dtype, and the bits as every other of the same size.
inline std::vector<Formula> casts_of(DType t) {
  std::vector<Formula> casts;
  for (DType other : all_dtypes()) casts.push_back(to(other));
  for (DType other : all_dtypes())
    if (other.size() == t.size() && !other.is_bool() && !t.is_bool())
      casts.push_back(
          [other](Node x, Node) { return make(Op::Bitcast, other.vec(x->dtype.lanes), {x}); });
  return casts;
}

// Each block reduces `rows` rows (thread y) of `width` threads (thread x), `times` times in a loop.
inline Linear grouped(Op o, DType t, int width, int rows, int times) {
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

}  // namespace tiny::test
