// Linear algebra.
#include "test/conformance/arguments.h"
#include "test/conformance/operators.h"

namespace tiny::conformance {

namespace {

template <Tensor (Tensor::*F)(const Tensor&) const> Tensors product(const Inputs& in, const Json&) {
  return {(in[0].*F)(in[1])};
}

Tensors einsum(const Inputs& in, const Json& a) {
  return {Tensor::einsum(a.at("equation"), in.from(0))};
}

Tensors linear(const Inputs& in, const Json&) { return {in[0].linear(in[1], in[2])}; }

}  // namespace

void add_linalg(Table& table) {
  table.insert({
      {"matmul", product<&Tensor::matmul>},
      {"bmm", product<&Tensor::bmm>},
      {"dot", product<&Tensor::dot>},
      {"outer", product<&Tensor::outer>},
      {"einsum", einsum},
      {"linear", linear},
  });
}

}  // namespace tiny::conformance
