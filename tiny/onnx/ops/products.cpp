// Products of matrices, Einstein sums, determinants and Fourier transforms.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "tiny/onnx/ops/table.h"

namespace tiny::onnx {

namespace {

Tensors matmul(Call& c) {
  c.require(c[0].dtype() == c[1].dtype(), "operands of ", c[0].dtype(), " and ", c[1].dtype(),
            ", expected one dtype");
  return {c[0].matmul(c[1])};
}

Tensors gemm(Call& c) {
  const double alpha = c.real("alpha", 1), beta = c.real("beta", 1);
  const Tensor a = c.integer("transA", 0) != 0 ? c[0].t() : c[0];
  const Tensor b = c.integer("transB", 0) != 0 ? c[1].t() : c[1];
  const bool is_real = a.dtype().is_float();
  const auto scaled = [&](const Tensor& x, double factor) {
    if (factor == 1) return x;
    return is_real ? x * factor : (x.to(kF64) * factor).to(x.dtype());
  };
  const Tensor product = scaled(a.matmul(b), alpha);
  if (!c.has(2) || beta == 0) return {product};
  return {product + scaled(c[2], beta)};
}

// --- Einstein sums -------------------------------------------------------------------------------

std::vector<std::string> comma_parts(const std::string& text) {
  std::vector<std::string> out(1);
  for (const char letter : text) {
    if (letter == ',')
      out.emplace_back();
    else
      out.back() += letter;
  }
  return out;
}

// ONNX's equations may have upper-case letters, "..." and no result; Tensor::einsum has the lower-
// case letters and the arrow.
class Equation {
 public:
  Equation(Call& c, std::string text) : call_(c) {
    std::erase(text, ' ');
    const size_t arrow = text.find("->");
    terms_ = comma_parts(text.substr(0, arrow));
    c.require(terms_.size() == c.size(), terms_.size(), " terms for ", c.size(), " inputs");
    count_ellipsis();
    result_ = arrow == std::string::npos ? implied_result() : text.substr(arrow + 2);
  }

  std::string plain() {
    std::string out;
    for (const std::string& term : terms_) out += (out.empty() ? "" : ",") + renamed(term, true);
    return out + "->" + renamed(result_, false);
  }

 private:
  // The axes that "..." stands for: the same number in each term that has it.
  void count_ellipsis() {
    for (size_t i = 0; i < terms_.size(); ++i) {
      if (terms_[i].find("...") == std::string::npos) continue;
      const int axes = call_[i].rank() - static_cast<int>(terms_[i].size() - 3);
      call_.require(axes >= 0 && (ellipsis_ < 0 || ellipsis_ == axes), "\"...\" stands for ", axes,
                    " axes of input ", i, " and for ", ellipsis_, " of another");
      ellipsis_ = axes;
    }
  }

  // "..." and the letters that occur once, in the order of the alphabet.
  std::string implied_result() const {
    std::string letters, once;
    for (const std::string& term : terms_) letters += term;
    for (char letter = 'A'; letter <= 'z'; ++letter)
      if (std::ranges::count(letters, letter) == 1) once += letter;
    return (letters.find('.') == std::string::npos ? "" : "...") + once;
  }

  char name(char letter) {
    const size_t at = names_.find(letter);
    if (at != std::string::npos) return static_cast<char>('a' + at);
    call_.require(names_.size() < 26, "the equation has more than 26 letters");
    names_ += letter;
    return static_cast<char>('a' + names_.size() - 1);
  }

  std::string renamed(const std::string& term, bool is_operand) {
    std::string out;
    for (size_t i = 0; i < term.size(); ++i) {
      if (term[i] != '.') {
        call_.require(is_letter(term[i]), "'", term[i], "' in the equation is no letter");
        out += name(term[i]);
        continue;
      }
      call_.require(term.substr(i, 3) == "..." && (is_operand || ellipsis_ >= 0), "\"", term,
                    "\" in the equation");
      for (int axis = 0; axis < ellipsis_; ++axis) out += name(static_cast<char>('0' + axis));
      i += 2;
    }
    return out;
  }

