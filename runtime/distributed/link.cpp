#include "runtime/distributed/link.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "runtime/device/disk_cache.h"
#include "tiny/base/error.h"
#include "tiny/base/library.h"
#include "tiny/run/ranks.h"

namespace tiny {

namespace {

// --- OpenSSL -------------------------------------------------------------------------------------

using Ssl = void;
using Bio = void;
using CallerKey = unsigned(Ssl*, const char* hint, char* identity, unsigned max_identity,
                           unsigned char* key, unsigned max_key);
using CalledKey = unsigned(Ssl*, const char* identity, unsigned char* key, unsigned max_key);

#define TINY_SSL_FUNCTIONS(X)                                          \
  X(OPENSSL_init_ssl, int, (uint64_t, const void*))                    \
  X(TLS_method, const void*, ())                                       \
  X(SSL_CTX_new, void*, (const void*))                                 \
  X(SSL_CTX_ctrl, long, (void*, int, long, void*))                     \
  X(SSL_CTX_set_ciphersuites, int, (void*, const char*))               \
  X(SSL_CTX_set_num_tickets, int, (void*, size_t))                     \
  X(SSL_CTX_set_default_read_buffer_len, void, (void*, size_t))        \
  X(SSL_CTX_set_psk_client_callback, void, (void*, CallerKey*))        \
  X(SSL_CTX_set_psk_server_callback, void, (void*, CalledKey*))        \
  X(SSL_new, Ssl*, (void*))                                            \
  X(SSL_free, void, (Ssl*))                                            \
  X(SSL_set_ex_data, int, (Ssl*, int, void*))                          \
  X(SSL_get_ex_data, void*, (const Ssl*, int))                         \
  X(SSL_set_bio, void, (Ssl*, Bio*, Bio*))                             \
  X(SSL_set_connect_state, void, (Ssl*))                               \
  X(SSL_set_accept_state, void, (Ssl*))                                \
  X(SSL_do_handshake, int, (Ssl*))                                     \
  X(SSL_read_ex, int, (Ssl*, void*, size_t, size_t*))                  \
  X(SSL_write_ex, int, (Ssl*, const void*, size_t, size_t*))           \
  X(SSL_shutdown, int, (Ssl*))                                         \
  X(SSL_get_error, int, (const Ssl*, int))                             \
  X(ERR_clear_error, void, ())                                         \
  X(BIO_meth_new, void*, (int, const char*))                           \
  X(BIO_meth_set_write, int, (void*, int (*)(Bio*, const char*, int))) \
  X(BIO_meth_set_read, int, (void*, int (*)(Bio*, char*, int)))        \
  X(BIO_meth_set_ctrl, int, (void*, long (*)(Bio*, int, long, void*))) \
  X(BIO_new, Bio*, (const void*))                                      \
  X(BIO_set_data, void, (Bio*, void*))                                 \
  X(BIO_get_data, void*, (Bio*))                                       \
  X(BIO_set_init, void, (Bio*, int))                                   \
  X(BIO_set_flags, void, (Bio*, int))                                  \
  X(BIO_clear_flags, void, (Bio*, int))

// Constants of openssl/ssl.h and openssl/bio.h.
constexpr int kSslError = 1, kWantRead = 2, kWantWrite = 3, kZeroReturn = 6;
constexpr int kSetMode = 33, kSetReadAhead = 41, kSetMinVersion = 123, kTls13 = 0x304;
constexpr int kPartialWrites = 1 | 2;  // ENABLE_PARTIAL_WRITE, ACCEPT_MOVING_WRITE_BUFFER
constexpr int kRetryRead = 9, kRetryWrite = 10, kRetryFlags = 15;
constexpr int kFlush = 11, kSourceAndSink = 0x400;
constexpr uint64_t kNoAtExit = 0x80000;  // threads may use it until the process is gone

struct OpenSsl {
#define X(name, result, args) result(*name) args = nullptr;
  TINY_SSL_FUNCTIONS(X)
#undef X
  OpenSsl();
  void* context = nullptr;  // SSL_CTX
  void* method = nullptr;   // BIO_METHOD: a socket that raises no SIGPIPE and never blocks
};

const OpenSsl& ssl() {
  static const OpenSsl* library = new OpenSsl;
  return *library;
}

int socket_of(Bio* b) { return *static_cast<const int*>(ssl().BIO_get_data(b)); }

int result_of(Bio* b, ssize_t moved, int flag) {
  ssl().BIO_clear_flags(b, kRetryFlags);
  if (moved < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
    ssl().BIO_set_flags(b, flag);
  return static_cast<int>(moved);
}

int write_socket(Bio* b, const char* data, int bytes) {
  const auto n = static_cast<size_t>(bytes);
  return result_of(b, ::send(socket_of(b), data, n, MSG_NOSIGNAL | MSG_DONTWAIT), kRetryWrite);
}

int read_socket(Bio* b, char* data, int bytes) {
  const auto n = static_cast<size_t>(bytes);
  return result_of(b, ::recv(socket_of(b), data, n, MSG_DONTWAIT), kRetryRead);
}

long control_socket(Bio*, int command, long, void*) { return command == kFlush; }

std::string identity_of(const LinkKey& key) { return cat("tiny ranks 2, to rank ", key.called); }

unsigned write_key(const LinkKey& key, unsigned char* to, unsigned max) {
  const std::string own = sha256("tiny ranks 2, key " + key.secret);
  if (key.secret.empty() || own.size() > max) return 0;  // then there is no key
  std::ranges::copy(own, to);
  return static_cast<unsigned>(own.size());
}

const LinkKey& key_of(const Ssl* s) {
  return *static_cast<const LinkKey*>(ssl().SSL_get_ex_data(s, 0));
}

unsigned key_of_caller(Ssl* s, const char*, char* identity, unsigned max_identity,
                       unsigned char* key, unsigned max) {
  const std::string own = identity_of(key_of(s));
  if (own.size() >= max_identity) return 0;
  identity[own.copy(identity, own.size())] = 0;
  return write_key(key_of(s), key, max);
}

unsigned key_of_called(Ssl* s, const char* identity, unsigned char* key, unsigned max) {
  return identity == identity_of(key_of(s)) ? write_key(key_of(s), key, max) : 0;
}

OpenSsl::OpenSsl() {
  const OpenedLibrary opened = open_library({"libssl.so.3"});
  check(opened.handle,
        "ranks speak to one another by OpenSSL, which was not found: ", opened.failure,
        ": extra/setup.sh installs it");
  LibraryFunctions functions(opened.handle);
#define X(name, result, args) functions.need(#name, name);
  TINY_SSL_FUNCTIONS(X)
#undef X
  check(functions.missing().empty(), opened.file, " has no ", functions.missing());
  OPENSSL_init_ssl(kNoAtExit, nullptr);
  context = SSL_CTX_new(TLS_method());
  method = BIO_meth_new(kSourceAndSink, "socket of a rank");
  check(context && method && SSL_CTX_ctrl(context, kSetMinVersion, kTls13, nullptr) == 1 &&
            SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256") == 1,
        opened.file, " does not offer TLS 1.3 with TLS_AES_128_GCM_SHA256");
  SSL_CTX_ctrl(context, kSetMode, kPartialWrites, nullptr);
  SSL_CTX_ctrl(context, kSetReadAhead, 1, nullptr);
  SSL_CTX_set_default_read_buffer_len(context, 1 << 16);
  SSL_CTX_set_num_tickets(context, 0);  // no connection is taken up again
  SSL_CTX_set_psk_client_callback(context, key_of_caller);
  SSL_CTX_set_psk_server_callback(context, key_of_called);
  BIO_meth_set_write(method, write_socket);
  BIO_meth_set_read(method, read_socket);
  BIO_meth_set_ctrl(method, control_socket);
}

}  // namespace

// --- Waiting -------------------------------------------------------------------------------------

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

// --- Links ---------------------------------------------------------------------------------------

Link::Link(int socket, LinkKey key, Side side, Wait wait)
    : socket_(socket), key_(std::move(key)), wait_(std::move(wait)) {
  const int on = 1;
  ::setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  tls_ = ssl().SSL_new(ssl().context);
  Bio* bio = ssl().BIO_new(ssl().method);
  expect(tls_ && bio, "OpenSSL has no memory for a connection");
  ssl().BIO_set_data(bio, &socket_);
  ssl().BIO_set_init(bio, 1);
  ssl().SSL_set_bio(tls_, bio, bio);
  ssl().SSL_set_ex_data(tls_, 0, const_cast<LinkKey*>(&key_));
  side == Side::Caller ? ssl().SSL_set_connect_state(tls_) : ssl().SSL_set_accept_state(tls_);
}

Link::~Link() {
  ssl().SSL_free(tls_);
  ::close(socket_);
}

Greeted Link::greet() {
  ssl().ERR_clear_error();
  const int result = ssl().SSL_do_handshake(tls_);
  if (result == 1) return Greeted::Yes;
  const int error = ssl().SSL_get_error(tls_, result);
  return error == kWantRead || error == kWantWrite ? Greeted::NotYet : Greeted::No;
}

Greeted Link::greet_within(std::chrono::milliseconds limit) {
  const auto end = std::chrono::steady_clock::now() + limit;
  for (;;) {
    const Greeted now = greet();
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    if (now != Greeted::NotYet || !wait_(socket_, POLLIN, left)) return now;
  }
}

// After a call that has moved nothing: waits until the next one may. Throws as above.
void Link::moved(int result, const char* verb, const std::string& what) {
  const int error = ssl().SSL_get_error(tls_, result);
  const std::string peer = cat("rank ", rank(), ": rank ", peer_);
  if (error == kSslError)
    throw LinkError(cat("rank ", rank(), ": the connection to rank ", peer_,
                        " was damaged on its way, before ", what));
  if (error != kWantRead && error != kWantWrite)
    throw LinkError(cat(peer, " has ended before ", what));
  if (!wait_(socket_, error == kWantRead ? POLLIN : POLLOUT, rank_patience()))
    throw LinkError(cat(peer, " ", verb, " nothing for ", rank_patience().count() / 1000,
                        " s (COLLECTIVE_TIMEOUT), at ", what));
}

void Link::write(const void* data, size_t bytes, const std::string& what) {
  const auto* at = static_cast<const char*>(data);
  for (const char* end = at + bytes; at < end;) {
    size_t n = 0;
    ssl().ERR_clear_error();
    const int result = ssl().SSL_write_ex(tls_, at, static_cast<size_t>(end - at), &n);
    at += n;
    if (result != 1) moved(result, "takes", what);
  }
}

void Link::read(void* data, size_t bytes, const std::string& what) {
  auto* at = static_cast<char*>(data);
  for (const char* end = at + bytes; at < end;) {
    size_t n = 0;
    ssl().ERR_clear_error();
    const int result = ssl().SSL_read_ex(tls_, at, static_cast<size_t>(end - at), &n);
    at += n;
    if (result != 1) moved(result, "sends", what);
  }
}

Heard Link::read_now(void* data, size_t bytes) {
  constexpr std::chrono::milliseconds kOnItsWay{200};
  auto* at = static_cast<char*>(data);
  for (const char *begin = at, *end = at + bytes; at < end;) {
    size_t n = 0;
    ssl().ERR_clear_error();
    const int result = ssl().SSL_read_ex(tls_, at, static_cast<size_t>(end - at), &n);
    at += n;
    if (result == 1) continue;
    const int error = ssl().SSL_get_error(tls_, result);
    if (error != kWantRead) return error == kZeroReturn ? Heard::Bye : Heard::Ended;
    if (at == begin) return Heard::Nothing;
    if (!wait_(socket_, POLLIN, kOnItsWay)) return Heard::Ended;
  }
  return Heard::All;
}

void Link::write_now(const std::string& data) {
  size_t n = 0;
  ssl().ERR_clear_error();
  ssl().SSL_write_ex(tls_, data.data(), data.size(), &n);
}

void Link::say_bye() {
  ssl().ERR_clear_error();
  ssl().SSL_shutdown(tls_);
}

}  // namespace tiny
