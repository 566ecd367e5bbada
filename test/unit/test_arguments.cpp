#include "tiny/arguments.h"

#include <doctest/doctest.h>

using namespace tiny;

TEST_CASE("numbers of the command line are read whole and in their bounds") {
  CHECK(parse_number<int64_t>("steps", "12", 0, 12) == 12);
  CHECK(parse_number<double>("lr", "2.5e-3", 0, 1) == 2.5e-3);
  CHECK_THROWS_WITH_AS(parse_number<int64_t>("steps", "13", 0, 12),
                       "--steps: '13' is no whole number from 0 to 12", Error);
  for (const char* text : {"", "1x", "x", "1.5", " 1", "-1"})
    CHECK_THROWS_AS(parse_number<int64_t>("steps", text, 0, 12), Error);
  CHECK_THROWS_WITH_AS(parse_number<double>("lr", "nan", 0, 1),
                       "--lr: 'nan' is no number from 0 to 1", Error);
}
