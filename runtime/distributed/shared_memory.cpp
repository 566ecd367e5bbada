#include "runtime/distributed/shared_memory.h"

#include <sched.h>

#include <cstdint>
#include <cstdlib>
#include <thread>
#include <utility>

#include "tiny/base/error.h"
#include "tiny/base/library.h"
#include "tiny/run/ranks.h"

namespace tiny {

namespace {

// The beginnings of ucp/api/ucp.h's structs, of which UCX reads what the mask names.
struct UcpParams {
  uint64_t mask, features;
};
struct UcpWorkerParams {
  uint64_t mask;
  int thread_mode;
};
struct UcpEndpointParams {
  uint64_t mask;
  const void* address;
};
struct UcpRequestParams {
  uint32_t mask, flags;
  uint64_t others[16];
};
using Status = int8_t;  // ucs_status_t, a packed enum

constexpr unsigned kMajor = 1, kMinor = 11;  // of the interface, from Ubuntu 22.04 on
constexpr uint64_t kFeatures = 1, kTags = 1, kWakeup = 16;
constexpr uint64_t kThreadMode = 1, kRemoteAddress = 1;
constexpr int kOneThreadAtATime = 1;  // UCS_THREAD_MODE_SERIALIZED
constexpr Status kOk = 0, kInProgress = 1, kBusy = -15;
constexpr intptr_t kLastError = -100;  // a request that is an address from here on is an error

#define TINY_UCX_FUNCTIONS(X)                                                                     \
  X(ucp_config_read, Status, (const char*, const char*, void**))                                  \
  X(ucp_config_modify, Status, (void*, const char*, const char*))                                 \
  X(ucp_config_release, void, (void*))                                                            \
  X(ucp_init_version, Status, (unsigned, unsigned, const UcpParams*, const void*, void**))        \
  X(ucp_worker_create, Status, (void*, const UcpWorkerParams*, void**))                           \
  X(ucp_worker_get_address, Status, (void*, void**, size_t*))                                     \
  X(ucp_worker_get_efd, Status, (void*, int*))                                                    \
  X(ucp_worker_arm, Status, (void*))                                                              \
  X(ucp_worker_progress, unsigned, (void*))                                                       \
  X(ucp_ep_create, Status, (void*, const UcpEndpointParams*, void**))                             \
  X(ucp_tag_send_nbx, void*, (void*, const void*, size_t, uint64_t, const UcpRequestParams*))     \
  X(ucp_tag_recv_nbx, void*, (void*, void*, size_t, uint64_t, uint64_t, const UcpRequestParams*)) \
  X(ucp_request_check_status, Status, (void*))                                                    \
  X(ucp_request_free, void, (void*))                                                              \
  X(ucs_status_string, const char*, (Status))

// It is to leave signals and calls of mmap alone, and the output to the program. Pieces of 32 KiB
// halve the time of 512 KiB between four ranks on two cores; of such pieces a process has 4 MiB.
constexpr std::pair<const char*, const char*> kSettings[] = {
    {"UCX_HANDLE_ERRORS", "none"},   {"UCX_MEM_EVENTS", "n"},
    {"UCX_LOG_LEVEL", "fatal"},      {"UCX_WARN_UNUSED_ENV_VARS", "n"},
    {"UCX_POSIX_SEG_SIZE", "32768"}, {"UCX_POSIX_RX_BUFS_GROW", "128"}};
// Bytes from which on a message waits for who takes it. Where ranks share cores waiting costs more
// than the copy that it saves.
constexpr const char* kRendezvousFrom = "524288";

struct Ucx {
#define X(name, result, args) result(*name) args = nullptr;
  TINY_UCX_FUNCTIONS(X)
#undef X
  bool is_there = false;

  Ucx() {
    for (const auto& [name, value] : kSettings) setenv(name, value, /*overwrite=*/0);
    const OpenedLibrary opened = open_library({"libucp.so.0"});
    if (!opened.handle) return;
    LibraryFunctions functions(opened.handle);
#define X(name, result, args) functions.need(#name, name);
    TINY_UCX_FUNCTIONS(X)
#undef X
    is_there = functions.missing().empty();
  }

