#include "runtime/messages.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/device.h"
#include "tiny/env.h"
#include "tiny/error.h"
#include "tiny/ranks.h"
#include "tiny/text.h"

namespace tiny {

namespace {

using Clock = std::chrono::steady_clock;

Clock::time_point deadline() {
  return Clock::now() + std::chrono::seconds(std::max<int64_t>(1, env_int("COLLECTIVE_TIMEOUT")));
}

// Waits until the socket can be read or written; false when the time is over.
bool ready(int socket, short events, Clock::time_point until) {
  for (;;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()).count();
    if (left <= 0) return false;
    pollfd p{socket, events, 0};
    const int n = ::poll(&p, 1, static_cast<int>(std::min<int64_t>(left, 1000)));
    if (n > 0) return true;
    if (n < 0 && errno != EINTR) return false;
  }
}

// A connection to another rank.
class Link {
 public:
  Link(int socket, int peer) : socket_(socket), peer_(peer) {
    const int on = 1;
    ::setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;
  ~Link() {
    if (socket_ >= 0) ::close(socket_);
  }

  void write(const void* data, size_t bytes, const std::string& what) {
    const auto* at = static_cast<const char*>(data);
    const auto until = deadline();
    while (bytes > 0) {
      const ssize_t n = ::send(socket_, at, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n > 0) {
        at += n;
        bytes -= static_cast<size_t>(n);
      } else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
        if (!ready(socket_, POLLOUT, until)) late("takes", what);
      } else {
        ended(what);
      }
    }
  }

  void read(void* data, size_t bytes, const std::string& what) {
    auto* at = static_cast<char*>(data);
    const auto until = deadline();
    while (bytes > 0) {
      if (!ready(socket_, POLLIN, until)) late("sends", what);
      const ssize_t n = ::recv(socket_, at, bytes, MSG_DONTWAIT);
      if (n > 0) {
        at += n;
        bytes -= static_cast<size_t>(n);
      } else if (n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) {
        ended(what);
      }
    }
  }

  int take_socket() && { return std::exchange(socket_, -1); }

  uint64_t sent = 0, received = 0;  // messages

 private:
  [[noreturn]] void ended(const std::string& what) const {
    throw Error(cat("rank ", rank(), ": rank ", peer_, " has ended before ", what));
  }
  [[noreturn]] void late(const char* verb, const std::string& what) const {
    throw Error(cat("rank ", rank(), ": rank ", peer_, " ", verb, " nothing for ",
                    env_int("COLLECTIVE_TIMEOUT"), " s (COLLECTIVE_TIMEOUT), at ", what));
  }

