#include "runtime/partition/parts.h"

#include <algorithm>

#include "tiny/ir/build.h"

namespace tiny {

namespace {

// A part of the copy on the same device, or of the first one.
Pieces from_whole(const Parts& p, const Distribution& to, std::span<const int> devices) {
  const LabelScope label("shard");
  Pieces out;
  for (size_t i = 0; i < devices.size(); ++i) {
    const auto here = std::ranges::find_if(
        p.pieces, [&](Node n) { return n->device == 0 || n->device == devices[i]; });
    Node x = here == p.pieces.end() ? p.pieces[0] : *here;
    if (to.axis >= 0) x = slice(x, to.axis, to.cuts[i], to.cuts[i + 1]);
    out.push_back(bring(x, devices[i]));
  }
  return out;
}

// All-to-all: each device fetches what it lacks of each piece.
Pieces recut(const Parts& p, const Distribution& to, std::span<const int> devices) {
  if (p.layout == to) return p.pieces;
  const LabelScope label("all_to_all");
  const int axis = p.layout.axis;
  const Shape& cuts = p.layout.cuts;
  Pieces out;
  for (size_t i = 0; i < devices.size(); ++i) {
    const int64_t begin = to.axis == axis ? to.cuts[i] : 0;
    const int64_t end = to.axis == axis ? to.cuts[i + 1] : cuts.back();
    Pieces parts;
    for (size_t j = 0; j < p.pieces.size(); ++j) {
      const int64_t from = std::clamp(begin, cuts[j], cuts[j + 1]);
      const int64_t until = std::clamp(end, cuts[j], cuts[j + 1]);
      if (from == until && !(parts.empty() && j + 1 == p.pieces.size())) continue;
      Node x = slice(p.pieces[j], axis, from - cuts[j], until - cuts[j]);
      if (to.axis != axis) x = slice(x, to.axis, to.cuts[i], to.cuts[i + 1]);
      parts.push_back(bring(x, devices[i]));
    }
    out.push_back(join(parts, axis));
  }
  return out;
}

}  // namespace

Pieces in_layout(const Parts& p, const Distribution& to, std::span<const int> devices) {
  if (p.partial && devices.size() < p.pieces.size()) {
    const LabelScope label("reduce");
    return {reduce_to(*p.partial, p.pieces, devices[0])};
  }
  if (p.partial && to.axis < 0) return all_reduce(*p.partial, p.pieces, devices);
  if (p.partial) return reduce_scatter(*p.partial, p.pieces, devices, to.axis, to.cuts);
  if (p.layout.axis < 0) return from_whole(p, to, devices);
  if (to.axis < 0) return all_gather(p.pieces, devices, p.layout.axis);
  return recut(p, to, devices);
}

Shape part_of(Ints shape, const Distribution& layout, size_t i) {
  Shape out = to_shape(shape);
  if (layout.axis >= 0) out[layout.axis] = layout.cuts[i + 1] - layout.cuts[i];
  return out;
}

namespace {

// The argument of a Stride here may begin with the elements to skip in front (see
// moved_argument).
Node strided(Node x, Ints arg) {
  if (arg.size() == x->rank) return build::stride(x, arg);
  const auto axis = static_cast<int>(arg[0]);
  return build::stride(slice(x, axis, arg[1], x->shape()[axis]), arg.subspan(2));
}

}  // namespace

Node moved_piece(Node n, Node x, Ints arg) {
  return n->op == Op::Stride ? strided(x, arg) : build::movement(n->op, x, arg);
}

// --- weights -------------------------------------------------------------------------------------

namespace {

// What is read from memory by views and casts, read once `before` is there.
Node read_after(Node x, Node before) {
  const bool is_view = is_movement(x->op) || is_elementwise(x->op) || x->op == Op::Contiguous;
  if (is_view && x->num_src == 1)
    return with_sources(x, std::vector{read_after(x->src(0), before)});
  return build::after(x, before);
}

int64_t bytes_of(Node n) { return numel(n->shape()) * static_cast<int64_t>(n->dtype.size()); }

}  // namespace

Parts WeightGatherer::gather(const std::vector<Node>& views, const std::vector<const Parts*>& parts,
                             const Pieces& with, std::span<const int> devices) {
  // Below what repeats elements, and a cast to fewer bytes.
  const auto least = std::ranges::min_element(views, {}, bytes_of);
  Parts cut = *parts[least - views.begin()];
  Pieces& before = before_[devices[0]];
  if (before.size() == devices.size())
    for (size_t i = 0; i < devices.size(); ++i)
      cut.pieces[i] = read_after(cut.pieces[i], before[i]);
  before = with;
  for (Node& n : before)
    while (is_movement(n->op)) n = n->src(0);
  Parts out{in_layout(cut, {}, devices)};
  for (auto v = least + 1; v != views.end(); ++v)
    for (Node& x : out.pieces)
      x = is_movement((*v)->op) ? moved_piece(*v, x, (*v)->ints()) : with_sources(*v, {&x, 1});
  return out;
}

}  // namespace tiny
