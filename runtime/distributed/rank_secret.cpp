#include "runtime/distributed/rank_secret.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tiny/base/env.h"
#include "tiny/base/error.h"

namespace tiny {

namespace {

constexpr size_t kBytes = 32;

bool is_own_folder(const std::string& path) {
  struct stat info {};
  return ::lstat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == ::geteuid() &&
         (info.st_mode & 077) == 0;
}

std::string path_of(uint16_t port) { return cat(secret_folder(), "/ranks-", port); }

}  // namespace

std::string secret_folder() {
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  const std::string folder =
      runtime && is_own_folder(runtime) ? cat(runtime, "/tiny") : cat("/tmp/tiny-", ::geteuid());
  ::mkdir(folder.c_str(), 0700);
  check(
      is_own_folder(folder), "ranks: ", folder, " is no folder of this user alone (mode 700), ",
      "which the secret of the processes would lie in: remove it, or set TINY_SECRET to the same ",
      "text for all of them");
  return folder;
}

OwnSecret::OwnSecret(uint16_t port) : text_(env_text("TINY_SECRET")) {
  if (!text_.empty()) return;
  text_.resize(kBytes);
  check(::getrandom(text_.data(), kBytes, 0) == kBytes, "getrandom: ", std::strerror(errno));
  const std::string path = path_of(port), part = cat(path, ".", ::getpid());
  ::unlink(part.c_str());
  const int file = ::open(part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  const bool is_written = file >= 0 && ::write(file, text_.data(), kBytes) == kBytes &&
                          std::rename(part.c_str(), path.c_str()) == 0;
  const int error = errno;
  if (file >= 0) ::close(file);
  check(is_written, "ranks: cannot write ", path, ": ", std::strerror(error),
        ": set TINY_SECRET to the same text for all processes");
  path_ = path;
}

OwnSecret::~OwnSecret() {
  if (!path_.empty()) ::unlink(path_.c_str());
}

std::string find_secret(uint16_t port, bool is_here) {
  if (std::string given = env_text("TINY_SECRET"); !given.empty()) return given;
  check(is_here, "ranks: MASTER_ADDR=", env_text("MASTER_ADDR"), " is another machine: set ",
        "TINY_SECRET to the same text for all processes, such as that of openssl rand -hex 32");
  const int file = ::open(path_of(port).c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (file < 0) return "";
  std::string text(kBytes, '\0');
  const bool is_read = ::read(file, text.data(), kBytes) == kBytes;
  ::close(file);
  return is_read ? text : "";
}

}  // namespace tiny
