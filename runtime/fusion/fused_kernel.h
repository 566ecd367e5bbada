// A kernel that the scheduler is putting together, and how the loops of two of them fit.
#pragma once
#include <cstdint>
#include <vector>

#include "runtime/analysis/axis_map.h"
#include "tiny/ir/node.h"

namespace tiny {

// A value that a group reads, and by which axes of the group's outputs; or, where `own`, at the
// very place of the element that the first of them writes, perhaps in another shape.
struct Read {
  Node leaf;
  AxisMap axes;
  bool own = false;
  auto operator<=>(const Read&) const = default;
};

struct FusedKernel {
  std::vector<Node> outputs;
  std::vector<Read> reads;
  bool alive = true;
  bool is_gemm = false;     // a product whose operands are used many times: no rows around it
  bool is_chain = false;    // of products (runtime/fusion/chain.h): rows of tiles
  bool late = false;        // waits for what other devices send
  int64_t work = 0;         // elements that it visits
  int size = 0;             // how much there is to compile
  NodeMap<char> inner{16};  // outputs that another one needs: reached through that one
  std::vector<int> producers = {};     // of what it reads, as they were numbered at first
  int place = 0;                       // in an order in which kernels can run
  uint64_t changed = 0, examined = 0;  // when it was made, when merge_rows() looked at it
};

constexpr int64_t kSmallWork = 16384;  // too little to be worth dividing among cores
constexpr size_t kMaxReads = 48;       // arguments of a kernel

// Whether two of these kernels have together no more buffers than one of their device may.
bool have_buffers(std::span<const FusedKernel> kernels, int p, int c, std::span<const Node> roots,
                  const NodeTargets& targets);

inline bool can_join(Node n) { return n->op != Op::Scatter && n->op != Op::Copy; }

bool has_reduce(const FusedKernel& k);
bool is_read(const FusedKernel& k, Node n);

// All reads of `out` are by the same distinct output axes of the consumer; false without a read.
bool reads_own_row(const FusedKernel& to, Node out);

// Whether a value that kernel `to` does not read belongs to the rows of one that it does: it is
// computed in the loops of that one.
bool is_of_read_rows(const FusedKernel& from, const FusedKernel& to, Node out);

// Whether all of kernel `to` are values of rows that `from` goes through: of the shape of one that
// it computes for each of them, and that `to` reads, or sums along them.
bool is_of_rows(const FusedKernel& from, const FusedKernel& to);

// Whether the elements of a row lie apart in memory, those of neighbouring rows side by side: as
// columns do, or the pixels of a channel where channels are innermost. A block that has a row to
// itself would read a few bytes of each line.
bool lie_apart(const FusedKernel& from, const FusedKernel& to);

// Whether two kernels of one device visit the same elements and share an input: one pass over it
// serves both.
bool are_siblings(const FusedKernel& a, const FusedKernel& b);

// What has little to do may as well be done in the loops of others that visit as many elements.
bool is_small_sibling(Node out, const FusedKernel& k);

// The element at the very place of the output's: safe to overwrite while it is read.
bool is_own_element(Node n, const AxisMap& axes, Node out);

// Whether much is read and written beside a product of so many results, as by an optimizer with two
// averages: matrix units stand still meanwhile, and tiles of their results take compilers long.
// `kept`: values of `from` that others than `to` read as well.
bool is_wide_epilogue(const FusedKernel& from, const FusedKernel& to, int64_t results, size_t kept);

}  // namespace tiny
