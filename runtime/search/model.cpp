#include "runtime/search/model.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "codegen/heuristics/rates.h"
#include "codegen/kernel/access.h"
#include "codegen/kernel/facts.h"
#include "codegen/options/stage.h"
#include "codegen/proof/claims/bounds.h"
#include "codegen/proof/claims/claim.h"
#include "codegen/wgmma/tile.h"
#include "tiny/base/error.h"
#include "tiny/rewrite/algebra.h"

namespace tiny {

namespace {

constexpr double kClock = 3e9;  // cycles a second: the ranking does not depend on it

// Instructions of one execution, in units of a simple vector instruction.
double instructions(Node n, const Target& target) {
  const DType t = n->op == Op::Store ? n->src(2)->dtype : n->dtype;
  const double lanes = t.lanes;
  const bool gpu = target.kind == Target::Kind::Gpu;  // whose threads have vectors in memory only
  double vectors = std::max(1.0, std::ceil(lanes * t.size() / target.vector_bytes));
  if (gpu && n->op != Op::Load && n->op != Op::Store) vectors = lanes;
  switch (n->op) {
    case Op::Load: return n->src(1)->dtype.lanes > 1 ? 1.5 * lanes : vectors;
    case Op::Store: return n->src(1)->dtype.lanes > 1 ? 2 * lanes : 1.5 * vectors;
    case Op::Div:
    case Op::Sqrt: return 8 * vectors;
    case Op::TruncDiv:
    case Op::FloorDiv:
    case Op::TruncMod:
    case Op::FloorMod: return 10 * lanes;
    case Op::Const:
    case Op::Param:
    case Op::Range:
    case Op::Sink:
    case Op::Broadcast:
    case Op::Reduce: return 0;
    default: return t.is_float() ? vectors : t.lanes > 1 ? vectors : 0.5;
  }
}

struct Work {
  double cycles = 0;     // of all instructions
  double chain = 0;      // of the longest chain of additions
  double registers = 0;  // of accumulators, per thread
};

// From the graph that is rendered. A node runs once for each iteration of the loops that it depends
// on: it stands outside of the others.
Work work_of(Node machine, const Target& target) {
  constexpr double kIssue = 2, kLatency = 4;
  Work out;
  const std::vector<Node> ranges = ranges_of(machine);
  std::map<uint64_t, double> loops;
  for (Node n : topological(machine)) {
    if (n->op != Op::Reduce) {
      out.cycles += instructions(n, target) * iterations_of<double>(ranges, n->ranges) / kIssue;
      continue;
    }
    const uint64_t enclosing = n->src(0)->ranges;
    const bool gpu = target.kind == Target::Kind::Gpu;
    const double lanes = n->dtype.lanes;
    const double vectors =
        gpu ? lanes : std::max(1.0, std::ceil(lanes * n->dtype.size() / target.vector_bytes));
    out.registers += vectors;
    const auto runs = iterations_of<double>(ranges, enclosing);
    loops[enclosing] = runs;
    out.cycles += vectors * runs / kIssue;
    out.chain = std::max(out.chain, runs * kLatency);
  }
  for (const auto& [enclosing, runs] : loops) out.cycles += runs;  // of the loop itself
  const double spilled = out.registers - target.vector_registers;
  if (spilled > 0 && target.kind == Target::Kind::Cpu)
    for (const auto& [enclosing, runs] : loops) out.cycles += 2 * spilled * runs;
  return out;
}

// Bytes that move into a cache of `bytes`: the loops from that level inwards whose data fit are
// walked without a miss, each iteration of the others reads its data again.
double traffic(Node sink, double bytes) {
  std::vector<Node> nest = ranges_of(sink);  // ids are in order of the loops once they are ordered
  const auto all = accesses(sink);
  const auto size = [](const Access& a) { return static_cast<double>(a.dtype().size()); };
  // Bytes that one turn of the loops before `depth` touches.
  const auto footprint = [&](const Access& a, size_t depth) {
    double n = 1, step = 64;
    for (size_t i = depth; i < nest.size(); ++i) {
      const int64_t s = stride(a.node, range_id(nest[i]));
      if (s == 0 || !(a.enclosing >> range_id(nest[i]) & 1)) continue;
      n *= static_cast<double>(extent(nest[i]));
      step = std::min(step, s == kIrregular ? 64 : std::abs(static_cast<double>(s)) * size(a));
    }
    return n * std::max(step, size(a));
  };
  size_t depth = nest.size();
  while (depth > 0) {
    double sum = 0;
    for (const Access& a : all) sum += footprint(a, depth - 1);
    if (sum > bytes) break;
    --depth;
  }
  double total = 0;
  for (const Access& a : all) {
    double turns = 1;
    for (size_t i = 0; i < depth; ++i) {
      if (!(a.enclosing >> range_id(nest[i]) & 1)) continue;
      const bool stays = i + 1 == depth && stride(a.node, range_id(nest[i])) == 0;
      if (!stays) turns *= static_cast<double>(extent(nest[i]));
    }
    total += turns * footprint(a, depth);
  }
  return total;
}

double cpu_seconds(Node sink, const Work& w, const Target& target) {
  constexpr double kL1PerCycle = 24, kL2PerCycle = 5;
  double cores = 1;
  for (Node r : ranges_of(sink)) {
    if (kind(r) != RangeKind::Core) continue;
    const auto n = static_cast<double>(extent(r));
    cores = n / std::ceil(n / target.cores);
  }
  const double cycles =
      std::max({w.cycles + traffic(sink, static_cast<double>(target.l1_bytes)) / kL1PerCycle,
                w.chain, traffic(sink, static_cast<double>(target.l2_bytes)) / kL2PerCycle});
  return cycles / cores / kClock;
}

double gpu_seconds(Node sink, const Work& w, const LaunchSize& size, const Target& target) {
  constexpr double kWanted = 1024;  // threads of a multiprocessor that hide latencies
  double threads = 1;
  for (int i = 0; i < 3; ++i)
    threads *= static_cast<double>(size.grid[i]) * static_cast<double>(size.block[i]);
  double full = std::min(1.0, threads / (kWanted * target.cores));
  if (w.registers > 128) full *= 128 / w.registers;
  if (w.registers > 255) full /= 4;
  // Neighbouring threads whose loads are not coalesced waste most of each sector.
  Node x = nullptr;
  for (Node r : ranges_of(sink))
    if (kind(r) == RangeKind::Thread) x = r;
  double bytes = 0;
  for (const Access& a : accesses(sink)) {
    const int64_t s = x ? stride(a.node, range_id(x)) : 1;
    const double wasted = s == 0 ? 1.0 / 8 : std::abs(static_cast<double>(s)) <= 8 ? 1 : 8;
    bytes += a.count * a.dtype().size() * wasted;
  }
  const double cycles = w.cycles / (128.0 * target.cores) + bytes / (32.0 * target.cores);
  return cycles / std::max(full, 1e-4) / kClock;
}

// --- Data ----------------------------------------------------------------------------------------

// The loads whose values an index or a gate depends on, by their slots.
std::map<int, std::vector<Node>> index_leaves(Node at) {
  std::map<int, std::vector<Node>> out;
  for (Node n : topological(at)) {
    if (!is_opaque(n) || n->src(0)->op != Op::Load) continue;
    out[slot_of(n->src(0)->src(0))].push_back(n);
  }
  return out;
}

// Whether the claims' indices stay inside their buffers while all leaves are 0 .. top.
bool stay_inside(const std::vector<const Claim*>& claims, int64_t top) {
  for (const Claim* c : claims) {
    Assumptions given;
    for (const auto& [slot, leaves] : index_leaves(c->index))
      for (Node leaf : leaves) {
        Node value = make(Op::Cast, kIndex, {leaf});
        given.assume(make(Op::Le, kBool, {value, index(top)}));
        given.assume(make(Op::Le, kBool, {index(0), value}));
      }
    const Bounds b = given.bounds(c->index);
    if (b.min < 0 || b.max >= c->size) return false;
  }
  return true;
}

}  // namespace

namespace {

// Of a wgmma GEMM: multiplication, copies and epilogue overlap with each other. Cycles fit to
// measurements (measurements.md: matrix_seconds) and manuals: 64 rows and n columns take n / 2 for
// 32 bytes along k, and shared memory gives 128 bytes of both operands in one; L2 gives a
// multiprocessor 48, in rows that count as 128 bytes at least.
double matrix_seconds(Node sink, const MatrixTile& tile, const Target& target) {
  constexpr double kFromCache = 48, kFromShared = 128, kStored = 24, kBegin = 3000, kStep = 40;
  constexpr double kOfClusters = 0.9, kFromOthers = 32;  // the latter, bytes in a cycle, is a guess
  double tiles = 1, written = 0;
  Node vector = nullptr;
  for (Node r : ranges_of(sink)) {
    if (kind(r) == RangeKind::Block) tiles *= static_cast<double>(extent(r));
    if (kind(r) == RangeKind::Vector) vector = r;
  }
  for (const Access& a : accesses(sink)) {
    if (a.is_load()) continue;
    const bool scattered = vector && stride(a.node, range_id(vector)) != 1;
    written += a.count * a.node->src(2)->dtype.size() * (scattered ? 8 : 1);
  }
  const auto rows = [](const MatrixOperand& o) {
    return static_cast<double>(o.boxes) * o.box_bytes() / o.row_bytes();
  };
  const double slices = tile.depth * tile.dtype.size() / 32.0, n = tile.width();
  const double each = std::max(n / 2, (64 + n) * 32 / kFromShared);
  double multiply = slices * each * tile.pieces() * tile.groups();
  if (tile.type().promotes_each_step) multiply += tile.rows * tile.columns / 256.0;
  const double copy = (rows(tile.a) + rows(tile.b)) * 128 / kFromCache;
  const auto steps = static_cast<double>(tile.all_steps());
  const double store = written / tiles / kStored;
  const double resident = std::min<double>(tile.blocks(), std::ceil(tiles / target.cores));
  // Waves: split-K fills the last. Of clusters of four or more fewer run at a time than there is
  // room for.
  const double cores = target.cores * (tile.split_k > 2 ? kOfClusters : 1);
  const double turns = std::ceil(tiles * tile.split_k / cores) / tile.split_k;
  const double added = tile.split_k > 1 ? tile.rows * tile.columns * 4 / kFromOthers : 0;
  // One block at a time waits for each step's barriers and for its stores.
  const double waits = (steps * kStep + store) * turns / resident;
  return (kBegin + turns * steps * std::max(multiply, copy) + waits + added) / kClock;
}

// Of a GEMM by mma.sync: loads and multiplications of a warp, hidden by as many warps as have
// registers and shared memory, at the rates by which the heuristic ranks fragments.
double mma_seconds(const Lowered& low, const Work& w, const Target& target) {
  constexpr double kMaxWarps = 64;
  const WarpRates& r = kWarpRates;
  const std::vector<Node> ranges = ranges_of(low.machine);
  double threads = 1, block = 1;
  for (int i = 0; i < 3; ++i) {
    block *= static_cast<double>(low.launch.block[i]);
    threads *= static_cast<double>(low.launch.grid[i]) * static_cast<double>(low.launch.block[i]);
  }
  double work = 0;
  std::map<uint64_t, double> loops;
  for (Node n : topological(low.machine)) {
    const auto runs = iterations_of<double>(ranges, n->ranges);
    if (n->op == Op::Load)
      work += (is_stage(n->src(0)) ? r.staged : r.load) * runs * n->dtype.size() / 4;
    if (n->op == Op::Mma) {
      work += r.multiply * runs;
      loops[n->ranges] = r.step * runs;
    }
    if (n->op == Op::Stage) loops[n->src(2)->ranges] = r.barrier * runs;
  }
  for (const auto& [enclosing, steps] : loops) work += steps;
  const double warps = block / target.warp, blocks = threads / block / target.cores;
  double resident = r.resident(w.registers, target) / warps;
  resident = std::min({std::floor(resident), kMaxWarps / warps, std::ceil(blocks)});
  if (low.launch.shared_bytes > 0)
    resident = std::min(resident, std::floor(static_cast<double>(target.shared_bytes) /
                                             static_cast<double>(low.launch.shared_bytes)));
  return work / target.warp / target.cores * r.waiting(resident * warps) * std::ceil(blocks) /
         blocks / kClock;
}

}  // namespace

double estimate_seconds(const Lowered& low, const Target& target) {
  for (Node m : all_of(low.loops, Op::Matrix))
    return matrix_seconds(low.loops, MatrixTile(m), target);
  const Work w = work_of(low.machine, target);
  if (target.kind == Target::Kind::Gpu && !all_of(low.machine, Op::Mma).empty())
    return mma_seconds(low, w, target);
  return target.kind == Target::Kind::Cpu ? cpu_seconds(low.loops, w, target)
                                          : gpu_seconds(low.loops, w, low.launch, target);
}

namespace {

// Whether sums and products of eighths come out exactly: no function rounds, constants are eighths.
bool is_exact(Node loops) {
  for (Node n : topological(loops)) {
    if (!n->dtype.is_float()) continue;
    switch (n->op) {
      case Op::Const:
        if (std::isfinite(n->number()) &&
            (n->number() * 8 != std::round(n->number() * 8) || std::abs(n->number()) > 64))
          return false;
        break;
      case Op::Add:
      case Op::Sub:
      case Op::Mul:
      case Op::Neg:
      case Op::Where:
      case Op::Max:
      case Op::Load:
      case Op::Param:
      case Op::Reduce: break;
      default: return false;
    }
  }
  return true;
}

}  // namespace

namespace {

// The values of Variables: at the end of their bounds, where kernels take longest.
void fill_lengths(Node loops, KernelCase& out) {
  for (Node n : all_of(loops, Op::Bound)) {
    Node of = n->src(0);
    while (of->op == Op::Cast) of = of->src(0);
    const bool is_value = of->op == Op::Load && numel(of->src(0)->shape()) == 1;
    check(is_value, "a length that the kernel computes itself");
    Filling& f = out.buffers[slot_of(of->src(0))];
    const int64_t low = n->ints()[0], top = n->ints()[1];
    const bool again = f.kind == Filling::Kind::Length;
    f.kind = Filling::Kind::Length;
    f.top = again ? std::min(f.top, top) : top;
    f.low = std::max({f.low, low, f.top / 2});
    check(!f.written && f.low <= f.top, "a length between ", f.low, " and ", f.top);
  }
}

}  // namespace

KernelCase case_of(Node loops, const std::string& device, const Target& target) {
  KernelCase out;
  out.device = device;
  out.exact = is_exact(loops);
  std::set<int> loaded;
  for (Node n : topological(loops)) {
    if (n->op == Op::Param) {
      const auto slot = static_cast<size_t>(slot_of(n));
      if (out.buffers.size() <= slot) out.buffers.resize(slot + 1, {.dtype = kF32});
      Filling& f = out.buffers[slot];
      f.dtype = n->dtype;
      f.size = numel(n->shape());
    }
    const bool computed = n->dtype.is_float() && n->op != Op::Param && n->op != Op::Load;
    if (computed && n->dtype == kF32) out.fine = 0x1p-23;
    if (computed && n->dtype == kF16) out.coarse = std::max(out.coarse, 0x1p-10);
    if (computed && n->dtype == kBF16) out.coarse = 0x1p-7;
    if (n->op == Op::Load) loaded.insert(slot_of(n->src(0)));
    if (n->op == Op::Reduce) {
      double length = 1;
      for (Node r : n->srcs().subspan(1)) length *= static_cast<double>(extent(r));
      out.longest_sum = std::max(out.longest_sum, length);
    }
  }
  for (Node s : loops->srcs()) {
    const int slot = slot_of(s->src(0));
    Filling& f = out.buffers[slot];
    const bool gathered = !index_leaves(s->src(1)).empty() || !all_of(s->src(1), Op::Load).empty();
    const bool partly = gathered || s->num_src > 3 || std::holds_alternative<OpArg>(s->payload) ||
                        loaded.count(slot);
    f.written = true;
    f.kind = partly ? Filling::Kind::Values : Filling::Kind::Poison;
    for (Node l : all_of(s->src(1), Op::Load)) {
      Filling& from = out.buffers[slot_of(l->src(0))];
      from.distinct = from.dtype.is_int();
    }
  }
  fill_lengths(loops, out);
  const Choice none;
  const Lowered plain = lower(loops, "k", target, nullptr, &none);
  Arena arena;
  ArenaScope scope(arena);
  const std::vector<Claim> claims = claims_of(plain.machine);
  std::map<int, std::vector<const Claim*>> by_slot;
  std::map<int, int64_t> most;
  for (const Claim& c : claims)
    for (const auto& [slot, leaves] : index_leaves(c.index)) {
      by_slot[slot].push_back(&c);
      most[slot] = std::max(most[slot], c.size - 1);
    }
  for (const auto& [slot, list] : by_slot) {
    Filling& f = out.buffers[slot];
    if (!f.dtype.is_int() || f.written || f.kind == Filling::Kind::Length) continue;
    f.kind = Filling::Kind::Indices;
    int64_t low = 0, high = most[slot];
    while (low < high) {  // the largest that is legal
      const int64_t middle = low + (high - low + 1) / 2;
      if (stay_inside(list, middle))
        low = middle;
      else
        high = middle - 1;
    }
    f.top = low;
  }
  return out;
}

Node reference_loops(Node loops, double most) {
  double runs = 0;
  const auto count = [](Node sink) {
    double n = 0;
    for (const Access& a : accesses(sink)) n += a.count;
    return n;
  };
  for (Node sink = loops;;) {
    runs = count(sink);
    if (runs <= most) return sink;
    // The longest loop that all of the kernel is in, down to its last iterations.
    Node longest = nullptr;
    for (Node r : ranges_of(sink)) {
      bool everywhere = kind(r) == RangeKind::Loop && extent(r) > 1;
      for (Node n : topological(sink))
        if (n->op == Op::Store) everywhere = everywhere && (n->ranges & r->ranges);
      for (Node s : sink->srcs())
        everywhere = everywhere && !std::holds_alternative<OpArg>(s->payload);
      if (everywhere && (!longest || extent(r) > extent(longest))) longest = r;
    }
    if (!longest) return nullptr;
    const int64_t n = extent(longest);
    const auto wanted = static_cast<int64_t>(static_cast<double>(n) * most / runs);
    const int64_t kept = std::max<int64_t>(1, std::max(wanted, n / 16));
    if (kept >= n) return nullptr;
    Node fewer = make(Op::Range, kIndex, {index(kept)}, longest->payload);
    sink = substitute(sink, longest, index_add(fewer, index(n - kept)));
  }
}

}  // namespace tiny
