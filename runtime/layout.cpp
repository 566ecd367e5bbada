#include "runtime/layout.h"

#include <algorithm>
#include <cstdlib>
#include <set>
#include <utility>

#include "codegen/matrix.h"
#include "codegen/mma.h"
#include "codegen/stage.h"
#include "runtime/fuse.h"
#include "runtime/layout_columns.h"
#include "runtime/layout_neighbours.h"
#include "runtime/layout_panels.h"
#include "runtime/layout_results.h"
#include "runtime/layout_windows.h"
#include "runtime/narrow.h"
#include "runtime/operand.h"
#include "tiny/algebra.h"
#include "tiny/build.h"

namespace tiny {

namespace {

class Layouts {
 public:
  explicit Layouts(const Target& target) : target_(target) {}

  std::vector<Node> stored;

  // `innermost`: the axis of what is reduced that lies innermost in memory, -1 where it is the
  // last.
  Node reduce(Node n, int innermost = -1) {
    if (numel(n->src(0)->shape()) == 0) return n;
    Node p = with_product_on_top(n);
    if (!p && is_byte_product(n)) p = with_product_on_top(n, true);
    const bool product = p != nullptr;
    if (product) n = with_rows_for_units(p);
    if (product) store_halves(n);
    if (const auto windows = product ? find_window_product(n, target_) : std::nullopt) {
      const SumParts parts = parts_of(n, *windows, target_);
      if (windows->copied || parts.count == 1) return with_windows(n, *windows, parts);
      const int64_t most = std::min<int64_t>(parts.count, 64);
      return split(n, {windows->images, largest_divisor(n->src(0)->shape()[windows->images], most)},
                   product);
    }
    if (const auto joined = product ? join_results(n, target_) : std::nullopt)
      return joined->restored(reduce(joined->product));
    if (Node neighbours = product ? with_neighbours(n, target_) : nullptr) return neighbours;
    if (Node columns = product ? with_columns(n, target_) : nullptr) {
      n = columns;
      store_halves(n);
    }
    if (const Split s = choose_split(n, product, innermost); s.parts > 1)
      return split(n, s, product);
    if (!product) return with_stored_windows(n);
    return is_for_matrix_units(n) ? n : with_packed_operands(n);
  }

 private:
  // --- splitting -------------------------------------------------------------------------------

  struct Split {
    int axis = -1;
    int64_t parts = 1;
  };

  static int64_t largest_divisor(int64_t n, int64_t most) {
    for (int64_t d = std::min(n, most); d > 1; --d)
      if (n % d == 0) return d;
    return 1;
  }

  static int largest_reduced_axis(Node n) {
    int best = -1;
    for (int i = 0; i < n->rank; ++i)
      if (is_reduced(n, i) && (best < 0 || n->src(0)->shape()[i] > n->src(0)->shape()[best]))
        best = i;
    return best;
  }

  // Enough results for all cores need no split; few results from many elements are computed in
  // parts. The number of parts depends on sizes alone, so that results are the same everywhere.
  Split choose_split(Node n, bool product, int innermost) const {
    constexpr int64_t kParts = 64, kFewResults = 16, kManyElements = 1 << 16;
    const int64_t results = numel(n->shape()), elements = numel(n->src(0)->shape());
    if (target_.kind == Target::Kind::Gpu) return split_for_threads(n, product, innermost);
    if (results < kFewResults && elements >= kManyElements) {
      const int axis = largest_reduced_axis(n);
      return {axis, largest_divisor(n->src(0)->shape()[axis], kParts)};
    }
    return product ? split_for_caches(n) : Split{};
  }

