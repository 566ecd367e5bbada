#include "runtime/layout/pack.h"

#include <algorithm>
#include <cstdlib>
#include <set>
#include <utility>

#include "codegen/heuristics/rates.h"
#include "codegen/options/mma.h"
#include "codegen/wgmma/tile.h"
#include "runtime/analysis/graph_contraction.h"
#include "runtime/fusion/fuse.h"
#include "runtime/layout/panels.h"
#include "tiny/ir/build.h"
#include "tiny/ir/sizes.h"
#include "tiny/rewrite/algebra.h"

namespace tiny {

namespace {

// mma.sync reads staged operands in either order.
bool has_mma_units(const GraphContraction& c, const Target& target) {
  return std::ranges::all_of(c.operands, [&](const ProductOperand& o) {
    return mma_unit(target, o.point->dtype) != nullptr;
  });
}

// GEMMs whose blocks stage operands in shared memory.
bool is_staged(const GraphContraction& c, const Target& target) {
  int64_t own[2] = {1, 1}, terms = 1, others = 1;
  for (int i = 0; i < c.rank(); ++i) {
    const Walk::Kind a = c.walk(0, i).kind, b = c.walk(1, i).kind;
    const bool in_a = a != Walk::None, in_b = b != Walk::None;
    const bool counts = in_a && in_b && !c.is_summed(i);  // GEMMs, or split-K slices
    if ((a == Walk::Irregular || b == Walk::Irregular) && !counts) return false;
    if (c.is_summed(i) && terms > 1 && c.extent(i) > 1) return false;  // a window
    (c.is_summed(i) ? terms : in_a == in_b ? others : own[in_b]) *= c.extent(i);
  }
  return is_worth_staging(own[0], own[1], terms, others, has_mma_units(c, target), target);
}

// The axis of a CPU's product that vectors of its results are to lie along.
class VectorAxis {
 public:
  VectorAxis(const GraphContraction& c, const Target& target) : c_(c), target_(target) {}

  // -1: there is none.
  int best() const {
    int best = -1;
    double best_cost = 0;
    const auto consider = [&](int i, double now) {
      if (best >= 0 && now > best_cost) return;
      best = i;  // of equals the one that results are written along
      best_cost = now;
    };
    for (int i = 0; i < c_.rank(); ++i)
      if (!c_.is_summed(i) && c_.extent(i) >= 4) consider(i, cost(i));
    // Where too few vectors lie in order the other operand may be packed for better tiles.
    for (int o : {0, 1}) {
      if (best < 0 || c_.walk(o, best).kind != Walk::Contiguous || c_.moves(1 - o, best)) continue;
      best_cost *= wait(o, best);
      for (int i = 0; i < c_.rank(); ++i)
        if (!c_.is_summed(i) && c_.walk(1 - o, i).kind == Walk::Movable && !c_.moves(o, i))
          consider(i, cost(i) * wait(1 - o, i));
      break;
    }
    return best;
  }

 private:
  // Vector loads and arithmetic for each vector of products when axis `i` is the one of the
  // vectors, and the work of packing, by a kernel more, shared out among them.
  double cost(int i) const {
    constexpr double kGather = 1.5, kPack = 4, kKernel = 8192;  // of a lane, of an element, of all
    const int64_t lanes = target_.vector_bytes / 4, vectors = ceil_div(c_.extent(i), lanes);
    const auto each = static_cast<double>(lanes) / static_cast<double>(numel(c_.product->shape()));
    double sum = 0;
    for (int o : {0, 1}) {
      const auto elements = static_cast<double>(numel(c_.operands[o].point->shape()));
      switch (c_.walk(o, i).kind) {
        case Walk::None: sum += 0.5; break;
        case Walk::Contiguous: sum += 1; break;
        case Walk::Movable: sum += 1 + (kPack * elements + kKernel) * each; break;
        case Walk::Irregular: sum += kGather * static_cast<double>(lanes); break;
      }
    }
    return sum * static_cast<double>(vectors * lanes) / static_cast<double>(c_.extent(i));
  }

  // How much longer tiles take whose vectors lie along the axis, of an operand of so many rows.
  double wait(int operand, int i) const {
    int64_t rows = 1;
    for (int axis = 0; axis < c_.rank(); ++axis)
      if (!c_.is_summed(axis) && !c_.moves(operand, axis)) rows = std::max(rows, c_.extent(axis));
    const int64_t vectors = ceil_div(c_.extent(i), int64_t{target_.vector_bytes / 4});
    return load_bound(register_tile(target_, rows, vectors, true));
  }

  const GraphContraction& c_;
  const Target& target_;
};

class PackPlanner {
 public:
  explicit PackPlanner(const Target& target) : target_(target) {}

