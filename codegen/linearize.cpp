#include "codegen/linearize.h"

#include <algorithm>
#include <array>
#include <bit>
#include <list>
#include <memory>

#include "tiny/error.h"

namespace tiny {

namespace {

// A loop of the program, or the body of the kernel itself. Items (reductions and stores) are put
// in loops first; values are then placed where they are needed.
struct Block {
  Node range = nullptr;
  Block* parent = nullptr;
  int position = 0;  // among the children of its parent
  std::vector<std::unique_ptr<Block>> children;
  std::vector<Node> updates;  // items whose innermost loop this is
  std::vector<Node> closing;  // reductions whose outermost own loop this is
};

class Linearizer {
 public:
  explicit Linearizer(Node sink) {
    std::vector<Node> items;
    for (Node n : topological(sink)) {
      if (n->op == Op::Range) ranges_.push_back(n);
      collect_depends(n);
      if (n->op == Op::Reduce || n->op == Op::Store) items.push_back(n);
    }
    order_ranges(items);
    while (!items.empty()) {
      const auto next = next_item(items);
      place(*next);
      items.erase(next);
    }
  }

  std::vector<Node> run() {
    scopes_.emplace_back(&root_);
    emit(root_);
    return std::move(body_);
  }

 private:
  static int id_of(Node range) { return range->arg<RangeArg>().id; }

  // Reductions that a node's value needs directly, without passing another reduction.
  void collect_depends(Node n) {
    if (n->op == Op::Range || n->is_const()) return;
    std::vector<Node> found;
    for (Node s : n->srcs()) {
      if (s->op == Op::Reduce)
        found.push_back(s);
      else
        found.insert(found.end(), depends_[s].begin(), depends_[s].end());
    }
    std::sort(found.begin(), found.end());
    found.erase(std::unique(found.begin(), found.end()), found.end());
    depends_[n] = std::move(found);
  }

  // Loops nest by their ids, but what a reduction depends on comes outside of what it does not: so
  // that its value is there in the loops of all that need it.
  void order_ranges(const std::vector<Node>& items) {
    std::array<uint64_t, 64> before{};  // per range: those that must come outside of it
    NodeMap<std::vector<Node>> needs;
    for (Node item : items) {
      std::vector<Node>& all = needs[item];
      for (Node d : depends_[item]) {
        all.push_back(d);
        const std::vector<Node>& more = *needs.find(d);
        all.insert(all.end(), more.begin(), more.end());
      }
      std::sort(all.begin(), all.end());
      all.erase(std::unique(all.begin(), all.end()), all.end());
      for (Node d : all)
        for (Node r : ranges_)
          if ((item->ranges & ~d->ranges) >> id_of(r) & 1) before[id_of(r)] |= d->ranges;
    }
    std::sort(ranges_.begin(), ranges_.end(), [](Node a, Node b) { return id_of(a) < id_of(b); });
    uint64_t placed = 0, all = 0;
    for (Node r : ranges_) all |= r->ranges;
    for (size_t i = 0; i < ranges_.size(); ++i) {
      const auto rest = ranges_.begin() + static_cast<ptrdiff_t>(i);
      auto next = std::find_if(rest, ranges_.end(), [&](Node r) {
        return (before[id_of(r)] & all & ~placed & ~r->ranges) == 0;
      });
      if (next == ranges_.end()) next = rest;
      placed |= (*next)->ranges;
      std::rotate(rest, next, next + 1);
    }
  }

  uint64_t own_ranges(Node item) const {
    uint64_t own = 0;
    if (item->op == Op::Reduce)
      for (Node r : item->srcs().subspan(1)) own |= uint64_t{1} << id_of(r);
    return own;
  }

  // Of the items whose reductions are placed, the first with the fewest loops around it: what runs
  // before a loop is then known when the loop is opened, and it need not be opened twice.
  std::vector<Node>::iterator next_item(std::vector<Node>& items) const {
    auto best = items.end();
    for (auto i = items.begin(); i != items.end(); ++i) {
      const std::vector<Node>& needs = *depends_.find(*i);
      const bool ready =
          std::all_of(needs.begin(), needs.end(), [&](Node d) { return home_.contains(d); });
      if (!ready) continue;
      if (best == items.end() || std::popcount((*i)->ranges) < std::popcount((*best)->ranges))
        best = i;
    }
    return best;
  }

  // The item's loops, outermost first: those around it and then its own.
  std::vector<Node> loops_of(Node item) const {
    const uint64_t own = own_ranges(item);
    std::vector<Node> loops;
    for (Node r : ranges_)
      if ((item->ranges | own) >> id_of(r) & 1) loops.push_back(r);
    std::stable_partition(loops.begin(), loops.end(),
                          [&](Node r) { return !(own >> id_of(r) & 1); });
    return loops;
  }

