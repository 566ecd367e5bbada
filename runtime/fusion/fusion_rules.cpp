#include "runtime/fusion/fusion_rules.h"

#include <algorithm>
#include <set>
#include <utility>

#include "runtime/analysis/after.h"
#include "runtime/analysis/recompute_cost.h"
#include "runtime/analysis/views.h"

namespace tiny {

namespace {

// Rows that are visited several times must stay in a core's own cache.
constexpr int64_t kRowElements = 128 << 10;
constexpr int64_t kFewElements = 1 << 17;  // read in any order in no more than a launch
constexpr int64_t kSmallWork = 16384;      // too little to be worth dividing among cores
constexpr int kLargest = 1000;             // size of a kernel that is made of two
constexpr int64_t kManyResults = 1 << 20;  // of a product: worth a kernel more
constexpr size_t kMaxReads = 48;           // arguments of a kernel

// For all cores to take part; a CPU's are few, and sizes alone decide there.
int64_t enough_rows(const Target& target) {
  return target.kind == Target::Kind::Cpu ? 16 : target.cores;
}

bool can_join(Node n) { return n->op != Op::Scatter && n->op != Op::Copy; }

bool is_reduce(Node n) { return n->op == Op::ReduceAxis; }
bool has_reduce(const FusedKernel& k) { return std::ranges::any_of(k.outputs, is_reduce); }

bool is_read(const FusedKernel& k, Node n) {
  return std::ranges::any_of(k.reads, [&](const Read& r) { return r.leaf == n; });
}

// All reads of `out` are by the same distinct output axes of the consumer; false without a read.
bool reads_own_row(const FusedKernel& to, Node out) {
  const AxisMap* first = nullptr;
  for (const Read& r : to.reads) {
    if (r.leaf != out) continue;
    if (first && r.axes != *first) return false;
    first = &r.axes;
    for (size_t i = 0; i < r.axes.size(); ++i) {
      if (out->shape()[i] == 1) continue;
      if (r.axes[i] < 0) return false;
      if (to.outputs[0]->shape()[r.axes[i]] != out->shape()[i]) return false;
      for (size_t j = 0; j < i; ++j)
        if (r.axes[j] == r.axes[i]) return false;
    }
  }
  return first != nullptr;
}

// Whether values belong to rows along the last axes: all axes before the last of theirs are those
// of the whole. The sums of channels do not, which lie between images and pixels.
bool is_of_last_axes(Node values, Node whole) {
  if (values->rank != whole->rank) return false;
  int last = values->rank - 1;
  while (last >= 0 && values->shape()[last] == 1) --last;
  for (int i = 0; i <= last; ++i)
    if (values->shape()[i] != whole->shape()[i]) return false;
  return true;
}

// Whether a sum goes along the rows that `from` writes, for each of which it has a value already.
bool sums_rows(const FusedKernel& from, const FusedKernel& to, Node sum) {
  Node rows = from.outputs[0];
  const bool is_by_row = std::ranges::any_of(from.outputs, [&](Node n) {
    return is_reduce(n) && same(n->shape(), sum->shape()) && from.inner.contains(n);
  });
  if (!is_reduce(sum) || !is_by_row || !is_of_last_axes(sum, rows)) return false;
  const auto is_of_row = [&](const Read& r) {
    for (int i = 0; i < rows->rank; ++i)
      if (rows->shape()[i] != 1 && r.axes[i] != (sum->shape()[i] == 1 ? kOther : i)) return false;
    return true;
  };
  return is_read(to, rows) && std::ranges::all_of(to.reads, [&](const Read& r) {
           return r.leaf != rows || is_of_row(r);
         });
}

// Whether a value that kernel `to` does not read belongs to the rows of one that it does: it is
// computed in the loops of that one.
bool is_of_read_rows(const FusedKernel& from, const FusedKernel& to, Node out) {
  Node a = from.outputs[0], b = to.outputs[0];
  if (!is_of_last_axes(out, numel(a->shape()) > numel(b->shape()) ? a : b)) return false;
  return std::ranges::any_of(from.outputs, [&](Node read) {
    return same(read->shape(), out->shape()) && reads_own_row(to, read);
  });
}

// Whether all of kernel `to` are values of rows that `from` goes through: of the shape of one that
// it computes for each of them, and that `to` reads, or sums along them.
bool is_of_rows(const FusedKernel& from, const FusedKernel& to) {
  return std::ranges::all_of(to.outputs, [&](Node out) {
    return is_of_read_rows(from, to, out) || sums_rows(from, to, out);
  });
}

// What has little to do may as well be done in the loops of others that visit as many elements.
bool is_small_sibling(Node out, const FusedKernel& k) {
  const Node other = k.outputs[0];
  return out->rank == other->rank && same(out->shape(), other->shape()) &&
         numel(out->shape()) <= kSmallWork;
}

// Whether every value of `from` is one that `to` reads of its own row, or can be computed there.
bool is_read_by_row(const FusedKernel& from, const FusedKernel& to, bool gpu, bool joins_small) {
  int64_t largest = 0;  // elements of an output that is read
  for (Node out : from.outputs)
    if (is_read(to, out)) largest = std::max(largest, numel(out->shape()));
  // On CPUs values of rows beside others made a step of MNIST 12 % slower: sums of channels then
  // join what reads them.
  return std::ranges::all_of(from.outputs, [&](Node out) {
    if (is_read(to, out)) return reads_own_row(to, out);
    return (from.inner.contains(out) && numel(out->shape()) <= largest) ||
           (joins_small && is_small_sibling(out, to)) || (gpu && is_of_read_rows(from, to, out));
  });
}

// The last axis of more than one element; the first one where there is none.
int innermost_axis(Node n) {
  int last = n->rank - 1;
  while (last > 0 && n->shape()[last] == 1) --last;
  return last;
}

// Whether the elements of a row lie apart in memory, those of neighbouring rows side by side: as
// columns do, or the pixels of a channel where channels are innermost. A block that has a row to
// itself would read, or write, a few bytes of each line.
bool lie_apart(const FusedKernel& from, const FusedKernel& to) {
  std::set<int> rows;
  for (const Read& r : to.reads)
    if (contains(from.outputs, r.leaf))
      for (int axis : r.axes)
        if (axis >= 0) rows.insert(axis);
  bool apart = false;
  for (Node out : to.outputs)
    apart |= numel(out->shape()) * 2 >= to.work && rows.count(innermost_axis(out));
  for (const Read& r : to.reads) {
    if (numel(r.leaf->shape()) * 2 < to.work) continue;
    if (!rows.count(r.axes[static_cast<size_t>(innermost_axis(r.leaf))])) return false;
    apart = true;
  }
  return apart;
}

// Whether much is read and written beside a product of so many results, as by an optimizer with two
// averages: matrix units stand still meanwhile, and tiles of their results take compilers long.
// `kept`: values of `from` that others than `to` read as well.
bool is_wide_epilogue(const FusedKernel& from, const FusedKernel& to, int64_t results,
                      size_t kept) {
  constexpr size_t kMax = 4;
  std::set<Node> values(to.outputs.begin(), to.outputs.end());
  for (Node out : from.outputs)
    if (!is_read(to, out)) values.insert(out);
  for (const FusedKernel* k : {&from, &to})
    for (const Read& r : k->reads)
      if (r.own && numel(r.leaf->shape()) == results && !contains(from.outputs, r.leaf))
        values.insert(r.leaf);
  std::erase_if(values, is_reduce);  // the product's own
  return values.size() + 2 * kept > kMax;
}

// Whether the values of two kernels are computed by the same loops.
bool have_same_loops(const FusedKernel& a, const FusedKernel& b) {
  Node x = a.outputs[0], y = b.outputs[0];
  if (a.is_gemm || b.is_gemm || !can_join(x) || !can_join(y) || b.outputs.size() > 1) return false;
  if (x->op != y->op && (is_reduce(x) || is_reduce(y))) return false;
  if (is_reduce(x) && (!same(x->src(0)->shape(), y->src(0)->shape()) ||
                       x->arg<ReduceArg>().axes != y->arg<ReduceArg>().axes))
    return false;
  return x->rank == y->rank && same(x->shape(), y->shape()) &&
         std::ranges::all_of(a.outputs, [&](Node n) { return same(n->shape(), x->shape()); });
}

bool share_large_input(const FusedKernel& a, const FusedKernel& b) {
  return std::ranges::any_of(a.reads, [&](const Read& r) {
    return numel(r.leaf->shape()) * 2 > a.work && is_read(b, r.leaf);
  });
}

}  // namespace

FusionRules::FusionRules(const FusedKernels& kernels, std::span<const Node> roots,
                         const Stored& stored, const NodeTargets& targets)
    : kernels_(kernels), stored_(stored), targets_(targets) {
  for (Node r : roots) is_root_[base_of(r)] = 1;
}

bool FusionRules::are_siblings(int a, int b) const {
  return have_same_loops(kernels_[a], kernels_[b]) && share_large_input(kernels_[a], kernels_[b]) &&
         is_sent(a) == is_sent(b) && is_on_one_device(a, b) &&
         !kernels_.dependences().depends(b, a) && !kernels_.dependences().depends(a, b) &&
         have_buffers(b, a);
}

bool FusionRules::is_of_own_rows(int p, int c, bool joins_small) const {
  const FusedKernel &from = kernels_[p], &to = kernels_[c];
  if (!is_on_one_device(p, c) || !have_buffers(p, c) || from.size + to.size > kLargest)
    return false;
  if (!std::ranges::all_of(from.outputs, can_join) || !std::ranges::all_of(to.outputs, can_join))
    return false;
  const bool both_sent = joins_sent(p, c);
  if (kernels_.waits_for(c, p) || (is_sent(p) && !both_sent)) return false;
  if (to.late && !from.late && kept_beside(p, c)) return false;  // others may read it now
  if (delays_readers(p, c)) return false;
  const bool gpu = targets_.of(to.outputs[0]).kind == Target::Kind::Gpu;
  const bool is_by_row = is_read_by_row(from, to, gpu, joins_small);
  const bool adds_rows = gpu && !is_by_row && is_of_rows(from, to);  // to those of p
  if (!is_by_row && !both_sent && !adds_rows) return false;
  if (numel(to.outputs[0]->shape()) == 0) return false;  // no kernel will run for it
  int64_t rows = std::max<int64_t>(1, numel(from.outputs[0]->shape()));
  int64_t size = std::max<int64_t>(1, numel(to.outputs[0]->shape()));
  if (adds_rows) std::swap(rows, size);
  return is_worth_merging(p, c, rows, size) && !kernels_.dependences().reaches_otherwise(p, c) &&
         (from.is_chain || loops_nest(p, c));
}

// Whether kernels that read p's few values would have to wait for what c alone waits for, and keep
// in memory what they could have read and forgotten before: a launch is less.
bool FusionRules::delays_readers(int p, int c) const {
  constexpr int64_t kFew = 1024;
  if (numel(kernels_[p].outputs[0]->shape()) > kFew) return false;
  const DependenceGraph& dependences = kernels_.dependences();
  const std::vector<int> producers = dependences.producers(c);
  return std::ranges::any_of(kernels_.readers(p), [&](int reader) {
    return reader != c && std::ranges::any_of(producers, [&](int other) {
             return other != p && other != reader && !dependences.depends(reader, other) &&
                    !dependences.depends(p, other);
           });
  });
}

// Constants, which kernels of several devices may read, have none.
bool FusionRules::is_on_one_device(int a, int b) const {
  return targets_.device_of(kernels_[a].outputs[0]) == targets_.device_of(kernels_[b].outputs[0]);
}

// Whether the two have together no more buffers than one kernel of their device may.
bool FusionRules::have_buffers(int p, int c) const {
  const FusedKernel &from = kernels_[p], &to = kernels_[c];
  if (from.reads.size() + to.reads.size() > kMaxReads) return false;
  const auto most = static_cast<size_t>(targets_.of(to.outputs[0]).most_buffers);
  if (most > kMaxReads) return true;
  std::set<Node> all, wanted;  // wanted: by others
  for (const FusedKernel* k : {&from, &to})
    for (const Read& r : k->reads) all.insert(behind(r.leaf));
  for (int own : {p, c})
    for (int k : kernels_.readers(own))
      if (k != p && k != c)
        for (const Read& r : kernels_[k].reads) wanted.insert(behind(r.leaf));
  for (const FusedKernel* k : {&from, &to})
    for (Node n : k->outputs) {
      if (wanted.contains(n) || is_root_.contains(n) || n->op == Op::Assign)
        all.insert(n);
      else
        all.erase(n);
    }
  return all.size() <= most;
}

// What other devices wait for is computed by itself, and does not wait for what they send.
bool FusionRules::is_sent(int k) const {
  return std::ranges::any_of(kernels_[k].outputs, [&](Node n) { return stored_.sent.contains(n); });
}

// Whether all of kernel c is sent to other devices, made element by element of what p computes,
// and waits for nothing that p does not wait for: sums of one pass over the same values are sent
// together, each by its own loops behind those of its sum.
bool FusionRules::joins_sent(int p, int c) const {
  const FusedKernel &from = kernels_[p], &to = kernels_[c];
  const auto alike = [&](Node n) { return same(n->shape(), from.outputs[0]->shape()); };
  const auto is_known = [&](const Read& r) {
    return kernels_.of(behind(r.leaf)) == p || is_read(from, r.leaf);
  };
  for (Node out : to.outputs)
    if (!stored_.sent.contains(out) || !alike(out) || is_reduce(out)) return false;
  for (Node out : from.outputs)
    if (!alike(out) || (is_read(to, out) && !reads_own_row(to, out))) return false;
  return !from.is_gemm && std::ranges::all_of(to.reads, is_known);
}

// How many values of p, of so many elements or more, others than c read.
size_t FusionRules::kept_beside(int p, int c, int64_t elements) const {
  std::set<Node> kept;
  for (int k : kernels_.readers(p)) {
    if (k == c) continue;
    for (const Read& r : kernels_[k].reads)
      if (kernels_.of(r.leaf) == p && numel(r.leaf->shape()) >= elements) kept.insert(r.leaf);
  }
  return kept.size();
}

// `rows`: values of the one kernel, for each of which the other goes through a part of its `size`.
bool FusionRules::is_worth_merging(int p, int c, int64_t rows, int64_t size) const {
  const FusedKernel &from = kernels_[p], &to = kernels_[c];
  const Target& target = targets_.of(to.outputs[0]);
  if (from.is_chain && rows < size && !has_reduce(to)) return true;  // a value for each of its rows
  if (!keeps_matrix_units_busy(p, c, rows, size)) return false;
  const int64_t work = std::max(from.work, to.work);
  if (rows != size && target.kind == Target::Kind::Gpu && work > kFewElements &&
      lie_apart(from, to))
    return false;
  return (rows == size && !has_reduce(to)) || work <= kSmallWork ||
         (rows >= enough_rows(target) && work / rows <= kRowElements);
}

bool FusionRules::keeps_matrix_units_busy(int p, int c, int64_t rows, int64_t size) const {
  const FusedKernel &from = kernels_[p], &to = kernels_[c];
  if (!from.is_gemm && !to.is_gemm) return true;
  if (rows != size) return false;
  if (from.is_gemm && (to.is_gemm || has_reduce(to))) return false;  // units do one sum
  if (!targets_.of(to.outputs[0]).has_wgmma || rows <= kManyResults) return true;
  return !(from.is_gemm && is_long_epilogue(p, c)) &&
         !is_wide_epilogue(from, to, rows, kept_beside(p, c, rows));
}

// Whether what kernel c does with each sum of p takes as long as the sum on matrix units, which
// stand still meanwhile: about 32 of their products for each operation.
bool FusionRules::is_long_epilogue(int p, int c) const {
  int64_t terms = 0;
  for (Node n : kernels_[p].outputs)
    if (is_reduce(n)) terms = std::max(terms, numel(n->src(0)->shape()) / numel(n->shape()));
  Cost cost;
  NodeMap<char> seen;
  for (Node out : kernels_[c].outputs) {
    cost.work += work_of(out->op);
    for (Node s : used_sources(out)) add_cost(s, numel(out->shape()), stored_.values, seen, cost);
  }
  return terms > 0 && cost.work * 32 > terms && cost.work > kWorthStoring;
}

// Of a kernel made of two: whether the axes that its reductions are computed for are nested in
// one another. The sums of the rows and of the columns of a matrix have no loops in common.
bool FusionRules::loops_nest(int p, int c) const {
  NodeMap<char> reached;
  ReadSet seen;
  std::vector<Read> stack;
  std::set<uint64_t> rows;  // of each reduction, a bit for each axis
  for (Node out : kernels_.merged_outputs(p, c)) {
    if (!reached.contains(out)) stack.push_back(whole_read(out));
    while (!stack.empty()) {
      const Read read = stack.back();
      stack.pop_back();
      const int k = kernels_.of(read.leaf);
      if (is_leaf(read.leaf) || (k >= 0 && k != p && k != c) || !seen.insert(read)) continue;
      reached[read.leaf] = 1;
      if (is_reduce(read.leaf)) {
        uint64_t row = 0;
        for (int axis : read.axes) {
          if (axis == kOther) return false;
          if (axis >= 0) row |= uint64_t{1} << axis;
        }
        rows.insert(row);
      }
      add_sources(read, stack);
    }
  }
  return std::ranges::all_of(rows, [&](uint64_t a) {
    return std::ranges::all_of(rows, [&](uint64_t b) { return (a & b) == a || (a & b) == b; });
  });
}

}  // namespace tiny