  // A worker that reaches others through shared memory alone; null where there is no room for any.
  void* new_worker() const {
    void *config = nullptr, *context = nullptr, *worker = nullptr;
    if (ucp_config_read(nullptr, nullptr, &config) != kOk) return nullptr;
    const UcpParams params{kFeatures, kTags | kWakeup};
    const UcpWorkerParams worker_params{kThreadMode, kOneThreadAtATime};
    const bool is_made = ucp_config_modify(config, "TLS", "posix") == kOk &&
                         ucp_config_modify(config, "RNDV_THRESH", kRendezvousFrom) == kOk &&
                         ucp_init_version(kMajor, kMinor, &params, config, &context) == kOk &&
                         ucp_worker_create(context, &worker_params, &worker) == kOk;
    ucp_config_release(config);
    return is_made ? worker : nullptr;
  }
};

const Ucx& ucx() {
  static const Ucx* library = new Ucx;
  return *library;
}

bool is_error(const void* request) {
  const auto status = reinterpret_cast<intptr_t>(request);
  return status < 0 && status >= kLastError;
}

void check_status(Status status, const char* verb) {
  check(status == kOk, "rank ", rank(), ": UCX cannot ", verb, ": ",
        ucx().ucs_status_string(status));
}

constexpr UcpRequestParams kPlain{0, 0, {}};

}  // namespace

SharedMemory::SharedMemory() {
  if (!ucx().is_there) return;
  worker_ = ucx().new_worker();
  void* address = nullptr;
  size_t bytes = 0;
  if (!worker_ || ucx().ucp_worker_get_efd(worker_, &wakeup_) != kOk ||
      ucx().ucp_worker_get_address(worker_, &address, &bytes) != kOk)
    return;
  address_.assign(static_cast<const char*>(address), bytes);
}

void SharedMemory::connect(int peer, const std::string& address) {
  const UcpEndpointParams params{kRemoteAddress, address.data()};
  void* endpoint = nullptr;
  check_status(ucx().ucp_ep_create(worker_, &params, &endpoint),
               cat("open the memory of rank ", peer, ", which is on this machine").c_str());
  peers_[peer] = endpoint;
}

bool SharedMemory::send(int to, const void* data, size_t bytes, const Idle& idle) {
  const auto tag = static_cast<uint64_t>(rank());
  return complete(ucx().ucp_tag_send_nbx(peers_.at(to), data, bytes, tag, &kPlain), idle);
}

bool SharedMemory::receive(int from, void* data, size_t bytes, const Idle& idle) {
  const auto tag = static_cast<uint64_t>(from);
  return complete(ucx().ucp_tag_recv_nbx(worker_, data, bytes, tag, ~uint64_t{0}, &kPlain), idle);
}

bool SharedMemory::complete(void* request, const Idle& idle) {
  // So often it looks for work before it sleeps, since waking up takes longer than a short message;
  // not where others may need the core to send it.
  static const int looks_at_most =
      std::thread::hardware_concurrency() >= static_cast<unsigned>(rank_count()) ? 200 : 10;
  check(!is_broken_, "rank ", rank(), ": an earlier message of this process was given up");
  if (!request) return true;
  if (is_error(request))
    check_status(static_cast<Status>(reinterpret_cast<intptr_t>(request)), "pass on a message");
  bool may_come = true;
  Status status = kInProgress;
  for (int looks = 0; (status = ucx().ucp_request_check_status(request)) == kInProgress;) {
    if (ucx().ucp_worker_progress(worker_) > 0) {
      looks = 0;
      continue;
    }
    if (!may_come) {
      is_broken_ = true;
      return false;
    }
    if (++looks < looks_at_most) continue;
    // Where the other side has no room nothing calls when it has: it is to have this core.
    const bool may_sleep = ucx().ucp_worker_arm(worker_) != kBusy;
    if (!may_sleep) ::sched_yield();
    if (!may_sleep && looks % 100 > 0) continue;
    is_broken_ = true;  // until it returns
    may_come = idle(may_sleep ? wakeup_ : -1);
    is_broken_ = false;
  }
  ucx().ucp_request_free(request);
  check_status(status, "pass on a message");
  return true;
}

}  // namespace tiny
