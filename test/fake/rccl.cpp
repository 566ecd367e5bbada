// RCCL of the stand-in: among the GPUs of a process, and among processes.
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "test/fake/hip.h"
#include "test/fake/machine.h"
#include "test/fake/parts.h"

using namespace tiny::test;

namespace {

// A GPU's share of an all-reduce, and the sum once all have given theirs.
struct Comm {
  int device, rank, count;
  std::unique_ptr<Parts> parts = {};  // between processes
  int64_t sums = 0;                   // that were started
  bool is_aborted = false;
};
struct Part {
  const void* from;
  void* to;
  size_t count;
  int dtype;
  Stream* stream;
  int64_t behind = 0;  // what of its stream comes before
};
struct SharedSum {
  size_t ranks;
  std::vector<Part> parts;
  bool done = false;
};
std::vector<std::shared_ptr<SharedSum>> group;

// This process's part is there when it is started, as on GPUs that work by themselves: those that
// wait for it need no call of this one.
int add_part(const Part& part, Comm& comm) {
  run_until(*part.stream, part.stream->issued);
  const int64_t sum = ++comm.sums;
  comm.parts->leave(sum, part.from, part.count * 4);
  const auto work = [&comm, sum, part] {
    if (comm.is_aborted || !part.to) return;
    if (part.dtype == 7)
      comm.parts->add_up(sum, static_cast<float*>(part.to), part.count);
    else
      comm.parts->add_up(sum, static_cast<int32_t*>(part.to), part.count);
  };
  return add(part.stream, work, [&comm, sum, part] {
    return comm.is_aborted || !part.to || comm.parts->has_all(sum);
  });
}

// Ranks give their parts of one sum in order.
int collect(const Part& part, Comm& comm) {
  if (comm.parts) return add_part(part, comm);
  if (comm.rank == 0) group.push_back(std::make_shared<SharedSum>());
  SharedSum& sum = *group.back();
  sum.ranks = static_cast<size_t>(comm.count);
  if (part.stream->device != comm.device || sum.parts.size() != static_cast<size_t>(comm.rank))
    return 5;
  sum.parts.push_back(part);
  return 0;
}

template <class T> void add_up_as(const SharedSum& sum) {
  std::vector<T> total(sum.parts[0].count);
  for (const Part& p : sum.parts)
    for (size_t i = 0; i < total.size(); ++i) total[i] += static_cast<const T*>(p.from)[i];
  for (const Part& p : sum.parts)
    if (p.to) std::memcpy(p.to, total.data(), total.size() * sizeof(T));
}

void add_up(SharedSum& sum) {
  if (std::exchange(sum.done, true)) return;
  for (const Part& p : sum.parts) run_until(*p.stream, p.behind);
  sum.parts[0].dtype == 7 ? add_up_as<float>(sum) : add_up_as<int32_t>(sum);
}

}  // namespace

extern "C" {

const char* ncclGetErrorString(int) { return "the stand-in does not add that up"; }
int ncclGetVersion(int* version) {
  *version = 22105;
  return 0;
}
int ncclCommInitAll(Comm** comms, int count, const int* devices) {
  ENTER("ncclCommInitAll", std::to_string(count));
  for (int i = 0; i < count; ++i) comms[i] = new Comm{devices[i], i, count};
  return 0;
}
struct GroupName {
  char text[128];
};
int ncclGetUniqueId(GroupName* name) {
  ENTER("ncclGetUniqueId");
  std::memset(name->text, 0, sizeof name->text);
  const char* folder = std::getenv("TMPDIR");
  std::strncpy(name->text, folder ? folder : "/tmp", sizeof name->text - 20);
  std::strcat(name->text, "/fake_rccl_XXXXXX");
  return mkdtemp(name->text) ? 0 : 2;
}
int ncclCommInitRank(Comm** comm, int count, GroupName name, int rank) {
  ENTER("ncclCommInitRank", std::to_string(rank) + " of " + std::to_string(count));
  *comm = new Comm{current, rank, count, std::make_unique<Parts>(name.text, rank, count)};
  (*comm)->parts->leave(0, "", 0);
  while (!(*comm)->parts->has_all(0)) rest();
  return 0;
}
int ncclCommGetAsyncError(Comm*, int* status) {
  ENTER("ncclCommGetAsyncError");
  *status = 0;
  return 0;
}
int ncclCommAbort(Comm* comm) {
  ENTER("ncclCommAbort");
  comm->is_aborted = true;
  return 0;
}
int ncclGroupStart() {
  ENTER("ncclGroupStart");
  group.clear();
  return 0;
}
int ncclAllReduce(const void* from, void* to, size_t count, int dtype, int op, Comm* comm,
                  Stream* stream) {
  ENTER("ncclAllReduce", std::to_string(count));
  if (op != 0 || (dtype != 2 && dtype != 7)) return 5;  // sums of int32 and float
  return collect({from, to, count, dtype, stream}, *comm);
}
int ncclReduce(const void* from, void* to, size_t count, int dtype, int op, int root, Comm* comm,
               Stream* stream) {
  ENTER("ncclReduce", std::to_string(count) + " to " + std::to_string(root));
  if (op != 0 || (dtype != 2 && dtype != 7) || (comm->rank == root) != (to != nullptr)) return 5;
  return collect({from, to, count, dtype, stream}, *comm);
}
// What a stream does for a sum waits until the others are there, whoever comes first does it all.
int ncclGroupEnd() {
  ENTER("ncclGroupEnd");
  const int before = current;
  for (auto& sum : group) {
    if (sum->parts.size() != sum->ranks) return 5;
    for (Part& part : sum->parts) {
      part.behind = part.stream->issued;
      current = part.stream->device;
      if (const int status = add(part.stream, [sum] { add_up(*sum); }); status) return status;
    }
  }
  current = before;
  return 0;
}

}  // extern "C"
