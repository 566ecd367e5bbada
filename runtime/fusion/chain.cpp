#include "runtime/fusion/chain.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "codegen/kernel/lengths.h"
#include "codegen/options/mma.h"
#include "runtime/analysis/axis_map.h"
#include "runtime/analysis/views.h"
#include "runtime/fusion/chain_options.h"
#include "runtime/fusion/uses.h"
#include "tiny/base/env.h"
#include "tiny/ir/sizes.h"

namespace tiny {

namespace {

bool is_sum(Node n) { return n->op == Op::ReduceAxis && n->arg<ReduceArg>().op == Op::Add; }

// The product that is summed, below masks of terms beyond a length.
Node term_of(Node sum) {
  Node n = sum->src(0);
  while (is_movement(n->op) || selects_by_length(n)) n = n->src(is_movement(n->op) ? 0 : 1);
  return n;
}

// What the kernel of a chain's last product computes.
struct ChainParts {
  std::set<Node> scores;   // products
  std::set<Node> rows;     // reductions that terms of the last product need
  std::set<Node> inside;   // what depends on the scores and is as large, they themselves included
  std::set<Node> views;    // of the last product's term
  std::set<Node> of_rows;  // made of rows, one for each
};

struct Visited {
  Node node;
  AxisMap axes;         // as axes of the last product's term
  bool is_end = false;  // nothing below it was visited
};

// What a walk has come by, in that order.
class Visits {
 public:
  Visited* find(Node n) {
    const uint32_t* at = place_.find(n);
    return at && *at < all_.size() && all_[*at].node == n ? &all_[*at] : nullptr;
  }
  const Visited* find(Node n) const { return const_cast<Visits*>(this)->find(n); }
  Visited& add(Node n, const AxisMap& axes) {
    place_[n] = static_cast<uint32_t>(all_.size());
    all_.push_back({n, axes});
    return all_.back();
  }
  size_t size() const { return all_.size(); }
  void go_back(size_t size) {
    all_.erase(all_.begin() + static_cast<std::ptrdiff_t>(size), all_.end());
  }
  const std::vector<Visited>& all() const { return all_; }

 private:
  std::vector<Visited> all_;
  NodeMap<uint32_t> place_;  // also of what it has gone back from
};

// The values that a term is made of, by their axes.
class TermWalk : public ChainParts {
 public:
  Node product() const { return product_; }
  bool is_summed(int axis) const {
    return axis >= 0 && (product_->arg<ReduceArg>().axes >> axis & 1);
  }
  // Axes of a visited value, as those of the product's term; nullptr for any other.
  const AxisMap* axes_of(Node n) const {
    const Visited* found = visits_.find(n);
    return found ? &found->axes : nullptr;
  }

 protected:
  // `taken`: reductions that another chain computes.
  TermWalk(Node product, const std::set<Node>& taken) : product_(product), taken_(&taken) {}

  void forget() {
    inside.clear(), of_rows.clear(), rows.clear(), scores.clear();
    visits_.go_back(0), scores_.clear(), conflicts_.clear(), reductions_.clear();
  }

  int summed_axis() const {
    int axis = 0;
    while (!is_summed(axis) || product_->src(0)->shape()[axis] == 1) ++axis;
    return axis;
  }
  bool is_along(const AxisMap& axes) const {
    return std::any_of(axes.begin(), axes.end(), [&](int a) { return is_summed(a); });
  }

  // Which of what was visited is made of scores: values of their size, and of rows. False where one
  // is read in two ways.
  bool sort_values() {
    scores.insert(scores_.begin(), scores_.end());
    depends_ = NodeMap<char>();
    for (Node c : conflicts_)
      if (depends_on_scores(c)) return false;
    for (const Visited& v : visits_.all())
      if (depends_on_scores(v.node) && !rows.count(v.node))
        (is_along(v.axes) ? inside : of_rows).insert(v.node);
    return true;
  }

