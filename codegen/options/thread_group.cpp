#include "codegen/options/thread_group.h"

#include <algorithm>
#include <bit>
#include <bitset>

#include "codegen/kernel/access.h"
#include "codegen/kernel/option.h"
#include "tiny/base/error.h"

namespace tiny {

namespace {

constexpr int64_t kSharedBytes = 40 << 10;  // for all groups of a kernel

bool is_thread(Node range) { return kind(range) == RangeKind::Thread; }

Finding wrong(std::string text) { return {Verdict::Wrong, Method::Walk, std::move(text)}; }

// Threads that combine differ in ranges one after the other, and in a scan in the last ones.
std::string order_problem(Node reduce, std::span<const Node> threads) {
  const auto is_own = [&](Node r) { return closes(reduce, r); };
  const auto first = std::ranges::find_if(threads, is_own);
  const auto other = std::find_if_not(first, threads.end(), is_own);
  if (other == threads.end()) return "";
  if (reduce->op != Op::Prefix && std::none_of(other, threads.end(), is_own)) return "";
  return cat("threads that combine r", range_id(*first), " lie apart: r", range_id(*other),
             " runs between them");
}

std::string size_problem(const ThreadGroup& g) {
  const auto problem = [&](auto... what) {
    return cat("threads that combine ", g.width, " of ", g.threads, ": ", what...);
  };
  const int span = g.width * g.apart;
  if (g.apart > 1 && g.apart % g.warp && !std::has_single_bit(static_cast<unsigned>(g.apart)))
    return problem(g.apart, " of other groups between them");
  if (span <= g.warp)
    return g.warp % span == 0 && g.threads % span == 0
               ? ""
               : problem("a warp of ", g.warp, " is not whole groups");
  return span % g.warp || g.threads % span ? problem("not whole warps and groups") : "";
}

// The threads of a kernel, and its loops as a mask.
struct Grid {
  std::vector<Node> threads;
  uint64_t loops = 0;

  explicit Grid(Node sink) {
    for (Node r : ranges_of(sink)) {
      if (is_thread(r)) threads.push_back(r);
      if (!is_of_grid(r) && kind(r) != RangeKind::Unroll && kind(r) != RangeKind::Vector)
        loops |= r->ranges;
    }
  }

  template <class F> void each_group(Node sink, F visit) const {
    if (threads.empty()) return;
    for (Node n : topological(sink)) {
      if (n->op != Op::Reduce && n->op != Op::Prefix) continue;
      if (std::ranges::any_of(n->srcs().subspan(1), is_thread)) visit(n, (n->ranges & loops) != 0);
    }
  }
};

}  // namespace

ThreadGroup group_of(Node reduce, std::span<const Node> threads, int warp, bool in_loop) {
  ThreadGroup group;
  group.warp = warp;
  for (Node r : threads) {
    const auto n = static_cast<int>(extent(r));
    group.threads *= n;
    if (closes(reduce, r)) {
      group.width *= n;
      group.apart = 1;
    } else {
      group.apart *= n;
    }
  }
  group.turns = in_loop && group.width * group.apart > group.warp;
  return group;
}

std::string grouping_problem(Node sink, int warp) {
  const Grid grid(sink);
  const std::vector<Node> ranges = ranges_of(sink);
  std::string problem;
  int64_t bytes = 0;
  grid.each_group(sink, [&](Node n, bool in_loop) {
    if (!problem.empty()) return;
    const ThreadGroup g = group_of(n, grid.threads, warp, in_loop);
    problem = order_problem(n, grid.threads);
    if (problem.empty()) problem = size_problem(g);
    int64_t copies = 1;  // of the array: vectors and unrolled loops
    for (Node r : ranges)
      if ((n->ranges & r->ranges) && (kind(r) == RangeKind::Vector || kind(r) == RangeKind::Unroll))
        copies *= extent(r);
    bytes += copies * n->dtype.size() * g.elements();
  });
  if (problem.empty() && bytes > kSharedBytes)
    problem = cat("threads combine by way of ", bytes, " bytes of shared memory");
  return problem;
}

namespace {

// Threads that lie apart, as the prelude's combine_apart does it: which threads' values are in
// each element after each step.
class Tree {
 public:
  explicit Tree(const ThreadGroup& g) : g_(g), kept_(std::min(g.apart, g.warp)) {}

  std::string problem() {
    if (std::string why = leave(); !why.empty()) return why;
    for (int n = members(); n > 1; n = (n + 1) / 2)
      if (std::string why = step(n); !why.empty()) return why;
    for (int thread = 0; thread < g_.threads; ++thread)
      if (held_[static_cast<size_t>(at(thread) - member(thread) * g_.apart)] != group(thread))
        return cat("thread ", thread, " does not get the values of its group");
    return "";
  }

