#include "runtime/schedule/schedule.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "runtime/analysis/after.h"
#include "runtime/device/buffer.h"
#include "runtime/device/lru.h"
#include "runtime/device/trace.h"
#include "runtime/fusion/fuse.h"
#include "runtime/layout/layout.h"
#include "runtime/rewrites/deterministic.h"
#include "runtime/rewrites/relu_masks.h"
#include "runtime/rewrites/scatter_rows.h"
#include "runtime/schedule/passes.h"
#include "tiny/base/env.h"
#include "tiny/base/error.h"
#include "tiny/base/text.h"
#include "tiny/ir/build.h"
#include "tiny/rewrite/rebuild.h"

namespace tiny {

namespace {

// Nodes as they are without Limit and Whole. A long chain of views is cut by memory, as that of
// element-wise operations is (stored.cpp): what walks it recurses.
NodeMap<Node> stripped(std::span<const Node> order) {
  constexpr int kLongestChain = 200;
  NodeMap<int> views;  // one after the other
  return remake(order, [&](Node n, const std::vector<Node>& srcs) {
    Node now = n->op == Op::Limit || n->op == Op::Whole ? srcs[0] : with_sources(n, srcs);
    if (!is_movement(n->op)) return now;
    const int* before = views.find(n->src(0));
    const int all = before ? *before + 1 : 1;
    views[n] = all % kLongestChain;
    return all < kLongestChain ? now : build::contiguous(now);
  });
}

}  // namespace

void Result::set_root(Node root) { nodes = NodeRef(make(Op::Sink, kVoid, {root, base_of(root)})); }

std::vector<Node> without_lengths(std::span<const Node> roots) {
  return replaced_by(stripped(topological(roots)), roots);
}

namespace {

// Of each device, the bytes that a schedule may take besides its inputs; empty without a limit.
using Room = std::map<int, int64_t>;

std::string megabytes(int64_t bytes) {
  return formatted("%.3f MB", static_cast<double>(bytes) * 1e-6);
}

Room room_now(const std::vector<int>& devices, int fallback) {
  const int64_t limit = memory_limit();
  Room out;
  if (!limit) return out;
  std::set<int> all(devices.begin(), devices.end());
  all.insert(fallback);
  for (int d : all)
    if (d && device_members(d).empty())
      out[d] = std::max<int64_t>(0, limit - bytes_held(find_device(device_name(d))));
  return out;
}

// By how many bytes a plan goes beyond that, on all devices together.
int64_t beyond(const MemoryPlan& plan, const Room& room) {
  int64_t bytes = 0;
  for (const auto& [device, most] : room)
    if (const auto added = plan.added.find(device); added != plan.added.end())
      bytes += std::max<int64_t>(0, added->second - most);
  return bytes;
}

// Of a schedule that does not fit in.
[[noreturn]] void refuse(const Schedule& s, const Room& room) {
  for (const auto& [device, most] : room) {
    const auto added = s.memory.added.find(device);
    if (added == s.memory.added.end() || added->second <= most) continue;
    const std::string name = device_name(device);
    throw DeviceError(cat(name, ": out of memory: ", s.steps.size(), " kernels take ",
                          megabytes(added->second), " besides what they read, and ",
                          megabytes(most), " of MEMORY_LIMIT=", env_text("MEMORY_LIMIT"),
                          " are free", largest_at_peak(s, device),
                          largest_buffers(find_device(name))));
  }
  throw Bug("memory: a plan that fits in is refused");
}

class Planner {
 public:
  Planner(const Normalized& graph, const std::vector<int>& devices, int fallback)
      : graph_(graph), devices_(devices), fallback_(fallback) {
    out_.inputs = static_cast<int>(graph.buffers.size());
    for (size_t i = 0; i < graph.buffers.size(); ++i) {
      Node b = graph.buffers[i];
      out_.values.push_back({b->dtype, b->arg<BufferArg>().size, devices[i], -1});
    }
  }

  Schedule run(const Room& room) {
    const NodeTargets targets(devices_, fallback_);
    const std::vector<Node> given = topological(graph_.roots);
    const NodeMap<Node> plain = stripped(given);
    has_lengths_ = std::any_of(given.begin(), given.end(), [](Node n) { return n->lengths; });
    if (has_lengths_) now_ = plain;
    GraphPlan layout;
    layout.roots = replaced_by(plain, graph_.roots);
    if (env_int("OPT")) follow(layout = choose_layouts(layout.roots, targets));
    for (int round = 0; layout.innermost && round < 3; ++round) {  // what gets memory may change
      std::vector<Node> outputs;
      for (const Group& g : fuse(layout.roots, layout.stored, targets))
        outputs.insert(outputs.end(), g.outputs.begin(), g.outputs.end());
      follow(layout = spread_layouts(layout, outputs));
    }
    if (env_int("OPT")) follow(layout = reuse_masks(layout, targets));
    if (auto now = put_afters_on_memory(layout.roots, layout.stored); now.size() > 0)
      layout.now.push_back(std::move(now));
    scatter_in_place(layout);
    follow(layout);
    if (has_lengths_) needed_ = elements_within_lengths(graph_.roots, plain, now_, layout.roots);
    const std::vector<Group> groups = fuse(layout.roots, layout.stored, targets);
    if (room.empty()) return finished(layout.roots, groups, -1);
    return fitted(layout.roots, groups, room);
  }

