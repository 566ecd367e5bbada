#include "runtime/capture.h"

#include <algorithm>
#include <utility>

#include "tiny/error.h"

namespace tiny {

namespace {

thread_local Capture* current_capture = nullptr;

}  // namespace

Capture::Capture(std::vector<std::shared_ptr<Buffer>> arguments)
    : inputs(std::move(arguments)),
      // A node of its own, which nobody else can have.
      first_id_(make(Op::Sink, kVoid, {}, reinterpret_cast<int64_t>(this))->id) {
  expect(!current_capture, "capture: one inside another");
  current_capture = this;
}

Capture::~Capture() {
  for (Node n : outside) Arena::global().unwatch(n);
  current_capture = nullptr;
}

Capture* Capture::current() { return current_capture; }

CapturePause::CapturePause() : paused_(std::exchange(current_capture, nullptr)) {}
CapturePause::~CapturePause() { current_capture = paused_; }

void Capture::check_run(const Schedule& s, std::span<const std::shared_ptr<Buffer>> given) const {
  for (const Value& v : s.values) {
    if (v.in_place < 0 || v.in_place >= s.inputs) continue;
    const auto at = std::find(inputs.begin(), inputs.end(), given[v.in_place]);
    check(at == inputs.end(), "Jit: argument ", at - inputs.begin(),
          " is assigned to in the step, and a replay would overwrite the caller's tensor: assign "
          "to a copy, x.contiguous()");
  }
}

void Capture::add_run(std::span<const Node> roots, CapturedRun run) {
  std::vector<Node> stack(roots.begin(), roots.end());
  NodeMap<char> seen;
  while (!stack.empty()) {
    Node n = stack.back();
    stack.pop_back();
    if (seen.contains(n)) continue;
    seen[n] = 1;
    if (!is_new(n) && n->handles.load() > 0 &&
        std::find(outside.begin(), outside.end(), n) == outside.end()) {
      Arena::global().watch(n);
      outside.push_back(n);
    }
    if (n->realized) {
      stack.push_back(n->realized);
      continue;
    }
    for (Node s : n->srcs()) stack.push_back(s);
  }
  runs.push_back(std::move(run));
}

void forbid_in_capture(const char* why, const char* remedy) {
  check(!current_capture, "Jit: ", why, ": ", remedy);
}

}  // namespace tiny
