// Several processes, perhaps on several machines, that run the same program: ranks. Each has its
// number and their count from the variables that torchrun sets (RANK, WORLD_SIZE, LOCAL_RANK,
// MASTER_ADDR, MASTER_PORT), or from those of MPI or Slurm.
//
// A device RANK:i is one of process i; "CPU" is a device that every process has of its own. All
// processes build the same graph: what is on RANK:i is computed by process i alone, the rest by all
// of them alike, and copies between ranks are messages. So Tensor::shard over rank_devices() is all
// that it takes, if every process makes the same calls with the same values: the same seed, the
// same data, and values read on the host by all (what is read is sent to all).
#pragma once
#include <chrono>
#include <string>
#include <vector>

namespace tiny {

int rank();        // of this process; 0 where there is one alone
int local_rank();  // among those on this machine
int rank_count();  // at least 1
// A device of each process: RANK, RANK:1, ...; with one process alone the default device.
std::vector<std::string> rank_devices();

// How long a process may be silent before those that wait for it give it up: COLLECTIVE_TIMEOUT, a
// second at least.
std::chrono::milliseconds rank_patience();

// Sends the standard output of this process nowhere if it is not rank 0: all do the same, and one
// of them tells. Throws Error where there is no /dev/null.
void mute_other_ranks();

}  // namespace tiny