  // A GPU that would stand half idle gets more to do at once. Of a product a thread makes about 32
  // results. A block of threads makes one where the innermost axis is reduced; where another one
  // is, a line of memory of them, and there are to be four blocks for each multiprocessor.
  Split split_for_threads(Node n, bool product, int innermost) const {
    constexpr int64_t kShortest = 256;       // what is left to reduce in a part
    constexpr int64_t kLine = 128;           // bytes
    constexpr int64_t kSecondKernel = 1024;  // what a tile reduces in the time of one more launch
    constexpr int64_t kByBlock = 16 << 10;  // of a row: a block adds them up as fast as two kernels
    constexpr int64_t kBlockBytes = 32 << 10;  // two vectors for each thread of a full block
    const Ints shape = n->src(0)->shape();
    const int64_t results = numel(n->shape()), length = numel(shape) / results;
    const bool rows = !product && is_reduced(n, innermost < 0 ? last_axis(shape) : innermost);
    const bool tiled = product && is_for_matrix_units(n);
    if (tiled && (length < kSecondKernel || !is_thin(n))) {
      const Ints sizes = n->shape();  // few rows still take tiles of their own
      const int64_t longest = *std::max_element(sizes.begin(), sizes.end());
      const int64_t tiles = std::max({int64_t{1}, results / (128 * 64), longest / 128});
      const int64_t parts = std::min(target_.cores / tiles, length / kSecondKernel);
      if (parts < 2) return {};
      const int axis = largest_reduced_axis(n);
      return {axis, largest_divisor(shape[axis], parts)};
    }
    const int64_t line = kLine / element_size(n->src(0)), lines = (results + line - 1) / line;
    const bool columns = !rows && !product;
    if ((columns && 2 * lines > target_.cores) || (rows && length < kByBlock)) return {};
    const int64_t threads = rows ? results * 256 : product ? results / 32 : lines * 256;
    const int64_t wanted = target_.cores * int64_t{1024} / std::max<int64_t>(threads, 1);
    int64_t most = std::min(wanted, length / (rows ? 16 * kShortest : kShortest / 4));
    // What memory limits: many short blocks end together, on an H200 6 % before four long ones.
    if (most > 1 && rows && results == 1 && length * element_size(n->src(0)) > target_.l2_bytes)
      most = std::clamp(length * element_size(n->src(0)) / kBlockBytes, most, kByBlock);
    if (most < (product ? 4 : 2)) return {};
    const int axis = largest_reduced_axis(n);
    return {axis, largest_divisor(shape[axis], most)};
  }

  // Bytes of an element of the narrowest values as large as this one that it is computed from.
  static int64_t element_size(Node n) {
    constexpr size_t kMost = 64;  // looked at
    int64_t size = n->dtype.size();
    NodeMap<char> seen;
    std::vector<Node> stack{n};
    while (!stack.empty() && seen.size() < kMost) {
      Node s = stack.back();
      stack.pop_back();
      if (std::exchange(seen[s], 1) || s->dtype.scalar == Scalar::Bool) continue;
      if (2 * numel(s->shape()) < numel(n->shape())) continue;
      size = std::min<int64_t>(size, s->dtype.size());
      if (is_view(s) || is_elementwise(s->op))
        stack.insert(stack.end(), s->srcs().begin(), s->srcs().end());
    }
    return size;
  }

  // These read their operands in tiles that other blocks share with them, halves in either order.
  bool is_for_matrix_units(Node n) const {
    Node mul = base_of(n->src(0));
    if (mul->op != Op::Mul || mul->num_src != 2) return false;
    return std::all_of(mul->srcs().begin(), mul->srcs().end(), [&](Node s) {
      while (is_view(s) && !halves_.contains(s)) s = s->src(0);
      return has_matrix_unit(target_, s->dtype) &&
             (matrix_type(s->dtype)->turns || along_sum_.contains(mul));
    });
  }

  bool is_byte_product(Node n) const {
    Node mul = base_of(n->src(0));
    if (!target_.has_wgmma || mul->op != Op::Mul || mul->num_src != 2) return false;
    return std::all_of(mul->srcs().begin(), mul->srcs().end(), [&](Node s) {
      while (is_view(s)) s = s->src(0);
      return s->dtype.size() == 1 && has_matrix_unit(target_, s->dtype);
    });
  }