  int socket_;
  const int peer_;
};

// --- Meeting -------------------------------------------------------------------------------------

struct Address {  // where a rank listens
  uint32_t host = 0;
  uint16_t port = 0;
};

int listen_at(uint16_t port, uint16_t* chosen) {
  const int s = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  ::setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_addr.s_addr = htonl(INADDR_ANY);
  a.sin_port = htons(port);
  socklen_t size = sizeof a;
  check(::bind(s, reinterpret_cast<sockaddr*>(&a), size) == 0 && ::listen(s, 64) == 0 &&
            ::getsockname(s, reinterpret_cast<sockaddr*>(&a), &size) == 0,
        "ranks: cannot listen at port ", port, ": ", std::strerror(errno),
        ": give all ranks another MASTER_PORT");
  *chosen = ntohs(a.sin_port);
  return s;
}

// torchrun listens at MASTER_PORT itself.
uint16_t meeting_port() { return static_cast<uint16_t>(env_int("MASTER_PORT") + 1); }

Address master(uint16_t port) {
  const std::string name = env_text("MASTER_ADDR");
  addrinfo hints{}, *found = nullptr;
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  check(::getaddrinfo(name.c_str(), nullptr, &hints, &found) == 0 && found,
        "ranks: MASTER_ADDR=", name, " is no host that is known");
  const uint32_t host = reinterpret_cast<sockaddr_in*>(found->ai_addr)->sin_addr.s_addr;
  ::freeaddrinfo(found);
  return {host, port};
}

int connect_to(const Address& to, int peer) {
  for (const auto until = deadline(); Clock::now() < until;) {
    const int s = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in a{};
    a.sin_family = AF_INET;
    a.sin_addr.s_addr = to.host;
    a.sin_port = htons(to.port);
    if (::connect(s, reinterpret_cast<sockaddr*>(&a), sizeof a) == 0) return s;
    ::close(s);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  throw Error(cat("rank ", rank(), ": no connection to rank ", peer, " in ",
                  env_int("COLLECTIVE_TIMEOUT"), " s (COLLECTIVE_TIMEOUT); rank 0 is at ",
                  env_text("MASTER_ADDR"), ":", meeting_port()));
}

struct Greeting {
  int32_t rank = 0, count = 0;
  Address address;  // the port is where it listens; rank 0 fills in the host
};

class Mesh {
 public:
  // `listener`: at `port`, closed after it; where rank 0 listens is `meeting`.
  Mesh(int listener, uint16_t port, const Address& meeting)
      : links_(static_cast<size_t>(rank_count())) {
    const bool first = rank() == 0;
    std::vector<Address> table(links_.size());
    if (first) {
      for (int i = 1; i < rank_count(); ++i) {
        const Greeting g = accept_one(listener);
        table[static_cast<size_t>(g.rank)] = g.address;
      }
    } else {
      greet(connect_to(meeting, 0), 0, port);
    }
    const size_t bytes = table.size() * sizeof(Address);
    for (int i = 1; first && i < rank_count(); ++i) link(i).write(table.data(), bytes, "its start");
    if (!first) link(0).read(table.data(), bytes, "the start");
    // Each calls those before it, and is called by those behind it.
    for (int i = 1; i < rank(); ++i) greet(connect_to(table[static_cast<size_t>(i)], i), i, port);
    for (int i = std::max(rank() + 1, 1); !first && i < rank_count(); ++i) accept_one(listener);
    ::close(listener);
  }

  Link& link(int i) { return *links_.at(static_cast<size_t>(i)); }

 private:
  void greet(int socket, int peer, uint16_t port) {
    links_[static_cast<size_t>(peer)] = std::make_unique<Link>(socket, peer);
    const Greeting g{rank(), rank_count(), {0, port}};
    link(peer).write(&g, sizeof g, "its start");
  }

  Greeting accept_one(int listener) {
    check(ready(listener, POLLIN, deadline()), "rank ", rank(), ": ", present(), " of ",
          rank_count(), " ranks are there after ", env_int("COLLECTIVE_TIMEOUT"),
          " s (COLLECTIVE_TIMEOUT)");
    sockaddr_in from{};
    socklen_t size = sizeof from;
    const int s = ::accept4(listener, reinterpret_cast<sockaddr*>(&from), &size, SOCK_CLOEXEC);
    check(s >= 0, "ranks: accept: ", std::strerror(errno));
    auto made = std::make_unique<Link>(s, -1);
    Greeting g;
    made->read(&g, sizeof g, "the start");
    check(g.rank > 0 && g.rank < rank_count() && g.count == rank_count(), "rank ", rank(),
          ": another process says that it is rank ", g.rank, " of ", g.count, ", here there are ",
          rank_count());
    auto& place = links_[static_cast<size_t>(g.rank)];
    check(!place, "ranks: two processes are rank ", g.rank);
    place = std::make_unique<Link>(::dup(s), g.rank);
    g.address.host = from.sin_addr.s_addr;
    return g;
  }

  int present() const {
    return 1 + static_cast<int>(std::count_if(links_.begin(), links_.end(),
                                              [](const auto& l) { return l != nullptr; }));
  }

  std::vector<std::unique_ptr<Link>> links_;
};

Mesh* first_mesh() {
  uint16_t port = 0;
  const int listener = listen_at(rank() == 0 ? meeting_port() : uint16_t{0}, &port);
  return new Mesh(listener, port, master(meeting_port()));
}

Link& link_to(int peer) {
  static Mesh* mesh = first_mesh();
  return mesh->link(peer);
}

// --- Messages ------------------------------------------------------------------------------------

constexpr size_t kWhat = 112;

struct Header {
  uint64_t number = 0, bytes = 0;
  char what[kWhat] = {};
};

Header header_of(uint64_t number, size_t bytes, const std::string& what) {
  Header h{number, bytes, {}};
  std::copy_n(what.data(), std::min(what.size(), kWhat - 1), h.what);
  return h;
}

}  // namespace

void send_message(int to, const void* data, size_t bytes, const std::string& what) {
  Link& link = link_to(to);
  const Header h = header_of(link.sent++, bytes, what);
  link.write(&h, sizeof h, what);
  link.write(data, bytes, what);
}

void receive_message(int from, void* data, size_t bytes, const std::string& what) {
  Link& link = link_to(from);
  const Header wanted = header_of(link.received++, bytes, what);
  Header got;
  link.read(&got, sizeof got, what);
  got.what[kWhat - 1] = 0;
  check(
      got.number == wanted.number && got.bytes == bytes && std::strcmp(got.what, wanted.what) == 0,
      "rank ", rank(), " expects message ", wanted.number, ", ", wanted.what, " (", bytes,
      " bytes), and rank ", from, " sends ", got.number, ", ", got.what, " (", got.bytes,
      " bytes): the ranks do not run the same program with the same values");
  link.read(data, bytes, what);
}

std::string text_of_first(std::span<const int> ranks, std::string text, const std::string& what) {
  uint64_t size = text.size();
  for (int i : ranks.subspan(1)) {
    if (rank() == ranks[0]) {
      send_message(i, &size, sizeof size, what);
      send_message(i, text.data(), size, what);
    } else if (rank() == i) {
      receive_message(ranks[0], &size, sizeof size, what);
      text.resize(size);
      receive_message(ranks[0], text.data(), size, what);
    }
  }
  return text;
}

std::vector<int> connect_ranks() {
  uint16_t port = 0;
  const int listener = listen_at(0, &port);
  std::vector<int> all(static_cast<size_t>(rank_count()));
  std::iota(all.begin(), all.end(), 0);
  const std::string at = text_of_first(all, std::to_string(port), "the port of a meeting");
  Mesh mesh(listener, port, master(static_cast<uint16_t>(std::stoi(at))));
  std::vector<int> out;
  for (int i : all) out.push_back(i == rank() ? -1 : std::move(mesh.link(i)).take_socket());
  return out;
}

namespace {

// Where two texts differ first, by lines.
std::string first_difference(const std::string& own, const std::string& other, int other_rank) {
  TextReader a(own), b(other);
  for (int number = 1;; ++number) {
    std::string x, y;
    const bool more_x = static_cast<bool>(std::getline(a, x));
    const bool more_y = static_cast<bool>(std::getline(b, y));
    if (!more_x && !more_y) return "";
    if (x == y && more_x == more_y) continue;
    return cat("the ranks plan different work: step ", number, " is ", more_x ? x : "missing",
               " on rank ", rank(), " and ", more_y ? y : "missing", " on rank ", other_rank);
  }
}

}  // namespace

// Rank 0 tells all others, and hears from each whether it agrees.
void agree_on(const std::string& text) {
  std::string wrong;
  constexpr size_t kReply = 256;
  for (int i = 1; i < rank_count(); ++i) {
    if (rank() != 0 && rank() != i) continue;
    uint64_t size = text.size();
    std::vector<char> reply(kReply);
    if (rank() == 0) {
      send_message(i, &size, sizeof size, "the length of a plan");
      send_message(i, text.data(), size, "a plan");
      receive_message(i, reply.data(), kReply, "an answer to a plan");
      if (reply[0] && wrong.empty()) wrong = reply.data();
      continue;
    }
    receive_message(0, &size, sizeof size, "the length of a plan");
    std::string other(size, 0);
    receive_message(0, other.data(), size, "a plan");
    if (other != text) wrong = first_difference(text, other, 0);
    std::copy_n(wrong.data(), std::min(wrong.size(), kReply - 1), reply.data());
    send_message(0, reply.data(), kReply, "an answer to a plan");
  }
  check(wrong.empty(), wrong);
}

}  // namespace tiny
