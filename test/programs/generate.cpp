#include <algorithm>
#include <cmath>

#include "test/programs/draw.h"

namespace tiny::programs {

namespace {

constexpr double kLargest = 60;  // of a float: what follows stays far from overflow

double largest_of(const HostTensor& value) {
  double largest = 0;
  for (double v : value.numbers()) {
    if (!std::isfinite(v)) return v;
    largest = std::max(largest, std::abs(v));
  }
  return largest;
}

const std::vector<int>& lottery() {  // each row as often as its weight says
  static const std::vector<int> tickets = [] {
    std::vector<int> out;
    const auto& rows = operators();
    for (size_t i = 0; i < rows.size(); ++i)
      out.insert(out.end(), static_cast<size_t>(rows[i].weight), static_cast<int>(i));
    return out;
  }();
  return tickets;
}

}  // namespace

Draw::Draw(uint64_t seed, std::vector<int> rows)
    : rows_(std::move(rows)), random_(seed * 0x9E3779B97F4A7C15ull + 1) {
  program_.seed = seed;
}

// A program has few sizes, so that many of its values fit together.
int64_t Draw::size() {
  if (!sizes_.empty() && chance(0.8)) return sizes_[static_cast<size_t>(below(3))];
  if (chance(0.01)) return 0;
  if (chance(0.15)) return 1;
  if (chance(0.3)) return one_of<int64_t>({7, 8, 9, 11, 13, 16, 17, 31, 32, 33, 64});
  return between(2, 6);
}

Shape Draw::shape(int most_axes) {
  Shape out(static_cast<size_t>(chance(0.04) ? 0 : between(1, most_axes)));
  for (int64_t& n : out) n = size();
  while (numel(out) > most_) out.pop_back();
  return out;
}

Shape Draw::axes(int x) {
  const int rank = (*this)[x].rank();
  Shape out;
  for (int d = 0; d < rank; ++d)
    if (chance(0.45)) out.push_back(chance(0.2) ? d - rank : d);
  if (out.empty() && rank) out.push_back(below(rank));
  return out;
}

int Draw::pick(const Filter& filter) {
  std::vector<int> fit;
  for (size_t i = 0; i < known_.size(); ++i)
    if (known_[i].value.defined() && filter(known_[i])) fit.push_back(static_cast<int>(i));
  if (fit.empty()) return -1;
  if (chance(0.25)) {  // a statistic that several consumers share, at several shapes
    std::vector<int> statistics;
    for (int i : fit)
      if ((*this)[i].is_statistic) statistics.push_back(i);
    if (!statistics.empty()) fit = statistics;
  }
  const auto count = static_cast<int64_t>(fit.size());
  const int64_t from = chance(0.6) ? std::max<int64_t>(0, count - 3) : 0;
  return fit[static_cast<size_t>(between(from, count - 1))];
}

int Draw::leaf(const Shape& shape, DType dtype, int64_t low, int64_t high) {
  Step s;
  s.row = row_named("leaf");
  s.a = shape;
  s.t = dtype;
  s.i = low;
  s.j = high;
  s.seed = bits() % 100000;
  if (!dtype.is_float() && low == 0 && high == 0) {
    s.i = dtype.is_signed() && !dtype.is_bool() ? -4 : 0;
    s.j = dtype.is_bool() ? 1 : 5;
  }
  return add(s) ? static_cast<int>(known_.size()) - 1 : -1;
}

int Draw::of_shape(const Shape& shape, DType dtype) {
  const auto fits = [&](const Known& v) { return v.dtype() == dtype && same(v.shape(), shape); };
  const int known = chance(0.7) ? pick(fits) : -1;
  return known >= 0 ? known : leaf(shape, dtype);
}

// x itself on another path: its elements meet others of its own.
int Draw::twin(int x) {
  Step s;
  const bool flips = has_axes((*this)[x]) && chance(0.3);
  s.row = row_named(flips ? "flip" : "unsqueeze");
  s.in = {x};
  if (flips) s.a = axes(x);
  s.i = below((*this)[x].rank() + 1);
  return add(s) ? static_cast<int>(known_.size()) - 1 : -1;
}

int Draw::partner(int x) {
  if (chance(0.15)) return twin(x);
  const DType dtype = (*this)[x].dtype();
  const Shape shape = to_shape((*this)[x].shape());
  const auto fits = [&](const Known& v) {
    if (v.dtype() != dtype || !v.value.defined()) return false;
    try {
      return numel(broadcast("partner", v.shape(), shape)) <= most_;
    } catch (const Error&) {
      return false;
    }
  };
  const int known = chance(0.75) ? pick(fits) : -1;
  if (known >= 0 && (known != x || chance(0.2))) return known;
  Shape other(shape.begin() + below(static_cast<int64_t>(shape.size()) + 1), shape.end());
  for (int64_t& n : other)
    if (chance(0.3)) n = 1;
  if (other.size() == shape.size() && chance(0.1)) other.insert(other.begin(), between(1, 4));
  if (numel(broadcast("partner", other, shape)) > most_) other = shape;
  return leaf(other, dtype);
}

// Appends the step unless its values would be too many, too large or not finite.
bool Draw::add(Step s) {
  const Row& row = row_of(s);
  std::vector<Tensor> in;
  for (int i : s.in) in.push_back((*this)[i].value);
  Known made;
  try {
    Tensor lazy = row.make({s, in});
    if (lazy.numel() > most_ || lazy.rank() > 6) return false;
    const HostTensor value = evaluate(lazy.node());
    made.largest = largest_of(value);
    const bool real = value.dtype.is_float();
    if (real && !(std::abs(made.largest) <= kLargest)) return false;
    made.value = Tensor::from_bytes(value.data.data(), value.dtype, value.shape, "CPU");
    for (size_t i = 0; i < in.size(); ++i)
      made.is_statistic |=
          real &&
          (value.size() < in[i].numel() ||
           (in.size() == 1 && value.size() == in[i].numel() && (*this)[s.in[i]].is_statistic));
    made.is_broadcast = !in.empty();
    for (const Tensor& x : in) made.is_broadcast &= x.numel() < value.size();
    if (real) made.value.requires_grad_();
  } catch (const Error&) {
    return false;
  }
  known_.push_back(std::move(made));
  program_.steps.push_back(std::move(s));
  return true;
}

void Draw::add_realize() {
  Step s;
  s.row = row_named("realize");
  for (size_t i = 0; i < known_.size(); ++i)
    if (known_[i].value.defined() && !has(row_of(program_.steps[i]), 'l') && chance(0.3))
      s.in.push_back(static_cast<int>(i));
  if (s.in.empty()) return;
  program_.steps.push_back(s);
  known_.emplace_back();
}

// Another operator of an earlier step's operands and axes: values that share a part of how they are
// computed.
void Draw::add_sibling() {
  Step s = program_.steps[static_cast<size_t>(below(static_cast<int64_t>(known_.size())))];
  if (s.in.empty() || s.row == row_named("realize")) return;
  std::vector<int> rows;
  for (size_t i = 0; i < operators().size(); ++i)
    if (operators()[i].draw == row_of(s).draw && static_cast<int>(i) != s.row &&
        operators()[i].weight)
      rows.push_back(static_cast<int>(i));
  if (rows.empty()) return;
  s.row = rows[static_cast<size_t>(below(static_cast<int64_t>(rows.size())))];
  add(s);
}

void Draw::random_step() {
  if (chance(0.02)) return add_realize();
  if (chance(0.2)) return add_sibling();
  Step s;
  s.row = rows_[static_cast<size_t>(below(static_cast<int64_t>(rows_.size())))];
  s.seed = bits() % 100000;
  const size_t before = known_.size();
  if (row_of(s).draw(*this, s) && add(s)) return;
  known_.resize(before);  // leaves that were made for it
  program_.steps.resize(before);
}

void Draw::choose_outputs() {
  std::vector<bool> used(known_.size(), false);
  for (const Step& s : program_.steps)
    if (s.row != row_named("realize"))
      for (int i : s.in) used[static_cast<size_t>(i)] = true;
  for (size_t i = known_.size(); i-- > 0;) {
    if (!known_[i].value.defined() || has(row_of(program_.steps[i]), 'l')) continue;
    if (program_.outputs.size() < 4 && chance(used[i] ? 0.15 : 0.75))
      program_.outputs.push_back(static_cast<int>(i));
  }
  for (size_t i = known_.size(); program_.outputs.empty() && i-- > 0;)
    if (known_[i].value.defined()) program_.outputs.push_back(static_cast<int>(i));
}

// Few operators meet each other more often (A. Groce et al., "Swarm testing", ISSTA 2012).
void Draw::choose_rows() {
  rows_ = lottery();
  if (chance(0.15)) return;
  for (int& row : rows_)
    std::swap(row, rows_[static_cast<size_t>(below(static_cast<int64_t>(rows_.size())))]);
  rows_.resize(static_cast<size_t>(chance(0.6) ? between(3, 9) : between(8, 25)));
}

Program Draw::run() {
  const EnvOverride device("DEVICE", "CPU");
  program_.gradient = chance(0.7);
  program_.grouping = chance(0.5) ? 0 : chance(0.7) ? 1 : 2;
  program_.in_memory = chance(0.5);
  if (chance(0.1)) most_ = 6000;
  real_ = chance(0.6) ? kF64 : chance(0.8) ? kF32 : chance(0.5) ? kBF16 : kF16;
  sizes_ = {chance(0.03) ? 0 : size(), size(), size()};
  if (rows_.empty()) choose_rows();
  const int64_t steps = chance(0.4)    ? between(4, 7)
                        : chance(0.75) ? between(7, 13)
                                       : between(10, 40);
  while (leaf(shape(), real_) < 0) continue;
  if (chance(0.4)) leaf(shape(), real_, chance(0.3) ? -4 : 0, chance(0.3) ? 4 : 0);
  if (chance(0.2)) leaf(shape(), one_of({kI32, kI64, kBool, kU8, kI8, kU32, kI16}));
  for (int64_t tries = 0; tries < 3 * steps && static_cast<int64_t>(known_.size()) < steps; ++tries)
    random_step();
  choose_outputs();
  return std::move(program_);
}

Program random_program(uint64_t seed, const std::vector<int>& rows) {
  return Draw(seed, rows).run();
}

}  // namespace tiny::programs
