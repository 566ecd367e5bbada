// Faults planted in kernels: those of the operator tests, and those of each kind of mask.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>

#include "codegen/lower.h"
#include "codegen/proof/solver/smt.h"
#include "runtime/device/device.h"
#include "runtime/schedule/schedule.h"
#include "test/ops/ops.h"
#include "test/unit/kernel_truth.h"
#include "tiny/base/env.h"
#include "tiny/base/error.h"
#include "tiny/nn/functional.h"
#include "tiny/rewrite/rewrite.h"

using namespace tiny;
using namespace tiny::test;

namespace {

Tensor zeros(const ops::Input& in) {
  return Tensor::from(std::vector<float>(static_cast<size_t>(numel(in.shape))), in.shape, "NULL")
      .to(in.dtype);
}

struct Corpus {
  std::vector<std::pair<Lowered, ProofSettings>> kernels;
  std::set<std::string> texts;
};

void add_kernels(Corpus& corpus, const ops::Case& c, const Target& target) {
  INFO(c.name);
  std::vector<Tensor> inputs;
  for (const ops::Input& in : c.inputs) inputs.push_back(zeros(in));
  ops::Outputs outputs;
  std::vector<Node> roots;
  // A size that is read from a device that computes nothing may be anything.
  try {
    outputs = c.build(inputs);
    for (const Tensor& t : outputs) {
      if (numel(t.shape()) > 1 << 20) return;
      roots.push_back(t.node());
    }
  } catch (const Error&) {
    return;
  }
  const Normalized graph = normalize(roots);
  std::vector<int> devices;
  for (Node b : graph.buffers) devices.push_back(b->device);
  const bool gpu = target.kind == Target::Kind::Gpu;
  const auto s = schedule(graph, devices, device_id(gpu ? "EMULATOR" : "NULL"));
  for (const Step& step : s->steps) {
    if (!step.kernel) continue;
    Lowered low = lower(step.kernel.get(), "k", target);
    ProofSettings settings = patient();
    read_kernel(step.kernel.get(), target, settings);
    if (corpus.texts.insert(low.source.text).second)
      corpus.kernels.emplace_back(std::move(low), settings);
  }
}

struct Score {
  int tried = 0, harmful = 0, harmless = 0, unknown = 0;
};

// What the proof says of a kernel with a fault is what trying everything says.
void judge(Node kernel, const ProofSettings& settings, Score& score) {
  ++score.tried;
  const auto truth = truth_of(kernel);
  const Proof p = prove(kernel, settings);
  INFO(to_smt(kernel));
  if (!truth) {
    ++score.unknown;
    return;
  }
  const bool holds = truth->inside && (truth->once || settings.scattered);
  ++(holds ? score.harmless : score.harmful);
  CHECK_MESSAGE(p.verdict == (holds ? Verdict::Proved : Verdict::Wrong), p.text);
  if (!truth->inside) CHECK_MESSAGE(is_example(p.text, kernel), p.text);
}

Target small_gpu() {
  Target t = find_device("EMULATOR").target();
  t.cores = 2;
  return t;
}

Corpus operator_corpus(const Target& target = small_target()) {
  Corpus corpus;
  for (const auto& table :
       {ops::movement_cases(), ops::reduce_cases(), ops::scan_cases(), ops::index_cases(),
        ops::matmul_cases(), ops::conv_cases(), ops::pool_cases(), ops::norm_cases()})
    for (const ops::Case& c : table) add_kernels(corpus, c, target);
  return corpus;
}

}  // namespace

TEST_CASE("kernels of the operator tests are proved, and faults planted in them are found") {
  if (!has_solver()) return;
  const Corpus corpus = operator_corpus();
  CHECK(corpus.kernels.size() > 100);
  std::map<Fault, Score> scores;
  for (const auto& [low, settings] : corpus.kernels) {
    Arena arena;
    ArenaScope scope(arena);
    const Proof p = prove(low.machine, settings);
    CHECK_MESSAGE(p.verdict == Verdict::Proved, low.source.text, p.text);
    for (Fault fault : {Fault::PlusOne, Fault::MinusOne, Fault::NoGate, Fault::LooserGate,
                        Fault::SwappedStrides}) {
      int planted = 0;  // in the first and the last access that it applies to
      std::vector<Node> all = accesses_of(low.machine);
      for (int turn = 0; turn < 2; ++turn, std::reverse(all.begin(), all.end()))
        for (Node access : all) {
          Node faulty = with_fault(low.machine, access, fault);
          if (!faulty || faulty == low.machine) continue;
          judge(faulty, settings, scores[fault]);
          ++planted;
          break;
        }
    }
  }
  for (const auto& [fault, score] : scores) {
    MESSAGE("fault " << static_cast<int>(fault) << ": planted " << score.tried << ", harmful "
                     << score.harmful << ", harmless " << score.harmless
                     << ", not decided by trying " << score.unknown);
    CHECK(score.harmful > 5);
  }
}

