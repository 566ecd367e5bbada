// The generator. It knows of each value how large it can be and whether rounding has touched it:
// only exact values are compared, rounded or cast to integers, where an error in the last bit would
// change the result altogether.
#include <algorithm>
#include <cmath>
#include <random>

#include "test/fuzz/random_graph.h"
#include "tiny/base/error.h"

namespace tiny::fuzz {

namespace {

constexpr double kExactBelow = 1 << 22;
constexpr int64_t kMaxElements = 6000;

struct Info {
  Tensor value;
  double bound = 0;   // of the magnitude, floats only
  bool exact = true;  // integers, also where the dtype is a float
  Ints shape() const { return value.shape(); }
  DType dtype() const { return value.dtype(); }
};

class Generator {
 public:
  explicit Generator(uint64_t seed) : random_(seed) { program_.seed = seed; }

  Program run() {
    program_.gradient = chance(0.5);
    const int steps = below(12) + 3;
    add_leaf(random_shape());
    if (chance(0.6)) add_leaf(random_shape());
    for (int i = 0; i < steps; ++i) random_step();
    choose_outputs();
    return std::move(program_);
  }

 private:
  int below(int64_t n) { return static_cast<int>(random_() % static_cast<uint64_t>(n)); }
  bool chance(double p) { return below(1000) < p * 1000; }
  template <class T> T one_of(std::initializer_list<T> list) {
    return list.begin()[below(static_cast<int64_t>(list.size()))];
  }

  // --- leaves ------------------------------------------------------------------------------------

  int64_t random_size() {
    if (chance(0.01)) return 0;
    if (chance(0.12)) return 1;
    if (chance(0.1)) return one_of<int64_t>({16, 32, 64, 128, 31, 33, 100, 257});
    return one_of<int64_t>({2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 16, 17});
  }

  Shape random_shape() {
    Shape shape(static_cast<size_t>(chance(0.05) ? 0 : 1 + below(4)));
    for (int64_t& n : shape) n = random_size();
    while (numel(shape) > kMaxElements) shape.pop_back();
    return shape;
  }

  DType random_dtype() {
    if (program_.gradient || chance(0.6)) return kF32;
    return one_of({kI32, kI32, kBool, kI64, kU8, kI8, kU32, kF64});
  }

  int add_leaf(Shape shape) { return add_leaf(std::move(shape), random_dtype()); }
  int add_leaf(Shape shape, DType dtype) {
    Step s;
    s.arg = std::move(shape);
    s.dtype = dtype;
    s.seed = random_();
    if (dtype.is_float() && chance(0.5)) s.fill = Fill::Real;
    if ((dtype == kI32 || dtype == kI64 || dtype == kU32) && chance(0.2)) s.fill = Fill::Bits;
    if (!program_.gradient && chance(0.15)) {  // positions and constants
      s.kind = !s.arg.empty() && dtype != kBool && chance(0.6) ? Kind::Iota : Kind::Full;
      s.arg.push_back(s.kind == Kind::Iota ? below(static_cast<int64_t>(s.arg.size()))
                                           : below(dtype == kBool ? 2 : 5));
      return add(s, s.kind == Kind::Iota ? 6000 : 4, true);
    }
    return add(s, s.fill == Fill::Real ? 2 : 4, s.fill == Fill::Small);
  }

  int add_index(Shape shape, int64_t size) {
    Step s;
    s.arg = std::move(shape);
    s.dtype = chance(0.5) ? kI32 : kI64;
    s.fill = Fill::Index;
    s.top = chance(0.3) ? size : std::max<int64_t>(size - 1, 0);
    s.seed = random_();
    return add(s, 0, true);
  }

  // --- steps -------------------------------------------------------------------------------------

