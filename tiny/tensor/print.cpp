#include "tiny/tensor/print.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <ostream>
#include <string_view>
#include <vector>

namespace tiny {

namespace {

// --- Elements ------------------------------------------------------------------------------------

// How the floats of one tensor look: all alike, as wide as the widest finite one.
struct FloatForm {
  bool is_whole = true, is_scientific = false;
  int precision = 4;

  std::string operator()(double x) const {
    if (is_scientific) return formatted("%.*e", precision, x);
    if (!is_whole) return formatted("%.*f", precision, x);
    const std::string digits = formatted("%.0f", x);
    return std::isfinite(x) ? digits + '.' : digits;
  }
};

// By PyTorch's rules: scientific where magnitudes other than 0 differ by more than 1000 or are over
// 1e8, or, of numbers that are not all whole, under 1e-4.
FloatForm form_of(const std::vector<double>& values, const PrintOptions& options) {
  FloatForm form{.precision = options.precision};
  double least = std::numeric_limits<double>::infinity(), most = 0;
  for (const double x : values) {
    if (!std::isfinite(x) || x == 0) continue;
    form.is_whole = form.is_whole && x == std::ceil(x);
    least = std::min(least, std::abs(x));
    most = std::max(most, std::abs(x));
  }
  if (most > 0)
    form.is_scientific = most / least > 1000 || most > 1e8 || (!form.is_whole && least < 1e-4);
  form.is_scientific = form.is_scientific || options.is_scientific;
  return form;
}

std::vector<std::string> texts_of_floats(const std::vector<double>& values,
                                         const PrintOptions& options, size_t& width) {
  const FloatForm form = form_of(values, options);
  std::vector<std::string> texts;
  for (const double x : values) {
    texts.push_back(form(x));
    // What is 0 or not finite does not widen the others, as in PyTorch.
    if (std::isfinite(x) && x != 0) width = std::max(width, texts.back().size());
  }
  return texts;
}

template <class T> std::vector<std::string> texts_of_integers(const Tensor& t, size_t& width) {
  std::vector<std::string> texts;
  for (const T x : t.to_vector<T>()) {
    texts.push_back(cat(x));
    width = std::max(width, texts.back().size());
  }
  return texts;
}

// Of all elements in order, padded on the left to one width.
std::vector<std::string> texts_of(const Tensor& t, const PrintOptions& options) {
  size_t width = 1;
  std::vector<std::string> texts;
  if (t.dtype().is_bool()) {
    for (const uint8_t x : t.to_vector<uint8_t>()) texts.push_back(x ? "True" : "False");
    for (const std::string& text : texts) width = std::max(width, text.size());
  } else if (t.dtype() == kF64) {
    texts = texts_of_floats(t.to_vector<double>(), options, width);
  } else if (t.dtype().is_float()) {
    const std::vector<float> values = t.to(kF32).to_vector<float>();
    texts = texts_of_floats({values.begin(), values.end()}, options, width);
  } else if (t.dtype() == kU64) {
    texts = texts_of_integers<uint64_t>(t, width);
  } else {
    texts = texts_of_integers<int64_t>(t.to(kI64), width);
  }
  for (std::string& text : texts)
    if (text.size() < width) text.insert(0, width - text.size(), ' ');
  return texts;
}

// --- Lines ---------------------------------------------------------------------------------------

// The elements that are printed, row-major. Where `cut` is set, the axis has its first and last
// edge_items alone.
struct Printed {
  std::vector<std::string> texts;
  Shape shape;
  std::vector<bool> cut;
};

class Writer {
 public:
  Writer(const Printed& printed, const PrintOptions& options)
      : printed_(printed), options_(options) {}

  // What lies below the first `axis` axes, in brackets; its lines begin after `indent` columns.
  std::string text(size_t axis, size_t indent) {
    if (axis == printed_.shape.size()) return printed_.texts[at_++];
    const bool is_row = axis + 1 == printed_.shape.size();
    std::vector<std::string> parts;
    for (int64_t i = 0; i < printed_.shape[axis]; ++i) {
      if (printed_.cut[axis] && i == options_.edge_items) parts.push_back(is_row ? " ..." : "...");
      parts.push_back(text(axis + 1, indent + 1));
    }
    const size_t lines = is_row ? 1 : printed_.shape.size() - axis - 1;
    const size_t in_line = is_row ? elements_of_line(indent) : 1;
    std::string out = "[";
    for (size_t i = 0; i < parts.size(); ++i) {
      if (i > 0)
        out += i % in_line ? ", " : "," + std::string(lines, '\n') + std::string(indent + 1, ' ');
      out += parts[i];
    }
    return out + "]";
  }