 private:
  using Threads = std::bitset<2048>;

  int members() const { return g_.width * g_.apart / std::max(g_.apart, g_.warp); }
  int at(int thread) const { return thread / g_.warp * kept_ + thread % g_.warp % kept_; }
  int member(int thread) const { return at(thread) / g_.apart % members(); }
  bool keeps(int thread) const { return thread % g_.warp < kept_; }

  Threads group(int thread) const {
    Threads out;
    const int span = g_.width * g_.apart, first = thread / span * span + thread % g_.apart;
    for (int i = 0; i < g_.width; ++i) out.set(static_cast<size_t>(first + i * g_.apart));
    return out;
  }

  std::string leave() {
    held_.assign(static_cast<size_t>(g_.values()), {});
    for (int thread = 0; thread < g_.threads; ++thread) {
      if (!keeps(thread)) continue;
      Threads& element = held_[static_cast<size_t>(at(thread))];
      if (element.any()) return cat("thread ", thread, " writes what another one wrote");
      for (int i = thread; i < (thread / g_.warp + 1) * g_.warp; i += kept_)
        if (kept_ < g_.warp || i == thread) element.set(static_cast<size_t>(i));
    }
    return "";
  }

  std::string step(int n) {
    const int half = (n + 1) / 2;
    std::vector<int> from, to;
    for (int thread = 0; thread < g_.threads; ++thread) {
      if (!keeps(thread) || member(thread) + half >= n) continue;
      to.push_back(at(thread));
      from.push_back(at(thread) + half * g_.apart);
    }
    for (size_t i = 0; i < to.size(); ++i) {
      if (contains(to, from[i]))
        return cat("element ", from[i], " is read when another thread writes it");
      const Threads more = held_[static_cast<size_t>(from[i])];
      if ((held_[static_cast<size_t>(to[i])] & more).any())
        return cat("element ", to[i], " gets a value twice");
      held_[static_cast<size_t>(to[i])] |= more;
    }
    return "";
  }

  const ThreadGroup& g_;
  const int kept_;  // values that a warp leaves
  std::vector<Threads> held_;
};

}  // namespace

Finding prove_group(const ThreadGroup& g, bool in_loop) {
  const auto problem = [&](auto... what) {
    return wrong(cat("threads that combine ", g.width, " of ", g.threads, ": ", what...));
  };
  if (std::string why = size_problem(g); !why.empty()) return wrong(std::move(why));
  if (g.width * g.apart <= g.warp) return {Verdict::Proved, Method::Walk, ""};
  const int half = g.turns ? g.values() : 0;
  if (g.apart > 1) {
    if (in_loop && !g.turns) return problem("what is read may be written for the next iteration");
    const std::string why = Tree(g).problem();
    return why.empty() ? Finding{Verdict::Proved, Method::Walk, ""} : problem(why);
  }
  std::vector<int> writer(static_cast<size_t>(g.elements()), -1);
  for (int thread = 0; thread < g.threads; thread += g.warp) {
    const int at = thread / g.warp;
    if (at >= g.elements()) return problem("thread ", thread, " writes element ", at);
    int& by = writer[static_cast<size_t>(at)];
    if (by >= 0) return problem("threads ", by, " and ", thread, " both write element ", at);
    by = thread;
  }
  const int each = g.width / g.warp;
  for (int thread = 0; thread < g.threads; ++thread)
    for (int i = 0; i < each; ++i) {
      const int at = thread / g.warp / each * each + i;
      const int by = at < g.elements() ? writer[static_cast<size_t>(at)] : -1;
      if (by < 0) return problem("thread ", thread, " reads element ", at, ", which nobody wrote");
      if (by / g.width != thread / g.width)
        return problem("thread ", thread, " reads what thread ", by, " of another group wrote");
      // The next iteration writes the other half: elements half .. half + warps - 1.
      if (in_loop && at >= half && at < half + g.warps())
        return problem("thread ", thread, " may read element ", at,
                       " when another writes it for the next iteration");
    }
  if (half + g.warps() > g.elements()) return problem("the second half lies beyond the array");
  return {Verdict::Proved, Method::Walk, ""};
}

std::vector<Finding> prove_groups(Node sink, int warp) {
  std::vector<Finding> out;
  const Grid grid(sink);
  grid.each_group(sink, [&](Node n, bool in_loop) {
    const std::string why = order_problem(n, grid.threads);
    out.push_back(why.empty() ? Finding{Verdict::Proved, Method::Walk, ""} : wrong(why));
    for (int width : {32, 64})
      if (warp == 0 || warp == width)
        out.push_back(prove_group(group_of(n, grid.threads, width, in_loop), in_loop));
  });
  return out;
}

}  // namespace tiny
