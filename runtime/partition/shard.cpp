#include "runtime/partition/shard.h"

#include <algorithm>

#include "runtime/analysis/recompute_cost.h"
#include "runtime/analysis/views.h"
#include "runtime/partition/parts.h"
#include "tiny/base/error.h"
#include "tiny/ir/build.h"
#include "tiny/ir/print.h"
#include "tiny/ir/sizes.h"
#include "tiny/rewrite/rewrite.h"

namespace tiny {

namespace {

std::span<const int> devices_of(Node n) { return device_members(n->device); }

// Values of constants and positions are computed where they are needed. Each device has nodes of
// its own for them, so that no kernel, or kernel's value, is shared between two.
Node placed(Node n, int device) {
  if (n->device) return n;
  NodeMap<Node> own;
  NodeMap<int> cost;  // of what is made of constants alone; -1: of positions too
  for (Node s : topological(n)) {
    int work = info(s->op).cls == OpClass::Tensor ? kWorthStoring : work_of(s->op);
    for (Node from : s->srcs()) {
      const int below = *cost.find(from);
      work = below < 0 || work < 0 ? -1 : std::min(work + below, kWorthStoring);
    }
    const LabelScope label(s->label);
    if (s->op == Op::Iota) {
      const int64_t arg[] = {s->ints()[0], device};
      own[s] = make(Op::Iota, s->dtype, {}, Ints(arg));
      work = -1;
    } else if (work >= kWorthStoring) {  // might get memory
      own[s] = build::copy_to(s, device);
    }
    cost[s] = work;
  }
  return own.size() ? substitute(n, own) : n;
}

// --- operations ----------------------------------------------------------------------------------

// make_piece(i) for each device, under the name of the user's operation; no node for no elements.
template <class F> Parts each(Node n, const Distribution& layout, F make_piece) {
  const LabelScope label(n->label);
  Parts out{{}, layout};
  for (size_t i = 0; i < devices_of(n).size(); ++i) {
    const Shape shape = part_of(n->shape(), layout, i);
    out.pieces.push_back(numel(shape) ? make_piece(i) : build::full(shape, n->dtype, int64_t{0}));
  }
  return out;
}

// Sources from `first` on in one layout.
std::vector<Pieces> all_in_layout(Node n, const std::vector<Parts>& in, size_t first,
                                  const Distribution& to) {
  std::vector<Pieces> out;
  for (size_t k = first; k < in.size(); ++k) out.push_back(in_layout(in[k], to, devices_of(n)));
  return out;
}

std::vector<Node> at_device(const std::vector<Pieces>& all, size_t i) {
  std::vector<Node> out;
  for (const Pieces& p : all) out.push_back(p[i]);
  return out;
}

// The same operation on sources of one layout.
Parts apply(Node n, const std::vector<Parts>& in, const Distribution& to) {
  const std::vector<Pieces> srcs = all_in_layout(n, in, 0, to);
  return each(n, to, [&](size_t i) { return with_sources(n, at_device(srcs, i)); });
}

// Shares of a sum are stored as they are.
Parts contiguous(Node n, const Parts& p) {
  Parts out = each(n, p.layout, [&](size_t i) { return with_sources(n, {&p.pieces[i], 1}); });
  out.partial = p.partial;
  return out;
}

Parts elementwise(Node n, const std::vector<Parts>& in) {
  const bool all_pending =
      std::ranges::all_of(in, [](const Parts& p) { return p.partial == Op::Add; });
  if (n->op == Op::Add && all_pending) {  // one sum over the devices for both
    Parts out = each(
        n, {}, [&](size_t i) { return build::binary(Op::Add, in[0].pieces[i], in[1].pieces[i]); });
    out.partial = Op::Add;
    return out;
  }
  Distribution to;
  for (const Parts& p : in)
    if (to.axis < 0) to = p.layout;
  return apply(n, in, to);
}

// A tensor that has no memory yet takes the layout of its value.
Parts assign(Node n, const std::vector<Parts>& in) {
  const bool has_memory = std::ranges::any_of(in[0].pieces, [](Node p) { return p->device != 0; });
  return apply(n, in, has_memory ? in[0].layout : in[1].layout);
}

Parts after(const std::vector<Parts>& in) {
  Parts x = in[0];
  for (size_t i = 0; i < x.pieces.size(); ++i)
    x.pieces[i] = build::after(x.pieces[i], in[1].pieces[i]);
  return x;
}

// --- movement ------------------------------------------------------------------------------------

// The axis in the new shape before which there is as much as before the old one. Every cut has to
// lie between two of its elements.
std::optional<Distribution> reshaped_layout(Node n, const Distribution& from) {
  const Ints old = n->src(0)->shape(), now = n->shape();
  const auto at = static_cast<size_t>(from.axis);
  const int64_t before = numel(old.first(at)), inner = numel(old.subspan(at + 1));
  for (size_t j = 0; j < now.size(); ++j) {
    if (numel(now.first(j)) != before || (now[j] == 1 && old[at] != 1)) continue;
    const int64_t step = numel(now.subspan(j + 1));
    Distribution to{static_cast<int>(j), {}};
    for (int64_t c : from.cuts) {
      if (step == 0 || c * inner % step != 0) return {};
      to.cuts.push_back(c * inner / step);
    }
    return to.cuts.back() == now[j] ? std::optional(to) : std::nullopt;  // none in no elements
  }
  return {};
}

// An axis of which the view has every element, in order, and which no other axis depends on.
std::optional<Distribution> affine_layout(Node n, const Distribution& from) {
  if (n->op != Op::Affine) return {};
  const auto rank = static_cast<size_t>(n->ints()[0]);
  const Ints shape = n->ints().subspan(1, rank), map = n->ints().subspan(1 + rank);
  const auto factors = [&](size_t axis) { return map.subspan(axis * (rank + 1) + 1, rank); };
  const auto own = factors(static_cast<size_t>(from.axis));
  int to = -1;
  for (size_t i = 0; i < rank; ++i) {
    if (own[i] == 0) continue;
    if (own[i] != 1 || to >= 0) return {};
    to = static_cast<int>(i);
  }
  if (to < 0 || map[static_cast<size_t>(from.axis) * (rank + 1)] != 0) return {};
  if (shape[to] != from.cuts.back()) return {};
  for (int d = 0; d < n->src(0)->rank; ++d)
    if (d != from.axis && factors(static_cast<size_t>(d))[to] != 0) return {};
  return Distribution{to, from.cuts};
}

// Where the cut axis goes; nothing where it is not cut into the same parts any more.
std::optional<Distribution> moved_layout(Node n, const Distribution& from) {
  const int axis = from.axis;
  const Ints arg = n->ints(), shape = n->src(0)->shape();
  Distribution to = from;
  switch (n->op) {
    case Op::Reshape: return reshaped_layout(n, from);
    case Op::Permute:
      to.axis = static_cast<int>(std::ranges::find(arg, axis) - arg.begin());
      return to;
    case Op::Expand: return arg[axis] == shape[axis] ? std::optional(to) : std::nullopt;
    case Op::Pad:
      for (size_t i = 1; i < to.cuts.size(); ++i) to.cuts[i] += arg[2 * axis];
      to.cuts.back() += arg[2 * axis + 1];
      return to;
    case Op::Shrink:
      for (int64_t& c : to.cuts)
        c = std::clamp(c, arg[2 * axis], arg[2 * axis + 1]) - arg[2 * axis];
      return to;
    case Op::Flip: return arg[axis] ? std::nullopt : std::optional(to);
    case Op::Stride:
      for (int64_t& c : to.cuts) c = ceil_div(c, arg[axis]);
      return to;
    default: return affine_layout(n, from);
  }
}

// The argument of a movement for device i.
Shape moved_argument(Node n, const Distribution& from, const Distribution& to, size_t i) {
  Shape arg = to_shape(n->ints());
  if (from.axis < 0) return arg;
  const int axis = from.axis;
  const int64_t length = from.cuts[i + 1] - from.cuts[i];
  switch (n->op) {
    case Op::Reshape:
    case Op::Expand: arg = part_of(n->shape(), to, i); break;
    case Op::Pad:
      if (i > 0) arg[2 * axis] = 0;
      if (i + 2 < from.cuts.size()) arg[2 * axis + 1] = 0;
      break;
    case Op::Shrink:
      for (int64_t* end : {&arg[2 * axis], &arg[2 * axis + 1]})
        *end = std::clamp<int64_t>(*end - from.cuts[i], 0, length);
      break;
    case Op::Stride: {
      const int64_t step = arg[axis], begin = to.cuts[i] * step - from.cuts[i];
      arg.insert(arg.begin(), {axis, std::min(begin, length)});
      break;
    }
    case Op::Affine: arg[1 + to.axis] = to.cuts[i + 1] - to.cuts[i]; break;
    default: break;
  }
  return arg;
}

Parts movement(Node n, Parts p) {
  // Zeros do no harm to a sum alone.
  if (p.partial && (n->op != Op::Pad || p.partial == Op::Add)) {
    Parts out = each(n, {}, [&](size_t i) { return moved_piece(n, p.pieces[i], n->ints()); });
    out.partial = p.partial;
    return out;
  }
  std::optional<Distribution> to = Distribution{};
  if (p.layout.axis >= 0) to = moved_layout(n, p.layout);
  if (!to || p.partial) {
    p = {in_layout(p, {}, devices_of(n))};
    to = Distribution{};
  }
  return each(n, *to, [&](size_t i) {
    return moved_piece(n, p.pieces[i], moved_argument(n, p.layout, *to, i));
  });
}

// --- reductions and indices ----------------------------------------------------------------------

Parts reduce(Node n, Parts p) {
  const auto [op, axes] = n->arg<ReduceArg>();
  if (p.partial && p.partial != op) p = {in_layout(p, {}, devices_of(n))};
  const bool over_cut = p.layout.axis >= 0 && (axes >> p.layout.axis & 1);
  const LabelScope label(n->label);
  Parts out{{}, over_cut ? Distribution{} : p.layout, over_cut ? std::optional(op) : p.partial};
  for (Node x : p.pieces) {
    Node sum = build::reduce(op, x, axes);
    if (numel(sum->shape()) == 0) sum = build::full(sum->shape(), n->dtype, int64_t{0});
    out.pieces.push_back(sum);
  }
  return out;
}

// The axis of `shape` whose positions an index counts, among those of this size; else -1.
int counted_axis(Node index, int64_t size) {
  for (int i = 0; i < index->rank; ++i)
    if (index->shape()[i] == size && index == build::iota(index->shape(), i, index->dtype))
      return i;
  return -1;
}

// Positions along an axis as those in the part that begins there; others lie outside.
Node shifted(Node index, int64_t begin) {
  const DType t = index->dtype.size() == 8 ? kI64 : kI32;
  return build::binary(Op::Sub, build::cast(index, t), build::full(index->shape(), t, begin));
}

Pieces local_positions(Node n, Node index, const Distribution& layout) {
  const LabelScope label(n->label);
  Pieces out;
  for (size_t i = 0; i < devices_of(n).size(); ++i)
    out.push_back(build::iota(part_of(index->shape(), layout, i), layout.axis, index->dtype));
  return out;
}

Parts gather_pieces(Node n, const Pieces& data, const std::vector<Pieces>& index,
                    const Distribution& to) {
  return each(n, to, [&](size_t i) {
    // A part without elements: all positions lie outside of it.
    if (numel(data[i]->shape()) == 0)
      return build::full(part_of(n->shape(), to, i), n->dtype, int64_t{0});
    const bool owned = data[i]->device != 0;  // rows are looked up in memory of the device
    return build::gather(owned ? data[i] : build::copy_to(data[i], devices_of(n)[i]),
                         at_device(index, i));
  });
}

// Indices of a Gather or Scatter, in[first] and those behind it, along the axis that is cut: in
// each device's own part.
std::vector<Pieces> in_own_part(Node n, const std::vector<Parts>& in, size_t first,
                                const Distribution& data) {
  auto index = all_in_layout(n, in, first, {});
  for (size_t i = 0; i < in[0].pieces.size(); ++i) {
    Node& x = index[data.axis][i];
    x = shifted(x, data.cuts[i]);
  }
  return index;
}

Parts gather(Node n, std::vector<Parts> in) {
  const Distribution data = in[0].layout;
  if (in[0].partial) in[0] = {in_layout(in[0], {}, devices_of(n))};
  if (in[0].layout.axis < 0) {  // any row is on each device
    Distribution to;
    for (size_t k = 1; k < in.size(); ++k)
      if (to.axis < 0) to = in[k].layout;
    return gather_pieces(n, in[0].pieces, all_in_layout(n, in, 1, to), to);
  }
  Node own = resolved(n->src(data.axis + 1));
  const int counted = counted_axis(own, data.cuts.back());
  if (counted >= 0) {  // each device looks up in its own part alone
    const Distribution to{counted, data.cuts};
    auto index = all_in_layout(n, in, 1, to);
    index[data.axis] = local_positions(n, own, to);
    return gather_pieces(n, in[0].pieces, index, to);
  }
  // Elsewhere each device finds what it has, and zeros, for the sum over all.
  Parts out = gather_pieces(n, in[0].pieces, in_own_part(n, in, 1, data), {});
  out.partial = n->dtype.is_bool() ? Op::Max : Op::Add;
  return out;
}

// A base of constants that elements are written over is stored on the device that writes them.
Node with_memory(Node base, int device) {
  Node below = base;
  while (is_movement(below->op)) below = below->src(0);
  return base->device || below->is_const() ? base : build::copy_to(base, device);
}

Parts scatter_pieces(Node n, const Pieces& base, const Pieces& values,
                     const std::vector<Pieces>& index, const Distribution& to) {
  return each(n, to, [&](size_t i) {
    return build::scatter(with_memory(base[i], devices_of(n)[i]), values[i], at_device(index, i),
                          n->arg<ScatterArg>());
  });
}

Parts scatter(Node n, const std::vector<Parts>& in) {
  const ScatterArg how = n->arg<ScatterArg>();
  const Distribution &base = in[0].layout, &values = in[1].layout;
  // An axis of the base whose positions are those of an axis of the values: both are cut alike.
  for (int k = 0; k < n->rank; ++k) {
    Node own = resolved(n->src(k + 2));
    const int counted = counted_axis(own, n->shape()[k]);
    if (counted < 0 || (base.axis != k && values.axis != counted)) continue;
    const Distribution to{k, base.axis == k ? base.cuts : values.cuts}, from{counted, to.cuts};
    auto index = all_in_layout(n, in, 2, from);
    index[k] = local_positions(n, own, from);
    return scatter_pieces(n, in_layout(in[0], to, devices_of(n)),
                          in_layout(in[1], from, devices_of(n)), index, to);
  }
  if (base.axis >= 0)  // each device takes what falls into its part
    return scatter_pieces(n, in[0].pieces, in_layout(in[1], {}, devices_of(n)),
                          in_own_part(n, in, 2, base), base);
  if (values.axis < 0 || how.op != Op::Add)
    return scatter_pieces(n, in_layout(in[0], {}, devices_of(n)),
                          in_layout(in[1], {}, devices_of(n)), all_in_layout(n, in, 2, {}), {});
  // Sums of the values that each device has, for the sum over all; the base counts once, or is such
  // a sum itself.
  const bool is_partial = in[0].partial == Op::Add;
  Pieces start = is_partial ? in[0].pieces : in_layout(in[0], {}, devices_of(n));
  for (size_t i = 1; !is_partial && i < start.size(); ++i)
    start[i] = build::full(n->shape(), n->dtype, int64_t{0});
  Parts out = scatter_pieces(n, start, in_layout(in[1], values, devices_of(n)),
                             all_in_layout(n, in, 2, values), {});
  out.partial = Op::Add;
  return out;
}

// A node's pieces on its devices from those of its sources.
Parts distributed(Node n, const std::vector<Parts>& in) {
  switch (n->op) {
    case Op::Assign: return assign(n, in);
    case Op::After: return after(in);
    case Op::Contiguous: return contiguous(n, in[0]);
    case Op::ReduceAxis: return reduce(n, in[0]);
    case Op::Gather: return gather(n, in);
    case Op::Scatter: return scatter(n, in);
    default: break;
  }
  if (is_movement(n->op)) return movement(n, in[0]);
  expect(is_elementwise(n->op), "shard: ", n->op);
  return elementwise(n, in);
}

// --- a graph -------------------------------------------------------------------------------------

class SpmdPartitioner {
 public:
  explicit SpmdPartitioner(std::span<const Node> roots) {
    for (Node r : roots) walk(r);
    for (Node r : roots) add_root(resolved(r));
  }
  Unsharded result() { return std::move(out_); }