 private:
  size_t elements_of_line(size_t indent) const {
    const auto room = options_.line_width - static_cast<int64_t>(indent);
    const auto each = static_cast<int64_t>(printed_.texts[0].size()) + 2;  // with ", "
    return static_cast<size_t>(std::max<int64_t>(1, room >= 0 ? room / each : 0));
  }

  const Printed& printed_;
  const PrintOptions& options_;
  size_t at_ = 0;  // of the next element
};

// Leaves of a large tensor the parts that are printed, which alone are read.
Printed printed_of(const Tensor& given, const PrintOptions& options) {
  Tensor t = given.detach();
  if (t.node()->lengths) {  // an axis as long as a Variable says
    const Shape shape = t.current_shape();
    std::vector<std::byte> bytes(static_cast<size_t>(numel(shape)) * t.dtype().size());
    t.to_bytes(bytes.data());
    t = Tensor::from_bytes(bytes.data(), t.dtype(), shape);
  }
  Printed out{{}, {}, std::vector<bool>(t.rank())};
  const bool is_summary = t.numel() > options.threshold;
  const int64_t edge = options.edge_items;
  for (int axis = 0; axis < t.rank(); ++axis) {
    const int64_t size = t.size(axis);
    if (!is_summary || size <= 2 * edge) continue;
    out.cut[axis] = true;
    t = Tensor::cat({t.narrow(axis, 0, edge), t.narrow(axis, size - edge, edge)}, axis);
  }
  out.shape = to_shape(t.shape());
  out.texts = texts_of(t, options);
  return out;
}

// --- What stands behind the values ---------------------------------------------------------------

bool is_usual(DType dtype) { return dtype == kF32 || dtype == kI64 || dtype.is_bool(); }

std::vector<std::string> suffixes_of(const Tensor& t, const Shape& shape) {
  std::vector<std::string> out;
  const bool is_empty = numel(shape) == 0;
  if (!t.device().empty() && t.device() != runtime_seam::default_device())
    out.push_back("device='" + t.device() + "'");
  if (is_empty && shape.size() != 1) {
    std::string size = "size=(";
    for (size_t i = 0; i < shape.size(); ++i) size += cat(i ? ", " : "", shape[i]);
    out.push_back(size + ")");
  }
  if (is_empty ? t.dtype() != kF32 : !is_usual(t.dtype())) out.push_back(cat("dtype=", t.dtype()));
  if (t.requires_grad()) out.push_back("requires_grad=True");
  return out;
}

}  // namespace

std::string to_string(const Tensor& t, const PrintOptions& options) {
  if (!t.defined()) return "undefined";
  check(options.precision >= 0 && options.threshold >= 0 && options.edge_items >= 1 &&
            options.line_width >= 1,
        "to_string: a precision of ", options.precision, ", a threshold of ", options.threshold,
        ", ", options.edge_items, " edge items or a line width of ", options.line_width);
  constexpr std::string_view kPrefix = "tensor(";
  const Shape shape = t.current_shape();
  std::string out(kPrefix);
  if (numel(shape) == 0) {
    out += "[]";
  } else {
    const Printed printed = printed_of(t, options);
    out += Writer(printed, options).text(0, kPrefix.size());
  }
  // Of the last line, with a bracket; PyTorch counts one more where there is no other line.
  const size_t last_line = out.rfind('\n');
  size_t length = last_line == out.npos ? out.size() + 2 : out.size() - last_line + 1;
  for (const std::string& suffix : suffixes_of(t, shape)) {
    if (static_cast<int64_t>(length + suffix.size() + 2) > options.line_width) {
      out += ",\n" + std::string(kPrefix.size(), ' ') + suffix;
      length = kPrefix.size() + suffix.size();
    } else {
      out += ", " + suffix;
      length += suffix.size() + 2;
    }
  }
  return out + ")";
}

std::ostream& operator<<(std::ostream& out, const Tensor& t) { return out << to_string(t); }

}  // namespace tiny
