// Launches of a replay; replay_merge.cpp makes its schedule.
#include "runtime/jit/replay.h"

#include <algorithm>
#include <climits>
#include <cstring>
#include <mutex>
#include <set>

#include "runtime/analysis/after.h"
#include "runtime/device/kept_memory.h"
#include "runtime/fusion/fuse.h"
#include "runtime/launch/check_nan.h"
#include "runtime/launch/profile.h"
#include "runtime/realize/realize.h"
#include "tiny/base/env.h"
#include "tiny/base/error.h"
#include "tiny/ir/build.h"
#include "tiny/tensor/random.h"

namespace tiny {

struct Replay::Segment {
  Device* device = nullptr;
  std::vector<LaunchItem> items;
  std::vector<Kernel*> kernels;  // of the items; null for sums
  std::vector<int> steps;        // of the items; the one that copies
  std::vector<Device*> meeting;
  std::unique_ptr<Recording> recording;
  std::vector<int> changed;  // items
};

// --- Launches ------------------------------------------------------------------------------------

namespace {

struct AllReplays {
  std::mutex mutex;
  std::set<Replay*> replays;
};
AllReplays& all_replays() {
  static AllReplays* all = new AllReplays;
  return *all;
}

}  // namespace

Replay::Replay(const Capture& capture, std::span<const Tensor> results) {
  merge(capture, results);
  make_arenas();
  make_segments();
  std::lock_guard lock(all_replays().mutex);
  all_replays().replays.insert(this);
  idle_ = true;
}

Replay::~Replay() {
  std::lock_guard lock(all_replays().mutex);
  all_replays().replays.erase(this);
}

void Replay::make_arenas() {
  for (const auto& [device, bytes] : schedule_.memory.arenas)
    arenas_[device] = Buffer::arena(device_name(device), bytes, "Jit");
}

void Replay::free_idle_arenas() {
  std::lock_guard lock(all_replays().mutex);
  for (Replay* r : all_replays().replays)
    if (r->idle_) r->arenas_.clear();
}

size_t Replay::count() {
  std::lock_guard lock(all_replays().mutex);
  return all_replays().replays.size();
}

// New memory for intermediate values: every launch that knows an address of the old one changes.
void Replay::refill() {
  make_arenas();
  for (Segment& s : segments_) {
    for (size_t i = 0; i < s.items.size(); ++i) {
      if (!s.kernels[i]) continue;
      const Step& step = schedule_.steps[s.steps[i]];
      for (size_t k = 0; k < step.values.size(); ++k)
        if (schedule_.memory.offset[step.values[k]] >= 0)
          s.items[i].args[k] = step.argument(k, address_of(step.values[k]));
    }
    s.recording = nullptr;
  }
  for (Sum& s : sums_) s.changed = true;
}

int Replay::root_of(int v) const {
  while (schedule_.values[v].in_place >= 0) v = schedule_.values[v].in_place;
  return v;
}

void* Replay::address_of(int v) const {
  const int64_t offset = schedule_.memory.offset[v];
  if (offset >= 0)
    return static_cast<std::byte*>(arenas_.at(schedule_.values[v].device)->data()) + offset;
  const int root = root_of(v);
  const auto output = output_of_.find(root);
  if (output != output_of_.end()) return outputs_[output->second].address;
  for (const Place& p : inputs_)
    if (p.value == root) return p.address;
  return fixed_[root];
}

std::vector<void*> Replay::addresses_of(const Step& step) const {
  std::vector<void*> out;
  for (size_t k = 0; k < step.values.size(); ++k)
    out.push_back(step.argument(k, address_of(step.values[k])));
  return out;
}

// Work of one device has no order beside that of others, but for copies, barriers and all-reduces.
int Replay::open_segment(int device) {
  const auto [at, fresh] = open_.try_emplace(device, static_cast<int>(segments_.size()));
  if (fresh) {
    segments_.emplace_back();
    segments_.back().device = &find_device(device_name(device));
  }
  return at->second;
}

void Replay::note_uses(int step, Use use, bool by_argument) {
  const std::vector<int>& values = schedule_.steps[step].values;
  for (size_t k = 0; k < values.size(); ++k) {
    const int root = root_of(values[k]);
    if (by_argument) use.argument = static_cast<int>(k);
    for (Place& p : inputs_)
      if (p.value == root) p.uses.push_back(use);
    const auto output = output_of_.find(root);
    if (output != output_of_.end()) outputs_[output->second].uses.push_back(use);
  }
}

// Sums of these steps as launches among those of their devices; false where they are made
// otherwise.
bool Replay::record_sum(const Sums& sums, const std::vector<int>& steps) {
  const std::vector<Device*>& devices = sums.all()[0].devices;
  const auto launches = devices[0]->all_reduce_launches(sums.all());
  if (launches.empty()) return false;
  Sum sum{steps, std::vector<std::vector<std::pair<int, int>>>(devices.size())};
  for (size_t d = 0; d < devices.size(); ++d) {
    const int at = open_segment(device_id(sums.device_names()[d]));
    Segment& s = segments_[at];
    for (const LaunchItem& item : launches[d]) {
      sum.items[d].emplace_back(at, static_cast<int>(s.items.size()));
      s.items.push_back(item);
      s.kernels.push_back(nullptr);
      s.steps.push_back(static_cast<int>(sums_.size()));
    }
  }
  for (int step : steps) note_uses(step, {0, static_cast<int>(sums_.size()), -1}, false);
  sums_.push_back(std::move(sum));
  return true;
}

// Its launches with the addresses of now.
void Replay::refresh(Sum& sum) {
  Sums sums(schedule_);
  for (int i : sum.steps) sums.add(schedule_.steps[i], addresses_of(schedule_.steps[i]));
  const auto launches = sums.all()[0].devices[0]->all_reduce_launches(sums.all());
  for (size_t d = 0; d < launches.size(); ++d)
    for (size_t i = 0; i < launches[d].size(); ++i) {
      const auto [at, item] = sum.items[d][i];
      Segment& s = segments_[at];
      s.items[item].args = launches[d][i].args;
      if (s.recording) s.changed.push_back(item);
    }
  sum.changed = false;
}

void Replay::make_segments() {
  agree_on_plan(schedule_);
  found_.age = kernels_age();
  const std::vector<Kernel*> kernels = compile_kernels(schedule_);
  Meetings meetings(schedule_);
  Sums sums(schedule_);
  std::vector<int> summed;
  const auto barrier = [&](std::vector<Device*> devices) {
    if (devices.empty()) return;
    segments_.emplace_back();
    segments_.back().meeting = std::move(devices);
    open_.clear();
  };
  const auto add_copy = [&](int i) {
    segments_.emplace_back();
    segments_.back().steps.push_back(i);
    for (int v : schedule_.steps[i].values) open_.erase(schedule_.values[v].device);
  };
  const auto add_sums = [&] {
    if (!summed.empty() && !record_sum(sums, summed))
      for (int i : summed) add_copy(i);
    summed.clear();
    sums.clear();
  };
  for (int i = 0; i < static_cast<int>(schedule_.steps.size()); ++i) {
    const Step& step = schedule_.steps[i];
    const std::vector<void*> args = addresses_of(step);
    if (!Sums::takes(step)) add_sums();
    barrier(meetings.before(step, args));
    if (Sums::takes(step)) {
      if (!sums.add(step, args)) {
        add_sums();
        sums.add(step, args);
      }
      summed.push_back(i);
      continue;
    }
    if (!step.kernel) {
      add_copy(i);
      continue;
    }
    const int at = open_segment(step.device);
    Segment& s = segments_[at];
    note_uses(i, {at, static_cast<int>(s.items.size()), 0}, true);
    s.items.push_back({kernels[i]->program.get(), kernels[i]->launch, args});
    s.kernels.push_back(kernels[i]);
    s.steps.push_back(i);
    found_.kernels.push_back(kernels[i]->shared_from_this());
  }
  add_sums();
  barrier(meetings.at_end());
  order_segments();
}

// The memory of a step's values. Arenas and results are apart from all else; the addresses of
// arguments change, so that an argument may be anything that lies outside.
std::vector<Touched> Replay::uses_of(const Step& step) const {
  constexpr int kOutside = -1;
  const std::vector<bool> written = written_slots(step);
  std::vector<Touched> out;
  for (size_t k = 0; k < step.values.size(); ++k) {
    const int v = step.values[k], root = root_of(v);
    const Value& value = schedule_.values[v];
    const int64_t bytes = bytes_of(value.dtype, value.size);
    const int64_t offset = schedule_.memory.offset[v];
    const auto result = output_of_.find(root);
    if (offset >= 0)
      out.push_back({kOutside - 1 - value.device, offset, offset + bytes, written[k]});
    else if (result != output_of_.end())
      out.push_back({static_cast<int>(result->second), 0, bytes, written[k]});
    else if (const auto begin = reinterpret_cast<intptr_t>(fixed_[root]))
      out.push_back({kOutside, begin, begin + bytes, written[k]});
    else
      out.push_back({kOutside, 0, INT64_MAX, written[k]});
  }
  return out;
}

// Dependences between the launches. Those of a sum over devices begin when all have come to theirs,
// and end when all have: each device need only order its own. No two are made at once, and on all
// devices in one order, since they meet by the same flags.
void Replay::order_segments() {
  constexpr int kFlags = INT_MAX;
  for (Segment& s : segments_) {
    std::vector<LaunchUses> launches(s.items.size());
    for (size_t i = 0; i < s.items.size(); ++i) {
      if (s.kernels[i]) {
        launches[i].fills = fills(s.kernels[i]->launch, s.device->target());
        launches[i].uses = uses_of(schedule_.steps[s.steps[i]]);
        continue;
      }
      for (int step : sums_[s.steps[i]].steps) {
        const std::vector<Touched> uses = uses_of(schedule_.steps[step]);
        launches[i].uses.insert(launches[i].uses.end(), uses.begin(), uses.end());
      }
      launches[i].uses.push_back({kFlags, 0, 1, true});
    }
    const std::vector<std::vector<int>> after = order_launches(launches);
    for (size_t i = 0; i < s.items.size(); ++i) s.items[i].after = after[i];
  }
}

void Replay::set_address(Place& place, void* address) {
  if (place.address == address) return;
  place.address = address;
  for (const Use& u : place.uses) {
    if (u.argument < 0) {
      sums_[u.item].changed = true;
      continue;
    }
    Segment& s = segments_[u.segment];
    const Step& step = schedule_.steps[s.steps[u.item]];
    s.items[u.item].args[u.argument] = step.argument(u.argument, address);
    if (s.recording && (s.changed.empty() || s.changed.back() != u.item))
      s.changed.push_back(u.item);
  }
}

void Replay::advance_seeds() {
  for (auto& [device, all] : seeds_) {
    for (size_t i = 0; i < all.blocks.size(); ++i) {
      const std::vector<uint32_t> words = next_random_state(all.blocks[i]);
      std::memcpy(&all.host[i * kBlockAlignment], words.data(), words.size() * sizeof(uint32_t));
    }
    all.buffer->upload(all.host.data());
  }
}

// A search beside the program (BEAM_ASYNC) may have found better kernels.
void Replay::refresh_kernels() {
  const uint64_t age = kernels_age();
  if (age == found_.age) return;
  found_.age = age;
  const std::vector<Kernel*> now = compile_kernels(schedule_);
  found_.kernels.clear();
  for (Segment& s : segments_)
    for (size_t i = 0; i < s.items.size(); ++i) {
      if (!s.kernels[i]) continue;
      Kernel* k = now[static_cast<size_t>(s.steps[i])];
      found_.kernels.push_back(k->shared_from_this());
      if (k == s.kernels[i]) continue;
      s.items[i].program = k->program.get();
      s.items[i].size = k->launch;
      s.kernels[i] = k;
      s.recording = nullptr;
    }
}

// Step by step: launches that are watched, or waited for, cannot run ahead of those that other
// devices have to be given before.
void Replay::launch_in_order(Watch watch) {
  std::vector<Kernel*> kernels(schedule_.steps.size());
  for (Segment& s : segments_)
    for (size_t i = 0; i < s.items.size(); ++i)
      if (s.kernels[i]) kernels[s.steps[i]] = s.kernels[i];
  Steps steps(schedule_, watch);
  for (size_t i = 0; i < kernels.size(); ++i)
    steps.run(schedule_.steps[i], kernels[i], addresses_of(schedule_.steps[i]));
  steps.finish();
  time_clocked_kernels();
}

void Replay::launch() {
  prepared_.refresh();
  for (const State& s : states_) s.memory->changes += s.written ? 1 : 0;
  if (env_int("BEAM_ASYNC") != 0) refresh_kernels();
  const Watch watch = watch_now();
  if (watch.any() || env_int("CHECK") != 0) return launch_in_order(watch);
  for (Sum& s : sums_)
    if (s.changed) refresh(s);
  // All recordings are made before the first one runs: it may wait for what others do.
  const bool plain = env_int("JIT") == 2;
  for (Segment& s : segments_) {
    if (s.items.empty()) continue;
    if (!s.recording) {
      s.recording = with_kept_memory_freed(
          [&] { return plain ? s.device->Device::record(s.items) : s.device->record(s.items); });
      s.changed.clear();
    }
    for (int i : s.changed) s.recording->set_args(static_cast<size_t>(i), s.items[i].args);
    s.changed.clear();
  }
  Copies copies(schedule_, watch);
  for (Segment& s : segments_) {
    if (s.items.empty() && s.meeting.empty()) {
      const Step& step = schedule_.steps[s.steps[0]];
      copies.add(step, addresses_of(step));
      continue;
    }
    copies.flush();
    if (s.device)
      s.recording->launch();
    else
      s.meeting[0]->barrier(s.meeting);
  }
  copies.flush();
}

namespace {

// Keeps the arenas of a replay while it runs.
class Busy {
 public:
  explicit Busy(bool& idle) : idle_(idle) { set(false); }
  ~Busy() { set(true); }
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;

