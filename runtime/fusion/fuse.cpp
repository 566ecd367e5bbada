#include "runtime/fusion/fuse.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "runtime/analysis/after.h"
#include "runtime/analysis/recompute_cost.h"
#include "runtime/analysis/views.h"
#include "runtime/fusion/fused_kernel.h"
#include "runtime/fusion/materialize.h"
#include "tiny/base/env.h"
#include "tiny/base/error.h"

namespace tiny {

namespace {

class Fuser {
 public:
  Fuser(std::span<const Node> roots, std::span<const Node> stored, const NodeTargets& targets,
        const std::set<Node>& refused)
      : roots_(roots.begin(), roots.end()), targets_(targets) {
    order_ = topological(roots);
    for (Node n : order_) position_[n] = position_.size();
    stored_ = choose_stored(roots_, order_, stored, targets, refused);
  }

  std::vector<Group> run() {
    for (Node n : order_)
      if (is_stored(n)) start_group(n);
    if (env_int("FUSE")) {
      for (const Chain& chain : stored_.chains.all) merge_chain(chain);
      for (const auto& [a, b] : stored_.chains.together) merge_together(kernel_of(a), kernel_of(b));
      merge_siblings(true);
      merge_rows();
      merge_siblings(false);
      merge_rows();
      joins_small_ = true;
      merge_rows();
    }
    return finish();
  }

  // Products of chains whose kernels have no options as they have come to be.
  std::vector<Node> refused_chains(std::span<const Group> groups) const {
    std::vector<Node> out;
    std::set<int> bad;
    for (const Group& g : groups) {
      const int k = kernel_of(g.outputs[0]);
      if (kernels_[k].is_chain &&
          !has_chain_options(g.outputs, g.inputs, targets_.of(g.outputs[0])))
        bad.insert(k);
    }
    for (const Chain& chain : stored_.chains.all)
      if (bad.count(kernel_of(chain.product))) out.push_back(chain.product);
    return out;
  }

 private:
  using Kernel = FusedKernel;

  bool is_stored(Node n) const { return kernel_of_.contains(n) || stored_.values.contains(n); }

  // --- kernels ---------------------------------------------------------------------------------

  void start_group(Node n) {
    kernel_of_[n] = static_cast<int>(kernels_.size());
    Kernel k;
    k.outputs = {n};
    k.place = static_cast<int>(kernels_.size());
    in_order_.push_back(k.place);
    kernels_.push_back(std::move(k));
    update(static_cast<int>(kernels_.size()) - 1);
  }

  int kernel_of(Node n) const {
    const int* k = kernel_of_.find(n);
    return k ? find(*k) : -1;
  }
  int find(int k) const {
    while (moved_.size() > static_cast<size_t>(k) && moved_[k] >= 0) k = moved_[k];
    return k;
  }

  // Outputs that another output needs are reached through it; the others begin loops of their own.
  void update(int id) {
    Kernel& k = kernels_[id];
    k.reads.clear();
    k.producers.clear();
    k.inner = NodeMap<char>();
    k.work = 0;
    k.size = 0;
    k.is_gemm = false;
    k.changed = ++now_;
    std::set<Read> seen;
    for (Node out : k.outputs) {
      AxisMap axes(out->rank);
      for (int i = 0; i < out->rank; ++i) axes[i] = out->shape()[i] == 1 ? kNone : i;
      walk(id, {out, axes}, seen);
    }
    find_producers(k);
    k.late = std::ranges::any_of(k.reads, [](auto& r) { return r.leaf->op == Op::Copy; }) ||
             std::ranges::any_of(k.producers, [&](int p) { return kernels_[find(p)].late; });
  }

  // All that an output is computed from, depth first and without recursion: chains are long.
  void walk(int id, Read output, std::set<Read>& seen) {
    std::vector<Read> stack{std::move(output)}, sources;
    while (!stack.empty()) {
      const Read read = std::move(stack.back());
      stack.pop_back();
      sources.clear();
      visit(id, read, seen, sources);
      for (const Read& s : sources)
        if (kernel_of(s.leaf) == id) kernels_[id].inner[s.leaf] = 1;
      stack.insert(stack.end(), std::make_move_iterator(sources.rbegin()),
                   std::make_move_iterator(sources.rend()));
    }
  }

