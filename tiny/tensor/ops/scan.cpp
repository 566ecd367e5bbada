// Running sums and their kin, sorting: along one axis, by divide and conquer.
//
// A scan cuts the axis into blocks, scans the blocks' totals (recursively) and adds what precedes a
// block to a scan inside it: work linear in the length, memory touched a few times. On a GPU a
// block is what a group of threads scans in one kernel (codegen/passes/scan.h), on a CPU a few
// elements.
//
// Sorting ranks the elements of small blocks by counting, then merges runs pairwise. In a merge,
// every place of the result finds its element by a binary search ("merge path": S. Odeh et al.,
// "Merge path - parallel merging made simple", IPDPS workshops 2012), so a round is one kernel of
// dependent gathers without writes to shared places: O(n log^2 n) work in O(log n) kernels.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "tiny/ir/sizes.h"
#include "tiny/tensor/detail.h"

namespace tiny {

namespace {

constexpr int64_t kScanBlock = 16;
constexpr int64_t kGpuScanBytes = 128 << 10;  // of a row at once (measurements.md: kGpuScanBytes)
constexpr int64_t kGpuScanBlock = 4096;       // of longer rows
constexpr int64_t kSortBlock = 16;
constexpr int64_t kFewRounds = 16;     // so many of the best are found one by one
constexpr int64_t kFewElements = 256;  // among so many at once
constexpr int64_t kLongRow = 64;       // longer: its median is found by bisection
constexpr double kLogOfZero = -std::numeric_limits<double>::infinity();

Tensor move_axis(const Tensor& x, int from, int to) {
  return x.permute(detail::moved_axis(x.rank(), from, to));
}

// An operation to scan with: how the last axis folds to one element, how two results combine.
struct Monoid {
  Tensor (*fold)(const Tensor& x);  // over the last axis, which disappears
  Tensor (*combine)(const Tensor& x, const Tensor& y);
  Tensor neutral;            // 0-d
  bool is_operation = true;  // of one Op: a kernel can go on from one element to the next
};

Tensor fold_last(Op op, const Tensor& x) {
  const int last = x.rank() - 1;
  const Node n = build::reduce(op, x.node(), uint32_t{1} << last);
  return Tensor(build::reshape(n, x.shape().first(last)));
}

// log(e^x + e^y), also where one or both are -inf.
Tensor log_add_exp(const Tensor& x, const Tensor& y) {
  const Tensor larger = maximum(x.detach(), y.detach()), shift = where(larger.isinf(), 0, larger);
  return ((x - shift).exp() + (y - shift).exp()).log() + shift;
}

// x with `count` neutral elements before its last axis (negative: after it).
Tensor extend_last(const Tensor& x, int64_t count, const Tensor& neutral) {
  Shape shape = to_shape(x.shape());
  shape.back() = std::abs(count);
  const Tensor fill = neutral.expand(shape);
  return count > 0 ? Tensor::cat({fill, x}, -1) : count < 0 ? Tensor::cat({x, fill}, -1) : x;
}

// The scan of a short last axis: every place folds what it sees, n^2 work.
Tensor scan_directly(const Monoid& m, const Tensor& x) {
  const int64_t n = x.shape().back();
  Shape square = to_shape(x.shape());
  square.push_back(n);
  const int rank = static_cast<int>(square.size());
  const Tensor seen =
      detail::position(square, rank - 1, kI32) <= detail::position(square, rank - 2, kI32);
  return m.fold(where(seen, x.unsqueeze(-2).expand(square), m.neutral));
}

// `gpu`: of rows that lie in a GPU's memory.
Tensor scan_last(const Monoid& m, const Tensor& x, bool gpu) {
  const int64_t n = x.shape().back(), block = gpu ? kGpuScanBlock : kScanBlock;
  if (n <= kScanBlock) return scan_directly(m, x);
  if (gpu && n * std::max(4, x.dtype().size()) <= kGpuScanBytes)
    return scan_directly(m, x).contiguous();
  const int64_t blocks = ceil_div(n, block);
  const Tensor split = extend_last(x, n - blocks * block, m.neutral).unflatten(-1, {blocks, block});
  const Tensor totals = scan_last(m, m.fold(split).contiguous(), gpu);
  // The prefix of a block: the scan of the totals, one block later.
  const Tensor before =
      extend_last(totals.narrow(-1, 0, blocks - 1), 1, m.neutral).contiguous().unsqueeze(-1);
  const auto joined = [&](const Tensor& y) { return y.flatten(-2, -1).narrow(-1, 0, n); };
  if (!gpu) return joined(m.combine(before, scan_directly(m, split)));
  // Its first element begins with that.
  const Tensor is_first = detail::position(split.shape(), split.rank() - 1, kI32) == 0;
  const Tensor goes_on = m.combine(where(is_first, before, m.neutral), split);
  return joined(scan_directly(m, goes_on).contiguous());
}

Tensor scan(const Monoid& m, const Tensor& x, int64_t dim, const char* what) {
  const int axis = normalize_axis(what, dim, x.rank());
  if (x.rank() == 0 || x.numel() == 0) return x;
  const int last = x.rank() - 1;
  const bool gpu = m.is_operation && axis == last && runtime_seam::is_gpu(x.device());
  return move_axis(scan_last(m, move_axis(x, axis, last), gpu), last, axis);
}

Tensor fold_sum(const Tensor& x) { return fold_last(Op::Add, x); }
Tensor fold_product(const Tensor& x) { return fold_last(Op::Mul, x); }
Tensor fold_max(const Tensor& x) { return fold_last(Op::Max, x); }
Tensor fold_log_sum(const Tensor& x) { return x.logsumexp(-1); }
Tensor add(const Tensor& x, const Tensor& y) { return x + y; }
Tensor multiply(const Tensor& x, const Tensor& y) { return x * y; }
Tensor larger(const Tensor& x, const Tensor& y) { return maximum(x, y); }

// All elements of x count; beyond a length lies what leaves a fold by op as it is.
Tensor whole(const Tensor& x, Op op) { return Tensor(build::filled(x.node(), op)); }

DType scan_dtype(DType t) { return t.is_float() ? t : kI64; }

// Integers in the order of x, i32 where they fit, else i64: NaN is largest, -0 equals 0.
Tensor ordered_keys(const Tensor& x) {
  const DType t = x.dtype();
  if (t == kU64) return x.bitcast(kI64) ^ Tensor::full({}, INT64_MIN, kI64);
  if (!t.is_float()) return x.to(t == kI64 || t == kU32 ? kI64 : kI32);
  const DType wide = detail::compute_dtype(t), bits = wide == kF64 ? kI64 : kI32;
  const Tensor v = x.to(wide), b = where(v == 0, 0, v).bitcast(bits);
  // Negative floats grow towards zero and their bits away from it.
  const Tensor ordered = where(b < 0, b ^ b.full_like(int_max(bits)), b);
  return where(v.isnan(), b.full_like(int_max(bits)), ordered);
}

// The values of these keys in a dtype; the least key of a float is NaN too.
Tensor from_keys(const Tensor& keys, DType t) {
  if (t == kU64) return (keys ^ Tensor::full({}, INT64_MIN, kI64)).bitcast(t);
  if (!t.is_float()) return keys.to(t);
  const Tensor b = where(keys < 0, keys ^ keys.full_like(int_max(keys.dtype())), keys);
  return b.bitcast(detail::compute_dtype(t)).to(t);
}

// 32-bit keys as i64, each with a position below it.
Tensor above(const Tensor& keys, const Tensor& position) {
  return (keys.to(kI64) << 32) | position;
}

// The least number of a dtype.
Tensor least(DType t) { return Tensor::full({}, int_min(t), t); }

// The greatest key so far, and the latest place that holds it.
WithIndices running_key(const char* what, const Tensor& keys, int axis) {
  if (keys.dtype() == kI32) {  // both in one scan
    const Tensor pairs = above(keys, detail::position(keys.shape(), axis));
    const Tensor best = scan({fold_max, larger, least(kI64)}, pairs, axis, what);
    return {(best >> 32).to(kI32), best & 0xffffffff};
  }
  const Monoid m{fold_max, larger, least(kI64)};
  const Tensor best = scan(m, keys, axis, what);
  const Tensor place = where(keys == best, detail::position(keys.shape(), axis), 0);
  return {best, scan(m, place, axis, what)};
}

WithIndices running_extremum(const char* what, const Tensor& x, int64_t dim, bool largest) {
  LabelScope label(what);
  const int axis = normalize_axis(what, dim, x.rank());
  if (x.rank() == 0 || tiny::numel(x.capacity()) == 0)
    return {x, detail::beside(Tensor::zeros(to_shape(x.capacity()), kI64), x)};
  const Tensor all = whole(x, largest ? Op::Max : Op::Min), data = detail::in_memory(all);
  Tensor keys = ordered_keys(data);
  if (!largest) keys = keys.bitwise_not();
  // NaN wins either way.
  if (!largest && x.dtype().is_float()) keys = where(data.isnan(), int_max(keys.dtype()), keys);
  const WithIndices best = running_key(what, keys, axis);
  const Tensor values =
      x.requires_grad() ? all.gather(axis, best.indices)
                        : from_keys(largest ? best.values : best.values.bitwise_not(), x.dtype());
  const Tensor at = detail::beside(best.indices, x);
  return {detail::with_lengths(values, x), detail::with_lengths(at, x)};
}

}  // namespace

// --- Scans --------------------------------------------------------------------------------------

Tensor Tensor::cumsum(int64_t dim) const {
  LabelScope label("cumsum");
  const DType t = scan_dtype(dtype()), wide = detail::compute_dtype(t);
  const Tensor y =
      scan({fold_sum, add, full({}, 0, wide)}, whole(to(wide), Op::Add), dim, "cumsum");
  return detail::with_lengths(y.to(t), *this);
}

Tensor Tensor::cumprod(int64_t dim) const {
  LabelScope label("cumprod");
  const DType t = scan_dtype(dtype()), wide = detail::compute_dtype(t);
  const Tensor y =
      scan({fold_product, multiply, full({}, 1, wide)}, whole(to(wide), Op::Mul), dim, "cumprod");
  return detail::with_lengths(y.to(t), *this);
}

Tensor Tensor::logcumsumexp(int64_t dim) const {
  LabelScope label("logcumsumexp");
  detail::require_float("logcumsumexp", dtype());
  const DType wide = detail::compute_dtype(dtype());
  const Monoid m{fold_log_sum, log_add_exp, full({}, kLogOfZero, wide), false};
  // Nothing that counts depends on what lies beyond a length, and -inf would have no derivatives.
  const Tensor y = scan(m, whole(to(wide), Op::Add), dim, "logcumsumexp");
  return detail::with_lengths(y.to(dtype()), *this);
}

WithIndices Tensor::cummax(int64_t dim) const {
  return running_extremum("cummax", *this, dim, true);
}

WithIndices Tensor::cummin(int64_t dim) const {
  return running_extremum("cummin", *this, dim, false);
}

// --- Sorting ------------------------------------------------------------------------------------

namespace {

// Runs of a last axis on their way to one sorted run. `state` is what moves: for 32-bit keys each
// key with its position below it, which are all different; for others the position alone, with the
// keys looked up.
struct Runs {
  Tensor state;  // i64 [rows, n]
  Tensor keys;   // i64 [rows, n] in the original order, or nothing
};

// state[row][at] for positions of the shape [rows, n].
Tensor read(const Tensor& x, const Tensor& at) { return detail::gather_axis(x, 1, at); }

Tensor key_at(const Runs& r, const Tensor& at) {
  const Tensor s = read(r.state, at);
  return r.keys.defined() ? read(r.keys, s) : s;
}

// Sorts each block of `block` elements by counting, for each, those that stand before it.
Runs sort_blocks(Runs r, int64_t block) {
  const Tensor key = (r.keys.defined() ? r.keys : r.state).unflatten(1, {-1, block});
  const Tensor mine = key.unsqueeze(3), other = key.unsqueeze(2);  // [rows, blocks, i, j]
  Shape square = to_shape(key.shape());
  square.push_back(block);
  const Tensor i = detail::position(square, 2, kI32), j = detail::position(square, 3, kI32);
  const Tensor before = logical_or(other < mine, logical_and(other == mine, j < i));
  const Tensor rank = before.to(kI32).sum(3).to(kI32).contiguous();
  // Place i takes the element whose rank is i.
  const Tensor state = r.state.unflatten(1, {-1, block}).unsqueeze(2).expand(square);
  const Tensor chosen = rank.unsqueeze(2).expand(square) == i;
  r.state = where(chosen, state, 0).sum(3).flatten(1, 2).contiguous();
  return r;
}

// Merges neighbouring runs of `run` elements.
Runs merge_runs(Runs r, int64_t run) {
  const Shape shape = to_shape(r.state.shape());
  const Tensor place = detail::position(shape, 1);
  const Tensor k = place & (2 * run - 1);  // within the pair; run is a power of two
  const Tensor left = place - k, right = left + run;
  // How many of the first k elements of the result come from the left run: between low and high.
  // An element of the left run goes first where it is not greater than its rival.
  Tensor low = maximum(k - run, 0), high = minimum(k, run);
  for (int64_t width = run; width > 0; width >>= 1) {
    const Tensor middle = (low + high) >> 1, searching = low < high;
    const Tensor rival = maximum(k - 1 - middle, 0);
    const Tensor from_left = minimum(middle, run - 1);
    const Tensor takes = key_at(r, left + from_left) <= key_at(r, right + rival);
    const Tensor more = logical_and(searching, takes);
    high = where(logical_and(searching, takes.logical_not()), middle, high);
    low = where(more, middle + 1, low);
  }
  const Tensor i = low, j = k - low;
  const Tensor i_safe = minimum(i, run - 1), j_safe = minimum(j, run - 1);
  const Tensor rivals = key_at(r, left + i_safe) <= key_at(r, right + j_safe);
  const Tensor use_left = logical_and(i < run, logical_or(j >= run, rivals));
  r.state = read(r.state, where(use_left, left + i_safe, right + j_safe)).contiguous();
  return r;
}

// Positions [rows, limit] of the `limit` least keys [rows, n] in order, stable.
Tensor sorted_positions(const Tensor& keys, int64_t limit) {
  const int64_t n = keys.shape()[1];
  int64_t run = std::min<int64_t>(std::bit_ceil(static_cast<uint64_t>(n)), kSortBlock);
  const int64_t padded = std::bit_ceil(static_cast<uint64_t>(n));
  const Tensor position = detail::position(Shape{keys.shape()[0], padded}, 1);
  const bool packed = keys.dtype() == kI32;
  const Tensor last = Tensor::full({}, int_max(keys.dtype()), keys.dtype());
  const Tensor filled = extend_last(keys, n - padded, last).to(kI64);
  Runs r{position, filled};
  if (packed) r = {above(filled, position), Tensor()};
  // Sorts and merges read from memory.
  (packed ? r.state : r.keys) = (packed ? r.state : r.keys).contiguous();
  r = sort_blocks(r, run);
  const int64_t needed = std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(limit, 1)));
  while (true) {
    if (run > needed) {  // of each run only its head can matter
      r.state = r.state.unflatten(1, {-1, run}).narrow(2, 0, needed).flatten(1, 2);
      run = needed;
    }
    if (run == r.state.shape()[1]) break;
    r = merge_runs(r, run);
    run *= 2;
  }
  const Tensor order = packed ? r.state & 0xffffffff : r.state;
  return order.narrow(1, 0, limit);
}

