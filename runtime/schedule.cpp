#include "runtime/schedule.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <sstream>

#include "runtime/after.h"
#include "runtime/buffer.h"
#include "runtime/collective.h"
#include "runtime/copy_order.h"
#include "runtime/fuse.h"
#include "runtime/layout.h"
#include "runtime/lru.h"
#include "runtime/masks.h"
#include "runtime/profile.h"
#include "tiny/build.h"
#include "tiny/deterministic.h"
#include "tiny/env.h"
#include "tiny/error.h"
#include "tiny/print.h"

namespace tiny {

namespace {

// Nodes as they are without Limit and Whole.
NodeMap<Node> stripped(std::span<const Node> roots) {
  NodeMap<Node> done;
  std::vector<Node> srcs;
  for (Node n : topological(roots)) {
    srcs.clear();
    for (Node s : n->srcs()) srcs.push_back(*done.find(s));
    done[n] = n->op == Op::Limit || n->op == Op::Whole ? srcs[0] : with_sources(n, srcs);
  }
  return done;
}

}  // namespace

std::vector<Node> without_lengths(std::span<const Node> roots) {
  const NodeMap<Node> now = stripped(roots);
  std::vector<Node> out;
  for (Node r : roots) out.push_back(*now.find(r));
  return out;
}

namespace {

// Which elements of a node with lengths count.
Node counted_elements(Node n, const std::vector<Node>& lengths) {
  Node mask = nullptr;
  for (int i = 0; i < n->rank; ++i) {
    if (!lengths[i]) continue;
    const DType t = n->shape()[i] < INT32_MAX ? kI32 : kI64;  // as in build::filled
    Node part = build::binary(Op::Lt, build::iota(n->shape(), i, t),
                              build::full(n->shape(), build::cast(lengths[i], t)));
    mask = mask ? build::binary(Op::And, mask, part) : part;
  }
  return mask;
}

// The labels of the nodes that a kernel holds, in order of execution.
std::vector<std::string> labels_of(const std::vector<Node>& nodes) {
  std::vector<std::string> labels;
  for (Node n : nodes) {
    if (is_movement(n->op) || n->op == Op::Param || n->is_const()) continue;
    const std::string label = operation_of(n);
    if (std::find(labels.begin(), labels.end(), label) == labels.end()) labels.push_back(label);
  }
  return labels;
}

std::string listed(const std::vector<std::string>& labels) {
  std::string out;
  for (const std::string& l : labels) out += (out.empty() ? "" : ", ") + l;
  return out;
}

// A C identifier from the labels, as far as they fit, and the shape of the first output.
std::string kernel_name(const std::vector<std::string>& labels, Ints shape) {
  std::string name = "k";
  for (std::string l : labels) {
    std::replace_if(
        l.begin(), l.end(), [](unsigned char c) { return !std::isalnum(c); }, '_');
    if (name.size() + l.size() < 56) name += '_' + l;
  }
  for (size_t i = 0; i < shape.size(); ++i) name += (i ? "x" : "_") + std::to_string(shape[i]);
  return name;
}

class Planner {
 public:
  Planner(const Normalized& graph, const std::vector<int>& devices, int fallback)
      : graph_(graph), fallback_(fallback) {
    out_.inputs = static_cast<int>(graph.buffers.size());
    for (size_t i = 0; i < graph.buffers.size(); ++i) {
      Node b = graph.buffers[i];
      out_.values.push_back({b->dtype, b->arg<BufferArg>().size, devices[i], -1});
    }
  }

