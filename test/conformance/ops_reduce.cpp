// Reductions, scans and sorting.
#include "test/conformance/arguments.h"
#include "test/conformance/operators.h"

namespace tiny::conformance {

namespace {

Tensors both(const WithIndices& r) { return {r.values, r.indices}; }

template <Tensor (Tensor::*F)(const Dims&, bool) const>
Tensors over_dims(const Inputs& in, const Json& a) {
  return {(in[0].*F)(dims(a.at("dim")), a.at("keepdim"))};
}

// With a third argument: the correction of a variance, the order of a norm.
template <Tensor (Tensor::*F)(const Dims&, bool, double) const>
Tensors over_dims_by(const Inputs& in, const Json& a) {
  const Json& by = a.contains("p") ? a.at("p") : a.at("correction");
  return {(in[0].*F)(dims(a.at("dim")), a.at("keepdim"), real(by))};
}

// One axis, or the flattened tensor.
template <Tensor (Tensor::*F)(std::optional<int64_t>, bool) const>
Tensors over_one(const Inputs& in, const Json& a) {
  return {(in[0].*F)(maybe_integer(a.at("dim")), a.at("keepdim"))};
}

template <Tensor (Tensor::*F)(int64_t) const> Tensors along(const Inputs& in, const Json& a) {
  return {(in[0].*F)(a.at("dim"))};
}

template <WithIndices (Tensor::*F)(int64_t) const>
Tensors along_with_indices(const Inputs& in, const Json& a) {
  return both((in[0].*F)(a.at("dim")));
}

Tensors sort(const Inputs& in, const Json& a) {
  return both(in[0].sort(a.at("dim"), a.at("descending")));
}

Tensors argsort(const Inputs& in, const Json& a) {
  return {in[0].argsort(a.at("dim"), a.at("descending"))};
}

Tensors topk(const Inputs& in, const Json& a) {
  return both(in[0].topk(a.at("k"), a.at("dim"), a.at("largest")));
}

}  // namespace

void add_reduce(Table& table) {
  table.insert({
      {"sum", over_dims<&Tensor::sum>},
      {"mean", over_dims<&Tensor::mean>},
      {"prod", over_dims<&Tensor::prod>},
      {"max", over_dims<&Tensor::max>},
      {"min", over_dims<&Tensor::min>},
      {"any", over_dims<&Tensor::any>},
      {"all", over_dims<&Tensor::all>},
      {"logsumexp", over_dims<&Tensor::logsumexp>},
      {"var", over_dims_by<&Tensor::var>},
      {"std", over_dims_by<&Tensor::std>},
      {"norm", over_dims_by<&Tensor::norm>},
      {"argmax", over_one<&Tensor::argmax>},
      {"argmin", over_one<&Tensor::argmin>},
      {"median", over_one<&Tensor::median>},
      {"softmax", along<&Tensor::softmax>},
      {"log_softmax", along<&Tensor::log_softmax>},
      {"cumsum", along<&Tensor::cumsum>},
      {"cumprod", along<&Tensor::cumprod>},
      {"logcumsumexp", along<&Tensor::logcumsumexp>},
      {"cummax", along_with_indices<&Tensor::cummax>},
      {"cummin", along_with_indices<&Tensor::cummin>},
      {"sort", sort},
      {"argsort", argsort},
      {"topk", topk},
  });
}

}  // namespace tiny::conformance