  void visit(int id, Read read, std::set<Read>& seen, std::vector<Read>& sources) {
    Node n = read.leaf;
    Kernel& k = kernels_[id];
    read.own |= is_own_element(n, read.axes, k.outputs[0]);
    if (n->is_const() || n->op == Op::Iota || !seen.insert(read).second) return;
    k.work = std::max(k.work, numel(n->shape()));
    k.size += n->op == Op::Sin || n->op == Op::Exp2 || n->op == Op::Log2 ? kTranscendental : 1;
    if (n->op == Op::Param || n->op == Op::After || (is_stored(n) && kernel_of(n) != id)) {
      k.reads.push_back(std::move(read));
      return;
    }
    if (is_movement(n->op)) {
      const bool own = read.own && n->op == Op::Reshape;
      return sources.push_back({n->src(0), through_movement(n, read.axes), own});
    }
    AxisMap from = read.axes;
    if (n->op == Op::ReduceAxis) {
      for (int i = 0; i < n->rank; ++i)
        if (n->arg<ReduceArg>().axes >> i & 1) from[i] = kOther;
      k.is_gemm |= is_product(n);
    }
    for (Node s : used_sources(n)) {
      const bool anywhere = n->op == Op::Scatter || (n->op == Op::Gather && s == n->src(0));
      sources.push_back({s, anywhere ? AxisMap(s->rank, kOther) : from});
    }
  }

  // --- merging ---------------------------------------------------------------------------------

  // Rows that are visited several times must stay in a core's own cache.
  static constexpr int64_t kRowElements = 128 << 10;
  static constexpr int64_t kFewElements = 1 << 17;  // read in any order in no more than a launch
  static constexpr int kLargest = 1000;             // size of a kernel that is made of two
  static constexpr int kTranscendental = 20;        // operations of a CPU
  static constexpr int64_t kManyResults = 1 << 20;  // of a product: worth a kernel more

  // For all cores to take part; a CPU's are few, and sizes alone decide there.
  static int64_t enough_rows(const Target& target) {
    return target.kind == Target::Kind::Cpu ? 16 : target.cores;
  }

  // Constants, which kernels of several devices may read, have none.
  int device_of(const Kernel& k) const { return targets_.device_of(k.outputs[0]); }

  // A chain's reductions into the kernel of its last product, where nothing between them is
  // computed by another one.
  void merge_chain(const Chain& chain) {
    std::set<int> own;
    const auto last = [&] { return kernel_of(chain.product); };
    kernels_[last()].is_chain = true;
    for (Node n : chain.rows) own.insert(kernel_of(n));
    for (int p : own) {
      std::vector<int> between;
      if (p != last()) walk_between(p, last(), &between);
      for (int q : between)
        if (!own.count(q) && depends(q, p)) return;
    }
    for (size_t i = chain.rows.size(); i-- > 0;)
      if (const int p = kernel_of(chain.rows[i]); p != last()) merge(p, last());
  }

  // Two chains of the same scores that do not wait for each other, and are of no third one.
  void merge_together(int a, int b) {
    const bool alone = kernels_[a].outputs.size() == 1 && kernels_[b].outputs.size() == 1;
    if (alone && !depends(a, b) && !depends(b, a)) merge(b, a);
  }

  // Until nothing changes: what could not be merged is looked at again when it, or what it reads
  // from, has become another kernel.
  void merge_rows() {
    const uint64_t begin = now_;
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t c = 0; c < kernels_.size(); ++c) {
        Kernel& k = kernels_[c];
        if (!k.alive) continue;
        std::vector<int> from = producers(static_cast<int>(c));
        // What follows a product goes with it rather than with a sum that it also needs.
        std::stable_partition(from.begin(), from.end(), [&](int p) { return kernels_[p].is_gemm; });
        uint64_t newest = std::max(k.changed, begin);
        for (int p : from) newest = std::max(newest, kernels_[p].changed);
        if (k.examined > newest) continue;
        k.examined = ++now_;
        for (int p : from)
          if (may_merge_rows(p, static_cast<int>(c))) {
            merge(p, static_cast<int>(c));
            changed = true;
            break;
          }
      }
    }
  }

