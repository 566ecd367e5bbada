#include "devices/cpu/thread_pool.h"

#include <doctest/doctest.h>
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
      CHECK(marks.calls == std::min<int64_t>(n, threads));
    }
  }
}

TEST_CASE("parallel_for cuts a range into chunks whose sizes differ by at most one") {
  CpuPool pool(4);
  Marks marks(10);
  pool.parallel_for(10, mark, &marks);
  REQUIRE(marks.calls == 4);
  std::sort(marks.chunks.begin(), marks.chunks.begin() + 4);
  const std::vector<std::pair<int64_t, int64_t>> expected{{0, 3}, {3, 6}, {6, 8}, {8, 10}};
  CHECK(std::vector(marks.chunks.begin(), marks.chunks.begin() + 4) == expected);
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
