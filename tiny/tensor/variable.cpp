#include "tiny/tensor/variable.h"

#include <algorithm>

#include "tiny/tensor/detail.h"

namespace tiny {

Variable::Variable(std::string name, int64_t min, int64_t max)
    : name_(std::move(name)), min_(min), max_(max) {
  check(0 <= min && min <= max && max < INT32_MAX, "Variable ", name_, ": bounds ", min, " and ",
        max, " must be 0 <= min <= max < 2^31 - 1");
}

Variable::Variable(std::string name, const Tensor& tensor, std::optional<int64_t> value)
    : name_(std::move(name)),
      min_(tensor.node()->vmin),
      max_(tensor.node()->vmax),
      tensor_(tensor),
      value_(value) {}

Variable Variable::bind(int64_t value, const std::string& device) const {
  check(min_ <= value && value <= max_, "Variable ", name_, ": the value ", value,
        " does not lie in [", min_, ", ", max_, "]");
  const Node scalar = build::reshape(runtime_seam::variable_value(name_, value, device), {});
  return Variable(name_, Tensor(build::bound(scalar, min_, max_)), value);
}

const Tensor& Variable::tensor() const {
  check(is_bound(), "Variable ", name_, ": it has no value: give it one with bind()");
  return tensor_;
}

int64_t Variable::value() const { return value_ ? *value_ : detail::host_integer(tensor().node()); }

void Variable::make_argument() {
  if (tensor().node()->op == Op::Bound) return;
  Variable whole = *this;
  whole.tensor_ = Tensor();
  *this = whole.bind(value(), tensor().device());
}

namespace {

std::optional<int64_t> both(const std::optional<int64_t>& x, std::optional<int64_t> y,
                            int64_t (*f)(int64_t, int64_t)) {
  if (!x || !y) return {};
  return f(*x, *y);
}

}  // namespace

Variable operator+(const Variable& x, int64_t y) {
  return Variable(cat(x.name(), "+", y), x.tensor() + y,
                  both(x.value_, y, [](int64_t a, int64_t b) { return a + b; }));
}

Variable operator-(const Variable& x, int64_t y) {
  return Variable(cat(x.name(), "-", y), x.tensor() - y,
                  both(x.value_, y, [](int64_t a, int64_t b) { return a - b; }));
}

Variable operator*(const Variable& x, int64_t y) {
  return Variable(cat(x.name(), "*", y), x.tensor() * y,
                  both(x.value_, y, [](int64_t a, int64_t b) { return a * b; }));
}

Variable operator+(const Variable& x, const Variable& y) {
  return Variable(cat(x.name(), "+", y.name()), x.tensor() + y.tensor(),
                  both(x.value_, y.value_, [](int64_t a, int64_t b) { return a + b; }));
}

Variable operator-(const Variable& x, const Variable& y) {
  return Variable(cat(x.name(), "-", y.name()), x.tensor() - y.tensor(),
                  both(x.value_, y.value_, [](int64_t a, int64_t b) { return a - b; }));
}

Index::Index(const Variable& v) : kind(Kind::Tensor), tensor(v.tensor()) {}

namespace {

void check_length(const char* what, const Tensor& x, int axis, const Variable& n) {
  check(n.min() >= 0 && n.max() <= x.capacity()[axis], what, ": the length ", n.name(), " in [",
        n.min(), ", ", n.max(), "] does not fit axis ", axis, " of ", to_text(x.capacity()));
  check(n.max() > 1, what, ": the length ", n.name(), " is at most ", n.max(),
        ", and an axis of size 1 would broadcast: use a mask, position < n");
}

}  // namespace

Tensor Tensor::narrow(int64_t dim, int64_t start, const Variable& length) const {
  LabelScope label("narrow");
  check(rank() > 0, "narrow: a 0-d tensor has no axes");
  const int axis = normalize_axis("narrow", dim, rank());
  check_length("narrow", *this, axis, length);
  check(start >= 0, "narrow: it starts at ", start);
  return Tensor(
      build::limit(narrow(axis, start, length.max()).node(), axis, length.tensor().node()));
}

Tensor Tensor::narrow(int64_t dim, const Variable& start, int64_t length) const {
  LabelScope label("narrow");
  check(rank() > 0, "narrow: a 0-d tensor has no axes");
  const int axis = normalize_axis("narrow", dim, rank());
  check(start.min() >= 0 && length >= 0 && start.max() + length <= capacity()[axis],
        "narrow: ", length, " elements from ", start.name(), " in [", start.min(), ", ",
        start.max(), "] do not lie in axis ", axis, " of ", to_text(capacity()));
  Shape part = to_shape(capacity());
  part[axis] = length;
  const Tensor at = detail::position(part, axis) + start.tensor();
  return detail::gather_axis(*this, axis, at);
}

Tensor Tensor::select(int64_t dim, const Variable& index) const {
  const int axis = normalize_axis("select", dim, std::max(rank(), 1));
  return narrow(axis, index, 1).squeeze(axis);
}

}  // namespace tiny