  // Such tiles are copied as they lie in memory: halves that are computed, as those of parameters
  // in f32, get some where to write and read them once more is little beside the product. Windows
  // have a layout of their own (runtime/layout_windows.h), or are none for these tiles.
  void store_halves(Node n) {
    constexpr int64_t kUses = 64;
    Node mul = base_of(n->src(0));
    if (!target_.has_wgmma || mul->op != Op::Mul || mul->num_src != 2) return;
    std::vector<Node> points;
    {
      Arena arena;
      ArenaScope scope(arena);
      const std::vector<Node> ranges = ranges_of_axes(mul->shape());
      for (Node s : mul->srcs()) {
        const Operand o = follow_halves(s, ranges, {});
        if (has_windows(o)) return;
        points.push_back(o.point);
      }
    }
    for (Node p : points)
      if (!has_matrix_unit(target_, p->dtype) ||
          (is_elementwise(p->op) && numel(mul->shape()) < kUses * numel(p->shape())))
        return;
    for (Node p : points)
      if (is_elementwise(p->op) && !halves_.contains(p)) {
        halves_[p] = 1;
        stored.push_back(p);
      }
  }

  static int last_axis(Ints shape) {
    int axis = static_cast<int>(shape.size()) - 1;
    while (axis > 0 && shape[axis] == 1) --axis;
    return axis;
  }

  // A product that sums over more than the second cache holds, into few results, would read its
  // operands again for each tile of results: it goes through them in parts that fit.
  Split split_for_caches(Node n) const {
    int64_t bytes = 0;
    for (Node s : n->src(0)->srcs()) {
      while (is_view(s)) s = s->src(0);
      bytes += numel(s->shape()) * s->dtype.size();
    }
    const int64_t results = numel(n->shape()) * n->dtype.size();
    const int64_t room = target_.l2_bytes / 2;
    if (bytes < 4 * room || results > room) return {};
    int axis = 0;
    while (!is_reduced(n, axis) || n->src(0)->shape()[axis] == 1) ++axis;
    const int64_t wanted = std::min<int64_t>(64, std::max<int64_t>(2, bytes / room));
    const int64_t parts = largest_divisor(n->src(0)->shape()[axis], wanted);
    return parts * results > 2 * bytes ? Split{} : Split{axis, parts};
  }

  // The axis becomes (parts, rest), with the parts in front: (parts, results) and then the results.
  Node split(Node n, Split s, bool product) {
    const auto [op, axes] = n->arg<ReduceArg>();
    Node x = n->src(0);
    const auto cut = [&](Node v) {
      Shape shape = to_shape(v->shape()), order;
      shape[s.axis] /= s.parts;
      shape.insert(shape.begin() + s.axis, s.parts);
      order.push_back(s.axis);
      for (int i = 0; i < static_cast<int>(shape.size()); ++i)
        if (i != s.axis) order.push_back(i);
      return build::permute(build::reshape(v, shape), order);
    };
    Node parts = product ? build::binary(Op::Mul, cut(x->src(0)), cut(x->src(1))) : cut(x);
    Node partial = make(Op::ReduceAxis, n->dtype, {parts}, ReduceArg{op, axes << 1});
    if (product) {
      const auto windows = find_window_product(partial, target_);
      if (windows)
        partial = with_windows(partial, *windows);
      else if (!is_for_matrix_units(n))
        partial = with_packed_operands(partial);
    }
    return build::reshape(build::reduce(op, partial, 1), n->shape());
  }

  // --- windows ---------------------------------------------------------------------------------

  // Windows that step over elements are read with conditions where they reach into padding, and
  // computed again where they overlap, one element after the other. From memory they are read by
  // vectors.
  Node with_stored_windows(Node n) {
    Node x = n->src(0);
    if (target_.kind != Target::Kind::Cpu) return n;
    if (is_movement(x->op)) {
      x = stored_window(x, n);
    } else if (is_elementwise(x->op)) {
      std::vector<Node> srcs;
      for (Node s : x->srcs()) srcs.push_back(is_movement(s->op) ? stored_window(s, n) : s);
      x = with_sources(x, srcs);
    }
    return with_sources(n, std::span(&x, 1));
  }

  Node stored_window(Node top, Node reduce) {
    Plan p;
    {
      Arena arena;
      ArenaScope scope(arena);
      const std::vector<Node> ranges = ranges_of_axes(top->shape());
      const Operand o = follow(top, ranges);
      if (!is_affine(o) || !pads_alone({o}) || !steps_over(o, ranges, reduce)) return top;
      p = plan_of(o, ranges, -1);
    }
    const bool computed = p.map.padded || is_elementwise(p.point->op);
    if (!computed || 4 * numel(top->shape()) < 5 * numel(p.point->shape())) return top;
    return build::cast(view(p, top->shape()), top->dtype);
  }

