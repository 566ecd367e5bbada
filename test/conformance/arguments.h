// Arguments of operations: from JSON to the argument types of the Tensor API. All throw Error or
// Json::exception for what does not fit.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "test/conformance/suite.h"
#include "tiny/nn/functional.h"
#include "tiny/tensor/tensor.h"

namespace tiny::conformance {

// Keeps the kind of the JSON number. "inf", "-inf" and "nan" stand for what JSON lacks.
Number number(const Json& json);
double real(const Json& json);
// The same with null for a missing number.
std::optional<int64_t> maybe_integer(const Json& json);
std::optional<double> maybe_real(const Json& json);

// A list, or one number as a list of one.
Shape integers(const Json& json);
std::vector<Bound> bounds(const Json& json);
Dims dims(const Json& json);  // null: all
std::vector<Padding> paddings(const Json& json);
// One entry for each spatial axis.
PerAxis per_axis(const Json& json);

DType dtype(const Json& name);  // "F32"
Reduction reduction(const Json& name);

// The entry `{"tensor": k}` of an index expression is tensors[k].
std::vector<Index> index_list(const Json& json, const std::vector<Tensor>& tensors);

}  // namespace tiny::conformance