  // Appends a step; -1 where its sizes do not fit or are too large.
  int add(Step s, double bound, bool exact) {
    std::vector<Node> in;
    for (int i : s.in) in.push_back(info(i).value.node());
    try {
      Info made;
      made.value = Tensor(make_step(s, in, ""));
      if (made.value.numel() > kMaxElements) return -1;
      made.exact = exact && (bound < kExactBelow || !made.value.dtype().is_float());
      made.bound = bound;
      infos_.push_back(std::move(made));
    } catch (const Error&) {
      return -1;
    }
    program_.steps.push_back(std::move(s));
    return static_cast<int>(infos_.size()) - 1;
  }

  const Info& info(int i) const { return infos_[static_cast<size_t>(i)]; }

  int pick() {
    const auto n = static_cast<int64_t>(infos_.size());
    return chance(0.6) ? static_cast<int>(n - 1 - below(std::min<int64_t>(n, 2))) : below(n);
  }

  void random_step() {
    const int x = pick();
    const int what = below(100);
    if (what < 14) return unary(x);
    if (what < 34) return binary(x);
    if (what < 37) return select(x);
    if (what < 42) return cast(x);
    if (what < 62) return movement(x);
    if (what < 75) return reduce(x);
    if (what < 80) return row_chain(x);
    if (what < 85) return product(x);
    if (what < 88) return window(x);
    if (what < 93) return gather(x);
    if (what < 96) return scatter(x);
    if (what < 97) return cumulate(x);
    if (what < 98) return assign(x);
    keep(Kind::Contiguous, x);
  }

  // A step whose values are some of x's.
  int keep(Kind kind, int x, Shape arg = {}) {
    Step s;
    s.kind = kind;
    s.in = {x};
    s.arg = std::move(arg);
    return add(s, info(x).bound, info(x).exact);
  }

  void unary(int x) {
    const Info& i = info(x);
    Step s;
    s.in = {x};
    s.kind = Kind::Unary;
    if (!i.dtype().is_float() || chance(0.2)) {
      if (i.dtype() == kBool) return;
      s.op = Op::Neg;
      add(s, i.bound, i.exact);
    } else if (i.exact && chance(0.2) && !program_.gradient) {
      s.op = one_of({Op::Floor, Op::Trunc});
      add(s, i.bound, true);
    } else if (chance(0.3) && i.bound < 1000) {
      s.op = Op::Sin;
      add(s, 1, false);
    } else if (i.bound < 1e6) {
      s.kind = Kind::Tamed;
      s.op = one_of({Op::Recip, Op::Sqrt, Op::Log2, Op::Exp2});
      add(s, s.op == Op::Sqrt ? 1 + i.bound : s.op == Op::Log2 ? 41 : 2, false);
    }
  }

  // Another value that broadcasts with x, or x itself.
  int partner(int x) {
    for (int tries = 0; tries < 4; ++tries) {
      const int y = pick();
      if (info(y).dtype() != info(x).dtype() || y == x) continue;
      try {
        if (numel(broadcast("", info(x).shape(), info(y).shape())) <= kMaxElements) return y;
      } catch (const Error&) {
      }
    }
    if (chance(0.2)) return x;
    Shape shape = to_shape(info(x).shape());
    for (int64_t& n : shape)
      if (chance(0.3)) n = 1;
    if (!shape.empty() && chance(0.3)) shape.erase(shape.begin());
    const int y = add_leaf(shape, info(x).dtype());
    return y < 0 ? x : y;
  }

  Op binary_op(DType t, bool exact) {
    if (t == kBool) return one_of({Op::And, Op::Or, Op::Xor, Op::Max, Op::Eq, Op::Lt});
    if (t.is_float()) {
      if (exact && !program_.gradient && chance(0.3))
        return one_of({Op::Max, Op::Min, Op::Lt, Op::Le, Op::Eq, Op::Ne});
      if (exact && chance(0.15)) return one_of({Op::Max, Op::Min});
      return one_of({Op::Add, Op::Sub, Op::Mul, Op::Mul, Op::Div, Op::Add});
    }
    return one_of({Op::Add, Op::Sub, Op::Mul, Op::FloorDiv, Op::FloorMod, Op::TruncDiv,
                   Op::TruncMod, Op::Max, Op::Min, Op::Shl, Op::Shr, Op::And, Op::Or, Op::Xor,
                   Op::Lt, Op::Le, Op::Eq, Op::Ne});
  }

