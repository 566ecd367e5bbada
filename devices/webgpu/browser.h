// The child process behind the device WEBGPU, and the commands that devices/webgpu/page.js runs.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <mutex>
#include <string>
#include <string_view>

namespace tiny {

class Browser {
 public:
  // The numbers of page.js. Read and Synchronize are answered, with all errors until then.
  enum class Command : uint32_t {
    Alloc,
    Free,
    Upload,
    Read,
    Copy,
    Load,
    Launch,
    Synchronize,
    Unload,
  };

  Browser();  // nothing is opened yet
  ~Browser();
  Browser(const Browser&) = delete;
  Browser& operator=(const Browser&) = delete;

  bool is_open() const { return process_ > 0; }
  void send(Command command, std::initializer_list<uint32_t> words, std::string_view data = {});
  void send(Command command, const uint32_t* words, size_t count, std::string_view data = {});
  // Sends and waits for the answer's data. Throws DeviceError with the browser's message.
  std::string ask(Command command, std::initializer_list<uint32_t> words);
  const std::string& adapter();  // its name

 private:
  void open();
  void write(const void* data, size_t bytes);
  void read(void* to, size_t bytes);
  std::string answer();

  int process_ = -1, to_ = -1, from_ = -1;
  std::string adapter_;
  std::recursive_mutex mutex_;
};

}  // namespace tiny
