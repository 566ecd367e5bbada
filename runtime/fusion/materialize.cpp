#include "runtime/fusion/materialize.h"

#include <algorithm>
#include <set>
#include <utility>

#include "runtime/analysis/after.h"
#include "runtime/analysis/recompute_cost.h"
#include "runtime/analysis/skinny.h"
#include "runtime/fusion/uses.h"

namespace tiny {

namespace {

// Padding that only moves rows on, as in the chain of build::windows: no condition is left of it.
bool is_shear(Node pad) {
  return pad->src(0)->op == Op::Reshape && pad->src(0)->src(0)->op == Op::Expand;
}

}  // namespace

void add_cost(Node root, int64_t size, const NodeMap<char>& stored, NodeMap<char>& seen,
              Cost& cost) {
  // A look-up reads as many elements as it gives, of a table of any size.
  const auto looked_up = [&](Node gather) {
    Node table = base_of(gather->src(0));
    if (!is_leaf(table) && !stored.contains(table)) return;
    if (numel(gather->shape()) * 2 > size && !table->is_const()) cost.loads.push_back(gather);
    seen[gather->src(0)] = 1;
  };
  std::vector<Node> stack{root};
  while (!stack.empty() && cost.work <= 200) {
    Node n = stack.back();
    stack.pop_back();
    if (std::exchange(seen[n], 1)) continue;
    if (is_leaf(n) || stored.contains(n)) {
      if (numel(n->shape()) * 2 > size && !n->is_const() && n->op != Op::Iota)
        cost.loads.push_back(n);
      continue;
    }
    if (n->op != Op::Pad || !is_shear(n)) cost.work += work_of(n->op);
    if (n->op == Op::Gather) looked_up(n);
    for (size_t i = n->num_src; i-- > 0;) stack.push_back(n->src(static_cast<int>(i)));
  }
}

bool is_computed_at_places(Node data, const Cost& c) {
  constexpr int kMax = 4;  // work, which loads hide
  return is_elementwise(data->op) && c.work <= kMax && c.loads.size() == 1 &&
         c.loads[0]->dtype.size() <= data->dtype.size();
}

namespace {

// Whether a skinny GEMM computes the value as it reads it.
bool is_computed_as_read(Node value, Node sum, const Target& target) {
  const auto skinny = find_skinny_product(sum, target);
  return skinny && skinny->computed == value;
}

// Movement of 16-bit floats in memory: layouts say what of them is copied for matrix units.
bool is_view_of_halves(Node x, const NodeMap<char>& stored) {
  if (!as_halves(x)) return false;
  Node b = base_of(base_of(x)->src(0));
  return is_leaf(b) || stored.contains(b);
}

// What a value's kernel reads, for values in the order of a graph, where devices let kernels have
// few buffers (Target::most_buffers).
class FewBuffers {
 public:
  // The values below `n`, not stored yet, that have to be for its kernel to read no more than
  // `most` buffers: those that read most first. (Merging kernels counts for itself.)
  std::vector<Node> too_large(Node n, int most, const NodeMap<char>& stored) {
    constexpr int kMany = 64;  // as good as no limit
    std::vector<Node> out;
    if (most >= kMany) return out;
    const auto has_memory = [&](Node s) {
      return is_leaf(s) || stored.contains(s) || contains(out, s);
    };
    for (;;) {
      std::set<Node> all;
      Node largest = nullptr;
      size_t reads = 1;
      for (Node s : used_sources(n)) {
        if (Node base = base_of(s); has_memory(s) || has_memory(base)) {
          if (!base->is_const()) all.insert(behind(base));
          continue;
        }
        const std::set<Node>& own = reads_[s];
        all.insert(own.begin(), own.end());
        if (own.size() <= reads) continue;
        reads = own.size();
        largest = base_of(s);
      }
      if (all.size() <= static_cast<size_t>(most) || !largest) {
        reads_[n] = std::move(all);
        return out;
      }
      out.push_back(largest);
    }
  }

