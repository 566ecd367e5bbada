// Operands of mma.sync out of shared memory (ldmatrix; PTX ISA, "Warp-level matrix load
// instruction"). The threads of a warp read matrices of 8 rows of 16 bytes together: thread 8 i + r
// reads row r of matrix i and then gets its words of all of them, which are those of a fragment.
//
// In the kernel graph this is a Load of the 16 bytes at the row that the thread reads, with the
// payload Ints{turned}: what the threads read is exchanged between them. Of each matrix thread t
// gets word t % 4 of row t / 4, or where it is turned, which elements of 16 bits can be, column
// t / 4 of rows t % 4 * 2 and the next.
#pragma once
#include <vector>

#include "codegen/options/mma.h"

namespace tiny {

// Of loads, these alone have a payload.
inline bool is_matrix_load(Node load) {
  return !std::holds_alternative<std::monostate>(load->payload);
}

// An operand, of which the elements of fragment `first` along `across` and step `step` along k are
// wanted.
struct FragmentOperand {
  Node x, across, k, first, step;
  Node thread;  // of the warp
};

// The thread's elements in the order that Mma nodes have them; empty where rows of 16 bytes do not
// lie in shared memory. `size` of the fragment along `across`. From `id` on ranges are free.
std::vector<Node> load_matrices(const FragmentOperand& o, const MmaUnit& unit, int size, int id);

}  // namespace tiny
