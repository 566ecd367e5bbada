// All-reduces with GPUs of other processes, by a library: each process has one of the GPUs.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <mutex>

#include "devices/gpu/gpu.h"
#include "tiny/base/error.h"
#include "tiny/base/thread.h"
#include "tiny/run/ranks.h"

namespace tiny {

// The processes that a GPU adds up with.
struct GpuDevice::Group {
  Group(const Nccl& l, NcclComm c) : library(l), comm(c) {}

  const Nccl& library;
  const NcclComm comm;
  std::timed_mutex mutex;  // while the library is called
  std::atomic<bool> is_abandoned = false;
};

// Events before and after it in its stream say how far it is.
class GpuSumOfRanks : public PendingAllReduce {
 public:
  GpuSumOfRanks(GpuDevice& device, std::shared_ptr<GpuDevice::Group> group, size_t own,
                std::vector<NcclSum> sums)
      : device_(device), group_(std::move(group)), own_(own), sums_(std::move(sums)) {
    const GpuScope scope(device_.driver_, device_.context_);
    for (GpuEvent* event : {&begin_, &end_}) *event = make_event(device.driver_, kGpuEventUntimed);
  }
  ~GpuSumOfRanks() override {
    try {
      const GpuScope scope(device_.driver_, device_.context_);
      for (GpuEvent event : {begin_, end_}) destroy_event(device_.driver_, event);
    } catch (const DeviceError&) {  // the GPU is lost
    }
  }

  void start() override {
    const GpuScope scope(device_.driver_, device_.context_);
    const std::lock_guard lock(group_->mutex);
    check(!group_->is_abandoned, "sums with these processes have been given up");
    record(begin_, has_begin_);
    group_->library.sum_own(group_->comm, own_, device_.compute_, sums_);
    record(end_, has_end_);
  }

  bool has_begun() override { return has_begin_ && has_passed(begin_); }
  bool has_ended() override { return has_end_ && has_passed(end_); }

  std::string failure() override {
    const std::unique_lock lock(group_->mutex, std::try_to_lock);
    const bool can_ask = lock.owns_lock() && !group_->is_abandoned;
    return can_ask ? group_->library.failure(group_->comm) : "";
  }

  void abandon() override {
    // A thread that is kept by the library is freed by this.
    std::unique_lock lock(group_->mutex, std::chrono::seconds(2));
    if (group_->is_abandoned.exchange(true)) return;
    try {
      const GpuScope scope(device_.driver_, device_.context_);
      group_->library.abandon(group_->comm);
    } catch (const DeviceError&) {  // the GPU is lost
    }
  }

 private:
  void record(GpuEvent event, std::atomic<bool>& is_recorded) {
    device_.driver_.check(device_.driver_.event_record(event, device_.compute_), "record an event");
    is_recorded = true;
  }
  // True after an error as well, which shows where the device is asked next.
  bool has_passed(GpuEvent event) {
    try {
      const GpuScope scope(device_.driver_, device_.context_);
      return device_.driver_.event_query(event) != kGpuNotReady;
    } catch (const DeviceError&) {
      return true;
    }
  }

  GpuDevice& device_;
  const std::shared_ptr<GpuDevice::Group> group_;
  const size_t own_;  // number of this GPU among those of the sums
  const std::vector<NcclSum> sums_;
  std::atomic<bool> has_begin_ = false, has_end_ = false;
  GpuEvent begin_ = nullptr, end_ = nullptr;
};

// A process that ends while all join would keep the others for ever: they join on a thread that
// may be left behind.
std::shared_ptr<GpuDevice::Group> GpuDevice::join(const Nccl& library,
                                                  const std::vector<int>& ranks) {
  std::shared_ptr<Group>& group = groups_[ranks];
  if (group) return group;
  const auto number = static_cast<int>(std::ranges::find(ranks, rank) - ranks.begin());
  const std::string name =
      text_of_first(ranks, number == 0 ? library.new_group() : "", "the name of a group of GPUs");
  const auto join = std::make_shared<std::packaged_task<NcclComm()>>(
      [&library, name, number, count = static_cast<int>(ranks.size()), context = context_,
       driver = &driver_] {
        const GpuScope scope(*driver, context);
        return library.join(name, count, number);
      });
  std::future<NcclComm> joined = join->get_future();
  Thread("to join the GPUs of other ranks", [join] { (*join)(); }).detach();
  check(joined.wait_for(rank_patience()) == std::future_status::ready, "rank ", rank,
        ": its GPU and those of the other ranks have not joined in ",
        rank_patience().count() / 1000, " s (COLLECTIVE_TIMEOUT)");
  return group = std::make_shared<Group>(library, joined.get());
}

std::shared_ptr<PendingAllReduce> GpuDevice::add_with_ranks(const Nccl& library,
                                                            std::span<const AllReduce> sums) {
  std::vector<int> ranks;
  for (const Device* d : sums[0].devices) ranks.push_back(d->rank);
  const auto at = std::ranges::find(ranks, rank);
  if (at == ranks.end()) return nullptr;  // others do it
  std::vector<NcclSum> all;
  for (const AllReduce& s : sums) all.push_back({s.from, s.to, s.dtype, s.count});
  return std::make_shared<GpuSumOfRanks>(*this, join(library, ranks),
                                         static_cast<size_t>(at - ranks.begin()), std::move(all));
}

}  // namespace tiny