 private:
  void set(bool idle) {
    std::lock_guard lock(all_replays().mutex);
    idle_ = idle;
  }
  bool& idle_;
};

// A length made of stand-ins as one made of the arguments.
Node with_arguments(Node n, const std::vector<const Buffer*>& stand_ins,
                    std::span<const std::shared_ptr<Buffer>> inputs) {
  if (n->op == Op::Buffer) {
    const auto at = std::find(stand_ins.begin(), stand_ins.end(), n->arg<BufferArg>().buffer.get());
    return at == stand_ins.end() ? n : buffer_node(inputs[at - stand_ins.begin()]);
  }
  std::vector<Node> srcs;
  for (Node s : n->srcs()) srcs.push_back(with_arguments(s, stand_ins, inputs));
  return with_sources(n, srcs);
}

}  // namespace

bool Replay::keeps(Node n) const {
  return std::any_of(lengths_.begin(), lengths_.end(), [&](const std::vector<NodeRef>& of) {
    return std::any_of(of.begin(), of.end(), [&](const NodeRef& l) { return l.get() == n; });
  });
}

Tensor Replay::result(size_t i, std::span<const std::shared_ptr<Buffer>> inputs) const {
  const Result& r = schedule_.results[i];
  Node n = r.root();
  if (r.value >= 0) {
    const Place& p = outputs_[output_of_.at(root_of(r.value))];
    n = moved(n, r.base(), buffer_node(p.buffer));
  }
  for (size_t axis = 0; axis < lengths_[i].size(); ++axis)
    if (Node length = lengths_[i][axis].get())
      n = build::limit(n, static_cast<int>(axis), with_arguments(length, stand_ins_, inputs));
  return Tensor(n);
}

std::vector<Tensor> Replay::run(std::span<const std::shared_ptr<Buffer>> inputs) {
  const HostSpan span("replay");
  const Busy busy(idle_);
  if (arenas_.size() != schedule_.memory.arenas.size()) refill();
  advance_seeds();
  for (size_t i = 0; i < inputs.size(); ++i) set_address(inputs_[i], inputs[i]->data());
  for (Place& p : outputs_) {
    if (p.buffer.use_count() > 1) {
      const std::string label = p.buffer->label;
      p.buffer =
          std::make_shared<Buffer>(p.buffer->device_name(), p.buffer->dtype(), p.buffer->size());
      p.buffer->label = label;
    }
    set_address(p, p.buffer->data());
  }
  launch();
  throw_found_nan();
  std::vector<Tensor> out;
  for (size_t i = 0; i < schedule_.results.size(); ++i) out.push_back(result(i, inputs));
  return out;
}

void Replay::repeat() {
  const Busy busy(idle_);
  if (arenas_.size() != schedule_.memory.arenas.size()) refill();
  launch();
}

// --- What lies outside ---------------------------------------------------------------------------

bool Replay::writes(const Buffer& b) const {
  const auto memory = b.memory().lock();
  return memory && std::any_of(states_.begin(), states_.end(),
                               [&](const State& s) { return s.written && s.memory == memory; });
}

std::vector<const Buffer*> Replay::owners() const {
  std::vector<const Buffer*> out;
  for (const State& s : states_) out.push_back(s.memory->owner);
  return out;
}

bool Replay::is_valid(const std::vector<const Buffer*>& before) const {
  for (size_t i = 0; i < states_.size(); ++i) {
    const Buffer* owner = states_[i].memory->owner;
    if (!owner || (states_[i].written && owner == before[i])) return false;
  }
  return true;
}

std::vector<Replay::Saved> Replay::state() const {
  std::vector<Saved> out;
  for (const State& s : states_) {
    if (!s.written) continue;
    Saved saved{s.dtype, std::vector<std::byte>(s.memory->bytes)};
    s.memory->device.synchronize();
    s.memory->device.download(saved.bytes.data(), s.memory->data, s.memory->bytes);
    out.push_back(std::move(saved));
  }
  return out;
}

void Replay::set_state(const std::vector<Saved>& saved) {
  size_t i = 0;
  for (const State& s : states_) {
    if (!s.written) continue;
    ++s.memory->changes;
    s.memory->device.upload(s.memory->data, saved[i].bytes.data(), saved[i].bytes.size());
    ++i;
  }
}

int64_t Replay::arena_bytes() const {
  int64_t out = 0;
  for (const auto& [device, bytes] : schedule_.memory.arenas) out += bytes;
  return out;
}

}  // namespace tiny
