// The kernels that the scheduler puts together out of values: what each computes, what it reads and
// by which of its axes.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/analysis/axis_map.h"
#include "runtime/fusion/dependence_graph.h"
#include "tiny/ir/node.h"

namespace tiny {

// A value that a group reads, and by which axes of the group's outputs; or, where `own`, at the
// very place of the element that the first of them writes, perhaps in another shape.
struct Read {
  Node leaf;
  AxisMap axes;
  bool own = false;
  bool operator==(const Read&) const = default;
};

// Those that a walk has come by.
class ReadSet {
 public:
  ReadSet() : last_(kUsual) { entries_.reserve(kUsual); }
  bool insert(const Read& read);  // whether it is new

 private:
  static constexpr size_t kUsual = 32;  // of a kernel
  struct Entry {
    Read read;
    int before;  // the one of the same leaf, 0 for none
  };
  NodeMap<int> last_;  // of each leaf, counted from 1
  std::vector<Entry> entries_;
};

// A kernel's output as it is written, by its own axes.
Read whole_read(Node output);

// Appends what a node's sources are read by, where the node is by `read`.
void add_sources(const Read& read, std::vector<Read>& sources);

struct FusedKernel {
  std::vector<Node> outputs;  // those that need another one first: they have the outer loops
  std::vector<Read> reads = {};
  bool is_gemm = false;      // a product whose operands are used many times: no rows around it
  bool is_chain = false;     // of products (runtime/fusion/chain.h): rows of tiles
  bool late = false;         // waits for what other devices send
  int64_t work = 0;          // elements that it visits
  int size = 0;              // how much there is to compile
  NodeMap<char> inner = {};  // outputs that another one needs: reached through that one
  int64_t changed = 0;       // FusedKernels::changes() as it became what it is
};

// Kernels by number. One that was merged into another one is part of that: it has no number more.
class FusedKernels {
 public:
  // One for each of the values with memory. `order`: all nodes, sources first.
  FusedKernels(std::span<const Node> order, const NodeMap<char>& stored);

  const FusedKernel& operator[](int k) const { return kernels_[k]; }
  int end() const { return static_cast<int>(kernels_.size()); }  // above all numbers
  bool is_alive(int k) const { return dependences_.find(k) == k; }
  int of(Node value) const;  // the kernel that computes it, -1 for a value without memory
  const DependenceGraph& dependences() const { return dependences_; }
  // All that read what the kernel computes, and perhaps some that no longer do.
  std::vector<int> readers(int k) const;
  int64_t changes() const { return changes_; }

  void mark_chain(int k) { kernels_[k].is_chain = true; }
  // Kernel p becomes part of c.
  void merge(int p, int c);
  std::vector<Node> merged_outputs(int p, int c) const;

  // The values with memory that must be there before an After, and what it is an After of, is read;
  // none for other nodes.
  const std::vector<Node>& waited_for(Node n) const;
  // Whether kernel c may only begin when p has ended.
  bool waits_for(int c, int p) const;

 private:
  void update(int id);
  bool visit(int id, const Read& read);
  void find_producers(int id);

  std::vector<FusedKernel> kernels_;
  std::vector<std::vector<int>> readers_;  // of each kernel, some perhaps several times
  std::vector<int64_t> met_;  // by kernel: the last of changes() that found it to be a producer
  NodeMap<int> first_;        // the kernel of a value with memory before any were merged
  DependenceGraph dependences_;
  mutable NodeMap<std::vector<Node>> waited_;  // by After
  int64_t changes_ = 0;
};

}  // namespace tiny