 private:
  void walk(Node root) {
    std::vector<Node> stack{resolved(root)};
    while (!stack.empty()) {
      Node n = stack.back();
      const size_t before = stack.size();
      if (!done_.contains(n))
        for (Node s : n->srcs())
          if (!done_.contains(resolved(s))) stack.push_back(resolved(s));
      if (stack.size() != before) continue;
      stack.pop_back();
      if (done_.contains(n)) continue;
      if (devices_of(n).empty())
        done_[n] = single(n);
      else
        add_parts(n);
    }
  }

  void add_parts(Node n) {
    check(!n->lengths, operation_of(n), ": an axis of ", to_text(n->shape()),
          " has a Variable for a length, which tensors on several devices cannot have");
    const bool is_given = n->op == Op::Shard || n->op == Op::Multi;
    const std::vector<Parts> in = is_given ? std::vector<Parts>() : operands(n);
    Parts p = n->op == Op::Shard ? shard(n) : n->op == Op::Multi ? multi(n) : distributed(n, in);
    p.gathered_for_use = is_given ? n->ints().size() > 2 : is_view_of_weight(n, in);
    const auto devices = devices_of(n);
    for (size_t i = 0; i < devices.size(); ++i) p.pieces[i] = placed(p.pieces[i], devices[i]);
    parts_[n] = p;
    done_[n] = n;
  }

