#include "runtime/launch/capture.h"

#include <algorithm>
#include <map>
#include <utility>

#include "runtime/device/buffer.h"
#include "tiny/base/error.h"
#include "tiny/tensor/random.h"

namespace tiny {

namespace {

thread_local Capture* current_capture = nullptr;

}  // namespace

Capture::Capture(std::vector<std::shared_ptr<Buffer>> arguments) : inputs(std::move(arguments)) {
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

namespace {

// Where the values are that have been computed, else what they are computed from.
std::vector<Node> sources(Node n) {
  if (Node made = n->realized) return {made};
  return {n->srcs().begin(), n->srcs().end()};
}

// Whether two results have replaced one input by different values.
bool replaces_twice(const CapturedRun& r) {
  std::map<int, int> by;
  for (size_t i = 0; i < r.wanted; ++i) {
    const int value = r.schedule->results[i].value;
    int input = value;  // or what was assigned to it before
    while (input >= r.schedule->inputs) input = r.schedule->values[input].replaces;
    if (input < 0) continue;
    if (by.emplace(input, value).first->second != value) return true;
  }
  return false;
}

}  // namespace

void Capture::add_run(std::span<const Node> roots, CapturedRun run) {
  const auto visit = [&](Node n) {
    if (!is_new(n) && n->handles.load() > 0 && !contains(outside, n)) {
      Arena::global().watch(n);
      outside.push_back(n);
    }
    return true;
  };
  visit_below({roots.begin(), roots.end()}, visit, sources);
  runs.push_back(std::move(run));
}

bool Capture::separates_copies() const {
  if (std::any_of(runs.begin(), runs.end(), replaces_twice)) return true;
  std::set<const Buffer*> replaced;
  for (const CapturedRun& r : runs)
    for (const Value& v : r.schedule->values)
      if (v.replaces >= 0 && v.replaces < r.schedule->inputs)
        replaced.insert(r.inputs[v.replaces].get());
  if (replaced.empty()) return false;
  std::vector<Node> held = outside;
  std::erase_if(held, [](Node n) { return n->handles.load() <= 0; });
  bool found = false;
  const auto visit = [&](Node n) {
    found |= n->op == Op::Buffer && replaced.count(n->arg<BufferArg>().buffer.get());
    return !found;
  };
  visit_below(held, visit, sources);
  return found;
}

std::set<const Buffer*> Capture::fresh() const {
  std::set<const Buffer*> out;
  for (const CapturedRun& r : runs)
    for (size_t i = 0; i < r.results.size(); ++i) {
      const std::vector<Value>& values = r.schedule->values;
      const auto is_fresh = [&](int v) {
        return v >= r.schedule->inputs || out.count(r.inputs[v].get());
      };
      int root = r.schedule->results[i].value;
      if (root < 0) continue;
      bool moved = false;
      for (;; root = values[root].in_place) {
        moved |= values[root].replaces >= 0 && !is_fresh(values[root].replaces);
        if (values[root].in_place < 0) break;
      }
      if (!moved && is_fresh(root)) out.insert(r.results[i].get());
    }
  return out;
}

void forbid_in_capture(const char* why, const char* remedy) {
  check(!current_capture, "Jit: ", why, ": ", remedy);
}

// --- Random numbers ------------------------------------------------------------------------------

Node runtime_seam::upload_random(int64_t blocks) {
  const std::vector<uint32_t> words = next_random_state(blocks);
  auto b = std::make_shared<Buffer>(default_device(), kU32, static_cast<int64_t>(words.size()));
  b->label = "random state";
  b->upload(words.data());
  if (Capture* c = Capture::current()) c->add_seed({b, blocks});
  return buffer_node(b);
}

void runtime_seam::forbid_seed_in_capture() {
  forbid_in_capture("manual_seed() in the step would not happen in a replay",
                    "call it outside of the step");
}

}  // namespace tiny
