// Merges the schedules that ran while a step was captured into one.
#include <algorithm>

#include "runtime/fusion/fuse.h"
#include "runtime/jit/replay.h"
#include "runtime/launch/launch.h"
#include "runtime/realize/realize.h"
#include "tiny/base/error.h"

namespace tiny {

namespace {

void check_kept(const std::shared_ptr<Memory>& memory) {
  check(memory && memory->owner,
        "Jit: a tensor from outside that the step assigns to, or reads, is gone after it: keep it "
        "outside of the step");
}

}  // namespace

class Replay::Merge {
 public:
  Merge(const Capture& capture, std::span<const Tensor> results, Replay& to)
      : capture_(capture), to_(to), out_(to.schedule_) {
    find_external();
    for (const CapturedRun& r : capture.runs) add(r);
    bring_back();
    for (const Tensor& t : results) add_result(t);
    drop_unused_steps();
    out_.memory = plan_memory(out_);
    check_memory(out_, out_.memory);
    to_.fixed_.assign(out_.values.size(), nullptr);
    for (const auto& b : capture.inputs) to_.stand_ins_.push_back(b.get());
    bind_inputs();
    bind_seeds();
    bind_outside();
    bind_outputs();
  }

 private:
  // Buffers that the runs read and did not make.
  void find_external() {
    std::map<const Buffer*, bool> made;
    for (const CapturedRun& r : capture_.runs) {
      for (const auto& b : r.inputs)
        if (!made.count(b.get())) add_external(b);
      for (size_t i = 0; i < r.results.size(); ++i)
        if (r.schedule->results[i].value >= 0) made[r.results[i].get()] = true;
    }
    out_.inputs = static_cast<int>(out_.values.size());
  }

  void add_external(const std::shared_ptr<Buffer>& b) {
    if (!value_.try_emplace(b.get(), static_cast<int>(out_.values.size())).second) return;
    out_.values.push_back({b->dtype(), b->size(), device_id(b->device_name())});
    external_.push_back(b);
  }

  void add(const CapturedRun& r) {
    const Schedule& s = *r.schedule;
    std::vector<int> value;
    for (const auto& b : r.inputs) value.push_back(value_.at(b.get()));
    for (size_t v = static_cast<size_t>(s.inputs); v < s.values.size(); ++v) {
      value.push_back(static_cast<int>(out_.values.size()));
      out_.values.push_back(s.values[v]);
      int& place = out_.values.back().in_place;
      if (place >= 0) place = value[place];
      if (s.values[v].replaces < 0) continue;
      const int old = to_.root_of(value[s.values[v].replaces]), now = to_.root_of(value[v]);
      const auto outside = outside_of_.find(old);
      if (old != now) outside_of_[now] = outside != outside_of_.end() ? outside->second : old;
    }
    for (const Step& step : s.steps) {
      out_.steps.push_back(step);
      for (int& v : out_.steps.back().values) v = value[v];
    }
    for (size_t i = 0; i < r.results.size(); ++i) {
      const int v = s.results[i].value;
      if (v < 0) continue;
      value_[r.results[i].get()] = value[v];
      const int root = to_.root_of(value[v]);
      const auto outside = outside_of_.find(root);
      const int owner = outside != outside_of_.end() ? outside->second : root;
      if (owner < out_.inputs && !r.results[i]->moved() && !is_argument(owner)) {
        last_owner_[owner] = r.results[i];
        last_value_[owner] = value[v];
      }
    }
  }

  bool is_argument(int v) const {
    return std::any_of(capture_.inputs.begin(), capture_.inputs.end(),
                       [&](const auto& b) { return b == external_[v]; });
  }

  // An assignment that could not work in place left a tensor in other memory. Replays compute it
  // somewhere, and copy it to where it was when everybody has read the old value.
  void bring_back() {
    for (const auto& [outside, v] : last_value_) {
      if (to_.root_of(v) == outside) continue;
      const int now = static_cast<int>(out_.values.size());
      int last = now - 1;  // in that memory, where an assignment before did work in place
      while (to_.root_of(last) != outside) --last;
      out_.values.push_back(out_.values[v]);
      out_.values.back().in_place = last;
      out_.steps.push_back({NodeRef(), {now, v}, "copy", out_.values[v].device, "assign"});
    }
  }

  void add_result(const Tensor& t) {
    Node n = t.node();
    auto& lengths = to_.lengths_.emplace_back();
    for (int i = 0; n->lengths && i < n->rank; ++i) lengths.emplace_back(n->length(i));
    while (n->op == Op::Limit) n = n->src(0);
    const Normalized graph = normalize(std::span(&n, 1));
    Result r;
    r.set_root(graph.roots[0]);
    result_buffers_.emplace_back();
    if (!graph.buffers.empty()) {
      expect(graph.buffers.size() == 1, "Jit: a result is not one buffer");
      result_buffers_.back() = graph.buffers[0]->arg<BufferArg>().buffer;
      r.value = value_.at(result_buffers_.back().get());
    }
    out_.results.push_back(std::move(r));
  }

