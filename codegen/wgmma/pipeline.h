// The pipeline of TMA copies and wgmma over a ring of stages in shared memory
// (codegen/wgmma/tile.h), as a table of steps for producer and consumers. The renderer prints the
// table, and a proof explores the very same one: every interleaving of its threads, copies and
// products.
#pragma once
#include <vector>

#include "codegen/kernel/finding.h"
#include "codegen/wgmma/tile.h"

namespace tiny {

// Where the blocks of a cluster copy for each other, each block has a ring, and all of their
// warpgroups tell each of the threads that fill when they have read a stage. Whatever one of these
// copies it copies when all have read the stage, and none of them reads it again before all has
// landed; so each of the threads that fill sees what it would see if it filled the stages of all
// alone, and that is what the table says and what is proved: one that fills, and all that read.
//
// Each stage has two mbarriers. full: its copies have landed; empty: it has been read. Whoever
// waits follows the ring by the number of a stage and a parity, which changes on each lap.
enum class RingOp : uint8_t {
  WaitEmpty,     // until the stage may be filled
  Expect,        // arrives at full, which then waits for `amount` bytes too
  Copy,          // asks TMA for box `amount`, whose bytes full is told of
  Theirs,        // another block of the cluster asks for it, for both
  WaitFull,      // until the stage may be read
  Multiply,      // issues the products of the stage, as one group
  WaitProducts,  // until all but the last `amount` groups are done
  Release,       // arrives at empty of the stage that was noted, if any, which is then forgotten
  Note,          // the stage
  Sum,           // adds what the stage's products gave to the result
  Use,           // reads the result from registers
  Advance,       // to the next stage
};
struct RingStep {
  RingOp op;
  int64_t amount = 0;
};

struct Ring {
  struct Bytes {
    int64_t offset = 0, size = 0;  // in a stage
  };
  int stages = 0;
  int64_t stage_bytes = 0;
  std::vector<Bytes> boxes;               // copies of a step along k: those of A, then those of B
  std::vector<std::vector<Bytes>> reads;  // the bytes that each warpgroup multiplies
  int full_count = 1, empty_count = 0;    // arrivals
  int fill_parity = 1, read_parity = 0;   // at first
  std::vector<RingStep> fill;             // of the thread that fills, for each step along k
  std::vector<RingStep> read, end;        // of each warpgroup, for each of them and after the last
};
Ring ring_of(const MatrixTile& tile);

// Whether, for any number of tiles of any number of steps along k: no stage is filled while it is
// still to be read or products may be reading it; none is read before all of its bytes have landed;
// every warpgroup multiplies every step once, in order, and reads the result when all is done; and
// nobody waits for ever.
Finding prove_ring(const Ring& ring);

}  // namespace tiny
