// Loops that fill stages of shared memory for their later iterations (codegen/kernel/linear.h:
// Loop(range, lead)).
//
// They run from -lead, and each iteration asks whether there is something to fill and something to
// compute. Where all copies are asynchronous and the loop around the arithmetic is unrolled, an
// iteration is a function instead, compiled three times: what fills alone, what does both, and what
// computes alone; and copies are spread over the unrolled iterations. All at once they would fill
// the queue of the unit that copies, for which arithmetic then waits (measurements.md: StagedLoop).
#pragma once
#include <algorithm>
#include <string>
#include <vector>

#include "codegen/kernel/linear.h"

namespace tiny {

class CPrinter;

class StagedLoopPrinter {
 public:
  explicit StagedLoopPrinter(CPrinter& kernel) : kernel_(kernel) {}

  // Looks for a loop that is to be spread. Products of matrix units are none: their registers are
  // others.
  void find(const Linear& program);
  bool is_spread() const { return loop_ != nullptr; }
  // At least so many blocks of the kernel share a multiprocessor.
  int blocks(int threads) const {
    constexpr int kThreads = 512;  // of 128 registers each
    return is_spread() ? std::max(1, kThreads / threads) : 1;
  }

  // Whether the loop is printed here, and what begins or ends.
  bool open(Node loop);
  bool close(Node range);
  // An iteration of an unrolled loop begins.
  void begin_iteration(Node range);

 private:
  // A loop of copies: its range, and the text of an iteration.
  struct Copies {
    Node range;
    std::string text;
  };

  bool is_spread_over(const std::vector<Node>& body, size_t begin);
  void open_ahead(Node loop);
  void close_ahead();
  void print_fill();
  void print_calls();

  CPrinter& kernel_;
  Node loop_ = nullptr, arithmetic_ = nullptr;  // spread: the loop, and the unrolled one in it
  Node ahead_ = nullptr, behind_ = nullptr;     // open: a range that is ahead, and the loop's
  std::vector<Copies> copies_;
  size_t begin_ = 0;  // in the text, of a loop of copies
  int64_t lead_ = 0;
};

}  // namespace tiny
