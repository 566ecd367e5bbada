#include "runtime/fusion/chain.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "codegen/kernel/lengths.h"
#include "codegen/lower.h"
#include "codegen/options/fragments.h"
#include "runtime/analysis/axis_map.h"
#include "runtime/analysis/views.h"
#include "runtime/device/lru.h"
#include "runtime/fusion/uses.h"
#include "tiny/base/env.h"
#include "tiny/base/error.h"
#include "tiny/ir/build.h"

namespace tiny {

namespace {

bool is_sum(Node n) { return n->op == Op::ReduceAxis && n->arg<ReduceArg>().op == Op::Add; }

// The product that is summed, below masks of terms beyond a length.
Node term_of(Node sum) {
  Node n = sum->src(0);
  while (is_movement(n->op) || selects_by_length(n)) n = n->src(is_movement(n->op) ? 0 : 1);
  return n;
}

// What the product's kernel computes, on the way down from it and up again.
class Walk {
 public:
  Walk(Node product, const Uses& uses, const NodeMap<char>& roots)
      : product_(product), uses_(uses), roots_(roots) {}

  // Whether it is the last of a chain.
  bool run() {
    AxisMap axes(static_cast<size_t>(product_->rank));
    for (int i = 0; i < product_->rank; ++i) axes[static_cast<size_t>(i)] = i;
    Node mul = product_->src(0);
    while (mul->op != Op::Mul) {
      if (!is_movement(mul->op) && !selects_by_length(mul)) return false;
      views_[mul] = 1;
      axes = is_movement(mul->op) ? through_movement(mul, axes) : axes;
      mul = mul->src(is_movement(mul->op) ? 0 : 1);
    }
    views_[mul] = 1;
    for (int i : {0, 1}) {
      if (!finds_scores(mul->src(i), axes)) continue;
      return reads_a_matrix(mul->src(1 - i)) && closes();
    }
    return false;
  }

  const std::vector<Node>& sums() const { return sums_; }
  std::vector<Node> scores() const { return {scores_.begin(), scores_.end()}; }
  const std::set<Node>& inside() const { return inside_; }

 private:
  bool is_summed(int axis) const {
    return axis >= 0 && (product_->arg<ReduceArg>().axes >> axis & 1);
  }

  // The scores below a factor of the product; false where there are none.
  bool finds_scores(Node factor, AxisMap axes) {
    axes_.clear(), scores_.clear(), rows_.clear(), ends_.clear(), conflicts_.clear();
    views_of_factor_.clear();
    found_ = false;
    Node n = factor;
    for (; is_movement(n->op); n = n->src(0)) {
      views_of_factor_.push_back(n);
      axes = through_movement(n, axes);
    }
    size_ = numel(n->shape());
    if (is_leaf(n) || n->op == Op::ReduceAxis) return false;
    if (!visit(n, axes) || !found_) return false;
    depends_ = NodeMap<char>();
    return std::none_of(conflicts_.begin(), conflicts_.end(),
                        [&](Node c) { return depends_on_scores(c); });
  }

  // All below a value of the scores' size, or of a row of them.
  bool visit(Node root, const AxisMap& of) {
    std::vector<std::pair<Node, AxisMap>> stack{{root, of}};
    while (!stack.empty()) {
      auto [n, axes] = std::move(stack.back());
      stack.pop_back();
      if (is_leaf(n) || n->is_const() || n->op == Op::Iota) continue;
      for (int i = 0; i < n->rank; ++i)
        if (n->shape()[i] == 1) axes[static_cast<size_t>(i)] = kNone;
      const auto [known, fresh] = axes_.try_emplace(n, axes);
      if (!fresh) {
        if (known->second != axes) conflicts_.push_back(n);
        continue;
      }
      if (axes_.size() > kMaxNodes) return false;
      if (is_movement(n->op)) {
        stack.emplace_back(n->src(0), through_movement(n, axes));
      } else if (is_elementwise(n->op)) {
        for (Node s : n->srcs()) stack.emplace_back(s, axes);
      } else if (is_scores(n, axes)) {
        found_ = true;
        scores_.insert(n);
      } else if (n->op == Op::ReduceAxis && numel(n->src(0)->shape()) == size_ &&
                 n->dtype == kF32) {
        AxisMap from = axes;
        for (int i = 0; i < n->rank; ++i)
          if ((n->arg<ReduceArg>().axes >> i & 1) && n->src(0)->shape()[i] > 1) {
            if (from[static_cast<size_t>(i)] != kNone) return false;
            from[static_cast<size_t>(i)] = summed_axis();
          }
        rows_.insert(n);
        stack.emplace_back(n->src(0), from);
      } else {
        ends_.insert(n);
      }
    }
    return true;
  }

