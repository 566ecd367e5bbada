// The rendezvous of ranks (tiny/run/ranks.h): connections between all of them, over TCP. Rank 0
// listens at MASTER_ADDR, on that interface alone, at the port behind MASTER_PORT, which torchrun
// keeps; the others call it, and then one another.
//
// Before anything else is sent or believed both sides of a connection show that they know the
// secret of the run (runtime/distributed/rank_secret.h) in a handshake of TLS
// (runtime/distributed/link.h). Who does not is dropped, and keeps nobody waiting.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/distributed/link.h"

namespace tiny {

struct Address {  // of IPv4, the host in network order
  uint32_t host = 0;
  uint16_t port = 0;
};

uint32_t master_host();  // MASTER_ADDR; throws Error where it is not known

class Listener {
 public:
  // On the interface of that host; port 0: any that is free. Throws Error.
  explicit Listener(const Address& at);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  int socket() const { return socket_; }
  uint16_t port() const { return port_; }

 private:
  int socket_ = -1;
  uint16_t port_ = 0;
};

// All ranks make one at once. Throws Error where some have not come, and nobody has for
// rank_patience().
class Mesh {
 public:
  // `listener`: of rank 0, at the meeting.
  Mesh(const Address& meeting, std::unique_ptr<Listener> listener);

  // By rank, null for this one.
  std::vector<std::unique_ptr<Link>> take_links() && { return std::move(links_); }

 private:
  struct Caller;

  Link& link(int rank) { return *links_.at(static_cast<size_t>(rank)); }
  void call(const Address& to, int peer);
  std::string claim(std::unique_ptr<Link> link, int peer, std::chrono::milliseconds limit);
  void accept_ranks(int wanted);
  void wait_for_callers(std::vector<Caller>& callers, std::chrono::milliseconds limit);
  bool hear(Caller& caller);
  int present() const;

  std::unique_ptr<Listener> listener_;
  std::vector<std::unique_ptr<Link>> links_;  // by rank
  std::vector<Address> table_;                // where ranks listen
  int strangers_ = 0;                         // connections that did not know the secret
};

Mesh first_mesh();

}  // namespace tiny