  // Walks down from the root, into an existing loop over the next range where every reduction that
  // the item needs is complete before that loop, or is computed inside it; into a new loop else.
  void place(Node item) {
    const uint64_t own = own_ranges(item);
    Block* at = &root_;
    Block* outermost_own = nullptr;
    for (Node r : loops_of(item)) {
      at = child_for(at, r, item);
      if (!outermost_own && (own >> id_of(r) & 1)) outermost_own = at;
    }
    at->updates.push_back(item);
    if (outermost_own) outermost_own->closing.push_back(item);
    home_[item] = outermost_own ? outermost_own : at;
  }

  Block* child_for(Block* at, Node range, Node item) {
    int first = 0;  // children before this position end before the item can begin
    for (Node d : depends_[item]) {
      Block* b = *home_.find(d);
      while (b && b->parent != at) b = b->parent;
      if (!b) continue;
      const bool closes = *home_.find(d) == b;
      first = std::max(first, b->position + (closes ? 1 : 0));
    }
    for (size_t i = static_cast<size_t>(first); i < at->children.size(); ++i)
      if (at->children[i]->range == range) return at->children[i].get();
    auto block = std::make_unique<Block>();
    block->range = range;
    block->parent = at;
    block->position = static_cast<int>(at->children.size());
    at->children.push_back(std::move(block));
    return at->children.back().get();
  }

  // One open loop while the program is written: what it has defined, and its text so far.
  struct Scope {
    explicit Scope(Block* b) : block(b) {}
    Block* block;
    NodeMap<char> defined;
    std::vector<Node> text;
  };

  // The outermost scope in which all loops that the node depends on are open.
  Scope& scope_of(Node n) {
    size_t depth = 0;
    uint64_t open = 0;
    for (size_t i = 0; i < scopes_.size(); ++i) {
      if (scopes_[i].block->range) open |= uint64_t{1} << id_of(scopes_[i].block->range);
      if ((n->ranges & ~open) == 0) {
        depth = i;
        break;
      }
      expect(i + 1 < scopes_.size(), "a value is needed outside of its loops");
    }
    // A reduction's value exists from where its loops have ended.
    for (Node d : depends_[n])
      while (depth < scopes_.size() && !is_defined(d, depth)) ++depth;
    expect(depth < scopes_.size(), "a reduction is needed before its loops");
    auto at = scopes_.begin();
    std::advance(at, depth);
    return *at;
  }

  bool is_defined(Node n, size_t depth) const {
    for (size_t i = 0; i <= depth; ++i)
      if (scopes_[i].defined.contains(n)) return true;
    return false;
  }

  void need(Node n) {
    if (n->op == Op::Range || n->is_const() || n->op == Op::Param) return;
    if (is_defined(n, scopes_.size() - 1)) return;
    expect(n->op != Op::Reduce, "a reduction is needed before its loops");
    for (Node s : n->srcs()) need(s);
    Scope& scope = scope_of(n);
    scope.defined[n] = 1;
    scope.text.push_back(n);
  }

  void emit(Block& block) {
    for (auto& child : block.children) emit_loop(*child);
    for (Node item : block.updates) {
      if (item->op != Op::Reduce) continue;
      need(item->src(0));
      scopes_.back().text.push_back(make(Op::Update, kVoid, {item}));
    }
    // All loads come before the first store: a kernel may write what it reads at the same index.
    for (Node item : block.updates)
      if (item->op == Op::Store)
        for (Node s : item->srcs()) need(s);
    for (Node item : block.updates)
      if (item->op == Op::Store) scopes_.back().text.push_back(item);
    if (!block.parent) body_ = std::move(scopes_.back().text);
  }

  void emit_loop(Block& block) {
    for (Node r : block.closing) scopes_.back().text.push_back(make(Op::Acc, kVoid, {r}));
    scopes_.emplace_back(&block);
    emit(block);
    std::vector<Node> inner = std::move(scopes_.back().text);
    scopes_.pop_back();
    std::vector<Node>& text = scopes_.back().text;
    text.push_back(make(Op::Loop, kVoid, {block.range}));
    text.insert(text.end(), inner.begin(), inner.end());
    text.push_back(make(Op::EndLoop, kVoid, {block.range}));
    for (Node r : block.closing) {
      text.push_back(r);
      scopes_.back().defined[r] = 1;
    }
  }

  Block root_;
  std::vector<Node> ranges_;
  NodeMap<std::vector<Node>> depends_;
  NodeMap<Block*> home_;
  std::vector<Scope> scopes_;
  std::vector<Node> body_;
};

}  // namespace

Linear linearize(Node sink, std::string name) {
  Linear out;
  out.name = std::move(name);
  out.body = Linearizer(sink).run();
  for (Node n : topological(sink)) {
    if (n->op != Op::Param && n->op != Op::Store) continue;
    Node param = n->op == Op::Param ? n : n->src(0);
    const auto slot = static_cast<size_t>(param->ints()[0]);
    if (out.params.size() <= slot) {
      out.params.resize(slot + 1);
      out.written.resize(slot + 1);
    }
    out.params[slot] = param;
    if (n->op == Op::Store) out.written[slot] = true;
  }
  return out;
}

}  // namespace tiny