 private:
  NodeMap<std::set<Node>> reads_;
};

// Whether a GPU computes an element for each of the windows that it is in, as the ends of a padded
// pool: that takes less time than to write all of it and to read it back.
bool is_cheap_window(Node expand, const Uses& uses, int64_t elements, const Cost& c) {
  constexpr int64_t kMax = 32;  // windows of an element
  if (c.loads.size() != 1 || c.work >= kWorthStoring) return false;
  Node n = expand;
  for (int depth = 0; is_movement(n->op) && depth < 40; ++depth) {
    if (uses.count(n) != 1) return false;
    Node user = uses.of(n).front();
    if (user->op == Op::ReduceAxis) return numel(n->shape()) <= kMax * elements;
    n = user;
  }
  return false;
}

// Of GPUs: rounded operands of scores that are reduced alone, each of which many blocks read.
std::vector<Node> halves_for_all_rows(const Chains& chains, const NodeTargets& targets) {
  std::vector<Node> out;
  for (const Chain& chain : chains.all) {
    if (is_product(chain.product) || targets.of(chain.product).kind != Target::Kind::Gpu) continue;
    for (Node score : chain.scores)
      visit_below({score->src(0)}, [&](Node n) {
        const bool is_half = n->op == Op::Cast && n->dtype.is_half();
        if (is_half) out.push_back(n);
        return !is_half && (is_movement(n->op) || n->op == Op::Cast || n->op == Op::Mul);
      });
  }
  return out;
}

// Whether all that is made of a value, element by element, is inside chains.
bool meets_scores(Node n, const Uses& uses, const NodeMap<char>& inside, int depth = 0) {
  const auto users = uses.of(n);
  return !users.empty() && depth < 8 && std::ranges::all_of(users, [&](Node user) {
    return inside.contains(user) ||
           (is_elementwise(user->op) && meets_scores(user, uses, inside, depth + 1));
  });
}

// Made of constants and positions, or a mask of as many bytes: beside scores it says where tiles of
// them begin and end.
bool says_tiles(Node value, const Cost& cost) {
  int bytes = 0;
  for (Node load : cost.loads) bytes += load->dtype.size();
  return bytes <= (value->dtype == kBool ? 1 : 0);
}

class Chooser {
 public:
  Chooser(std::span<const Node> roots, std::span<const Node> order, std::span<const Node> given,
          const NodeTargets& targets, const std::set<Node>& refused)
      : roots_(roots), order_(order), targets_(targets), uses_(roots, order) {
    out_.chains = find_chains(roots, order, refused, targets);
    for (Node n : given) store(n);
  }

  Stored run() {
    choose();
    return std::move(out_);
  }

 private:
  // Longer chains make kernels that no compiler likes, and recursion too deep for the stack.
  static constexpr int kLongestChain = 200;

  void store(Node n) {
    if (!out_.chains.inside.contains(n)) out_.values[n] = 1;
  }

  void limit_chain(Node n) {
    int longest = 0;
    for (Node s : used_sources(n))
      if (!is_leaf(s) && !out_.values.contains(s)) longest = std::max(longest, *chain_.find(s));
    chain_[n] = longest + 1;
    if (longest >= kLongestChain && is_elementwise(n->op)) store(n);
  }

  void choose() {
    for (Node r : roots_)
      if (!is_leaf(base_of(r))) store(base_of(r));
    for (Node n : halves_for_all_rows(out_.chains, targets_)) store(n);
    for (Node n : order_) {
      limit_chain(n);
      for (Node large : few_.too_large(n, targets_.of(n).most_buffers - 1, out_.values))
        store(large);
      switch (n->op) {
        case Op::ReduceAxis:
          store(n);
          if (Node half = rounded(n)) store(half);
          break;
        case Op::Scatter:
        case Op::Assign:
        case Op::Copy:
        case Op::Contiguous: store(n); break;
        case Op::After:
          if (!is_leaf(behind(n))) store(behind(n));
          break;
        case Op::Expand: expanded(n); break;
        case Op::Gather: gathered(n); break;
        default: break;
      }
      if (n->op == Op::Scatter || n->op == Op::Copy) {
        for (Node s : n->srcs()) {
          Node b = base_of(s);
          if (n->op == Op::Copy) out_.sent[b] = 1;
          const bool is_base = n->op == Op::Scatter && s == n->src(0);
          if ((n->op == Op::Copy || is_base) && !is_leaf(b) && !(is_base && is_only_for(n, b)))
            store(b);
        }
      }
      if (is_narrowed_product(n) && on_gpu(n)) store(n);
      if (!out_.values.contains(n) && is_elementwise(n->op) && uses_.count(n) > 1 && !is_place(n) &&
          is_worth_storing(n) && !uses_.meet_again(n))
        store(narrower(n));
    }
  }

  // Whether a value is computed where a scatter begins: nobody else reads it.
  bool is_only_for(Node scatter, Node base) const {
    Node n = scatter->src(0);
    while (n != base && uses_.count(n) == 1) n = n->src(0);
    return is_elementwise(base->op) && uses_.count(n) == 1;
  }

  bool on_gpu(Node n) const { return targets_.of(n).kind == Target::Kind::Gpu; }

  Cost cost_of(Node n) const {
    Cost cost;
    NodeMap<char> seen;
    add_cost(n, numel(n->shape()), out_.values, seen, cost);
    return cost;
  }

  // A value used in several places is computed again in each when that is about as cheap as writing
  // it and reading it back.
  bool is_worth_storing(Node n) const {
    const Cost c = cost_of(n);
    return c.work >= worth_storing(on_gpu(n)) || c.loads.size() >= 3;
  }