  Schedule run() {
    const int device = out_.inputs ? out_.values[0].device : fallback_;
    const Target& target = find_device(device_name(device)).target();
    const NodeMap<Node> now = stripped(graph_.roots);
    Layout layout;
    for (Node r : graph_.roots) layout.roots.push_back(*now.find(r));
    if (env_int("OPT")) layout = choose_layouts(layout.roots, target);
    for (int round = 0; layout.innermost && round < 3; ++round) {  // what gets memory may change
      std::vector<Node> outputs;
      for (const Group& g : fuse(layout.roots, layout.stored, target))
        outputs.insert(outputs.end(), g.outputs.begin(), g.outputs.end());
      layout = spread_layouts(layout, outputs);
    }
    if (env_int("OPT")) layout = reuse_masks(layout, target);
    put_afters_on_memory(layout.roots, layout.stored);
    find_lengths(now);
    scatter_in_place(layout);
    roots_ = layout.roots;
    groups_ = fuse(roots_, layout.stored, target);
    for (size_t g = 0; g < groups_.size(); ++g)
      for (Node n : groups_[g].outputs) maker_[n] = static_cast<int>(g);
    order_groups();
    find_deaths();
    for (size_t t = 0; t < order_.size(); ++t) plan(group_of(order_[t]), deaths_[t]);
    for (Node r : roots_) add_result(r);
    out_.memory = plan_memory(out_);
    check_memory(out_, out_.memory);
    return std::move(out_);
  }

 private:
  // Nodes of which only some elements are ever needed. One that also stands for a node without
  // lengths is needed as a whole.
  void find_lengths(const NodeMap<Node>& now) {
    NodeMap<std::vector<Node>> all;
    for (Node n : topological(graph_.roots)) {
      if (n->op == Op::Limit || n->op == Op::Whole) continue;
      std::vector<Node> lengths;
      for (int i = 0; n->lengths && i < n->rank; ++i)
        lengths.push_back(n->length(i) ? *now.find(n->length(i)) : nullptr);
      Node s = *now.find(n);
      if (std::vector<Node>* known = all.find(s)) {
        if (*known != lengths) known->clear();
      } else {
        all[s] = std::move(lengths);
      }
    }
    for (Node n : topological(graph_.roots))
      if (const auto* lengths = all.find(*now.find(n)); lengths && !lengths->empty())
        needed_[*now.find(n)] = counted_elements(*now.find(n), *lengths);
  }

  // x assigned a copy of itself in which some elements are replaced: the scatter itself is the
  // assignment, and where it works in place no other element is touched.
  void scatter_in_place(Layout& layout) {
    NodeMap<Node> now;
    for (Node n : topological(layout.roots)) {
      std::vector<Node> srcs;
      for (Node s : n->srcs()) srcs.push_back(*now.find(s));
      now[n] = with_sources(n, srcs);
      if (n->op != Op::Assign || srcs[1]->op != Op::Scatter || srcs[1]->src(0) != srcs[0]) continue;
      if (old_input(srcs[1]) < 0) continue;
      now[n] = srcs[1];
      assigned_[srcs[1]] = 1;
    }
    for (Node& r : layout.roots) r = *now.find(r);
    for (Node& s : layout.stored)
      if (const Node* other = now.find(s)) s = *other;
  }

  bool is_assignment(Node n) const { return n->op == Op::Assign || assigned_.contains(n); }

  // --- order: a group that overwrites an input runs after all that read it -----------------------

  // The input that an Assign may overwrite: its old value is all of it, in the same order.
  int old_input(Node assign) const {
    Node old = assign->src(0);
    while (old->op == Op::Reshape) old = old->src(0);
    if (old->op != Op::Param || old->dtype != assign->dtype) return -1;
    return static_cast<int>(old->ints()[0]);
  }

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

  void order_groups() {
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
        if (is_assignment(n)) try_in_place(g, n);
    choose_order();
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
        JobValue v{numel(n->shape()) * static_cast<int64_t>(n->dtype.size()),
                   stays.contains(n) || in_place_.contains(n)};
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
    order_ = gather_copies(jobs, recompute_for_memory(jobs, values, order_for_memory(jobs, values),
                                                      kLowPeak, kShareAgain));
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
    const int input = old_input(assign);
    if (input < 0 || overwritten_.count(input)) return;
    const bool read = assign->op == Op::Scatter ? reads_beside_base(assign, input)
                                                : reads(groups_[group], input, true);
    if (read || is_result(input)) return;
    std::vector<int> readers;
    for (int g = 0; g < static_cast<int>(groups_.size()); ++g) {
      if (g == group || !reads(groups_[g], input, false)) continue;
      std::set<int> seen;
      if (needs(g, group, seen)) return;
      readers.push_back(g);
    }
    before_[group].insert(readers.begin(), readers.end());
    overwritten_[input] = group;
    in_place_[assign] = input;
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
    deaths_.resize(order_.size());
    NodeMap<char> needed;  // later on
    for (Node r : roots_) needed[base_of(r)] = 1;
    for (size_t t = order_.size(); t-- > 0;) {
      const Group g = group_of(order_[t]);
      for (Node n : g.outputs)
        if (!is_root(n)) needed[n] = 0;  // before that it is another version of the value
      for (Node n : g.inputs) {
        char& later = needed[n];
        if (!later && maker_.contains(n)) deaths_[t].push_back(n);
        later = 1;
      }
    }
  }

