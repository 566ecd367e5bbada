// Products on Hopper's matrix units for tests: as tensors, and as the kernel that the scheduler
// hands over.
#pragma once
#include "codegen/target/target.h"
#include "test/unit/integers.h"
#include "tiny/tiny.h"

namespace tiny::test {

struct Form {
  Shape a, b;  // a: [.., m, k] or, turned, [.., k, m]; b likewise
  bool turn_a = false, turn_b = false;
  DType dtype = kBF16;
  bool float_result = false;  // of a kernel
};

inline Tensor product(const Form& f, const std::string& device) {
  Tensor a = integers(f.a, f.dtype, device), b = integers(f.b, f.dtype, device) * 0.5;
  a.realize();
  b.realize();
  return (f.turn_a ? a.transpose(-1, -2) : a).matmul(f.turn_b ? b.transpose(-1, -2) : b);
}

inline Target hopper() {
  Target t;
  t.kind = Target::Kind::Gpu;
  t.language = Target::Language::Cuda;
  t.arch = "sm_90a";
  t.vector_bytes = 16;
  t.vector_registers = 255;
  t.cores = 132;
  t.has_f16 = t.has_bf16 = t.has_wgmma = true;
  t.shared_bytes = 227 << 10;
  return t;
}

// The kernel of a product as the scheduler hands it over: [m, k] x [k, n], each turned or not.
inline Node kernel(const Form& f) {
  const auto param = [](int slot, const Shape& shape, DType dtype) {
    Shape arg{slot};
    arg.insert(arg.end(), shape.begin(), shape.end());
    return make(Op::Param, dtype, {}, Ints(arg));
  };
  const auto turned = [](Node n, bool turn) {
    const int64_t order[] = {1, 0};
    return turn ? make(Op::Permute, n->dtype, {n}, Ints(order)) : n;
  };
  Node a = turned(param(1, f.a, f.dtype), f.turn_a), b = turned(param(2, f.b, f.dtype), f.turn_b);
  const int64_t m = a->shape()[0], k = a->shape()[1], n = b->shape()[1];
  const DType wide = f.dtype == kI8 ? kI32 : kF32;
  const auto spread = [&](Node x, std::vector<int64_t> shape) {
    const int64_t full[] = {m, k, n};
    if (x->dtype != wide) x = make(Op::Cast, wide, {x});
    return make(Op::Expand, wide, {make(Op::Reshape, wide, {x}, Ints(shape))}, Ints(full));
  };
  Node mul = make(Op::Mul, wide, {spread(a, {m, k, 1}), spread(b, {1, k, n})});
  Node sum = make(Op::ReduceAxis, wide, {mul}, ReduceArg{Op::Add, 2});
  const int64_t out[] = {m, n};
  Node c = make(Op::Reshape, wide, {sum}, Ints(out));
  if (!f.float_result && f.dtype.is_half()) c = make(Op::Cast, f.dtype, {c});
  return make(Op::Sink, kVoid, {make(Op::Store, kVoid, {param(0, {m, n}, c->dtype), c})});
}

}  // namespace tiny::test