  // Empty where they are for no matrix unit.
  std::vector<OperandPlan> rows_for_units(Node n) const {
    constexpr int64_t kUses = 64, kMin = 24, kFew = 64, kMany = int64_t{1} << 27;
    const GraphContraction c(n);
    const int64_t work = numel(c.product->shape());
    const int sum = c.summed_axis();
    if (sum < 0) return {};
    std::vector<OperandPlan> plans;
    int64_t own[2] = {1, 1};
    for (int i : {0, 1}) {
      const ProductOperand& o = c.operands[i];
      if (!has_matrix_unit(target_, o.point->dtype) || o.gate || !is_affine(o) || has_windows(o))
        return {};
      const Walk walk = c.walk(i, sum);
      if (walk.kind != Walk::Movable && walk.kind != Walk::Contiguous) return {};
      const bool turns = matrix_type(o.point->dtype)->allows_mn_major;
      const bool moved = !turns && walk.kind == Walk::Movable;
      OperandPlan p = plan_of(c, i, moved ? sum : -1);
      pad_rows(p, moved || !turns ? walk.dim : last_axis(o.point->shape()));
      if ((moved || p.map.padded) && (work < kMany || numel(o.point->shape()) * kUses > work))
        return {};
      for (int axis = 0; axis < c.rank(); ++axis)
        if (!c.is_summed(axis) && c.moves(i, axis)) own[i] *= c.extent(axis);
      plans.push_back(p);
    }
    const bool large = std::min(own[0], own[1]) >= kMin && std::max(own[0], own[1]) >= kFew;
    const bool fits = are_operands_of_one(plans[0].point->dtype, plans[1].point->dtype);
    return large && fits ? plans : std::vector<OperandPlan>();
  }

  // Empty where the operands are not affine views, or padded in a way of their own.
  std::vector<OperandPlan> plan(Node n) const {
    const GraphContraction c(n);
    if (!std::ranges::all_of(c.operands, is_affine) || !pads_alone(c.operands)) return {};
    const bool gpu = target_.kind == Target::Kind::Gpu;
    const bool staged = gpu && is_staged(c, target_);
    if (staged && has_mma_units(c, target_)) return {};
    const int turned = staged ? turned_operand(c) : -1;
    const int axis = gpu ? -1 : VectorAxis(c, target_).best();
    std::vector<OperandPlan> plans;
    for (int i : {0, 1}) {
      const ProductOperand& o = c.operands[i];
      OperandPlan p = plan_of(c, i, gpu && i != turned ? own_axis(c, i) : axis);
      if (const int dim = sum_dim(c, i, axis, target_); dim >= 0) p.dim = dim;
      p.widened = axis >= 0 && is_worth_widening(c.product, o);
      plans.push_back(p);
    }
    return plans;
  }

  // Of a staged product of f32 the operand that is transposed on its way through registers, as
  // codegen/heuristics/gpu_staged.cpp does where one of them lies along the sum. That costs as much
  // as packing it for so many uses of each element (measurements.md: turned_operand). -1: none.
  int turned_operand(const GraphContraction& c) const {
    constexpr int64_t kUses = 1280, kStep = 32, kLanes = 4;
    const int sum = c.summed_axis();
    if (sum < 0 || target_.language != Target::Language::Cuda || c.extent(sum) % kStep != 0)
      return -1;
    const auto size = [&](int i) { return numel(c.operands[i].point->shape()); };
    const auto lies_along_sum = [&](int i) { return c.walk(i, sum).kind == Walk::Contiguous; };
    const int largest = size(1) > size(0), other = 1 - largest;
    Node point = c.operands[largest].point;
    const bool is_one = lies_along_sum(largest) && point->dtype == kF32 &&
                        point->shape().back() % kLanes == 0 &&
                        size(largest) * kUses >= numel(c.product->shape());
    const bool is_only = !lies_along_sum(other) || own_axis(c, other) >= 0;
    return is_one && is_only ? largest : -1;
  }

  // Nothing where it steps over no elements, or would take about as much to store as to compute.
  std::optional<OperandPlan> plan_window(Node top, Node reduce) const {
    const OwnRanges own_ranges(top->shape());
    const std::vector<Node>& ranges = own_ranges.ranges;
    const ProductOperand o = follow(top, ranges);
    if (!is_affine(o) || !pads_alone({o}) || !steps_over(o, ranges, reduce)) return {};
    OperandPlan p{o.point, affine_map(o, ranges)};
    const bool computed = p.map.padded || is_elementwise(p.point->op);
    if (!computed || 4 * numel(top->shape()) < 5 * numel(p.point->shape())) return {};
    return p;
  }