  bool is_root(Node n) const {
    return std::any_of(roots_.begin(), roots_.end(), [&](Node r) { return base_of(r) == n; });
  }

  // The value whose memory an output may take over: it dies here, and each element is read only
  // where it is replaced. Outputs of several shapes are written in loops one after the other.
  int place_for(const Group& g, Node out, std::vector<Node>& deaths) {
    if (const int* place = in_place_.find(out)) return *place;
    if (out->op == Op::Scatter || out->op == Op::Copy || out->op == Op::Assign) return -1;
    for (Node n : g.outputs)
      if (!same(n->shape(), out->shape())) return -1;
    for (size_t i = 0; i < deaths.size(); ++i) {
      Node n = deaths[i];
      if (n->dtype != out->dtype || !same(n->shape(), out->shape())) continue;
      if (std::find(g.elsewhere.begin(), g.elsewhere.end(), n) != g.elsewhere.end()) continue;
      const int v = value_of(n);
      deaths.erase(deaths.begin() + static_cast<std::ptrdiff_t>(i));
      return v;
    }
    return -1;
  }

  // --- steps -------------------------------------------------------------------------------------

  int value_of(Node n) const {
    if (n->op == Op::Param) return static_cast<int>(n->ints()[0]);
    return *value_.find(n);
  }

  int device_of(const Group& g) const {
    if (g.outputs[0]->op == Op::Copy) return g.outputs[0]->device;
    int device = 0;
    for (Node n : g.inputs) {
      const int of = out_.values[value_of(n)].device;
      expect(!device || of == device, "schedule: a kernel reads from ", device_name(device),
             " and from ", device_name(of));
      device = of;
    }
    if (device) return device;
    if (g.outputs[0]->device) return g.outputs[0]->device;  // made of a device's own positions
    // Constants that are assigned to what is there.
    for (Node n : g.outputs)
      if (n->op == Op::Assign && base_of(n->src(0))->op == Op::Param)
        return out_.values[value_of(base_of(n->src(0)))].device;
    // Made of constants alone: a step of the work on one device, or a result of its own.
    const bool is_result = std::any_of(g.outputs.begin(), g.outputs.end(), [&](Node n) {
      return std::find(roots_.begin(), roots_.end(), n) != roots_.end();
    });
    return is_result ? fallback_ : inner_device();
  }

  // Of values that have no device and stay inside: that of the inputs where it is one.
  int inner_device() const {
    for (int i = 0; i < out_.inputs; ++i)
      if (out_.values[i].device != out_.values[0].device) return fallback_;
    return out_.inputs ? out_.values[0].device : fallback_;
  }

  void plan(const Group& g, std::vector<Node>& deaths) {
    const int device = device_of(g);
    for (Node n : g.outputs) {
      const int place = place_for(g, n, deaths);
      const bool again = value_.contains(n);
      value_[n] = static_cast<int>(out_.values.size());
      const int replaces = is_assignment(n) ? old_input(n) : -1;
      out_.values.push_back({n->dtype, numel(n->shape()), device, place, again, replaces});
    }
    if (out_.values.back().size == 0) return;
    Node first = g.outputs[0];
    if (first->op == Op::Copy) {
      const bool alone = first->num_src > 1 && !is_sum_of_all(first);
      return alone ? add_sum(g, first, device) : add_copy(first);
    }
    if (first->op == Op::Scatter && !in_place_.contains(first))
      add_kernel(g, {first}, first->src(0), device);
    add_kernel(g, g.outputs, nullptr, device);
  }