  // Whether from one result to the next the innermost axis is walked by more than one element.
  static bool steps_over(const Operand& o, const std::vector<Node>& ranges, Node reduce) {
    if (o.at.empty()) return false;
    for (const auto& t : to_sum(o.at.back()).terms)
      for (int i = 0; i < reduce->rank; ++i)
        if (t.atom == ranges[i] && !is_reduced(reduce, i) && std::abs(t.factor) > 1) return true;
    return false;
  }

  // --- packing ---------------------------------------------------------------------------------

  // Vector loads and arithmetic for each vector of products when `range` is the vector range, and
  // the work of packing shared out among them.
  double cost(const std::vector<Operand>& operands, Node range, int64_t size, int64_t work) const {
    const double lanes = target_.vector_bytes / 4.0, n = static_cast<double>(size);
    const double filled =
        n / (static_cast<double>(static_cast<int64_t>((n + lanes - 1) / lanes)) * lanes);
    double sum = 0;
    for (const Operand& o : operands) {
      const double elements = static_cast<double>(numel(o.point->shape()));
      switch (walk_of(o, range).kind) {
        case Walk::None: sum += 0.5; break;
        case Walk::Contiguous: sum += 1; break;
        case Walk::Movable: sum += 1 + 4 * elements * lanes / static_cast<double>(work); break;
        case Walk::Irregular: sum += 1.5 * lanes; break;
      }
    }
    return sum / filled;
  }

  Node with_packed_operands(Node n) {
    Node x = n->src(0);
    std::vector<Plan> plans;
    {
      Arena arena;
      ArenaScope scope(arena);
      plans = plan(n);
    }
    if (plans.empty()) return n;
    std::vector<Node> views;
    for (const Plan& p : plans) views.push_back(build::cast(view(p, x->shape()), x->dtype));
    Node product = with_sources(x, views);
    return with_sources(n, std::span(&product, 1));
  }

  // What is done to an operand: `point` is padded, stored with axis `dim` innermost, and seen
  // through an affine map.
  struct Plan {
    Node point = nullptr;
    AffineMap map;
    int dim = -1;               // -1: as it is
    bool widened = false;       // stored as f32
    int64_t width = INT64_MAX;  // of panels, of which the last may be wider than what is left
  };

  // What the copy engine of matrix units cannot read as it lies is stored once more where that is
  // little beside the product: rows that are no multiples of 16 bytes apart get longer, and what is
  // to be contiguous along the sum, as all but halves, is turned.
  Node with_rows_for_units(Node n) {
    Node x = n->src(0);
    std::vector<Plan> plans;
    {
      Arena arena;
      ArenaScope scope(arena);
      plans = rows_for_units(n);
    }
    if (plans.empty()) return n;
    std::vector<Node> views(x->srcs().begin(), x->srcs().end());
    for (size_t i = 0; i < plans.size(); ++i)
      if (plans[i].map.padded || plans[i].dim >= 0)
        views[i] = build::cast(view(plans[i], x->shape()), x->dtype);
    Node product = build::binary(Op::Mul, views[0], views[1]);
    along_sum_[product] = 1;
    return with_sources(n, std::span(&product, 1));
  }

