#include "runtime/schedule/order.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "runtime/analysis/after.h"
#include "runtime/device/buffer.h"
#include "runtime/distributed/collective.h"
#include "runtime/fusion/materialize.h"
#include "runtime/schedule/copy_order.h"
#include "runtime/schedule/memory_plan.h"
#include "tiny/base/error.h"

namespace tiny {

int overwritten_input(Node assign) {
  Node old = assign->src(0);
  while (old->op == Op::Reshape) old = old->src(0);
  if (old->op != Op::Param || old->dtype != assign->dtype) return -1;
  return static_cast<int>(old->ints()[0]);
}

bool GroupReads::is_read_later(Node out, Node input) {
  if (group_.outputs.size() == 1) return false;
  if (needs_.empty()) find();
  const auto at = std::ranges::find(group_.outputs, out) - group_.outputs.begin();
  const Needs& own = needs_[static_cast<size_t>(at)];
  return std::ranges::any_of(needs_, [&](const Needs& other) {
    const auto waits = [&](Node n) { return !contains(own.reductions, n); };
    return &other != &own && contains(other.inputs, input) &&
           std::ranges::any_of(other.reductions, waits);
  });
}

void GroupReads::find() {
  for (Node out : group_.outputs) {
    Needs& found = needs_.emplace_back();
    const auto visit = [&](Node n) {
      if (n->op == Op::ReduceAxis) found.reductions.push_back(n);
      const bool is_input = contains(group_.inputs, behind(n));
      if (is_input) found.inputs.push_back(behind(n));
      return !is_input;
    };
    visit_below({out}, visit, used_sources);
  }
}

namespace {

// Which groups run behind which others. Levels grow along every edge, so that a search for a path
// need only look at levels between those of its ends.
class Dependences {
 public:
  explicit Dependences(size_t groups) : before_(groups), after_(groups), level_(groups) {}

  const std::set<int>& before(size_t group) const { return before_[group]; }

  // The group runs behind the other one.
  void add(int group, int other) {
    expect(group != other, "order: a group depends on itself");
    if (!before_[group].insert(other).second) return;
    after_[other].push_back(group);
    std::vector<int> raised{other};
    while (!raised.empty()) {
      const int from = raised.back();
      raised.pop_back();
      for (int g : after_[from]) {
        if (level_[g] > level_[from]) continue;
        level_[g] = level_[from] + 1;
        raised.push_back(g);
      }
    }
  }

  // Whether the group runs behind the other one, by any path.
  bool has_path(int group, int other) const {
    std::vector<int> stack{group};
    std::set<int> seen;
    while (!stack.empty()) {
      const int g = stack.back();
      stack.pop_back();
      if (g == other) return true;
      if (level_[g] <= level_[other] || !seen.insert(g).second) continue;
      stack.insert(stack.end(), before_[g].begin(), before_[g].end());
    }
    return false;
  }

 private:
  std::vector<std::set<int>> before_;
  std::vector<std::vector<int>> after_;  // the same edges from the other end
  std::vector<int> level_;
};

// What happens to the memory of one input.
struct InputUse {
  std::vector<int> readers;  // groups
  bool is_result = false;    // a root is a view of it
  int overwritten_by = -1;   // the group that does so in place
};

// Whether what copies send waits for more than its own values: as weights do that are gathered for
// their use, so that memory is saved (runtime/partition/parts.h). GPUs that gather by launches of
// their graphs keep the usual order (measurements.md: gathers_weights).
bool gathers_weights(const std::vector<Group>& groups) {
  NodeMap<char> waits;
  for (const Group& g : groups)
    for (Node n : g.outputs)
      if (!g.after.empty()) waits[n] = 1;
  const auto is_late = [&](Node n) { return waits.contains(n); };
  return std::any_of(groups.begin(), groups.end(), [&](const Group& g) {
    if (g.outputs[0]->op != Op::Copy || is_gather(g.outputs[0])) return false;
    return is_late(g.outputs[0]) || std::any_of(g.inputs.begin(), g.inputs.end(), is_late);
  });
}

// Peaks below this are no trouble; above it, a few bytes in a hundred are read and written again.
constexpr int64_t kLowPeak = int64_t{1} << 30;
constexpr double kShareAgain = 0.02;

class Orderer {
 public:
  Orderer(std::span<const Node> roots, std::vector<Group> groups, const NodeMap<char>& scatters,
          std::span<const int> devices)
      : groups_(std::move(groups)), devices_(devices), depends_(groups_.size()) {
    for (size_t g = 0; g < groups_.size(); ++g)
      for (Node n : groups_[g].outputs) {
        maker_[n] = static_cast<int>(g);
        if (n->op == Op::Assign || scatters.contains(n)) out_.replaces[n] = overwritten_input(n);
      }
    for (Node r : roots) {
      Node b = base_of(r);
      is_root_[b] = 1;
      if (b->op == Op::Param) inputs_[b->ints()[0]].is_result = true;
    }
  }

