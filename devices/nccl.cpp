#include "devices/nccl.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>

#include "tiny/env.h"
#include "tiny/error.h"

namespace tiny {
namespace {

using NcclComm = struct NcclCommTag*;
constexpr int kSum = 0;

#define TINY_NCCL_FUNCTIONS(X)                                                       \
  X(GetVersion, (int*))                                                              \
  X(CommInitAll, (NcclComm*, int, const int*))                                       \
  X(GroupStart, ())                                                                  \
  X(GroupEnd, ())                                                                    \
  X(AllReduce, (const void*, void*, size_t, int dtype, int op, NcclComm, GpuStream)) \
  X(Reduce, (const void*, void*, size_t, int dtype, int op, int root, NcclComm, GpuStream))

struct Nccl {
#define TINY_DECLARE(name, parameters) int(*name) parameters = nullptr;
  TINY_NCCL_FUNCTIONS(TINY_DECLARE)
#undef TINY_DECLARE
  const char* (*GetErrorString)(int) = nullptr;

  std::string file, failure;

  Nccl() {
    std::vector<std::string> files{"libnccl.so.2", "/usr/lib/x86_64-linux-gnu/libnccl.so.2",
                                   "/usr/local/nccl/lib/libnccl.so.2"};
    if (const std::string given = env_text("NCCL_LIBRARY"); !given.empty()) files = {given};
    // Multicast over NVLink is slower to set up than all that is added up here, and may be
    // forbidden.
    setenv("NCCL_NVLS_ENABLE", "0", /*overwrite=*/0);
    std::string reason;
    for (const std::string& f : files) {
      void* library = dlopen(f.c_str(), RTLD_NOW | RTLD_LOCAL);
      if (library && bind(library, f)) return;
      if (reason.empty()) reason = library ? failure : dlerror();  // of the linker's path
    }
    failure = "NCCL was not found: searched for";
    for (const std::string& f : files) failure += cat(f == files[0] ? " " : ", ", f);
    failure += cat(" (", reason,
                   "). It comes with NVIDIA's repository (apt install libnccl2) or with PyTorch; "
                   "NCCL_LIBRARY names the file");
  }

 private:
  bool bind(void* library, const std::string& from) {
    failure = "";
#define TINY_BIND(name, parameters)                                      \
  name = reinterpret_cast<decltype(name)>(dlsym(library, "nccl" #name)); \
  if (name == nullptr) failure = cat(from, ": has no function nccl" #name);
    TINY_NCCL_FUNCTIONS(TINY_BIND)
    TINY_BIND(GetErrorString, )
#undef TINY_BIND
    file = from;
    return failure.empty();
  }
};

const Nccl& nccl() {
  static const Nccl& library = *new Nccl;
  return library;
}

void check_nccl(int status, const char* what) {
  if (status != 0)
    throw DeviceError(cat("NCCL: cannot ", what, ": ", nccl().GetErrorString(status), " (", status,
                          "); NCCL_DEBUG=WARN says more"));
}

// ncclDataType_t; -1: it has none.
int number_of(DType t) {
  static const std::map<Scalar, int> known{
      {Scalar::I8, 0},  {Scalar::U8, 1},  {Scalar::I32, 2}, {Scalar::U32, 3}, {Scalar::I64, 4},
      {Scalar::U64, 5}, {Scalar::F16, 6}, {Scalar::F32, 7}, {Scalar::F64, 8}, {Scalar::BF16, 9}};
  const auto at = known.find(t.scalar);
  return at == known.end() ? -1 : at->second;
}

// One communicator for each GPU of a list, kept until the process ends.
const std::vector<NcclComm>& communicators(const std::vector<int>& ordinals) {
  static std::mutex mutex;
  static auto& all = *new std::map<std::vector<int>, std::vector<NcclComm>>;
  const std::lock_guard lock(mutex);
  std::vector<NcclComm>& found = all[ordinals];
  if (found.empty()) {
    std::vector<NcclComm> made(ordinals.size());
    check_nccl(nccl().CommInitAll(made.data(), static_cast<int>(made.size()), ordinals.data()),
               "join the GPUs");
    found = made;
  }
  return found;
}

void start(const NcclSum& s, const std::vector<NcclComm>& comms,
           const std::vector<GpuStream>& streams) {
  const bool everywhere = std::all_of(s.to.begin(), s.to.end(), [](void* to) { return to; });
  const int dtype = number_of(s.dtype);
  for (size_t root = 0; root < (everywhere ? 1 : comms.size()); ++root) {
    if (!s.to[root]) continue;
    for (size_t i = 0; i < comms.size(); ++i)
      check_nccl(
          everywhere
              ? nccl().AllReduce(s.from[i], s.to[i], s.count, dtype, kSum, comms[i], streams[i])
              : nccl().Reduce(s.from[i], i == root ? s.to[root] : nullptr, s.count, dtype, kSum,
                              static_cast<int>(root), comms[i], streams[i]),
          "add up values");
  }
}

}  // namespace

std::string nccl_missing_reason(DType dtype) {
  if (!nccl().failure.empty()) return nccl().failure;
  return number_of(dtype) < 0 ? cat("NCCL does not add up values of ", dtype) : "";
}

std::string nccl_version() {
  if (!nccl().failure.empty()) throw DeviceError(nccl().failure);
  int v = 0;
  check_nccl(nccl().GetVersion(&v), "ask for its version");
  return cat(v / 10000, ".", v / 100 % 100, ".", v % 100, " from ", nccl().file);
}

void nccl_sum(const std::vector<int>& ordinals, const std::vector<GpuStream>& streams,
              std::span<const NcclSum> sums) {
  const std::vector<NcclComm>& comms = communicators(ordinals);
  check_nccl(nccl().GroupStart(), "begin a group");
  for (const NcclSum& s : sums) start(s, comms, streams);
  check_nccl(nccl().GroupEnd(), "start a group");
}

}  // namespace tiny
