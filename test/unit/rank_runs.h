// Several processes that run a test case of this program as ranks, and who else may call them.
#pragma once
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "test/unit/child.h"
#include "tiny/base/error.h"

namespace tiny::test {

// Of no other run that goes on, and of none that the system gives to who asks for any.
inline int next_port() {
  static std::atomic<int> next{0};
  return 10000 + (::getpid() * 14 + 2 * next++) % 22000;
}

// `settings`: more variables, "A=1 B=2", where @ is the number of the rank.
inline Ended run_rank(int r, int count, int port, const std::string& worker, std::string settings) {
  for (size_t at; (at = settings.find('@')) != settings.npos;)
    settings.replace(at, 1, std::to_string(r));
  return run_child(worker, cat("DEVICE=CPU THREADS=1 COLLECTIVE_TIMEOUT=300 MASTER_PORT=", port,
                               " RANK=", r, " WORLD_SIZE=", count, ' ', settings));
}

// Each rank's end.
inline std::vector<Ended> run_ranks(int count, const std::string& worker,
                                    const std::string& settings) {
  const int port = next_port();
  std::vector<Ended> out(static_cast<size_t>(count));
  std::vector<std::thread> threads;
  for (int r = 0; r < count; ++r)
    threads.emplace_back(
        [&, r] { out[static_cast<size_t>(r)] = run_rank(r, count, port, worker, settings); });
  for (std::thread& t : threads) t.join();
  return out;
}

// Somebody at a port of this machine who is no rank.
class Stranger {
 public:
  // Waits until somebody listens there; gives up where nobody does for minutes.
  explicit Stranger(int port) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons(static_cast<uint16_t>(port));
    for (int i = 0; i < 30000; ++i, ::usleep(10000)) {
      socket_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      if (::connect(socket_, reinterpret_cast<sockaddr*>(&to), sizeof to) == 0) return;
      ::close(socket_);
    }
  }
  Stranger(Stranger&& other) noexcept : socket_(std::exchange(other.socket_, -1)) {}
  ~Stranger() {
    if (socket_ >= 0) ::close(socket_);
  }
  int socket() const { return socket_; }
  void says(const std::string& text) const {
    ::send(socket_, text.data(), text.size(), MSG_NOSIGNAL);
  }

 private:
  int socket_;
};

}  // namespace tiny::test