  void find_producers(Kernel& k) {
    std::set<int> seen;
    const auto add = [&](Node n) {
      const int* p = kernel_of_.find(n);
      if (p && seen.insert(*p).second) k.producers.push_back(*p);
    };
    for (const Read& r : k.reads) {
      add(behind(r.leaf));
      for (Node n : waited_for(r.leaf)) add(n);
    }
  }

  std::vector<int> producers(int c) const {
    std::vector<int> out;
    for (int made : kernels_[c].producers) {
      const int p = find(made);
      if (p != c && kernels_[p].alive && std::find(out.begin(), out.end(), p) == out.end())
        out.push_back(p);
    }
    return out;
  }

  // The values with memory that must be there before an After, and what it is an After of, is read.
  const std::vector<Node>& waited_for(Node n) const {
    static const auto& none = *new std::vector<Node>;
    if (n->op != Op::After) return none;
    if (const auto* known = waited_.find(n)) return *known;
    std::vector<Node> out, roots;
    for (Node a = n; a->op == Op::After; a = base_of(a->src(0))) roots.push_back(a->src(1));
    const auto visit = [&](Node s) {
      const bool has_memory = is_stored(s) || s->op == Op::After;
      if (has_memory) out.push_back(behind(s));
      return !has_memory;
    };
    visit_below(std::move(roots), visit, used_sources);
    return waited_[n] = std::move(out);
  }

  // Whether kernel c may only begin when p has ended.
  bool waits_for(int c, int p) const {
    for (const Read& r : kernels_[c].reads) {
      if (r.leaf->op != Op::After) continue;
      if (kernel_of(behind(r.leaf)) == p) return true;
      for (Node n : waited_for(r.leaf))
        if (kernel_of(n) == p) return true;
    }
    return false;
  }

  // The consumer's loops go around the producer's: every element that it reads of the producer is
  // the one of its own row.
  bool may_merge_rows(int p, int c) const {
    const Kernel &from = kernels_[p], &to = kernels_[c];
    if (device_of(from) != device_of(to)) return false;
    if (!have_buffers(kernels_, p, c, roots_, targets_) || from.size + to.size > kLargest)
      return false;
    const bool both_sent = joins_sent(p, c);
    if (waits_for(c, p) || (is_sent(from) && !both_sent)) return false;
    if (to.late && !from.late && kept_beside(p, c)) return false;  // others may read it now
    const auto joins = [&](Node n) { return can_join(n); };
    if (!std::ranges::all_of(from.outputs, joins) || !std::ranges::all_of(to.outputs, joins))
      return false;
    const Target& target = targets_.of(to.outputs[0]);
    // On CPUs values of rows beside others made a step of MNIST 12 % slower: sums of channels then
    // join what reads them.
    const bool gpu = target.kind == Target::Kind::Gpu;
    bool reads_all = true;
    int64_t read = 0;  // elements of the largest output that is
    for (Node out : from.outputs)
      if (is_read(to, out)) read = std::max(read, numel(out->shape()));
    for (Node out : from.outputs) {
      if (reads_own_row(to, out)) continue;
      const bool inside = (from.inner.contains(out) && numel(out->shape()) <= read) ||
                          (joins_small_ && is_small_sibling(out, to));
      reads_all &= !is_read(to, out) && (inside || (gpu && is_of_read_rows(from, to, out)));
    }
    const bool of_rows = gpu && !reads_all && is_of_rows(from, to);
    if (!reads_all && !both_sent && !of_rows) return false;
    if (numel(to.outputs[0]->shape()) == 0) return false;  // no kernel will run for it
    int64_t rows = std::max<int64_t>(1, numel(from.outputs[0]->shape()));
    int64_t size = std::max<int64_t>(1, numel(to.outputs[0]->shape()));
    if (of_rows) std::swap(rows, size);
    if ((from.is_gemm || to.is_gemm) && rows != size) return false;
    if (from.is_gemm && (to.is_gemm || has_reduce(to))) return false;  // units do one sum
    if (target.has_wgmma && rows > kManyResults) {
      if (from.is_gemm && is_long_epilogue(p, c)) return false;
      if ((from.is_gemm || to.is_gemm) && is_wide_epilogue(from, to, rows, kept_beside(p, c)))
        return false;
    }
    const int64_t work = std::max(from.work, to.work);
    if (rows != size && gpu && work > kFewElements && lie_apart(from, to)) return false;
    if (rows != size || has_reduce(to)) {
      if (work > kSmallWork && (rows < enough_rows(target) || work / rows > kRowElements))
        return false;
    }
    return !reaches_otherwise(p, c) && (from.is_chain || loops_nest(p, c));
  }