// As if an output had been given the memory of an input that it must not have.
TEST_CASE(
    "an output in the memory of any input is proved where no iteration reads what another one "
    "writes, and found elsewhere") {
  if (!has_solver()) return;
  int proved = 0, found = 0, refused = 0;
  for (const Target& target : {small_target(), small_gpu()}) {
    const Corpus corpus = operator_corpus(target);
    for (const auto& [low, settings] : corpus.kernels) {
      Arena arena;
      ArenaScope scope(arena);
      std::vector<Node> inputs, outputs;
      for (Node n : accesses_of(low.machine))
        if (n->src(0)->is(Op::Param)) (n->is(Op::Load) ? inputs : outputs).push_back(n->src(0));
      if (inputs.empty() || outputs.size() != 1 || settings.scattered) continue;
      for (Node input : std::set<Node>(inputs.begin(), inputs.end())) {
        if (input->dtype != outputs[0]->dtype || input->ints()[1] != outputs[0]->ints()[1])
          continue;
        Node kernel = substitute(low.machine, input, outputs[0]);
        const Proof p = prove(kernel, settings);
        const auto truth = reads_before_writing(kernel, static_cast<int>(outputs[0]->ints()[0]));
        if (!truth) continue;
        INFO(low.source.text);
        if (p.verdict == Verdict::Proved) CHECK_MESSAGE(*truth, to_smt(kernel));
        if (p.verdict == Verdict::Wrong) CHECK_MESSAGE(!*truth, p.text);
        if (*truth) CHECK_MESSAGE(p.verdict != Verdict::Wrong, p.text);
        ++(p.verdict != Verdict::Proved ? *truth ? refused : found : proved);
      }
    }
  }
  MESSAGE("proved " << proved << ", found " << found << ", right and not proved " << refused);
  CHECK(proved > 20);
  CHECK(found > 20);
  CHECK(refused * 10 <= proved);
}

TEST_CASE("every rule that fires on kernels of the operator tests keeps the value there") {
  if (!has_solver()) return;
  const EnvOverride checked("CHECK_REWRITE", "1");  // lower throws where one does not
  const RewriteCounts before = rewrite_counts();
  for (const Target& target : {small_target(), gpu_target("sm_90a"), gpu_target("gfx942")})
    CHECK(operator_corpus(target).kernels.size() > 100);
  const RewriteCounts after = rewrite_counts();
  const int64_t proved = after.proved - before.proved;
  int64_t open = 0;
  std::string text;
  for (auto [rule, count] : after.open) {
    if (const auto at = before.open.find(rule); at != before.open.end()) count -= at->second;
    open += count;
    if (count) text += cat("\n  ", rule, ": ", count);
  }
  MESSAGE(proved << " rewrites proved, " << open << " not decided" << text);
  CHECK(proved > 10000);
  CHECK(open * 100 < proved);
}

// --- masks ---------------------------------------------------------------------------------------