  // All below a value of the scores' size, or of a row of them.
  bool visit(Node root, const AxisMap& of) {
    std::vector<std::pair<Node, AxisMap>> stack{{root, of}};
    while (!stack.empty()) {
      auto [n, axes] = stack.back();
      stack.pop_back();
      if (is_leaf(n) || n->is_const() || n->op == Op::Iota) continue;
      for (int i = 0; i < n->rank; ++i)
        if (n->shape()[i] == 1) axes[static_cast<size_t>(i)] = kNone;
      if (const Visited* known = visits_.find(n)) {
        if (known->axes != axes) conflicts_.push_back(n);
        continue;
      }
      Visited& now = visits_.add(n, axes);
      if (visits_.size() > kMaxNodes || scores_.size() > kMaxScores) return false;
      if (is_movement(n->op)) {
        stack.emplace_back(n->src(0), through_movement(n, axes));
      } else if (is_elementwise(n->op)) {
        for (Node s : n->srcs()) stack.emplace_back(s, axes);
      } else if (is_scores(n, axes)) {
        scores_.push_back(n);
      } else if (is_row(n, axes)) {
        for (int i = 0; i < n->rank; ++i)
          if ((n->arg<ReduceArg>().axes >> i & 1) && n->src(0)->shape()[i] > 1)
            axes[static_cast<size_t>(i)] = summed_axis();
        reductions_.emplace_back(n, axes);
      } else {
        now.is_end = true;
      }
    }
    return true;
  }

  // Of the reductions that were met, those of the scores that the terms are made of: others, of
  // matrices of the same size, are no rows of them.
  bool visit_rows() {
    while (!reductions_.empty()) {
      const auto [n, axes] = reductions_.back();
      reductions_.pop_back();
      const size_t visited = visits_.size(), found = scores_.size(), left = reductions_.size();
      if (!visit(n->src(0), axes)) return false;
      if (scores_.size() == found) {
        rows.insert(n);
        continue;
      }
      visits_.go_back(visited);
      reductions_.erase(reductions_.begin() + static_cast<std::ptrdiff_t>(left), reductions_.end());
      scores_.resize(found);
      visits_.find(n)->is_end = true;
    }
    return true;
  }

  bool is_scores(Node n, const AxisMap& axes) const {
    return is_sum(n) && numel(n->shape()) == size_ && n->dtype == kF32 &&
           term_of(n)->op == Op::Mul && is_product(n) && is_along(axes);
  }

  // One value for each row of scores.
  bool is_row(Node n, const AxisMap& axes) const {
    if (n->op != Op::ReduceAxis || n->dtype != kF32 || taken_->count(n) || is_along(axes) ||
        numel(n->src(0)->shape()) != size_)
      return false;
    int reduced = 0;
    for (int i = 0; i < n->rank; ++i)
      reduced += (n->arg<ReduceArg>().axes >> i & 1) && n->src(0)->shape()[i] > 1;
    return reduced == 1;
  }

  bool depends_on_scores(Node n) {
    if (const char* known = depends_.find(n)) return *known;
    bool any = scores.count(n);
    if (const Visited* at = any ? nullptr : visits_.find(n); at && !at->is_end)
      for (Node s : used_sources(n)) any |= depends_on_scores(s);
    depends_[n] = any;
    return any;
  }

  static constexpr size_t kMaxNodes = 1000;
  // Matrices whose tiles are in registers at once. Where all layers of a network add to one value,
  // each product with it would otherwise be asked about all products before it.
  static constexpr size_t kMaxScores = 8;

  Node product_;
  int64_t size_ = 0;  // of the scores
  Visits visits_;
  std::vector<Node> scores_;  // in the order of the visits

  const std::set<Node>* taken_;

 private:
  std::vector<Node> conflicts_;
  std::vector<std::pair<Node, AxisMap>> reductions_;  // to be looked at
  NodeMap<char> depends_;
};

class Walk : public TermWalk {
 public:
  std::set<Node> left;             // rows that a chain of their own computes
  std::optional<bool> has_kernel;  // with options, once it has been asked
  Walk(Node product, const std::set<Node>& taken) : TermWalk(product, taken) {}

  // Whether it may be the last of a chain.
  bool run(const Uses& uses) {
    int summed = 0;
    for (int i = 0; i < product_->rank; ++i)
      summed += is_summed(i) && product_->src(0)->shape()[i] > 1;
    if (summed != 1) return false;
    AxisMap axes(static_cast<size_t>(product_->rank));
    for (int i = 0; i < product_->rank; ++i) axes[static_cast<size_t>(i)] = i;
    return is_product(product_) ? multiplies_scores(axes) : reduces_scores(axes, uses);
  }

