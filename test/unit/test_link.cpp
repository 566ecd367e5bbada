#include "runtime/distributed/link.h"

#include <doctest/doctest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <vector>

#include "tiny/base/env.h"
#include "tiny/base/error.h"

using namespace tiny;
using namespace std::chrono_literals;

namespace {

// Two ends of a connection; waiting takes no time here, but is written down.
struct Ends {
  Ends() { REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0); }
  ~Ends() { ::close(ends[1]); }
  int ends[2];  // the first becomes a Link's
};

}  // namespace

TEST_CASE("a link waits its whole patience for each part of a message") {
  const EnvOverride limit("COLLECTIVE_TIMEOUT", "7");
  Ends s;
  std::vector<std::chrono::milliseconds> waits;
  Link link(s.ends[0], 1, [&](int, short, std::chrono::milliseconds time) {
    waits.push_back(time);
    return ::write(s.ends[1], "x", 1) == 1;
  });
  std::string text(10, 0);
  link.read(text.data(), text.size(), "a text");
  CHECK(text == "xxxxxxxxxx");
  CHECK(waits == std::vector(10, std::chrono::milliseconds(7s)));
}

TEST_CASE("a link whose peer is silent, or has ended, says so") {
  const EnvOverride limit("COLLECTIVE_TIMEOUT", "7");
  Ends s;
  int left = 3;
  Link link(s.ends[0], 1, [&](int, short, std::chrono::milliseconds) {
    return left-- > 0 && ::write(s.ends[1], "x", 1) == 1;
  });
  std::string text(10, 0);
  CHECK_THROWS_WITH_AS(link.read(text.data(), text.size(), "a text"),
                       "rank 0: rank 1 sends nothing for 7 s (COLLECTIVE_TIMEOUT), at a text",
                       Error);
  ::shutdown(s.ends[1], SHUT_WR);
  CHECK_THROWS_WITH_AS(link.read(text.data(), text.size(), "a text"),
                       "rank 0: rank 1 has ended before a text", Error);
  const std::string long_text(8 << 20, 'y');
  CHECK_THROWS_WITH_AS(link.write(long_text.data(), long_text.size(), "a text"),
                       "rank 0: rank 1 takes nothing for 7 s (COLLECTIVE_TIMEOUT), at a text",
                       Error);
}
