// Loops that fill stages of shared memory for their later iterations (codegen/kernel/linear.h:
// Loop(range, lead)).
//
// They run from -lead, and each iteration asks whether there is something to fill and something to
// compute. Where the loop around the arithmetic is unrolled, an iteration is a function instead,
// compiled three times: what fills alone, what does both, and what computes alone; and copies are
// spread over the unrolled iterations. All at once they would fill the queue of the unit that
// copies, for which arithmetic then waits (measurements.md: StagedLoop). Elements that go through
// registers, as those of a tile that is transposed, are loaded in the first iterations and stored
// in the last ones.
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
  // A statement of the kernel has been printed.
  void printed(Node n);

 private:
  // A loop of copies: its range, and the text of an iteration; of one through registers what is
  // loaded, and the text before, of and behind that.
  struct Copies {
    Node range = nullptr, load = nullptr;
    std::string before, loading, behind;
    std::string text() const { return before + loading + behind; }
  };

  struct Turns;

  bool is_spread_over(const std::vector<Node>& body, size_t begin);
  void open_ahead(Node loop);
  std::string taken();
  void close_ahead();
  void print_fill();
  void print_iteration();
  void print_turn(const Copies& c, const Turns& turns, const std::string& text);
  void print_calls();

  CPrinter& kernel_;
  Node loop_ = nullptr, arithmetic_ = nullptr;  // spread: its statement; the unrolled range in it
  Node ahead_ = nullptr;                        // the statement that has begun a range ahead
  std::vector<Copies> copies_;
  Copies current_;    // while it is printed
  size_t begin_ = 0;  // in the text, of what is printed next of it
};

}  // namespace tiny