  // What is made of the scores alone beside the product, element by element: for sums along rows.
  void extend(const Uses& uses) {
    std::vector<Node> open(inside.begin(), inside.end());
    while (!open.empty()) {
      Node n = open.back();
      open.pop_back();
      const AxisMap* known = axes_of(n);
      if (!known) continue;
      const AxisMap axes = *known;
      for (Node user : uses.of(n)) {
        const auto is_own = [&](Node s) { return s->is_const() || inside.count(s); };
        if (!is_elementwise(user->op) || inside.count(user) ||
            !std::all_of(user->srcs().begin(), user->srcs().end(), is_own))
          continue;
        if (!visits_.find(user)) visits_.add(user, axes);
        inside.insert(user);
        open.push_back(user);
      }
    }
  }

 private:
  bool multiplies_scores(AxisMap axes) {
    Node mul = product_->src(0);
    while (mul->op != Op::Mul) {
      if (!is_movement(mul->op) && !selects_by_length(mul)) return false;
      views.insert(mul);
      axes = is_movement(mul->op) ? through_movement(mul, axes) : axes;
      mul = mul->src(is_movement(mul->op) ? 0 : 1);
    }
    views.insert(mul);
    for (int i : {0, 1})
      if (finds_scores(mul->src(i), axes) && reads_a_matrix(mul->src(1 - i)) && is_short())
        return true;
    return false;
  }

  // Rows of scores that nothing is multiplied with, as those of a product's log-sum-exp: all
  // reductions along them together.
  bool reduces_scores(const AxisMap& axes, const Uses& uses) {
    Node x = product_->src(0);
    size_ = numel(x->shape());
    if (!are_reduced_as_computed(size_, 1) || !visit(x, axes)) return false;
    int64_t terms = 0;  // of all scores
    for (Node s : scores_) terms += numel(s->src(0)->shape()) / size_;
    if (terms == 0 || !are_reduced_as_computed(size_, terms)) return false;
    for (Node n : reductions_of_scores(uses))
      if (n != product_) {
        rows.insert(n);
        if (!visit(n->src(0), axes)) return false;
      }
    views.insert(product_);
    return visit_rows() && sort_values();
  }

  // Those along the axis of the last one, of values of the scores' size that are made of them.
  std::set<Node> reductions_of_scores(const Uses& uses) const {
    std::set<Node> out, seen;
    std::vector<Node> open = scores_;
    while (!open.empty()) {
      Node n = open.back();
      open.pop_back();
      if (!seen.insert(n).second) continue;
      for (Node user : uses.of(n))
        if (user->op == Op::ReduceAxis) {
          if (user->dtype == kF32 && !taken_->count(user) &&
              same(user->src(0)->shape(), product_->src(0)->shape()) &&
              user->arg<ReduceArg>().axes == product_->arg<ReduceArg>().axes)
            out.insert(user);
        } else if ((is_elementwise(user->op) || is_movement(user->op)) &&
                   numel(user->shape()) == size_) {
          open.push_back(user);
        }
    }
    return out;
  }

  // Whether a score is a short sum, and a row of results too: more than that is stored instead.
  bool is_short() const {
    constexpr int64_t kMaxTerms = 256;
    const int64_t columns = product_->src(0)->shape()[summed_axis()];
    return numel(product_->shape()) * columns <= kMaxTerms * size_ &&
           std::all_of(scores.begin(), scores.end(),
                       [&](Node s) { return numel(s->src(0)->shape()) <= kMaxTerms * size_; });
  }

  // The scores below a factor of the product; false where there are none.
  bool finds_scores(Node factor, AxisMap axes) {
    forget();
    std::vector<Node> above;
    Node n = factor;
    for (; is_movement(n->op); n = n->src(0)) {
      above.push_back(n);
      axes = through_movement(n, axes);
    }
    size_ = numel(n->shape());
    if (is_leaf(n) || n->op == Op::ReduceAxis || !is_along(axes)) return false;
    if (!visit(n, axes) || scores_.empty() || !visit_rows() || !sort_values()) return false;
    inside.insert(above.begin(), above.end());
    return true;
  }