  // Empty where they are for no matrix unit.
  std::vector<Plan> rows_for_units(Node n) const {
    constexpr int64_t kUses = 64, kFewest = 24, kFew = 64, kMany = int64_t{1} << 27;
    const Ints shape = n->src(0)->shape();
    const std::vector<Node> ranges = ranges_of_axes(shape);
    const int sum = only_reduced_axis(n);
    if (sum < 0) return {};
    std::vector<Plan> plans;
    int64_t own[2] = {1, 1};
    for (Node s : n->src(0)->srcs()) {
      const Operand o = follow(s, ranges);
      if (!has_matrix_unit(target_, o.point->dtype) || o.gate || !is_affine(o) || has_windows(o))
        return {};
      const Walk walk = walk_of(o, ranges[static_cast<size_t>(sum)]);
      if (walk.kind != Walk::Movable && walk.kind != Walk::Contiguous) return {};
      const bool turns = matrix_type(o.point->dtype)->turns;
      const bool moved = !turns && walk.kind == Walk::Movable;
      Plan p = plan_of(o, ranges, moved ? sum : -1);
      pad_rows(p, moved || !turns ? walk.dim : last_axis(o.point->shape()));
      if ((moved || p.map.padded) &&
          (numel(shape) < kMany || numel(o.point->shape()) * kUses > numel(shape)))
        return {};
      for (int i = 0; i < n->rank; ++i)
        if (!is_reduced(n, i) && walk_of(o, ranges[static_cast<size_t>(i)]).kind != Walk::None)
          own[plans.size()] *= shape[i];
      plans.push_back(p);
    }
    const bool large = std::min(own[0], own[1]) >= kFewest && std::max(own[0], own[1]) >= kFew;
    return large && plans[0].point->dtype == plans[1].point->dtype ? plans : std::vector<Plan>();
  }

  // -1: there are several.
  static int only_reduced_axis(Node n) {
    int axis = -1;
    for (int i = 0; i < n->rank; ++i) {
      if (!is_reduced(n, i) || n->src(0)->shape()[i] == 1) continue;
      if (axis >= 0) return -1;
      axis = i;
    }
    return axis;
  }

  // To multiples of 16 bytes, with axis `dim` innermost.
  static void pad_rows(Plan& p, int dim) {
    const int64_t size = p.point->shape()[dim], unit = 16 / p.point->dtype.size();
    if (size % unit == 0 || size == numel(p.point->shape())) return;
    p.map.pad[static_cast<size_t>(2 * dim + 1)] += unit - size % unit;
    p.map.padded = true;
  }

  // Empty where the operands are not affine views, or padded in a way of their own.
  std::vector<Plan> plan(Node n) const {
    Node x = n->src(0);
    const std::vector<Node> ranges = ranges_of_axes(x->shape());
    std::vector<Operand> operands;
    for (Node s : x->srcs()) {
      operands.push_back(follow(s, ranges));
      if (!is_affine(operands.back())) return {};
    }
    if (!pads_alone(operands)) return {};
    const bool gpu = target_.kind == Target::Kind::Gpu;
    if (gpu && is_staged(n, operands, ranges)) return {};
    const int axis = gpu ? -1 : best_axis(n, operands, ranges);
    std::vector<Plan> plans;
    for (const Operand& o : operands) {
      plans.push_back(plan_of(o, ranges, gpu ? own_axis(n, o, operands, ranges) : axis));
      if (const int dim = sum_dim(n, o, ranges, axis, target_); dim >= 0) plans.back().dim = dim;
      plans.back().widened = axis >= 0 && is_worth_widening(x, o);
    }
    return plans;
  }

  // Whether an operand has too few rows for the matrix units: no fragment's eight and not the
  // columns of a warpgroup's tile (codegen/heuristic_matrix.cpp), which are fewer where there are
  // many tiles.
  bool is_thin(Node n) const {
    constexpr int64_t kFragment = 8, kFewestColumns = 24, kTile = 128;
    int64_t own[2] = {1, 1};
    Arena arena;
    ArenaScope scope(arena);
    Node mul = base_of(n->src(0));
    const std::vector<Node> ranges = ranges_of_axes(mul->shape());
    const Operand a = follow(mul->src(0), ranges), b = follow(mul->src(1), ranges);
    for (int i = 0; i < n->rank; ++i) {
      const bool in_a = walk_of(a, ranges[i]).kind != Walk::None;
      const bool in_b = walk_of(b, ranges[i]).kind != Walk::None;
      if (!is_reduced(n, i) && in_a != in_b) own[in_a ? 0 : 1] *= mul->shape()[i];
    }
    const int64_t rows = std::min(own[0], own[1]), tiles = std::max(own[0], own[1]) / kTile;
    return rows % kFragment != 0 && rows < kFewestColumns && 2 * tiles < target_.cores;
  }

