// What comes over the wire of ranks from others, or damaged: it ends no run where it is no rank's,
// and is an error on all ranks, never another value, where it is.
#include <doctest/doctest.h>
#include <poll.h>

#include <cstdio>
#include <cstring>
#include <functional>
#include <random>

#include "runtime/distributed/link.h"
#include "runtime/distributed/messages.h"
#include "test/unit/rank_runs.h"
#include "tiny/run/ranks.h"
#include "tiny/tensor/tensor.h"

using namespace tiny;
using namespace tiny::test;

namespace {

bool has(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

// What a caller says first that has another secret.
std::string greeting_of_stranger() {
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  Link link(ends[0], {"no secret of this run", 0}, Link::Side::Caller);
  link.greet();
  std::string text(4096, 0);
  const ssize_t n = ::recv(ends[1], text.data(), text.size(), MSG_DONTWAIT);
  ::close(ends[1]);
  text.resize(static_cast<size_t>(std::max<ssize_t>(n, 0)));
  return text;
}

// Somebody between rank 1 and rank 0: passes on what they say, but changes one byte of the first
// connection, the one that is `at` bytes behind the first of one side.
class Between {
 public:
  Between(int from_port, int to_port, bool damages_caller, size_t at)
      : to_port_(to_port), damages_caller_(damages_caller), at_(at) {
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in a{};
    a.sin_family = AF_INET;
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    a.sin_port = htons(static_cast<uint16_t>(from_port));
    const int on = 1;
    ::setsockopt(listener_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    REQUIRE(::bind(listener_, reinterpret_cast<sockaddr*>(&a), sizeof a) == 0);
    REQUIRE(::listen(listener_, 8) == 0);
    thread_ = std::thread([this] { pass_on(); });
  }
  ~Between() {
    ends_ = true;
    thread_.join();
    ::close(listener_);
  }
  bool has_damaged() const { return has_damaged_; }

 private:
  void pass_on() {
    for (int number = 0; !ends_; ++number) {
      pollfd waits{listener_, POLLIN, 0};
      while (!ends_ && ::poll(&waits, 1, 20) <= 0) {
      }
      if (ends_) return;
      const int caller = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      const Stranger called(to_port_);
      pass_between(caller, called.socket(), number == 0);
      ::close(caller);
    }
  }
  void pass_between(int caller, int called, bool damages) {
    size_t seen = 0;
    while (!ends_) {
      pollfd both[2] = {{caller, POLLIN, 0}, {called, POLLIN, 0}};
      if (::poll(both, 2, 20) <= 0) continue;
      for (int i = 0; i < 2; ++i) {
        if (!both[i].revents) continue;
        char part[4096];
        const ssize_t n = ::recv(both[i].fd, part, sizeof part, 0);
        if (n <= 0) return;
        if (damages && damages_caller_ == (i == 0)) {
          if (seen <= at_ && at_ < seen + static_cast<size_t>(n)) {
            part[at_ - seen] ^= 4;
            has_damaged_ = true;
          }
          seen += static_cast<size_t>(n);
        }
        ::send(both[1 - i].fd, part, static_cast<size_t>(n), MSG_NOSIGNAL);
      }
    }
  }

  const int to_port_;
  const bool damages_caller_;
  const size_t at_;
  int listener_ = -1;
  std::atomic<bool> ends_{false}, has_damaged_{false};
  std::thread thread_;
};

}  // namespace

TEST_CASE("worker of wires: adds up ten times") {
  if (!is_child()) return;
  try {
    Tensor x = Tensor::arange(64).to(kF32).shard(rank_devices(), 0).realize();
    for (int i = 0; i < 10; ++i) {
      x = (x + x.sum() / 64).realize();
      tell(cat(i, " sum ", x.sum().item<float>()));
    }
  } catch (const Error& e) {
    tell(e.what());
  }
}

TEST_CASE("worker of wires: the last rank sends another message than the first expects") {
  if (!is_child()) return;
  try {
    const int last = rank_count() - 1;
    float x[4] = {};
    agree_on("all have met");
    if (rank() == last) send_message(0, x, 8, "two numbers");
    if (rank() == 0) receive_message(last, x, 16, "four numbers");
    // Who has no part in it waits for another one.
    receive_message((rank() + 1) % rank_count(), x, 16, "four numbers");
  } catch (const Error& e) {
    tell(e.what());
  }
}

TEST_CASE("strangers at the port of ranks neither end a run nor hold it up") {
  const char* const worker = "worker of wires: adds up ten times";
  const auto one = run_ranks(1, worker, "");
  CHECK(has(one[0].said, "\n9 sum "));
  const int port = next_port();
  Ended first;
  std::thread rank_0([&] { first = run_rank(0, 2, port, worker, ""); });
  std::vector<Stranger> silent;  // more than are listened to
  for (int i = 0; i < 300; ++i) silent.emplace_back(port + 1);
  for (int i = 0; i < 3; ++i) Stranger leaves(port + 1);
  const Stranger asks(port + 1), greets(port + 1), shouts(port + 1), begins(port + 1);
  asks.says("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
  greets.says(greeting_of_stranger());
  begins.says(greeting_of_stranger().substr(0, 100));
  shouts.says(std::string(4096, '\xff'));
  const Ended second = run_rank(1, 2, port, worker, "");
  rank_0.join();
  for (const Ended& e : {first, second}) {
    CHECK(e.status == 0);
    CHECK(e.said == one[0].said);
  }
}

TEST_CASE("ten thousand foreign and damaged greetings and messages end no run") {
  const int port = next_port();
  std::vector<Ended> out(2);
  std::vector<std::thread> threads;
  const auto begin = [&](int r) {
    threads.emplace_back([&, r] {
      out[static_cast<size_t>(r)] = run_rank(r, 2, port, "worker of ranks: tells its number", "");
    });
  };
  begin(0);
  std::mt19937 random(23);
  const std::string greeting = greeting_of_stranger();
  REQUIRE(greeting.size() > 100);
  std::vector<Stranger> silent;  // keep their connections
  for (int i = 0; i < 10000; ++i) {
    std::string text(random() % 400, 0);
    for (char& c : text) c = static_cast<char>(random());
    if (i % 4 > 0) {
      // A greeting of TLS: as it is, with a byte changed, or cut off and gone on with as a message,
      // which is a record of data (type 23).
      text = greeting;
      if (i % 4 > 1) text[random() % text.size()] = static_cast<char>(random());
      if (i % 4 > 2) text = text.substr(0, random() % text.size()) + "\x17\x03\x03\x01" + text;
    }
    Stranger one(port + 1);
    one.says(text);
    if (i % 100 == 0) silent.push_back(std::move(one));
  }
  begin(1);
  for (std::thread& t : threads) t.join();
  for (int r = 0; r < 2; ++r) {
    CHECK(out[static_cast<size_t>(r)].status == 0);
    CHECK(out[static_cast<size_t>(r)].said == cat("rank ", r, " of 2\nheard ", 1 - r, "\n"));
  }
}

TEST_CASE("a byte that is changed between ranks is an error on all of them, or harmless") {
  const char* const worker = "worker of wires: adds up ten times";
  const std::string right = run_ranks(1, worker, "")[0].said;
  std::mt19937 random(5);
  int errors = 0;
  for (int i = 0; i < 8; ++i) {
    const int port = next_port(), own = next_port();
    // The first in the handshake, the others behind it.
    const size_t at = i < 2 ? random() % 200 : 1500 + random() % 3000;
    Between between(own + 1, port + 1, i % 2 == 0, at);
    std::vector<Ended> out(2);
    std::thread rank_0(
        [&] { out[0] = run_rank(0, 2, port, worker, "RANK_TRANSPORT=tls TINY_SECRET=given"); });
    out[1] = run_rank(1, 2, own, worker, "RANK_TRANSPORT=tls TINY_SECRET=given");
    rank_0.join();
    CHECK(between.has_damaged());
    const bool is_right = out[0].said == right && out[1].said == right;
    errors += !is_right;
    if (i < 2) CHECK_MESSAGE(is_right, out[0].output, out[1].output);
    for (const Ended& e : out) {
      if (is_right) continue;
      const size_t end = e.said.rfind('\n', e.said.size() - 2) + 1;
      CHECK(right.starts_with(e.said.substr(0, end)));
      CHECK_MESSAGE(has(e.said.substr(end), " was damaged on its way, before "), e.output);
    }
  }
  CHECK(errors >= 5);
}

TEST_CASE("a message that is not the one expected is an error on all ranks, which say it") {
  for (const char* settings : {"", "RANK_TRANSPORT=tls"})
    for (const Ended& e :
         run_ranks(4, "worker of wires: the last rank sends another message than the first expects",
                   settings)) {
      CHECK(e.status == 0);
      CHECK_MESSAGE(has(e.said,
                        "rank 0 expects message 1, four numbers (16 bytes), and rank 3 "
                        "sends 1, two numbers (8 bytes)"),
                    e.output);
    }
}

TEST_CASE("ranks of one machine exchange the same through memory and over TLS, also mixed") {
  const char* const worker = "worker of wires: adds up ten times";
  const std::string right = run_ranks(1, worker, "")[0].said;
  // How many of them share no memory.
  for (const int apart : {0, 1, 3}) {
    const int port = next_port();
    std::vector<Ended> out(3);
    std::vector<std::thread> threads;
    for (int r = 0; r < 3; ++r)
      threads.emplace_back([&, r] {
        out[static_cast<size_t>(r)] =
            run_rank(r, 3, port, worker, r < apart ? "RANK_TRANSPORT=tls" : "");
      });
    for (std::thread& t : threads) t.join();
    for (const Ended& e : out) CHECK_MESSAGE(e.said == right, e.output);
  }
  for (const Ended& e : run_ranks(2, worker, "RANK_TRANSPORT=mpi COLLECTIVE_TIMEOUT=2"))
    CHECK_MESSAGE(has(e.said, "RANK_TRANSPORT=mpi: expected tls or nothing"), e.output);
}
