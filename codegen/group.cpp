#include "codegen/group.h"

#include <algorithm>

#include "codegen/access.h"
#include "codegen/option.h"
#include "tiny/error.h"

namespace tiny {

namespace {

bool is_thread(Node range) { return kind(range) == RangeKind::Thread; }

Finding wrong(std::string text) { return {Verdict::Wrong, Method::Walk, std::move(text)}; }

// The threads that differ in the reduction's ranges alone are neighbours: these are the last of
// the block's, or all.
Finding neighbours(Node reduce, std::span<const Node> threads) {
  const auto own = reduce->srcs().subspan(1);
  const auto combines = [&](Node r) { return std::find(own.begin(), own.end(), r) != own.end(); };
  const auto first = std::find_if(threads.begin(), threads.end(), combines);
  const auto other = std::find_if_not(first, threads.end(), combines);
  if (other == threads.end()) return {Verdict::Proved, Method::Walk, ""};
  return wrong(cat("threads that combine r", range_id(*first), " lie apart: r", range_id(*other),
                   " runs between them"));
}

}  // namespace

Group group_of(Node reduce, std::span<const Node> threads, int warp, bool in_loop) {
  Group group;
  group.warp = warp;
  for (Node r : threads) group.threads *= static_cast<int>(extent(r));
  for (Node r : reduce->srcs().subspan(1))
    if (is_thread(r)) group.width *= static_cast<int>(extent(r));
  group.turns = in_loop && group.width > group.warp;
  return group;
}

Finding prove_group(const Group& g, bool in_loop) {
  const auto problem = [&](auto... what) {
    return wrong(cat("threads that combine ", g.width, " of ", g.threads, ": ", what...));
  };
  if (g.width <= g.warp) {
    if (g.width > 0 && g.warp % g.width == 0 && g.threads % g.width == 0)
      return {Verdict::Proved, Method::Walk, ""};
    return problem("a warp of ", g.warp, " is not whole groups");
  }
  if (g.width % g.warp || g.threads % g.width) return problem("not whole warps and groups");
  const int half = g.turns ? g.warps() : 0;
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
      // The next turn writes the other half: elements half .. half + warps - 1.
      if (in_loop && at >= half && at < half + g.warps())
        return problem("thread ", thread, " may read element ", at,
                       " when another writes it for the next turn");
    }
  if (half + g.warps() > g.elements()) return problem("the second half lies beyond the array");
  return {Verdict::Proved, Method::Walk, ""};
}

std::vector<Finding> prove_groups(Node sink) {
  std::vector<Node> threads;
  uint64_t loops = 0;
  for (Node r : ranges_of(sink)) {
    if (is_thread(r)) threads.push_back(r);
    if (!is_of_grid(r)) loops |= r->ranges;
  }
  std::vector<Finding> out;
  if (threads.empty()) return out;
  for (Node n : topological(sink)) {
    if (n->op != Op::Reduce && n->op != Op::Prefix) continue;
    const auto own = n->srcs().subspan(1);
    if (std::none_of(own.begin(), own.end(), is_thread)) continue;
    const bool in_loop = n->ranges & loops;
    out.push_back(neighbours(n, threads));
    for (int warp : {32, 64})
      out.push_back(prove_group(group_of(n, threads, warp, in_loop), in_loop));
  }
  return out;
}

}  // namespace tiny