  // A kernel with its own numbering of slots, so that two kernels that differ only in what they
  // work on are the same node. With `instead` the one output gets that value.
  void add_kernel(const Group& g, const std::vector<Node>& outputs, Node instead, int device) {
    Step step;
    step.device = device;
    NodeMap<Node> done;
    std::vector<Node> stores, nodes;
    for (Node n : outputs) {
      Node to = param(step, value_of(n), n->dtype, n->shape());
      Node value = instead ? instead : n;
      rebuild(value, g, step, done, nodes);
      Node what = instead || n->op != Op::Scatter ? *done.find(value) : with_base(n, done, to);
      Node needed = needed_elements(n, step);
      stores.push_back(needed ? make(Op::Store, kVoid, {to, what, needed})
                              : make(Op::Store, kVoid, {to, what}));
    }
    step.kernel = NodeRef(make(Op::Sink, kVoid, stores));
    const std::vector<std::string> labels = labels_of(nodes);
    step.operations = listed(labels);
    step.name = kernel_name(labels, outputs[0]->shape());
    out_.steps.push_back(std::move(step));
  }

  void add_copy(Node out) {
    const bool sum = out->num_src > 1;
    Step step{NodeRef(),
              {value_of(out)},
              sum ? "sum" : "copy",
              out->device,
              *out->label ? out->label : "to"};
    for (Node s : out->srcs()) step.values.push_back(value_of(base_of(s)));
    if (sum) step.sum_by = sum_by(out);
    out_.steps.push_back(std::move(step));
  }

  // A kernel on one device that adds up what others have in memory, or parts of it.
  void add_sum(const Group& g, Node out, int device) {
    const LabelScope label(out->label);
    Step step;
    step.device = device;
    step.reads_peers = true;
    NodeMap<Node> done;
    std::vector<Node> nodes{out};
    Node to = param(step, value_of(out), out->dtype, out->shape()), sum = nullptr;
    for (Node s : out->srcs()) {
      rebuild(s, g, step, done, nodes);
      sum = sum ? build::binary(Op::Add, sum, *done.find(s)) : *done.find(s);
    }
    step.kernel = NodeRef(make(Op::Sink, kVoid, {make(Op::Store, kVoid, {to, sum})}));
    step.operations = out->label;
    step.name = kernel_name({step.operations}, out->shape());
    out_.steps.push_back(std::move(step));
  }

  // The mask of an output that is not needed as a whole, in terms of the kernel's arguments.
  Node needed_elements(Node n, Step& step) {
    const Node* mask = needed_.find(n);
    if (!mask || n->op == Op::Scatter) return nullptr;
    Group g;
    for (Node s : topological(*mask))
      if (s->op == Op::Param) g.inputs.push_back(s);
    NodeMap<Node> done;
    std::vector<Node> nodes;
    rebuild(*mask, g, step, done, nodes);
    return *done.find(*mask);
  }

  static Node with_base(Node scatter, const NodeMap<Node>& done, Node to) {
    std::vector<Node> srcs{to};
    for (Node s : scatter->srcs().subspan(1)) srcs.push_back(*done.find(s));
    return with_sources(scatter, srcs);
  }

  Node param(Step& step, int value, DType dtype, Ints shape) {
    // What is written over an input has that input's slot.
    const int place = out_.values[value].in_place;
    int slot = -1;
    for (size_t i = 0; i < step.values.size(); ++i) {
      const int v = step.values[i];
      const bool same_memory = v == value || (place >= 0 && v == place) ||
                               (out_.values[v].in_place >= 0 && out_.values[v].in_place == value);
      if (!same_memory) continue;
      slot = static_cast<int>(i);
      if (place == v) step.values[i] = value;  // the slot is known by what is written to it
    }
    if (slot < 0) {
      slot = static_cast<int>(step.values.size());
      step.values.push_back(value);
    }
    Shape arg{slot};
    arg.insert(arg.end(), shape.begin(), shape.end());
    return make(Op::Param, dtype, {}, Ints(arg));
  }

