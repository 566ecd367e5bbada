#include "devices/webgpu/browser.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

#include "devices/webgpu/scripts.h"
#include "tiny/base/env.h"
#include "tiny/base/error.h"

extern char** environ;

namespace tiny {

namespace {

[[noreturn]] void fail(const std::string& why) { throw DeviceError("WEBGPU: " + why); }

// A write to a process that has ended is an error, not the end of this one.
class NoPipeSignal {
 public:
  NoPipeSignal() : before_(signal(SIGPIPE, SIG_IGN)) {}
  ~NoPipeSignal() { signal(SIGPIPE, before_); }

 private:
  void (*before_)(int);
};

}  // namespace

Browser::Browser() = default;

Browser::~Browser() {
  if (!is_open()) return;
  close(to_);  // it ends by itself
  close(from_);
  waitpid(process_, nullptr, 0);
}

void Browser::open() {
  if (is_open()) return;
  std::array<int, 2> in{}, out{};
  if (pipe2(in.data(), O_CLOEXEC) || pipe2(out.data(), O_CLOEXEC)) fail("no pipe to node");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in[0], 0);
  posix_spawn_file_actions_adddup2(&actions, out[1], 1);
  std::string program(runner_script()), page(page_script());
  std::vector<std::string> words{"node", "--input-type=module", "-e", program, "--",
                                 page,   env_text("DAWN")};
  std::vector<char*> argv;
  for (std::string& w : words) argv.push_back(w.data());
  argv.push_back(nullptr);
  pid_t process = -1;
  const int error = posix_spawnp(&process, "node", &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(in[0]);
  close(out[1]);
  to_ = in[1];
  from_ = out[0];
  if (error) {
    close(to_);
    close(from_);
    fail(cat("node cannot be started: ", std::strerror(error)));
  }
  process_ = process;
  adapter_ = answer();
}

void Browser::write(const void* data, size_t bytes) {
  const NoPipeSignal guard;
  const auto* at = static_cast<const char*>(data);
  while (bytes) {
    const ssize_t n = ::write(to_, at, bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail("the browser's process has ended");
    at += n;
    bytes -= static_cast<size_t>(n);
  }
}

void Browser::send(Command command, std::initializer_list<uint32_t> words, std::string_view data) {
  send(command, words.begin(), words.size(), data);
}

void Browser::send(Command command, const uint32_t* words, size_t count, std::string_view data) {
  const std::lock_guard lock(mutex_);
  open();
  std::vector<uint32_t> head{static_cast<uint32_t>(8 + 4 * count + data.size()),
                             static_cast<uint32_t>(command)};
  head.insert(head.end(), words, words + count);
  write(head.data(), 4 * head.size());
  write(data.data(), data.size());
}

void Browser::read(void* to, size_t bytes) {
  constexpr int kSeconds = 300;  // SwiftShader is slow
  auto* at = static_cast<char*>(to);
  while (bytes) {
    pollfd wait{from_, POLLIN, 0};
    const int ready = poll(&wait, 1, kSeconds * 1000);
    if (ready < 0 && errno == EINTR) continue;
    if (ready == 0) fail(cat("no answer from the browser in ", kSeconds, " s"));
    const ssize_t n = ::read(from_, at, bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail("the browser's process has ended");
    at += n;
    bytes -= static_cast<size_t>(n);
  }
}

std::string Browser::answer() {
  uint32_t length = 0, status = 0;
  read(&length, sizeof length);
  if (length < sizeof status) fail("an answer without a status");
  read(&status, sizeof status);
  std::string out(length - sizeof status, 0);
  read(out.data(), out.size());
  if (status) fail(out);
  return out;
}

std::string Browser::ask(Command command, std::initializer_list<uint32_t> words) {
  const std::lock_guard lock(mutex_);
  send(command, words);
  return answer();
}

const std::string& Browser::adapter() {
  const std::lock_guard lock(mutex_);
  open();
  return adapter_;
}

}  // namespace tiny
