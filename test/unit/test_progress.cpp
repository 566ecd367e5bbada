#include <doctest/doctest.h>

#include <algorithm>
#include <sstream>

#include "tiny/base/error.h"
#include "tiny/train/progress.h"

using namespace tiny;

namespace {

// A sink into a text, with a clock that the test moves.
struct Fake {
  std::ostringstream out;
  double now = 100;
  ProgressSink sink(bool terminal, int width = 200) {
    return {&out, terminal, width, [this] { return now; }};
  }
  int count(char wanted) const {
    const std::string text = out.str();
    return static_cast<int>(std::count(text.begin(), text.end(), wanted));
  }
};

}  // namespace

TEST_CASE("a progress bar on a terminal redraws one line at most ten times a second") {
  Fake fake;
  {
    Progress bar(1000, "samples", 0, fake.sink(true));
    for (int i = 1; i <= 1000; i++) {
      fake.now += 0.01;
      bar.update(i, "loss 0.5");
    }
    CHECK(fake.count('\n') == 0);
    CHECK(fake.count('\r') <= 102);
    CHECK(fake.count('\r') >= 90);
  }
  CHECK(fake.count('\n') == 1);
  CHECK(fake.out.str().ends_with(
      "\r[########################] 100%  loss 0.5  100 samples/s  in 10.0 s\n"));
}

TEST_CASE("a progress bar elsewhere prints a line for every tenth") {
  Fake fake;
  Progress bar(200, "steps", 0, fake.sink(false));
  for (int i = 1; i <= 200; i++) {
    fake.now += 1;
    bar.update(i);
  }
  bar.finish();
  CHECK(fake.count('\r') == 0);
  CHECK(fake.count('\n') == 10);
  CHECK(fake.out.str().starts_with("[##......................]  10%  1.0 steps/s  3:00 left\n"));
  CHECK(fake.out.str().ends_with("[########################] 100%  1.0 steps/s  in 200.0 s\n"));
}

TEST_CASE("the time left does not count what the first step took") {
  Fake fake;
  Progress bar(10, "steps", 0, fake.sink(false));
  fake.now += 1000;
  bar.update(1);
  fake.now += 2;
  bar.update(2);
  CHECK(fake.out.str().ends_with(" 20%  0.5 steps/s  0:16 left\n"));
}

TEST_CASE("a progress bar of what ends by the clock says what its caller expects") {
  Fake fake;
  Progress bar(5, "kernels", 0, fake.sink(true));
  fake.now += 3;
  bar.update(1, "1 of 5 kernels, best 1.30x", 12);
  CHECK(
      fake.out.str().ends_with("\r[####....................]  20%  1 of 5 kernels, best 1.30x  "
                               "0:12 left"));
  fake.now += 12;
  bar.update(5, "5 of 5 kernels, best 1.31x", 0);
  bar.finish();
  CHECK(fake.out.str().ends_with(" 100%  5 of 5 kernels, best 1.31x  in 15.0 s\n"));
}

TEST_CASE("a progress bar covers the rest of a longer line and cuts at the terminal's width") {
  Fake fake;
  Progress bar(10, "steps", 0, fake.sink(true, 40));
  fake.now += 1;
  bar.update(1, "a very long field that does not fit");
  CHECK(fake.out.str().size() == 40);  // \r and 39 columns
  Fake wide;
  Progress other(10, "steps", 0, wide.sink(true));
  wide.now += 1;
  other.update(1, "12345");
  wide.now += 1;
  other.update(2, "1");
  CHECK(wide.out.str().ends_with("1  1.0 steps/s  0:08 left    "));
}

TEST_CASE("a progress bar that is left early ends its line where it stood") {
  Fake fake;
  {
    Progress bar(4, "steps", 0, fake.sink(true));
    fake.now += 2;
    bar.update(1, "loss 1");
  }
  CHECK(fake.out.str().ends_with(
      "\r[######..................]  25%  loss 1  0.5 steps/s  in 2.0 s \n"));
}

TEST_CASE("a progress bar that was never updated prints nothing") {
  Fake fake;
  { Progress bar(4, "steps", 0, fake.sink(true)); }
  CHECK(fake.out.str() == "");
}

TEST_CASE("what costs something to say is due three tenths of a second after the last update") {
  Fake fake;
  Progress bar(10, "steps", 0, fake.sink(true));
  CHECK(!bar.is_due());
  fake.now += 0.4;
  CHECK(bar.is_due());
  bar.update(1);
  CHECK(!bar.is_due());
  fake.now += 0.29;
  CHECK(!bar.is_due());
  fake.now += 0.02;
  CHECK(bar.is_due());
}

TEST_CASE("a progress bar needs something to count") {
  CHECK_THROWS_WITH_AS(Progress(0, "steps"), "Progress: cannot count to 0 steps", Error);
}

TEST_CASE("what a checkpoint had before is in no rate and in no time that is left") {
  Fake fake;
  Progress bar(100, "steps", 50, fake.sink(true));
  fake.now += 5;
  bar.update(60);
  CHECK(fake.out.str().find("60%  2.0 steps/s  0:20 left") != std::string::npos);
}
