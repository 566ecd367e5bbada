#include "runtime/distributed/meeting.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "runtime/distributed/rank_secret.h"
#include "tiny/base/env.h"
#include "tiny/base/error.h"
#include "tiny/run/ranks.h"

namespace tiny {

namespace {

using Clock = std::chrono::steady_clock;

std::chrono::milliseconds left_until(Clock::time_point end) {
  return std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now());
}

// torchrun listens at MASTER_PORT itself.
uint16_t meeting_port() {
  const int64_t port = env_int("MASTER_PORT");
  check(port >= 1 && port <= 65534, "MASTER_PORT=", port,
        ": it is a port between 1 and 65534, such as 29500; processes meet at the one behind it");
  return static_cast<uint16_t>(port + 1);
}

sockaddr_in to_system(const Address& a) {
  sockaddr_in out{};
  out.sin_family = AF_INET;
  out.sin_addr.s_addr = a.host;
  out.sin_port = htons(a.port);
  return out;
}

std::string address_text(const Address& a) {
  char host[INET_ADDRSTRLEN] = "";
  ::inet_ntop(AF_INET, &a.host, host, sizeof host);
  return cat(host, ":", a.port);
}

Address own_address(int socket) {
  sockaddr_in a{};
  socklen_t size = sizeof a;
  ::getsockname(socket, reinterpret_cast<sockaddr*>(&a), &size);
  return {a.sin_addr.s_addr, ntohs(a.sin_port)};
}

// Nothing listens there: it is only asked whether that is an address of this machine.
bool is_own_host(uint32_t host) {
  const int s = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in a = to_system({host, 0});
  const bool is_own = ::bind(s, reinterpret_cast<const sockaddr*>(&a), sizeof a) == 0;
  ::close(s);
  return is_own;
}

// -1 where nobody answers within that time.
int connect_to(const Address& to, std::chrono::milliseconds limit) {
  const int s = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const sockaddr_in a = to_system(to);
  int error = 0;
  socklen_t size = sizeof error;
  if (::connect(s, reinterpret_cast<const sockaddr*>(&a), sizeof a) == 0) return s;
  if (errno == EINPROGRESS && wait_for_socket(s, POLLOUT, limit) &&
      ::getsockopt(s, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0)
    return s;
  ::close(s);
  return -1;
}

// Of the first meeting, for later ones.
std::string& secret_of_run() {
  static std::string* secret = new std::string;
  return *secret;
}

}  // namespace

uint32_t master_host() {
  const std::string name = env_text("MASTER_ADDR");
  addrinfo hints{}, *found = nullptr;
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  check(::getaddrinfo(name.c_str(), nullptr, &hints, &found) == 0 && found,
        "ranks: MASTER_ADDR=", name, " is no host that is known");
  const uint32_t host = reinterpret_cast<sockaddr_in*>(found->ai_addr)->sin_addr.s_addr;
  ::freeaddrinfo(found);
  return host;
}

Listener::Listener(const Address& at) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  const int on = 1;
  ::setsockopt(socket_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const sockaddr_in a = to_system(at);
  const bool listens = ::bind(socket_, reinterpret_cast<const sockaddr*>(&a), sizeof a) == 0 &&
                       ::listen(socket_, 128) == 0;
  const int error = errno;
  if (!listens) ::close(socket_);
  check(listens, "rank ", rank(), ": cannot listen at ", address_text(at), ": ",
        std::strerror(error),
        error == EADDRNOTAVAIL ? ": MASTER_ADDR is an address of the machine with RANK 0"
                               : ": give all ranks another MASTER_PORT");
  port_ = own_address(socket_).port;
}

Listener::~Listener() { ::close(socket_); }

namespace {

// What a caller says once it has shown that it is of this run.
struct Claim {
  int32_t rank, count, port;  // where it listens
};

}  // namespace

// A connection that has not shown yet that it is a rank's.
struct Mesh::Caller {
  std::unique_ptr<Link> link;
  uint32_t host;
};

Mesh::Mesh(const Address& meeting, std::unique_ptr<Listener> listener)
    : listener_(std::move(listener)),
      links_(static_cast<size_t>(rank_count())),
      table_(links_.size()) {
  const size_t bytes = table_.size() * sizeof(Address);
  if (rank() == 0) {
    accept_ranks(rank_count() - 1);
    for (int i = 1; i < rank_count(); ++i) link(i).write(table_.data(), bytes, "its start");
  } else {
    call(meeting, 0);
    link(0).read(table_.data(), bytes, "the start");
    // Each calls those before it, and is called by those behind it.
    for (int i = 1; i < rank(); ++i) call(table_[i], i);
    accept_ranks(rank_count() - 1 - rank());
  }
  listener_ = nullptr;
}

// --- Calling -------------------------------------------------------------------------------------

void Mesh::call(const Address& to, int peer) {
  const bool is_here = is_own_host(to.host);
  std::string why = "nobody listens there";
  for (const auto end = Clock::now() + rank_patience(); Clock::now() < end;) {
    std::string key = secret_of_run();
    if (key.empty()) key = find_secret(to.port, is_here);
    if (const int s = connect_to(to, left_until(end)); s >= 0 && key.empty()) {
      why = "it has made no secret yet";
      ::close(s);
    } else if (s >= 0) {
      why = claim(std::make_unique<Link>(s, LinkKey{key, peer}, Link::Side::Caller), peer,
                  left_until(end));
      secret_of_run() = why.empty() ? key : secret_of_run();
      if (why.empty()) return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  throw Error(cat("rank ", rank(), ": no connection to rank ", peer, " at ", address_text(to),
                  " in ", rank_patience().count() / 1000, " s (COLLECTIVE_TIMEOUT): ", why));
}

// Why who is there is not that rank of this run; it may be on its way, and the secret too.
std::string Mesh::claim(std::unique_ptr<Link> link, int peer, std::chrono::milliseconds limit) {
  if (!listener_)
    listener_ = std::make_unique<Listener>(Address{own_address(link->socket()).host, 0});
  const Greeted greeted = link->greet_within(limit);
  if (greeted == Greeted::NotYet) return "who listens there says nothing";
  if (greeted == Greeted::No)
    return "who listens there does not know the secret of this process (TINY_SECRET)";
  const Claim own{rank(), rank_count(), listener_->port()};
  link->set_peer(peer);
  link->write(&own, sizeof own, "it knows who calls");
  links_[peer] = std::move(link);
  return "";
}

// --- Being called --------------------------------------------------------------------------------

void Mesh::accept_ranks(int wanted) {
  std::vector<Caller> callers;
  auto end = Clock::now() + rank_patience();  // of silence: it begins again with each rank
  for (const int all = present() + wanted; present() < all;) {
    check(Clock::now() < end, "rank ", rank(), ": ", present(), " of ", rank_count(),
          " ranks are there after ", rank_patience().count() / 1000, " s (COLLECTIVE_TIMEOUT); ",
          strangers_, " connections did not show that they know the secret of this run ",
          "(TINY_SECRET)");
    const int before = present();
    wait_for_callers(callers, left_until(end));
    if (present() > before) end = Clock::now() + rank_patience();
  }
}

void Mesh::wait_for_callers(std::vector<Caller>& callers, std::chrono::milliseconds limit) {
  constexpr size_t kMax = 256;  // so many may be silent; who was dropped calls again
  std::vector<pollfd> polled{{listener_->socket(), POLLIN, 0}};
  for (const Caller& c : callers) polled.push_back({c.link->socket(), POLLIN, 0});
  if (::poll(polled.data(), polled.size(),
             static_cast<int>(std::clamp<int64_t>(limit.count(), 0, 1000))) <= 0)
    return;
  for (size_t i = callers.size(); i-- > 0;)
    if (polled[i + 1].revents && !hear(callers[i]))
      callers.erase(callers.begin() + static_cast<int64_t>(i));
  if (!polled[0].revents) return;
  sockaddr_in from{};
  socklen_t size = sizeof from;
  const int s =
      ::accept4(listener_->socket(), reinterpret_cast<sockaddr*>(&from), &size, SOCK_CLOEXEC);
  if (s < 0) return;
  callers.push_back(
      {std::make_unique<Link>(s, LinkKey{secret_of_run(), rank()}, Link::Side::Called),
       from.sin_addr.s_addr});
  if (callers.size() > kMax) callers.erase(callers.begin());
}

// False: it is a caller no more, but a rank or a stranger.
bool Mesh::hear(Caller& caller) {
  const Greeted greeted = caller.link->greet();
  if (greeted != Greeted::Yes) {
    strangers_ += greeted == Greeted::No;
    return greeted == Greeted::NotYet;
  }
  Claim c{};
  const Heard heard = caller.link->read_now(&c, sizeof c);
  if (heard != Heard::All) return heard == Heard::Nothing;
  check(c.rank > 0 && c.rank < rank_count() && c.count == rank_count(), "rank ", rank(),
        ": another process says that it is rank ", c.rank, " of ", c.count, ", here there are ",
        rank_count());
  auto& place = links_[c.rank];
  check(!place, "ranks: two processes are rank ", c.rank);
  caller.link->set_peer(c.rank);
  place = std::move(caller.link);
  table_[c.rank] = {caller.host, static_cast<uint16_t>(c.port)};
  return false;
}

int Mesh::present() const {
  return 1 + static_cast<int>(
                 std::ranges::count_if(links_, [](const auto& l) { return l != nullptr; }));
}

Mesh first_mesh() {
  const Address meeting{master_host(), meeting_port()};
  if (rank() > 0) return Mesh(meeting, nullptr);
  auto listener = std::make_unique<Listener>(meeting);
  const OwnSecret secret(meeting.port);  // behind the listener: nobody else has the port
  secret_of_run() = secret.text();
  return Mesh(meeting, std::move(listener));
}

}  // namespace tiny