// --- A few of the best, without sorting

// Keys as i64, each with its position below it so that all are different: the best is the largest,
// and the first of equals.
Tensor ranked(const Tensor& keys) {
  const Tensor backwards = 0xffffffff - detail::position(keys.shape(), 1);
  return above(keys, backwards);
}

Tensor position_in(const Tensor& ranked) { return 0xffffffff - (ranked & 0xffffffff); }

// The k largest of [rows, n] in order, all different: each round finds the next one.
Tensor largest_in_rounds(const Tensor& x, int64_t k) {
  std::vector<Tensor> found = {x.max(1, true)};
  while (static_cast<int64_t>(found.size()) < k)
    found.push_back(where(x < found.back(), x, INT64_MIN).max(1, true));
  return Tensor::cat(found, 1);
}

// Positions of the k largest keys [rows, n]. They lie in the k blocks with the largest maxima,
// about as many elements as there are blocks.
Tensor largest_positions(const Tensor& keys, int64_t k) {
  const int64_t rows = keys.shape()[0], n = keys.shape()[1];
  const Tensor x = ranked(keys);
  const double balanced = std::sqrt(static_cast<double>(n) / static_cast<double>(k));
  const int64_t block = std::bit_ceil(static_cast<uint64_t>(balanced));
  const int64_t blocks = ceil_div(n, block);
  if (n <= kFewElements || blocks <= k) return position_in(largest_in_rounds(x, k));
  const Tensor split = extend_last(x, n - blocks * block, least(kI64)).unflatten(1, {-1, block});
  const Tensor heads = largest_in_rounds(split.max(2).contiguous(), k).contiguous();
  const Tensor chosen = trunc_div(position_in(heads), block).unsqueeze(2).expand({rows, k, block});
  const Tensor rest = detail::gather_axis(split, 1, chosen).flatten(1, 2).contiguous();
  return position_in(largest_in_rounds(rest, k));
}

