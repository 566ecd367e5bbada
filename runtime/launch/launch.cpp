#include "runtime/launch/launch.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <iostream>
#include <memory>
#include <utility>

#include "codegen/kernel/facts.h"
#include "runtime/distributed/messages.h"
#include "runtime/distributed/rank_watch.h"
#include "runtime/launch/check_nan.h"
#include "runtime/launch/profile.h"
#include "tiny/base/env.h"
#include "tiny/base/error.h"
#include "tiny/base/text.h"
#include "tiny/ir/print.h"
#include "tiny/run/ranks.h"

namespace tiny {

namespace {

KernelClock* running_clock = nullptr;

void show(const Kernel& k, double time) {
  std::cerr << formatted("%-64s %4lld x %-8lld %9.1f us %8.1f GFLOP/s %7.1f GB/s%s%s\n",
                         k.name.c_str(), static_cast<long long>(k.launch.block[0]),
                         static_cast<long long>(k.launch.grid[0]), time * 1e6,
                         k.flops / time * 1e-9, k.bytes / time * 1e-9, k.unit.empty() ? "" : "  ",
                         k.unit.c_str());
}

void launch_watched(const Step& step, Kernel& k, Device& device, const std::vector<void*>& args,
                    Watch watch) {
  const LaunchItem item{k.program.get(), k.launch, args};
  if (watch.clocked) running_clock->add(device, item);
  if (watch.shown) return show(k, device.launch_timed({&item, 1}));
  if (!watch.timed) return device.launch(*k.program, k.launch, args);
  const HostSpan span("launch");
  const int64_t begin = device.mark();
  device.launch(*k.program, k.launch, args);
  profile_kernel(k, step.operations, device, device_name(step.device), begin, device.mark());
}

}  // namespace

KernelClock::KernelClock() { running_clock = this; }
KernelClock::~KernelClock() { running_clock = nullptr; }

void KernelClock::add(Device& device, const LaunchItem& item) {
  check(items_.empty() || device_ == &device, "KernelClock: kernels on two devices");
  device_ = &device;
  items_.push_back(item);
}

void KernelClock::finish() {
  if (items_.empty()) return;
  seconds += device_->launch_timed(items_);
  kernels += static_cast<int>(items_.size());
  items_.clear();
}

void time_clocked_kernels() {
  if (running_clock) running_clock->finish();
}

Watch watch_now() {
  return {env_int("DEBUG") >= 2, running_clock != nullptr, profiling(), checks_nan()};
}

void launch(const Schedule& s, const Step& step, Kernel& k, Device& device,
            const std::vector<void*>& args, Watch watch) {
  if (!watch.any()) return device.launch(*k.program, k.launch, args);
  if (!watch.checked) return launch_watched(step, k, device, args, watch);
  NanCheck check(s, step, k, args);
  launch_watched(step, k, device, args, watch);
  check.look_at_results();
}

namespace {

void copy_bytes(Device& there, void* to, Device& here, const void* from, size_t bytes) {
  if (&there == &here) return there.copy(to, from, bytes);
  if (there.copy_from(here, to, from, bytes)) return;
  std::vector<std::byte> host(bytes);
  here.download(host.data(), from, bytes);
  there.upload(to, host.data(), bytes);
}

// A copy of which one side is a rank's device, in terms of this process.
void copy_between_ranks(const Transfer& t, const std::string& what) {
  Device &there = *t.to_device, &here = *t.from_device;
  if (there.is_remote && (here.is_remote || here.rank < 0)) return;  // others do it
  if (!there.is_remote && !here.is_remote) copy_bytes(there, t.to, here, t.from, t.bytes);
  const auto new_host = [&] { return std::make_unique_for_overwrite<std::byte[]>(t.bytes); };
  if (here.is_remote) {
    const auto host = there.has_host_memory() ? nullptr : new_host();
    try {
      receive_message(here.rank, host ? host.get() : t.to, t.bytes, what);
    } catch (const Error&) {  // of a rank that may have stopped because another one did
      throw_failed_sum(/*seconds=*/1);
      throw;
    }
    if (host) there.upload(t.to, host.get(), t.bytes);
    return;
  }
  if (here.rank < 0 || (!there.is_remote && there.rank >= 0)) return;
  // To the one that has the destination, or to all, each of which has one of its own.
  here.synchronize();
  throw_failed_sum();
  const auto host = here.has_host_memory() ? nullptr : new_host();
  if (host) here.download(host.get(), t.from, t.bytes);
  for (int i = 0; i < rank_count(); ++i)
    if (i != here.rank && (there.rank < 0 || i == there.rank))
      send_message(i, host ? host.get() : t.from, t.bytes, what);
}

// Of n bytes from x on and m bytes from y on; null is nowhere.
bool overlap(const void* x, size_t n, const void* y, size_t m) {
  const auto *p = static_cast<const std::byte*>(x), *q = static_cast<const std::byte*>(y);
  return p && q && p < q + m && q < p + n;
}

}  // namespace

bool Copies::conflicts(const Transfer& t) const {
  return std::any_of(pending_.begin(), pending_.end(), [&](const Transfer& o) {
    const auto touches = [&](const Device* a, const void* x, const Device* b, const void* y) {
      return a == b && overlap(x, t.bytes, y, o.bytes);
    };
    return touches(t.to_device, t.to, o.to_device, o.to) ||
           touches(t.to_device, t.to, o.from_device, o.from) ||
           touches(t.from_device, t.from, o.to_device, o.to);
  });
}

void Copies::add(const Step& step, const std::vector<void*>& args) {
  if (Sums::takes(step)) {
    if (!pending_.empty()) flush();
    if (sums_.add(step, args)) return;
    flush();
    sums_.add(step, args);
    return;
  }
  if (!sums_.all().empty()) flush();
  void *to = args[0], *from = args[1];
  const Value &there = s_.values[step.values[0]], &here = s_.values[step.values[1]];
  const size_t bytes = static_cast<size_t>(there.size) * static_cast<size_t>(there.dtype.size());
  const Transfer t{&find_device(device_name(there.device)), to,
                   &find_device(device_name(here.device)), from, bytes};
  if (t.to_device->rank >= 0 || t.from_device->rank >= 0) {
    flush();
    return copy_between_ranks(t, cat(step.operations, " ", there.dtype, "[", there.size, "]"));
  }
  if (conflicts(t)) flush();
  pending_.push_back(t);
  if (!watch_.timed) return;
  const int64_t begin = t.to_device->mark();
  flush();
  profile_copy(step.operations, static_cast<double>(bytes), *t.to_device, device_name(there.device),
               {begin, t.to_device->mark()});
}

bool Sums::add(const Step& step, const std::vector<void*>& args) {
  const Value& out = s_.values[step.values[0]];
  AllReduce sum{{}, {}, {}, out.dtype, static_cast<size_t>(out.size), step.sum_by};
  std::vector<std::string> names;
  for (size_t i = 1; i < args.size(); ++i) {
    names.push_back(device_name(s_.values[step.values[i]].device));
    sum.devices.push_back(&find_device(names.back()));
    sum.from.push_back(args[i]);
    if (step.gathers) sum.counts.push_back(static_cast<size_t>(s_.values[step.values[i]].size));
  }
  sum.to.resize(sum.from.size());
  const auto at =
      std::find(sum.devices.begin(), sum.devices.end(), &find_device(device_name(step.device)));
  expect(at != sum.devices.end(), "a sum is wanted on a device that has no part of it");
  const auto here = static_cast<size_t>(at - sum.devices.begin());
  sum.to[here] = args[0];
  const size_t bytes = sum.count * static_cast<size_t>(sum.dtype.size());
  for (const AllReduce& s : all_) {
    const size_t others = s.count * static_cast<size_t>(s.dtype.size());
    bool apart = s.devices == sum.devices;
    for (const void* to : s.to) {
      apart &= !overlap(to, others, args[0], bytes);
      for (const void* from : sum.from) apart &= !overlap(to, others, from, bytes);
    }
    for (const void* from : s.from) apart &= !overlap(from, others, args[0], bytes);
    if (!apart) return false;
  }
  for (AllReduce& s : all_)
    if (s.from == sum.from && s.count == sum.count && s.by == sum.by && s.counts == sum.counts &&
        !s.to[here]) {
      s.to[here] = args[0];
      return true;
    }
  if (all_.empty() && sum.devices[0]->rank >= 0)
    what_ = cat(step.operations, " of ", sum.dtype, '[', sum.count, "], step ",
                &step - s_.steps.data() + 1, " of ", s_.steps.size());
  names_ = std::move(names);
  all_.push_back(std::move(sum));
  return true;
}

void Copies::make_sums() {
  const std::vector<Device*>& devices = sums_.all()[0].devices;
  std::vector<int64_t> begin;
  double bytes = 0;
  for (const AllReduce& s : sums_.all())
    bytes += static_cast<double>(s.count) * static_cast<double>(s.dtype.size());
  if (watch_.timed)
    for (Device* d : devices) begin.push_back(d->mark());
  std::vector<int> ranks;
  for (const Device* d : devices)
    if (d->rank >= 0) ranks.push_back(d->rank);
  if (!ranks.empty()) throw_failed_sum();
  auto with_others = devices[0]->all_reduce(sums_.all());
  if (!ranks.empty()) start_sum(std::move(with_others), ranks, sums_.what());
  for (size_t i = 0; i < begin.size(); ++i)
    profile_copy("all_reduce", bytes, *devices[i], sums_.device_names()[i],
                 {begin[i], devices[i]->mark()});
  sums_.clear();
}

void Copies::flush() {
  if (!sums_.all().empty()) make_sums();
  if (pending_.size() < 2 || !pending_[0].to_device->transfer(pending_))
    for (const Transfer& t : pending_)
      copy_bytes(*t.to_device, t.to, *t.from_device, t.from, t.bytes);
  pending_.clear();
}

namespace {

void barrier(const std::vector<Device*>& devices) {
  if (!devices.empty()) devices[0]->barrier(devices);
}

}  // namespace

void Steps::run(const Step& step, Kernel* kernel, const std::vector<void*>& args) {
  if (kernel && copies_.waiting()) copies_.flush();
  if (meetings_.needed(step)) barrier(meetings_.before(step, args));
  if (!kernel) return copies_.add(step, args);
  if (step.device != device_id_ || !device_) {  // to look it up takes as long as all the rest
    device_ = &find_device(device_name(step.device));
    device_id_ = step.device;
  }
  launch(s_, step, *kernel, *device_, args, watch_);
}

void Steps::finish() {
  copies_.flush();
  barrier(meetings_.at_end());
}

std::vector<Device*> Meetings::before_sum(const Step& step, const std::vector<void*>& args) {
  std::vector<Device*> involved;
  std::vector<Use> uses;
  const std::vector<bool> written = written_slots(step);
  for (size_t i = 0; i < args.size(); ++i) {
    const Value& v = s_.values[step.values[i]];
    Device* d = &find_device(device_name(v.device));
    if (std::find(involved.begin(), involved.end(), d) == involved.end()) involved.push_back(d);
    const auto* begin = static_cast<const std::byte*>(args[i]);
    uses.push_back({step.device, begin, begin + v.size * v.dtype.size(), written[i]});
  }
  const bool known = std::all_of(involved.begin(), involved.end(), [&](Device* d) {
    return std::find(devices_.begin(), devices_.end(), d) != devices_.end();
  });
  const bool apart = std::all_of(uses_.begin(), uses_.end(), [&](const Use& a) {
    return std::all_of(uses.begin(), uses.end(), [&](const Use& b) {
      return a.device == b.device || (!a.written && !b.written) || a.end <= b.begin ||
             b.end <= a.begin;
    });
  });
  std::vector<Device*> meeting;
  if (!known || !apart) {
    meeting = at_end();
    uses_.clear();
    for (Device* d : involved)
      if (std::find(meeting.begin(), meeting.end(), d) == meeting.end()) meeting.push_back(d);
    devices_ = meeting;
  }
  uses_.insert(uses_.end(), uses.begin(), uses.end());
  return meeting;
}

void agree_on_plan(const Schedule& s) {
  if (rank_count() == 1 || std::exchange(s.agreed, true)) return;
  bool on_ranks = false;
  std::string text;
  for (const Step& step : s.steps) {
    on_ranks |= find_device(device_name(step.device)).rank >= 0;
    text += cat(step.name, " on ", device_name(step.device));
    if (Sums::takes(step))
      text += cat(step.gathers ? " gathered by " : " by ", static_cast<int>(step.sum_by));
    for (int v : step.values) text += cat(' ', s.values[v].dtype, '[', s.values[v].size, ']');
    for (int64_t offset : step.offsets) text += cat(" +", offset);
    if (step.kernel) text += cat(" #", std::hash<std::string>()(to_text(step.kernel.get())));
    text += '\n';
  }
  if (on_ranks) agree_on(text);
}

std::vector<bool> written_slots(const Step& step) {
  std::vector<bool> out(step.values.size());
  if (!step.kernel)
    out[0] = true;
  else
    for (Node store : step.kernel->srcs()) out[slot_of(store->src(0))] = true;
  return out;
}

std::vector<bool> read_slots(const Step& step) {
  std::vector<bool> out(step.values.size());
  if (!step.kernel) {
    std::fill(out.begin() + 1, out.end(), true);
    return out;
  }
  std::vector<Node> values;
  for (Node store : step.kernel->srcs())  // the value, and the condition where there is one
    for (Node n : store->srcs().subspan(1)) values.push_back(n);
  for (Node n : topological(values))
    if (n->op == Op::Param) out[slot_of(n)] = true;
  return out;
}

}  // namespace tiny
