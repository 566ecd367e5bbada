#include "devices/cuda_worker.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>

#include "tiny/env.h"
#include "tiny/error.h"

extern char** environ;

namespace tiny {
namespace {

// Tells a process that it is a worker; set for it alone, so it is no row of tiny/env.cpp.
constexpr const char* kWorkerVariable = "TINY_NVRTC_WORKER";
constexpr int kWorkerSocket = 3;                 // descriptor in the worker
constexpr uint64_t kHello = 0x3172636e79746e69;  // what a worker says first
constexpr int kStartMilliseconds = 20000;        // a program that says nothing is no worker
constexpr int kMostWorkers = 16;

// ---------------------------------------------------------------------------- messages

// Texts with their lengths before them, over a socket. The functions are false when the other side
// is gone.
bool send_bytes(int socket, const void* data, size_t bytes) {
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = send(socket, at, bytes, MSG_NOSIGNAL);
    if (n < 0 && errno != EINTR) return false;
    if (n > 0) at += n, bytes -= static_cast<size_t>(n);
  }
  return true;
}

bool receive_bytes(int socket, void* data, size_t bytes) {
  char* at = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t n = recv(socket, at, bytes, 0);
    if (n == 0 || (n < 0 && errno != EINTR)) return false;
    if (n > 0) at += n, bytes -= static_cast<size_t>(n);
  }
  return true;
}

bool send_text(int socket, const std::string& text) {
  const uint64_t bytes = text.size();
  return send_bytes(socket, &bytes, sizeof bytes) && send_bytes(socket, text.data(), bytes);
}

bool receive_text(int socket, std::string& text) {
  uint64_t bytes = 0;
  if (!receive_bytes(socket, &bytes, sizeof bytes)) return false;
  text.resize(bytes);
  return receive_bytes(socket, text.data(), bytes);
}

// ---------------------------------------------------------------------------- in the worker

[[noreturn]] void serve(int socket) {
  // Descriptors of the parent that lack close-on-exec: a pipe's reader waits for all its writers.
  syscall(SYS_close_range, kWorkerSocket + 1, ~0u, 0);
  std::string text, arch;
  bool here = send_bytes(socket, &kHello, sizeof kHello);
  while (here && receive_text(socket, arch) && receive_text(socket, text)) {
    NvrtcResult result;
    try {
      result = nvrtc_compile(text, arch);
    } catch (const std::exception& error) {
      result.log = error.what();
    }
    here = send_text(socket, result.ok ? "ok" : "") && send_text(socket, result.binary) &&
           send_text(socket, result.log);
  }
  _exit(0);
}

// Runs before main(), so that any program that links this library can be started as a worker.
__attribute__((constructor)) void serve_if_worker() {
  if (std::getenv(kWorkerVariable) == nullptr) return;
  unsetenv(kWorkerVariable);
  serve(kWorkerSocket);
}

// ---------------------------------------------------------------------------- in the parent

struct Worker {
  pid_t process = -1;
  int socket = -1;
  bool busy = false;

  bool compile(const std::string& text, const std::string& arch, NvrtcResult& result) {
    std::string ok;
    if (!send_text(socket, arch) || !send_text(socket, text) || !receive_text(socket, ok) ||
        !receive_text(socket, result.binary) || !receive_text(socket, result.log))
      return false;
    result.ok = !ok.empty();
    return true;
  }
};

// The environment of this process with the worker's variables, as posix_spawn takes it.
class Environment {
 public:
  Environment() {
    const std::string library = "NVRTC_LIBRARY=", worker = cat(kWorkerVariable, "=");
    for (char** entry = environ; *entry; ++entry)
      if (std::strncmp(*entry, library.c_str(), library.size()) != 0) entries_.push_back(*entry);
    texts_ = {library + nvrtc_file(), worker + "1"};
    for (std::string& text : texts_) entries_.push_back(text.data());
    entries_.push_back(nullptr);
  }
  char** get() { return entries_.data(); }

 private:
  std::vector<std::string> texts_;
  std::vector<char*> entries_;
};

// Starts this program again with `socket` as descriptor 3; gives its process id, or -1.
pid_t spawn_worker(int socket) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  for (int standard : {STDIN_FILENO, STDOUT_FILENO})
    posix_spawn_file_actions_addopen(&actions, standard, "/dev/null", O_RDWR, 0);
  posix_spawn_file_actions_adddup2(&actions, socket, kWorkerSocket);
  std::string name = "tiny-nvrtc-worker";
  char* arguments[] = {name.data(), nullptr};
  Environment environment;
  pid_t process = -1;
  if (posix_spawn(&process, "/proc/self/exe", &actions, nullptr, arguments, environment.get()))
    process = -1;
  posix_spawn_file_actions_destroy(&actions);
  return process;
}