 private:
  OperandPlan plan_of(const GraphContraction& c, int operand, int axis) const {
    const ProductOperand& o = c.operands[operand];
    OperandPlan p{o.point, c.map(operand)};
    if (axis < 0) return p;
    const Walk w = c.walk(operand, axis);
    if (w.kind == Walk::Movable ||
        (w.kind == Walk::Contiguous && wants_panels(o, w.dim, target_))) {
      p.dim = w.dim;
      p.width = panel_width(o.point->shape()[w.dim], target_);
    }
    return p;
  }

  // To multiples of 16 bytes, with axis `dim` innermost.
  static void pad_rows(OperandPlan& p, int dim) {
    const int64_t size = p.point->shape()[dim], unit = 16 / p.point->dtype.size();
    if (size % unit == 0 || size == numel(p.point->shape())) return;
    p.map.pad[2 * dim + 1] += unit - size % unit;
    p.map.padded = true;
  }

  // A GPU's threads lie along an axis of one operand and load vectors along an axis of the other:
  // each is to be contiguous along an axis that it has to itself. Such an axis for one that is not,
  // where packing is little beside the product; -1 where the operand stays as it is.
  int own_axis(const GraphContraction& c, int operand) const {
    constexpr int64_t kUses = 64, kSmallest = 4;
    const int64_t size = numel(c.operands[operand].point->shape());
    if (is_dense(c, operand) || size * kUses > numel(c.product->shape())) return -1;
    int best = -1;
    for (int i = 0; i < c.rank(); ++i)
      if (!c.is_summed(i) && c.extent(i) >= kSmallest && c.walk(operand, i).kind == Walk::Movable &&
          !c.moves(1 - operand, i) && (best < 0 || c.extent(i) > c.extent(best)))
        best = i;
    return best;
  }

  // Whether neighbouring results, as many as a warp has threads, need few lines of the operand,
  // or some more where two share a sector, as every fourth f32 (measurements.md: is_dense).
  bool is_dense(const GraphContraction& c, int operand) const {
    constexpr int64_t kLine = 128, kHalfSector = 16, kFew = 3, kFewOfShared = 5;
    std::vector<std::pair<int64_t, int64_t>> steps;  // in memory, and how many
    const ProductOperand& o = c.operands[operand];
    for (int i = 0; i < c.rank(); ++i) {
      const int64_t s = std::abs(step_of(o, c.ranges[i]));
      if (!c.is_summed(i) && c.extent(i) > 1 && s != 0) steps.emplace_back(s, c.extent(i));
    }
    std::ranges::sort(steps);
    std::set<int64_t> lines;
    for (int thread = 0; thread < target_.warp; ++thread) {
      int64_t at = 0, rest = thread;
      for (const auto& [s, size] : steps) {
        at += s * (rest % size);
        rest /= size;
      }
      lines.insert(at * o.point->dtype.size() / kLine);
    }
    const bool shared = !steps.empty() && steps[0].second >= target_.warp &&
                        steps[0].first * o.point->dtype.size() <= kHalfSector;
    return static_cast<int64_t>(lines.size()) <= (shared ? kFewOfShared : kFew);
  }

  // Elements of the operand's memory from one place to the next along the range.
  static int64_t step_of(const ProductOperand& o, Node range) {
    int64_t step = 0, behind = 1;
    for (size_t d = o.at.size(); d-- > 0;) {
      for (const auto& t : to_sum(o.at[d]).terms)
        if (t.atom == range) step += t.factor * behind;
      behind *= o.point->shape()[static_cast<int>(d)];
    }
    return step;
  }

  // Whether from one result to the next the innermost axis is walked by more than one element.
  static bool steps_over(const ProductOperand& o, const std::vector<Node>& ranges, Node reduce) {
    if (o.at.empty()) return false;
    for (const auto& t : to_sum(o.at.back()).terms)
      for (int i = 0; i < reduce->rank; ++i)
        if (t.atom == ranges[i] && !is_reduced(reduce, i) && std::abs(t.factor) > 1) return true;
    return false;
  }

