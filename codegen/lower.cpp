#include "codegen/lower.h"

#include <algorithm>

#include "codegen/buffer_limit.h"
#include "codegen/estimate.h"
#include "codegen/heuristics/heuristics.h"
#include "codegen/kernel/access.h"
#include "codegen/launch_size.h"
#include "codegen/options/fragments.h"
#include "codegen/options/launchable.h"
#include "codegen/passes/passes.h"
#include "codegen/proof/prove.h"
#include "codegen/render/c/render.h"
#include "codegen/render/llvm/amdgpu.h"
#include "codegen/render/llvm/render.h"
#include "codegen/render/wgsl/render.h"
#include "codegen/streaming.h"
#include "tiny/base/env.h"
#include "tiny/base/error.h"
#include "tiny/ir/print.h"
#include "tiny/ir/verify.h"
#include "tiny/rewrite/algebra.h"
#include "tiny/rewrite/rebuild.h"
#include "tiny/rewrite/rewrite.h"

namespace tiny {

namespace {

#ifdef NDEBUG
constexpr bool kDebugBuild = false;
#else
constexpr bool kDebugBuild = true;
#endif

Source render(const Linear& program, const Target& target) {
  if (target.language == Target::Language::Wgsl) return render_wgsl(program, target);
  if (target.language != Target::Language::LlvmIr) return render_c(program, target);
  return target.kind == Target::Kind::Gpu ? render_amdgpu(program, target)
                                          : render_llvm(program, target);
}

bool has_loops(Node kernel) {  // a store has an index there
  const auto stores = kernel->srcs();
  return std::ranges::any_of(stores, [](Node s) { return s->src(1)->dtype == kIndex; });
}

// The same graph in the current arena.
Node copied(Node root) {
  return remake(root, [](Node n, const std::vector<Node>& srcs) {
    return make(n->op, n->dtype, srcs, n->payload);
  });
}

// Verifies the graph after each pass where checks are on, and shows it to the viewer.
class PassLog {
 public:
  explicit PassLog(const StageViewer& viewer)
      : viewer_(viewer), checked_(kDebugBuild || env_int("CHECK") != 0) {}
  Node operator()(const char* pass, Form legal, Node graph) const {
    if (checked_) verify(graph, legal, pass);
    if (viewer_) viewer_(pass, to_text(graph));
    return graph;
  }

 private:
  const StageViewer viewer_;  // may be empty
  const bool checked_;
};

// From tensors to the loops that options are applied to.
Node loops(Node kernel, const Target& target, const PassLog& log) {
  if (has_loops(kernel)) return copied(kernel);
  Node k = log("ranges", Form::Kernel, to_ranges(kernel));
  k = log("simplify", Form::Kernel, simplify(k));
  k = log("merge_ranges", Form::Kernel, merge_ranges(k, target));
  return target.kind == Target::Kind::Gpu ? log("scans", Form::Kernel, find_scans(k)) : k;
}

void check_launch(const std::string& problem) { check(problem.empty(), "lower: ", problem); }

}  // namespace

Lowered lower(Node kernel, const std::string& name, const Target& target, const StageViewer& viewer,
              const Choice* choice) {
  const auto arena = std::make_shared<Arena>();
  ArenaScope scope(*arena);
  Lowered out;
  out.arena = arena;
  const TraceRules trace(env_int("DEBUG") >= 6);
  const WatchRules watch(env_int("CHECK_REWRITE") ? check_rewrite : nullptr);
  const PassLog log(viewer);

  if (!has_loops(kernel)) require_buffers_fit(kernel, name, target);
  Node k = loops(kernel, target, log);
  out.work = estimate_work(k);
  out.choice = choice ? *choice : env_int("OPT") ? choose_options(k, target) : Choice{};
  out.options = out.choice.options;
  Node chosen = apply(k, out.options, target);
  if (choice) check_launch(launch_problem(k, chosen, target));
  Node plain = k;
  const uint64_t streaming = streaming_inputs(k, chosen, target);
  const std::vector<Opt> parts = split_sums(chosen, target);
  out.options.insert(out.options.end(), parts.begin(), parts.end());
  k = log("options", Form::Kernel, simplify(apply(chosen, parts, target)));
  k = log("gates", Form::Kernel, simplify(lower_gates(k, target)));
  out.loops = k;
  out.unit = product_unit(plain, k, target);
  out.launch = launch_size(k, target);
  if (choice) check_launch(launch_problem(out.launch, target));
  k = log("end_loops", Form::Kernel, end_loops(k, target));
  k = log("whole_tiles", Form::Kernel, whole_tiles(k, target));
  k = log("masked_powers", Form::Kernel, masked_powers(k, target));
  k = log("split_scans", Form::Kernel, simplify(split_scans(k)));
  k = log("vectorize", Form::Vector, simplify(transpose_stores(vectorize(k, target), target)));
  k = log("unroll", Form::Vector, simplify(nest_sums(unroll(k, target), target)));
  k = log("decompose", Form::Vector, decompose(k, target));
  k = log("roll_fragments", Form::Vector, roll_fragments(k));
  k = log("pair_casts", Form::Vector, pair_casts(k, target));
  const bool is_chain = tiny::is_chain(out.loops, target);
  if (is_chain) k = log("pair_loads", Form::Vector, pair_loads(k, target));
  k = log("index_width", Form::Machine, choose_index_width(k, target));
  out.machine = k;
  Linear program = linearize(k, name, !loads_with_masks(target));
  program.is_gemm = out.choice.is_gemm;
  program.is_chain = is_chain;
  program.streaming = streaming;
  if (viewer) viewer("linearize", to_text(program));
  out.source = render(program, target);
  if (viewer) viewer("render", out.source.text);
  return out;
}

Node loops_of(Node kernel, const Target& target) { return loops(kernel, target, PassLog(nullptr)); }

}  // namespace tiny
