#include "runtime/distributed/rank_watch.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "runtime/distributed/messages.h"
#include "tiny/base/error.h"
#include "tiny/base/thread.h"
#include "tiny/run/ranks.h"

namespace tiny {

namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kLook = std::chrono::milliseconds(100);    // how often the thread looks
constexpr auto kGrace = std::chrono::milliseconds(1000);  // for a sum with a rank that has ended
constexpr size_t kMaxPending = 64;  // a full queue of a GPU would keep the host in its driver

// The progress that a rank reports to the others.
struct RankState {
  uint64_t started = 0;    // sums
  char failure[240] = {};  // why it stops; empty: it does not
};

struct Peer {
  std::unique_ptr<Link> link;
  RankState state;
  Clock::time_point ended{};  // when that was seen; 0: it has not
};

struct WatchedSum {
  std::shared_ptr<PendingAllReduce> sum;
  std::vector<int> ranks;
  uint64_t number = 0;
  std::string what;
  Clock::time_point begun{};  // when that was seen; 0: it has not
};

class RankWatch {
 public:
  RankWatch() {
    for (auto& link : connect_ranks()) peers_.push_back({std::move(link), {}, {}});
    Thread("to watch sums of ranks", [this] { look(); }).detach();
  }

  void start(std::shared_ptr<PendingAllReduce> sum, std::span<const int> ranks,
             const std::string& what) {
    std::unique_lock lock(mutex_);
    ++started_;
    if (!sum) return;
    pending_.push_back({sum, {ranks.begin(), ranks.end()}, started_, what, {}});
    for (drop_ended(); pending_.size() > kMaxPending && failure_.empty(); drop_ended()) {
      lock.unlock();
      std::this_thread::sleep_for(std::chrono::microseconds(50));
      lock.lock();
    }
    lock.unlock();
    try {
      sum->start();
    } catch (const std::exception&) {  // it may have been given up, or its library knows
      throw_failure(/*seconds=*/1);
      throw;
    }
  }

  void throw_failure(double seconds) {
    const auto wait = std::chrono::duration<double>(seconds);
    std::unique_lock lock(mutex_);
    if (pending_.empty() && failure_.empty()) return;
    known_.wait_for(lock, wait, [&] { return !failure_.empty(); });
    check(failure_.empty(), failure_);
  }

 private:
  void drop_ended() {
    while (!pending_.empty() && pending_.front().sum->has_ended()) pending_.pop_front();
  }

  [[noreturn]] void look() {
    for (;; std::this_thread::sleep_for(kLook)) {
      tell();
      for (Peer& p : peers_) hear(p);
      std::unique_lock lock(mutex_);
      drop_ended();
      if (pending_.empty() || !failure_.empty()) continue;
      const std::string why = failure_of(pending_.front());
      if (why.empty()) continue;
      failure_ = cat("rank ", rank(), ": ", why);
      lock.unlock();
      tell();
      give_up();
      known_.notify_all();
    }
  }

  // So that nothing waits for a GPU that waits for another one.
  void give_up() {
    std::deque<WatchedSum> all;
    {
      const std::lock_guard lock(mutex_);
      all.swap(pending_);
    }
    for (WatchedSum& p : all) p.sum->abandon();
  }

  std::string failure_of(WatchedSum& p) {
    const auto now = Clock::now();
    if (p.begun == Clock::time_point()) {
      if (!p.sum->has_begun()) return "";
      p.begun = now;
    }
    const std::string name = cat("sum ", p.number, ", ", p.what);
    if (const std::string own = p.sum->failure(); !own.empty()) return cat(own, ", at ", name);
    for (int r : p.ranks) {
      const Peer& peer = peers_[r];
      if (peer.state.failure[0]) return cat(peer.state.failure, "; here at ", name);
      if (peer.ended != Clock::time_point() && now - std::max(peer.ended, p.begun) > kGrace)
        return cat("rank ", r, " has ended before ", name);
    }
    const int64_t limit = rank_patience().count() / 1000;
    return now - p.begun > std::chrono::seconds(limit) ? late(p, name, limit) : "";
  }

  std::string late(const WatchedSum& p, const std::string& name, int64_t limit) const {
    const std::string wait = cat(limit, " s (COLLECTIVE_TIMEOUT)");
    for (int r : p.ranks) {
      const uint64_t at = peers_[r].state.started;
      if (r != rank() && at < p.number)
        return cat("rank ", r, " has not come to ", name, ", in ", wait, "; it is behind sum ", at);
    }
    return cat(name, ", has not ended in ", wait, ", all ranks have come to it");
  }

  // --- Between the threads -----------------------------------------------------------------------

  void tell() {
    RankState now;
    {
      const std::lock_guard lock(mutex_);
      now.started = started_;
      std::copy_n(failure_.data(), std::min(failure_.size(), sizeof now.failure - 1), now.failure);
    }
    if (now.started == told_.started && now.failure[0] == told_.failure[0]) return;
    told_ = now;
    for (Peer& p : peers_)
      if (p.link) p.link->write_now({reinterpret_cast<const char*>(&now), sizeof now});
  }

  static void hear(Peer& p) {
    if (!p.link || p.ended != Clock::time_point()) return;
    RankState next;
    Heard heard = Heard::All;
    while ((heard = p.link->read_now(&next, sizeof next)) == Heard::All) {
      p.state = next;
      p.state.failure[sizeof p.state.failure - 1] = 0;
    }
    if (heard != Heard::Nothing) p.ended = Clock::now();
  }

  std::mutex mutex_;
  std::condition_variable known_;
  std::deque<WatchedSum> pending_;  // as they were started
  uint64_t started_ = 0;
  std::string failure_;
  std::vector<Peer> peers_;  // by rank; the thread's alone
  RankState told_;
};

// All ranks come to their first sum together; one that ends leaves the thread to its fate.
std::atomic<RankWatch*> watch{nullptr};

}  // namespace

void start_sum(std::shared_ptr<PendingAllReduce> sum, std::span<const int> ranks,
               const std::string& what) {
  if (!watch) watch = new RankWatch;
  watch.load()->start(std::move(sum), ranks, what);
}

void throw_failed_sum(double seconds) {
  if (RankWatch* w = watch) w->throw_failure(seconds);
}

}  // namespace tiny