  // Whether the other operand is a matrix in memory, or becomes one.
  bool reads_a_matrix(Node factor) const {
    Node n = factor;
    while (is_movement(n->op) || n->op == Op::Cast) n = n->src(0);
    return !inside.count(n) && !rows.count(n);
  }
};

// Whether a value of the scores' size is reduced to one for each row by this.
bool is_sum_of_rows(const Walk& walk, Node user, Node of) {
  const AxisMap* axes = walk.axes_of(of);
  if (user->op != Op::ReduceAxis || !axes || user->dtype != kF32) return false;
  for (int i = 0; i < user->rank; ++i) {
    const bool reduced = user->arg<ReduceArg>().axes >> i & 1;
    if (of->shape()[i] > 1 && reduced != walk.is_summed((*axes)[static_cast<size_t>(i)]))
      return false;
  }
  return true;
}

// Whether the scores are those of another chain, with the same rows, and nothing is reduced along
// these but by the products.
bool go_together(const Walk& a, const Walk& b) {
  if (!a.rows.empty() || !b.rows.empty()) return false;
  return std::ranges::all_of(a.scores, [&](Node s) {
    if (!b.scores.count(s)) return false;
    const AxisMap &x = *a.axes_of(s), &y = *b.axes_of(s);
    for (size_t i = 0; i < x.size(); ++i)
      if (a.is_summed(x[i]) != b.is_summed(y[i])) return false;
    return true;
  });
}

// A kernel of these chains alone: what else it reads are its arguments.
NodeRef kernel_of(const std::vector<const Walk*>& walks) {
  // What depends on the scores is shown, and views of what is read.
  NodeMap<char> own, holds, shown;
  std::vector<Node> products;
  uint32_t first = UINT32_MAX;
  const auto add = [&](Node n) {
    own[n] = 1;
    first = std::min(first, n->id);
  };
  for (const Walk* w : walks) {
    products.push_back(w->product());
    add(w->product());
    add(term_of(w->product()));
    for (Node s : w->scores) add(term_of(s));
    for (const auto* part : {&w->inside, &w->rows}) std::ranges::for_each(*part, add);
  }
  std::vector<Node> order;  // without what lies below its arguments: that was made before
  visit_below(products, [&](Node n) {
    order.push_back(n);
    if (n->op == Op::ReduceAxis && !own.contains(n)) return false;
    return n->id >= first || is_movement(n->op) || n->op == Op::Cast || n->op == Op::Iota;
  });
  std::ranges::sort(order, {}, &NodeData::id);
  for (Node n : order) {
    bool any = own.contains(n);
    // What is no part of a kernel with others is an argument, whatever it is made of.
    if (n->op != Op::ReduceAxis && n->op != Op::After && n->op != Op::Scatter)
      for (Node s : n->srcs()) any |= holds.contains(s);
    if (any) holds[n] = 1;
  }
  NodeMap<Node> now;
  int slot = static_cast<int>(products.size());
  visit_below(products, [&](Node n) {
    shown[n] = 1;
    const bool passes = holds.contains(n) || is_movement(n->op) || n->op == Op::Cast ||
                        n->is_const() || n->op == Op::Iota;
    if (!passes) now[n] = argument(slot++, n);
    return passes;
  });
  for (Node n : order) {
    if (!shown.contains(n) || now.contains(n)) continue;
    std::vector<Node> srcs;
    for (Node s : n->srcs()) srcs.push_back(*now.find(s));
    now[n] = with_sources(n, srcs);
  }
  return kernel_that_stores(products, now);
}

// Chains that may go on together: each value inside of one is read by chains alone.
class Finder {
 public:
  Finder(std::span<const Node> roots, std::span<const Node> order, const std::set<Node>& refused,
         const NodeTargets& targets)
      : order_(order), refused_(refused), targets_(targets), uses_(roots, order) {
    for (Node r : roots) is_root_[r] = 1;
  }

  Chains run() {
    for (Node n : order_)
      if (is_candidate(n) && is_product(n)) find(n);
    // Of reductions alone the last one, with those before it.
    for (size_t i = order_.size(); i-- > 0;)
      if (is_candidate(order_[i]) && !is_product(order_[i]) && !taken_.count(order_[i]))
        find(order_[i]);
    while (drop_some()) {
    }
    Chains out;
    for (const auto& [n, walk] : found_) {
      Chain chain{
          n, {walk.rows.begin(), walk.rows.end()}, {walk.scores.begin(), walk.scores.end()}};
      for (Node row : beside_of(walk))
        if (!out.sums.contains(row)) chain.rows.push_back(row);
      std::sort(chain.rows.begin(), chain.rows.end(), [](Node a, Node b) { return a->id < b->id; });
      out.sums[n] = 1;
      for (Node v : chain.rows) out.sums[v] = 1;
      for (Node v : walk.scores) out.sums[v] = 1;
      for (Node v : walk.inside) out.inside[v] = 1;
      for (Node v : walk.of_rows)
        if (!is_root_.contains(v)) out.inside[v] = 1;
      out.all.push_back(std::move(chain));
    }
    put_together(out);
    return out;
  }