  // Whether all of kernel c is sent to other devices, made element by element of what p computes,
  // and waits for nothing that p does not wait for: sums of one pass over the same values are sent
  // together, each by its own loops behind those of its sum.
  bool joins_sent(int p, int c) const {
    const Kernel &from = kernels_[p], &to = kernels_[c];
    const auto alike = [&](Node n) { return same(n->shape(), from.outputs[0]->shape()); };
    const auto is_known = [&](const Read& r) {
      return kernel_of(behind(r.leaf)) == p || is_read(from, r.leaf);
    };
    for (Node out : to.outputs)
      if (!stored_.sent.contains(out) || !alike(out) || out->op == Op::ReduceAxis) return false;
    for (Node out : from.outputs)
      if (!alike(out) || (is_read(to, out) && !reads_own_row(to, out))) return false;
    return !from.is_gemm && std::all_of(to.reads.begin(), to.reads.end(), is_known);
  }

  // How many values of p others than c read.
  size_t kept_beside(int p, int c) const {
    std::set<Node> kept;
    for (size_t k = 0; k < kernels_.size(); ++k) {
      const int id = static_cast<int>(k);
      if (!kernels_[k].alive || id == p || id == c) continue;
      for (const Read& r : kernels_[k].reads)
        if (kernel_of(r.leaf) == p) kept.insert(r.leaf);
    }
    return kept.size();
  }

  // Whether what kernel c does with each sum of p takes as long as the sum on matrix units, which
  // stand still meanwhile: about 32 of their products for each operation.
  bool is_long_epilogue(int p, int c) const {
    int64_t terms = 0;
    for (Node n : kernels_[p].outputs)
      if (n->op == Op::ReduceAxis)
        terms = std::max(terms, numel(n->src(0)->shape()) / numel(n->shape()));
    Cost cost;
    NodeMap<char> seen;
    for (Node out : kernels_[c].outputs) {
      cost.work += work_of(out->op);
      for (Node s : used_sources(out)) add_cost(s, numel(out->shape()), stored_.values, seen, cost);
    }
    return terms > 0 && cost.work * 32 > terms && cost.work > kWorthStoring;
  }

  // Of a kernel made of two: whether the axes that its reductions are computed for are nested in
  // one another. The sums of the rows and of the columns of a matrix have no loops in common.
  bool loops_nest(int p, int c) const {
    std::vector<Node> outputs = kernels_[c].outputs;
    outputs.insert(outputs.end(), kernels_[p].outputs.begin(), kernels_[p].outputs.end());
    put_consumers_first(outputs);
    NodeMap<char> seen;
    std::set<std::pair<Node, AxisMap>> visited;
    std::vector<uint64_t> rows;
    for (Node out : outputs) {
      if (seen.contains(out)) continue;  // reached through the one that needs it
      AxisMap axes(out->rank);
      for (int i = 0; i < out->rank; ++i) axes[i] = out->shape()[i] == 1 ? kNone : i;
      if (!collect_rows({p, c}, out, axes, {seen, visited, rows})) return false;
    }
    for (uint64_t a : rows)
      for (uint64_t b : rows)
        if ((a & b) != a && (a & b) != b) return false;
    return true;
  }

  struct RowWalk {
    NodeMap<char>& seen;
    std::set<std::pair<Node, AxisMap>>& visited;
    std::vector<uint64_t>& rows;  // a bit for each axis, one set for each reduction
  };

