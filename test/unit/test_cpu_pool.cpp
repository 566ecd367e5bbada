#include "devices/cpu/thread_pool.h"

#include <doctest/doctest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

using tiny::CpuPool;

namespace {

struct Marks {
  std::vector<int> count;  // how often each element was done
  std::vector<std::pair<int64_t, int64_t>> chunks;
  std::atomic<int> calls{0};

  explicit Marks(int64_t n) : count(n), chunks(64) {}
};

void mark(void* context, int64_t begin, int64_t end) {
  auto& marks = *static_cast<Marks*>(context);
  for (int64_t i = begin; i < end; i++) marks.count[i]++;
  marks.chunks[marks.calls++] = {begin, end};
}

struct Nested {
  CpuPool& pool;
  std::atomic<int64_t> sum{0};
};

void add_range(void* context, int64_t begin, int64_t end) {
  auto& nested = *static_cast<Nested*>(context);
  for (int64_t i = begin; i < end; i++) nested.sum += i;
}

void loop_inside(void* context, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; i++)
    static_cast<Nested*>(context)->pool.parallel_for(10, add_range, context);
}

}  // namespace

TEST_CASE("parallel_for does every element once with 1 to 4 threads") {
  for (int threads = 1; threads <= 4; threads++) {
    CpuPool pool(threads);
    CHECK(pool.threads() == threads);
    for (int64_t n : {0, 1, 2, 3, 4, 5, 7, 1000}) {
      Marks marks(n);
      pool.parallel_for(n, mark, &marks);
      CHECK(marks.count == std::vector<int>(n, 1));
      CHECK(marks.calls == (threads == 1 ? n > 0 : std::min<int64_t>(n, 8 * threads)));
    }
  }
}

TEST_CASE("parallel_for cuts a range into pieces whose sizes differ by at most one") {
  CpuPool pool(4);
  Marks marks(70);
  pool.parallel_for(70, mark, &marks);
  REQUIRE(marks.calls == 32);
  std::sort(marks.chunks.begin(), marks.chunks.begin() + 32);
  int64_t at = 0;
  for (int i = 0; i < 32; i++) {
    const auto [begin, end] = marks.chunks[i];
    CHECK(begin == at);
    CHECK((end - begin == 2 || end - begin == 3));
    at = end;
  }
  CHECK(at == 70);
}

TEST_CASE("workers may run wherever the caller may") {
  struct Processors {
    std::thread::id caller = std::this_thread::get_id();
    cpu_set_t own;
    std::atomic<int> processor{-1}, by_workers{0}, alike{0};
  } all;
  REQUIRE(sched_getaffinity(0, sizeof(all.own), &all.own) == 0);
  CpuPool pool(2);
  for (int i = 0; i < 50; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    pool.parallel_for(
        64,
        [](void* context, int64_t, int64_t) {
          auto& a = *static_cast<Processors*>(context);
          cpu_set_t now, one;
          sched_getaffinity(0, sizeof(now), &now);
          if (std::this_thread::get_id() == a.caller) {
            a.processor = sched_getcpu();
            return std::this_thread::sleep_for(std::chrono::microseconds(50));
          }
          ++a.by_workers;
          a.alike += CPU_EQUAL(&now, &a.own) ? 1 : 0;
          if (a.processor < 0) return;
          CPU_ZERO(&one);  // to where the caller is, which the pool has it leave the next time
          CPU_SET(static_cast<size_t>(a.processor), &one);
          sched_setaffinity(0, sizeof(one), &one);
          sched_setaffinity(0, sizeof(a.own), &a.own);
        },
        &all);
  }
  CHECK(all.by_workers > 0);
  CHECK(all.by_workers == all.alike);
}

TEST_CASE("what a slow thread has not begun is done by others") {
  struct Slow {
    std::thread::id caller = std::this_thread::get_id();
    std::atomic<int> by_worker{0}, begun{0};
  } slow;
  CpuPool pool(2);
  pool.parallel_for(
      16,
      [](void* context, int64_t begin, int64_t end) {
        auto& s = *static_cast<Slow*>(context);
        s.begun += static_cast<int>(end - begin);
        const bool is_caller = std::this_thread::get_id() == s.caller;
        if (!is_caller) s.by_worker += static_cast<int>(end - begin);
        // The worker does not end before all pieces have begun; the caller waits for the worker.
        while (!is_caller && s.begun < 16) std::this_thread::yield();
        while (is_caller && s.by_worker == 0) std::this_thread::yield();
      },
      &slow);
  CHECK(slow.begun == 16);
  CHECK(slow.by_worker == 1);
}

TEST_CASE("parallel_for does nothing for a negative extent") {
  CpuPool pool(2);
  Marks marks(0);
  pool.parallel_for(-3, mark, &marks);
  CHECK(marks.calls == 0);
}

TEST_CASE("parallel_for takes the largest extent without overflow") {
  struct Ends {
    std::atomic<int64_t> total{0};
  } ends;
  CpuPool pool(3);
  pool.parallel_for(
      INT64_MAX,
      [](void* context, int64_t begin, int64_t end) {
        static_cast<Ends*>(context)->total += end - begin;
      },
      &ends);
  CHECK(ends.total == INT64_MAX);
}

TEST_CASE("parallel_for inside a body runs inline") {
  CpuPool pool(3);
  Nested nested{pool};
  pool.parallel_for(20, loop_inside, &nested);
  CHECK(nested.sum == 20 * 45);
}

TEST_CASE("many short parallel_for calls in a row lose no element") {
  CpuPool pool(3);
  Nested nested{pool};
  for (int i = 0; i < 20000; i++) pool.parallel_for(4, add_range, &nested);
  CHECK(nested.sum == 20000 * 6);
}

TEST_CASE("parallel_for wakes workers that have gone to sleep") {
  CpuPool pool(2);
  Nested nested{pool};
  for (int i = 0; i < 20; i++) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    pool.parallel_for(4, add_range, &nested);
  }
  CHECK(nested.sum == 20 * 6);
}

TEST_CASE("several threads may call parallel_for of one pool at once") {
  CpuPool pool(2);
  Nested nested{pool};
  std::vector<std::thread> users;
  for (int t = 0; t < 4; t++)
    users.emplace_back([&] {
      for (int i = 0; i < 2000; i++) pool.parallel_for(5, add_range, &nested);
    });
  for (auto& user : users) user.join();
  CHECK(nested.sum == 4 * 2000 * 10);
}

TEST_CASE("a pool of a forked process runs alone and is destroyed without waiting") {
  auto pool = std::make_unique<CpuPool>(3);
  Nested nested{*pool};
  pool->parallel_for(4, add_range, &nested);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    pool->parallel_for(10, add_range, &nested);
    pool.reset();
    _exit(nested.sum == 6 + 45 ? 0 : 1);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}
