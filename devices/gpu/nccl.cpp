#include "devices/gpu/nccl.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>

#include "tiny/base/env.h"
#include "tiny/base/error.h"
#include "tiny/base/library.h"

namespace tiny {
namespace {

constexpr int kSum = 0;

struct NcclUniqueId {
  char bytes[128];
};

#define TINY_NCCL_FUNCTIONS(X)                                                       \
  X(GetVersion, (int*))                                                              \
  X(CommInitAll, (NcclComm*, int, const int*))                                       \
  X(GetUniqueId, (NcclUniqueId*))                                                    \
  X(CommInitRank, (NcclComm*, int, NcclUniqueId, int))                               \
  X(CommGetAsyncError, (NcclComm, int*))                                             \
  X(CommAbort, (NcclComm))                                                           \
  X(GroupStart, ())                                                                  \
  X(GroupEnd, ())                                                                    \
  X(AllReduce, (const void*, void*, size_t, int dtype, int op, NcclComm, GpuStream)) \
  X(Reduce, (const void*, void*, size_t, int dtype, int op, int root, NcclComm, GpuStream))

// ncclDataType_t; -1: it has none.
int number_of(DType t) {
  static const auto& known = *new std::map<Scalar, int>{
      {Scalar::I8, 0},  {Scalar::U8, 1},  {Scalar::I32, 2}, {Scalar::U32, 3}, {Scalar::I64, 4},
      {Scalar::U64, 5}, {Scalar::F16, 6}, {Scalar::F32, 7}, {Scalar::F64, 8}, {Scalar::BF16, 9}};
  const auto at = known.find(t.scalar);
  return at == known.end() ? -1 : at->second;
}

// Where a library may be, and what its errors say.
struct NcclFiles {
  const char *name, *variable;
  std::vector<std::string> files;
  const char* advice;
};

class NcclLibrary : public Nccl {
 public:
  explicit NcclLibrary(const NcclFiles& where) : name_(where.name) {
    std::vector<std::string> files = where.files;
    if (const std::string given = env_text(where.variable); !given.empty()) files = {given};
    // Multicast over NVLink is slower to set up than all that is added up here, and may be
    // forbidden.
    setenv("NCCL_NVLS_ENABLE", "0", /*overwrite=*/0);
    // Connections are made when a group is: the first sum waits for no other process on the host.
    setenv("NCCL_RUNTIME_CONNECT", "0", /*overwrite=*/0);
    const OpenedLibrary opened = open_library(
        files, RTLD_NOW, [this](void* library, const std::string&) { return fault_of(library); });
    file_ = opened.file;
    if (!opened.handle)
      failure_ = cat(name_, " was not found: ", opened.failure, ". It comes with ", where.advice,
                     "; ", where.variable, " names the file");
  }

  std::string missing_reason(DType dtype) const override {
    if (!failure_.empty()) return failure_;
    return number_of(dtype) < 0 ? cat(name_, " does not add up values of ", dtype) : "";
  }

  std::string version() const override {
    if (!failure_.empty()) throw DeviceError(failure_);
    int v = 0;
    check(GetVersion(&v), "ask for its version");
    return cat(v / 10000, ".", v / 100 % 100, ".", v % 100, " from ", file_);
  }

  void sum(const std::vector<int>& ordinals, const std::vector<GpuStream>& streams,
           std::span<const NcclSum> sums) const override {
    const std::vector<NcclComm>& comms = communicators(ordinals);
    check(GroupStart(), "begin a group");
    for (const NcclSum& s : sums) start(s, comms, streams);
    check(GroupEnd(), "start a group");
  }

  std::string new_group() const override {
    NcclUniqueId id;
    check(GetUniqueId(&id), "name a group of processes");
    return {id.bytes, sizeof id.bytes};
  }

  NcclComm join(const std::string& group, int count, int number) const override {
    NcclUniqueId id;
    expect(group.size() == sizeof id.bytes, name_, ": a name of ", group.size(), " bytes");
    std::ranges::copy(group, id.bytes);
    NcclComm comm = nullptr;
    check(CommInitRank(&comm, count, id, number), "join a group of processes");
    return comm;
  }

