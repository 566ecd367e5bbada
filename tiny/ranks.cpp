#include "tiny/ranks.h"

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>

#include "tiny/devices.h"
#include "tiny/env.h"
#include "tiny/error.h"

namespace tiny {

namespace {

// Our row of the environment, else the first of the launchers' variables that is set: Open MPI's,
// those of MPICH and its kin, Slurm's.
int number_of(const char* row, std::initializer_list<const char*> others, int standard) {
  if (const int64_t own = env_int(row); own >= 0) return static_cast<int>(own);
  for (const char* name : others)
    if (const char* set = std::getenv(name)) {
      int value = 0;
      const std::string text = set;
      const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
      check(status == std::errc() && end == text.data() + text.size() && value >= 0, name, "=",
            text, ": expected a number");
      return value;
    }
  return standard;
}

}  // namespace

int rank_count() {
  static const int count = [] {
    // A job of Slurm's without srun has these variables too, and one process.
    const int n =
        number_of("WORLD_SIZE", {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"}, 1);
    check(n >= 1, "WORLD_SIZE=", n, ": there has to be one process");
    return n;
  }();
  return count;
}

int rank() {
  static const int own = [] {
    const int r = number_of("RANK", {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"}, 0);
    check(r < rank_count(), "RANK=", r, ": there are ", rank_count(),
          " processes (WORLD_SIZE), numbered from 0");
    return r;
  }();
  return own;
}

int local_rank() {
  static const int own = number_of(
      "LOCAL_RANK", {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"}, rank());
  return own;
}

std::vector<std::string> rank_devices() {
  return rank_count() == 1 ? devices_from("", 1) : devices_from("RANK", rank_count());
}

void mute_other_ranks() {
  if (rank() > 0 && !std::freopen("/dev/null", "w", stdout)) throw Error("no /dev/null");
}

}  // namespace tiny
