// Running sums and their kin, sorting: along one axis, by divide and conquer.
//
// A scan cuts the axis into blocks, scans the blocks' totals (recursively) and adds what precedes a
// block to a scan inside it: work linear in the length, memory touched a few times.
//
// Sorting ranks the elements of small blocks by counting, then merges runs pairwise. In a merge,
// every place of the result finds its element by a binary search ("merge path": S. Odeh et al.,
// "Merge path - parallel merging made simple", IPDPS workshops 2012), so a round is one kernel of
// dependent gathers without writes to shared places: O(n log^2 n) work in O(log n) kernels.
#include <algorithm>
#include <bit>
#include <limits>

#include "tiny/tensor_detail.h"

namespace tiny {

namespace {

constexpr int64_t kScanBlock = 32;
constexpr int64_t kSortBlock = 16;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

Tensor move_axis(const Tensor& x, int from, int to) {
  return x.permute(detail::moved_axis(x.rank(), from, to));
}

// An operation to scan with: how the last axis folds to one element, how two results combine.
struct Monoid {
  Tensor (*fold)(const Tensor& x);  // over the last axis, which disappears
  Tensor (*combine)(const Tensor& x, const Tensor& y);
  Tensor neutral;  // 0-d
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

Tensor scan_last(const Monoid& m, const Tensor& x) {
  const int64_t n = x.shape().back();
  if (n <= kScanBlock) return scan_directly(m, x);
  const int64_t blocks = (n + kScanBlock - 1) / kScanBlock;
  const Tensor split =
      extend_last(x, n - blocks * kScanBlock, m.neutral).unflatten(-1, {blocks, kScanBlock});
  const Tensor totals = scan_last(m, m.fold(split).contiguous());
  // What precedes a block: the scan of the totals, one place later.
  const Tensor before = extend_last(totals.narrow(-1, 0, blocks - 1), 1, m.neutral).contiguous();
  const Tensor inside = scan_directly(m, split);
  return m.combine(before.unsqueeze(-1), inside).flatten(-2, -1).narrow(-1, 0, n);
}

Tensor scan(const Monoid& m, const Tensor& x, int64_t dim, const char* what) {
  const int axis = normalize_axis(what, dim, x.rank());
  if (x.rank() == 0 || x.numel() == 0) return x;
  const int last = x.rank() - 1;
  return move_axis(scan_last(m, move_axis(x, axis, last)), last, axis);
}

Tensor fold_sum(const Tensor& x) { return fold_last(Op::Add, x); }
Tensor fold_product(const Tensor& x) { return fold_last(Op::Mul, x); }
Tensor fold_max(const Tensor& x) { return fold_last(Op::Max, x); }
Tensor fold_min(const Tensor& x) { return fold_last(Op::Min, x); }
Tensor fold_log_sum(const Tensor& x) { return x.logsumexp(-1); }
Tensor add(const Tensor& x, const Tensor& y) { return x + y; }
Tensor multiply(const Tensor& x, const Tensor& y) { return x * y; }
Tensor larger(const Tensor& x, const Tensor& y) { return maximum(x, y); }
Tensor smaller(const Tensor& x, const Tensor& y) { return minimum(x, y); }

DType scan_dtype(DType t) { return t.is_float() ? t : kI64; }

// The least value of a dtype, or the greatest.
Tensor limit(DType t, bool least) {
  if (t.is_float()) return Tensor::full({}, least ? -kInfinity : kInfinity, t);
  return Tensor::full({}, least ? int_min(t) : int_max(t), t);
}

WithIndices running_extremum(const char* what, const Tensor& x, int64_t dim, bool maximum) {
  LabelScope label(what);
  const Monoid m{maximum ? fold_max : fold_min, maximum ? larger : smaller,
                 limit(x.dtype(), maximum)};
  const Tensor data = x.detach(), best = scan(m, data, dim, what);
  if (x.rank() == 0 || x.numel() == 0) return {x, Tensor::zeros(to_shape(x.shape()), kI64)};
  // The latest place so far that holds the extremum of its own prefix.
  const int axis = normalize_axis(what, dim, x.rank());
  Tensor hit = data == best;
  if (x.dtype().is_float()) hit = logical_or(hit, data.isnan());
  const Monoid latest{fold_max, larger, Tensor::full({}, 0)};
  const Tensor place = where(hit, detail::position(x.shape(), axis), 0);
  const Tensor indices = scan(latest, place, dim, what);
  return {x.requires_grad() ? x.gather(axis, indices) : best, indices};
}

}  // namespace

// --- Scans --------------------------------------------------------------------------------------

Tensor Tensor::cumsum(int64_t dim) const {
  LabelScope label("cumsum");
  const DType t = scan_dtype(dtype()), wide = detail::compute_dtype(t);
  return scan({fold_sum, add, full({}, 0, wide)}, to(wide), dim, "cumsum").to(t);
}

Tensor Tensor::cumprod(int64_t dim) const {
  LabelScope label("cumprod");
  const DType t = scan_dtype(dtype()), wide = detail::compute_dtype(t);
  return scan({fold_product, multiply, full({}, 1, wide)}, to(wide), dim, "cumprod").to(t);
}

Tensor Tensor::logcumsumexp(int64_t dim) const {
  LabelScope label("logcumsumexp");
  detail::require_float("logcumsumexp", dtype());
  const DType wide = detail::compute_dtype(dtype());
  const Monoid m{fold_log_sum, log_add_exp, full({}, -kInfinity, wide)};
  return scan(m, to(wide), dim, "logcumsumexp").to(dtype());
}

WithIndices Tensor::cummax(int64_t dim) const {
  return running_extremum("cummax", *this, dim, true);
}

WithIndices Tensor::cummin(int64_t dim) const {
  return running_extremum("cummin", *this, dim, false);
}

// --- Sorting ------------------------------------------------------------------------------------

namespace {

// Integers in the order of x, i32 where they fit, else i64: NaN is largest, -0 equals 0.
Tensor sort_keys(const Tensor& x, bool descending) {
  Tensor keys;
  const DType t = x.dtype();
  if (t.is_float()) {
    const DType wide = detail::compute_dtype(t), bits = wide == kF64 ? kI64 : kI32;
    const Tensor v = x.to(wide);
    const Tensor b = where(v == 0, 0, v).bitcast(bits);
    // Negative floats grow towards zero and their bits away from it.
    const Tensor ordered = where(b < 0, b ^ b.full_like(int_max(bits)), b);
    keys = where(v.isnan(), b.full_like(int_max(bits)), ordered);
  } else if (t == kU64) {
    keys = x.bitcast(kI64) ^ Tensor::full({}, INT64_MIN, kI64);
  } else {
    keys = x.to(t == kI64 || t == kU32 ? kI64 : kI32);
  }
  return descending ? keys.bitwise_not() : keys;
}

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
  if (packed) r = {(filled << 32) | position, Tensor()};
  // What sorts and merges read, they read from memory.
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

// The first `limit` positions of a stable sort along dim, i64, in the place of the axis.
Tensor sorted_along(const char* what, const Tensor& x, int64_t dim, bool descending,
                    int64_t limit) {
  const int axis = normalize_axis(what, dim, x.rank());
  Shape shape = to_shape(x.shape());
  if (x.rank() == 0) return Tensor::zeros({}, kI64);
  shape[axis] = limit;
  if (tiny::numel(shape) == 0) return Tensor::zeros(shape, kI64);
  const int last = x.rank() - 1;
  const Tensor rows = move_axis(x.detach(), axis, last).reshape({-1, x.shape()[axis]});
  const Tensor order = sorted_positions(sort_keys(rows, descending), limit);
  Shape moved = to_shape(x.shape());
  moved.erase(moved.begin() + axis);
  moved.push_back(limit);
  return move_axis(order.reshape(moved), last, axis);
}

WithIndices with_values(const Tensor& x, int64_t dim, const Tensor& indices) {
  return {x.rank() == 0 ? x : x.gather(dim, indices), indices};
}

int64_t axis_size(const char* what, const Tensor& x, int64_t dim) {
  const int axis = normalize_axis(what, dim, x.rank());
  return x.rank() ? x.shape()[axis] : 1;
}

}  // namespace

WithIndices Tensor::sort(int64_t dim, bool descending) const {
  LabelScope label("sort");
  return with_values(*this, dim, argsort(dim, descending));
}

Tensor Tensor::argsort(int64_t dim, bool descending) const {
  LabelScope label("argsort");
  return sorted_along("argsort", *this, dim, descending, axis_size("argsort", *this, dim));
}

WithIndices Tensor::topk(int64_t k, int64_t dim, bool largest) const {
  LabelScope label("topk");
  const int64_t n = axis_size("topk", *this, dim);
  check(k >= 0 && k <= n, "topk: ", k, " of ", n, " elements");
  return with_values(*this, dim, sorted_along("topk", *this, dim, largest, k));
}

}  // namespace tiny
