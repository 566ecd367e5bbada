#include "codegen/lower.h"

#include <algorithm>
#include <map>
#include <set>

#include "codegen/kernel/access.h"
#include "codegen/kernel/choice.h"
#include "codegen/kernel/lengths.h"
#include "codegen/options/launchable.h"
#include "codegen/options/stage.h"
#include "codegen/passes/decompose/decompose.h"
#include "codegen/passes/expand.h"
#include "codegen/passes/gates.h"
#include "codegen/passes/index_width.h"
#include "codegen/passes/linearize.h"
#include "codegen/passes/merge.h"
#include "codegen/passes/partial_sums.h"
#include "codegen/passes/ranges.h"
#include "codegen/passes/scan.h"
#include "codegen/proof/prove.h"
#include "codegen/render/c/render.h"
#include "codegen/render/llvm/amdgpu.h"
#include "codegen/render/llvm/render.h"
#include "codegen/wgmma/tile.h"
#include "tiny/base/env.h"
#include "tiny/base/error.h"
#include "tiny/ir/print.h"
#include "tiny/ir/verify.h"
#include "tiny/rewrite/algebra.h"
#include "tiny/rewrite/rewrite.h"

namespace tiny {

namespace {

#ifdef NDEBUG
constexpr bool kDebugBuild = false;
#else
constexpr bool kDebugBuild = true;
#endif

double elements(Node param) { return static_cast<double>(param->ints()[1]); }

void estimate(Node sink, Lowered& out) {
  for (Node p : all_of(sink, Op::Param)) out.bytes += elements(p) * p->dtype.size();
  const std::vector<Node> ranges = ranges_of(sink);
  for (Node n : topological(sink)) {
    const bool arithmetic = is_elementwise(n->op) && n->dtype.is_float() && n->op != Op::Cast;
    if (!arithmetic && n->op != Op::Reduce) continue;
    const uint64_t around = n->op == Op::Reduce ? n->src(0)->ranges : n->ranges;
    double count = 1;
    for (Node r : ranges)
      if (around >> range_id(r) & 1) count *= static_cast<double>(extent(r));
    out.flops += count;
  }
}

// How often a load is executed: what a thread's matrix unit multiplies it has for all that is
// unrolled and does not change it.
double loads_of(const Access& a, const std::vector<Node>& ranges) {
  double count = a.count;
  if (a.item->op != Op::Reduce || a.item->src(0)->op != Op::Mma) return count;
  for (Node r : ranges)
    if ((kind(r) == RangeKind::Unroll || kind(r) == RangeKind::Vector) &&
        (a.around & ~a.node->ranges & r->ranges))
      count /= static_cast<double>(extent(r));
  return count;
}

// Slots of buffers of which each element is read once, by a kernel that writes next to nothing, and
// that no cache holds. What is in the second cache then stays there: on an H200 sums of 268 MB take
// 1 to 6 % less so, sums of 824 MB and kernels that write as much as they read more. What several
// reductions read is read once where threads keep it in registers.
constexpr double kMostOfCache = 8;
uint64_t slots_read_once(Node sink, const Target& target) {
  constexpr double kLittle = 1.0 / 64;
  const std::vector<Node> ranges = ranges_of(sink);
  uint64_t loops = 0;
  for (Node r : ranges)
    if (kind(r) == RangeKind::Loop || kind(r) == RangeKind::Reduce) loops |= r->ranges;
  std::map<Node, double> read;
  std::set<Node> held;
  double written = 0;
  for (const Access& a : accesses(sink)) {
    const Node param = a.node->src(0);
    if (a.node->op == Op::Load && ((a.around & loops) || held.insert(a.node).second))
      read[param] += loads_of(a, ranges);
    else if (a.node->op == Op::Store)
      written += elements(param) * param->dtype.size();
  }
  uint64_t slots = 0;
  for (const auto& [param, count] : read) {
    const double bytes = elements(param) * param->dtype.size();
    const auto cache = static_cast<double>(target.l2_bytes);
    if (count <= 1.01 * elements(param) && bytes > cache && bytes < kMostOfCache * cache &&
        written < kLittle * bytes && param->ints()[0] < 64)
      slots |= uint64_t{1} << param->ints()[0];
  }
  return slots;
}

// The same of what the copy engine reads for matrix units.
uint64_t slots_read_once(const MatrixTile& tile, const Target& target) {
  const auto cache = static_cast<double>(target.l2_bytes);
  const double bytes = static_cast<double>(tile.a.elements) * tile.dtype.size();
  const bool once = tile.reads_once() && bytes > cache && bytes < kMostOfCache * cache;
  return once && tile.a.map.slot < 64 ? uint64_t{1} << tile.a.map.slot : 0;
}

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

Source render(const Linear& program, const Target& target) {
  if (target.language != Target::Language::LlvmIr) return render_c(program, target);
  return target.kind == Target::Kind::Gpu ? render_amdgpu(program, target)
                                          : render_llvm(program, target);
}

bool has_loops(Node kernel) {  // a store has an index there
  const auto stores = kernel->srcs();
  return std::any_of(stores.begin(), stores.end(),
                     [](Node s) { return s->src(1)->dtype == kIndex; });
}

// The same graph in the current arena.
Node copied(Node root) {
  NodeMap<Node> done;
  for (Node n : topological(root)) {
    std::vector<Node> srcs;
    for (Node s : n->srcs()) srcs.push_back(*done.find(s));
    done[n] = make(n->op, n->dtype, srcs, n->payload);
  }
  return *done.find(root);
}

void check_launch(const std::string& problem) { check(problem.empty(), "lower: ", problem); }

}  // namespace

Lowered lower(Node kernel, const std::string& name, const Target& target, const StageViewer& viewer,
              const Choice* choice) {
  const auto arena = std::make_shared<Arena>();
  ArenaScope scope(*arena);
  Lowered out;
  out.arena = arena;
  const bool checked = kDebugBuild || env_int("CHECK") != 0;
  const TraceRules trace(env_int("DEBUG") >= 6);
  const WatchRules watch(env_int("CHECK_REWRITE") ? check_rewrite : nullptr);
  const auto stage = [&](const char* pass, Stage legal, Node graph) {
    if (checked) verify(graph, legal, pass);
    if (viewer) viewer(pass, to_text(graph));
    return graph;
  };

  Node k;
  if (has_loops(kernel)) {
    k = copied(kernel);
  } else {
    k = stage("ranges", Stage::Kernel, to_ranges(kernel));
    k = stage("simplify", Stage::Kernel, simplify(k));
    k = stage("merge_ranges", Stage::Kernel, merge_ranges(k, target));
    if (target.kind == Target::Kind::Gpu) k = stage("scans", Stage::Kernel, find_scans(k));
  }
  estimate(k, out);
  uint64_t read_once = target.kind == Target::Kind::Gpu ? slots_read_once(k, target) : 0;
  out.choice = choice ? *choice : env_int("OPT") ? choose_options(k, target) : Choice{};
  out.options = out.choice.options;
  Node plain = k;
  k = apply(k, out.choice.options, target);
  if (target.kind == Target::Kind::Gpu) read_once |= slots_read_once(k, target);
  if (choice) check_launch(launch_problem(plain, k, target));
  const std::vector<Opt> parts = split_sums(k, target);
  out.options.insert(out.options.end(), parts.begin(), parts.end());
  k = stage("options", Stage::Kernel, simplify(apply(k, parts, target)));
  k = stage("gates", Stage::Kernel, simplify(lower_gates(k, target)));
  out.loops = k;
  out.launch =
      target.kind == Target::Kind::Cpu ? cpu_launch_size(k) : gpu_launch_size(ranges_of(k));
  out.launch.waits = target.language == Target::Language::Cuda;
  for (Node m : all_of(k, Op::Matrix)) {
    set_launch(MatrixTile(m), target, out.launch);
    read_once = slots_read_once(MatrixTile(m), target);
  }
  out.launch.shared_bytes += all_stage_bytes(k);
  if (choice) check_launch(launch_problem(out.launch, target));
  k = stage("end_loops", Stage::Kernel, end_loops(k, target));
  k = stage("split_scans", Stage::Kernel, simplify(split_scans(k)));
  k = stage("vectorize", Stage::Vector, simplify(vectorize(k, target)));
  k = stage("unroll", Stage::Vector, simplify(nest_sums(unroll(k, target), target)));
  k = stage("decompose", Stage::Vector, decompose(k, target));
  k = stage("index_width", Stage::Machine, choose_index_width(k, target));
  out.machine = k;
  Linear program = linearize(k, name);
  program.heavy = out.choice.heavy;
  program.read_once = read_once;
  if (viewer) viewer("linearize", to_text(program));
  out.source = render(program, target);
  if (viewer) viewer("render", out.source.text);
  return out;
}

Node loops_of(Node kernel, const Target& target) {
  if (has_loops(kernel)) return copied(kernel);
  kernel = merge_ranges(simplify(to_ranges(kernel)), target);
  return target.kind == Target::Kind::Gpu ? find_scans(kernel) : kernel;
}

}  // namespace tiny
