#include "runtime/rewrites/split_joined.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "runtime/analysis/views.h"
#include "tiny/ir/build.h"
#include "tiny/rewrite/rebuild.h"

namespace tiny {

namespace {

// where(position along the axis < size of the first, first padded, second padded).
struct Join {
  Node first = nullptr, second = nullptr;
  int axis = -1;
  int64_t middle() const { return first->shape()[axis]; }
};

// The axis along which a condition is that of the first `middle` elements; -1 for any other.
int axis_of(Node condition, int64_t middle) {
  if (condition->op != Op::Lt) return -1;
  Node at = condition->src(0), value = condition->src(1);
  while (is_movement(value->op)) value = value->src(0);
  if (!value->is_const() || !value->dtype.is_int() || value->int_value() != middle) return -1;
  while (at->op == Op::Expand) at = at->src(0);
  int axis = -1;
  for (int i = 0; i < at->rank; ++i)
    if (at->shape()[i] > 1) {
      if (axis >= 0) return -1;
      axis = i;
    }
  while (at->op == Op::Reshape) at = at->src(0);
  return at->op == Op::Iota ? axis : -1;
}

// Whether a value is the source of a Pad along this axis alone, with so many elements around it.
bool is_padded(Node n, int axis, int64_t before, int64_t after) {
  if (n->op != Op::Pad) return false;
  const Ints pads = n->ints();
  for (int i = 0; i < n->rank; ++i)
    if (pads[2 * static_cast<size_t>(i)] != (i == axis ? before : 0) ||
        pads[2 * static_cast<size_t>(i) + 1] != (i == axis ? after : 0))
      return false;
  return true;
}

// Many values and a few behind them.
std::optional<Join> join_at(Node n) {
  constexpr int64_t kFew = 16;
  if (n->op != Op::Where || n->lengths || n->src(1)->op != Op::Pad || n->src(2)->op != Op::Pad)
    return {};
  Join out{n->src(1)->src(0), n->src(2)->src(0)};
  for (int i = 0; i < n->rank; ++i) {
    const int64_t many = out.first->shape()[i], few = out.second->shape()[i];
    if (many + few != n->shape()[i] || few > kFew || many <= kFew * few) continue;
    out.axis = i;
    if (axis_of(n->src(0), many) == i && is_padded(n->src(1), i, 0, few) &&
        is_padded(n->src(2), i, many, 0))
      return out;
  }
  return {};
}

bool is_made_of_product(Node n) {
  bool any = false;
  visit_below({n}, [&](Node below) {
    any |= below->op == Op::ReduceAxis && is_product(below);
    return !any && (is_movement(below->op) || is_elementwise(below->op));
  });
  return any;
}

class Parts {
 public:
  // The join that a value is made of, element by element.
  std::optional<Join> join_below(Node n) {
    constexpr int kDeep = 16;
    return find(n, kDeep);
  }

  // The elements [begin, end) of a value along an axis.
  Node part(Node n, int axis, int64_t begin, int64_t end) {
    Shape shape = to_shape(n->shape()), bounds;
    if (begin == 0 && end == shape[axis]) return n;
    for (int i = 0; i < n->rank; ++i)
      bounds.insert(bounds.end(), {i == axis ? begin : 0, i == axis ? end : shape[i]});
    shape[axis] = end - begin;
    if (const auto join = join_at(n); join && join->axis == axis) {
      const int64_t middle = join->middle();
      if (end <= middle) return part(join->first, axis, begin, end);
      if (begin >= middle) return part(join->second, axis, begin - middle, end - middle);
    }
    if (n->op == Op::Expand && n->src(0)->shape()[axis] == 1)
      return build::expand(n->src(0), shape);
    if (n->op == Op::Pad) {
      const size_t at = 2 * static_cast<size_t>(axis);
      const int64_t first = n->ints()[at], last = n->shape()[axis] - n->ints()[at + 1];
      if (is_padded(n, axis, first, n->ints()[at + 1]) && begin >= first && end <= last)
        return part(n->src(0), axis, begin - first, end - first);
      if (n->dtype.is_float() && (end <= first || begin >= last))
        return build::full(shape, n->dtype, 0.0);
    }
    if (is_elementwise(n->op) && n->num_src > 0 && !n->lengths) {
      std::vector<Node> srcs;
      for (Node s : n->srcs()) srcs.push_back(part(s, axis, begin, end));
      return with_sources(n, srcs);
    }
    return build::shrink(n, bounds);
  }

 private:
  std::optional<Join> find(Node n, int deep) {
    if (const auto join = join_at(n); join && is_made_of_product(join->first)) return join;
    if (!is_elementwise(n->op) || n->lengths || deep == 0) return {};
    for (Node s : n->srcs())
      if (auto found = find(s, deep - 1)) return found;
    return {};
  }
};

}  // namespace

NodeMap<Node> split_joined(std::span<const Node> order) {
  const auto is_join = [](Node n) { return join_at(n).has_value(); };
  if (std::ranges::none_of(order, is_join)) return NodeMap<Node>();
  return rebuild_all(order, [](Node, Node n) {
    if (n->op != Op::ReduceAxis && n->op != Op::Shrink) return n;
    Parts parts;
    const Node x = n->src(0);
    const auto join = x->dtype.is_float() ? parts.join_below(x) : std::nullopt;
    if (!join) return n;
    const int axis = join->axis;
    const int64_t size = x->shape()[axis];
    if (n->op == Op::Shrink) {
      const size_t at = 2 * static_cast<size_t>(axis);
      const int64_t begin = n->ints()[at], end = n->ints()[at + 1];
      if (begin < join->middle() && end > join->middle()) return n;
      Shape rest(n->ints().begin(), n->ints().end());
      rest[at] = 0;
      rest[at + 1] = end - begin;
      return build::shrink(parts.part(x, axis, begin, end), rest);
    }
    const ReduceArg how = n->arg<ReduceArg>();
    const bool combines = how.op == Op::Add || how.op == Op::Max || how.op == Op::Min;
    if (!combines || !(how.axes >> axis & 1)) return n;
    const auto reduced = [&](int64_t begin, int64_t end) {
      const Node some = parts.part(x, axis, begin, end);
      const bool is_one = end - begin == 1 && how.axes == 1u << axis && some->dtype == n->dtype;
      return is_one ? some : with_sources(n, std::span(&some, 1));
    };
    return build::binary(how.op, reduced(0, join->middle()), reduced(join->middle(), size));
  });
}

}  // namespace tiny