  // Products whose blocks stage operands in shared memory for the matrix units of warps, which read
  // them in either order.
  bool is_staged(Node n, const std::vector<Operand>& operands,
                 const std::vector<Node>& ranges) const {
    int64_t own[2] = {1, 1}, terms = 1, others = 1;
    for (const Operand& o : operands)
      if (!mma_unit(target_, o.point->dtype)) return false;
    for (int i = 0; i < n->rank; ++i) {
      const int64_t size = n->src(0)->shape()[i];
      int walking = 0, which = 0;
      for (int o = 0; o < 2; ++o) {
        const Walk w = walk_of(operands[static_cast<size_t>(o)], ranges[i]);
        if (w.kind == Walk::Irregular) return false;
        if (w.kind == Walk::None) continue;
        ++walking;
        which = o;
      }
      if (is_reduced(n, i) && terms > 1 && size > 1) return false;  // a window
      (is_reduced(n, i) ? terms : walking == 1 ? own[which] : others) *= size;
    }
    return is_worth_staging(own[0], own[1], terms, others, target_);
  }

  // A GPU's threads lie along an axis of one operand and load vectors along an axis of the other:
  // each is to be contiguous along an axis that it has to itself. Such an axis for one that is not,
  // where packing is little beside the product; -1 where the operand stays as it is.
  int own_axis(Node n, const Operand& o, const std::vector<Operand>& operands,
               const std::vector<Node>& ranges) const {
    constexpr int64_t kUses = 64, kSmallest = 4;
    const int64_t work = numel(n->src(0)->shape());
    if (is_dense(n, o, ranges) || numel(o.point->shape()) * kUses > work) return -1;
    int best = -1;
    for (int i = 0; i < n->rank; ++i) {
      const int64_t size = n->src(0)->shape()[i];
      if (is_reduced(n, i) || size < kSmallest || walk_of(o, ranges[i]).kind != Walk::Movable)
        continue;
      const bool own = std::all_of(operands.begin(), operands.end(), [&](const Operand& other) {
        return &other == &o || walk_of(other, ranges[i]).kind == Walk::None;
      });
      if (own && (best < 0 || size > n->src(0)->shape()[best])) best = i;
    }
    return best;
  }

  // Whether neighbouring results, as many as a warp has threads, need few lines of the operand.
  bool is_dense(Node n, const Operand& o, const std::vector<Node>& ranges) const {
    constexpr int64_t kLine = 128, kFew = 3;
    std::vector<std::pair<int64_t, int64_t>> steps;  // in memory, and how many
    for (int i = 0; i < n->rank; ++i) {
      const int64_t size = n->src(0)->shape()[i], s = std::abs(step_of(o, ranges[i]));
      if (!is_reduced(n, i) && size > 1 && s != 0) steps.emplace_back(s, size);
    }
    std::sort(steps.begin(), steps.end());
    std::set<int64_t> lines;
    for (int thread = 0; thread < target_.warp; ++thread) {
      int64_t at = 0, rest = thread;
      for (const auto& [s, size] : steps) {
        at += s * (rest % size);
        rest /= size;
      }
      lines.insert(at * o.point->dtype.size() / kLine);
    }
    return static_cast<int64_t>(lines.size()) <= kFew;
  }

  // Elements of the operand's memory from one place to the next along the range.
  static int64_t step_of(const Operand& o, Node range) {
    int64_t step = 0, behind = 1;
    for (size_t d = o.at.size(); d-- > 0;) {
      for (const auto& t : to_sum(o.at[d]).terms)
        if (t.atom == range) step += t.factor * behind;
      behind *= o.point->shape()[static_cast<int>(d)];
    }
    return step;
  }

  int best_axis(Node n, const std::vector<Operand>& operands,
                const std::vector<Node>& ranges) const {
    const int64_t work = numel(n->src(0)->shape());
    int best = -1;
    double best_cost = 0;
    for (int i = 0; i < n->rank; ++i) {
      const int64_t size = n->src(0)->shape()[i];
      if (is_reduced(n, i) || size < 4) continue;
      const double c = cost(operands, ranges[i], size, work);
      if (best < 0 || c <= best_cost) {  // of equals the one that results are written along
        best = i;
        best_cost = c;
      }
    }
    return best;
  }

