// Products in 8-bit floats as Autocast(kF8E4M3) computes them: operands in e4m3, the gradient of
// the result in e5m2, each with one scale for all of its elements (P. Micikevicius et al., "FP8
// Formats for Deep Learning", arXiv 2209.05433). Scales are those of the tensor at hand and powers
// of two: what is small for its tensor loses digits, nothing else does.
#pragma once
#include "tiny/tensor/tensor.h"

namespace tiny::detail {

// Whether matmul(x, w) is one: in such a scope, of f32 or 16-bit floats, and of a matrix w.
bool is_f8_product(const Tensor& x, const Tensor& w);

// x (..., k) by w (k, n), both of 16-bit floats, to (..., n): x[k] is read as 2^-i q, where q is
// x[k] * 2^i in e4m3, rounded to the nearest even, and i is the largest for which none is beyond
// its range; sums are in f32, to which a bias is added, and rounded once to `result`. So are those
// of the gradients: by x of the result's gradient in e5m2 times that w, by w of that x times it.
// What is quantised passes its gradient on as if it were not, which is differentiated as a product
// of 16-bit floats. Where an operand is not finite everywhere, all results are NaN.
Tensor f8_product(const Tensor& x, const Tensor& w, DType result, const Tensor& bias = {});

}  // namespace tiny::detail
