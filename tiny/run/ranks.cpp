#include "tiny/run/ranks.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>

#include "tiny/base/env.h"
#include "tiny/base/error.h"
#include "tiny/run/devices.h"

namespace tiny {

namespace {

constexpr int kMaxRanks = 1 << 16;

// Our row of the environment, else the first of the launchers' variables that is set: Open MPI's,
// those of MPICH and its kin, Slurm's. Throws Error unless it is from `least` to `most`.
int number_of(const char* row, std::initializer_list<const char*> others, int standard, int least,
              int most) {
  const auto checked = [&](const char* name, int64_t value) {
    check(value >= least && value <= most, name, "=", value, ": expected a number from ", least,
          " to ", most, most < kMaxRanks ? cat(", of ", most + 1, " processes (WORLD_SIZE)") : "");
    return static_cast<int>(value);
  };
  if (const int64_t own = env_int(row); own != -1) return checked(row, own);
  for (const char* name : others)
    if (const char* set = std::getenv(name)) {
      int64_t value = 0;
      const std::string text = set;
      const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
      check(status == std::errc() && end == text.data() + text.size(), name, "=", text,
            ": expected a number");
      return checked(name, value);
    }
  return standard;
}

// They are looked at together: a wrong one is an error whichever is asked for.
struct Numbers {
  int count, rank, local;
};

Numbers read_numbers() {
  // A job of Slurm's without srun has these variables too, and one process.
  const int count = number_of(
      "WORLD_SIZE", {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"}, 1, 1, kMaxRanks);
  const int own = number_of("RANK", {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"},
                            count == 1 ? 0 : -1, 0, count - 1);
  check(own >= 0, "WORLD_SIZE=", count, ": each process needs its number from 0 to ", count - 1,
        " in RANK");
  const int local =
      number_of("LOCAL_RANK", {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"},
                own, 0, count - 1);
  return {count, own, local};
}

const Numbers& numbers() {
  static const Numbers own = read_numbers();
  return own;
}

}  // namespace

int rank_count() { return numbers().count; }
int rank() { return numbers().rank; }
int local_rank() { return numbers().local; }

std::vector<std::string> rank_devices() {
  return rank_count() == 1 ? devices_from("", 1) : devices_from("RANK", rank_count());
}

std::chrono::milliseconds rank_patience() {
  constexpr int64_t kMax = 1 << 30;  // seconds: a time that far ahead is still a number
  return std::chrono::seconds(std::clamp<int64_t>(env_int("COLLECTIVE_TIMEOUT"), 1, kMax));
}

void mute_other_ranks() {
  if (rank() > 0 && !std::freopen("/dev/null", "w", stdout)) throw Error("no /dev/null");
}

}  // namespace tiny
