#include "runtime/distributed/link.h"

#include <doctest/doctest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

#include "tiny/base/env.h"
#include "tiny/base/error.h"

using namespace tiny;
using namespace std::chrono_literals;

namespace {

bool never(int, short, std::chrono::milliseconds) { return false; }

// Two ends of a connection, or of two with somebody between them.
struct Ends {
  Ends(const LinkKey& caller, const LinkKey& called, Link::Wait wait = never,
       bool has_middle = false) {
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    if (has_middle) REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, middle) == 0);
    first = std::make_unique<Link>(ends[0], caller, Link::Side::Caller, std::move(wait));
    second =
        std::make_unique<Link>(has_middle ? middle[1] : ends[1], called, Link::Side::Called, never);
  }
  ~Ends() {
    if (middle[0] < 0) return;
    ::close(ends[1]);
    ::close(middle[0]);
  }
  // Who of them believes the other one.
  std::pair<Greeted, Greeted> greet() {
    Greeted a = Greeted::NotYet, b = Greeted::NotYet;
    for (int i = 0; i < 8; ++i) {
      a = first->greet();
      if (middle[0] >= 0) pass(ends[1], middle[0]);
      b = second->greet();
      if (middle[0] >= 0) pass(middle[0], ends[1]);
    }
    return {a, b};
  }
  static std::string take(int from) {
    std::string bytes(1 << 17, 0);
    const ssize_t n = ::recv(from, bytes.data(), bytes.size(), MSG_DONTWAIT);
    bytes.resize(static_cast<size_t>(std::max<ssize_t>(n, 0)));
    return bytes;
  }
  static void pass(int from, int to) {
    const std::string bytes = take(from);
    ::send(to, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  int ends[2], middle[2] = {-1, -1};
  std::unique_ptr<Link> first, second;
};

const LinkKey kKey{"a secret", 0};
const std::pair kBoth{Greeted::Yes, Greeted::Yes};

}  // namespace

TEST_CASE("a link is believed by who knows the secret, and the rank that is called, alone") {
  CHECK(Ends(kKey, kKey).greet() == kBoth);
  for (const LinkKey& other : {LinkKey{"another", 0}, LinkKey{"", 0}, LinkKey{"a secret", 1}}) {
    Ends s(kKey, other), back(other, kKey);
    CHECK(s.greet().second == Greeted::No);
    CHECK(s.greet().first == Greeted::No);
    CHECK(back.greet().second == Greeted::No);
  }
  CHECK(Ends({"", 0}, {"", 0}).greet().second == Greeted::No);
}

TEST_CASE("a link waits its whole patience for each part of a message") {
  const EnvOverride limit("COLLECTIVE_TIMEOUT", "7");
  std::vector<std::chrono::milliseconds> waits;
  Link* peer = nullptr;
  Ends s(kKey, kKey, [&](int, short, std::chrono::milliseconds time) {
    waits.push_back(time);
    peer->write("x", 1, "a part");
    return true;
  });
  REQUIRE(s.greet() == kBoth);
  peer = s.second.get();
  std::string text(10, 0);
  s.first->read(text.data(), text.size(), "a text");
  CHECK(text == "xxxxxxxxxx");
  CHECK(waits == std::vector(10, std::chrono::milliseconds(7s)));
}

TEST_CASE("a link whose peer is silent, or has ended, says so") {
  const EnvOverride limit("COLLECTIVE_TIMEOUT", "7");
  Ends s(kKey, kKey);
  REQUIRE(s.greet() == kBoth);
  s.first->set_peer(1);
  s.second->write("xxx", 3, "a text");
  std::string text(10, 0);
  CHECK_THROWS_WITH_AS(s.first->read(text.data(), text.size(), "a text"),
                       "rank 0: rank 1 sends nothing for 7 s (COLLECTIVE_TIMEOUT), at a text",
                       Error);
  const std::string long_text(8 << 20, 'y');
  CHECK_THROWS_WITH_AS(s.first->write(long_text.data(), long_text.size(), "a text"),
                       "rank 0: rank 1 takes nothing for 7 s (COLLECTIVE_TIMEOUT), at a text",
                       Error);
  s.second = nullptr;
  CHECK_THROWS_WITH_AS(s.first->read(text.data(), text.size(), "a text"),
                       "rank 0: rank 1 has ended before a text", Error);
}

TEST_CASE("a link tells a peer that said goodbye from one that was killed") {
  Ends s(kKey, kKey), killed(kKey, kKey);
  REQUIRE(s.greet() == kBoth);
  REQUIRE(killed.greet() == kBoth);
  char text[3];
  CHECK(s.first->read_now(text, 3) == Heard::Nothing);
  s.second->write_now("abc");
  CHECK(s.first->read_now(text, 3) == Heard::All);
  CHECK(std::string(text, 3) == "abc");
  s.second->say_bye();
  s.second = nullptr;
  CHECK(s.first->read_now(text, 3) == Heard::Bye);
  killed.second = nullptr;
  CHECK(killed.first->read_now(text, 3) == Heard::Ended);
}

// WIRE_DAMAGES: how many messages, 300 where it is not set.
TEST_CASE("a message that was damaged on its way is an error, and never another value") {
  const char* const wanted = std::getenv("WIRE_DAMAGES");
  const int count = wanted ? std::atoi(wanted) : 300;
  std::mt19937 random(31);
  int damaged = 0, short_of = 0;
  for (int i = 0; i < count; ++i) {
    Ends s(kKey, kKey, never, /*has_middle=*/true);
    REQUIRE(s.greet() == kBoth);
    std::string text(1 + random() % 40000, 0);
    for (char& c : text) c = static_cast<char>(random());
    s.first->write(text.data(), text.size(), "a text");
    std::string wire = Ends::take(s.ends[1]);
    REQUIRE(wire.size() > text.size());
    const size_t at = random() % wire.size(), size = 1 + random() % 40;
    switch (random() % 5) {
      case 0: wire[at] = static_cast<char>(wire[at] ^ (1 << random() % 8)); break;
      case 1: wire.erase(at, size); break;                     // left out
      case 2: wire.insert(at, wire.substr(0, size)); break;    // said twice
      case 3: wire.insert(at, std::string(size, 'x')); break;  // foreign
      case 4: wire.resize(at); break;                          // cut off
    }
    ::send(s.middle[0], wire.data(), wire.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    ::shutdown(s.middle[0], SHUT_WR);
    std::string got(text.size(), 0);
    try {
      s.second->read(got.data(), got.size(), "a text");
      CHECK(got == text);  // the damage lies behind it
      char more;
      CHECK(s.second->read_now(&more, 1) == Heard::Ended);
    } catch (const LinkError& e) {
      const std::string what = e.what();
      damaged += what.find(" was damaged on its way, before a text") != what.npos;
      short_of += what.find(" has ended before a text") != what.npos;
    }
  }
  MESSAGE(count, " messages: ", damaged, " damaged, ", short_of, " cut short");
  CHECK(damaged + short_of > count * 9 / 10);
  CHECK(damaged > count / 2);
}
