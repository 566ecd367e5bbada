#include "codegen/options/launchable.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "codegen/kernel/access.h"
#include "codegen/kernel/option.h"
#include "codegen/options/mma.h"
#include "codegen/options/stage.h"
#include "codegen/options/thread_group.h"
#include "codegen/wgmma/product.h"
#include "tiny/base/error.h"
#include "tiny/rewrite/algebra.h"
#include "tiny/rewrite/rewrite.h"

namespace tiny {

namespace {

// Uses of a kernel's ranges, as masks of ids.
struct Facts {
  uint64_t reduced = 0, combined = 0, everywhere = ~uint64_t{0};
  int64_t copies = 1;  // of an innermost statement, in registers of 16 lanes

  Facts(Node sink, const std::vector<Node>& ranges) {
    for (Node n : topological(sink)) {
      if (n->op == Op::Reduce || n->op == Op::Prefix) combined |= reduced_ranges(n);
      if (n->op != Op::Reduce && n->op != Op::Store) continue;
      everywhere &= n->ranges;
      const uint64_t enclosing = n->op == Op::Reduce ? n->src(0)->ranges : n->ranges;
      if (n->op == Op::Reduce) reduced |= reduced_ranges(n);
      int64_t unrolled = 1, lanes = 1;
      for (Node r : ranges) {
        if (!(enclosing & r->ranges)) continue;
        if (kind(r) == RangeKind::Unroll) unrolled *= extent(r);
        if (kind(r) == RangeKind::Vector) lanes *= extent(r);
      }
      copies = std::max(copies, unrolled * std::max<int64_t>(1, lanes / 16));
    }
  }
};

std::string range_problem(Node r, const Facts& facts, const Target& target) {
  const bool cpu = target.kind == Target::Kind::Cpu, reduced = facts.reduced & r->ranges;
  const RangeKind k = kind(r);
  const int64_t n = extent(r);
  const std::string name = cat("r", range_id(r), " of ", n);
  if (cpu && (k == RangeKind::Block || k == RangeKind::Thread)) return name + " is of a GPU";
  if (!cpu && k == RangeKind::Core) return name + " is of a CPU";
  if ((k == RangeKind::Core || k == RangeKind::Block) && reduced)
    return name + " is reduced along: " + (cpu ? "cores" : "blocks") + " do not meet";
  if (k == RangeKind::Core && !(facts.everywhere & r->ranges))
    return name + " is not around everything";
  const bool shares =
      n % target.warp == 0 || (n < target.warp && std::has_single_bit(static_cast<uint64_t>(n)));
  if (k == RangeKind::Thread && (facts.combined & r->ranges) && !shares)
    return name + ": threads that share a sum are a power of two or whole warps";
  if (k == RangeKind::Vector && n > 64) return name + " as one vector";
  return "";
}

// Sums that go on together are in one loop: no loop encloses some of them alone.
std::string rolled_problem(Node sink) {
  const uint64_t serial = mask_of(sink, {RangeKind::Loop, RangeKind::Reduce, RangeKind::Core});
  uint64_t rolled = 0;
  for (Node n : topological(sink))
    if (is_running(n)) rolled |= reduced_ranges(n);
  uint64_t around = 0;
  bool any = false;
  for (Node n : all_of(sink, Op::Reduce)) {
    if (!(reduced_ranges(n) & rolled)) continue;
    if (std::exchange(any, true) && (n->ranges & serial) != around)
      return "sums that go on together are enclosed by different loops";
    around = n->ranges & serial;
  }
  return "";
}

// Four warps multiply together that lie one behind the other, and have the same 64 rows.
std::string warpgroup_problem(Node sink, const std::vector<Node>& ranges) {
  std::vector<Node> threads;
  for (Node r : ranges)
    if (kind(r) == RangeKind::Thread) threads.push_back(r);
  for (Node n : all_of(sink, Op::Mma)) {
    if (!mma_unit(n).warpgroup) continue;
    if (threads.size() != 3 || extent(threads[1]) != 8 || extent(threads[2]) != 4 ||
        extent(threads[0]) % 4)
      return "threads of a warpgroup are not 4 or more warps of 8 x 4";
    if (warpgroup_product(n).a.in_registers) continue;
    const auto first_of = [&](int64_t warp) {
      return simplify(substitute(n->src(0)->src(1), threads[0], index(warp)));
    };
    for (int64_t warp = 0; warp < extent(threads[0]); ++warp)
      if (first_of(warp) != first_of(warp / 4 * 4)) return "warps of a warpgroup have other rows";
  }
  return "";
}

std::string thread_problem(int64_t threads, const Target& target) {
  if (threads <= target.most_threads) return "";
  return cat("blocks of ", threads, " threads, of ", target.most_threads, " at most");
}

}  // namespace

uint64_t ordered_ranges(Node sink) { return sink->ranges & mask_of(sink, {RangeKind::Reduce}); }

std::string launch_problem(Node before, Node after, const Target& target) {
  constexpr int64_t kMaxCopies = 1024;  // longer kernels never win
  if ((ordered_ranges(before) == 0) != (ordered_ranges(after) == 0))
    return "what goes on in order no longer does";
  const std::vector<Node> ranges = ranges_of(after);
  const Facts facts(after, ranges);
  for (Node r : ranges)
    if (const std::string why = range_problem(r, facts, target); !why.empty()) return why;
  const auto count = [&](RangeKind k) {
    return std::ranges::count_if(ranges, [&](Node r) { return kind(r) == k; });
  };
  if (count(RangeKind::Core) > 1) return "two ranges for the cores";
  if (count(RangeKind::Block) > 3) return "more than three ranges of blocks";
  if (count(RangeKind::Thread) > 3) return "more than three ranges of threads";
  const int64_t threads = iterations_of(ranges, mask_of(after, {RangeKind::Thread}));
  if (std::string why = thread_problem(threads, target); !why.empty()) return why;
  if (!all_of(after, Op::Mma).empty()) {  // x is the last range of threads
    int64_t side_by_side = 1;
    for (auto r = ranges.rbegin(); r != ranges.rend() && side_by_side < target.warp; ++r)
      if (kind(*r) == RangeKind::Thread) side_by_side *= extent(*r);
    if (side_by_side != target.warp)
      return "the threads of a warp, which multiply together, do not lie side by side";
  }
  if (std::string why = warpgroup_problem(after, ranges); !why.empty()) return why;
  if (std::string why = rolled_problem(after); !why.empty()) return why;
  if (std::string why = grouping_problem(after, target.warp); !why.empty()) return why;
  if (std::string why = staging_problem(after); !why.empty()) return why;
  if (std::string why = cluster_problem(after); !why.empty()) return why;
  if (facts.copies > kMaxCopies) return cat(facts.copies, " copies of an innermost statement");
  return "";
}

std::string launch_problem(const LaunchSize& size, const Target& target) {
  if (target.kind == Target::Kind::Cpu) return "";
  for (int i = 0; i < 3; ++i)
    if (size.grid[i] < 1 || size.grid[i] > (i ? 65535 : INT32_MAX))
      return cat(size.grid[i], " blocks in dimension ", i);
  if (size.shared_bytes > target.shared_bytes)
    return cat(size.shared_bytes, " bytes of shared memory, of ", target.shared_bytes, " at most");
  return thread_problem(size.block[0] * size.block[1] * size.block[2], target);
}

}  // namespace tiny
