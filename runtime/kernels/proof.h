// Proofs of new kernels (codegen/proof/prove.h) beside their compilation, on a thread of their own.
// Verdicts are kept in the cache on disk, so that a kernel is proved once.
#pragma once
#include <future>
#include <string>

#include "codegen/lower.h"
#include "codegen/proof/prove.h"
#include "runtime/schedule/schedule.h"
#include "tiny/base/thread.h"

namespace tiny {

class PendingProof {
 public:
  // Starts the proof, unless CHECK_OOB=0 or its verdict is known. `low` must outlive this.
  PendingProof(const Lowered& low, const Step& step, const Target& target);
  ~PendingProof();
  PendingProof(const PendingProof&) = delete;
  PendingProof& operator=(const PendingProof&) = delete;

  // Waits for the verdict. Throws Bug where the kernel is wrong, and, with CHECK_OOB=2, where it is
  // unproved.
  void finish();

 private:
  const std::string name_;
  const int64_t mode_;
  std::string folder_, key_;  // of the cache
  std::future<Proof> proof_;
  Thread thread_;  // makes it
};

// Counts of this process's proofs.
struct ProofCounts {
  int64_t kernels = 0, recalled = 0;  // kernels asked about, those of them known from the disk
  int64_t verdicts[3] = {0, 0, 0};    // of the others, by Verdict
  int64_t claims = 0, settled[4] = {0, 0, 0, 0}, declared = 0;  // as in Proof, summed
  double seconds = 0;
};
ProofCounts proof_counts();
std::string to_text(const ProofCounts& counts);

}  // namespace tiny