// Ends a worker that is of no more use. It is asked for first, since after another part of the
// program has waited for it its number may belong to any process.
void end_worker(Worker& worker) {
  if (worker.socket >= 0) close(worker.socket);
  if (worker.process > 0 && waitpid(worker.process, nullptr, WNOHANG) == 0) {
    kill(worker.process, SIGKILL);
    while (waitpid(worker.process, nullptr, 0) < 0 && errno == EINTR) continue;
  }
  worker = Worker{};
}

bool says_hello(int socket) {
  pollfd wait{socket, POLLIN, 0};
  int ready;
  do ready = poll(&wait, 1, kStartMilliseconds);
  while (ready < 0 && errno == EINTR);
  uint64_t hello = 0;
  return ready == 1 && receive_bytes(socket, &hello, sizeof hello) && hello == kHello;
}

// A worker that is ready for requests, or one without a process.
Worker start_worker() {
  Worker worker;
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) return worker;
  // Not descriptor 3 itself: to duplicate that onto itself would leave it close-on-exec.
  const int theirs = fcntl(pair[1], F_DUPFD_CLOEXEC, kWorkerSocket + 1);
  close(pair[1]);
  worker.socket = pair[0];
  if (theirs >= 0) {
    worker.process = spawn_worker(theirs);
    close(theirs);
  }
  if (worker.process < 0 || !says_hello(worker.socket)) end_worker(worker);
  return worker;
}

// Who compiles: this process, one kernel at a time, and the workers.
class Compilers {
 public:
  Compilers() {
    std::atexit([] { compilers().end_all(); });
  }

  static Compilers& compilers() {
    static Compilers& instance = *new Compilers;  // never destroyed: threads may still compile
    return instance;
  }

  NvrtcResult compile(const std::string& text, const std::string& arch) {
    if (Worker* worker = take()) {
      NvrtcResult result;
      const bool alive = worker->compile(text, arch, result);
      give_back(worker, alive);
      if (alive) return result;
      take_this_process();
    }
    const std::unique_ptr<Compilers, void (*)(Compilers*)> lease(
        this, [](Compilers* self) { self->give_back_this_process(); });
    return nvrtc_compile(text, arch);
  }

  std::vector<int> processes() {
    std::lock_guard lock(mutex_);
    std::vector<int> out;
    for (const auto& worker : workers_)
      if (worker->process > 0) out.push_back(worker->process);
    return out;
  }

 private:
  static size_t most_workers() {
    const int64_t wanted = env_int("NVRTC_WORKERS");
    if (wanted >= 0) return static_cast<size_t>(wanted);
    return std::clamp<size_t>(std::thread::hardware_concurrency(), 1, kMostWorkers);
  }

  // A worker, or nullptr with this process taken.
  Worker* take() {
    const size_t most = getpid() == owner_ ? most_workers() : 0;  // not those of a fork's parent
    std::unique_lock lock(mutex_);
    for (;; freed_.wait(lock)) {
      if (!busy_) {
        busy_ = true;
        return nullptr;
      }
      if (most == 0) continue;
      for (const auto& worker : workers_) {
        if (worker->busy) continue;
        worker->busy = true;
        return worker.get();
      }
      if (!starting_fails_ && workers_.size() < most) return start(lock);
    }
  }

  // Starts a worker without holding the lock.
  Worker* start(std::unique_lock<std::mutex>& lock) {
    Worker* worker = workers_.emplace_back(std::make_unique<Worker>()).get();
    worker->busy = true;
    lock.unlock();
    const Worker started = start_worker();
    lock.lock();
    worker->process = started.process;
    worker->socket = started.socket;
    if (started.process < 0) starting_fails_ = true;  // compile() notices and carries on
    return worker;
  }

  void give_back(Worker* worker, bool alive) {
    std::lock_guard lock(mutex_);
    worker->busy = false;
    if (!alive) {
      end_worker(*worker);
      std::erase_if(workers_, [&](const auto& w) { return w.get() == worker; });
    }
    freed_.notify_all();
  }

  void take_this_process() {
    std::unique_lock lock(mutex_);
    freed_.wait(lock, [&] { return !busy_; });
    busy_ = true;
  }

  void give_back_this_process() {
    std::lock_guard lock(mutex_);
    busy_ = false;
    freed_.notify_all();
  }

  // When the process exits; a thread that waits for a worker sees it die.
  void end_all() {
    std::lock_guard lock(mutex_);
    if (getpid() != owner_) return;
    for (const auto& worker : workers_)
      if (!worker->busy) end_worker(*worker);
  }

  const pid_t owner_ = getpid();
  std::mutex mutex_;
  std::condition_variable freed_;  // this process or a worker
  bool busy_ = false;              // this process compiles
  bool starting_fails_ = false;
  std::vector<std::unique_ptr<Worker>> workers_;
};

}  // namespace

NvrtcResult compile_in_workers(const std::string& text, const std::string& arch) {
  return Compilers::compilers().compile(text, arch);
}

std::vector<int> cuda_workers() { return Compilers::compilers().processes(); }

}  // namespace tiny
