#include "runtime/schedule/order.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "runtime/analysis/after.h"
#include "runtime/device/buffer.h"
#include "runtime/fusion/materialize.h"
#include "runtime/schedule/copy_order.h"
#include "runtime/schedule/memory_plan.h"

namespace tiny {

int overwritten_input(Node assign) {
  Node old = assign->src(0);
  while (old->op == Op::Reshape) old = old->src(0);
  if (old->op != Op::Param || old->dtype != assign->dtype) return -1;
  return static_cast<int>(old->ints()[0]);
}

namespace {

// What an output of a group is computed from: reductions, and whether one of the inputs.
struct Needs {
  std::vector<Node> reductions;
  bool reads = false;
};

Needs needs_of(const Group& g, Node out, Node input) {
  Needs found;
  std::vector<Node> stack{out};
  NodeMap<char> seen;
  while (!stack.empty()) {
    Node n = stack.back();
    stack.pop_back();
    if (std::exchange(seen[n], 1)) continue;
    found.reads |= behind(n) == input;
    if (n->op == Op::ReduceAxis) found.reductions.push_back(n);
    if (std::find(g.inputs.begin(), g.inputs.end(), behind(n)) != g.inputs.end()) continue;
    for (Node s : used_sources(n)) stack.push_back(s);
  }
  return found;
}

}  // namespace

bool is_read_later(const Group& g, Node out, Node input) {
  if (g.outputs.size() == 1) return false;
  const Needs own = needs_of(g, out, input);
  return std::any_of(g.outputs.begin(), g.outputs.end(), [&](Node other) {
    if (other == out) return false;
    const Needs needs = needs_of(g, other, input);
    const auto waits = [&](Node n) { return std::ranges::count(own.reductions, n) == 0; };
    return needs.reads && std::ranges::any_of(needs.reductions, waits);
  });
}

namespace {

class Orderer {
 public:
  Orderer(std::span<const Node> roots, std::vector<Group> groups, const NodeMap<char>& scatters,
          std::span<const int> devices)
      : roots_(roots), groups_(std::move(groups)), devices_(devices) {
    for (size_t g = 0; g < groups_.size(); ++g)
      for (Node n : groups_[g].outputs) {
        maker_[n] = static_cast<int>(g);
        if (n->op == Op::Assign || scatters.contains(n)) out_.replaces[n] = overwritten_input(n);
      }
  }

  OrderedGroups run() {
    const int count = static_cast<int>(groups_.size());
    before_.resize(groups_.size());
    for (int g = 0; g < count; ++g)
      for (Node n : groups_[g].inputs)
        if (const int* m = maker_.find(n)) before_[g].insert(*m);
    for (int g = 0; g < count; ++g)
      for (Node n : groups_[g].after)
        if (const int* m = maker_.find(n); m && *m != g) before_[g].insert(*m);
    for (int g = 0; g < count; ++g)
      for (Node n : groups_[g].outputs)
        if (out_.replaces.contains(n)) try_in_place(g, n);
    choose_order();
    find_deaths();
    for (const Turn& turn : order_) out_.groups.push_back(group_of(turn));
    return std::move(out_);
  }

 private:
  bool reads(const Group& g, int input, bool elsewhere_only) const {
    for (Node n : elsewhere_only ? g.elsewhere : g.inputs)
      if (n->op == Op::Param && n->ints()[0] == input) return true;
    return false;
  }

  bool needs(int group, int other, std::set<int>& seen) const {  // by any path
    if (group == other) return true;
    if (!seen.insert(group).second) return false;
    for (int p : before_[group])
      if (needs(p, other, seen)) return true;
    return false;
  }

  // Peaks below this are no trouble; above it, a few bytes in a hundred are read and written again.
  static constexpr int64_t kLowPeak = int64_t{1} << 30;
  static constexpr double kShareAgain = 0.02;

  // Values of the jobs are the stored nodes, by the order of groups and outputs.
  void choose_order() {
    NodeMap<int> id;
    NodeMap<char> stays;
    for (Node r : roots_) stays[base_of(r)] = 1;
    for (const Group& g : groups_)
      for (Node n : g.outputs) {
        id[n] = static_cast<int>(stored_.size());
        stored_.push_back(n);
      }
    std::vector<Job> jobs;
    std::vector<JobValue> values;
    for (size_t g = 0; g < groups_.size(); ++g) {
      Job j;
      j.is_copy = groups_[g].outputs[0]->op == Op::Copy;
      j.before.assign(before_[g].begin(), before_[g].end());
      for (Node n : groups_[g].inputs)
        if (const int* v = id.find(n)) j.reads.push_back(*v);
      for (Node n : groups_[g].outputs) {
        j.writes.push_back(*id.find(n));
        JobValue v{bytes_of(n->dtype, numel(n->shape())),
                   stays.contains(n) || out_.in_place.contains(n)};
        std::vector<Node> from;
        v.cheap = find_recipe(n, from);
        for (Node s : from) {
          if (const int* r = id.find(s)) v.recipe.push_back(*r);
          if (s->op != Op::Param) continue;
          const auto writer = overwritten_.find(static_cast<int>(s->ints()[0]));
          if (writer != overwritten_.end()) v.until.push_back(writer->second);
        }
        values.push_back(std::move(v));
      }
      jobs.push_back(std::move(j));
    }
    const std::vector<int> order = order_for_memory(jobs, values);
    for (const int j : order) jobs[j].device = device_of(groups_[j], jobs);
    order_ = gather_copies(jobs, recompute_for_memory(jobs, values, order, kLowPeak, kShareAgain));
  }