 private:
  void find(Node n) {
    Walk walk(n, taken_);
    if (!walk.run(uses_)) return;
    walk.extend(uses_);
    if (is_product(n) && !walk.rows.empty() && !can_be_one(walk)) leave_rows(walk);
    taken_.insert(walk.rows.begin(), walk.rows.end());
    for (Node row : beside_of(walk)) taken_.insert(row);
    found_.emplace_back(n, std::move(walk));
  }

  // Rows that cannot go along with the product, as the sum that a softmax's gradient takes off, are
  // a chain of their own.
  void leave_rows(Walk& walk) const {
    std::set<Node> given = taken_;
    given.insert(walk.rows.begin(), walk.rows.end());
    Walk alone(walk.product(), given);
    if (!alone.run(uses_)) return;
    alone.extend(uses_);
    if (!can_be_one(alone)) return;
    alone.left = std::move(walk.rows);
    walk = std::move(alone);
  }

  bool is_candidate(Node n) const {
    if (!is_sum(n) || n->dtype != kF32 || numel(n->shape()) == 0 || refused_.count(n)) return false;
    const Target& target = targets_.of(n);
    return target.kind == Target::Kind::Cpu || mma_unit(target, kBF16);
  }

  // Sums along rows of what is inside.
  std::vector<Node> beside_of(const Walk& walk) const {
    std::vector<Node> out;
    for (Node v : walk.inside)
      for (Node user : uses_.of(v))
        if (!walk.rows.count(user) && !walk.left.count(user) && is_sum_of_rows(walk, user, v))
          out.push_back(user);
    std::sort(out.begin(), out.end());
    out.erase(std::unique(out.begin(), out.end()), out.end());
    return out;
  }

  // Chains whose scores are among those of another one.
  void put_together(Chains& out) const {
    NodeMap<std::vector<size_t>> by_score;
    for (size_t i = 0; i < found_.size(); ++i)
      by_score[*found_[i].second.scores.begin()].push_back(i);
    for (const auto& [a, all] : found_) {
      std::set<size_t> parts;
      for (Node s : all.scores)
        if (const auto* some = by_score.find(s)) parts.insert(some->begin(), some->end());
      for (size_t i : parts) {
        const auto& [b, part] = found_[i];
        if (a != b && go_together(part, all) && targets_.device_of(a) == targets_.device_of(b) &&
            has_chain_options(kernel_of({&all, &part}), targets_.of(a)))
          out.together.emplace_back(a, b);
      }
    }
  }

  // Takes out the chains that something else reads from, or whose scores are results of another
  // one; without any, those that have no options.
  bool drop_some() {
    NodeMap<char> known, results;
    for (const auto& [n, walk] : found_) {
      results[n] = 1;
      for (const auto* part : {&walk.inside, &walk.views, &walk.rows})
        for (Node v : *part) known[v] = 1;
      for (Node row : beside_of(walk)) known[row] = 1;
    }
    const auto is_read_elsewhere = [&](Node v) {
      const auto users = uses_.of(v);
      return is_root_.contains(v) || users.empty() ||
             std::ranges::any_of(users, [&](Node u) { return !known.contains(u); });
    };
    const size_t dropped = std::erase_if(found_, [&](const auto& chain) {
      return std::ranges::any_of(chain.second.inside, is_read_elsewhere) ||
             std::ranges::any_of(chain.second.scores, [&](Node s) { return results.contains(s); });
    });
    return dropped || std::erase_if(found_, [&](auto& c) { return !can_be_one(c.second); });
  }

  bool can_be_one(Walk& walk) const {
    if (!walk.has_kernel)
      walk.has_kernel = has_chain_options(kernel_of({&walk}), targets_.of(walk.product()));
    return *walk.has_kernel;
  }

  const std::span<const Node> order_;
  const std::set<Node>& refused_;
  const NodeTargets& targets_;
  const Uses uses_;
  NodeMap<char> is_root_;
  std::set<Node> taken_;
  std::vector<std::pair<Node, Walk>> found_;
};

}  // namespace

Chains find_chains(std::span<const Node> roots, std::span<const Node> order,
                   const std::set<Node>& refused, const NodeTargets& targets) {
  if (!env_int("CHAIN") || !env_int("FUSE") || !env_int("OPT")) return Chains();
  const auto may_be = [&](Node n) { return is_sum(n) && is_product(n); };
  if (std::none_of(order.begin(), order.end(), may_be)) return Chains();
  return Finder(roots, order, refused, targets).run();
}

}  // namespace tiny
