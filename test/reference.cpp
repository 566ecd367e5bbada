#include "test/reference.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "runtime/device/buffer.h"
#include "tiny/base/error.h"

namespace tiny {
namespace {

// --- Element types -------------------------------------------------------------------------------

// What a stored type is computed in.
template <class T> struct Compute { using type = T; };
template <> struct Compute<Half> { using type = float; };
template <> struct Compute<BFloat16> { using type = float; };
template <> struct Compute<Float8E4M3> { using type = float; };
template <> struct Compute<Float8E5M2> { using type = float; };
template <class T> using ComputeOf = typename Compute<T>::type;

// What sums over many elements are computed in.
template <class T> using Accumulator = std::conditional_t<std::is_integral_v<T>, T, double>;

template <class T> constexpr bool kFloat = std::is_floating_point_v<ComputeOf<T>>;

// Calls f(T{}) with the C++ type of a dtype.
template <class F> auto dispatch(DType t, F&& f) {
  switch (t.scalar) {
    case Scalar::Bool: return f(bool{});
    case Scalar::I8: return f(int8_t{});
    case Scalar::I16: return f(int16_t{});
    case Scalar::I32: return f(int32_t{});
    case Scalar::I64: return f(int64_t{});
    case Scalar::U8: return f(uint8_t{});
    case Scalar::U16: return f(uint16_t{});
    case Scalar::U32: return f(uint32_t{});
    case Scalar::U64: return f(uint64_t{});
    case Scalar::F8E4M3: return f(Float8E4M3{});
    case Scalar::F8E5M2: return f(Float8E5M2{});
    case Scalar::F16: return f(Half{});
    case Scalar::BF16: return f(BFloat16{});
    case Scalar::F32: return f(float{});
    case Scalar::F64: return f(double{});
    default: throw Bug(cat("reference: a tensor of dtype ", t));
  }
}

// A float to an integer: towards zero, out of range to its nearest end.
template <class To> To truncated(double x) {
  using Limits = std::numeric_limits<To>;
  if (std::isnan(x)) return 0;
  if (x >= static_cast<double>(Limits::max())) return Limits::max();  // rounded up for 64 bits
  if (x <= static_cast<double>(Limits::min())) return Limits::min();
  return static_cast<To>(x);
}

template <class To, class From> To convert(From x) {
  if constexpr (!std::is_same_v<From, ComputeOf<From>>)
    return convert<To>(static_cast<float>(x));
  else if constexpr (!std::is_same_v<To, ComputeOf<To>>)
    return To(static_cast<float>(x));
  else if constexpr (std::is_same_v<To, bool>)
    return x != 0;
  else if constexpr (std::is_integral_v<To> && std::is_floating_point_v<From>)
    return truncated<To>(x);
  else
    return static_cast<To>(x);
}

// --- Scalar operations ---------------------------------------------------------------------------

template <class C> C unary_float(Op op, C x) {
  switch (op) {
    case Op::Neg: return -x;
    case Op::Recip: return C(1) / x;
    case Op::Sqrt: return std::sqrt(x);
    case Op::Exp2: return std::exp2(x);
    case Op::Exp: return std::exp(x);
    case Op::Log2: return std::log2(x);
    case Op::Sin: return std::sin(x);
    case Op::Floor: return std::floor(x);
    case Op::Trunc: return std::trunc(x);
    default: throw Bug(cat("reference: ", op, " of a float"));
  }
}

template <class C> C unary_int(Op op, C x) {
  switch (op) {
    case Op::Neg: return static_cast<C>(-static_cast<uint64_t>(x));
    case Op::Floor:
    case Op::Trunc:
    case Op::Bound: return x;
    default: throw Bug(cat("reference: ", op, " of an integer"));
  }
}

// The remainder with the sign of y.
template <class C> C float_mod(C x, C y) {
  const C r = std::fmod(x, y);
  return r != 0 && (r < 0) != (y < 0) ? r + y : r;
}

template <class C> C binary_float(Op op, C x, C y) {
  const bool nan = std::isnan(x) || std::isnan(y);
  switch (op) {
    case Op::Add: return x + y;
    case Op::Sub: return x - y;
    case Op::Mul: return x * y;
    case Op::Div: return x / y;
    case Op::FloorDiv: return std::floor(x / y);
    case Op::FloorMod: return float_mod(x, y);
    case Op::TruncDiv: return std::trunc(x / y);
    case Op::TruncMod: return std::fmod(x, y);
    case Op::Max: return nan ? std::numeric_limits<C>::quiet_NaN() : x > y ? x : y;
    case Op::Min: return nan ? std::numeric_limits<C>::quiet_NaN() : x < y ? x : y;
    default: throw Bug(cat("reference: ", op, " of floats"));
  }
}

// Quotient or remainder; a division by zero gives 0.
template <class C> C divide(Op op, C x, C y) {
  if (y == 0) return 0;
  const bool by_minus_one = std::is_signed_v<C> && y == static_cast<C>(-1);
  const bool remainder = op == Op::FloorMod || op == Op::TruncMod;
  // The quotient of the least integer and -1 wraps around; the machine's instruction would trap.
  if (by_minus_one) return remainder ? C(0) : static_cast<C>(-static_cast<uint64_t>(x));
  const C q = x / y, r = x % y;
  const bool below = r != 0 && (r < 0) != (y < 0);
  switch (op) {
    case Op::FloorDiv: return below ? q - 1 : q;
    case Op::FloorMod: return below ? r + y : r;
    case Op::TruncDiv: return q;
    default: return r;
  }
}

template <class C> C shift(Op op, C x, C y) {
  const bool outside = y < 0 || static_cast<uint64_t>(y) >= sizeof(C) * 8;
  if (op == Op::Shl) return outside ? C(0) : static_cast<C>(static_cast<uint64_t>(x) << y);
  if (outside) return x < 0 ? static_cast<C>(-1) : C(0);
  return static_cast<C>(x >> y);
}

template <class C> C binary_int(Op op, C x, C y) {
  const uint64_t a = static_cast<uint64_t>(x), b = static_cast<uint64_t>(y);
  switch (op) {
    case Op::Add: return static_cast<C>(a + b);
    case Op::Sub: return static_cast<C>(a - b);
    case Op::Mul: return static_cast<C>(a * b);
    case Op::FloorDiv:
    case Op::FloorMod:
    case Op::TruncDiv:
    case Op::TruncMod: return divide(op, x, y);
    case Op::Max: return x > y ? x : y;
    case Op::Min: return x < y ? x : y;
    case Op::Shl:
    case Op::Shr: return shift(op, x, y);
    case Op::And: return static_cast<C>(a & b);
    case Op::Or: return static_cast<C>(a | b);
    case Op::Xor: return static_cast<C>(a ^ b);
    default: throw Bug(cat("reference: ", op, " of integers"));
  }
}

bool binary_bool(Op op, bool x, bool y) {
  switch (op) {
    case Op::Add:
    case Op::Max:
    case Op::Or: return x || y;
    case Op::Mul:
    case Op::Min:
    case Op::And: return x && y;
    case Op::Sub:
    case Op::Xor: return x != y;
    default: throw Bug(cat("reference: ", op, " of bools"));
  }
}

template <class C> C apply_binary(Op op, C x, C y) {
  if constexpr (std::is_same_v<C, bool>)
    return binary_bool(op, x, y);
  else if constexpr (std::is_floating_point_v<C>)
    return binary_float(op, x, y);
  else
    return binary_int(op, x, y);
}

template <class C> bool compare(Op op, C x, C y) {
  switch (op) {
    case Op::Lt: return x < y;
    case Op::Le: return x <= y;
    case Op::Eq: return x == y;
    default: return x != y;
  }
}

// --- Element-wise nodes --------------------------------------------------------------------------

using Values = std::vector<const HostTensor*>;  // of a node's sources

HostTensor cast_to(const HostTensor& x, DType to) {
  HostTensor out(to, x.shape);
  dispatch(x.dtype, [&](auto from) {
    using From = decltype(from);
    dispatch(to, [&](auto result) {
      using To = decltype(result);
      for (int64_t i = 0, n = out.size(); i < n; ++i)
        out.as<To>()[i] = convert<To>(x.as<From>()[i]);
    });
  });
  return out;
}

HostTensor unary(Node n, const HostTensor& x) {
  if (n->op == Op::Cast) return cast_to(x, n->dtype);
  HostTensor out(n->dtype, x.shape);
  if (n->op == Op::Bitcast) {
    out.data = x.data;
    return out;
  }
  dispatch(n->dtype, [&](auto type) {
    using T = decltype(type);
    using C = ComputeOf<T>;
    for (int64_t i = 0, count = out.size(); i < count; ++i) {
      const C value = convert<C>(x.as<T>()[i]);
      if constexpr (kFloat<T>)
        out.as<T>()[i] = convert<T>(unary_float(n->op, value));
      else
        out.as<T>()[i] = convert<T>(unary_int(n->op, value));
    }
  });
  return out;
}

HostTensor binary(Node n, const HostTensor& x, const HostTensor& y) {
  HostTensor out(n->dtype, x.shape);
  const bool comparison = is_comparison(n->op);
  dispatch(x.dtype, [&](auto type) {
    using T = decltype(type);
    using C = ComputeOf<T>;
    for (int64_t i = 0, count = out.size(); i < count; ++i) {
      const C a = convert<C>(x.as<T>()[i]), b = convert<C>(y.as<T>()[i]);
      if (comparison)
        out.as<bool>()[i] = compare(n->op, a, b);
      else
        out.as<T>()[i] = convert<T>(apply_binary(n->op, a, b));
    }
  });
  return out;
}

HostTensor byte_dot(Node n, const Values& in) {
  HostTensor out(n->dtype, n->shape());
  for (int64_t i = 0, count = out.size(); i < count; ++i) {
    const auto* x = reinterpret_cast<const uint8_t*>(in[0]->as<int32_t>() + i);
    const auto* y = reinterpret_cast<const int8_t*>(in[1]->as<int32_t>() + i);
    int64_t sum = in[2]->as<int32_t>()[i];
    for (int byte = 0; byte < 4; ++byte) sum += x[byte] * y[byte];
    out.as<int32_t>()[i] = static_cast<int32_t>(sum);
  }
  return out;
}

HostTensor where(Node n, const Values& in) {
  HostTensor out(n->dtype, n->shape());
  const size_t bytes = n->dtype.size();
  for (int64_t i = 0, count = out.size(); i < count; ++i) {
    const HostTensor& from = *in[in[0]->as<bool>()[i] ? 1 : 2];
    std::memcpy(&out.data[i * bytes], &from.data[i * bytes], bytes);
  }
  return out;
}

// --- Leaves --------------------------------------------------------------------------------------

HostTensor leaf(Node n, const BufferReader& reader) {
  HostTensor out(n->dtype, n->shape());
  if (n->op == Op::Buffer) {
    reader(n, out.data.data());
    return out;
  }
  dispatch(n->dtype, [&](auto type) {
    using T = decltype(type);
    if (n->op == Op::Iota)
      for (int64_t i = 0, count = out.size(); i < count; ++i) out.as<T>()[i] = convert<T>(i);
    else if (n->op != Op::Const)
      throw Bug(cat("reference: ", n->op, " in a tensor graph"));
    else if (std::holds_alternative<double>(n->payload))
      out.as<T>()[0] = convert<T>(n->float_value());
    else
      out.as<T>()[0] = convert<T>(n->int_value());
  });
  return out;
}

// --- Movement ------------------------------------------------------------------------------------

// Calls f(i, offset) for the elements i of `shape` in row-major order, where element (a, b, ...)
// has the offset base + a * strides[0] + b * strides[1] + ...
template <class F> void walk(const Shape& shape, int64_t base, const Shape& strides, F&& f) {
  Shape at(shape.size(), 0);
  int64_t offset = base;
  for (int64_t i = 0, count = numel(shape); i < count; ++i) {
    f(i, offset);
    for (size_t d = shape.size(); d-- > 0;) {
      offset += strides[d];
      if (++at[d] < shape[d]) break;
      offset -= at[d] * strides[d];
      at[d] = 0;
    }
  }
}

HostTensor pad(Node n, const HostTensor& x) {
  HostTensor out(n->dtype, n->shape());
  const Shape strides = strides_of(out.shape);
  const size_t bytes = n->dtype.size();
  int64_t base = 0;
  for (size_t d = 0; d < strides.size(); ++d) base += n->ints()[2 * d] * strides[d];
  walk(x.shape, base, strides, [&](int64_t i, int64_t offset) {
    std::memcpy(&out.data[offset * bytes], &x.data[i * bytes], bytes);
  });
  return out;
}

HostTensor affine(Node n, const HostTensor& x) {
  HostTensor out(n->dtype, n->shape());
  const Shape from = strides_of(x.shape);
  Shape strides(n->rank, 0);
  int64_t base = 0;
  const int64_t* arg = n->ints().data() + 1 + n->rank;
  for (int64_t stride : from) {
    base += *arg++ * stride;
    for (int64_t& s : strides) s += *arg++ * stride;
  }
  const size_t bytes = n->dtype.size();
  walk(out.shape, base, strides, [&](int64_t i, int64_t offset) {
    std::memcpy(&out.data[i * bytes], &x.data[offset * bytes], bytes);
  });
  return out;
}

HostTensor movement(Node n, const HostTensor& x) {
  if (n->op == Op::Pad) return pad(n, x);
  if (n->op == Op::Affine) return affine(n, x);
  HostTensor out(n->dtype, n->shape());
  if (n->op == Op::Reshape) {
    out.data = x.data;
    return out;
  }
  const Shape from = strides_of(x.shape);
  const Ints arg = n->ints();
  Shape strides = from;
  int64_t base = 0;
  for (size_t d = 0; d < strides.size(); ++d) {
    switch (n->op) {
      case Op::Permute: strides[d] = from[arg[d]]; break;
      case Op::Expand: strides[d] = x.shape[d] == out.shape[d] ? from[d] : 0; break;
      case Op::Shrink: base += arg[2 * d] * from[d]; break;
      case Op::Stride: strides[d] = from[d] * arg[d]; break;
      default:  // Flip
        if (!arg[d]) break;
        base += (x.shape[d] - 1) * from[d];
        strides[d] = -from[d];
    }
  }
  const size_t bytes = n->dtype.size();
  walk(out.shape, base, strides, [&](int64_t i, int64_t offset) {
    std::memcpy(&out.data[i * bytes], &x.data[offset * bytes], bytes);
  });
  return out;
}

// --- Reductions, gather, scatter -----------------------------------------------------------------

// The value that changes nothing: what a reduction of no elements gives.
template <class A> A identity(Op op) {
  using Limits = std::numeric_limits<A>;
  switch (op) {
    case Op::Add: return A(0);
    case Op::Mul: return A(1);
    case Op::Max: return Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
    case Op::Min: return Limits::has_infinity ? Limits::infinity() : Limits::max();
    default: throw Bug(cat("reference: reduction by ", op));
  }
}

HostTensor reduce(Node n, const HostTensor& x) {
  const ReduceArg arg = n->arg<ReduceArg>();
  HostTensor out(n->dtype, n->shape());
  Shape strides = strides_of(out.shape);
  for (size_t d = 0; d < strides.size(); ++d)
    if (arg.axes >> d & 1) strides[d] = 0;
  dispatch(n->dtype, [&](auto type) {
    using T = decltype(type);
    using A = Accumulator<T>;
    // Not a vector: that of bool has no elements of type bool.
    const int64_t count = out.size();
    const auto sums = std::make_unique<A[]>(count);
    std::fill(sums.get(), sums.get() + count, identity<A>(arg.op));
    walk(x.shape, 0, strides, [&](int64_t i, int64_t to) {
      sums[to] = apply_binary<A>(arg.op, sums[to], convert<A>(x.as<T>()[i]));
    });
    for (int64_t i = 0; i < count; ++i) out.as<T>()[i] = convert<T>(sums[i]);
  });
  return out;
}

// For each element of the indices, the offset that they name in a tensor of this shape, or -1
// where one of them lies outside. `in[first]` is the index of the first axis.
std::vector<int64_t> offsets(const Values& in, size_t first, const Shape& shape, int64_t count) {
  std::vector<int64_t> out(count, 0);
  const Shape strides = strides_of(shape);
  for (size_t d = 0; d < shape.size(); ++d) {
    const std::vector<int64_t> index = in[first + d]->integers();
    for (int64_t i = 0; i < count; ++i) {
      const bool inside = out[i] >= 0 && index[i] >= 0 && index[i] < shape[d];
      out[i] = inside ? out[i] + index[i] * strides[d] : -1;
    }
  }
  return out;
}

HostTensor gather(Node n, const Values& in) {
  HostTensor out(n->dtype, n->shape());
  const size_t bytes = n->dtype.size();
  const std::vector<int64_t> from = offsets(in, 1, in[0]->shape, out.size());
  for (size_t i = 0; i < from.size(); ++i)
    if (from[i] >= 0) std::memcpy(&out.data[i * bytes], &in[0]->data[from[i] * bytes], bytes);
  return out;
}

HostTensor scatter(Node n, const Values& in) {
  const Op how = n->arg<ScatterArg>().op;
  const HostTensor &base = *in[0], &values = *in[1];
  HostTensor out(n->dtype, base.shape);
  const std::vector<int64_t> to = offsets(in, 2, base.shape, values.size());
  dispatch(n->dtype, [&](auto type) {
    using T = decltype(type);
    using A = Accumulator<T>;
    const int64_t count = base.size();
    const auto sums = std::make_unique<A[]>(count);
    for (int64_t i = 0; i < count; ++i) sums[i] = convert<A>(base.as<T>()[i]);
    for (size_t i = 0; i < to.size(); ++i) {
      if (to[i] < 0) continue;
      const A value = convert<A>(values.as<T>()[i]);
      A& old = sums[to[i]];
      old = how == Op::Assign ? value : apply_binary<A>(how, old, value);
    }
    for (int64_t i = 0; i < count; ++i) out.as<T>()[i] = convert<T>(sums[i]);
  });
  return out;
}

// The pieces one after the other; of copies the first.
HostTensor joined(Node n, const Values& in) {
  const int64_t axis = n->ints()[1];
  if (axis < 0) return *in[0];
  HostTensor out(n->dtype, n->shape());
  const auto inner = static_cast<size_t>(numel(n->shape().subspan(static_cast<size_t>(axis) + 1))) *
                     static_cast<size_t>(n->dtype.size());
  const auto rows = static_cast<size_t>(numel(n->shape().first(static_cast<size_t>(axis))));
  std::byte* to = out.data.data();
  for (size_t row = 0; row < rows; ++row)
    for (const HostTensor* piece : in) {
      const size_t bytes = static_cast<size_t>(piece->shape[static_cast<size_t>(axis)]) * inner;
      std::copy_n(piece->data.data() + row * bytes, bytes, to);
      to += bytes;
    }
  return out;
}

HostTensor tensor_op(Node n, const Values& in) {
  switch (n->op) {
    case Op::Multi: return joined(n, in);
    case Op::ReduceAxis: return reduce(n, *in[0]);
    case Op::Gather: return gather(n, in);
    case Op::Scatter: return scatter(n, in);
    case Op::Assign: return *in[1];
    case Op::Contiguous:
    case Op::Detach:
    case Op::RoundGradient:
    case Op::After:
    case Op::Checkpoint:
    case Op::WithDerivative:
    case Op::CustomGradient:
    case Op::Leaf:
    case Op::Copy:
    case Op::Shard: return *in[0];
    default: throw Bug(cat("reference: ", n->op, " in a tensor graph"));
  }
}

HostTensor compute(Node n, const Values& in, const BufferReader& reader) {
  switch (info(n->op).cls) {
    case OpClass::Leaf: return leaf(n, reader);
    case OpClass::Unary: return unary(n, *in[0]);
    case OpClass::Binary: return binary(n, *in[0], *in[1]);
    case OpClass::Ternary: return n->op == Op::ByteDot ? byte_dot(n, in) : where(n, in);
    case OpClass::Movement:
      return n->op == Op::Limit || n->op == Op::Whole ? *in[0] : movement(n, *in[0]);
    case OpClass::Tensor: return tensor_op(n, in);
    default: throw Bug(cat("reference: ", n->op, " in a tensor graph"));
  }
}

template <class T> std::vector<T> converted(const HostTensor& x) {
  std::vector<T> out(x.size());
  dispatch(x.dtype, [&](auto type) {
    using From = decltype(type);
    for (size_t i = 0; i < out.size(); ++i) out[i] = convert<T>(x.as<From>()[i]);
  });
  return out;
}

}  // namespace

HostTensor::HostTensor(DType type, Ints dims)
    : dtype(type), shape(to_shape(dims)), data(numel(dims) * type.size()) {}

std::vector<double> HostTensor::numbers() const { return converted<double>(*this); }

std::vector<int64_t> HostTensor::integers() const { return converted<int64_t>(*this); }

void read_buffer(Node buffer, void* out) { buffer->arg<BufferArg>().buffer->download(out); }

std::vector<HostTensor> evaluate(std::span<const Node> roots, const BufferReader& reader) {
  const std::vector<Node> order = topological(roots);
  // How many users of a node are still to come; its value is dropped after the last one.
  NodeMap<int64_t> users(order.size());
  for (Node n : order)
    for (Node s : n->srcs()) ++users[s];
  for (Node r : roots) ++users[r];
  NodeMap<HostTensor> values(order.size());
  for (Node n : order) {
    Values in;
    for (Node s : n->srcs()) in.push_back(values.find(s));
    HostTensor result = compute(n, in, reader);
    expect(same(result.shape, n->shape()) && result.dtype == n->dtype, "reference: ", n->op,
           " gives ", to_text(result.shape), " ", result.dtype, ", the node says ",
           to_text(n->shape()), " ", n->dtype);
    for (Node s : n->srcs())
      if (--users[s] == 0) values[s] = HostTensor();
    values[n] = std::move(result);
  }
  std::vector<HostTensor> out;
  for (Node r : roots) out.push_back(values[r]);
  return out;
}

HostTensor evaluate(Node root, const BufferReader& reader) {
  return std::move(evaluate(std::span(&root, 1), reader)[0]);
}

}  // namespace tiny
