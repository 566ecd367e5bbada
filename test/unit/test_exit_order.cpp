#include "tiny/base/exit_order.h"

#include <doctest/doctest.h>

#include <cstdlib>

#include "test/devices.h"
#include "test/unit/child.h"
#include "tiny/tiny.h"

using namespace tiny;
using namespace tiny::test;

namespace {

// An object that is there before any library is opened, and computes in its destructor.
struct Late {
  ~Late() {
    if (!is_child() || !std::getenv("IS_LATE")) return;
    is_there = false;
    try {
      const Tensor y = (Tensor::ones({40, 30}).matmul(Tensor::full({30, 20}, 2)) + 1).relu();
      tell(cat("late ", y.sum().item<float>(), " ", (x * 3).sum().item<float>()));
      Tensor::rand({10}).exp().realize();
    } catch (const std::exception& e) {
      tell(e.what());
    }
  }
  bool is_there = true;
  Tensor x;
} late;

}  // namespace

TEST_CASE("worker of ends: an object that computes in its destructor") {
  if (!is_child()) return;
  std::atexit([] { tell(late.is_there ? "atexit before it" : "atexit after it"); });
  late.x = Tensor::ones({10}).realize();
  tell(cat("main ", (late.x + 1).sum().item<float>()));
}

TEST_CASE("a static object may compute in its destructor, on every device") {
  for (const std::string& device : test_devices())
    for (const int threads : {1, 3}) {
      const Ended e = run_child("worker of ends: an object that computes in its destructor",
                                cat("IS_LATE=1 CACHE=0 DEVICE=", device, " THREADS=", threads));
      CHECK_MESSAGE(e.status == 0, device, ": ", e.output);
      CHECK_MESSAGE(e.said == "main 20\natexit before it\nlate 48800 30\n", device);
    }
}

TEST_CASE("what is called before libraries end is called once, however often it was asked for") {
  CHECK(!are_libraries_ending());
  for (int i = 0; i < 3; ++i) end_objects_before_libraries();
  CHECK(!are_libraries_ending());  // moving it to its new place calls nothing
}
