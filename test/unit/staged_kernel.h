// A kernel whose operands are staged in shared memory, and its arguments' memory.
#pragma once
#include <doctest/doctest.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "codegen/heuristics/heuristics.h"
#include "codegen/lower.h"
#include "codegen/options/stage.h"
#include "codegen/proof/prove.h"
#include "runtime/device/buffer.h"
#include "runtime/realize/realize.h"
#include "runtime/schedule/schedule.h"
#include "tiny/tiny.h"

namespace tiny {

// The kernel that computes a tensor, the last one of several, and its arguments' memory.
struct StagedKernel {
  explicit StagedKernel(const Tensor& t) : device(find_device(t.device())) {
    const Node root = t.node();
    const Normalized graph = normalize({&root, 1});
    std::vector<int> devices;
    for (Node b : graph.buffers) {
      devices.push_back(b->device);
      memory.push_back(b->arg<BufferArg>().buffer->data());
    }
    inputs = memory.size();
    made = schedule(graph, devices, device_id(t.device()));
    for (const Step& step : made->steps) {
      for (Node p : topological(step.kernel.get())) {
        if (!p->is(Op::Param)) continue;
        const auto value = static_cast<size_t>(step.values.at(static_cast<size_t>(p->ints()[0])));
        if (memory.size() <= value) memory.resize(value + 1);
        bytes.resize(memory.size());
        if (memory[value]) continue;
        bytes[value] = static_cast<size_t>(numel(p->shape()) * p->dtype.size());
        memory[value] = device.alloc(bytes[value]);
      }
      if (&step == &made->steps.back()) break;
      const Lowered low = lower(step.kernel.get(), "k", device.target());
      launch(step, low.source, low.launch);
    }
  }
  StagedKernel(const StagedKernel&) = delete;
  ~StagedKernel() {
    for (size_t i = inputs; i < memory.size(); ++i)
      if (memory[i]) device.free(memory[i], bytes[i]);
  }

  Node node() const { return made->steps.back().kernel.get(); }

  using Chooser = std::function<std::optional<Choice>(Node, const Target&)>;

  // With the options that it chooses, where there are some.
  std::optional<Lowered> try_options(const Chooser& choose) const {
    Arena arena;
    std::optional<Choice> choice;
    {
      ArenaScope scope(arena);
      choice = choose(loops_of(node(), device.target()), device.target());
    }
    if (!choice) return {};
    return lower(node(), "k", device.target(), nullptr, &*choice);
  }
  std::optional<Lowered> try_plan(const TilePlan& plan) const {
    return try_options([&](Node loops, const Target& target) {
      return choose_stage_options(loops, target, std::span(&plan, 1));
    });
  }
  Lowered lowered(const Chooser& choose) const {
    const std::optional<Lowered> low = try_options(choose);
    REQUIRE(low);
    return *low;
  }
  Lowered lowered(const TilePlan& plan) const {
    const std::optional<Lowered> low = try_plan(plan);
    REQUIRE(low);
    return *low;
  }

  void launch(const Step& step, const Source& source, const LaunchSize& size) const {
    std::vector<void*> args;
    for (int v : step.values) args.push_back(memory[static_cast<size_t>(v)]);
    const auto program = device.load(device.compile(source), source.entry);
    device.launch(*program, size, args);
    device.synchronize();
  }

  template <class T = float>
  std::vector<T> run(const Source& source, const LaunchSize& size) const {
    launch(made->steps.back(), source, size);
    const auto result = static_cast<size_t>(made->steps.back().values[0]);
    std::vector<T> out(bytes[result] / sizeof(T));
    device.download(out.data(), memory[result], bytes[result]);
    return out;
  }

  Device& device;
  std::shared_ptr<const Schedule> made;
  std::vector<void*> memory;
  std::vector<size_t> bytes;
  size_t inputs = 0;
};

inline void prove_all(const StagedKernel& k, const Lowered& low) {
  ProofSettings settings;
  settings.steps = 50 * kSolverSteps;
  read_kernel(k.node(), k.device.target(), settings);
  const Proof proof = prove(low.machine, settings);
  CHECK_MESSAGE(proof.verdict == Verdict::Proved, proof.text);
}

}  // namespace tiny
