#include "runtime/layout/split_reduce.h"

#include <algorithm>

#include "runtime/analysis/graph_contraction.h"
#include "runtime/fusion/fuse.h"
#include "runtime/layout/pack.h"
#include "tiny/ir/build.h"
#include "tiny/ir/sizes.h"

namespace tiny {

Split equal_parts(Node reduce, int axis, int64_t most) {
  return {axis, largest_divisor(reduce->src(0)->shape()[axis], most)};
}

namespace {

int largest_reduced_axis(Node n) {
  int best = -1;
  for (int i = 0; i < n->rank; ++i)
    if (is_reduced(n, i) && (best < 0 || n->src(0)->shape()[i] > n->src(0)->shape()[best]))
      best = i;
  return best;
}

// Bytes of an element of the narrowest values as large as this one that it is computed from.
int64_t element_size(Node n) {
  constexpr size_t kMax = 64;  // looked at
  int64_t size = n->dtype.size();
  size_t nodes = 0;
  visit_below({n}, [&](Node s) {
    if (++nodes > kMax || s->dtype.scalar == Scalar::Bool) return false;
    if (2 * numel(s->shape()) < numel(n->shape())) return false;
    size = std::min<int64_t>(size, s->dtype.size());
    return is_view(s) || is_elementwise(s->op);
  });
  return size;
}

// Whether an operand is too skinny for tensor cores: no fragment's eight rows and not the columns
// of a warpgroup's tile (codegen/heuristics/gpu_wgmma.cpp), which are fewer where there are many
// tiles.
bool is_skinny(Node n, const Target& target) {
  constexpr int64_t kFragment = 8, kMinColumns = 24, kTile = 128;
  const GraphContraction c(n);
  const ContractionAxes axes = c.axes();
  const auto [rows, most] = std::minmax({c.size(axes.own[0]), c.size(axes.own[1])});
  const int64_t tiles = most / kTile;
  return rows % kFragment != 0 && rows < kMinColumns && 2 * tiles < target.cores;
}

// A GPU that would stand half idle gets more to do at once. Of a product a thread makes about 32
// results. A block of threads makes one where the innermost axis is reduced; where another one
// is, a line of memory of them, and there are to be four blocks for each multiprocessor.
Split split_for_threads(Node n, ReduceKind kind, int innermost, const Target& target) {
  const bool product = kind != ReduceKind::Plain, tiled = kind == ReduceKind::TiledProduct;
  constexpr int64_t kShortest = 256;  // elements of a slice
  constexpr int64_t kLine = 128;      // bytes
  // terms that a tile reduces in the time of one more launch
  constexpr int64_t kSecondKernel = 1024;
  constexpr int64_t kByBlock = 16 << 10;  // of a row: a block adds them up as fast as two kernels
  constexpr int64_t kBlockBytes = 32 << 10;  // two vectors for each thread of a full block
  constexpr int64_t kLongSum = 4096;         // beside which adding up two parts is nothing
  const Ints shape = n->src(0)->shape();
  const int64_t results = numel(n->shape()), length = numel(shape) / results;
  const bool rows = !product && is_reduced(n, innermost < 0 ? last_axis(shape) : innermost);
  if (tiled && (length < kSecondKernel || !is_skinny(n, target))) {
    const Ints sizes = n->shape();  // skinny ones still take tiles of their own
    const int64_t longest = *std::ranges::max_element(sizes);
    const int64_t tiles = std::max({int64_t{1}, results / (128 * 64), longest / 128});
    const int64_t parts = std::min(target.cores / tiles, length / kSecondKernel);
    if (parts < 2) return {};
    const int axis = largest_reduced_axis(n);
    return equal_parts(n, axis, parts);
  }
  const int64_t line = kLine / element_size(n->src(0)), lines = ceil_div(results, line);
  const bool columns = !rows && !product;
  if ((columns && 2 * lines > target.cores) || (rows && length < kByBlock)) return {};
  const int64_t threads = rows ? results * 256 : product ? results / 32 : lines * 256;
  const int64_t wanted = target.cores * int64_t{1024} / std::max<int64_t>(threads, 1);
  int64_t most = std::min(wanted, length / (rows ? 16 * kShortest : kShortest / 4));
  // Memory-bound: many short blocks end together (measurements.md: choose_split).
  if (most > 1 && rows && results == 1 && length * element_size(n->src(0)) > target.l2_bytes)
    most = std::clamp(length * element_size(n->src(0)) / kBlockBytes, most, kByBlock);
  // A single block of a multiprocessor waits for what it transposes (measurements.md: kLongSum).
  const bool halves = product && length >= kLongSum && turns_operand(n, target);
  if (most < (product && !halves ? 4 : 2)) return {};
  const int axis = largest_reduced_axis(n);
  return equal_parts(n, axis, most);
}

// A GEMM that sums over more than L2 holds, into few results, would read its operands again for
// each tile of results: split-K goes through them in slices that fit. Where one of them stays in L2
// a core reads each panel of the other once: parts would only be stored and added up
// (measurements.md: split_for_caches).
Split split_for_caches(Node n, const Target& target) {
  constexpr int64_t kBusy = 1024;  // results of a core
  int64_t bytes = 0, least = INT64_MAX;
  for (Node s : n->src(0)->srcs()) {
    int64_t read = numel(s->shape());
    for (; is_view(s); s = s->src(0)) read = std::min(read, numel(s->src(0)->shape()));
    bytes += numel(s->shape()) * s->dtype.size();
    least = std::min(least, read * s->dtype.size());
  }
  const int64_t count = numel(n->shape()), results = count * n->dtype.size();
  const int64_t room = target.l2_bytes / 2;
  if (bytes < 4 * room || results > room) return {};
  if (least <= room && count >= kBusy * target.cores) return {};
  int axis = 0;
  while (!is_reduced(n, axis) || n->src(0)->shape()[axis] == 1) ++axis;
  const int64_t wanted = std::min<int64_t>(64, std::max<int64_t>(2, bytes / room));
  const Split s = equal_parts(n, axis, wanted);
  return s.parts * results > 2 * bytes ? Split{} : s;
}

}  // namespace

Split choose_split(Node n, ReduceKind kind, int innermost, const Target& target) {
  constexpr int64_t kParts = 64, kFewResults = 16, kManyElements = 1 << 16;
  const int64_t results = numel(n->shape()), elements = numel(n->src(0)->shape());
  if (target.kind == Target::Kind::Gpu) return split_for_threads(n, kind, innermost, target);
  if (results < kFewResults && elements >= kManyElements) {
    const int axis = largest_reduced_axis(n);
    return equal_parts(n, axis, kParts);
  }
  return kind == ReduceKind::Plain ? Split{} : split_for_caches(n, target);
}

Node in_parts(Node n, const Split& s, bool product) {
  const auto [op, axes] = n->arg<ReduceArg>();
  Node x = n->src(0);
  const auto cut = [&](Node v) {
    Shape shape = to_shape(v->shape()), order;
    shape[s.axis] /= s.parts;
    shape.insert(shape.begin() + s.axis, s.parts);
    order.push_back(s.axis);
    for (int i = 0; i < static_cast<int>(shape.size()); ++i)
      if (i != s.axis) order.push_back(i);
    return build::permute(build::reshape(v, shape), order);
  };
  Node parts = product ? build::binary(Op::Mul, cut(x->src(0)), cut(x->src(1))) : cut(x);
  return make(Op::ReduceAxis, n->dtype, {parts}, ReduceArg{op, axes << 1});
}

}  // namespace tiny