  void binary(int x) {
    const int y = partner(x);
    const Info &a = info(x), &b = info(y);
    const bool exact = a.exact && b.exact;
    Step s;
    s.kind = Kind::Binary;
    s.in = chance(0.5) ? std::vector{x, y} : std::vector{y, x};
    s.op = binary_op(a.dtype(), exact);
    double bound = a.bound + b.bound;
    if (s.op == Op::Mul) bound = a.bound * b.bound;
    if (is_comparison(s.op)) bound = 1;
    if (bound > 1e12) return;
    add(s, bound, exact && s.op != Op::Div);
  }

  void select(int x) {
    const int y = partner(x);
    const int c = add_leaf(to_shape(info(chance(0.5) ? x : y).shape()), kBool);
    if (c < 0) return;
    Step s;
    s.kind = Kind::Where;
    s.in = {c, x, y};
    add(s, std::max(info(x).bound, info(y).bound), info(x).exact && info(y).exact);
  }

  void cast(int x) {
    const Info& i = info(x);
    Step s;
    s.kind = Kind::Cast;
    s.in = {x};
    if (i.dtype().is_float()) {
      s.dtype = program_.gradient ? kF32 : one_of({kF32, kF64, kI32, kI64, kBool});
      if (!s.dtype.is_float() && !(i.exact && i.bound < 1e9)) return;
      add(s, i.bound, i.exact);
      return;
    }
    s.dtype = one_of({kF32, kF32, kI32, kI64, kU8, kI8, kBool, kU32});
    if (s.dtype == kI32 && i.dtype() == kI32) return;
    const double bound = i.dtype() == kBool || i.dtype().size() == 1 ? 255 : 1e19;
    if (s.dtype == kF32 && bound > 1e6) {  // only the low bits
      Step mask, low;
      mask.kind = Kind::Full;
      mask.dtype = i.dtype();
      mask.arg = {63};
      low.kind = Kind::Binary;
      low.op = Op::And;
      low.in = {x, add(mask, 63, true)};
      if (low.in[1] < 0) return;
      s.in = {add(low, 63, true)};
      if (s.in[0] >= 0) add(s, 63, true);
      return;
    }
    add(s, bound, true);
  }

  void movement(int x) {
    const Shape shape = to_shape(info(x).shape());
    const auto rank = static_cast<int64_t>(shape.size());
    if (rank == 0 || chance(0.1)) {
      const int y = rank < 6 ? keep(Kind::Unsqueeze, x, {below(rank + 1)}) : -1;
      if (y >= 0 && chance(0.6)) expand(y);
      return;
    }
    switch (below(9)) {
      case 0: keep(Kind::Flatten, x); return;
      case 1:
        if (rank > 1) keep(Kind::Merge, x, {below(rank - 1)});
        return;
      case 2: split(x); return;
      case 3: permute(x); return;
      case 4: expand(x); return;
      case 5: pad(x); return;
      case 6: crop(x); return;
      default: step_over(x);
    }
  }

  void split(int x) {
    const int axis = below(info(x).value.rank());
    const int64_t n = info(x).shape()[axis];
    for (int64_t f : {below(6) + 2, 4, 3, 2})
      if (n > 1 && n % f == 0 && info(x).value.rank() < 6) {
        keep(Kind::Split, x, {axis, f});
        return;
      }
  }

  void permute(int x) {
    Shape axes(static_cast<size_t>(info(x).value.rank()));
    for (size_t i = 0; i < axes.size(); ++i) axes[i] = static_cast<int64_t>(i);
    std::shuffle(axes.begin(), axes.end(), random_);
    keep(Kind::Permute, x, axes);
  }

