// Copies of this program that work for it: a process that may crash or hang without harm. It is
// started as a copy of /proc/self/exe, serves requests from a socket before main() would run, and
// ends with its parent.
#pragma once
#include <sys/types.h>

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tiny {

// In a worker: takes a request and gives the answer.
using Service = std::function<std::string(const std::string& request)>;

// To be called before main() (a constructor function) by what offers a service: where this process
// was started as a worker of that name, serves until the parent is gone and does not return.
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

  // What became of it: "signal 11 (Segmentation fault)".
  const std::string& end() const { return end_; }

 private:
  bool says_hello();
  void finish();  // ends the process and notes how it ended

  pid_t process_ = -1;
  int socket_ = -1;
  std::string end_;
};

// Texts and plain values one after another, as requests and answers are made of.
class Packer {
 public:
  template <class T> Packer& add(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    text_.append(reinterpret_cast<const char*>(&value), sizeof value);
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
  template <class T> T get() {  // what is beyond the end is zero
    T value{};
    const std::string_view bytes = cut(sizeof value);
    if (bytes.size() == sizeof value) bytes.copy(reinterpret_cast<char*>(&value), sizeof value);
    return value;
  }
  std::string text() { return std::string(cut(get<size_t>())); }

 private:
  std::string_view cut(size_t bytes) {
    const std::string_view out = text_.substr(0, bytes);
    text_.remove_prefix(out.size());
    return out;
  }
  std::string_view text_;
};

}  // namespace tiny
