// What the rows of the table of operators draw their arguments from: the values so far.
#pragma once
#include <random>

#include "test/programs/program.h"

namespace tiny::programs {

struct Known {
  Tensor value;  // in host memory, from the reference evaluator
  double largest = 0;
  bool is_statistic = false;  // a reduction's result, or made from one alone, element by element
  bool is_broadcast = false;  // has more elements than each of the values that it is made from
  Ints shape() const { return value.shape(); }
  DType dtype() const { return value.dtype(); }
  int rank() const { return value.rank(); }
};

class Draw {
 public:
  explicit Draw(uint64_t seed, std::vector<int> rows = {});
  Program run();

  int64_t below(int64_t n) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(n)); }
  int64_t between(int64_t low, int64_t high) { return low + below(high - low + 1); }
  bool chance(double p) { return below(10000) < p * 10000; }
  template <class T> T one_of(std::initializer_list<T> list) {
    return list.begin()[below(static_cast<int64_t>(list.size()))];
  }
  uint64_t bits() { return random_(); }

  const Known& operator[](int i) const { return known_[static_cast<size_t>(i)]; }
  int64_t most() const { return most_; }  // elements of a value
  DType real_type() const { return real_; }
  bool gradient() const { return program_.gradient; }

  using Filter = std::function<bool(const Known&)>;
  // A value, more often a late one; -1 where none passes.
  int pick(const Filter& filter);
  // Appends a leaf: integers low .. high, or reals where both are 0.
  int leaf(const Shape& shape, DType dtype, int64_t low = 0, int64_t high = 0);
  // A value, or a new leaf, that broadcasts with x and has its dtype.
  int partner(int x);
  int twin(int x);
  // A value, or a new leaf, of this shape and dtype.
  int of_shape(const Shape& shape, DType dtype);
  // Indices 0 .. size - 1 of that shape.
  int indices(const Shape& shape, int64_t size) {
    return leaf(shape, chance(0.5) ? kI64 : kI32, 0, std::max<int64_t>(size - 1, 1));
  }
  int64_t size();
  Shape shape(int most_axes = 4);
  int64_t axis(int x) { return below(known_[static_cast<size_t>(x)].rank()); }
  // Some axes; never all by {}.
  Shape axes(int x);

 private:
  bool add(Step s);
  void random_step();
  void choose_rows();
  void add_sibling();
  void choose_outputs();
  void add_realize();

  std::vector<int> rows_;  // of the table: what steps are drawn from
  std::mt19937_64 random_;
  Program program_;
  std::vector<Known> known_;
  Shape sizes_;  // of axes
  int64_t most_ = 1500;
  DType real_ = kF64;
};

inline bool is_real(const Known& v) { return v.dtype().is_float(); }
inline bool has_axes(const Known& v) { return v.rank() > 0; }
inline bool is_filled(const Known& v) { return v.value.numel() > 0; }

}  // namespace tiny::programs