  void add_root(Node n) {
    Unsharded::Root root{out_.pieces.size()};
    const auto devices = devices_of(n);
    if (devices.empty()) {
      out_.pieces.push_back(*done_.find(n));
    } else {
      const Parts& p = *parts_.find(n);
      root.group = n->device;
      root.axis = p.layout.axis;
      root.gathered_for_use = p.gathered_for_use;
      const Pieces pieces = in_layout(p, p.layout, devices);
      for (size_t i = 0; i < devices.size(); ++i)  // constants too get memory where they belong
        out_.pieces.push_back(build::copy_to(pieces[i], devices[i]));
    }
    out_.roots.push_back(root);
  }

  // --- operands ----------------------------------------------------------------------------------

  // A node on one device, or on none, in terms of single devices.
  Node single(Node n) {
    if (n->op == Op::Copy && !devices_of(resolved(n->src(0))).empty()) {
      const int device = static_cast<int>(n->int_value());
      return in_layout(*parts_.find(resolved(n->src(0))), {}, {{device}})[0];
    }
    bool changed = false;
    std::vector<Node> srcs;
    for (Node s : n->srcs()) {
      srcs.push_back(*done_.find(resolved(s)));
      changed |= srcs.back() != resolved(s);
    }
    return changed ? with_sources(n, srcs) : n;
  }

