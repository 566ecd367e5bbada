#include "runtime/copy_order.h"

#include <doctest/doctest.h>

using namespace tiny;

namespace {

// Jobs that each write the value of their own number.
Job job(int number, std::vector<int> reads, bool is_copy = false) {
  Job j;
  j.before = reads;
  j.reads = std::move(reads);
  j.writes = {number};
  j.is_copy = is_copy;
  return j;
}

std::vector<int> jobs_of(const std::vector<Turn>& order) {
  std::vector<int> out;
  for (const Turn& t : order) out.push_back(t.again >= 0 ? -1 - t.again : t.job);
  return out;
}

std::vector<Turn> in_order(size_t count) {
  std::vector<Turn> out;
  for (size_t i = 0; i < count; ++i) out.push_back({static_cast<int>(i)});
  return out;
}

}  // namespace

TEST_CASE("copies gather where nothing between them is needed") {
  // Both directions of a sum over two devices.
  const std::vector<Job> sum = {job(0, {}),     job(1, {}),        job(2, {0}, true),
                                job(3, {1, 2}), job(4, {1}, true), job(5, {0, 4})};
  CHECK(jobs_of(gather_copies(sum, in_order(6))) == std::vector<int>{0, 1, 2, 4, 3, 5});
  // The second copy needs what the first one brought.
  const std::vector<Job> chain = {job(0, {}), job(1, {0}, true), job(2, {1}), job(3, {2}, true)};
  CHECK(jobs_of(gather_copies(chain, in_order(4))) == std::vector<int>{0, 1, 2, 3});
  CHECK(jobs_of(gather_copies({job(0, {}, true)}, in_order(1))) == std::vector<int>{0});
}

TEST_CASE("a copy stays behind a value that is computed again for it") {
  const std::vector<Job> jobs = {job(0, {}), job(1, {0}, true), job(2, {1}), job(3, {0}, true)};
  const std::vector<Turn> order = {{0}, {1}, {2}, {0, 0}, {3}};
  CHECK(jobs_of(gather_copies(jobs, order)) == std::vector<int>{0, 1, 2, -1, 3});
}

TEST_CASE("a copy stays behind a job that has to run before it") {
  std::vector<Job> jobs = {job(0, {}), job(1, {0}, true), job(2, {}), job(3, {0}, true)};
  CHECK(jobs_of(gather_copies(jobs, in_order(4))) == std::vector<int>{0, 1, 3, 2});
  jobs[3].before.push_back(2);
  CHECK(jobs_of(gather_copies(jobs, in_order(4))) == std::vector<int>{0, 1, 2, 3});
}