  Plan plan_of(const Operand& o, const std::vector<Node>& ranges, int axis) const {
    Plan p;
    p.point = o.point;
    p.map = affine_map(o, ranges);
    if (axis < 0) return p;
    const Walk w = walk_of(o, ranges[axis]);
    if (w.kind == Walk::Movable ||
        (w.kind == Walk::Contiguous && wants_panels(o, w.dim, target_))) {
      p.dim = w.dim;
      p.width = panel_width(o.point->shape()[w.dim], target_);
    }
    return p;
  }

  Node view(const Plan& p, Ints shape) {
    Node x = p.point;
    if (p.map.padded) x = build::pad(x, p.map.pad);
    if (p.widened) x = build::cast(x, kF32);
    if (p.dim >= 0)
      x = packed(in_panels(x, p.dim, p.width), p.dim, p.width);
    else if (p.map.padded || p.widened)
      x = build::contiguous(x);
    else if (is_elementwise(x->op))
      stored.push_back(x);
    return build::affine(x, shape, p.map.map);
  }

  const Target& target_;
  NodeMap<char> halves_;     // computed, and stored for tiles of products
  NodeMap<char> along_sum_;  // products with_rows_for_units
};

}  // namespace

namespace {

// The graph with some values stored with another axis innermost, by `store`. `change` is what else
// becomes of a node, which it gets as it was and with its sources as they are now.
template <class Store, class Change>
Layout rewritten(std::span<const Node> roots, std::span<const Node> stored,
                 const NodeMap<int>& innermost, Store store, Change change) {
  NodeMap<Node> done;
  std::vector<Node> srcs;
  NodeMap<char> results;
  for (Node r : roots) results[base_of(r)] = 1;
  for (Node n : topological(roots)) {
    srcs.clear();
    for (Node s : n->srcs()) srcs.push_back(*done.find(s));
    LabelScope label(n->label);
    Node now = change(n, with_sources(n, srcs));
    if (const int* dim = innermost.find(n))
      now = store(n, now->op == Op::Contiguous ? now->src(0) : now, *dim);
    else if (n->op == Op::Contiguous && innermost.contains(n->src(0)) && !results.contains(n))
      now = srcs[0];  // has memory
    done[n] = now;
  }
  Layout out;
  for (Node r : roots) out.roots.push_back(*done.find(r));
  for (Node s : stored)
    if (const Node* now = done.find(s))
      out.stored.push_back(innermost.contains(s) ? base_of(*now) : *now);
  out.innermost = innermost.size() > 0;
  return out;
}

}  // namespace

Layout choose_layouts(std::span<const Node> given, const Target& target) {
  Layouts layouts(target);
  const std::vector<Node> roots = narrow_sums(given);
  const Innermost innermost = choose_innermost(roots, target);
  const auto store = [&](Node n, Node now, int dim) {
    return innermost.rows.contains(n) ? packed_channels(now, dim) : packed(now, dim, INT64_MAX);
  };
  const NodeMap<int> traced =
      innermost.axes.size() > 0 ? trace_innermost(roots, innermost.axes) : NodeMap<int>();
  const auto change = [&](Node n, Node now) {
    if (n->op != Op::ReduceAxis) return now;
    const int* axis = traced.find(n->src(0));
    return layouts.reduce(now, axis ? *axis : -1);
  };
  Layout out = rewritten(roots, {}, innermost.axes, store, change);
  out.stored = std::move(layouts.stored);
  return out;
}

Layout spread_layouts(const Layout& layout, std::span<const Node> outputs) {
  // Halves of parameters stay in the order of those: tiles read them in either.
  std::vector<Node> movable(outputs.begin(), outputs.end());
  std::erase_if(movable, [](Node n) {
    return n->op == Op::Cast && n->dtype.is_half() && base_of(n->src(0))->op == Op::Param;
  });
  return rewritten(
      layout.roots, layout.stored, spread_innermost(layout.roots, movable),
      [](Node, Node now, int dim) { return packed(now, dim, INT64_MAX); },
      [](Node, Node now) { return now; });
}

}  // namespace tiny
