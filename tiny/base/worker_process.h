// Copies of this program that work for it: a process that may crash or hang without harm. It is
// started as a copy of /proc/self/exe, serves requests from a socket before main() would run, and
// ends with its parent.
#pragma once
#include <sys/types.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace tiny {

// In a worker: takes a request and gives the answer.
using Service = std::function<std::string(const std::string& request)>;

// To be called before main() (a constructor function) by what offers a service: where a
// WorkerProcess of that name started this process, serves until the parent is gone and does not
// return. The environment alone makes no program a worker.
void serve_if_worker(const char* name, const Service& service);

class WorkerProcess {
 public:
  enum class Answer { Good, Died, Late };

  // Starts a worker with these environment variables set besides this process's own. `alive()` says
  // whether that worked.
  WorkerProcess(const char* name, std::vector<std::pair<std::string, std::string>> settings);
  ~WorkerProcess();  // ends it
  WorkerProcess(const WorkerProcess&) = delete;
  WorkerProcess& operator=(const WorkerProcess&) = delete;

  bool alive() const { return process_ > 0; }
  pid_t process() const { return process_; }

  // Sends a request and waits for its answer, for so many seconds at most. A worker that died, or
  // is late and therefore ended, is of no more use.
  Answer ask(const std::string& request, double seconds, std::string& answer);

  // How the process ended: "signal 11 (Segmentation fault)".
  const std::string& end() const { return end_; }

 private:
  bool says_hello();
  void finish();  // ends the process and notes how it ended

  pid_t process_ = -1;
  int socket_ = -1;
  const char* const name_;
  std::string end_;
};

// Process ids of the workers of that name that exist now; for tests.
std::vector<int> worker_processes(const char* name);

// Plain values, texts, lists of them, and structures with a function fields() that ties theirs, one
// after another: what requests and answers are made of.
class Packer {
 public:
  template <class T> Packer& add(const T& value) {
    if constexpr (requires(T & t) { t.fields(); }) {
      std::apply([&](const auto&... f) { (add(f), ...); }, const_cast<T&>(value).fields());
    } else if constexpr (requires { value.size(); }) {
      add(value.size());
      for (const auto& v : value) add(v);
    } else {
      static_assert(std::is_trivially_copyable_v<T>);
      text_.append(reinterpret_cast<const char*>(&value), sizeof value);
    }
    return *this;
  }
  Packer& add(const std::string& text) {
    add(text.size());
    text_ += text;
    return *this;
  }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

class Unpacker {
 public:
  explicit Unpacker(std::string_view text) : text_(text) {}
  template <class T> T get() {  // zero beyond the end
    T value{};
    read(value);
    return value;
  }

 private:
  template <class T> void read(T& value) {
    if constexpr (requires { value.fields(); }) {
      std::apply([&](auto&... f) { (read(f), ...); }, value.fields());
    } else if constexpr (requires { value.resize(1); }) {
      value.resize(std::min(get<size_t>(), text_.size()));
      for (auto& v : value) read(v);
    } else {
      static_assert(std::is_trivially_copyable_v<T>);
      if (text_.size() >= sizeof value) std::memcpy(&value, text_.data(), sizeof value);
      text_.remove_prefix(std::min(sizeof value, text_.size()));
    }
  }
  void read(std::string& text) {
    text = text_.substr(0, get<size_t>());
    text_.remove_prefix(text.size());
  }
  std::string_view text_;
};

}  // namespace tiny
