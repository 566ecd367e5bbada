// A connection between two ranks (tiny/run/ranks.h).
#pragma once
#include <chrono>
#include <cstddef>
#include <functional>
#include <string>

#include "tiny/base/error.h"

namespace tiny {

// A peer has ended, or is silent: "rank 0: rank 1 has ended before a text".
struct LinkError : Error {
  using Error::Error;
};

// Until the socket can be read (POLLIN) or written (POLLOUT), or that time is over: then false.
bool wait_for_socket(int socket, short events, std::chrono::milliseconds limit);

class Link {
 public:
  using Wait = std::function<bool(int socket, short events, std::chrono::milliseconds limit)>;

  // Owns the socket. `wait`: for tests, which have a time of their own.
  Link(int socket, int peer, Wait wait = wait_for_socket);
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;
  ~Link();

  // All bytes, however long they take: LinkError where the peer takes or sends none for
  // rank_patience(), or has ended. `what` they are, for the error.
  void write(const void* data, size_t bytes, const std::string& what);
  void read(void* data, size_t bytes, const std::string& what);

  // The same of few bytes, which are there or will be at once; what does not go is left out.
  bool read_now(void* data, size_t bytes);
  void write_now(const std::string& data);

  int take_socket() &&;

  unsigned long long sent = 0, received = 0;  // messages

 private:
  // Bytes that were moved, 0 where none can be now. Throws as above.
  size_t moved(long result, const char* verb, short events, const std::string& what);

  int socket_;
  const int peer_;
  const Wait wait_;
};

}  // namespace tiny