  void sum_own(NcclComm comm, size_t own, GpuStream stream,
               std::span<const NcclSum> sums) const override {
    check(GroupStart(), "begin a group");
    for (const NcclSum& s : sums) start_own(s, own, comm, stream);
    check(GroupEnd(), "start a group");
  }

  std::string failure(NcclComm comm) const override {
    constexpr int kInProgress = 7;
    int status = 0;
    if (CommGetAsyncError(comm, &status) != 0 || status == 0 || status == kInProgress) return "";
    return cat(name_, ": ", GetErrorString(status), " (", status, ")");
  }

  void abandon(NcclComm comm) const override { CommAbort(comm); }

 private:
  std::string fault_of(void* library) {
    LibraryFunctions functions(library);
#define TINY_NEED(name, parameters) functions.need("nccl" #name, name);
    TINY_NCCL_FUNCTIONS(TINY_NEED)
    TINY_NEED(GetErrorString, )
#undef TINY_NEED
    return functions.missing().empty() ? "" : "has no function " + functions.missing();
  }

  void check(int status, const char* what) const {
    if (status != 0)
      throw DeviceError(cat(name_, ": cannot ", what, ": ", GetErrorString(status), " (", status,
                            "); NCCL_DEBUG=WARN says more"));
  }

  // One communicator for each GPU of a list, kept until the process ends.
  const std::vector<NcclComm>& communicators(const std::vector<int>& ordinals) const {
    const std::lock_guard lock(mutex_);
    std::vector<NcclComm>& found = communicators_[ordinals];
    if (found.empty()) {
      std::vector<NcclComm> made(ordinals.size());
      check(CommInitAll(made.data(), static_cast<int>(made.size()), ordinals.data()),
            "join the GPUs");
      found = made;
    }
    return found;
  }

  void start(const NcclSum& s, const std::vector<NcclComm>& comms,
             const std::vector<GpuStream>& streams) const {
    for (size_t i = 0; i < comms.size(); ++i) start_own(s, i, comms[i], streams[i]);
  }

  // The part of GPU number `own`: one all-reduce where all want it, else one reduction for each
  // that does.
  void start_own(const NcclSum& s, size_t own, NcclComm comm, GpuStream stream) const {
    const bool everywhere = std::ranges::all_of(s.to, [](void* to) { return to; });
    const int dtype = number_of(s.dtype);
    for (size_t root = 0; root < (everywhere ? 1 : s.to.size()); ++root) {
      if (!s.to[root]) continue;
      check(everywhere ? AllReduce(s.from[own], s.to[own], s.count, dtype, kSum, comm, stream)
                       : Reduce(s.from[own], own == root ? s.to[root] : nullptr, s.count, dtype,
                                kSum, static_cast<int>(root), comm, stream),
            "add up values");
    }
  }

#define TINY_DECLARE(name, parameters) int(*name) parameters = nullptr;
  TINY_NCCL_FUNCTIONS(TINY_DECLARE)
#undef TINY_DECLARE
  const char* (*GetErrorString)(int) = nullptr;

  const char* name_;
  std::string file_, failure_;
  mutable std::mutex mutex_;
  mutable std::map<std::vector<int>, std::vector<NcclComm>> communicators_;
};

}  // namespace

// Neither is ever closed: GPUs may still work when the process ends.
const Nccl& nccl() {
  static const Nccl& library =
      *new NcclLibrary({"NCCL",
                        "NCCL_LIBRARY",
                        {"libnccl.so.2", "/usr/lib/x86_64-linux-gnu/libnccl.so.2",
                         "/usr/local/nccl/lib/libnccl.so.2"},
                        "NVIDIA's repository (apt install libnccl2) or with PyTorch"});
  return library;
}

const Nccl& rccl() {
  static const Nccl& library =
      *new NcclLibrary({"RCCL",
                        "RCCL_LIBRARY",
                        {"librccl.so.1", "librccl.so", "/opt/rocm/lib/librccl.so.1"},
                        "AMD's ROCm (Debian, Ubuntu: apt install librccl1)"});
  return library;
}

}  // namespace tiny
