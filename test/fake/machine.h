// What the parts of the stand-in share.
#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <set>
#include <string>

#include "test/fake/hip.h"

namespace tiny::test {

enum : int {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kInvalidDevice = 101,
  kInvalidImage = 200,
  kInvalidHandle = 400,
  kNotFound = 500,
  kNotReady = 600,
  kIllegalAddress = 700,
  kPeerAccessAlreadyEnabled = 704,
  kLaunchFailure = 719,
};

struct Task {
  std::function<void()> work;
  std::function<bool()> is_ready;  // empty: it is
};
struct Stream {
  int device;
  std::deque<Task> queue;
  int64_t issued = 0, finished = 0;
};

struct CodeHeader {  // before a kernel's code
  static constexpr char kMagic[9] = "FAKEHIP!";
  char magic[8];
  uint64_t bytes, arguments;
};

extern std::recursive_mutex mutex;  // of the whole library
extern FakeHip fake;
extern std::set<Stream*> streams;
extern int lost;                  // what every call gives after a kernel's fault
extern thread_local int current;  // device

// Notes a call; the status that it is to give instead of doing something, or success.
int enter(const std::string& function, const std::string& details = "");

// A stream's next tasks, until so many are done: what cannot go on yet is waited for.
void run_until(Stream& stream, int64_t count);
int add(Stream* stream, std::function<void()> work, std::function<bool()> is_ready = {});
void rest();  // lets other threads call while this one waits for another process

#define ENTER(...)             \
  std::lock_guard lock(mutex); \
  if (const int status = enter(__VA_ARGS__); status != kSuccess) return status

}  // namespace tiny::test