  void expand(int x) {
    const Ints shape = info(x).shape();
    for (int i = 0; i < static_cast<int>(shape.size()); ++i)
      if (shape[i] == 1) {
        keep(Kind::Expand, x, {i, std::max<int64_t>(1, random_size())});
        return;
      }
  }

  void pad(int x) {
    Shape amounts(static_cast<size_t>(info(x).value.rank()) * 2);
    for (int64_t& a : amounts) a = chance(0.4) ? below(4) : 0;
    keep(Kind::Pad, x, amounts);
  }

  void crop(int x) {
    const Ints shape = info(x).shape();
    Shape cuts;
    for (int64_t n : shape) {
      const int64_t cut = n > 1 && chance(0.6) ? below(n) : 0;
      const int64_t before = below(cut + 1);
      cuts.push_back(before);
      cuts.push_back(cut - before);
    }
    keep(Kind::Shrink, x, cuts);
  }

  void step_over(int x) {
    Shape flips, steps;
    for (int i = 0; i < info(x).value.rank(); ++i) {
      flips.push_back(chance(0.5));
      steps.push_back(1 + below(3));
    }
    if (chance(0.5))
      keep(Kind::Flip, x, flips);
    else
      keep(Kind::Stride, x, steps);
  }

  int64_t random_axes(int x) {
    const int rank = info(x).value.rank();
    if (chance(0.2)) return (int64_t{1} << rank) - 1;
    int64_t mask = int64_t{1} << below(rank);
    if (chance(0.3)) mask |= int64_t{1} << below(rank);
    return mask;
  }

  void reduce(int x) {
    const Info& i = info(x);
    if (i.value.rank() == 0) return;
    Step s;
    s.kind = Kind::Reduce;
    s.in = {x};
    s.arg = {random_axes(x)};
    s.op = one_of({Op::Add, Op::Add, Op::Add, Op::Max, Op::Min});
    if (i.dtype().is_float() && !i.exact && program_.gradient) s.op = Op::Add;
    if (i.dtype() == kBool) s.op = Op::Max;
    if (!i.dtype().is_float() && i.dtype() != kBool && chance(0.1)) s.op = Op::Mul;
    const auto n = static_cast<double>(i.value.numel());
    if (n == 0 && s.op != Op::Add && s.op != Op::Mul) return;
    const double bound = s.op == Op::Add ? i.bound * n : i.bound;
    if (bound > 1e10 && i.dtype().is_float()) return;
    const int r = add(s, bound, i.exact);
    if (r >= 0 && chance(0.4)) back(x, r);
  }

  // x - r or x * r, with r broadcast: as in softmax or a variance.
  void back(int x, int r) {
    if (info(x).dtype() == kBool) return;
    const Info &a = info(x), &b = info(r);
    Step s;
    s.kind = Kind::Binary;
    s.in = {x, r};
    s.op = one_of({Op::Sub, Op::Mul, Op::Add});
    const double bound = s.op == Op::Mul ? a.bound * b.bound : a.bound + b.bound;
    if (bound < 1e10) add(s, bound, a.exact && b.exact);
  }

  void row_chain(int x) {
    const Info& i = info(x);
    if (i.dtype() != kF32 || i.value.rank() == 0 || i.value.numel() == 0) return;
    Step s;
    s.in = {x};
    s.kind = i.bound < 50 && chance(0.5) && !(program_.gradient && !i.exact) ? Kind::Softmax
                                                                             : Kind::Normalize;
    if (s.kind == Kind::Normalize && i.bound > 100) return;
    s.arg = {s.kind == Kind::Softmax ? below(i.value.rank()) : random_axes(x)};
    add(s, s.kind == Kind::Softmax ? 1 : 80, false);
  }

