#include "tiny/base/thread.h"

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cmath>

#include "test/unit/child.h"
#include "tiny/base/parallel.h"
#include "tiny/tiny.h"

using namespace tiny;
using namespace tiny::test;

namespace {

// A convolution and its gradient, a product, a softmax, random numbers.
double some_work() {
  Tensor x = Tensor::ones({2, 3, 16, 16}), w = Tensor::full({4, 3, 3, 3}, 0.5);
  w.requires_grad_();
  const Tensor y = conv2d(x, w).relu().sum();
  y.backward();
  const Tensor z = Tensor::rand({50, 60}).matmul(Tensor::rand({60, 40})).softmax(1).sum();
  return w.grad().sum().item<float>() + std::lround(z.item<float>());
}

// No process may be started any more, where there are limits for this user.
bool limit_threads() {
  if (::geteuid() == 0 && ::setuid(65534) != 0) return false;
  const rlimit none{1, 1};
  return ::setrlimit(RLIMIT_NPROC, &none) == 0 && !Thread::start_if_possible([] {}).runs();
}

}  // namespace

TEST_CASE("worker of threads: works") {
  if (is_child()) tell(cat("done ", some_work()));
}

TEST_CASE("worker of threads: works where there are no more threads") {
  if (!is_child()) return;
  if (!limit_threads()) return tell("there are no limits");
  tell(cat("done ", some_work()));
  try {
    Thread("to try it", [] {});
  } catch (const DeviceError& e) {
    tell(e.what());
  }
}

TEST_CASE("a program works where stacks are small") {
  const std::string expected = cat("done ", some_work(), "\n");
  for (const char* device : {"CPU", "EMULATOR"}) {
    const Ended e = run_child("worker of threads: works", cat("CACHE=0 THREADS=3 DEVICE=", device),
                              "ulimit -s 128;");
    CHECK_MESSAGE(e.said == expected, e.output);
    CHECK(e.status == 0);
  }
}

TEST_CASE("a program works on one thread where the system makes no more") {
  const Ended e = run_child("worker of threads: works where there are no more threads",
                            "CACHE=0 THREADS=3 DEVICE=CPU CHECK_OOB=2");
  if (e.said == "there are no limits\n") return;
  CHECK_MESSAGE(e.said == cat("done ", some_work(),
                              "\nthe system makes no thread to try it: Resource temporarily "
                              "unavailable (see ulimit -u, and pids.max of a container)\n"),
                e.output);
}

TEST_CASE("threads have deep stacks, and jobs that meet none run where they were given") {
  bool is_deep = false;
  Thread("to look at its stack", [&] { is_deep = has_deep_stack(); }).join();
  CHECK(is_deep);
  std::atomic<int> sum{0};
  in_parallel(100, 4,
              [&](size_t i, size_t thread) { sum += thread < 4 ? static_cast<int>(i) : 0; });
  CHECK(sum == 4950);
}