  // Steps that only saved old values for somebody outside.
  void drop_unused_steps() {
    std::vector<bool> needed(out_.values.size());
    for (int v = 0; v < out_.inputs; ++v) needed[v] = true;
    for (const Result& r : out_.results)
      if (r.value >= 0) needed[to_.root_of(r.value)] = true;
    std::vector<Step> kept;
    for (size_t i = out_.steps.size(); i-- > 0;) {
      Step& step = out_.steps[i];
      const std::vector<bool> written = written_slots(step);
      bool used = false;
      for (size_t k = 0; k < written.size(); ++k)
        used |= written[k] && needed[to_.root_of(step.values[k])];
      if (!used) continue;
      for (int v : step.values) needed[to_.root_of(v)] = true;
      kept.push_back(std::move(step));
    }
    std::reverse(kept.begin(), kept.end());
    out_.steps = std::move(kept);
  }

  void bind_inputs() {
    for (const auto& b : capture_.inputs) {
      Place p;
      const auto at = value_.find(b.get());
      if (at != value_.end() && at->second < out_.inputs) p.value = at->second;
      to_.inputs_.push_back(std::move(p));
    }
  }

  void bind_seeds() {
    for (const CapturedSeed& seed : capture_.seeds) {
      Seeds& all = to_.seeds_[seed.words->device_name()];
      all.blocks.push_back(seed.blocks);
      const auto at = value_.find(seed.words.get());
      if (at != value_.end()) seed_of_[at->second] = all.blocks.size() - 1;
    }
    for (auto& [device, all] : to_.seeds_) {
      all.host.resize(all.blocks.size() * kBlockAlignment);
      all.buffer = std::make_shared<Buffer>(device, kU8, static_cast<int64_t>(all.host.size()));
      all.buffer->label = "random states";
      all.buffer->owner = "Jit";
    }
    for (const auto& [value, i] : seed_of_) {
      Buffer& b = *to_.seeds_.at(device_name(out_.values[value].device)).buffer;
      to_.fixed_[value] = static_cast<std::byte*>(b.data()) + i * kBlockAlignment;
    }
  }

  void bind_outside() {
    for (int v = 0; v < out_.inputs; ++v) {
      const bool is_input = std::any_of(to_.inputs_.begin(), to_.inputs_.end(),
                                        [&](const Place& p) { return p.value == v; });
      if (is_input || seed_of_.count(v) || out_.values[v].size == 0) continue;
      const auto owner = last_owner_.find(v);
      const bool written = owner != last_owner_.end();
      State s{(written ? owner->second : external_[v])->memory().lock(), out_.values[v].dtype,
              written};
      check_kept(s.memory);
      to_.fixed_[v] = s.memory->data;
      to_.states_.push_back(std::move(s));
    }
  }

  void bind_outputs() {
    for (size_t i = 0; i < out_.results.size(); ++i) {
      const int v = out_.results[i].value;
      if (v < 0) continue;
      const int root = to_.root_of(v);
      expect(root >= out_.inputs, "Jit: a result lies in memory from outside");
      if (!to_.output_of_.try_emplace(root, to_.outputs_.size()).second) continue;
      Place p;
      p.value = v;
      p.buffer = result_buffers_[i];
      p.address = p.buffer->data();
      to_.outputs_.push_back(std::move(p));
    }
  }

  const Capture& capture_;
  Replay& to_;
  Schedule& out_;
  std::map<const Buffer*, int> value_;
  std::vector<std::shared_ptr<Buffer>> external_, result_buffers_;
  // Of inputs from outside: which buffer a tensor is in afterwards, and with which value.
  std::map<int, std::shared_ptr<Buffer>> last_owner_;
  std::map<int, int> last_value_;
  std::map<int, int> outside_of_;  // of memory that a tensor from outside moved to: its input
  std::map<int, size_t> seed_of_;
};

void Replay::merge(const Capture& capture, std::span<const Tensor> results) {
  Merge(capture, results, *this);
  PreparedSteps::Outside unwritten;
  for (int v = 0; v < schedule_.inputs; ++v)
    for (const State& s : states_)
      if (!s.written && fixed_[static_cast<size_t>(v)] == s.memory->data) unwritten[v] = s.memory;
  prepared_.take_from(schedule_, unwritten, fixed_);
}

}  // namespace tiny