  Call& call_;
  std::vector<std::string> terms_;
  std::string result_, names_;
  int ellipsis_ = -1;
};

Tensors einsum(Call& c) {
  return {Tensor::einsum(Equation(c, c.text("equation", "")).plain(), c.inputs())};
}

// --- Determinants --------------------------------------------------------------------------------

// By elimination with the largest pivot of each column, unrolled: matrices here are small.
Tensors determinant(Call& c) {
  const Shape shape = sizes(c[0]);
  const int64_t n = shape.empty() ? 0 : shape.back();
  c.require(shape.size() >= 2 && shape[shape.size() - 2] == n,
            "no square matrices: ", to_text(shape));
  const DType dtype = c[0].dtype();
  const int64_t batch = numel(Ints(shape).first(shape.size() - 2));
  Tensor a = c[0].reshape({batch, n, n}).to(dtype == kF64 ? kF64 : kF32);
  Tensor out = Tensor::ones({batch}, a.dtype());
  for (int64_t k = 0; k < n; ++k) {
    const int64_t rest = n - k;
    const Tensor best = a.select(2, 0).abs().argmax(1, true);  // (batch, 1)
    const Tensor at = Tensor::arange(rest).reshape({1, rest});
    const Tensor order = where(at == 0, best, where(at == best, 0, at));
    a = a.gather(1, order.unsqueeze(2).expand({batch, rest, rest}));
    const Tensor pivot = a.select(1, 0).select(1, 0);  // (batch)
    out = where(best.squeeze(1) == 0, out, -out) * pivot;
    if (rest == 1) break;
    const Tensor row = a.narrow(1, 0, 1).narrow(2, 1, rest - 1);
    const Tensor column = a.narrow(1, 1, rest - 1).narrow(2, 0, 1);
    const Tensor by = where(pivot == 0, 1, pivot).reshape({batch, 1, 1});
    a = a.narrow(1, 1, rest - 1).narrow(2, 1, rest - 1) - column * row / by;
  }
  const Shape result(shape.begin(), shape.end() - 2);
  return {out.reshape(result).to(dtype)};
}

// --- Fourier transforms --------------------------------------------------------------------------

// cos and sin of 2 pi j k / n as (n, columns).
Tensor circle(Call& c, int64_t n, int64_t columns, bool is_sine, DType dtype) {
  std::vector<double> values;
  for (int64_t j = 0; j < n; ++j)
    for (int64_t k = 0; k < columns; ++k) {
      const double angle =
          2 * std::numbers::pi * static_cast<double>(j * k % n) / static_cast<double>(n);
      values.push_back(is_sine ? std::sin(angle) : std::cos(angle));
    }
  return c.constant(values, {n, columns}, dtype);
}

// The transform of the last but one axis of x (..., n, 1 or 2: real or complex), its first
// `columns` frequencies: a product with the matrix of the transform.
Tensor transformed(Call& c, const Tensor& x, int64_t columns, bool is_inverse) {
  const int64_t n = x.size(-2);
  const Tensor cosines = circle(c, n, columns, false, x.dtype());
  const Tensor sines = circle(c, n, columns, true, x.dtype());
  const Tensor real = x.select(-1, 0);
  Tensor re = real.matmul(cosines), im = real.matmul(sines);
  if (!is_inverse) im = -im;
  if (x.size(-1) == 2) {
    const Tensor imaginary = x.select(-1, 1);
    const Tensor mixed = imaginary.matmul(sines);
    re = is_inverse ? re - mixed : re + mixed;
    im = im + imaginary.matmul(cosines);
  }
  const Tensor out = Tensor::stack({re, im}, -1);
  return is_inverse ? out / static_cast<double>(n) : out;
}

// Without another length this one; else the signal cut or filled with zeros.
Tensor with_length(const Tensor& x, int64_t axis, int64_t length) {
  std::vector<Padding> pads(static_cast<size_t>(x.rank()));
  pads[axis] = {0, length - x.size(axis)};
  return x.pad(pads);
}

Tensors dft(Call& c) {
  Tensor x = c[0];
  const int64_t wanted =
      c.opset() >= 20 ? (c.has(2) ? c.host_integers(2).at(0) : -2) : c.integer("axis", 1);
  const int64_t axis = axis_of(x, wanted);
  c.require(axis < x.rank() - 1, "axis ", wanted, " of ", to_text(x.shape()),
            ", whose last one has the parts of complex numbers");
  if (c.has(1)) x = with_length(x, axis, c.host_integers(1).at(0));
  const bool is_inverse = c.integer("inverse", 0) != 0, is_half = c.integer("onesided", 0) != 0;
  const int64_t n = x.size(axis);
  const Tensor moved = x.transpose(axis, -2);
  return {transformed(c, moved, is_half ? n / 2 + 1 : n, is_inverse).transpose(axis, -2)};
}

Tensors stft(Call& c) {
  const Tensor& signal = c[0];  // (batch, length, 1 or 2), or (batch, length)
  const Tensor x = signal.rank() == 2 ? signal.unsqueeze(2) : signal;
  const int64_t step = c.host_integers(1).at(0);
  const int64_t length = c.has(3) ? c.host_integers(3).at(0) : c[2].numel();
  c.require(step > 0 && length > 0 && length <= x.size(1), "frames of ", length, " every ", step,
            " of ", to_text(signal.shape()));
  Tensor frames = x.unfold(1, length, step).transpose(2, 3);  // (batch, frames, length, parts)
  if (c.has(2)) frames = frames * c[2].reshape({c[2].numel(), 1});
  const bool is_half = c.integer("onesided", 1) != 0;
  return {transformed(c, frames, is_half ? length / 2 + 1 : length, false)};
}

constexpr Operator kProducts[] = {
    {"DFT", 17, kFloats, dft},        {"Det", 11, kFloats, determinant},
    {"Einsum", 12, kNumbers, einsum}, {"Gemm", 6, kNumbers, gemm},
    {"MatMul", 1, kNumbers, matmul},  {"STFT", 17, kFloats, stft},
};

}  // namespace

std::span<const Operator> product_operators() { return kProducts; }

}  // namespace tiny::onnx