  void rebuild(Node root, const Group& g, Step& step, NodeMap<Node>& done,
               std::vector<Node>& nodes) {
    std::vector<Node> stack{root};
    while (!stack.empty()) {
      Node n = stack.back();
      if (done.contains(n)) {
        stack.pop_back();
        continue;
      }
      const bool outside =
          n->op == Op::After || std::find(g.inputs.begin(), g.inputs.end(), n) != g.inputs.end();
      if (outside) {
        stack.pop_back();
        done[n] = param(step, value_of(behind(n)), n->dtype, n->shape());
        continue;
      }
      // Old values of an Assign and the base of a Scatter are places, not values.
      const size_t first = n->op == Op::Assign || (n->op == Op::Scatter && n == root) ? 1 : 0;
      const size_t before = stack.size();
      for (Node s : n->srcs().subspan(first))
        if (!done.contains(s)) stack.push_back(s);
      if (stack.size() != before) continue;
      stack.pop_back();
      nodes.push_back(n);
      if (n->op == Op::Iota) done[n] = build::iota(n->ints()[0], n->dtype);
      if (n->op == Op::Scatter || n->op == Op::Iota) continue;
      std::vector<Node> srcs;
      for (Node s : n->srcs().subspan(first)) srcs.push_back(*done.find(s));
      done[n] = n->op == Op::Assign ? srcs[0] : with_sources(n, srcs);
    }
  }

  void add_result(Node root) {
    Result r;
    Node base = base_of(root);
    r.root = NodeRef(root);
    r.base = NodeRef(base);
    if (const int* v = value_.find(base)) r.value = *v;
    out_.results.push_back(std::move(r));
  }

  const Normalized& graph_;
  const int fallback_;
  std::vector<Node> roots_;
  Schedule out_;
  NodeMap<char> assigned_;  // scatters that are assignments
  NodeMap<Node> needed_;    // of values with lengths: which elements
  std::vector<Group> groups_;
  NodeMap<int> maker_;
  std::vector<std::set<int>> before_;
  std::vector<Node> stored_;
  std::vector<Turn> order_;
  std::vector<std::vector<Node>> deaths_;
  std::map<int, int> overwritten_;  // inputs, and by which group
  NodeMap<int> in_place_, value_;
};

struct Cache {
  std::mutex mutex;
  Lru<std::pair<NodeRef, std::shared_ptr<const Schedule>>> entries;
};
Cache& cache() {
  static Cache* c = new Cache;
  return *c;
}

}  // namespace

std::shared_ptr<const Schedule> schedule(const Normalized& graph, const std::vector<int>& devices,
                                         int fallback) {
  const HostSpan span("schedule");
  NodeRef sink(make(Op::Sink, kVoid, graph.roots));
  std::string key = std::to_string(reinterpret_cast<uintptr_t>(sink.get())) + ' ' +
                    env_kernel_key() + ' ' + std::to_string(fallback);
  for (int d : devices) key += ' ' + std::to_string(d);
  Cache& c = cache();
  {
    std::lock_guard lock(c.mutex);
    if (const auto* known = c.entries.find(key)) return known->second;
  }
  Normalized ordered = graph;
  if (env_int("DETERMINISTIC")) ordered.roots = with_ordered_scatters(graph.roots);
  auto made = std::make_shared<const Schedule>(Planner(ordered, devices, fallback).run());
  const auto most = static_cast<size_t>(std::max<int64_t>(env_int("CACHE_SCHEDULES"), 1));
  std::lock_guard lock(c.mutex);
  return c.entries.insert(std::move(key), {std::move(sink), made}, most).second;
}

size_t schedules_kept() {
  std::lock_guard lock(cache().mutex);
  return cache().entries.size();
}

void clear_schedule_cache() {
  std::lock_guard lock(cache().mutex);
  cache().entries.clear();
}

std::string to_text(const Schedule& s) {
  std::ostringstream out;
  for (const Step& step : s.steps) {
    out << step.name;
    for (int v : step.values) out << ' ' << s.values[v].dtype << '[' << s.values[v].size << ']';
    out << '\n';
  }
  return out.str();
}

}  // namespace tiny
