#include "codegen/streaming.h"

#include <map>
#include <set>

#include "codegen/kernel/access.h"
#include "codegen/kernel/facts.h"
#include "codegen/kernel/option.h"
#include "codegen/wgmma/tile.h"

namespace tiny {

namespace {

constexpr double kMaxOfCache = 8;        // times the L2 cache, of GPUs
constexpr double kMinOfCache = 1.0 / 8;  // of CPUs, where asking for what is there costs little

double elements(Node param) { return static_cast<double>(elements_of(param)); }

// How often a load is executed: a matrix instruction's operand in registers serves all unrolled
// iterations that do not change it.
double executions(const Access& a, const std::vector<Node>& ranges) {
  double count = a.count;
  if (a.item->op != Op::Reduce || a.item->src(0)->op != Op::Mma) return count;
  for (Node r : ranges)
    if ((kind(r) == RangeKind::Unroll || kind(r) == RangeKind::Vector) &&
        (a.enclosing & ~a.node->ranges & r->ranges))
      count /= static_cast<double>(extent(r));
  return count;
}

// Of a kernel whose stores are few beside its loads, within the bounds where it pays
// (measurements.md: streamed_by_loads).
uint64_t streamed_by_loads(Node sink, const Target& target) {
  constexpr double kLittle = 1.0 / 64;
  const std::vector<Node> ranges = ranges_of(sink);
  const uint64_t loops = mask_of(sink, {RangeKind::Loop, RangeKind::Reduce});
  std::map<Node, double> read;
  std::set<Node> held;
  double written = 0;
  for (const Access& a : accesses(sink)) {
    const Node param = a.node->src(0);
    if (a.is_load() && ((a.enclosing & loops) || held.insert(a.node).second))
      read[param] += executions(a, ranges);
    else if (a.is_store())
      written += elements(param) * param->dtype.size();
  }
  const auto cache = static_cast<double>(target.l2_bytes);
  const bool cpu = target.kind == Target::Kind::Cpu;
  const double least = cpu ? kMinOfCache * cache : cache;
  uint64_t slots = 0;
  for (const auto& [param, count] : read) {
    const double bytes = elements(param) * param->dtype.size();
    if (count <= 1.01 * elements(param) && bytes > least && (cpu || bytes < kMaxOfCache * cache) &&
        written < kLittle * bytes && slot_of(param) < 64)
      slots |= uint64_t{1} << slot_of(param);
  }
  return slots;
}

uint64_t streamed_by_copies(const MatrixTile& tile, const Target& target) {
  const auto cache = static_cast<double>(target.l2_bytes);
  const double bytes = static_cast<double>(tile.a.elements) * tile.dtype.size();
  const bool once = tile.reads_once() && bytes > cache && bytes < kMaxOfCache * cache;
  return once && tile.a.map.slot < 64 ? uint64_t{1} << tile.a.map.slot : 0;
}

}  // namespace

uint64_t streaming_inputs(Node before, Node after, const Target& target) {
  const std::vector<Node> tiles = all_of(after, Op::Matrix);
  if (!tiles.empty()) return streamed_by_copies(MatrixTile(tiles.back()), target);
  return streamed_by_loads(before, target) | streamed_by_loads(after, target);
}

}  // namespace tiny