  OrderedGroups run(int64_t limit) {
    const int count = static_cast<int>(groups_.size());
    for (int g = 0; g < count; ++g) {
      for (Node n : groups_[g].inputs) {
        if (const int* m = maker_.find(n)) depends_.add(g, *m);
        if (n->op == Op::Param) inputs_[n->ints()[0]].readers.push_back(g);
      }
      for (Node n : groups_[g].after)
        if (const int* m = maker_.find(n); m && *m != g) depends_.add(g, *m);
    }
    for (int g = 0; g < count; ++g) {
      GroupReads reads(groups_[g]);
      for (Node n : groups_[g].outputs)
        if (out_.replaces.contains(n)) try_in_place(g, n, reads);
    }
    choose_order({kLowPeak, kShareAgain, limit});
    find_deaths();
    for (const Turn& turn : order_) out_.groups.push_back(group_of(turn));
    return std::move(out_);
  }

 private:
  static bool reads_elsewhere(const Group& g, int input) {
    return std::any_of(g.elsewhere.begin(), g.elsewhere.end(),
                       [&](Node n) { return n->op == Op::Param && n->ints()[0] == input; });
  }

  // Values of the jobs are the stored nodes, by the order of groups and outputs.
  void choose_order(const MemoryBudget& budget) {
    NodeMap<int> id;
    for (const Group& g : groups_)
      for (Node n : g.outputs) {
        id[n] = static_cast<int>(stored_.size());
        stored_.push_back(n);
      }
    std::vector<Job> jobs;
    std::vector<JobValue> values;
    for (size_t g = 0; g < groups_.size(); ++g) {
      Job j;
      const Node first = groups_[g].outputs[0];
      j.is_copy = first->op == Op::Copy;
      if (j.is_copy && first->num_src > 1 && sum_by(first) == SumBy::Flags && !is_gather(first))
        j.beside_others = bytes_of(first->dtype, numel(first->shape()));
      j.before.assign(depends_.before(g).begin(), depends_.before(g).end());
      for (Node n : groups_[g].inputs)
        if (const int* v = id.find(n)) j.reads.push_back(*v);
      for (Node n : groups_[g].outputs) {
        j.writes.push_back(*id.find(n));
        JobValue v{bytes_of(n->dtype, numel(n->shape())),
                   is_root_.contains(n) || out_.in_place.contains(n)};
        std::vector<Node> from;
        v.cheap = find_recipe(n, from);
        for (Node s : from) {
          if (const int* r = id.find(s)) v.recipe.push_back(*r);
          if (s->op != Op::Param) continue;
          const auto use = inputs_.find(s->ints()[0]);
          if (use != inputs_.end() && use->second.overwritten_by >= 0)
            v.until.push_back(use->second.overwritten_by);
        }
        values.push_back(std::move(v));
      }
      if (budget.limit >= 0) find_repeats(groups_[g], values, j);
      jobs.push_back(std::move(j));
    }
    // Copies between devices go together later, and orders by shares then keep more
    // (measurements.md: by shares).
    const bool by_shares = std::ranges::none_of(jobs, &Job::is_copy);
    const std::vector<int> order = order_for_memory(jobs, values, by_shares);
    for (const int j : order) jobs[j].device = device_of(groups_[j], jobs);
    order_ = gathers_weights(groups_) || budget.limit >= 0
                 ? order_of_least_memory(jobs, values, order, budget)
                 : gather_copies(jobs, recompute_for_memory(jobs, values, order, budget));
  }

