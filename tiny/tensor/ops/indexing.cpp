// Reading and writing at positions that tensors say.
#include <algorithm>
#include <limits>

#include "tiny/ir/facts.h"
#include "tiny/tensor/detail.h"

namespace tiny {

namespace {

// Index tensors as graphs want them: i32 stays, the others become i64.
Tensor index_dtype(const char* what, const Tensor& index) {
  detail::require_index(what, index.dtype());
  return index.dtype() == kI32 ? index : index.to(kI64);
}

// The axis of x that `dim` names, for an index with as many axes as x and no longer than x beside
// `dim`; `bound`: the shape that the index must fit into there.
int index_axis(const char* what, const Tensor& x, int64_t dim, const Tensor& index, Ints bound) {
  const int axis = normalize_axis(what, dim, x.rank());
  bool fits = index.rank() == x.rank();
  for (int i = 0; fits && i < x.rank(); ++i)
    fits = i == axis || index.capacity()[i] <= std::min(x.capacity()[i], bound[i]);
  check(fits, what, ": an index of shape ", to_text(index.capacity()), " does not fit ",
        to_text(x.capacity()), " along axis ", axis);
  return axis;
}

// One index node for each axis of x: `index` along `axis`, the position elsewhere.
std::vector<Node> axis_indices(const Tensor& x, int axis, const Tensor& index) {
  std::vector<Node> nodes;
  for (int i = 0; i < x.rank(); ++i)
    nodes.push_back(i == axis ? index.node() : build::iota(index.capacity(), i, index.dtype()));
  return nodes;
}

// A 1-d index seen in `shape`, varying along `axis`.
Tensor along(const Tensor& index, int axis, const Shape& shape) {
  Shape line(shape.size(), 1);
  line[axis] = tiny::numel(index.capacity());
  return Tensor(detail::broadcast_to(build::reshape(index.node(), line), shape));
}

}  // namespace

// --- Reading ------------------------------------------------------------------------------------

Tensor Tensor::gather(int64_t dim, const Tensor& index) const {
  LabelScope label("gather");
  const Tensor i = index_dtype("gather", index);
  const int axis = index_axis("gather", *this, dim, i, capacity());
  return detail::gather_axis(*this, axis, i);
}

Tensor Tensor::take_along_dim(const Tensor& index, int64_t dim) const {
  LabelScope label("take_along_dim");
  const int axis = normalize_axis("take_along_dim", dim, rank());
  check(index.rank() == rank(), "take_along_dim: an index of shape ", to_text(index.capacity()),
        " for ", to_text(capacity()));
  if (rank() == 0) return Tensor(node());
  Shape mine = to_shape(capacity()), other = to_shape(index.capacity());
  mine[axis] = other[axis] = 1;
  Shape common = broadcast("take_along_dim", mine, other);
  const auto expanded = [&](const Tensor& t) {
    common[axis] = t.capacity()[axis];
    return t.expand(common);
  };
  return expanded(*this).gather(axis, expanded(index));
}

Tensor Tensor::index_select(int64_t dim, const Tensor& index) const {
  LabelScope label("index_select");
  check(rank() > 0 && index.rank() <= 1, "index_select: an index of shape ",
        to_text(index.capacity()), " for ", to_text(capacity()), ": it has one axis");
  const int axis = normalize_axis("index_select", dim, rank());
  Shape to = to_shape(capacity());
  to[axis] = tiny::numel(index.capacity());
  return detail::gather_axis(*this, axis, along(index_dtype("index_select", index), axis, to));
}

Tensor Tensor::embedding(const Tensor& index, std::optional<int64_t> padding_idx) const {
  LabelScope label("embedding");
  check(rank() == 2, "embedding: the weight is (rows, width) and not ", to_text(capacity()));
  const Tensor i = index_dtype("embedding", index);
  Shape to = to_shape(i.capacity());
  to.push_back(capacity()[1]);
  const Tensor row = i.unsqueeze(-1).expand(to);
  const Node column = build::iota(to, row.rank() - 1, row.dtype());
  const Tensor y = detail::gather(*this, {row.node(), column}, {-1, row.rank() - 1});
  if (!padding_idx) return y;
  const int64_t padding = *padding_idx < 0 ? *padding_idx + size(0) : *padding_idx;
  return where(row == padding, y.detach(), y);
}

Tensor Tensor::one_hot(int64_t num_classes) const {
  LabelScope label("one_hot");
  detail::require_index("one_hot", dtype());
  check(num_classes >= 1, "one_hot: ", num_classes, " classes");
  return (unsqueeze(-1) == arange(num_classes)).to(kI64);
}

// --- Index expressions --------------------------------------------------------------------------

namespace {

// x with all numbers, slices and new axes applied, and the tensors that are left, each for one
// axis.
struct PartlyIndexed {
  Tensor view;
  std::vector<std::pair<int, Tensor>> tensors = {};  // ascending axes
  // For each axis of x the axis of the view that it became (-1: none), and its positions there.
  std::vector<std::pair<int, Tensor>> origins = {};
};

int axes_taken(const Index& i) {
  if (i.kind == Index::Kind::NewAxis || i.kind == Index::Kind::Ellipsis) return 0;
  return i.kind == Index::Kind::Tensor && i.tensor.dtype().is_bool() ? i.tensor.rank() : 1;
}

// The list with its ellipsis replaced by full slices, one at the end where there is none.
std::vector<Index> without_ellipsis(const char* what, Ints shape, const std::vector<Index>& at) {
  int taken = 0, ellipses = 0;
  for (const Index& i : at) {
    taken += axes_taken(i);
    ellipses += i.kind == Index::Kind::Ellipsis;
  }
  const int rank = static_cast<int>(shape.size());
  check(taken <= rank, what, ": ", taken, " positions for shape ", to_text(shape));
  check(ellipses <= 1, what, ": more than one ellipsis");
  std::vector<Index> out;
  for (const Index& i : at) {
    if (i.kind == Index::Kind::Ellipsis)
      out.insert(out.end(), rank - taken, Index(Slice{}));
    else
      out.push_back(i);
  }
  if (!ellipses) out.insert(out.end(), rank - taken, Index(Slice{}));
  return out;
}

Tensor slice_axis(const Tensor& x, int axis, const Slice& s) {
  std::vector<Bound> starts(axis + 1), stops(axis + 1);
  Shape steps(axis + 1, 1);
  starts[axis] = s.start;
  stops[axis] = s.stop;
  steps[axis] = s.step;
  return x.slice(starts, stops, steps);
}

// A bool tensor stands for the positions of its true elements: one integer tensor for each axis.
void add_mask(const char* what, const Tensor& view, int axis, const Tensor& mask,
              PartlyIndexed& out) {
  check(mask.rank() > 0, what, ": a 0-d bool tensor indexes no axis");
  for (int i = 0; i < mask.rank(); ++i)
    check(mask.shape()[i] == view.shape()[axis + i], what, ": a mask of shape ",
          to_text(mask.shape()), " does not fit axis ", axis, " of ", to_text(view.shape()));
  const Tensor positions = mask.nonzero();
  for (int i = 0; i < mask.rank(); ++i) out.tensors.emplace_back(axis + i, positions.select(1, i));
}

// A Variable is known to lie in the axis, other tensors are not.
void check_variable(const char* what, Node index, int64_t size) {
  if (index->rank > 0 || index->dtype != kI64 || index->vmin == kIntMin) return;
  const std::vector<Node> below = topological(index);
  if (std::ranges::none_of(below, [](Node n) { return n->op == Op::Bound; })) return;
  check(index->vmin >= -size && index->vmax < size, what, ": an index in [", index->vmin, ", ",
        index->vmax, "] does not lie in an axis of ", size);
}

PartlyIndexed apply_views(const char* what, const Tensor& x, const std::vector<Index>& at) {
  PartlyIndexed out{x};
  int axis = 0;  // of the view
  const auto line = [&] {
    return Tensor::arange(x.capacity()[static_cast<int>(out.origins.size())]);
  };
  for (const Index& i : without_ellipsis(what, x.capacity(), at)) {
    switch (i.kind) {
      case Index::Kind::Integer:
        out.origins.emplace_back(-1, line().select(0, i.integer));
        out.view = out.view.select(axis, i.integer);
        break;
      case Index::Kind::Range:
        out.origins.emplace_back(axis, slice_axis(line(), 0, i.slice));
        out.view = slice_axis(out.view, axis++, i.slice);
        break;
      case Index::Kind::NewAxis: out.view = out.view.unsqueeze(axis++); break;
      default: {
        if (i.tensor.dtype().is_bool()) {
          add_mask(what, out.view, axis, i.tensor, out);
        } else {
          const int64_t size = out.view.capacity()[axis];
          const Node length = out.view.node()->length(axis);
          check_variable(what, i.tensor.node(), size);
          out.tensors.emplace_back(
              axis, detail::wrap_negative(index_dtype(what, i.tensor),
                                          length ? Operand(Tensor(length)) : Operand(size)));
        }
        for (int k = 0; k < axes_taken(i); ++k) out.origins.emplace_back(axis++, line());
      }
    }
  }
  return out;
}

// Where the tensors' common axes go among those that no tensor indexes: adjacent tensors put them
// in their place, others in front.
struct Placed {
  Shape shape;                // of the result
  std::vector<Node> indices;  // for each axis of the view, i64 in that shape
  std::vector<int> axes;      // the result's for each axis of the view, -1 where tensors index it
};

Placed place_tensors(const char* what, const PartlyIndexed& p) {
  Shape block;
  for (const auto& [axis, t] : p.tensors) block = broadcast(what, block, t.capacity());
  const int first = p.tensors.empty() ? 0 : p.tensors.front().first;
  const int last = p.tensors.empty() ? -1 : p.tensors.back().first;
  const bool adjacent = last - first + 1 == static_cast<int>(p.tensors.size());
  const int place = adjacent ? first : 0, span = static_cast<int>(block.size());
  Placed out;
  Shape& to = out.shape;
  std::vector<int> kept;  // axes of the view that no tensor indexes
  for (int i = 0; i < p.view.rank(); ++i) {
    const auto same_axis = [&](const auto& t) { return t.first == i; };
    if (std::ranges::none_of(p.tensors, same_axis)) kept.push_back(i);
  }
  for (int i : kept) to.push_back(p.view.capacity()[i]);
  to.insert(to.begin() + place, block.begin(), block.end());
  out.indices.resize(p.view.rank());
  out.axes.resize(p.view.rank(), -1);
  for (size_t k = 0; k < kept.size(); ++k) {
    const int at = static_cast<int>(k) < place ? static_cast<int>(k) : static_cast<int>(k) + span;
    out.indices[kept[k]] = build::iota(to, at, kI64);
    out.axes[kept[k]] = at;
  }
  for (const auto& [axis, t] : p.tensors) {
    Shape lifted = to_shape(t.capacity());
    lifted.insert(lifted.end(), to.size() - place - span, 1);
    out.indices[axis] = detail::broadcast_to(t.to(kI64).reshape(lifted).node(), to);
  }
  return out;
}

}  // namespace

Tensor Tensor::index(const std::vector<Index>& at) const {
  LabelScope label("index");
  const PartlyIndexed p = apply_views("index", *this, at);
  if (p.tensors.empty()) return p.view;
  const Placed placed = place_tensors("index", p);
  return detail::gather(p.view, placed.indices, placed.axes);
}

// --- Writing ------------------------------------------------------------------------------------

namespace {

// base with the values combined in; those beyond a length, of them or of an index, are left out.
Tensor scattered(const Tensor& base, const Tensor& values, std::vector<Node> indices,
                 ScatterArg how) {
  Tensor first = detail::whole(Tensor(indices[0]));
  std::vector<Node> limited = indices;
  limited.push_back(values.node());
  for (Node n : limited)
    for (int i = 0; i < n->rank; ++i)
      if (const Node length = n->length(i)) {
        const Tensor position = detail::position(first.capacity(), i, first.dtype());
        first = where(position < Tensor(length), first, -1);
      }
  for (Node& n : indices) n = detail::whole(Tensor(n)).node();
  indices[0] = first.node();
  const Node base_node = detail::whole(base).node(), added = detail::whole(values).node();
  return detail::with_lengths(Tensor(build::scatter(base_node, added, indices, how)), base);
}

// For each axis of the tensor that was indexed, the positions that the result's elements have
// there. Those of a slice depend on one axis of the result alone.
std::vector<Node> own_indices(const PartlyIndexed& p, const Placed& placed) {
  std::vector<Node> out;
  for (const auto& [axis, line] : p.origins) {
    if (axis >= 0 && placed.axes[axis] < 0)
      out.push_back(placed.indices[axis]);
    else if (axis < 0)
      out.push_back(line.expand(placed.shape).node());
    else
      out.push_back(along(line, placed.axes[axis], placed.shape).node());
  }
  return out;
}

}  // namespace

Tensor Tensor::index_put(const std::vector<Index>& at, const Tensor& values,
                         bool accumulate) const {
  LabelScope label("index_put");
  const Tensor v = values.to(dtype());
  const bool one_mask =
      at.size() == 1 && at[0].kind == Index::Kind::Tensor && at[0].tensor.dtype().is_bool();
  if (one_mask && v.numel() == 1 && !accumulate) {  // no need to know where the mask is true
    Shape lifted = to_shape(at[0].tensor.shape());
    check(static_cast<int>(lifted.size()) <= rank(), "index_put: a mask of shape ", to_text(lifted),
          " for ", to_text(shape()));
    lifted.resize(rank(), 1);
    return where(at[0].tensor.reshape(lifted), v.reshape({}), *this).expand(to_shape(shape()));
  }
  if (rank() == 0) {
    std::vector<Index> one{Index(0)};
    one.insert(one.end(), at.begin(), at.end());
    return reshape({1}).index_put(one, values, accumulate).reshape({});
  }
  const PartlyIndexed p = apply_views("index_put", *this, at);
  const Placed placed = place_tensors("index_put", p);
  const DType t = accumulate ? detail::compute_dtype(dtype()) : dtype();
  const ScatterArg how{accumulate ? Op::Add : Op::Assign, false};
  const Tensor added = v.to(t).expand(placed.shape);
  return scattered(to(t), added, own_indices(p, placed), how).to(dtype());
}

namespace {

bool has_tensor(const std::vector<Index>& at) {
  return std::ranges::any_of(at, [](const Index& i) { return i.kind == Index::Kind::Tensor; });
}

// A copy of x with x[at] = value, where `at` has no tensors: a slice, with the axes of numbers left
// in and those of kNewAxis left out.
Tensor put_slice(const Tensor& x, const std::vector<Index>& at, const Tensor& value) {
  std::vector<Bound> starts, stops;
  Shape steps;
  for (const Index& i : without_ellipsis("assign", x.shape(), at)) {
    if (i.kind == Index::Kind::NewAxis) continue;
    const bool one = i.kind == Index::Kind::Integer;
    starts.push_back(one ? Bound(i.integer) : i.slice.start);
    stops.push_back(!one ? i.slice.stop : i.integer == -1 ? Bound() : Bound(i.integer + 1));
    steps.push_back(one ? 1 : i.slice.step);
  }
  const Shape part = to_shape(x.slice(starts, stops, steps).shape());
  return x.slice_assign(starts, stops, steps, value.reshape(part));
}

}  // namespace

Tensor& Tensor::assign(const std::vector<Index>& at, const Operand& value) & {
  LabelScope label("assign");
  Tensor v = value.is_number() ? full({}, value.number(), dtype()) : value.tensor().to(dtype());
  if (has_tensor(at)) return assign(index_put(at, v));
  const Shape place = to_shape(index(at).shape());
  while (v.rank() > static_cast<int>(place.size()) && v.shape()[0] == 1) v = v.squeeze(0);
  bool fits = v.rank() <= static_cast<int>(place.size());
  for (int i = 1; fits && i <= v.rank(); ++i)
    fits = v.size(-i) == 1 || v.size(-i) == place[place.size() - static_cast<size_t>(i)];
  check(fits, "assign: a value of shape ", to_text(v.shape()), " does not fit the place of shape ",
        to_text(place));
  return assign(put_slice(*this, at, v.expand(place)));
}

Tensor Tensor::index_add(int64_t dim, const Tensor& index, const Tensor& source) const {
  LabelScope label("index_add");
  check(rank() > 0 && index.rank() <= 1, "index_add: an index of shape ", to_text(index.capacity()),
        " for ", to_text(capacity()), ": it has one axis");
  const int axis = normalize_axis("index_add", dim, rank());
  const int64_t count = tiny::numel(index.capacity());
  check(source.rank() == rank() && source.capacity()[axis] == count, "index_add: ", count,
        " indices for a source of shape ", to_text(source.capacity()));
  const Tensor i = along(index_dtype("index_add", index), axis, to_shape(source.capacity()));
  return scatter_add(axis, i, source);
}

namespace {

// base with source combined in; both of one dtype, sums of f16 and bf16 in f32.
Tensor scatter_axis(const char* what, const Tensor& base, int64_t dim, const Tensor& index,
                    const Tensor& source, Op op) {
  const Tensor i = index_dtype(what, index);
  const int axis = index_axis(what, base, dim, i, source.capacity());
  if (base.rank() == 0 && i.numel() == 0) return base;
  const Tensor values = base.rank() == 0 ? source : [&] {
    std::vector<std::pair<int64_t, int64_t>> part;
    for (int64_t s : i.capacity()) part.emplace_back(0, s);
    return source.shrink(part);
  }();
  if (base.rank() == 0) {  // one element, with position 0
    const Tensor line = base.reshape({1});
    return scatter_axis(what, line, 0, i.reshape({1}), source.reshape({1}), op).reshape({});
  }
  return scattered(base, values, axis_indices(base, axis, i), {op, false});
}

Tensor scatter_source(const char* what, const Tensor& index, const Tensor& source, DType t) {
  check(source.rank() == index.rank(), what, ": a source of shape ", to_text(source.capacity()),
        " for an index of shape ", to_text(index.capacity()));
  for (int i = 0; i < index.rank(); ++i)
    check(index.capacity()[i] <= source.capacity()[i], what, ": an index of shape ",
          to_text(index.capacity()), " is larger than the source of shape ",
          to_text(source.capacity()));
  return source.to(t);
}

}  // namespace

Tensor Tensor::scatter(int64_t dim, const Tensor& index, const Operand& source) const {
  LabelScope label("scatter");
  Tensor values;
  if (source.is_number())
    values = full(to_shape(index.capacity()), source.number(), dtype());
  else
    values = scatter_source("scatter", index, source.tensor(), dtype());
  return scatter_axis("scatter", *this, dim, index, values, Op::Assign);
}

Tensor Tensor::scatter_add(int64_t dim, const Tensor& index, const Tensor& source) const {
  LabelScope label("scatter_add");
  const DType wide = detail::compute_dtype(dtype());
  const Tensor values = scatter_source("scatter_add", index, source, wide);
  return scatter_axis("scatter_add", to(wide), dim, index, values, Op::Add).to(dtype());
}

namespace {

Op reduce_op(const std::string& name) {
  if (name == "sum" || name == "mean") return Op::Add;
  if (name == "prod") return Op::Mul;
  if (name == "amax") return Op::Max;
  check(name == "amin", "scatter_reduce: \"", name, "\" is none of sum, prod, mean, amax and amin");
  return Op::Min;
}

}  // namespace

Tensor Tensor::scatter_reduce(int64_t dim, const Tensor& index, const Tensor& source,
                              const std::string& reduce, bool include_self) const {
  LabelScope label("scatter_reduce");
  const Op op = reduce_op(reduce);
  const DType wide = detail::compute_dtype(dtype());
  const Tensor x = to(wide), values = scatter_source("scatter_reduce", index, source, wide);
  const bool mean = reduce == "mean";
  Tensor count;  // values that hit each element
  if (!include_self || mean) {
    const DType counts = tiny::numel(values.capacity()) <= INT32_MAX ? kI32 : kI64;
    const Tensor ones = detail::with_lengths(full(to_shape(values.capacity()), 1, counts), values);
    const Tensor none = detail::with_lengths(full(to_shape(capacity()), 0, counts), *this);
    count = scatter_axis("scatter_reduce", none, dim, index, ones, Op::Add);
  }
  Tensor base = x;
  if (!include_self) base = where(count == 0, x, Tensor(build::identity(op, wide, {})));
  Tensor y = scatter_axis("scatter_reduce", base, dim, index, values, op);
  if (mean) {
    const Tensor terms = maximum(include_self ? count + 1 : count, 1);
    y = wide.is_float() ? y / terms : floor_div(y, terms).to(wide);
  }
  return y.to(dtype());
}

// --- Shapes that depend on values ---------------------------------------------------------------

namespace {

// Positions of the true elements of a bool tensor [n], ascending; missing ones are 0.
Tensor true_positions(const Tensor& mask, std::optional<int64_t> size) {
  if (mask.numel() == 0) return Tensor::zeros({size.value_or(0)}, kI64);
  const Tensor ones = mask.to(kI64);
  const int64_t count = size ? *size : ones.sum().item<int64_t>();
  check(count >= 0, "nonzero: size ", count, " is negative");
  if (count == 0) return Tensor::zeros({0}, kI64);
  // The k-th true element is written to place k; the others fall outside and are dropped.
  const Tensor place = where(mask, ones.cumsum(0) - 1, count);
  const Node index = place.node(), positions = build::iota(mask.numel(), kI64);
  const Node base = Tensor::zeros({count}, kI64).node();
  return Tensor(build::scatter(base, positions, {&index, 1}, {Op::Assign, true}));
}

}  // namespace

Tensor Tensor::nonzero(std::optional<int64_t> size) const {
  LabelScope label("nonzero");
  const Tensor flat = true_positions(detach().to(kBool).reshape({-1}), size);
  if (rank() == 0) return zeros({flat.shape()[0], 0}, kI64);
  const Shape strides = strides_of(shape());
  std::vector<Tensor> columns;
  for (int i = 0; i < rank(); ++i)
    columns.push_back(
        mod(floor_div(flat, std::max<int64_t>(strides[i], 1)), std::max<int64_t>(shape()[i], 1)));
  return stack(columns, 1);
}

Tensor Tensor::masked_select(const Tensor& mask, std::optional<int64_t> size) const {
  LabelScope label("masked_select");
  check(mask.dtype().is_bool(), "masked_select: the mask is bool and not ", mask.dtype());
  const Shape common = broadcast("masked_select", shape(), mask.shape());
  const Tensor positions = true_positions(mask.expand(common).reshape({-1}), size);
  return expand(common).reshape({-1}).index_select(0, positions);
}

}  // namespace tiny
