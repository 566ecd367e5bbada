#include "runtime/distributed/link.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "tiny/base/error.h"
#include "tiny/run/ranks.h"

namespace tiny {

bool wait_for_socket(int socket, short events, std::chrono::milliseconds limit) {
  using Clock = std::chrono::steady_clock;
  for (const auto until = Clock::now() + limit;;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()).count();
    if (left <= 0) return false;
    pollfd p{socket, events, 0};
    const int n = ::poll(&p, 1, static_cast<int>(std::min<int64_t>(left, 1000)));
    if (n > 0) return true;
    if (n < 0 && errno != EINTR) return false;
  }
}

Link::Link(int socket, int peer, Wait wait) : socket_(socket), peer_(peer), wait_(std::move(wait)) {
  const int on = 1;
  ::setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

Link::~Link() {
  if (socket_ >= 0) ::close(socket_);
}

int Link::take_socket() && { return std::exchange(socket_, -1); }

size_t Link::moved(long result, const char* verb, short events, const std::string& what) {
  if (result > 0) return static_cast<size_t>(result);
  if (result == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR))
    throw LinkError(cat("rank ", rank(), ": rank ", peer_, " has ended before ", what));
  if (!wait_(socket_, events, rank_patience()))
    throw LinkError(cat("rank ", rank(), ": rank ", peer_, " ", verb, " nothing for ",
                        rank_patience().count() / 1000, " s (COLLECTIVE_TIMEOUT), at ", what));
  return 0;
}

void Link::write(const void* data, size_t bytes, const std::string& what) {
  const auto* at = static_cast<const char*>(data);
  for (const char* end = at + bytes; at < end;)
    at += moved(::send(socket_, at, static_cast<size_t>(end - at), MSG_NOSIGNAL | MSG_DONTWAIT),
                "takes", POLLOUT, what);
}

void Link::read(void* data, size_t bytes, const std::string& what) {
  auto* at = static_cast<char*>(data);
  for (const char* end = at + bytes; at < end;)
    at += moved(::recv(socket_, at, static_cast<size_t>(end - at), MSG_DONTWAIT), "sends", POLLIN,
                what);
}

bool Link::read_now(void* data, size_t bytes) {
  constexpr std::chrono::milliseconds kOnItsWay{200};
  auto* at = static_cast<char*>(data);
  for (const char* end = at + bytes; at < end;) {
    const ssize_t n = ::recv(socket_, at, static_cast<size_t>(end - at), MSG_DONTWAIT);
    const bool later = n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
    if (n <= 0 && !(later && wait_(socket_, POLLIN, kOnItsWay))) return false;
    at += std::max<ssize_t>(n, 0);
  }
  return true;
}

void Link::write_now(const std::string& data) {
  ::send(socket_, data.data(), data.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

}  // namespace tiny
