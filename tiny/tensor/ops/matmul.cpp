// Matrix products: operands broadcast against each other, multiplied and summed over one axis. The
// scheduler sees Mul below ReduceAxis and knows what to do with it.
#include <algorithm>
#include <optional>

#include "tiny/tensor/detail.h"
#include "tiny/tensor/ops/f8_product.h"
#include "tiny/train/mixed_precision.h"

namespace tiny {

namespace {

// sum over the last `count` axes of x * y, which broadcast; rounded once to `result`, or without
// one to the promoted dtype. Integers wrap around. The gradient of a product of 16-bit floats is
// one of 16-bit floats, as tensor cores take it, also where the result is wider.
Tensor product_sum(const Tensor& given_x, const Tensor& given_y, int count = 1,
                   std::optional<DType> result = {}) {
  const Tensor x = detail::autocast(given_x), y = detail::autocast(given_y);
  const DType t = result.value_or(promote(x.dtype(), y.dtype()));
  const DType wide = detail::compute_dtype(t);
  const auto [a, b] = detail::match("matmul", x, y, wide);
  const int kept = a->rank - count;
  const Node products = build::binary(wide.is_bool() ? Op::And : Op::Mul, a, b);
  const Op op = wide.is_bool() ? Op::Max : Op::Add;
  const uint32_t summed = ((uint32_t{1} << count) - 1) << kept;
  Node sum = build::reshape(build::reduce(op, products, summed), a->shape().first(kept));
  const DType given = promote(x.dtype(), y.dtype());
  if (given.is_half() && t == wide) sum = build::round_gradient(sum, given);
  return Tensor(sum).to(t);
}

}  // namespace

namespace {

Tensor multiplied(const Tensor& a, const Tensor& b, std::optional<DType> result) {
  LabelScope label("matmul");
  check(a.rank() > 0 && b.rank() > 0, "matmul: takes tensors with axes and not ",
        to_text(a.capacity()), " by ", to_text(b.capacity()), ": use *");
  const int64_t k = a.capacity().back(), inner = b.capacity()[std::max(b.rank() - 2, 0)];
  check(k == inner, "matmul: cannot multiply ", to_text(a.capacity()), " by ",
        to_text(b.capacity()), ": the last axis of the first has ", k,
        " elements and the axis it meets ", inner);
  if (const DType t = result.value_or(kBF16); t.is_float() && detail::is_f8_product(a, b))
    return detail::f8_product(a, b, t);
  // x[..., i, 1, k] * y[..., 1, j, k], without i or j where the operand is 1-d
  Tensor x = a, y = b;
  if (b.rank() > 1) {
    y = y.transpose(-1, -2);
    if (a.rank() > 1) y = y.unsqueeze(-3);
    x = x.unsqueeze(-2);
  }
  return product_sum(x, y, 1, result);
}

}  // namespace

Tensor Tensor::matmul(const Tensor& other) const { return multiplied(*this, other, {}); }

Tensor Tensor::matmul(const Tensor& other, DType result) const {
  return multiplied(*this, other, result);
}

Tensor Tensor::bmm(const Tensor& other) const {
  LabelScope label("bmm");
  check(rank() == 3 && other.rank() == 3 && capacity()[0] == other.capacity()[0],
        "bmm: takes (b,n,k) by (b,k,m) and not ", to_text(capacity()), " by ",
        to_text(other.capacity()));
  return matmul(other);
}

Tensor Tensor::dot(const Tensor& other) const {
  LabelScope label("dot");
  check(rank() == 1 && other.rank() == 1, "dot: takes two 1-d tensors and not ",
        to_text(capacity()), " and ", to_text(other.capacity()));
  return matmul(other);
}

Tensor Tensor::outer(const Tensor& other) const {
  LabelScope label("outer");
  check(rank() == 1 && other.rank() == 1, "outer: takes two 1-d tensors and not ",
        to_text(capacity()), " and ", to_text(other.capacity()));
  return unsqueeze(1) * other.unsqueeze(0);
}

Tensor Tensor::linear(const Tensor& weight, const Tensor& bias) const {
  LabelScope label("linear");
  check(weight.rank() == 2, "linear: the weight is (out, in) and not ", to_text(weight.capacity()));
  check(rank() > 0 && capacity().back() == weight.capacity()[1], "linear: ", to_text(capacity()),
        " by a weight of ", to_text(weight.capacity()), ": the last axis of both must agree");
  if (detail::is_f8_product(*this, weight))
    return detail::f8_product(*this, weight.t(), kBF16, bias);
  const Tensor y = matmul(weight.t());
  return bias.defined() ? y + detail::autocast(bias) : y;
}

// --- einsum -------------------------------------------------------------------------------------

namespace {

struct Equation {
  std::vector<std::string> inputs;
  std::string output;
};

Equation parse(const std::string& text, size_t operands) {
  std::string plain;
  for (char c : text)
    if (c != ' ') plain += c;
  const size_t arrow = plain.find("->");
  check(arrow != std::string::npos, "einsum: no '->' in \"", text, "\"");
  Equation e{{""}, plain.substr(arrow + 2)};
  for (char c : plain.substr(0, arrow)) {
    if (c == ',')
      e.inputs.emplace_back();
    else
      e.inputs.back() += c;
  }
  check(e.inputs.size() == operands, "einsum: \"", text, "\" has ", e.inputs.size(),
        " operands and ", operands, " were given");
  for (const std::string& names : e.inputs)
    for (char c : names)
      check(c >= 'a' && c <= 'z', "einsum: '", c, "' in \"", text, "\" is no lower-case letter");
  for (char c : e.output)
    check(std::ranges::count(e.output, c) == 1 && plain.find(c) < arrow, "einsum: '", c,
          "' of the output of \"", text, "\" is repeated or in no operand");
  return e;
}

// The operand with each letter once: repeated ones are its diagonal.
Tensor without_repeats(Tensor x, std::string& letters) {
  for (size_t i = 0; i < letters.size(); ++i) {
    const size_t j = letters.find(letters[i], i + 1);
    if (j == std::string::npos) continue;
    const std::string letter(1, letters[i]);
    const auto a = static_cast<int64_t>(i), b = static_cast<int64_t>(j);
    check(x.size(a) == x.size(b), "einsum: the axes '", letter, "' of ", to_text(x.capacity()),
          " differ");
    x = x.diagonal(0, a, b);
    letters.erase(j, 1);
    letters.erase(i, 1);
    letters += letter;
    i = static_cast<size_t>(-1);
  }
  return x;
}

// The operand with one axis for each of `order`, of size 1 where it lacks the letter.
Tensor aligned(const Tensor& x, const std::string& letters, const std::string& order) {
  Shape axes, shape;
  for (char c : order) {
    const size_t at = letters.find(c);
    if (at != std::string::npos) axes.push_back(static_cast<int64_t>(at));
    shape.push_back(at == std::string::npos ? 1 : x.capacity()[at]);
  }
  return x.permute(axes).reshape(shape);
}

// Sums over the letters that occur in no other operand and not in `needed`.
Tensor sum_lonely(const Tensor& x, std::string& letters, const std::string& needed) {
  Shape axes;
  std::string kept;
  for (size_t i = 0; i < letters.size(); ++i) {
    if (needed.find(letters[i]) == std::string::npos)
      axes.push_back(static_cast<int64_t>(i));
    else
      kept += letters[i];
  }
  letters = kept;
  return axes.empty() ? x : x.sum(axes).to(x.dtype());
}

// Two operands into one: letters in both that nothing else needs are summed.
Tensor contract(const Tensor& x, const Tensor& y, const std::string& lx, const std::string& ly,
                const std::string& kept) {
  std::string summed;
  for (char c : lx)
    if (kept.find(c) == std::string::npos && ly.find(c) != std::string::npos) summed += c;
  const Tensor a = aligned(x, lx, kept + summed), b = aligned(y, ly, kept + summed);
  return summed.empty() ? a * b : product_sum(a, b, static_cast<int>(summed.size()));
}

}  // namespace

Tensor Tensor::einsum(const std::string& equation, const std::vector<Tensor>& operands) {
  LabelScope label("einsum");
  check(!operands.empty(), "einsum: no operands");
  Equation e = parse(equation, operands.size());
  DType t = operands[0].dtype();
  std::vector<Tensor> parts;
  for (size_t i = 0; i < operands.size(); ++i) {
    check(static_cast<int>(e.inputs[i].size()) == operands[i].rank(), "einsum: \"", e.inputs[i],
          "\" does not name the axes of ", to_text(operands[i].capacity()));
    parts.push_back(without_repeats(operands[i], e.inputs[i]));
    t = promote(t, operands[i].dtype());
  }
  // Axes that later operands or the output still need, from the back.
  std::vector<std::string> needed{e.output};
  for (size_t i = parts.size(); i-- > 1;) needed.push_back(needed.back() + e.inputs[i]);
  std::ranges::reverse(needed);
  Tensor x = sum_lonely(parts[0].to(t), e.inputs[0], needed[0]);
  std::string letters = e.inputs[0];
  for (size_t i = 1; i < parts.size(); ++i) {
    std::string other = e.inputs[i];
    const Tensor y = sum_lonely(parts[i].to(t), other, needed[i] + letters);
    std::string kept;
    for (char c : letters + other)
      if (needed[i].find(c) != std::string::npos && kept.find(c) == std::string::npos) kept += c;
    x = contract(x, y, letters, other, kept);
    letters = kept;
  }
  return aligned(x, letters, e.output);
}

}  // namespace tiny
