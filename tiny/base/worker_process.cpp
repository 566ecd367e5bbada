#include "tiny/base/worker_process.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <thread>

#include "tiny/base/error.h"
#include "tiny/base/thread.h"

extern char** environ;

namespace tiny {
namespace {

// Tells a process which service it is to offer and the inode of the socket that its parent made for
// it: "search 12345". Set for it alone, so it is no row of tiny/base/env.cpp.
constexpr const char* kWorkerVariable = "TINY_WORKER";
constexpr int kWorkerSocket = 3;                 // descriptor in the worker
constexpr uint64_t kHello = 0x316b726f776e7974;  // what a worker says first
constexpr double kStartSeconds = 20;             // a program that says nothing is no worker

using Clock = std::chrono::steady_clock;
using Deadline = Clock::time_point;

Deadline in_seconds(double s) {
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(
                            std::chrono::duration<double>(std::min(s, 1e6)));
}

bool send_bytes(int socket, const void* data, size_t bytes) {
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = send(socket, at, bytes, MSG_NOSIGNAL);
    if (n < 0 && errno != EINTR) return false;
    if (n > 0) at += n, bytes -= static_cast<size_t>(n);
  }
  return true;
}

bool send_text(int socket, const std::string& text) {
  const uint64_t bytes = text.size();
  return send_bytes(socket, &bytes, sizeof bytes) && send_bytes(socket, text.data(), bytes);
}

using Answer = WorkerProcess::Answer;

// Until the deadline, or for ever without one.
Answer receive_bytes(int socket, void* data, size_t bytes, const Deadline* deadline) {
  char* at = static_cast<char*>(data);
  while (bytes > 0) {
    if (deadline) {
      const auto left =
          std::chrono::duration_cast<std::chrono::milliseconds>(*deadline - Clock::now());
      pollfd wait{socket, POLLIN, 0};
      const int ready = poll(&wait, 1, static_cast<int>(std::max<int64_t>(0, left.count() + 1)));
      if (ready < 0 && errno == EINTR) continue;
      if (ready == 0) return Answer::Late;
    }
    const ssize_t n = recv(socket, at, bytes, 0);
    if (n == 0 || (n < 0 && errno != EINTR)) return Answer::Died;
    if (n > 0) at += n, bytes -= static_cast<size_t>(n);
  }
  return Answer::Good;
}

Answer receive_text(int socket, std::string& text, const Deadline* deadline) {
  uint64_t bytes = 0;
  const Answer a = receive_bytes(socket, &bytes, sizeof bytes, deadline);
  if (a != Answer::Good) return a;
  text.resize(bytes);
  return receive_bytes(socket, text.data(), bytes, deadline);
}

std::string inode_text(int socket) {
  struct stat info {};
  return fstat(socket, &info) == 0 && S_ISSOCK(info.st_mode) ? cat(info.st_ino) : "";
}

// The service that this process was started to offer; empty for any other program. The variable
// alone says nothing, since a user may have set it, so one that does not name the socket is
// removed.
std::string wanted_service() {
  const char* set = std::getenv(kWorkerVariable);
  if (set == nullptr) return "";
  const std::string text = set, inode = inode_text(kWorkerSocket);
  const size_t space = text.find(' ');
  if (!inode.empty() && space != text.npos && text.substr(space + 1) == inode)
    return text.substr(0, space);
  unsetenv(kWorkerVariable);
  return "";
}

// A worker in an endless kernel does not notice that its parent is gone.
void end_with_parent() {
  Thread("to end with its parent", [parent = getppid()] {
    while (getppid() == parent) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    _exit(1);
  }).detach();
}

// Starts this program again with `socket` as descriptor 3; gives its process id, or -1.
pid_t spawn(int socket, const std::string& name, const std::vector<std::string>& settings) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  for (int standard : {STDIN_FILENO, STDOUT_FILENO})
    posix_spawn_file_actions_addopen(&actions, standard, "/dev/null", O_RDWR, 0);
  posix_spawn_file_actions_adddup2(&actions, socket, kWorkerSocket);
  std::vector<std::string> texts = settings;
  std::vector<char*> entries;
  for (char** entry = environ; *entry; ++entry) {
    const bool replaced = std::ranges::any_of(texts, [&](const std::string& s) {
      return std::strncmp(*entry, s.c_str(), s.find('=') + 1) == 0;
    });
    if (!replaced) entries.push_back(*entry);
  }
  for (std::string& text : texts) entries.push_back(text.data());
  entries.push_back(nullptr);
  std::string title = "tiny-" + name + "-worker";
  char* arguments[] = {title.data(), nullptr};
  pid_t process = -1;
  if (posix_spawn(&process, "/proc/self/exe", &actions, nullptr, arguments, entries.data()))
    process = -1;
  posix_spawn_file_actions_destroy(&actions);
  return process;
}

