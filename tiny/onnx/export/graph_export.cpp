#include "tiny/onnx/export/graph_export.h"

#include <algorithm>
#include <numbers>
#include <numeric>

#include "tiny/base/error.h"
#include "tiny/onnx/export/products.h"

namespace tiny::onnx {

namespace {

[[noreturn]] void refuse(Node n, const char* why) {
  throw Error(cat("export_onnx: ", *n->label != '\0' ? n->label : info(n->op).name, ": ", why));
}

// Sources that a node is written from; those of products and views are found on the way.
bool is_pass_through(Op op) {
  return op == Op::Contiguous || op == Op::Detach || op == Op::RoundGradient || op == Op::Leaf ||
         op == Op::Checkpoint || op == Op::WithDerivative || op == Op::CustomGradient ||
         op == Op::Copy || op == Op::Bound;
}

}  // namespace

Node behind(Node n) {
  while (is_pass_through(n->op) && n->realized == nullptr) n = n->src(0);
  return n;
}

// --- Leaves --------------------------------------------------------------------------------------

void GraphExport::set_input(Node n, const Name& name) {
  names_[n] = name;
  views_[n->op == Op::Reshape ? n->src(0) : n] = n;
}

void GraphExport::set_weight(Node n, const Name& name) {
  n = behind(n);
  const Node memory = n->realized, view = memory != nullptr ? memory : n;
  weight_names_[view] = name;
  views_[view->op == Op::Reshape ? view->src(0) : view] = view;
}

IndexMap GraphExport::map_of(Node n) {
  return index_map(n, [&](Node memory) {
    const auto at = views_.find(memory);
    return at == views_.end() ? nullptr : at->second;
  });
}

Name GraphExport::write(Node root) {
  if (const auto at = names_.find(root); at != names_.end()) return at->second;
  if (const auto at = values_.find(root); at != values_.end())
    return names_[root] = out_.weights(at->second, "");
  check(root->lengths == nullptr, "export_onnx: a length is a Variable: call it with plain sizes");
  check(device_members(root->device).empty(), "export_onnx: a tensor is on several devices");
  const Name name = root->realized != nullptr ? write_memory(root) : write_node(root);
  names_[root] = name;
  return name;
}

Name GraphExport::write_memory(Node n) {
  // Another view of what has a name.
  const Node memory = n->realized, view = memory != nullptr ? memory : n;
  const auto known = views_.find(view->op == Op::Reshape ? view->src(0) : view);
  if (known != views_.end() && known->second != view)
    return out_.reshape(write(known->second), to_shape(n->shape()));
  const auto at = weight_names_.find(view);
  return out_.weights(Tensor(n), at == weight_names_.end() ? "" : at->second);
}

Name GraphExport::write_leaf(Node n) {
  if (n->op == Op::Buffer) return write_memory(n);
  if (n->op == Op::Const) return out_.scalar(n->dtype, n->number());
  if (n->op != Op::Iota) refuse(n, "no operator of ONNX");
  Shape values(static_cast<size_t>(n->shape()[0]));
  std::iota(values.begin(), values.end(), 0);
  const Name counted = out_.integers(values);
  return n->dtype == kI64 ? counted : out_.cast(counted, n->dtype);
}

Name GraphExport::write_node(Node n) {
  if (is_pass_through(n->op)) return write(n->src(0));
  switch (info(n->op).cls) {
    case OpClass::Leaf: return write_leaf(n);
    case OpClass::Unary: return write_unary(n);
    case OpClass::Binary: return write_binary(n);
    case OpClass::Movement: return write_movement(n);
    default: break;
  }
  switch (n->op) {
    case Op::Where: return out_.add("Where", write_operands(n));
    case Op::ReduceAxis: return write_reduce(n);
    case Op::Gather: return write_gather(n);
    case Op::Assign: refuse(n, "the graph assigns to a tensor: only forward graphs are exported");
    case Op::Scatter: refuse(n, "a scatter has no operator that skips indices outside");
    default: refuse(n, "no operator of ONNX");
  }
}

// --- Element-wise --------------------------------------------------------------------------------

Name GraphExport::write_unary(Node n) {
  const Name x = write(n->src(0));
  const DType t = n->dtype;
  const auto times = [&](const Name& a, double by) {
    return out_.add("Mul", {a, out_.scalar(t, by)});
  };
  switch (n->op) {
    case Op::Cast: return t == n->src(0)->dtype ? x : out_.cast(x, t);
    case Op::Neg:
      return t.is_unsigned() ? out_.add("Sub", {out_.scalar(t, 0), x}) : out_.add("Neg", {x});
    case Op::Recip: return out_.add("Reciprocal", {x});
    case Op::Sqrt: return out_.add("Sqrt", {x});
    case Op::Sin: return out_.add("Sin", {x});
    case Op::Exp2: return out_.add("Exp", {times(x, std::numbers::ln2)});
    case Op::Log2: return times(out_.add("Log", {x}), std::numbers::log2e);
    case Op::Floor: return t.is_float() ? out_.add("Floor", {x}) : x;
    case Op::Trunc: {
      if (!t.is_float()) return x;
      const Name below = out_.add("Less", {x, out_.scalar(t, 0)});
      return out_.add("Where", {below, out_.add("Ceil", {x}), out_.add("Floor", {x})});
    }
    default: refuse(n, "no operator of ONNX: bits of a number");
  }
}

// Div goes towards zero; the quotient is one less where a rest has another sign than the divisor.
Name GraphExport::write_integer_division(Node n, const Name& x, const Name& y) {
  const Name quotient = out_.add("Div", {x, y});
  const bool is_positive = n->src(0)->vmin >= 0 && n->src(1)->vmin >= 0;
  if (n->op == Op::TruncDiv || is_positive || n->dtype.is_unsigned()) return quotient;
  const Name zero = out_.scalar(n->dtype, 0), one = out_.scalar(n->dtype, 1);
  const Name rest = out_.add("Sub", {x, out_.add("Mul", {quotient, y})});
  const Name differs =
      out_.add("Xor", {out_.add("Less", {rest, zero}), out_.add("Less", {y, zero})});
  const Name has_rest = out_.add("Not", {out_.add("Equal", {rest, zero})});
  return out_.add(
      "Where", {out_.add("And", {differs, has_rest}), out_.add("Sub", {quotient, one}), quotient});
}

Name GraphExport::write_shift(Node n, const Name& x, const Name& y) {
  if (!n->dtype.is_unsigned()) refuse(n, "shifts of signed integers have no operator");
  Attribute direction;
  direction.name = "direction";
  direction.type = 3;
  direction.text = n->op == Op::Shl ? "LEFT" : "RIGHT";
  return out_.add("BitShift", {x, y}, {direction});
}

// Operands broadcast by themselves: they need not be expanded as long as one has each axis whole.
std::vector<Name> GraphExport::write_operands(Node n) {
  std::vector<Node> operands(n->srcs().begin(), n->srcs().end());
  for (size_t i = 0; i < operands.size(); ++i) {
    const Node expanded = operands[i];
    if (expanded->op != Op::Expand || expanded->realized != nullptr) continue;
    operands[i] = expanded->src(0);
    Shape shape(n->rank, 1);
    for (const Node operand : operands)
      for (size_t d = 0; d < shape.size(); ++d)
        if (operand->shape()[d] != 1) shape[d] = operand->shape()[d];
    if (!same(shape, n->shape())) operands[i] = expanded;
  }
  std::vector<Name> names;
  for (const Node operand : operands) names.push_back(write(operand));
  return names;
}

Name GraphExport::write_binary(Node n) {
  const std::vector<Name> operands = write_operands(n);
  const Name &x = operands[0], &y = operands[1];
  const DType t = n->src(0)->dtype;
  const auto plain = [&](const char* op) { return out_.add(op, {x, y}); };
  const auto bits = [&](const char* logical, const char* bitwise) {
    if (t.is_bool()) return plain(logical);
    out_.need_version(18);
    return plain(bitwise);
  };
  // Bools are compared as integers.
  const auto comparison = [&](const char* op) {
    if (!t.is_bool()) return plain(op);
    return out_.add(op, {out_.cast(x, kI32), out_.cast(y, kI32)});
  };
  switch (n->op) {
    case Op::Add: return plain(t.is_bool() ? "Or" : "Add");
    case Op::Sub: return plain(t.is_bool() ? "Xor" : "Sub");
    case Op::Mul: return plain(t.is_bool() ? "And" : "Mul");
    case Op::Max: return plain(t.is_bool() ? "Or" : "Max");
    case Op::Min: return plain(t.is_bool() ? "And" : "Min");
    case Op::Div: return plain("Div");
    case Op::And: return bits("And", "BitwiseAnd");
    case Op::Or: return bits("Or", "BitwiseOr");
    case Op::Xor: return bits("Xor", "BitwiseXor");
    case Op::Lt: return comparison("Less");
    case Op::Le: return comparison("LessOrEqual");
    case Op::Eq: return plain("Equal");
    case Op::Ne: return out_.add("Not", {plain("Equal")});
    case Op::FloorDiv:
    case Op::TruncDiv:
      if (t.is_float()) break;
      return write_integer_division(n, x, y);
    case Op::FloorMod:
      if (t.is_float()) break;
      return plain("Mod");
    case Op::TruncMod: return out_.add("Mod", {x, y}, {GraphWriter::integer("fmod", 1)});
    case Op::Shl:
    case Op::Shr: return write_shift(n, x, y);
    default: break;
  }
  if (n->op == Op::FloorDiv) return out_.add("Floor", {plain("Div")});
  if (n->op == Op::FloorMod) {
    const Name quotient = out_.add("Floor", {plain("Div")});
    return out_.add("Sub", {x, out_.add("Mul", {quotient, y})});
  }
  refuse(n, "no operator of ONNX");
}

// --- Reductions ----------------------------------------------------------------------------------

Name GraphExport::write_reduce(Node n) {
  const auto arg = n->arg<ReduceArg>();
  if (auto product = write_product(n, out_, *this)) return *product;
  Shape axes;
  for (int a = 0; a < n->rank; ++a)
    if (arg.axes >> a & 1) axes.push_back(a);
  Name x = write(n->src(0));
  const bool is_bool = n->dtype.is_bool();
  // Of narrow integers ReduceSum has no sum.
  const DType wide = is_bool || (n->dtype.is_int() && n->dtype.size() < 4) ? kI32 : n->dtype;
  if (wide != n->dtype) x = out_.cast(x, wide);
  Name y;
  if (arg.op == Op::Add && !is_bool)
    y = out_.add("ReduceSum", {x, out_.integers(axes)});
  else {
    const bool is_max = arg.op == Op::Max || (is_bool && arg.op == Op::Add);
    const char* op = is_max                          ? "ReduceMax"
                     : arg.op == Op::Mul && !is_bool ? "ReduceProd"
                                                     : "ReduceMin";
    y = out_.add(op, {x}, {GraphWriter::list("axes", axes)});
  }
  return wide == n->dtype ? y : out_.cast(y, n->dtype);
}

// --- Views ---------------------------------------------------------------------------------------

Name GraphExport::write_movement(Node n) {
  if (n->op == Op::Reshape && n->src(0)->op == Op::Buffer) return write_memory(n);
  if (n->op == Op::Reshape) return out_.reshape(write(n->src(0)), to_shape(n->shape()));
  if (n->op == Op::Pad) {
    Shape pads(2 * n->rank, 0);
    for (size_t d = 0; d < n->rank; ++d) {
      pads[d] = n->ints()[2 * d];
      pads[d + n->rank] = n->ints()[2 * d + 1];
    }
    const DType t = n->dtype;
    const Name x = write(n->src(0));
    if (!t.is_bool()) return out_.add("Pad", {x, out_.integers(pads), out_.scalar(t, 0)});
    const Name wide = out_.cast(x, kI32);
    return out_.cast(out_.add("Pad", {wide, out_.integers(pads), out_.scalar(kI32, 0)}), kBool);
  }
  if (n->op == Op::Limit || n->op == Op::Whole) refuse(n, "a length is a Variable");
  const IndexMap map = map_of(n);
  expect(map.source != n, "export_onnx: a view that is no map");
  return write_map(map);
}

// An axis of the source that goes along one axis of the result is sliced, one along several is
// gathered; then axes come in order, and those that nothing goes along are expanded.
Name GraphExport::write_map(const IndexMap& map) {
  if (!map.is_separable()) {
    // Positions in the flattened source.
    const Shape strides = strides_of(map.source->shape());
    Shape positions;
    Shape at(map.shape.size(), 0);
    for (int64_t i = 0, count = numel(map.shape); i < count; ++i) {
      int64_t position = 0;
      for (size_t d = 0; d < strides.size(); ++d) {
        int64_t index = map.offsets[d];
        for (size_t a = 0; a < at.size(); ++a) index += map.factors[d][a] * at[a];
        position += index * strides[d];
      }
      positions.push_back(position);
      for (size_t a = at.size(); a-- > 0;) {
        if (++at[a] < map.shape[a]) break;
        at[a] = 0;
      }
    }
    const Name flat = out_.reshape(write(map.source), {-1});
    return out_.add("Gather", {flat, out_.integers(positions, map.shape)},
                    {GraphWriter::integer("axis", 0)});
  }
  Name x = write(map.source);
  std::vector<size_t> order;  // the result's axes as they come
  Shape shape;
  for (size_t d = 0; d < map.offsets.size(); ++d) {
    const auto axes = map.axes_of(d);
    const int64_t place = std::ssize(order);
    order.insert(order.end(), axes.begin(), axes.end());
    if (map.plain_axis(d)) continue;
    Shape sizes, indices = {map.offsets[d]};
    for (const size_t a : axes) {
      Shape more;
      for (const int64_t base : indices)
        for (int64_t i = 0; i < map.shape[a]; ++i) more.push_back(base + map.factors[d][a] * i);
      indices = std::move(more);
      sizes.push_back(map.shape[a]);
    }
    if (axes.empty() && map.source->shape()[d] == 1) {
      x = out_.add("Squeeze", {x, out_.integers({place})});
      continue;
    }
    x = out_.add("Gather", {x, out_.integers(indices, sizes)},
                 {GraphWriter::integer("axis", place)});
  }
  // Transposed into the order of the result, with 1 for the axes that are expanded.
  std::vector<size_t> sorted(order.size());
  std::iota(sorted.begin(), sorted.end(), 0);
  std::ranges::sort(sorted, [&](size_t a, size_t b) { return order[a] < order[b]; });
  x = out_.transpose(x, sorted);
  Shape with_ones(map.shape.size(), 1);
  for (const size_t a : order) with_ones[a] = map.shape[a];
  if (order.size() != map.shape.size()) x = out_.reshape(x, with_ones);
  return with_ones == map.shape ? x : out_.add("Expand", {x, out_.integers(map.shape)});
}

// --- Gather --------------------------------------------------------------------------------------

// Indices along one axis, the others being their own positions: rows of a table.
Name GraphExport::write_gather_along(Node n, size_t axis, const IndexMap& index) {
  // The index as it varies, along axes that follow one another.
  IndexMap varying = index;
  const size_t rest = n->src(0)->rank - 1;
  const size_t count = index.shape.size() - rest;
  varying.shape.assign(index.shape.begin() + static_cast<int64_t>(axis),
                       index.shape.begin() + static_cast<int64_t>(axis + count));
  for (Shape& factors : varying.factors)
    factors = Shape(factors.begin() + static_cast<int64_t>(axis),
                    factors.begin() + static_cast<int64_t>(axis + count));
  const int64_t size = n->src(0)->shape()[axis];
  const Node source = n->src(static_cast<int>(axis) + 1);
  const DType t = source->dtype;
  Name at = write_map(varying);
  const bool is_inside = source->vmin >= 0 && source->vmax < size;
  if (is_inside)
    return out_.add("Gather", {write(n->src(0)), at},
                    {GraphWriter::integer("axis", static_cast<int64_t>(axis))});
  // Elements outside are zero.
  const Name last = out_.scalar(t, static_cast<double>(size - 1)), zero = out_.scalar(t, 0);
  const Name clipped = out_.add("Min", {out_.add("Max", {at, zero}), last});
  const Name found = out_.add("Gather", {write(n->src(0)), clipped},
                              {GraphWriter::integer("axis", static_cast<int64_t>(axis))});
  Shape inside = varying.shape;
  inside.insert(inside.begin(), axis, 1);
  inside.resize(index.shape.size(), 1);
  const Name same = out_.reshape(out_.add("Equal", {at, clipped}), inside);
  return out_.add("Where", {same, found, out_.scalar(n->dtype, 0)});
}

Name GraphExport::write_gather(Node n) {
  const Node data = n->src(0);
  const size_t rank = data->rank;
  // Which axes' indices are plain positions, those before the axis at the front of the result and
  // those behind it at its end.
  for (size_t axis = 0; axis < rank && n->rank + 1u >= rank; ++axis) {
    const size_t count = n->rank + 1 - rank;
    bool is_along = true;
    for (size_t d = 0; d < rank && is_along; ++d) {
      const IndexMap map = map_of(n->src(static_cast<int>(d) + 1));
      const size_t at = d < axis ? d : d - 1 + count;
      if (d != axis) {
        const bool is_iota = map.source->op == Op::Iota && map.plain_axis(0) == at;
        const bool is_single = data->shape()[d] == 1 && map.source->op == Op::Const;
        is_along =
            (is_iota && data->shape()[d] == n->shape()[at]) || (is_single && n->shape()[at] == 1);
        continue;
      }
      for (size_t a = 0; a < n->rank; ++a)
        for (const Shape& factors : map.factors)
          if ((a < axis || a >= axis + count) && factors[a] != 0 && map.shape[a] > 1)
            is_along = false;
    }
    if (is_along) return write_gather_along(n, axis, map_of(n->src(static_cast<int>(axis) + 1)));
  }
  // Tuples of indices, those outside moved to 0.
  std::vector<Name> parts;
  Name inside;
  Shape with_last = to_shape(n->shape());
  with_last.push_back(1);
  for (size_t d = 0; d < rank; ++d) {
    const Node source = n->src(static_cast<int>(d) + 1);
    Name at = write(source);
    if (source->dtype != kI64) at = out_.cast(at, kI64);
    if (source->vmin < 0 || source->vmax >= data->shape()[d]) {
      const Name last = out_.scalar(kI64, static_cast<double>(data->shape()[d] - 1));
      const Name clipped = out_.add("Min", {out_.add("Max", {at, out_.scalar(kI64, 0)}), last});
      const Name same = out_.add("Equal", {at, clipped});
      inside = inside.empty() ? same : out_.add("And", {inside, same});
      at = clipped;
    }
    parts.push_back(out_.reshape(at, with_last));
  }
  const Name tuples = out_.add("Concat", parts, {GraphWriter::integer("axis", -1)});
  const Name found = out_.add("GatherND", {write(data), tuples});
  return inside.empty() ? found : out_.add("Where", {inside, found, out_.scalar(n->dtype, 0)});
}

}  // namespace tiny::onnx
