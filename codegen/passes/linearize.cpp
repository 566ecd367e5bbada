#include "codegen/passes/passes.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <set>

#include "codegen/kernel/access.h"
#include "codegen/options/mma.h"
#include "codegen/options/stage.h"
#include "codegen/wgmma/tile.h"
#include "tiny/base/error.h"
#include "tiny/rewrite/algebra.h"
#include "tiny/rewrite/rewrite.h"

namespace tiny {

namespace {

// A loop of the program, or the body of the kernel itself. Items (reductions, stages and stores)
// are put in loops first; values are then placed where they are needed.
struct Block {
  Node range = nullptr;  // nullptr: of the kernel, or of what threads alone do
  Block* parent = nullptr;
  uint64_t open = 0;  // enclosing ranges, its own included
  int position = 0;   // among the children of its parent
  std::vector<std::unique_ptr<Block>> children;
  std::vector<Node> updates;  // items whose innermost loop this is
  std::vector<Node> closing;  // reductions whose outermost own loop this is
  NodeMap<int> computed;      // reductions known here, and after which child
  NodeMap<char> tried;        // computed, or depend on a loop further in
  int64_t fills = 0;          // depth of the stages that are filled here
};

// Stages that hold several tiles are filled ahead of the loop that they are read in: along a range
// of its own, whose one iteration is a later one of that loop.
struct Ahead {
  Node range, of;
};

// Of a kernel: such ranges, and whether loads with a gate for each lane are branches.
struct Traits {
  bool branches = true;
  std::vector<Ahead> ahead = {};
};

class Pipeliner {
 public:
  // `sink` with such stages, and the ranges that they are filled along.
  Node operator()(Node sink, std::vector<Ahead>& out) {
    const std::vector<Node> ranges = ranges_of(sink);
    int id = next_range_id(sink);
    NodeMap<Node> map;
    for (Node s : all_of(sink, Op::Stage)) {
      Node of = nullptr;
      for (Node r : ranges)
        if (!is_of_grid(r) && (s->ranges & r->ranges)) of = r;
      if (!of || stage_depth(s) == 1) continue;
      const auto known = std::ranges::find_if(out, [&](const Ahead& a) { return a.of == of; });
      Node ahead = known != out.end()
                       ? known->range
                       : make(Op::Range, of->dtype, {of->src(0)}, RangeArg{id++, RangeKind::Loop});
      if (known == out.end()) out.push_back({ahead, of});
      std::vector<Node> srcs{substitute(s->src(0), of, ahead), substitute(s->src(1), of, ahead), of,
                             ahead};
      for (Node r : s->srcs().subspan(3)) srcs.push_back(r);
      map[s] = with_sources(s, srcs);
    }
    return out.empty() ? sink : substitute(sink, map);
  }
};

int id_of(Node range) { return range->arg<RangeArg>().id; }

bool is_computed_in_loops(Node n) { return n->op == Op::Reduce || n->op == Op::Stage; }

// By number, not by address: the text of a kernel is the same in every run.
void sort_by_number(std::vector<Node>& nodes) {
  std::ranges::sort(nodes, {}, &NodeData::id);
  nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
}

bool is_computed(const Block* at, Node reduce) {
  for (; at; at = at->parent)
    if (at->computed.contains(reduce)) return true;
  return false;
}

bool is_shared_by_threads(Node reduce) {
  const auto own = reduce->srcs().subspan(1);
  return std::ranges::any_of(own, is_of_grid);
}

Block* add_child(Block* at, Node range) {
  auto block = std::make_unique<Block>();
  block->range = range;
  block->parent = at;
  block->open = at->open | (range ? range->ranges : 0);
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

// What reductions and stages a value waits for.
struct Dependences {
  NodeMap<std::vector<Node>> direct;   // without passing another one
  NodeMap<std::vector<Node>> all;      // of an item, by way of others too
  NodeMap<std::vector<Node>> running;  // whose accumulators it reads while their loops go on
};

// Loops nest by their ids, but what a reduction depends on comes outside of what it does not: so
// that its value is there in the loops of all that need it. `needs`: of each item.
void order_ranges(std::vector<Node>& ranges, const std::vector<Node>& items,
                  NodeMap<std::vector<Node>>& needs) {
  std::array<uint64_t, 64> before{};  // per range: those that must come outside of it
  for (Node item : items)
    for (Node d : needs[item])
      for (Node r : ranges)
        if ((item->ranges & ~d->ranges) >> id_of(r) & 1) before[id_of(r)] |= d->ranges;
  std::ranges::sort(ranges, {}, id_of);
  const uint64_t all = mask_of(ranges);
  uint64_t placed = 0;
  for (size_t i = 0; i < ranges.size(); ++i) {
    const auto rest = ranges.begin() + static_cast<ptrdiff_t>(i);
    auto next = std::find_if(rest, ranges.end(), [&](Node r) {
      return (before[id_of(r)] & all & ~placed & ~r->ranges) == 0;
    });
    if (next == ranges.end()) next = rest;
    placed |= (*next)->ranges;
    std::rotate(rest, next, next + 1);
  }
}

// Of a loop's items: a Rescale for each scale of fragments that are rolled.
std::vector<Node> rescales_of(const std::vector<Node>& items) {
  std::vector<Node> scales, out;
  NodeMap<std::vector<Node>> sums;
  for (Node item : items) {
    if (item->op != Op::Reduce || !rolls_fragment(item)) continue;
    Node scale = item->src(0)->src(1);
    if (sums[scale].empty()) scales.push_back(scale);
    sums[scale].push_back(item);
  }
  for (Node scale : scales) out.push_back(make(Op::Rescale, kVoid, sums[scale]));
  return out;
}

// Products of four warps that need nothing of their loop's iteration. They come before all else,
// and go on while what is made of the first one is computed.
std::vector<Node> first_products(const std::vector<Node>& items) {
  NodeMap<char> seen;
  std::vector<Node> open, products;
  for (Node item : items)
    if (item->op == Op::Reduce) open.push_back(item->src(0));
  while (!open.empty()) {
    Node n = open.back();
    open.pop_back();
    if (std::exchange(seen[n], 1) || n->op == Op::Reduce || is_running(n)) continue;
    if (n->op == Op::Mma && mma_unit(n).warpgroup && !warpgroup_product(n).a.in_registers)
      products.push_back(n);
    else
      open.insert(open.end(), n->srcs().begin(), n->srcs().end());
  }
  sort_by_number(products);
  return products;
}

// Products of vectors that a loop adds up, as those of a tile: of the factors the more numerous
// ones come one after the other, each with all products that it is in, so that registers hold the
// others and a single one of them.
void by_factors(std::vector<Node>& items) {
  std::vector<Node> factors[2];
  for (Node item : items) {
    if (item->op != Op::Reduce || item->dtype.lanes == 1 || item->src(0)->op != Op::Mul) return;
    for (int i : {0, 1})
      if (Node f = item->src(0)->src(i); !contains(factors[i], f)) factors[i].push_back(f);
  }
  const int more = factors[0].size() > factors[1].size() ? 0 : 1;
  std::ranges::stable_sort(items, {}, [&](Node item) {
    return std::ranges::find(factors[more], item->src(0)->src(more)) - factors[more].begin();
  });
}

// A store over what other items read waits for what these wait for: then it is in the same loop
// as they are, behind all loads, or behind the reduction that reads.
void hold_back_stores(const std::vector<Node>& order, Dependences& on) {
  std::map<int64_t, std::vector<Node>> readers;  // of each slot that is written
  for (Node n : order)
    if (n->op == Op::Store) readers[n->src(0)->ints()[0]];
  NodeMap<std::set<int64_t>> read;  // such slots, without passing another item
  for (Node n : order) {
    std::set<int64_t> slots;
    if (n->op == Op::Load && readers.contains(n->src(0)->ints()[0]))
      slots.insert(n->src(0)->ints()[0]);
    for (Node s : n->srcs())
      if (const auto* more = read.find(s); more && !is_computed_in_loops(s))
        slots.insert(more->begin(), more->end());
    if (slots.empty()) continue;
    if (is_computed_in_loops(n) || n->op == Op::Store)
      for (int64_t slot : slots) readers[slot].push_back(n);
    read[n] = std::move(slots);
  }
  for (Node store : order) {
    if (store->op != Op::Store) continue;
    std::vector<Node>& waits = on.direct[store];
    for (Node reader : readers[store->src(0)->ints()[0]]) {
      const std::vector<Node> more =
          is_computed_in_loops(reader) ? std::vector<Node>{reader} : *on.direct.find(reader);
      waits.insert(waits.end(), more.begin(), more.end());
    }
    sort_by_number(waits);
  }
}

class Linearizer {
 public:
  Linearizer(Node sink, bool branches) : traits_{branches} {
    std::vector<Node> items;
    sink = Pipeliner()(sink, traits_.ahead);
    const std::vector<Node> order = topological(sink);
    for (Node n : order) {
      if (n->op == Op::Range) (is_of_grid(n) ? grid_ : ranges_).push_back(n);
      if (n->op == Op::Matrix) matrix_ = n;
      if (is_running(n) && !on_.direct.contains(running_reduce(n))) {
        collect_depends(running_reduce(n));
        items.push_back(running_reduce(n));
      }
      const bool is_known = on_.direct.contains(n);
      collect_depends(n);
      if ((is_computed_in_loops(n) && !is_known) || n->op == Op::Store) items.push_back(n);
    }
    hold_back_stores(order, on_);
    std::ranges::stable_partition(items, is_computed_in_loops);
    collect_needs(items);
    root_.open |= mask_of(grid_);
    std::ranges::sort(grid_, [](Node a, Node b) {
      return std::pair(kind(a), range_id(a)) < std::pair(kind(b), range_id(b));
    });
    order_ranges(ranges_, items, on_.all);
    // Stages that are filled once come before all loops, so that what reads them can share one.
    for (Node item : items)
      if (is_stage(item) && !(item->ranges & ~root_.open) && !is_computed(&root_, item))
        place(&root_, item);
    for (Node item : items)
      if (item->op == Op::Store) descend(&root_, loops_around(item), item)->updates.push_back(item);
  }

  std::vector<Node> run() {
    scopes_.emplace_back(&root_);
    if (matrix_) {
      for (Node s : matrix_->srcs()) need(s);
      scopes_.back().text.push_back(matrix_);
    }
    emit(root_);
    std::vector<Node> body;
    for (Node r : grid_) body.push_back(make(Op::Loop, kVoid, {r}));
    body.insert(body.end(), body_.begin(), body_.end());
    for (Node r : grid_) body.push_back(make(Op::EndLoop, kVoid, {r}));
    return body;
  }

 private:
  // Reductions and stages that a node's value needs directly, without passing another one.
  void collect_depends(Node n) {
    if (n->op == Op::Range || n->is_const()) return;
    std::vector<Node> found;
    std::vector<Node> running;
    if (is_running(n)) {  // it needs no value, but the accumulator in a loop that it is in
      running.push_back(running_reduce(n));
    } else {
      for (Node s : n->srcs()) {
        if (const auto* more = on_.running.find(s))
          running.insert(running.end(), more->begin(), more->end());
        if (is_computed_in_loops(s))
          found.push_back(s);
        else
          found.insert(found.end(), on_.direct[s].begin(), on_.direct[s].end());
      }
    }
    sort_by_number(found);
    on_.direct[n] = std::move(found);
    if (running.empty()) return;
    sort_by_number(running);
    on_.running[n] = std::move(running);
  }

  // All reductions that an item needs, directly or by way of others, in order of creation: each
  // after those that it needs itself.
  void collect_needs(const std::vector<Node>& items) {
    for (Node item : items) {
      std::vector<Node> all = on_.direct[item];
      for (Node d : on_.direct[item]) {
        const std::vector<Node>& more = *on_.all.find(d);
        all.insert(all.end(), more.begin(), more.end());
      }
      sort_by_number(all);
      on_.all[item] = std::move(all);
    }
  }

  std::vector<Node> loops_around(Node item) const {
    std::vector<Node> loops;
    for (Node r : ranges_)
      if (item->ranges & r->ranges) loops.push_back(r);
    return loops;
  }

  // Those that a reduction or a stage closes; what is filled ahead is so in all of its loops.
  std::vector<Node> own_loops(Node item) const {
    std::vector<Node> loops;
    const auto own = item->srcs().subspan(is_stage(item) ? 3 : 1);
    for (Node r : ranges_)
      if (contains(own, r)) loops.insert(loop_behind(r) ? loops.begin() : loops.end(), r);
    return loops;
  }

  // The loop that this range is ahead of, if any.
  Node loop_behind(Node range) const {
    for (const Ahead& a : traits_.ahead)
      if (a.range == range) return a.of;
    return nullptr;
  }

  // Walks down through the loops, and has the reductions that the item needs computed on the way,
  // each in the outermost block where its own surroundings are open.
  Block* descend(Block* at, const std::vector<Node>& loops, Node item) {
    for (Node r : loops) {
      require(at, item);
      at = child_for(at, r, item);
    }
    require(at, item);
    return at;
  }

  void require(Block* at, Node item) {
    for (Node d : on_.direct[item]) {
      if (is_computed(at, d) || at->tried.contains(d)) continue;
      at->tried[d] = 1;
      place(at, d);
    }
  }

  // A reduction or a stage, here if it is complete here; after those whose accumulators it reads,
  // which it shares its loop with.
  void place(Block* at, Node d) {
    require(at, d);  // may be complete further out than d itself
    if (d->ranges & ~at->open) return;
    const std::vector<Node> loops = own_loops(d);
    if (const auto* running = on_.running.find(d))
      for (Node r : *running)
        if (r != d && !loops.empty() && closes(r, loops[0]) && !is_computed(at, r)) place(at, r);
    Block* outermost = child_for(at, loops.empty() ? nullptr : loops[0], d);
    const std::vector<Node> inner(loops.begin() + !loops.empty(), loops.end());
    descend(outermost, inner, d)->updates.push_back(d);
    outermost->closing.push_back(d);
    const bool is_ahead = !loops.empty() && loop_behind(loops[0]);  // else its loop ends at once
    if (is_stage(d)) outermost->fills = is_ahead ? stage_depth(d) : 1;
    at->computed[d] = outermost->position;
  }

  // An existing loop over the range that comes after all that the item needs, or a new one.
  Block* child_for(Block* at, Node range, Node item) {
    int first = 0;
    for (Node d : on_.all[item])
      if (const int* position = at->computed.find(d)) first = std::max(first, *position + 1);
    if (const auto* running = on_.running.find(item))
      for (Node d : *running)
        if (const int* position = at->computed.find(d)) first = std::max(first, *position);
    for (size_t i = static_cast<size_t>(first); i < at->children.size(); ++i)
      if (at->children[i]->range == range &&
          (range || (at->children[i]->fills > 0) == is_stage(item)))
        return at->children[i].get();
    return add_child(at, range);
  }

  // The outermost scope in which all loops that the node depends on are open.
  Scope& scope_of(Node n) {
    size_t depth = 0;
    for (size_t i = 0; i < scopes_.size(); ++i) {
      if ((n->ranges & ~scopes_[i].block->open) == 0) {
        depth = i;
        break;
      }
      expect(i + 1 < scopes_.size(), "a value is needed outside of its loops");
    }
    // A reduction's value exists from where its loops have ended.
    for (Node d : on_.direct[n])
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
    if (!is_running(n))
      for (Node s : n->srcs()) need(s);
    Scope& scope = scope_of(n);
    scope.defined[n] = 1;
    scope.text.push_back(n);
  }

  // Adds those loads below a node that are not there yet, what they need first.
  void add_loads(Node n, std::vector<Node>& loads, NodeMap<char>& seen) const {
    if (n->op == Op::Reduce || seen.contains(n) || is_defined(n, scopes_.size() - 1)) return;
    seen[n] = 1;
    for (Node s : n->srcs()) add_loads(s, loads, seen);
    if (n->op == Op::Load) loads.push_back(n);
  }

  // All loads come before the first store: a kernel may write what it reads at the same index. What
  // is made of a tile of sums, and of few loads beside, is stored piece by piece: pieces that wait
  // for all others take registers that the loop of the sums needs (measurements.md: store).
  void store(const Block& block) {
    std::vector<Node> stores, loads;
    NodeMap<char> seen;
    for (Node item : block.updates)
      if (item->op == Op::Store) stores.push_back(item);
    for (Node item : stores)
      for (Node s : item->srcs()) add_loads(s, loads, seen);
    const bool by_pieces = !block.children.empty() && 2 * loads.size() <= stores.size();
    const auto need_values = [&](Node item) {
      for (Node s : item->srcs()) need(s);
    };
    if (by_pieces)
      std::ranges::for_each(loads, [&](Node n) { need(n); });
    else
      std::ranges::for_each(stores, need_values);
    for (Node item : stores) {
      need_values(item);
      scopes_.back().text.push_back(item);
    }
  }

  // Stages first: they are computed from memory alone. Those that are filled ahead meet one barrier
  // in each iteration: what has arrived may be read, and what was read before may be filled again.
  void emit(Block& block) {
    for (const int64_t ahead : {0, 1}) {
      bool any = false;
      for (auto& child : block.children) {
        if (!child->fills || (child->fills > 1) != ahead) continue;
        const StageSchedule s = stage_schedule(child->fills);
        if (!any && (ahead || block.range)) barrier(s.pending);
        any = true;
        emit_loop(*child);
      }
      if (any && !ahead) barrier(0);
    }
    const bool has_stages = std::ranges::any_of(block.children, [](auto& c) { return c->fills; });
    for (Node n : has_stages ? first_products(block.updates) : std::vector<Node>()) need(n);
    for (auto& child : block.children) {
      if (child->fills) continue;
      if (has_stages) rescale(block.updates);
      emit_loop(*child);
    }
    // Loads whose lanes have gates of their own are branches, over which no compiler moves others:
    // they come before what waits for any of them.
    std::vector<Node> loads;
    NodeMap<char> seen;
    for (Node item : traits_.branches ? block.updates : std::vector<Node>())
      for (Node s : item->srcs().first(item->op == Op::Reduce ? 1
                                       : is_stage(item)       ? 2
                                                              : item->num_src))
        add_loads(s, loads, seen);
    for (Node load : loads)
      if (load->num_src > 2 && load->src(2)->dtype.lanes > 1) need(load);
    // What an accumulator holds before the iteration is read before it is updated.
    for (Node item : block.updates)
      if (const auto* before = on_.running.find(item))
        for (Node r : *before)
          if (contains(block.updates, r)) need(make(Op::Prefix, r->dtype, r->srcs(), r->payload));
    rescale(block.updates);
    by_factors(block.updates);
    for (Node item : block.updates) {
      if (item->op == Op::Stage) fill(item);
      if (item->op != Op::Reduce) continue;
      need(updated_with(item));
      scopes_.back().text.push_back(make(Op::Update, kVoid, {item}));
    }
    store(block);
    if (!block.parent) body_ = std::move(scopes_.back().text);
  }

  // Fragments as soon as their scale is known: what is added to them is added by their units.
  void rescale(const std::vector<Node>& items) {
    const auto is_known = [&](Node n) { return is_defined(n, scopes_.size() - 1); };
    for (Node r : rescales_of(items)) {
      Node scale = r->src(0)->src(0)->src(1);
      if (is_known(r) || !std::ranges::all_of(on_.direct[scale], is_known)) continue;
      need(scale);
      scopes_.back().defined[r] = 1;
      scopes_.back().text.push_back(r);
    }
  }

  void barrier(int64_t pending) {
    scopes_.back().text.push_back(make(Op::Barrier, kVoid, {index(pending)}));
  }

  // A load of neighbours goes from memory to memory.
  void fill(Node stage) {
    Node value = stage->src(0), store = make(Op::Store, kVoid, {stage, stage->src(1), value});
    const bool is_one = value->num_src < 3 || value->src(2)->dtype.lanes == 1;  // gate
    const bool is_copy = value->op == Op::Load && is_one && value->src(1)->dtype.lanes == 1 &&
                         stage->src(1)->dtype.lanes == 1;
    need(stage->src(1));
    if (is_copy)
      for (Node s : value->srcs()) need(s);
    else
      need(value);
    scopes_.back().text.push_back(is_copy ? make(Op::Fetch, kVoid, {store}) : store);
  }

  // Loop(range), with how far what is filled in it is ahead; or of a range that is ahead of a loop.
  Node opening(const Block& block) const {
    if (Node of = loop_behind(block.range))
      return make(Op::Loop, kVoid, {block.range, of, index(stage_schedule(block.fills).lead)});
    for (const auto& child : block.children)
      if (child->fills > 1)
        return make(Op::Loop, kVoid, {block.range, index(stage_schedule(child->fills).lead)});
    return make(Op::Loop, kVoid, {block.range});
  }

  void emit_loop(Block& block) {
    if (block.range) need(block.range->src(0));
    for (Node r : block.closing)
      if (!is_stage(r)) scopes_.back().text.push_back(make(Op::Acc, kVoid, {r}));
    scopes_.emplace_back(&block);
    emit(block);
    std::vector<Node> inner = std::move(scopes_.back().text);
    scopes_.pop_back();
    std::vector<Node>& text = scopes_.back().text;
    if (block.range) text.push_back(opening(block));
    text.insert(text.end(), inner.begin(), inner.end());
    if (block.range) text.push_back(make(Op::EndLoop, kVoid, {block.range}));
    for (Node r : block.closing) {
      if (is_stage(r)) {
        scopes_.back().defined[r] = 1;
        continue;
      }
      if (is_shared_by_threads(r)) text.push_back(make(Op::Group, kVoid, {r}));
      text.push_back(r);
      scopes_.back().defined[r] = 1;
    }
  }

  Node matrix_ = nullptr;  // first of all statements
  Traits traits_;
  Block root_;
  std::vector<Node> grid_;    // ranges that are no loops: open everywhere
  std::vector<Node> ranges_;  // loops
  Dependences on_;
  std::vector<Scope> scopes_;
  std::vector<Node> body_;
};

}  // namespace

Linear linearize(Node sink, std::string name, bool branches) {
  Linear out;
  out.name = std::move(name);
  out.body = Linearizer(sink, branches).run();
  for (Node n : topological(sink)) {
    if (n->op != Op::Param && n->op != Op::Store) continue;
    Node param = n->op == Op::Param ? n : n->src(0);
    if (is_accumulator(param)) continue;
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
