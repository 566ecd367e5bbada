#include "tiny/onnx/call/host_values.h"

#include <cstring>

#include "tiny/ir/build.h"
#include "tiny/rewrite/algebra.h"

namespace tiny::onnx {

namespace {

// Elements of one array. Shapes have a few; tables of positions and masks may have more.
constexpr int64_t kMaxElements = 1 << 16;
constexpr size_t kMaxNodes = 4096;

using Sources = std::vector<const HostArray*>;

void copy_element(HostArray& to, size_t i, const HostArray& from, size_t j) {
  if (to.dtype.is_float())
    to.reals[i] = from.reals[j];
  else
    to.integers[i] = from.integers[j];
}

Node element(const HostArray& x, size_t i) {
  return x.dtype.is_float() ? constant(x.dtype, x.reals[i]) : constant(x.dtype, x.integers[i]);
}

void set_element(HostArray& x, size_t i, Node value) {
  if (x.dtype.is_float())
    x.reals[i] = value->float_value();
  else
    x.integers[i] = value->int_value();
}

// --- Element-wise nodes, by the folding of constants ---------------------------------------------

bool evaluate_elementwise(Node n, const Sources& in, HostArray& out) {
  if (n->op == Op::Bitcast || n->op == Op::MulAdd) return false;
  if (n->op == Op::Bound) {
    out = *in[0];
    return true;
  }
  Arena arena;
  const ArenaScope scope(arena);
  std::vector<Node> operands(in.size());
  for (size_t i = 0; i < out.size(); ++i) {
    for (size_t s = 0; s < in.size(); ++s) operands[s] = element(*in[s], i);
    const Node value = fold_constants(make(n->op, n->dtype, operands));
    if (value == nullptr) return false;
    set_element(out, i, value);
  }
  return true;
}

// --- Movement ------------------------------------------------------------------------------------

// Calls f(i, offset) for the elements i of `shape`, where element (a, b, ...) has the offset base +
// a * strides[0] + b * strides[1] + ...
template <class F> void walk(const Shape& shape, int64_t base, const Shape& strides, F&& f) {
  Shape at(shape.size(), 0);
  int64_t offset = base;
  for (int64_t i = 0, count = numel(shape); i < count; ++i) {
    f(static_cast<size_t>(i), static_cast<size_t>(offset));
    for (size_t d = shape.size(); d-- > 0;) {
      offset += strides[d];
      if (++at[d] < shape[d]) break;
      offset -= at[d] * strides[d];
      at[d] = 0;
    }
  }
}

void evaluate_pad(Node n, const HostArray& x, HostArray& out) {
  const Shape strides = strides_of(out.shape);
  int64_t base = 0;
  for (size_t d = 0; d < strides.size(); ++d) base += n->ints()[2 * d] * strides[d];
  walk(x.shape, base, strides, [&](size_t i, size_t offset) { copy_element(out, offset, x, i); });
}

// The offset in the source of a view's first element, and what a step along each axis adds.
struct SourceOffsets {
  int64_t base = 0;
  Shape strides;
};

SourceOffsets affine_offsets(Node n, const Shape& from) {
  SourceOffsets out{0, Shape(n->rank, 0)};
  const int64_t* arg = n->ints().data() + 1 + n->rank;
  for (const int64_t stride : from) {
    out.base += *arg++ * stride;
    for (int64_t& s : out.strides) s += *arg++ * stride;
  }
  return out;
}

SourceOffsets view_offsets(Node n, const HostArray& x, const Shape& result) {
  const Shape from = strides_of(x.shape);
  if (n->op == Op::Affine) return affine_offsets(n, from);
  const Ints arg = n->ints();
  SourceOffsets out{0, from};
  for (size_t d = 0; d < from.size(); ++d) {
    switch (n->op) {
      case Op::Permute: out.strides[d] = from[arg[d]]; break;
      case Op::Expand: out.strides[d] = x.shape[d] == result[d] ? from[d] : 0; break;
      case Op::Shrink: out.base += arg[2 * d] * from[d]; break;
      case Op::Stride: out.strides[d] = from[d] * arg[d]; break;
      default:  // Flip
        if (arg[d] == 0) break;
        out.base += (x.shape[d] - 1) * from[d];
        out.strides[d] = -from[d];
    }
  }
  return out;
}

bool evaluate_movement(Node n, const HostArray& x, HostArray& out) {
  if (n->op == Op::Limit || n->op == Op::Whole) return false;
  if (n->op == Op::Reshape) {
    out.reals = x.reals;
    out.integers = x.integers;
  } else if (n->op == Op::Pad) {
    evaluate_pad(n, x, out);
  } else {
    const SourceOffsets from = view_offsets(n, x, out.shape);
    walk(out.shape, from.base, from.strides,
         [&](size_t i, size_t offset) { copy_element(out, i, x, offset); });
  }
  return true;
}

// --- Reductions, gather, scatter -----------------------------------------------------------------

bool evaluate_reduce(Node n, const HostArray& x, HostArray& out) {
  const auto arg = n->arg<ReduceArg>();
  Shape strides = strides_of(out.shape);
  for (size_t d = 0; d < strides.size(); ++d)
    if (arg.axes >> d & 1) strides[d] = 0;
  Arena arena;
  const ArenaScope scope(arena);
  std::vector<Node> values(out.size(), nullptr);
  bool good = true;
  walk(x.shape, 0, strides, [&](size_t i, size_t to) {
    const Node value = element(x, i);
    if (values[to] == nullptr)
      values[to] = value;
    else if (const Node sum = fold_constants(make(arg.op, x.dtype, {values[to], value})))
      values[to] = sum;
    else
      good = false;
  });
  for (size_t i = 0; i < values.size() && good; ++i) {
    if (values[i] == nullptr) return false;  // of no elements
    set_element(out, i, values[i]);
  }
  return good;
}

// The offset that the indices name in a tensor of this shape, or -1 where one lies outside.
int64_t offset_of(const Sources& in, size_t first, const Shape& shape, size_t i) {
  int64_t offset = 0;
  for (size_t d = 0; d < shape.size(); ++d) {
    const int64_t index = in[first + d]->integers[i];
    if (index < 0 || index >= shape[d]) return -1;
    offset = offset * shape[d] + index;
  }
  return offset;
}

void evaluate_gather(const Sources& in, HostArray& out) {
  for (size_t i = 0; i < out.size(); ++i)
    if (const int64_t from = offset_of(in, 1, in[0]->shape, i); from >= 0)
      copy_element(out, i, *in[0], static_cast<size_t>(from));
}

bool evaluate_scatter(Node n, const Sources& in, HostArray& out) {
  if (n->arg<ScatterArg>().op != Op::Assign) return false;
  out = *in[0];
  for (size_t i = 0; i < in[1]->size(); ++i)
    if (const int64_t to = offset_of(in, 2, out.shape, i); to >= 0)
      copy_element(out, static_cast<size_t>(to), *in[1], i);
  return true;
}

// --- All nodes -----------------------------------------------------------------------------------

bool evaluate_leaf(Node n, HostArray& out) {
  if (n->op == Op::Const) {
    set_element(out, 0, n);
    return true;
  }
  if (n->op != Op::Iota) return false;
  for (size_t i = 0; i < out.size(); ++i) {
    if (out.dtype.is_float())
      out.reals[i] = static_cast<double>(i);
    else
      out.integers[i] = static_cast<int64_t>(i);
  }
  return true;
}

bool evaluate_tensor_node(Node n, const Sources& in, HostArray& out) {
  switch (n->op) {
    case Op::ReduceAxis: return evaluate_reduce(n, *in[0], out);
    case Op::Gather: evaluate_gather(in, out); return true;
    case Op::Scatter: return evaluate_scatter(n, in, out);
    case Op::Contiguous:
    case Op::Detach:
    case Op::RoundGradient:
    case Op::Leaf:
    case Op::WithDerivative:
    case Op::CustomGradient:
    case Op::Checkpoint: out = *in[0]; return true;
    default: return false;
  }
}

bool evaluate_node(Node n, const Sources& in, HostArray& out) {
  if (is_elementwise(n->op)) return evaluate_elementwise(n, in, out);
  if (is_movement(n->op)) return evaluate_movement(n, *in[0], out);
  if (info(n->op).cls == OpClass::Tensor) return evaluate_tensor_node(n, in, out);
  return evaluate_leaf(n, out);
}

}  // namespace

HostArray::HostArray(DType type, Shape dims) : dtype(type), shape(std::move(dims)) {
  const auto count = static_cast<size_t>(numel(shape));
  if (type.is_float())
    reals.resize(count);
  else
    integers.resize(count);
}

namespace {

template <class T> void fill(HostArray& out, const std::byte* bytes) {
  for (size_t i = 0; i < out.size(); ++i) {
    T value;
    std::memcpy(&value, bytes + i * sizeof(T), sizeof(T));
    if constexpr (std::is_integral_v<T>)
      out.integers[i] = static_cast<int64_t>(value);
    else
      out.reals[i] = static_cast<double>(value);
  }
}

template <class T> void fill_narrow(HostArray& out, const std::byte* bytes) {
  for (size_t i = 0; i < out.size(); ++i) {
    T value;
    std::memcpy(&value.bits, bytes + i * sizeof(T), sizeof(T));
    out.reals[i] = static_cast<double>(static_cast<float>(value));
  }
}

}  // namespace

HostArray host_array(const std::byte* bytes, DType dtype, const Shape& shape) {
  HostArray out(dtype, shape);
  switch (dtype.scalar) {
    case Scalar::Bool:
    case Scalar::U8: fill<uint8_t>(out, bytes); break;
    case Scalar::I8: fill<int8_t>(out, bytes); break;
    case Scalar::I16: fill<int16_t>(out, bytes); break;
    case Scalar::U16: fill<uint16_t>(out, bytes); break;
    case Scalar::I32: fill<int32_t>(out, bytes); break;
    case Scalar::U32: fill<uint32_t>(out, bytes); break;
    case Scalar::I64: fill<int64_t>(out, bytes); break;
    case Scalar::U64: fill<uint64_t>(out, bytes); break;
    case Scalar::F16: fill_narrow<Half>(out, bytes); break;
    case Scalar::BF16: fill_narrow<BFloat16>(out, bytes); break;
    case Scalar::F8E4M3: fill_narrow<Float8E4M3>(out, bytes); break;
    case Scalar::F8E5M2: fill_narrow<Float8E5M2>(out, bytes); break;
    case Scalar::F32: fill<float>(out, bytes); break;
    default: fill<double>(out, bytes); break;
  }
  return out;
}

void HostValues::know(const Tensor& x, HostArray value) {
  // Views of the tensor are views of its memory.
  if (const Node n = x.node(); n->op == Op::Reshape && n->src(0)->op == Op::Buffer) {
    HostArray flat = value;
    flat.shape = to_shape(n->src(0)->shape());
    known_.insert_or_assign(n->src(0), Known{NodeRef(n->src(0)), std::move(flat)});
  }
  known_.insert_or_assign(x.node(), Known{NodeRef(x.node()), std::move(value)});
}

const HostArray* HostValues::known(Node n) const {
  const auto at = known_.find(n);
  if (at != known_.end()) return &at->second.value;
  return outer_ != nullptr ? outer_->known(n) : nullptr;
}

std::optional<HostArray> HostValues::find(const Tensor& x) {
  // Depth first with a stack of its own: graphs are deep. A node is evaluated after its sources.
  std::vector<std::pair<Node, bool>> stack = {{x.node(), false}};
  for (size_t seen = 0; !stack.empty(); ++seen) {
    const auto [n, is_ready] = stack.back();
    stack.pop_back();
    if (known(n) != nullptr) continue;
    const bool is_small = n->lengths == nullptr && numel(n->shape()) <= kMaxElements;
    if (!is_small || n->op == Op::Buffer || seen > kMaxNodes) return std::nullopt;
    if (!is_ready) {
      stack.emplace_back(n, true);
      for (const Node s : n->srcs()) stack.emplace_back(s, false);
      continue;
    }
    Sources in;
    for (const Node s : n->srcs()) in.push_back(known(s));
    HostArray out(n->dtype, to_shape(n->shape()));
    if (!evaluate_node(n, in, out)) return std::nullopt;
    known_.insert_or_assign(n, Known{NodeRef(n), std::move(out)});
  }
  return *known(x.node());
}

}  // namespace tiny::onnx
