// A connection between two ranks (tiny/run/ranks.h): TLS 1.3 (RFC 8446) over TCP, by OpenSSL, whose
// library is opened at run time. In its handshake both sides show that they know the secret of the
// run, by a pre-shared key that is made of it. What follows is encrypted, and bytes that were
// changed, left out or added on their way are an error.
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

// What a side has to know. The rank that is called is a part of the handshake, so that nobody can
// pass on to one rank what was meant for another.
struct LinkKey {
  std::string secret;
  int called = 0;
};

enum class Greeted { Yes, NotYet, No };         // No: by somebody who does not know the secret
enum class Heard { All, Nothing, Bye, Ended };  // Bye: the peer has ended as programs do

class Link {
 public:
  using Wait = std::function<bool(int socket, short events, std::chrono::milliseconds limit)>;
  enum class Side { Caller, Called };

  // Owns the socket. `wait`: for tests, which have a time of their own. Throws Error where there is
  // no OpenSSL.
  Link(int socket, LinkKey key, Side side, Wait wait = wait_for_socket);
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;
  ~Link();

  Greeted greet();  // a step of the handshake, once there is something to read
  Greeted greet_within(std::chrono::milliseconds limit);
  void set_peer(int rank) { peer_ = rank; }
  int socket() const { return socket_; }

  // All bytes, however long they take: LinkError where the peer takes or sends none for
  // rank_patience(), or has ended. `what` they are, for the error.
  void write(const void* data, size_t bytes, const std::string& what);
  void read(void* data, size_t bytes, const std::string& what);

  // The same of few bytes, which are there or will be at once; what does not go is left out.
  Heard read_now(void* data, size_t bytes);
  void write_now(const std::string& data);
  void say_bye();  // this process ends as programs do

  unsigned long long sent = 0, received = 0;  // messages

 private:
  void moved(int result, const char* verb, const std::string& what);

  int socket_;
  int peer_ = -1;
  const LinkKey key_;
  const Wait wait_;
  void* tls_ = nullptr;  // SSL
};

}  // namespace tiny
