#include "codegen/launch_size.h"

#include <algorithm>

#include "codegen/kernel/access.h"
#include "codegen/kernel/option.h"
#include "codegen/options/stage.h"
#include "codegen/wgmma/tile.h"
#include "tiny/base/error.h"
#include "tiny/ir/print.h"

namespace tiny {

namespace {

LaunchSize gpu_launch_size(const std::vector<Node>& ranges) {
  LaunchSize size;
  const auto fill = [&](RangeKind wanted, int64_t(&sizes)[3]) {
    int dim = 0;
    for (size_t i = ranges.size(); i-- > 0;) {
      if (kind(ranges[i]) != wanted) continue;
      expect(dim < 3, "a kernel with more than three ranges of kind ", name_of(wanted));
      sizes[dim++] = extent(ranges[i]);
    }
  };
  fill(RangeKind::Block, size.grid);
  fill(RangeKind::Thread, size.block);
  return size;
}

// The parallel range, and how many of its iterations make a chunk that is worth a thread of its
// own: about 20 microseconds of work, counted in accesses to memory.
LaunchSize cpu_launch_size(Node sink) {
  LaunchSize size;
  double work = 0;
  for (const Access& a : accesses(sink))
    work += a.count * std::max<int>(1, a.node->dtype.lanes / 4);
  for (Node r : ranges_of(sink))
    if (kind(r) == RangeKind::Core) size.grid[0] = extent(r);
  const double each = work / static_cast<double>(size.grid[0]);
  size.chunk = std::max<int64_t>(1, static_cast<int64_t>(20000 / std::max(each, 1.0)));
  return size;
}

}  // namespace

LaunchSize launch_size(Node sink, const Target& target) {
  LaunchSize size =
      target.kind == Target::Kind::Cpu ? cpu_launch_size(sink) : gpu_launch_size(ranges_of(sink));
  size.waits = target.language == Target::Language::Cuda;
  for (Node m : all_of(sink, Op::Matrix)) set_launch(MatrixTile(m), target, size);
  size.shared_bytes += all_stage_bytes(sink);
  return size;
}

}  // namespace tiny