  // Halves of a sum of products that nobody reads as wide as it is added up: its kernel writes them
  // instead, unless it writes more, of which these are a part that one kernel reads.
  bool is_narrowed_product(Node n) const {
    if (n->op != Op::Cast || !n->dtype.is_half() || n->src(0)->dtype != kF32) return false;
    const int64_t size = numel(n->shape());
    const bool is_read_once = uses_.count(n) == 1;
    do {
      n = n->src(0);
      if (uses_.count(n) != 1) return false;
    } while (is_movement(n->op));
    if (is_read_once && numel(n->shape()) != size) return false;
    return n->op == Op::ReduceAxis && base_of(n->src(0))->op == Op::Mul;
  }

  // What a cast makes wider is stored as it was: a mask takes a byte and not four, and matrix units
  // want halves. Of a part of a value all of it, where others read as much of the rest.
  Node narrower(Node n) const {
    while (n->op == Op::Cast) {
      Node s = base_of(n->src(0));
      const bool computed = is_elementwise(s->op) || s->op == Op::Gather;
      if (!computed || s->dtype.size() >= n->dtype.size() ||
          numel(s->shape()) > numel(n->shape()) * static_cast<int64_t>(uses_.count(s)))
        break;
      n = s;
    }
    return n;
  }

  // A sum that is rounded to a narrower type before several kernels read it, each of which computes
  // what lies between: the rounded value. Null where there is none.
  Node rounded(Node sum) const {
    Node half = nullptr, n = sum;
    for (int depth = 0; depth < 12 && uses_.count(n) == 1; ++depth) {
      Node user = uses_.of(n).front();
      if (!(is_movement(user->op) || is_elementwise(user->op)) ||
          numel(user->shape()) != numel(sum->shape()))
        return nullptr;
      if (!half && user->op == Op::Cast && user->dtype.size() < sum->dtype.size()) half = user;
      n = user;
    }
    return half && uses_.count(n) > 1 && !is_worth_storing(n) ? half : nullptr;
  }

  // A value that is broadcast is computed once for many uses.
  void expanded(Node n) {
    Node s = base_of(n->src(0));
    if (is_leaf(s) || out_.values.contains(s) || !is_elementwise(s->op)) return;
    const int64_t from = numel(s->shape());
    if (is_place(n) || from == 0 || numel(n->shape()) / from < 4) return;  // see gathered()
    const Cost c = cost_of(s);
    if (c.loads.empty() && c.work < kDear) return;
    if (says_tiles(s, c) && meets_scores(n, uses_, out_.chains.inside)) return;
    if (on_gpu(n) && is_cheap_window(n, uses_, from, c)) return;
    Node sum = uses_.product_of(n);
    const bool as_read =
        sum && on_gpu(n) &&
        (is_view_of_halves(s, out_.values) ||
         (is_computed_as_read(narrower(s), sum, targets_.of(sum)) && !is_read_again(n, s, c)));
    if (sum ? c.work > 0 && !as_read : c.work >= 4) store(narrower(s));
  }

  // Whether several products would each read what an operand is made of, and compute it where they
  // fill their tiles, when it takes less to write it once and read it: in operations that take the
  // time of a byte from memory.
  bool is_read_again(Node expand, Node value, const Cost& cost) const {
    constexpr int kByte = 8;
    if (uses_.count(expand) < 2) return false;
    int bytes = 0;
    for (Node load : cost.loads) bytes += load->dtype.size();
    return kByte * bytes + cost.work > kByte * 2 * narrower(value)->dtype.size();
  }

  static constexpr int kDear = 24;  // work

  // Whether a value only says where to look up, or to write: gathered() decides.
  bool is_place(Node n, int depth = 0) const {
    const auto users = uses_.of(n);
    if (users.empty() || depth > 12 || !on_gpu(n)) return false;
    return std::ranges::all_of(users, [&](Node user) {
      if (user->op == Op::Gather) return user->src(0) != n;
      if (user->op == Op::Scatter) return user->src(0) != n && user->src(1) != n;
      return (is_elementwise(user->op) || is_movement(user->op)) && is_place(user, depth + 1);
    });
  }

  // Rows are looked up in memory, not computed for each look-up, but for a few cheap ones.
  void gathered(Node n) {
    Node data = base_of(n->src(0));
    const bool few = 2 * numel(n->shape()) <= numel(data->shape()) && cost_of(data).work < kDear;
    if (!is_leaf(data) && !few && !(on_gpu(n) && is_computed_at_places(data, cost_of(data))))
      store(data);
    for (Node i : n->srcs().subspan(1)) {
      Node b = base_of(i);
      if (!is_leaf(b) && !out_.values.contains(b) && cost_of(b).work >= kDear) store(b);
    }
  }

  const std::span<const Node> roots_, order_;
  const NodeTargets& targets_;
  const Uses uses_;
  FewBuffers few_;
  NodeMap<int> chain_;  // nodes between this one and memory, itself included
  Stored out_;
};

}  // namespace

Stored choose_stored(std::span<const Node> roots, std::span<const Node> order,
                     std::span<const Node> given, const NodeTargets& targets,
                     const std::set<Node>& refused) {
  return Chooser(roots, order, given, targets, refused).run();
}

}  // namespace tiny