  // Whether the same kernel may run again, when, and what that costs. Not one that adds to memory
  // in no certain order, or whose results stay or go to other devices.
  void find_repeats(const Group& g, const std::vector<JobValue>& values, Job& job) const {
    job.repeats =
        g.after.empty() && std::ranges::none_of(job.writes, [&](int v) {
          const Op op = stored_[v]->op;
          return values[v].stays || op == Op::Scatter || op == Op::Assign || op == Op::Copy;
        });
    for (Node n : g.inputs) {
      if (n->op != Op::Param) continue;
      const auto use = inputs_.find(n->ints()[0]);
      if (use != inputs_.end() && use->second.overwritten_by >= 0)
        job.until.push_back(use->second.overwritten_by);
    }
    const auto visit = [&](Node n) {
      if (n->op == Op::ReduceAxis) job.work += numel(n->src(0)->shape());
      return n->op != Op::After && !contains(g.inputs, n);
    };
    visit_below(g.outputs, visit, used_sources);
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
    bool simple = true;
    visit_below({value}, [&](Node n) {
      if (n->op == Op::Param || n->op == Op::After || (n != value && maker_.contains(n))) {
        from.push_back(behind(n));
        return false;
      }
      return simple &= is_elementwise(n->op) || is_movement(n->op) || n->is_const() ||
                       n->op == Op::Iota || n->op == Op::Contiguous;
    });
    return simple;
  }

  // The group of a turn: all of it, or one of its values from what that needs.
  Group group_of(const Turn& turn) const {
    if (turn.again < 0) return groups_[turn.job];  // all of it
    Group g;
    g.outputs = {stored_[turn.again]};
    find_recipe(g.outputs[0], g.inputs);
    g.elsewhere = g.inputs;  // not known: none of them is overwritten
    return g;
  }

  void try_in_place(int group, Node assign, GroupReads& reads) {
    const int input = overwritten_input(assign);
    if (input < 0) return;
    InputUse& use = inputs_[input];
    if (use.is_result || use.overwritten_by >= 0) return;
    const bool read = assign->op == Op::Scatter ? reads_beside_base(assign, input)
                                                : reads_elsewhere(groups_[group], input);
    if (read || is_read_by_others(groups_[group], assign, input, reads)) return;
    for (int g : use.readers)
      if (g != group && depends_.has_path(g, group)) return;
    for (int g : use.readers)
      if (g != group) depends_.add(group, g);
    use.overwritten_by = group;
    out_.in_place[assign] = input;
  }

  static bool is_read_by_others(const Group& g, Node out, int input, GroupReads& reads) {
    return std::any_of(g.inputs.begin(), g.inputs.end(), [&](Node n) {
      return n->op == Op::Param && n->ints()[0] == input && reads.is_read_later(out, n);
    });
  }

  // What a scatter writes, or where, is computed from the tensor itself.
  bool reads_beside_base(Node scatter, int input) const {
    bool found = false;
    visit_below({scatter->srcs().begin() + 1, scatter->srcs().end()}, [&](Node n) {
      found |= n->op == Op::Param && n->ints()[0] == input;
      return !found && !maker_.contains(n);
    });
    return found;
  }

  // Which stored values each turn is the last to need.
  void find_deaths() {
    out_.deaths.resize(order_.size());
    NodeMap<char> needed = is_root_;  // later on
    for (size_t t = order_.size(); t-- > 0;) {
      const Group g = group_of(order_[t]);
      for (Node n : g.outputs)
        if (!is_root_.contains(n)) needed[n] = 0;  // before that it is another version of the value
      for (Node n : g.inputs) {
        char& later = needed[n];
        if (!later && maker_.contains(n)) out_.deaths[t].push_back(n);
        later = 1;
      }
    }
  }

  const std::vector<Group> groups_;
  const std::span<const int> devices_;  // of the inputs
  NodeMap<char> is_root_;               // memory of the roots
  NodeMap<int> maker_;
  std::map<int64_t, InputUse> inputs_;
  Dependences depends_;
  std::vector<Node> stored_;
  std::vector<Turn> order_;
  OrderedGroups out_;
};

}  // namespace

OrderedGroups order_groups(std::span<const Node> roots, std::vector<Group> groups,
                           const NodeMap<char>& scatters, std::span<const int> devices,
                           int64_t limit) {
  return Orderer(roots, std::move(groups), scatters, devices).run(limit);
}

}  // namespace tiny