namespace {

using ops::Case;
using ops::Inputs;

// Each kind of mask that kernels have, at sizes that are no multiple of any vector, warp or tile.
ops::Cases masks() {
  return {
      {"convolution, padded, strided, dilated",
       {{{1, 2, 9, 7}}, {{3, 2, 3, 3}}},
       [](const Inputs& x) -> Inputs {
         return {conv2d(x[0], x[1], {}, {.stride = {2, 1}, .padding = {3, 1}, .dilation = {1, 2}})};
       }},
      {"pool, padded",
       {{{2, 3, 7, 9}}},
       [](const Inputs& x) -> Inputs {
         return {max_pool2d(x[0], 3, {.stride = PerAxis(2), .padding = 1})};
       }},
      {"concatenation",
       {{{5, 3}}, {{5, 8}}},
       [](const Inputs& x) -> Inputs {
         return {Tensor::cat({x[0] * 2, x[1].exp()}, 1)};
       }},
      {"part of a padded tensor",
       {{{6, 7}}},
       [](const Inputs& x) -> Inputs {
         return {x[0].pad({{2, 1}, {3, 2}}).shrink({{1, 8}, {2, 11}}).exp()};
       }},
      {"padded, reversed",
       {{{6, 7}}},
       [](const Inputs& x) -> Inputs {
         return {x[0].pad({{0, 0}, {3, 2}}).flip({1}).exp()};
       }},
      {"steps through a padded tensor",
       {{{5, 13}}},
       [](const Inputs& x) -> Inputs {
         return {x[0].pad({{0, 0}, {4, 3}}).slice({{}, 1}, {{}, 19}, {1, 3}).exp()};
       }},
      {"triangle of a padded tensor",
       {{{7, 5}}},
       [](const Inputs& x) -> Inputs {
         return {x[0].pad({{0, 0}, {1, 3}}).tril(1)};
       }},
      {"windows summed back",
       {{{2, 23}}},
       [](const Inputs& x) -> Inputs {
         return {conv_transpose1d(x[0].unsqueeze(0), x[0].narrow(1, 0, 10).reshape({2, 2, 5}), {},
                                  {.stride = 3, .padding = 2})};
       }},
      {"boolean mask",
       {{{37}}, {{37}, kBool, 0, 1}},
       [](const Inputs& x) -> Inputs { return {x[0].masked_select(x[1], 20)}; }},
      {"gathered where ids are valid",
       {{{19, 5}}, {{11}, kI64, -30, 30}},
       [](const Inputs& x) -> Inputs { return {x[0].index_select(0, x[1])}; }},
      {"added where ids are valid",
       {{{19, 5}}, {{11}, kI64, -30, 30}, {{11, 5}}},
       [](const Inputs& x) -> Inputs { return {x[0].index_add(0, x[1], x[2])}; }},
      {"tails of vectors",
       {{{3, 37}}},
       [](const Inputs& x) -> Inputs {
         return {(x[0] + 1).relu().pad({{0, 0}, {0, 2}})};
       }},
      {"tails of tiles",
       {{{35, 67}}, {{67, 50}}},
       [](const Inputs& x) -> Inputs { return {x[0].matmul(x[1])}; }},
      {"rows that several threads sum",
       {{{5, 1203}}},
       [](const Inputs& x) -> Inputs { return {x[0].softmax(1)}; }},
  };
}

// How many of the faults of this kind, planted in one access each, the proof finds; -1: it has no
// place. Without its gate an access at an index from memory is no longer proved; whether memory can
// hold such an index is not known.
int found(const Corpus& corpus, Fault fault) {
  int caught = 0, planted = 0;
  for (const auto& [low, settings] : corpus.kernels) {
    Arena arena;
    ArenaScope scope(arena);
    ProofSettings hasty = settings;
    hasty.steps = 20 * kSolverSteps;
    hasty.iterations = 20000;
    std::vector<Node> all = accesses_of(low.machine);
    if (all.size() > 12) all.erase(all.begin() + 6, all.end() - 6);
    for (Node access : all) {
      Node faulty = with_fault(low.machine, access, fault);
      if (!faulty || faulty == low.machine) continue;
      ++planted;
      const Verdict verdict = prove(faulty, hasty).verdict;
      caught += fault == Fault::NoGate ? verdict != Verdict::Proved : verdict == Verdict::Wrong;
    }
  }
  return planted ? caught : -1;
}

}  // namespace

TEST_CASE("each kind of mask is proved; one more or less, or no gate, is found") {
  if (!has_solver()) return;
  for (const Case& mask : masks()) {
    bool gated = false;
    for (const Target& target : {small_target(), small_gpu()}) {
      Corpus corpus;
      add_kernels(corpus, mask, target);
      INFO(mask.name << " for " << (target.kind == Target::Kind::Gpu ? "a GPU" : "the CPU"));
      for (const auto& [low, settings] : corpus.kernels) {
        const Proof p = prove(low.machine, settings);
        CHECK_MESSAGE(p.verdict == Verdict::Proved, low.source.text, p.text);
      }
      CHECK(found(corpus, Fault::PlusOne) > 0);
      CHECK(found(corpus, Fault::MinusOne) > 0);
      const int without_gate = found(corpus, Fault::NoGate);
      CHECK(without_gate != 0);
      gated |= without_gate > 0;
    }
    CHECK_MESSAGE(gated, mask.name, " has no gate");
  }
}