  bool collect_rows(std::pair<int, int> kernels, Node out, const AxisMap& of, RowWalk walk) const {
    std::vector<std::pair<Node, AxisMap>> stack{{out, of}};
    while (!stack.empty()) {
      const auto [n, axes] = std::move(stack.back());
      stack.pop_back();
      const bool outside =
          is_stored(n) && kernel_of(n) != kernels.first && kernel_of(n) != kernels.second;
      if (is_leaf(n) || outside || !walk.visited.insert({n, axes}).second) continue;
      walk.seen[n] = 1;
      if (is_movement(n->op)) {
        stack.emplace_back(n->src(0), through_movement(n, axes));
        continue;
      }
      AxisMap from = axes;
      if (n->op == Op::ReduceAxis) {
        uint64_t row = 0;
        for (int axis : axes) {
          if (axis == kOther) return false;
          if (axis >= 0) row |= uint64_t{1} << axis;
        }
        walk.rows.push_back(row);
        for (int i = 0; i < n->rank; ++i)
          if (n->arg<ReduceArg>().axes >> i & 1) from[i] = kOther;
      }
      for (Node s : used_sources(n)) {
        const bool data = n->op == Op::Gather && s == n->src(0);
        stack.emplace_back(s, data ? AxisMap(s->rank, kOther) : from);
      }
    }
    return true;
  }

  // What other devices wait for is computed by itself, and does not wait for what they send.
  bool is_sent(const Kernel& k) const {
    return std::any_of(k.outputs.begin(), k.outputs.end(),
                       [&](Node n) { return stored_.sent.contains(n); });
  }

  // A path from p to c through another kernel: merging the two would close a circle.
  bool reaches_otherwise(int p, int c) const { return walk_between(p, c, nullptr); }

  bool depends(int from, int on) const {
    const std::vector<int> read = producers(from);
    return from == on || std::find(read.begin(), read.end(), on) != read.end() ||
           reaches_otherwise(on, from);
  }

  // Visits the kernels behind p in the order that c depends on; true at one that reads from p,
  // where they are not all wanted.
  bool walk_between(int p, int c, std::vector<int>* all) const {
    ++search_;
    searched_.resize(kernels_.size());
    std::vector<int> stack{c};
    while (!stack.empty()) {
      const int k = stack.back();
      stack.pop_back();
      for (int made : kernels_[k].producers) {
        const int q = find(made);
        if (q == p && k != c && !all) return true;
        if (!kernels_[q].alive || kernels_[q].place <= kernels_[p].place || q == c) continue;
        if (std::exchange(searched_[q], search_) == search_) continue;
        stack.push_back(q);
        if (all) all->push_back(q);
      }
    }
    return false;
  }

  // Of what lies between two kernels that become one, all that the later one depends on comes
  // before, the rest behind (Pearce and Kelly, "A dynamic topological sort algorithm", 2006).
  void put_together(int p, int c) {
    const bool rising = kernels_[p].place < kernels_[c].place;
    const int begin = kernels_[rising ? p : c].place, end = kernels_[rising ? c : p].place;
    std::vector<int> order;
    walk_between(rising ? p : c, rising ? c : p, &order);
    std::ranges::sort(order, {}, [&](int k) { return kernels_[k].place; });
    order.push_back(c);
    const std::set<int> placed(order.begin(), order.end());
    for (int at = begin; at <= end; ++at)
      if (!placed.count(in_order_[at]) && in_order_[at] != p) order.push_back(in_order_[at]);
    order.push_back(p);
    for (size_t i = 0; i < order.size(); ++i) {
      in_order_[begin + static_cast<int>(i)] = order[i];
      kernels_[order[i]].place = begin + static_cast<int>(i);
    }
  }

  void merge(int p, int c) {
    moved_.resize(kernels_.size(), -1);
    put_together(p, c);
    Kernel &from = kernels_[p], &to = kernels_[c];
    to.outputs.insert(to.outputs.end(), from.outputs.begin(), from.outputs.end());
    from.alive = false;
    moved_[p] = c;
    to.is_chain |= from.is_chain;
    put_consumers_first(to.outputs);
    update(c);
  }

  // An output that needs another one comes before it (it has the outer loops).
  void put_consumers_first(std::vector<Node>& outputs) const {
    std::stable_sort(outputs.begin(), outputs.end(), [&](Node a, Node b) {
      if (numel(a->shape()) != numel(b->shape())) return numel(a->shape()) > numel(b->shape());
      return position(a) > position(b);
    });
  }
  size_t position(Node n) const { return *position_.find(n); }