  // Of the first of its inputs that has one; those of the jobs before it are known.
  int device_of(const Group& g, const std::vector<Job>& jobs) const {
    if (g.outputs[0]->op == Op::Copy) return g.outputs[0]->device;
    for (Node n : g.inputs) {
      const int* maker = maker_.find(n);
      if (!maker && n->op != Op::Param) continue;
      const int of = maker ? jobs[*maker].device : devices_[static_cast<size_t>(n->ints()[0])];
      if (of) return of;
    }
    return g.outputs[0]->device;
  }

  // What a value is computed from, where that takes no more than element-wise operations on what
  // is still there later.
  bool find_recipe(Node value, std::vector<Node>& from) const {
    std::vector<Node> stack{value};
    NodeMap<char> seen;
    while (!stack.empty()) {
      Node n = stack.back();
      stack.pop_back();
      if (seen.contains(n)) continue;
      seen[n] = 1;
      if (n->op == Op::Param || n->op == Op::After || (n != value && maker_.contains(n))) {
        from.push_back(behind(n));
        continue;
      }
      const bool simple = is_elementwise(n->op) || is_movement(n->op) || n->is_const() ||
                          n->op == Op::Iota || n->op == Op::Contiguous;
      if (!simple) return false;
      for (Node s : n->srcs()) stack.push_back(s);
    }
    return true;
  }

  // The group of a turn: all of it, or one of its values from what that needs.
  Group group_of(const Turn& turn) const {
    if (turn.again < 0) return groups_[turn.job];
    Group g;
    g.outputs = {stored_[turn.again]};
    find_recipe(g.outputs[0], g.inputs);
    g.elsewhere = g.inputs;  // not known: none of them is overwritten
    return g;
  }

  void try_in_place(int group, Node assign) {
    const int input = overwritten_input(assign);
    if (input < 0 || overwritten_.count(input)) return;
    const bool read = assign->op == Op::Scatter ? reads_beside_base(assign, input)
                                                : reads(groups_[group], input, true);
    if (read || is_result(input) || is_read_by_others(groups_[group], assign, input)) return;
    std::vector<int> readers;
    for (int g = 0; g < static_cast<int>(groups_.size()); ++g) {
      if (g == group || !reads(groups_[g], input, false)) continue;
      std::set<int> seen;
      if (needs(g, group, seen)) return;
      readers.push_back(g);
    }
    before_[group].insert(readers.begin(), readers.end());
    overwritten_[input] = group;
    out_.in_place[assign] = input;
  }

  static bool is_read_by_others(const Group& g, Node out, int input) {
    return std::any_of(g.inputs.begin(), g.inputs.end(), [&](Node n) {
      return n->op == Op::Param && n->ints()[0] == input && is_read_later(g, out, n);
    });
  }

  // What a scatter writes, or where, is computed from the tensor itself.
  bool reads_beside_base(Node scatter, int input) const {
    std::vector<Node> stack(scatter->srcs().begin() + 1, scatter->srcs().end());
    NodeMap<char> seen;
    while (!stack.empty()) {
      Node n = stack.back();
      stack.pop_back();
      if (n->op == Op::Param && n->ints()[0] == input) return true;
      if (maker_.contains(n) || std::exchange(seen[n], 1)) continue;
      stack.insert(stack.end(), n->srcs().begin(), n->srcs().end());
    }
    return false;
  }

  bool is_result(int input) const {  // a root that is a view of it
    for (Node r : roots_) {
      Node b = base_of(r);
      if (b->op == Op::Param && b->ints()[0] == input) return true;
    }
    return false;
  }

  // Which stored values each turn is the last to need.
  void find_deaths() {
    out_.deaths.resize(order_.size());
    NodeMap<char> needed;  // later on
    for (Node r : roots_) needed[base_of(r)] = 1;
    for (size_t t = order_.size(); t-- > 0;) {
      const Group g = group_of(order_[t]);
      for (Node n : g.outputs)
        if (!is_root(n)) needed[n] = 0;  // before that it is another version of the value
      for (Node n : g.inputs) {
        char& later = needed[n];
        if (!later && maker_.contains(n)) out_.deaths[t].push_back(n);
        later = 1;
      }
    }
  }

  bool is_root(Node n) const {
    return std::any_of(roots_.begin(), roots_.end(), [&](Node r) { return base_of(r) == n; });
  }

  const std::span<const Node> roots_;
  const std::vector<Group> groups_;
  const std::span<const int> devices_;  // of the inputs
  OrderedGroups out_;
  NodeMap<int> maker_;
  std::vector<std::set<int>> before_;
  std::vector<Node> stored_;
  std::vector<Turn> order_;
  std::map<int, int> overwritten_;  // inputs, and by which group
};

}  // namespace

OrderedGroups order_groups(std::span<const Node> roots, std::vector<Group> groups,
                           const NodeMap<char>& scatters, std::span<const int> devices) {
  return Orderer(roots, std::move(groups), scatters, devices).run();
}

}  // namespace tiny