  int summed_axis() const {
    int axis = 0;
    while (!is_summed(axis)) ++axis;
    return axis;
  }

  bool is_scores(Node n, const AxisMap& axes) const {
    if (!is_sum(n) || numel(n->shape()) != size_ || n->dtype != kF32) return false;
    if (term_of(n)->op != Op::Mul || !is_product(n)) return false;
    return std::any_of(axes.begin(), axes.end(), [&](int a) { return is_summed(a); });
  }

  bool depends_on_scores(Node n) {
    if (const char* known = depends_.find(n)) return *known;
    bool any = scores_.count(n);
    if (!any && axes_.count(n) && !ends_.count(n))
      for (Node s : used_sources(n)) any |= depends_on_scores(s);
    depends_[n] = any;
    return any;
  }

  // Whether the other operand is a matrix in memory, or becomes one.
  bool reads_a_matrix(Node factor) const {
    Node n = factor;
    while (is_movement(n->op) || n->op == Op::Cast) n = n->src(0);
    return !scores_.count(n) && !rows_.count(n);
  }

  // Whether nobody else reads the scores, or what is made of them, but sums along their rows.
  bool closes() {
    std::vector<Node> open;
    const auto put_inside = [&](Node n) {
      if (inside_.insert(n).second) open.push_back(n);
    };
    for (const auto& [n, axes] : axes_)
      if (depends_on_scores(n) && !rows_.count(n) && !is_of_rows(n)) put_inside(n);
    for (Node n : views_of_factor_) put_inside(n);
    while (!open.empty()) {
      Node n = open.back();
      open.pop_back();
      if (roots_.contains(n)) return false;
      const auto* users = uses_.of(n);
      if (!users) return false;
      for (Node user : *users) {
        if (inside_.count(user) || views_.contains(user) || rows_.count(user)) continue;
        if (is_elementwise(user->op) && numel(user->shape()) == size_ && !is_of_rows(user)) {
          const auto at = axes_.find(n);
          if (at == axes_.end()) return false;
          axes_.try_emplace(user, at->second);
          put_inside(user);
        } else if (!is_sum_of_rows(user, n)) {
          return false;
        } else {
          rows_.insert(user);
        }
      }
    }
    for (Node n : scores_) sums_.push_back(n);
    for (Node n : rows_) sums_.push_back(n);
    std::sort(sums_.begin(), sums_.end(), [](Node a, Node b) { return a->id < b->id; });
    return !rows_.empty();
  }

  // A value for each row: nothing in it belongs to one column.
  bool is_of_rows(Node n) const {
    const auto at = axes_.find(n);
    if (at == axes_.end()) return false;
    return std::none_of(at->second.begin(), at->second.end(), [&](int a) { return is_summed(a); });
  }

  bool is_sum_of_rows(Node user, Node of) const {
    const auto at = axes_.find(of);
    if (user->op != Op::ReduceAxis || at == axes_.end() || user->dtype != kF32) return false;
    for (int i = 0; i < user->rank; ++i) {
      const bool reduced = user->arg<ReduceArg>().axes >> i & 1;
      if (of->shape()[i] > 1 && reduced != is_summed(at->second[static_cast<size_t>(i)]))
        return false;
    }
    return true;
  }

  static constexpr size_t kMaxNodes = 200;