  // Kernels that visit the same elements and share an input: one pass over it serves both. Sums go
  // first, while they are alone: what follows each of them differs.
  void merge_siblings(bool sums) {
    for (size_t a = 0; a < kernels_.size(); ++a) {
      if (!kernels_[a].alive) continue;
      for (size_t b = a + 1; b < kernels_.size() && b < a + 64; ++b) {
        const int i = static_cast<int>(a), j = static_cast<int>(b);
        if (!kernels_[b].alive || (sums && kernels_[a].outputs[0]->op != Op::ReduceAxis)) continue;
        if (is_sent(kernels_[a]) != is_sent(kernels_[b])) continue;
        if (device_of(kernels_[a]) == device_of(kernels_[b]) &&
            are_siblings(kernels_[a], kernels_[b]) && !depends(j, i) && !depends(i, j) &&
            have_buffers(kernels_, j, i, roots_, targets_))
          merge(j, i);
      }
    }
  }

  // --- result ----------------------------------------------------------------------------------

  std::vector<Group> finish() {
    std::vector<int> order;
    std::vector<char> state(kernels_.size());
    for (size_t k = 0; k < kernels_.size(); ++k)
      if (kernels_[k].alive) put_in_order(static_cast<int>(k), state, order);
    keep_read_outputs(order);
    std::vector<Group> out;
    for (int k : order)
      if (kernels_[k].alive) out.push_back(group_of(kernels_[k]));
    return out;
  }

  // What only its own kernel needs stays in registers. A kernel that nobody needs goes: an old
  // value that an assignment replaces before it was ever computed.
  void keep_read_outputs(const std::vector<int>& order) {
    NodeMap<char> wanted;
    for (Node r : roots_) wanted[base_of(r)] = 1;
    for (size_t i = order.size(); i-- > 0;) {
      Kernel& k = kernels_[order[i]];
      std::erase_if(k.outputs, [&](Node n) { return !wanted.contains(n) && n->op != Op::Assign; });
      k.alive = !k.outputs.empty();
      if (k.alive)
        for (const Read& r : k.reads) wanted[behind(r.leaf)] = 1;
    }
  }

  // After those that it reads from.
  void put_in_order(int root, std::vector<char>& state, std::vector<int>& order) const {
    std::vector<int> stack{root};
    while (!stack.empty()) {
      const int k = stack.back();
      if (state[k] == 0) {
        state[k] = 1;
        for (int p : producers(k)) {
          expect(state[p] != 1, "kernels depend on each other in a circle");
          if (state[p] == 0) stack.push_back(p);
        }
        continue;
      }
      stack.pop_back();
      if (state[k] == 1) order.push_back(k);
      state[k] = 2;
    }
  }

  Group group_of(const Kernel& k) const {
    Group g;
    g.outputs = k.outputs;
    for (const Read& r : k.reads) {
      Node value = behind(r.leaf);
      if (std::find(g.inputs.begin(), g.inputs.end(), value) == g.inputs.end())
        g.inputs.push_back(value);
      if (!r.own) g.elsewhere.push_back(value);
      const std::vector<Node>& before = waited_for(r.leaf);
      g.after.insert(g.after.end(), before.begin(), before.end());
    }
    return g;
  }

  std::vector<Node> roots_, order_;
  const NodeTargets& targets_;
  NodeMap<size_t> position_;
  Stored stored_;
  NodeMap<int> kernel_of_;
  bool joins_small_ = false;  // at last, so that it keeps nothing else apart
  std::vector<Kernel> kernels_;
  std::vector<int> moved_;
  mutable NodeMap<std::vector<Node>> waited_;  // by After
  uint64_t now_ = 0;                           // counts changes, and looks at kernels
  std::vector<int> in_order_;                  // kernels by place
  mutable std::vector<uint64_t> searched_;     // by kernel: the last search that came by
  mutable uint64_t search_ = 0;
};

}  // namespace

std::vector<Group> fuse(std::span<const Node> roots, std::span<const Node> stored,
                        const NodeTargets& targets) {
  for (std::set<Node> refused;;) {  // until all chains' kernels have options
    Fuser fuser(roots, stored, targets, refused);
    std::vector<Group> groups = fuser.run();
    const std::vector<Node> more = fuser.refused_chains(groups);
    if (more.empty()) return groups;
    refused.insert(more.begin(), more.end());
  }
}

}  // namespace tiny