  // A source of `n`. A value on no device is whole on each.
  Parts operand(Node n, size_t i) {
    Node s = resolved(n->src(static_cast<int>(i)));
    if (const Parts* p = parts_.find(s)) return *p;
    Parts out;
    for (int device : devices_of(n)) out.pieces.push_back(placed(*done_.find(s), device));
    return out;
  }

  std::vector<Parts> operands(Node n) {
    std::vector<Parts> out;
    for (size_t i = 0; i < n->num_src; ++i) out.push_back(operand(n, i));
    gather_weights(n, out);
    return out;
  }

  // --- weights -----------------------------------------------------------------------------------

  static bool is_view_of_weight(Node n, const std::vector<Parts>& in) {
    const bool is_view = n->op == Op::Assign || n->op == Op::After ||
                         (n->num_src == 1 &&
                          (is_movement(n->op) || is_elementwise(n->op) || n->op == Op::Contiguous));
    return is_view && in[0].gathered_for_use && in[0].layout.axis >= 0;
  }

  // Weights that are used with something that is cut otherwise, as layers use them.
  void gather_weights(Node n, std::vector<Parts>& in) {
    const bool joins = n->num_src > 1 && (is_elementwise(n->op) || n->op == Op::Gather);
    if (!joins) return;
    const auto other = std::ranges::find_if(
        in, [](const Parts& p) { return !p.gathered_for_use && p.layout.axis >= 0; });
    if (other == in.end()) return;
    for (size_t i = 0; i < in.size(); ++i)
      if (in[i].gathered_for_use && (n->op == Op::Gather || in[i].layout != other->layout))
        in[i] = whole_weight(resolved(n->src(static_cast<int>(i))), other->pieces, devices_of(n));
  }

