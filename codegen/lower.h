// Lowers a kernel in tensor form to source text: the list of passes.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "codegen/estimate.h"
#include "codegen/kernel/choice.h"
#include "codegen/product_unit.h"
#include "codegen/target/source.h"
#include "codegen/target/target.h"

namespace tiny {

struct Lowered {
  Source source;
  LaunchSize launch;
  Choice choice;             // the heuristic's, or the one that was asked for
  std::vector<Opt> options;  // its options, and those that split long sums
  KernelWork work;
  ProductUnit unit;
  std::shared_ptr<const Arena> arena;  // of the graphs
  Node loops = nullptr;                // with options applied
  Node machine = nullptr;              // the graph that was rendered: what is proved
};

// Shows the graph after each pass: for DEBUG=5, golden tests and documentation.
using StageViewer = std::function<void(const char* pass, const std::string& text)>;

// `kernel` is Sink(Store(Param, value)...) of tensor nodes, or a graph of loops as loops_of gives
// it; `name` a C identifier. `choice`: these options instead of the heuristic's; throws Error or
// Bug where they are not legal or the kernel could not be launched. Pure: may run on any thread,
// takes no lock, works in an arena of its own.
Lowered lower(Node kernel, const std::string& name, const Target& target,
              const StageViewer& viewer = nullptr, const Choice* choice = nullptr);

// The loops that options are applied to, in the current arena.
Node loops_of(Node kernel, const Target& target);

}  // namespace tiny