 private:
  // `limit`: of order_groups.
  Schedule finished(std::span<const Node> roots, const std::vector<Group>& groups,
                    int64_t limit) const {
    Schedule out = out_;
    const OrderedGroups ordered = order_groups(roots, groups, assigned_, devices_, limit);
    add_steps(out, roots, ordered, needed_, fallback_);
    out.memory = plan_memory(out);
    check_memory(out, out.memory);
    return out;
  }

  // Of an order whose values fit in: of those that seem to, since blocks have gaps between them.
  Schedule fitted(std::span<const Node> roots, const std::vector<Group>& groups,
                  const Room& room) const {
    constexpr int kTries = 8;
    constexpr double kLess = 0.97;  // of one try beside the last one
    Schedule out = finished(roots, groups, -1);
    double limit = -static_cast<double>(beyond(out.memory, room));
    for (const auto& [device, bytes] : out.memory.arenas) limit += static_cast<double>(bytes);
    for (int i = 0; i < kTries && limit > 0 && beyond(out.memory, room) > 0; ++i) {
      Schedule smaller = finished(roots, groups, static_cast<int64_t>(limit));
      if (beyond(smaller.memory, room) < beyond(out.memory, room)) out = std::move(smaller);
      limit *= kLess;
    }
    if (beyond(out.memory, room) > 0) refuse(out, room);
    return out;
  }

  // Of a graph with lengths: its nodes as they are after more rewrites.
  void follow(GraphPlan& rewritten) {
    for (const NodeMap<Node>& now : std::exchange(rewritten.now, {}))
      if (has_lengths_) now_ = one_after_the_other(graph_.roots, now_, now);
  }

  // x assigned a copy of itself in which some elements are replaced: the scatter itself is the
  // assignment, and where it works in place no other element is touched.
  void scatter_in_place(GraphPlan& layout) {
    const auto is_own_scatter = [](Node n) {
      return n->op == Op::Assign && n->src(1)->op == Op::Scatter && n->src(1)->src(0) == n->src(0);
    };
    const std::vector<Node> order = topological(layout.roots);
    if (std::ranges::none_of(order, is_own_scatter)) return;
    NodeMap<Node> now = rebuild_all(order, [&](Node, Node n) {
      if (!is_own_scatter(n)) return n;
      if (overwritten_input(n->src(1)) < 0) return n;
      assigned_[n->src(1)] = 1;
      return n->src(1);
    });
    for (Node& r : layout.roots) r = *now.find(r);
    for (Node& s : layout.stored)
      if (const Node* other = now.find(s)) s = *other;
    layout.now.push_back(std::move(now));
  }

  const Normalized& graph_;
  const std::vector<int>& devices_;  // of the inputs
  const int fallback_;
  Schedule out_;
  NodeMap<char> assigned_;  // scatters that are assignments
  bool has_lengths_ = false;
  NodeMap<Node> now_;     // the given nodes, as they are after the rewrites so far
  NodeMap<Node> needed_;  // of values with lengths: which elements
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
                    env_kernel_key() + ' ' + env_text("MEMORY_LIMIT") + ' ' +
                    std::to_string(fallback);
  for (int d : devices) key += ' ' + std::to_string(d);
  Cache& c = cache();
  const Room room = room_now(devices, fallback);
  {
    std::lock_guard lock(c.mutex);
    const auto* known = c.entries.find(key);
    if (known && beyond(known->second->memory, room) == 0) return known->second;
  }
  Normalized ordered = graph;
  if (env_int("DETERMINISTIC")) ordered.roots = with_ordered_scatters(graph.roots);
  if (env_int("OPT") && env_int("ROW_SUMS"))
    ordered.roots = with_written_rows(ordered.roots, NodeTargets(devices, fallback));
  auto made = std::make_shared<const Schedule>(Planner(ordered, devices, fallback).run(room));
  const auto most = static_cast<size_t>(std::max<int64_t>(env_int("CACHE_SCHEDULES"), 1));
  std::lock_guard lock(c.mutex);
  auto& [kept, plan] = c.entries.insert(std::move(key), {std::move(sink), made}, most);
  if (beyond(plan->memory, room) > 0) plan = made;  // one for more memory than there is now
  return plan;
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
  TextStream out;
  for (const Step& step : s.steps) {
    out << step.name;
    for (int v : step.values) out << ' ' << s.values[v].dtype << '[' << s.values[v].size << ']';
    out << '\n';
  }
  return out.str();
}

}  // namespace tiny