  const Target& target_;
};

}  // namespace

namespace {

// `view` by way of memory in the order of the smallest of the views that it is made of with which
// it has what is asked for; of equals the one that is furthest below, 16-bit floats as such.
template <class IsRight> Node by_way_of_memory(Node view, IsRight is_right) {
  constexpr int64_t kUses = 32;
  const auto fits = [&](Node v) {
    const OwnRanges own(v->shape());
    return is_right(follow(v, own.ranges));
  };
  if (fits(view)) return view;
  std::vector<Node> views;  // from the product down
  for (Node v = view; is_view(v); v = v->src(0)) views.push_back(v);
  Node best = view;
  int64_t least = numel(view->shape()) / kUses + 1;  // elements
  for (size_t i = views.size(); i-- > 0;) {
    if (numel(views[i]->shape()) >= least) continue;
    for (Node memory : {as_halves(views[i]), views[i]}) {
      if (!memory) continue;
      Node now = build::cast(build::contiguous(memory), views[i]->dtype);
      for (size_t above = i; above-- > 0;) now = with_sources(views[above], std::span(&now, 1));
      if (!fits(now)) continue;
      best = now;
      least = numel(views[i]->shape());
      break;
    }
  }
  return best;
}

// Whether the innermost axis of memory is walked in larger steps than one, or some axis backwards:
// TMA boxes have steps along the others.
bool has_steps(const ProductOperand& o) {
  return std::ranges::any_of(o.at, [&](Node at) {
    const auto terms = to_sum(at).terms;
    if (terms.empty()) return false;
    const int64_t least = std::ranges::min(terms, {}, &Sum::Term::factor).factor;
    return at == o.at.back() ? least != 1 : least < 0;
  });
}

// Whether elements of memory between those that are read are no others': of an axis every second
// one alone, say.
bool skips_elements(const ProductOperand& o) {
  return std::ranges::any_of(o.at, [](Node at) {
    const auto terms = to_sum(at).terms;
    return !terms.empty() &&
           std::ranges::all_of(terms, [](const auto& t) { return std::abs(t.factor) > 1; });
  });
}

// Whether its rows begin between multiples of 16 bytes, where bulk copies cannot.
bool begins_apart(const ProductOperand& o) {
  return !o.at.empty() && to_sum(o.at.back()).constant * o.point->dtype.size() % 16 != 0;
}

}  // namespace

Node with_affine_indices(Node view) {
  return by_way_of_memory(view, [](const ProductOperand& o) { return is_affine(o); });
}

Node with_dense_indices(Node view) {
  return by_way_of_memory(
      view, [](const ProductOperand& o) { return is_affine(o) && !skips_elements(o); });
}

Node with_plain_operands(Node reduce, const Target& target) {
  const GraphContraction c(reduce);
  Node product = c.product;
  // As bools beside f32, or 16-bit floats.
  const bool widens_any = has_matrix_unit(target, product->dtype);
  bool widens =
      widens_any && !are_operands_of_one(c.operands[0].point->dtype, c.operands[1].point->dtype);
  for (int i : {0, 1}) {
    const ProductOperand& o = c.operands[i];
    const bool takes = has_matrix_unit(target, o.point->dtype) || mma_unit(target, o.point->dtype);
    if (product->src(i)->lengths || !is_affine(o) || has_windows(o) || !(takes || widens_any))
      return reduce;
    widens |= widens_any && !takes;
  }
  ArenaScope lasting(Arena::global());
  std::vector<Node> srcs;
  for (Node s : product->srcs())
    srcs.push_back(by_way_of_memory(s, [&](const ProductOperand& o) {
      return is_affine(o) && !o.gate && !(target.has_wgmma && (has_steps(o) || begins_apart(o))) &&
             !(widens && o.point->dtype != product->dtype);
    }));
  return with_operands(reduce, srcs);
}

Node with_operands(Node reduce, std::span<const Node> operands) {
  Node product = with_sources(reduce->src(0), operands);
  return with_sources(reduce, std::span(&product, 1));
}

std::vector<Node> computed_operands(Node reduce, const Target& target) {
  constexpr int64_t kUses = 64;
  Node mul = base_of(reduce->src(0));
  if (!target.has_wgmma || mul->op != Op::Mul) return {};
  const GraphContraction c(reduce, FollowHalves{});
  if (std::ranges::any_of(c.operands, has_windows)) return {};
  std::vector<Node> points;
  for (const ProductOperand& o : c.operands) points.push_back(o.point);
  const auto is_computed = [](Node p) { return is_elementwise(p->op) || p->op == Op::Gather; };
  for (Node p : points)
    if (!has_matrix_unit(target, p->dtype) ||
        (is_computed(p) && numel(mul->shape()) < kUses * numel(p->shape())))
      return {};
  std::erase_if(points, [&](Node p) { return !is_computed(p); });
  return points;
}

std::vector<OperandPlan> plan_unit_rows(Node reduce, const Target& target) {
  return PackPlanner(target).rows_for_units(reduce);
}
std::vector<OperandPlan> plan_packing(Node reduce, const Target& target) {
  return PackPlanner(target).plan(reduce);
}
bool turns_operand(Node reduce, const Target& target) {
  if (reduce->src(0)->op != Op::Mul) return false;
  const GraphContraction c(reduce);
  return std::ranges::all_of(c.operands, is_affine) && !has_mma_units(c, target) &&
         is_staged(c, target) && PackPlanner(target).turned_operand(c) >= 0;
}
std::optional<OperandPlan> plan_window(Node view, Node reduce, const Target& target) {
  return PackPlanner(target).plan_window(view, reduce);
}

}  // namespace tiny