// The first `limit` positions of a stable sort along dim, i64, in the place of the axis. Of axes
// with lengths all elements count; those beyond come last.
Tensor sorted_along(const char* what, const Tensor& x, int64_t dim, bool descending,
                    int64_t limit) {
  const int axis = normalize_axis(what, dim, x.rank());
  Shape shape = to_shape(x.capacity());
  if (x.rank() == 0) return detail::beside(Tensor::zeros({}, kI64), x);
  shape[axis] = limit;
  if (tiny::numel(shape) == 0) return detail::beside(Tensor::zeros(shape, kI64), x);
  const int last = x.rank() - 1;
  const int64_t n = x.capacity()[axis];
  Tensor keys = ordered_keys(move_axis(detail::in_memory(x), axis, last));
  const bool few = limit <= kFewRounds && n > kSortBlock && keys.dtype() == kI32;
  if (descending != few) keys = keys.bitwise_not();
  keys = whole(keys, few ? Op::Max : Op::Min).reshape({-1, n});
  const Tensor order = few ? largest_positions(keys, limit) : sorted_positions(keys, limit);
  Shape moved = to_shape(x.capacity());
  moved.erase(moved.begin() + axis);
  moved.push_back(limit);
  return detail::beside(move_axis(order.reshape(moved), last, axis), x);
}

