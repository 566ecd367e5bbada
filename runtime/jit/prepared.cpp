#include "runtime/jit/prepared.h"

#include <algorithm>

#include "runtime/kernels/kernel.h"
#include "runtime/launch/launch.h"

namespace tiny {

namespace {

int64_t bytes_of(const Value& v) { return bytes_of(v.dtype, v.size); }

bool is_result(const Schedule& s, int value) {
  return std::any_of(s.results.begin(), s.results.end(),
                     [&](const Result& r) { return r.value == value; });
}

}  // namespace

// Its values belong to no other step: they take no other's memory, and nobody takes theirs.
bool PreparedSteps::is_prepared(const Step& step, const Schedule& s) const {
  if (!step.kernel || step.reads_peers || !device_name(step.device).starts_with("CPU"))
    return false;
  const std::vector<bool> written = written_slots(step), read = read_slots(step);
  int64_t in = 0, out = 0;
  for (size_t k = 0; k < written.size(); ++k) {
    const int v = step.values[k];
    const Value& value = s.values[static_cast<size_t>(v)];
    if (read[k] && !addresses_.contains(v)) return false;
    (written[k] ? out : in) += bytes_of(value);
    if (!written[k]) continue;
    const bool is_taken = std::any_of(s.values.begin(), s.values.end(),
                                      [&](const Value& other) { return other.in_place == v; });
    const auto writes_it = [&](const Step& other) {
      const std::vector<bool> slots = written_slots(other);
      for (size_t i = 0; i < slots.size(); ++i)
        if (slots[i] && other.values[i] == v) return true;
      return false;
    };
    if (value.in_place >= 0 || is_taken || v < s.inputs || is_result(s, v) ||
        std::count_if(s.steps.begin(), s.steps.end(), writes_it) != 1)
      return false;
  }
  return in > 0 && out <= in + in / 4;
}

void PreparedSteps::give_memory(const Step& step, Schedule& s, std::vector<void*>& fixed) {
  const std::vector<bool> written = written_slots(step);
  for (size_t k = 0; k < written.size(); ++k) {
    if (!written[k]) continue;
    const auto v = static_cast<size_t>(step.values[k]);
    const Value& value = s.values[v];
    buffers_.push_back(
        std::make_shared<Buffer>(device_name(value.device), value.dtype, value.size));
    buffers_.back()->label = step.name;
    buffers_.back()->owner = "Jit";
    fixed[v] = addresses_[step.values[k]] = buffers_.back()->data();
    s.memory.offset[v] = -1;
  }
}

void PreparedSteps::take_from(Schedule& s, const Outside& outside, std::vector<void*>& fixed) {
  outside_ = outside;
  for (const auto& [value, memory] : outside) addresses_[value] = memory->data;
  std::vector<Step> taken, left;
  for (const Step& step : s.steps) {
    if (!is_prepared(step, s)) {
      left.push_back(step);
      continue;
    }
    give_memory(step, s, fixed);
    taken.push_back(step);
  }
  if (taken.empty()) return;
  schedule_.values = s.values;
  schedule_.inputs = s.inputs;
  schedule_.memory.offset.assign(s.values.size(), -1);
  schedule_.steps = std::move(taken);
  s.steps = std::move(left);
  for (const Step& step : schedule_.steps)
    for (const int v : step.values)
      if (const auto at = outside_.find(v); at != outside_.end()) seen_.emplace(at->second, 0);
  for (auto& [memory, changes] : seen_) changes = memory->changes - 1;  // not as they are now
}

void PreparedSteps::refresh() {
  bool is_changed = false;
  for (auto& [memory, changes] : seen_) {
    is_changed = is_changed || memory->changes != changes;
    changes = memory->changes;
  }
  if (!is_changed) return;
  const std::vector<Kernel*> kernels = compile_kernels(schedule_);
  Steps steps(schedule_, watch_now());
  for (size_t i = 0; i < kernels.size(); ++i) {
    const Step& step = schedule_.steps[i];
    std::vector<void*> arguments;
    for (size_t k = 0; k < step.values.size(); ++k)
      arguments.push_back(step.argument(k, addresses_.at(step.values[k])));
    steps.run(step, kernels[i], arguments);
  }
  steps.finish();
}

}  // namespace tiny