  Parts whole_weight(Node n, const Pieces& with, std::span<const int> devices) {
    std::vector<Node> views{n};
    const auto is_view = [&](Node x) {
      return x->num_src == 1 && x->op != Op::Shard && x->op != Op::Multi &&
             parts_.find(resolved(x->src(0)));
    };
    while (is_view(views.back())) views.push_back(resolved(views.back()->src(0)));
    std::ranges::reverse(views);
    std::vector<const Parts*> parts;
    for (Node v : views) parts.push_back(parts_.find(v));
    return weights_.gather(views, parts, with, devices);
  }

  Parts shard(Node n) {
    const auto axis = static_cast<int>(n->ints()[1]);
    Distribution to{axis};
    if (axis >= 0) to.cuts = even_cuts(n->shape()[axis], devices_of(n).size());
    Node s = resolved(n->src(0));
    const auto devices = devices_of(n);
    if (!s->device) return {in_layout(operand(n, 0), to, devices), to};
    const Parts* p = parts_.find(s);
    if (!p) return {in_layout({{*done_.find(s)}}, to, devices), to};
    if (std::ranges::equal(devices, devices_of(s))) return {in_layout(*p, to, devices), to};
    if (!p->partial && p->layout == to) return {moved_pieces(*p, devices), to};
    // Cut otherwise, to other devices: whole where it was, which costs more than it must.
    return {in_layout({in_layout(*p, {}, devices_of(s))}, to, devices), to};
  }