// The lengths of x but for those axes where y has not all elements of the axis.
Tensor with_lengths_left(Tensor y, const Tensor& x) {
  for (int i = 0; i < x.rank(); ++i)
    if (Node n = x.node()->length(i); n && y.capacity()[i] == x.capacity()[i])
      y = Tensor(build::limit(y.node(), i, n));
  return y;
}

WithIndices with_values(const Tensor& x, int64_t dim, const Tensor& indices) {
  if (x.rank() == 0) return {Tensor(x.node()), indices};  // no other handle of a leaf
  return {with_lengths_left(detail::whole(x).gather(dim, indices), x),
          with_lengths_left(indices, x)};
}

// How many elements the axis may hold, and holds at least.
std::pair<int64_t, int64_t> axis_sizes(const char* what, const Tensor& x, int64_t dim) {
  const int axis = normalize_axis(what, dim, x.rank());
  if (x.rank() == 0) return {1, 1};
  const Node length = x.node()->length(axis);
  return {x.capacity()[axis], length ? length->vmin : x.capacity()[axis]};
}

}  // namespace

WithIndices Tensor::sort(int64_t dim, bool descending) const {
  LabelScope label("sort");
  const int64_t n = axis_sizes("sort", *this, dim).first;
  return with_values(*this, dim, sorted_along("sort", *this, dim, descending, n));
}