  Node product_;
  const Uses& uses_;
  const NodeMap<char>& roots_;
  int64_t size_ = 0;  // of the scores
  bool found_ = false;
  std::map<Node, AxisMap> axes_;  // of all that was visited, as axes of the product's term
  std::set<Node> scores_, rows_, ends_;
  std::set<Node> inside_;
  NodeMap<char> depends_, views_;
  std::vector<Node> views_of_factor_, sums_, conflicts_;
};

// Whether a kernel of the chain has options that keep it on matrix units.
bool has_options(Node product, const std::vector<Node>& sums, const std::set<Node>& inside,
                 const Target& target) {
  NodeMap<Node> now;
  int slot = 1;
  std::set<Node> terms{term_of(product)};
  for (Node s : sums) terms.insert(term_of(s));
  const auto is_own = [&](Node n) {
    return n == product || terms.count(n) || inside.count(n) ||
           std::find(sums.begin(), sums.end(), n) != sums.end();
  };
  // From the sums down to what is read: views and element-wise operations are followed.
  NodeMap<char> holds;
  const std::vector<Node> order = topological(product);
  for (Node n : order) {
    bool any = is_own(n);
    for (Node s : n->srcs()) any |= holds.contains(s);
    if (any) holds[n] = 1;
  }
  NodeMap<char> shown;
  std::vector<Node> stack{product};
  while (!stack.empty()) {
    Node n = stack.back();
    stack.pop_back();
    if (std::exchange(shown[n], 1)) continue;
    const bool passes = holds.contains(n) || is_movement(n->op) || n->op == Op::Cast;
    if (!passes && !n->is_const() && n->op != Op::Iota) {
      Shape dims{slot++};
      dims.insert(dims.end(), n->shape().begin(), n->shape().end());
      now[n] = make(Op::Param, n->dtype, {}, Ints(dims));
      continue;
    }
    for (Node s : n->srcs()) stack.push_back(s);
  }
  for (Node n : order) {
    if (!shown.contains(n) || now.contains(n)) continue;
    std::vector<Node> srcs;
    for (Node s : n->srcs()) srcs.push_back(*now.find(s));
    now[n] = with_sources(n, srcs);
  }
  Node value = *now.find(product);
  Shape dims{0};
  dims.insert(dims.end(), value->shape().begin(), value->shape().end());
  NodeRef kernel(
      make(Op::Sink, kVoid,
           {make(Op::Store, kVoid, {make(Op::Param, value->dtype, {}, Ints(dims)), value})}));
  static std::mutex mutex;
  static auto& known = *new Lru<std::pair<NodeRef, bool>>;
  const std::string key =
      cat(reinterpret_cast<uintptr_t>(kernel.get()), ' ', target.arch, ' ', env_kernel_key());
  {
    std::lock_guard lock(mutex);
    if (const auto* entry = known.find(key)) return entry->second;
  }
  bool any = false;
  {
    Arena arena;
    ArenaScope scope(arena);
    any = choose_chain_options(loops_of(kernel.get(), target), target).has_value();
  }
  std::lock_guard lock(mutex);
  return known.insert(key, {std::move(kernel), any}, 256).second;
}

}  // namespace

Chains find_chains(std::span<const Node> roots, std::span<const Node> order,
                   const NodeTargets& targets) {
  Chains out;
  if (!env_int("CHAIN") || !env_int("FUSE") || !env_int("OPT")) return out;
  std::optional<Uses> uses;
  NodeMap<char> is_root;
  for (Node n : order) {
    if (!is_sum(n) || n->dtype != kF32 || numel(n->shape()) == 0 || !is_product(n)) continue;
    const Target& target = targets.of(n);
    if (target.kind != Target::Kind::Gpu || !mma_unit(target, kBF16)) continue;
    if (!uses) {
      uses.emplace(roots, order);
      for (Node r : roots) is_root[r] = 1;
    }
    Walk walk(n, *uses, is_root);
    if (!walk.run() || !has_options(n, walk.sums(), walk.inside(), target)) continue;
    for (Node s : walk.sums()) out.sums[s] = 1;
    for (Node v : walk.inside())
      if (!out.sums.contains(v)) out.inside[v] = 1;
    out.sums[n] = 1;
    out.all.push_back({n, walk.scores(), walk.sums()});
  }
  return out;
}

}  // namespace tiny