  void product(int x) {
    const Info& i = info(x);
    if (i.value.rank() == 0 || i.value.rank() > 4 || i.bound > 1e4 || i.dtype() == kBool) return;
    const int64_t k = i.shape()[i.shape().size() - 1];
    const int w = add_leaf({k, std::max<int64_t>(1, random_size())}, i.dtype());
    if (w < 0) return;
    Step s;
    s.kind = Kind::Matmul;
    s.in = {x, w};
    add(s, info(x).bound * info(w).bound * static_cast<double>(k + 1),
        info(x).exact && info(w).exact);
  }

  void window(int x) {
    if (info(x).value.rank() == 0 || info(x).value.rank() > 4) return;
    const int axis = below(info(x).value.rank());
    const int w = keep(Kind::Windows, x, {axis, 1 + below(4), 1 + below(3), 1 + below(2)});
    if (w < 0) return;
    if (chance(0.7) && info(w).dtype().is_float()) {
      const int64_t n = info(w).shape()[info(w).shape().size() - 1];
      const int k = add_leaf({n}, info(w).dtype());
      if (k >= 0) back(w, k);
    }
    const int last = static_cast<int>(infos_.size()) - 1;
    if (chance(0.7)) reduce(last);
  }

  std::vector<int> indices_of(const Shape& data, const Shape& shape) {
    std::vector<int> out;
    for (int64_t n : data) out.push_back(add_index(shape, n));
    return out;
  }

  void gather(int x) {
    const Shape data = to_shape(info(x).shape());
    if (data.empty()) return;
    Step s;
    s.kind = Kind::Gather;
    s.in = {x};
    for (int i : indices_of(data, random_shape())) s.in.push_back(i);
    if (std::find(s.in.begin(), s.in.end(), -1) == s.in.end()) add(s, info(x).bound, info(x).exact);
  }

  void scatter(int x) {  // x into a new base
    const Info& i = info(x);
    Shape base = random_shape();
    if (i.dtype() == kBool || i.value.numel() == 0 || base.empty()) return;
    Step s;
    s.kind = Kind::Scatter;
    const double most = i.bound * static_cast<double>(i.value.numel() + 1);
    s.op = i.exact || !i.dtype().is_float() ? one_of({Op::Add, Op::Assign, Op::Max, Op::Min})
                                            : one_of({Op::Add, Op::Assign});
    if (program_.gradient) s.op = Op::Add;
    s.in = {add_leaf(base, i.dtype()), x};
    for (int k : indices_of(base, to_shape(info(x).shape()))) s.in.push_back(k);
    if (std::find(s.in.begin(), s.in.end(), -1) != s.in.end()) return;
    if (most < 1e10) add(s, most + 4, info(x).exact && info(s.in[0]).exact);
  }

  void cumulate(int x) {
    const Info& i = info(x);
    if (i.dtype() != kF32 || i.value.rank() == 0 || i.value.numel() == 0) return;
    Step s;
    s.kind = Kind::CumSum;
    s.in = {x};
    s.arg = {below(i.value.rank())};
    if (i.bound < 1e6) add(s, i.bound * static_cast<double>(i.value.numel()), i.exact);
  }

  void assign(int x) {
    if (program_.gradient) return;
    const int old = add_leaf(to_shape(info(x).shape()), info(x).dtype());
    if (old < 0) return;
    Step s;
    s.kind = Kind::Assign;
    s.in = {old, x};
    if (add(s, info(x).bound, info(x).exact) >= 0 && chance(0.5)) binary(old);
  }

  void choose_outputs() {
    const int n = static_cast<int>(infos_.size());
    program_.outputs = {n - 1};
    while (chance(0.4)) program_.outputs.push_back(below(n));
    std::sort(program_.outputs.begin(), program_.outputs.end());
    program_.outputs.erase(std::unique(program_.outputs.begin(), program_.outputs.end()),
                           program_.outputs.end());
  }

  Program program_;
  std::mt19937_64 random_;
  std::vector<Info> infos_;
};

}  // namespace

Program random_program(uint64_t seed) { return Generator(seed).run(); }

}  // namespace tiny::fuzz