Tensor Tensor::argsort(int64_t dim, bool descending) const {
  LabelScope label("argsort");
  const int64_t n = axis_sizes("argsort", *this, dim).first;
  return with_lengths_left(sorted_along("argsort", *this, dim, descending, n), *this);
}

WithIndices Tensor::topk(int64_t k, int64_t dim, bool largest) const {
  LabelScope label("topk");
  const auto [n, least] = axis_sizes("topk", *this, dim);
  check(k >= 0 && k <= least, "topk: ", k, " of ", n, " elements",
        least < n ? tiny::cat(", or fewer: a Variable may be ", least) : "");
  return with_values(*this, dim, sorted_along("topk", *this, dim, largest, k));
}

// --- Median -------------------------------------------------------------------------------------

namespace {

// Numbers of a range: `first`, and 2^bits of them.
struct Range {
  int64_t first;
  int bits;
};

// In each row of x [rows, n] the element that `rank` others come before, [rows, 1]: the largest t
// with at most `rank` elements below it, bit by bit.
Tensor element_of_rank(const Tensor& x, const Operand& rank, Range range) {
  const auto below = [&](const Tensor& t) {
    return Tensor(build::reduce(Op::Add, (x < t).to(kI32).node(), 2)) <= rank;
  };
  Tensor found = Tensor::full({}, range.first, x.dtype());
  for (int bit = range.bits - 1; bit >= 0; --bit) {
    // The first step may be longer than the dtype's largest number.
    const uint64_t step = uint64_t{1} << bit;
    const int64_t start = static_cast<int64_t>(static_cast<uint64_t>(range.first) + step);
    const Tensor next = bit == range.bits - 1 ? Tensor::full({1, 1}, start, x.dtype())
                                              : found + static_cast<int64_t>(step);
    found = where(below(next), next, found);
  }
  return found;
}

// The numbers that the keys of a dtype lie in.
Range key_range(DType t, DType keys) {
  const bool whole = t.is_float() || t == kU64;
  const int bits = static_cast<int>((whole ? keys : t).size()) * 8;
  return {int_min(whole ? keys : t), t == kBool ? 1 : bits};
}

// The lower median of rows [rows, n], [rows, 1]; of a row with NaN the last of the sorted elements,
// which is NaN. The gradient goes to the element that a stable sort puts there.
Tensor row_median(const Tensor& x) {
  const int64_t n = x.shape()[1], middle = (n - 1) / 2;
  if (n <= kLongRow || n > INT32_MAX) {
    const Tensor sorted = x.sort(1).values, median = sorted.narrow(1, middle, 1);
    if (!x.dtype().is_float()) return median;
    const Tensor last = sorted.narrow(1, n - 1, 1);
    return where(last.isnan(), last, median);
  }
  const Tensor keys = ordered_keys(x.detach()).contiguous();
  Tensor rank = Tensor::full({}, middle, kI32);
  if (x.dtype().is_float()) rank = where(x.detach().isnan().any(1, true), n - 1, rank);
  const Tensor key = element_of_rank(keys, rank, key_range(x.dtype(), keys.dtype()));
  if (!x.requires_grad()) return from_keys(key, x.dtype());
  const Tensor before(build::reduce(Op::Add, (keys < key).to(kI32).node(), 2));
  const Tensor at = where(keys == key, detail::position(keys.shape(), 1, kI32), n);
  const int bits = std::bit_width(static_cast<uint64_t>(n));
  return x.gather(1, element_of_rank(at, rank - before, {0, bits}));
}

// The same along an axis of x, which stays with size 1, where x has a length.
Tensor sorted_median(const Tensor& x, int axis) {
  const Node length = x.node()->length(axis);
  const Tensor count = length ? Tensor(length) : Tensor(x.capacity()[axis]);
  const Tensor sorted = x.sort(axis).values;
  Shape one = to_shape(x.capacity());
  one[axis] = 1;
  const auto pick = [&](const Tensor& at) {
    return detail::gather_axis(sorted, axis, at.expand(one));
  };
  const Tensor median = pick(floor_div(count - 1, 2)), last = pick(count - 1);
  return x.dtype().is_float() ? where(last.isnan(), last, median) : median;
}

}  // namespace

Tensor Tensor::median(std::optional<int64_t> dim, bool keepdim) const {
  LabelScope label("median");
  const int axis = dim ? normalize_axis("median", *dim, rank()) : 0, last = rank() - 1;
  if (dim && node()->lengths) {
    const Node length = node()->length(axis);
    check((length ? length->vmin : size(axis)) > 0, "median: no elements in shape ",
          to_text(capacity()), ", where a Variable may be 0");
    const Tensor y = sorted_median(*this, axis);
    return keepdim ? y : y.squeeze(axis);
  }
  const bool all = !dim || rank() == 0;
  check((all ? numel() : shape()[axis]) > 0, "median: no elements in shape ", to_text(shape()));
  if (all) {
    return row_median(reshape({1, -1})).reshape(keepdim ? Shape(rank(), 1) : Shape{});
  }
  const Tensor rows = move_axis(*this, axis, last).reshape({-1, shape()[axis]});
  return row_median(rows).reshape(detail::without(shape(), uint32_t{1} << axis, keepdim));
}

}  // namespace tiny
