#include "test/fuzz/random_graph.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "tiny/autograd/windows.h"
#include "tiny/ir/build.h"
#include "tiny/tensor/detail.h"

namespace tiny::fuzz {

namespace {

void need(bool ok) { check(ok, "the sizes of this program do not fit"); }

uint64_t mix(uint64_t x) {  // splitmix64
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

double value_at(DType t, Fill fill, int64_t top, uint64_t bits) {
  const auto below = [&](int64_t n) {
    return static_cast<int64_t>(bits % static_cast<uint64_t>(n));
  };
  if (t.is_bool()) return static_cast<double>(bits & 1);
  switch (fill) {
    case Fill::Small: return static_cast<double>(below(9) - (t.is_unsigned() ? 0 : 4));
    case Fill::Real: return static_cast<double>(below(400001) - 200000) * 1e-5;
    case Fill::Bits: return static_cast<double>(static_cast<int32_t>(bits));
    default: return static_cast<double>(below(top + 2) - 1);
  }
}

// --- From steps to nodes -------------------------------------------------------------------------

struct Pair {
  Node x, y;
};

Node broadcast_to(Node x, Ints shape) {
  need(same(broadcast("program", x->shape(), shape), shape));
  return detail::broadcast_to(x, shape);
}

Pair broadcasted(Node x, Node y) {
  const Shape shape = broadcast("binary", x->shape(), y->shape());
  return {broadcast_to(x, shape), broadcast_to(y, shape)};
}

Node number(Node like, int64_t v) { return build::full(like->shape(), like->dtype, v); }

// A divisor is never zero, a shift stays below the width.
Node harmless(Op op, Node y) {
  const auto bounded = [&](int64_t most) {
    return build::binary(Op::Add, build::binary(Op::And, y, number(y, most)), number(y, 1));
  };
  switch (op) {
    case Op::Div: return build::binary(Op::Add, build::binary(Op::Mul, y, y), number(y, 1));
    case Op::FloorDiv:
    case Op::FloorMod:
    case Op::TruncDiv:
    case Op::TruncMod: return bounded(7);
    case Op::Shl:
    case Op::Shr: return bounded(3);
    default: return y;
  }
}

Node binary(const Step& s, Node x, Node y) {
  auto [a, b] = broadcasted(x, y);
  const DType t = a->dtype;
  const bool of_integers = s.op >= Op::FloorDiv && s.op <= Op::TruncMod;
  const bool of_bits = s.op >= Op::Shl && s.op <= Op::Xor;
  need(t == b->dtype && (s.op != Op::Div || t.is_float()) && (!of_integers || t.is_int()));
  need(!of_bits || !t.is_float());
  need(t != kBool || s.op == Op::Max || (s.op >= Op::And && s.op <= Op::Ne));
  return build::binary(s.op, a, harmless(s.op, b));
}

Node tamed(Op op, Node x) {
  Node up = build::binary(Op::Add, build::binary(Op::Mul, x, x), number(x, 1));
  if (op == Op::Exp2) return build::unary(op, build::binary(Op::Div, x, up));
  return build::unary(op, up);
}

Node reshaped(const Step& s, Node x) {
  Shape shape = to_shape(x->shape());
  if (s.kind == Kind::Flatten) return build::reshape(x, Shape{numel(shape)});
  const int64_t axis = s.arg[0];
  const auto at = shape.begin() + axis;
  const auto rank = static_cast<int64_t>(shape.size());
  if (s.kind == Kind::Unsqueeze) {
    need(axis <= rank);
    shape.insert(at, 1);
  } else if (s.kind == Kind::Merge) {
    need(axis + 1 < rank);
    *at *= at[1];
    shape.erase(at + 1);
  } else {
    need(axis < rank && *at % s.arg[1] == 0);
    *at /= s.arg[1];
    shape.insert(at + 1, s.arg[1]);
  }
  return build::reshape(x, shape);
}

Node moved(const Step& s, Node x) {
  const size_t rank = x->rank;
  Shape arg = s.arg;
  switch (s.kind) {
    case Kind::Permute: need(arg.size() == rank); return build::permute(x, arg);
    case Kind::Flip: need(arg.size() == rank); return build::flip(x, arg);
    case Kind::Stride: need(arg.size() == rank); return build::stride(x, arg);
    case Kind::Pad: need(arg.size() == 2 * rank); return build::pad(x, arg);
    case Kind::Shrink:
      need(arg.size() == 2 * rank);
      for (size_t i = 0; i < rank; ++i) {
        arg[2 * i + 1] = x->shape()[i] - arg[2 * i + 1];
        need(arg[2 * i] < arg[2 * i + 1]);
      }
      return build::shrink(x, arg);
    default: break;
  }
  Shape shape = to_shape(x->shape());
  need(static_cast<size_t>(arg[0]) < rank && shape[arg[0]] == 1);
  shape[arg[0]] = arg[1];
  return build::expand(x, shape);
}

Node windows(const Step& s, Node x) {
  const WindowArg w{s.arg[1], s.arg[2], s.arg[3]};
  need(s.arg[0] < x->rank && (w.size - 1) * w.dilation < x->shape()[s.arg[0]]);
  return build::windows(x, static_cast<int>(s.arg[0]), w);
}

Node normalized(const Step& s, Node x) {
  const auto mask = static_cast<uint32_t>(s.arg[0]);
  need(numel(x->shape()) > 0 && x->dtype.is_float() && mask >> x->rank == 0);
  const auto mean = [&](Node v) {
    Node sum = build::reduce(Op::Add, v, mask);
    const double share =
        static_cast<double>(numel(sum->shape())) / static_cast<double>(numel(v->shape()));
    return build::binary(Op::Mul, sum, build::full(sum->shape(), v->dtype, share));
  };
  Node centered = build::binary(Op::Sub, x, build::expand(mean(x), x->shape()));
  Node variance = mean(build::binary(Op::Mul, centered, centered));
  Node scale = build::unary(
      Op::Recip, build::unary(Op::Sqrt, build::binary(Op::Add, variance, number(variance, 1))));
  return build::binary(Op::Mul, centered, build::expand(scale, x->shape()));
}

Node indexed(const Step& s, const std::vector<Node>& in) {
  const bool gather = s.kind == Kind::Gather;
  std::vector<Node> indices(in.begin() + (gather ? 1 : 2), in.end());
  const Node shaped = gather ? (indices.empty() ? in[0] : indices[0]) : in[1];
  need(indices.size() == in[0]->rank && in[0]->rank > 0);
  for (Node& i : indices) {
    need(i->dtype == kI32 || i->dtype == kI64);
    i = broadcast_to(i, shaped->shape());
  }
  if (gather) return build::gather(in[0], indices);
  need(in[0]->dtype == in[1]->dtype);
  return build::scatter(in[0], in[1], indices, ScatterArg{s.op, false});
}

}  // namespace

Node make_step(const Step& s, const std::vector<Node>& in, const std::string& device) {
  Shape shape = s.arg;
  const auto dims = [&] {
    shape.pop_back();
    return Ints(shape);
  };
  const auto axis = [&] {
    need(s.arg[0] < in[0]->rank);
    return s.arg[0];
  };
  switch (s.kind) {
    case Kind::Leaf: return leaf(s.dtype, s.arg, s.fill, s.top, s.seed, device).node();
    case Kind::Iota: return build::iota(dims(), static_cast<int>(s.arg.back()), s.dtype);
    case Kind::Full: return build::full(dims(), s.dtype, s.arg.back());
    case Kind::Unary:
      need(s.op == Op::Neg ? in[0]->dtype != kBool : in[0]->dtype.is_float());
      return build::unary(s.op, in[0]);
    case Kind::Tamed: need(in[0]->dtype.is_float()); return tamed(s.op, in[0]);
    case Kind::Binary: return binary(s, in[0], in[1]);
    case Kind::Where: {
      auto [c, x] = broadcasted(in[0], in[1]);
      auto [x2, y] = broadcasted(x, in[2]);
      need(in[1]->dtype == in[2]->dtype && c->dtype == kBool);
      return build::where(broadcast_to(c, x2->shape()), x2, y);
    }
    case Kind::Cast: return build::cast(in[0], s.dtype);
    case Kind::Flatten:
    case Kind::Merge:
    case Kind::Split:
    case Kind::Unsqueeze: return reshaped(s, in[0]);
    case Kind::Permute:
    case Kind::Expand:
    case Kind::Pad:
    case Kind::Shrink:
    case Kind::Flip:
    case Kind::Stride: return moved(s, in[0]);
    case Kind::Reduce:
      need(s.arg[0] >> in[0]->rank == 0 && (in[0]->dtype != kBool || s.op == Op::Max));
      return build::reduce(s.op, in[0], static_cast<uint32_t>(s.arg[0]));
    case Kind::Softmax: return Tensor(in[0]).softmax(axis()).node();
    case Kind::CumSum: return Tensor(in[0]).cumsum(axis()).to(in[0]->dtype).node();
    case Kind::Normalize: return normalized(s, in[0]);
    case Kind::Matmul: return Tensor(in[0]).matmul(Tensor(in[1])).node();
    case Kind::Windows: return windows(s, in[0]);
    case Kind::Gather:
    case Kind::Scatter: return indexed(s, in);
    case Kind::Assign: {
      need(same(in[0]->shape(), in[1]->shape()) && in[0]->dtype == in[1]->dtype);
      return build::assign(in[0], in[1]);
    }
    case Kind::Contiguous: return build::contiguous(in[0]);
  }
  return nullptr;
}

namespace {

Tensor weighted_sum(const std::vector<Tensor>& outputs, const std::string& device) {
  Tensor loss;
  uint64_t seed = 77;
  for (const Tensor& t : outputs) {
    if (t.dtype() != kF32 || t.numel() == 0) continue;
    const Shape shape = to_shape(t.shape());
    const Tensor part = (t * leaf(kF32, shape, Fill::Small, 0, ++seed, device)).sum();
    loss = loss.defined() ? loss + part : part;
  }
  return loss;
}

}  // namespace

Tensor leaf(DType dtype, const Shape& shape, Fill fill, int64_t top, uint64_t seed,
            const std::string& device) {
  std::vector<double> values(static_cast<size_t>(numel(shape)));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = value_at(dtype, fill, top, mix(seed * 1000003 + i));
  const auto as = [&](auto type) {
    using T = decltype(type);
    std::vector<T> typed(values.size());
    for (size_t i = 0; i < typed.size(); ++i)
      typed[i] =
          dtype.is_unsigned() ? static_cast<T>(std::abs(values[i])) : static_cast<T>(values[i]);
    const int group = device_id(device);
    const auto members = device_members(group);
    if (members.empty()) return Tensor::from(typed, shape, device);
    // On several devices: cut along one of the axes, or whole on each.
    const auto axis = static_cast<int>(seed % (shape.size() + 1)) - 1;
    const Tensor whole = Tensor::from(typed, shape, device_name(members[0]));
    return Tensor(build::shard(whole.node(), group, axis));
  };
  switch (dtype.scalar) {
    case Scalar::Bool: return as(bool{});
    case Scalar::I8: return as(int8_t{});
    case Scalar::U8: return as(uint8_t{});
    case Scalar::I32: return as(int32_t{});
    case Scalar::U32: return as(uint32_t{});
    case Scalar::I64: return as(int64_t{});
    case Scalar::F64: return as(double{});
    default: return as(float{});
  }
}

Built build(const Program& program, const std::string& device) {
  Built out;
  std::vector<Tensor> values;
  for (const Step& s : program.steps) {
    std::vector<Node> in;
    for (int i : s.in) in.push_back(values[static_cast<size_t>(i)].node());
    if (program.gradient && s.kind == Kind::Leaf && s.dtype == kF32) {
      Tensor t = leaf(s.dtype, s.arg, s.fill, s.top, s.seed, device);
      out.leaves.push_back(t.requires_grad_());
      values.push_back(t);
    } else {
      values.push_back(Tensor(make_step(s, in, device)));
    }
  }
  for (int i : program.outputs) out.outputs.push_back(values[static_cast<size_t>(i)]);
  if (program.gradient) out.loss = weighted_sum(out.outputs, device);
  return out;
}

}  // namespace tiny::fuzz
