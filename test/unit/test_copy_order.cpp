#include "runtime/schedule/copy_order.h"

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

TEST_CASE("copies wait for all that does not wait for them") {
  // Both directions of a sum over two devices.
  const std::vector<Job> sum = {job(0, {}),     job(1, {}),        job(2, {0}, true),
                                job(3, {1, 2}), job(4, {1}, true), job(5, {0, 4})};
  CHECK(jobs_of(gather_copies(sum, in_order(6))) == std::vector<int>{0, 1, 2, 4, 3, 5});
  // Two values on their way at once: 0 and 3 are computed, and both copied, before they are used.
  const std::vector<Job> two = {job(0, {}), job(1, {0}, true), job(2, {1}),
                                job(3, {}), job(4, {3}, true), job(5, {4, 2})};
  CHECK(jobs_of(gather_copies(two, in_order(6))) == std::vector<int>{0, 3, 1, 4, 2, 5});
  // The second copy needs what the first one brought.
  const std::vector<Job> chain = {job(0, {}), job(1, {0}, true), job(2, {1}), job(3, {2}, true)};
  CHECK(jobs_of(gather_copies(chain, in_order(4))) == std::vector<int>{0, 1, 2, 3});
  CHECK(jobs_of(gather_copies({job(0, {}, true)}, in_order(1))) == std::vector<int>{0});
}

TEST_CASE("copies that run beside other launches begin when they are worth one") {
  // Two gradients, both summed over devices, and what comes between and after them.
  std::vector<Job> jobs = {job(0, {}), job(1, {0}, true), job(2, {0}),   job(3, {2}, true),
                           job(4, {}), job(5, {}),        job(6, {1, 3})};
  CHECK(jobs_of(gather_copies(jobs, in_order(7))) == std::vector<int>{0, 2, 4, 5, 1, 3, 6});
  jobs[1].beside_others = jobs[3].beside_others = 3 << 20;  // worth one when both are there
  CHECK(jobs_of(gather_copies(jobs, in_order(7))) == std::vector<int>{0, 2, 1, 3, 4, 5, 6});
  jobs[1].beside_others = 8 << 20;
  CHECK(jobs_of(gather_copies(jobs, in_order(7))) == std::vector<int>{0, 1, 2, 4, 5, 3, 6});
}

TEST_CASE("nothing is computed early where copies are to wait for what comes before alone") {
  const std::vector<Job> two = {job(0, {}), job(1, {0}, true), job(2, {1}),
                                job(3, {}), job(4, {3}, true), job(5, {4, 2})};
  CHECK(jobs_of(gather_copies(two, in_order(6), false)) == std::vector<int>{0, 1, 2, 3, 4, 5});
}

TEST_CASE("in the order of least memory an update of a weight follows its gradient") {
  // Two gradients, each sent to another device, which sends what the update needs.
  std::vector<Job> jobs = {job(0, {}),        job(1, {}),     job(2, {0}, true),
                           job(3, {1}, true), job(4, {0, 2}), job(5, {1, 3})};
  jobs[1].before = {0};
  jobs[2].device = jobs[3].device = 1;
  std::vector<JobValue> values(6);
  for (int gradient : {0, 1}) values[static_cast<size_t>(gradient)].bytes = 100;
  for (int update : {4, 5}) values[static_cast<size_t>(update)].stays = true;
  const std::vector<int> given{0, 1, 2, 3, 4, 5};
  CHECK(jobs_of(order_of_least_memory(jobs, values, given, {1000, 0.0})) ==
        std::vector<int>{0, 2, 4, 1, 3, 5});
}

TEST_CASE("a job that has to run after a copy does") {
  std::vector<Job> jobs = {job(0, {}), job(1, {0}, true), job(2, {}), job(3, {})};
  CHECK(jobs_of(gather_copies(jobs, in_order(4))) == std::vector<int>{0, 2, 3, 1});
  jobs[2].before.push_back(1);  // it overwrites what the copy reads
  CHECK(jobs_of(gather_copies(jobs, in_order(4))) == std::vector<int>{0, 3, 1, 2});
}

TEST_CASE("values computed again keep their place among what does not wait for copies") {
  const std::vector<Job> jobs = {job(0, {}),        job(1, {0}, true), job(2, {1}),   job(3, {}),
                                 job(4, {3}, true), job(5, {4}),       job(6, {0, 3})};
  const std::vector<Turn> order = {{0}, {1}, {2}, {3}, {0, 0}, {4}, {5}, {6}};
  CHECK(jobs_of(gather_copies(jobs, order)) == std::vector<int>{0, 3, -1, 6, 1, 4, 2, 5});
  // 6 may overwrite what 2 is computed from again, which waits for a copy.
  const std::vector<Turn> waits = {{0}, {1}, {2}, {3}, {2, 2}, {6}, {4}, {5}};
  CHECK(jobs_of(gather_copies(jobs, waits)) == std::vector<int>{0, 3, 1, 4, 2, -3, 6, 5});
}

TEST_CASE("devices between which there are copies take turns") {
  // 0, 1, 2 on one device, 3, 4, 5 on the other; 6 and 7 bring both what the other one has.
  std::vector<Job> jobs = {job(0, {}),  job(1, {0}), job(2, {6}),       job(3, {}),
                           job(4, {3}), job(5, {7}), job(6, {4}, true), job(7, {1}, true)};
  for (const int j : {3, 4, 5, 7}) jobs[j].device = 1;
  const std::vector<Turn> order = {{0}, {1}, {1, 1}, {3}, {4}, {6}, {2}, {7}, {5}};
  CHECK(jobs_of(gather_copies(jobs, order)) == std::vector<int>{0, 3, 1, 4, -2, 7, 6, 5, 2});
}

TEST_CASE("copies are made at once where a device would have nothing to do until then") {
  // Three parts of a batch through two stages: 0, 1, 2 on one device, which sends each by 3, 4, 5
  // to the other one, that has 6, 7, 8 to do.
  std::vector<Job> jobs = {job(0, {}),        job(1, {}),        job(2, {}),
                           job(3, {0}, true), job(4, {1}, true), job(5, {2}, true),
                           job(6, {3}),       job(7, {4}),       job(8, {5})};
  for (size_t j = 3; j < 9; ++j) jobs[j].device = 1;
  CHECK(jobs_of(gather_copies(jobs, in_order(9))) == std::vector<int>{0, 3, 1, 6, 4, 2, 7, 5, 8});
}

TEST_CASE("orders without copies stay") {
  const std::vector<Job> plain = {job(0, {}), job(1, {0}), job(2, {})};
  CHECK(gather_copies(plain, in_order(3)) == in_order(3));
}
