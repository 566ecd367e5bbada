// Linear algebra on the host, for small matrices, and the filters that are made with it.
#pragma once
#include <cstdint>
#include <vector>

#include "tiny/tensor/tensor.h"

namespace tiny {

struct SymmetricEigen {
  std::vector<double> values;   // ascending
  std::vector<double> vectors;  // (n, n): row i is the unit vector that belongs to value i
};

// Of a symmetric matrix (n, n), row-major, by rotations (Jacobi's method: G. Golub, C. Van Loan,
// "Matrix Computations", 8.5). The largest component of each vector is positive. Error for a count
// that is no n * n, for numbers that are not finite, and where the matrix is not symmetric to a
// relative 1e-6.
SymmetricEigen symmetric_eigen(const std::vector<double>& matrix, int64_t n);

// Filters that make the patches of these pictures white: uncorrelated and of variance about 1, by
// the eigenvectors of the patches' second moments, each divided by sqrt(eigenvalue + eps). First
// those of the smallest eigenvalues, then the negatives of all. images: floats (n, c, h, w), f32
// result (2 c kernel^2, c, kernel, kernel) on the default device. Waits for the device.
// K. Jordan, "94% on CIFAR-10 in 3.29 seconds on a single GPU", arXiv 2404.00498, section 3.2.
Tensor whitening_filters(const Tensor& images, int64_t kernel, double eps);

}  // namespace tiny
