#include "runtime/fusion/fused_kernel.h"

#include <algorithm>
#include <set>

namespace tiny {

bool has_reduce(const FusedKernel& k) {
  return std::any_of(k.outputs.begin(), k.outputs.end(),
                     [](Node n) { return n->op == Op::ReduceAxis; });
}

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

bool is_read(const FusedKernel& k, Node n) {
  return std::any_of(k.reads.begin(), k.reads.end(), [&](const Read& r) { return r.leaf == n; });
}

namespace {

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
  const bool is_by_row = std::any_of(from.outputs.begin(), from.outputs.end(), [&](Node n) {
    return n->op == Op::ReduceAxis && same(n->shape(), sum->shape()) && from.inner.contains(n);
  });
  if (sum->op != Op::ReduceAxis || !is_by_row || !is_of_last_axes(sum, rows)) return false;
  const auto is_of_row = [&](const Read& r) {
    for (int i = 0; i < rows->rank; ++i)
      if (rows->shape()[i] != 1 &&
          r.axes[static_cast<size_t>(i)] != (sum->shape()[i] == 1 ? kOther : i))
        return false;
    return true;
  };
  return is_read(to, rows) && std::all_of(to.reads.begin(), to.reads.end(), [&](const Read& r) {
           return r.leaf != rows || is_of_row(r);
         });
}

}  // namespace

bool is_of_read_rows(const FusedKernel& from, const FusedKernel& to, Node out) {
  Node a = from.outputs[0], b = to.outputs[0];
  if (!is_of_last_axes(out, numel(a->shape()) > numel(b->shape()) ? a : b)) return false;
  return std::any_of(from.outputs.begin(), from.outputs.end(), [&](Node read) {
    return same(read->shape(), out->shape()) && is_read(to, read) && reads_own_row(to, read);
  });
}

bool is_of_rows(const FusedKernel& from, const FusedKernel& to) {
  return std::all_of(to.outputs.begin(), to.outputs.end(), [&](Node out) {
    return is_of_read_rows(from, to, out) || sums_rows(from, to, out);
  });
}

bool lie_apart(const FusedKernel& from, const FusedKernel& to) {
  std::set<int> rows;
  for (const Read& r : to.reads)
    if (std::find(from.outputs.begin(), from.outputs.end(), r.leaf) != from.outputs.end())
      for (int axis : r.axes)
        if (axis >= 0) rows.insert(axis);
  bool apart = false;
  for (const Read& r : to.reads) {
    if (numel(r.leaf->shape()) * 2 < to.work) continue;
    size_t last = r.axes.size() - 1;
    while (last > 0 && r.leaf->shape()[last] == 1) --last;
    if (!rows.count(r.axes[last])) return false;
    apart = true;
  }
  return apart;
}

bool is_wide_epilogue(const FusedKernel& from, const FusedKernel& to, int64_t results,
                      size_t kept) {
  constexpr size_t kMax = 4;
  std::set<Node> values(to.outputs.begin(), to.outputs.end());
  for (Node out : from.outputs)
    if (!is_read(to, out)) values.insert(out);
  for (const FusedKernel* k : {&from, &to})
    for (const Read& r : k->reads)
      if (r.own && numel(r.leaf->shape()) == results &&
          std::ranges::find(from.outputs, r.leaf) == from.outputs.end())
        values.insert(r.leaf);
  std::erase_if(values, [](Node n) { return n->op == Op::ReduceAxis; });  // the product's own
  return values.size() + 2 * kept > kMax;
}

bool have_buffers(std::span<const FusedKernel> kernels, int p, int c, std::span<const Node> roots,
                  const NodeTargets& targets) {
  const FusedKernel &from = kernels[p], &to = kernels[c];
  if (from.reads.size() + to.reads.size() > kMaxReads) return false;
  const auto most = static_cast<size_t>(targets.of(to.outputs[0]).most_buffers);
  if (most > kMaxReads) return true;
  std::set<Node> all, wanted;  // wanted: by others
  for (Node r : roots) wanted.insert(base_of(r));
  for (const FusedKernel& k : kernels)
    if (k.alive)
      for (const Read& r : k.reads)
        (&k == &from || &k == &to ? all : wanted).insert(behind(r.leaf));
  for (const FusedKernel* k : {&from, &to})
    for (Node n : k->outputs) {
      if (wanted.contains(n) || n->op == Op::Assign)
        all.insert(n);
      else
        all.erase(n);
    }
  return all.size() <= most;
}

bool are_siblings(const FusedKernel& a, const FusedKernel& b) {
  Node x = a.outputs[0], y = b.outputs[0];
  if (a.is_gemm || b.is_gemm || !can_join(x) || !can_join(y)) return false;
  if (x->op != y->op && (x->op == Op::ReduceAxis || y->op == Op::ReduceAxis)) return false;
  if (!same(x->shape(), y->shape()) || x->rank != y->rank) return false;
  for (Node n : a.outputs)
    if (!same(n->shape(), x->shape())) return false;
  if (b.outputs.size() > 1) return false;
  if (x->op == Op::ReduceAxis && (!same(x->src(0)->shape(), y->src(0)->shape()) ||
                                  x->arg<ReduceArg>().axes != y->arg<ReduceArg>().axes))
    return false;
  if (a.reads.size() + b.reads.size() > kMaxReads) return false;
  for (const Read& r : a.reads)
    for (const Read& s : b.reads)
      if (r.leaf == s.leaf && numel(r.leaf->shape()) * 2 > a.work) return true;
  return false;
}

bool is_small_sibling(Node out, const FusedKernel& k) {
  const Node other = k.outputs[0];
  return out->rank == other->rank && same(out->shape(), other->shape()) &&
         numel(out->shape()) <= kSmallWork;
}

bool is_own_element(Node n, const AxisMap& axes, Node out) {
  if (!same(n->shape(), out->shape())) return false;
  for (int i = 0; i < out->rank; ++i)
    if (out->shape()[i] != 1 && axes[static_cast<size_t>(i)] != i) return false;
  return true;
}

}  // namespace tiny