  // Each piece to the device of its number.
  static Pieces moved_pieces(const Parts& p, std::span<const int> devices) {
    Pieces out;
    for (size_t i = 0; i < devices.size(); ++i) out.push_back(bring(p.pieces[i], devices[i]));
    return out;
  }

  Parts multi(Node n) {
    const auto axis = static_cast<int>(n->ints()[1]);
    Parts out{{}, {axis, {}}};
    if (axis >= 0) out.layout.cuts.push_back(0);
    for (Node s : n->srcs()) {
      out.pieces.push_back(*done_.find(resolved(s)));
      if (axis >= 0) out.layout.cuts.push_back(out.layout.cuts.back() + s->shape()[axis]);
    }
    return out;
  }

  NodeMap<Node> done_;  // of nodes on single devices: what they became; of others themselves
  NodeMap<Parts> parts_;
  WeightGatherer weights_;
  Unsharded out_;
};

}  // namespace

Unsharded unshard(std::span<const Node> roots) {
  if (has_device_groups()) {
    Unsharded out = SpmdPartitioner(roots).result();
    // Values of constants alone get memory on one device, kernels of others compute them.
    for (Node& piece : out.pieces)
      if (!piece->device && !piece->is_const()) piece = build::contiguous(piece);
    return out;
  }
  Unsharded same;
  same.pieces.assign(roots.begin(), roots.end());
  for (size_t i = 0; i < roots.size(); ++i) same.roots.push_back({i});
  return same;
}

std::vector<Node> regroup(const Unsharded& from, std::span<const Node> pieces) {
  std::vector<Node> out;
  for (const Unsharded::Root& r : from.roots)
    out.push_back(r.group ? build::multi(pieces.subspan(r.begin, device_members(r.group).size()),
                                         r.group, r.axis, r.gathered_for_use)
                          : pieces[r.begin]);
  return out;
}

}  // namespace tiny