// The workers of this process.
struct All {
  std::mutex mutex;
  std::set<std::pair<std::string, int>> processes;
};
All& all() {
  static All* instance = new All;
  return *instance;
}

}  // namespace

void serve_if_worker(const char* name, const Service& service) {
  if (wanted_service() != name) return;
  unsetenv(kWorkerVariable);
  signal(SIGINT, SIG_IGN);  // who interrupts the program means the parent
  // Descriptors of the parent that lack close-on-exec: a pipe's reader waits for all its writers.
  syscall(SYS_close_range, kWorkerSocket + 1, ~0u, 0);
  end_with_parent();
  std::string request;
  bool here = send_bytes(kWorkerSocket, &kHello, sizeof kHello);
  while (here && receive_text(kWorkerSocket, request, nullptr) == Answer::Good)
    here = send_text(kWorkerSocket, service(request));
  _exit(0);
}

WorkerProcess::WorkerProcess(const char* name,
                             std::vector<std::pair<std::string, std::string>> settings)
    : name_(name) {
  std::vector<std::string> texts;
  for (const auto& [variable, value] : settings) texts.push_back(variable + "=" + value);
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) return;
  // Not descriptor 3 itself: to duplicate that onto itself would leave it close-on-exec.
  const int theirs = fcntl(pair[1], F_DUPFD_CLOEXEC, kWorkerSocket + 1);
  close(pair[1]);
  socket_ = pair[0];
  if (theirs >= 0) {
    texts.push_back(cat(kWorkerVariable, "=", name, " ", inode_text(theirs)));
    process_ = spawn(theirs, name, texts);
    close(theirs);
  }
  if (process_ < 0 || !says_hello()) {
    finish();
    return;
  }
  std::lock_guard lock(all().mutex);
  all().processes.emplace(name, process_);
}

std::vector<int> worker_processes(const char* name) {
  std::lock_guard lock(all().mutex);
  std::vector<int> out;
  for (const auto& [of, process] : all().processes)
    if (of == name) out.push_back(process);
  return out;
}

WorkerProcess::~WorkerProcess() { finish(); }

bool WorkerProcess::says_hello() {
  uint64_t hello = 0;
  const Deadline deadline = in_seconds(kStartSeconds);
  return receive_bytes(socket_, &hello, sizeof hello, &deadline) == Answer::Good && hello == kHello;
}

// It is asked for before it is ended, since after another part of the program has waited for it its
// number may belong to any process.
void WorkerProcess::finish() {
  if (socket_ >= 0) close(socket_);
  socket_ = -1;
  if (process_ <= 0) return;
  {
    std::lock_guard lock(all().mutex);
    all().processes.erase({name_, process_});
  }
  int status = 0;
  pid_t seen = waitpid(process_, &status, WNOHANG);
  if (seen == 0) {
    kill(process_, SIGKILL);
    while ((seen = waitpid(process_, &status, 0)) < 0 && errno == EINTR) continue;
  }
  if (seen == process_ && WIFSIGNALED(status))
    end_ = cat("signal ", WTERMSIG(status), " (", strsignal(WTERMSIG(status)), ")");
  else if (seen == process_)
    end_ = cat("status ", WEXITSTATUS(status));
  process_ = -1;
}

WorkerProcess::Answer WorkerProcess::ask(const std::string& request, double seconds,
                                         std::string& answer) {
  if (!alive()) return Answer::Died;
  const Deadline deadline = in_seconds(seconds);
  Answer result = Answer::Died;
  if (send_text(socket_, request)) result = receive_text(socket_, answer, &deadline);
  if (result == Answer::Good) return result;
  if (result == Answer::Died) {
    // The socket closes a moment before the process can be waited for.
    for (int i = 0; i < 100; ++i) {
      siginfo_t info{};
      if (waitid(P_PID, static_cast<id_t>(process_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
          info.si_pid == process_)
        break;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
  finish();
  return result;
}

}  // namespace tiny
