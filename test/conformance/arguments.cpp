#include "test/conformance/arguments.h"

#include <limits>
#include <map>

#include "tiny/base/error.h"

namespace tiny::conformance {

namespace {

template <class Value>
const Value& look_up(const char* what, const std::map<std::string, Value>& table,
                     const Json& name) {
  const auto found = table.find(name.get<std::string>());
  check(found != table.end(), "unsupported ", what, " ", name.dump());
  return found->second;
}

Index index_entry(const Json& entry, const std::vector<Tensor>& tensors) {
  if (entry.contains("int")) return entry.at("int").get<int64_t>();
  if (entry.contains("newaxis")) return kNewAxis;
  if (entry.contains("ellipsis")) return kEllipsis;
  if (entry.contains("tensor")) return tensors.at(entry.at("tensor").get<size_t>());
  const Json& slice = entry.at("slice");
  return Slice{maybe_integer(slice.at(0)), maybe_integer(slice.at(1)),
               maybe_integer(slice.at(2)).value_or(1)};
}

}  // namespace

Number number(const Json& json) {
  static const std::map<std::string, double> names = {
      {"inf", std::numeric_limits<double>::infinity()},
      {"-inf", -std::numeric_limits<double>::infinity()},
      {"nan", std::numeric_limits<double>::quiet_NaN()}};
  if (json.is_string()) return look_up("number", names, json);
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_integer()) return json.get<int64_t>();
  return json.get<double>();
}

double real(const Json& json) { return number(json).real(); }

std::optional<int64_t> maybe_integer(const Json& json) {
  return json.is_null() ? std::optional<int64_t>() : json.get<int64_t>();
}

std::optional<double> maybe_real(const Json& json) {
  return json.is_null() ? std::optional<double>() : real(json);
}

Shape integers(const Json& json) {
  return json.is_array() ? json.get<Shape>() : Shape{json.get<int64_t>()};
}

std::vector<Bound> bounds(const Json& json) {
  std::vector<Bound> out;
  for (const Json& b : json) out.push_back(maybe_integer(b));
  return out;
}

Dims dims(const Json& json) { return json.is_null() ? Dims() : Dims(integers(json)); }

std::vector<Padding> paddings(const Json& json) {
  std::vector<Padding> out;
  for (const Json& p : json) out.push_back({p.at(0), p.at(1)});
  return out;
}

PerAxis per_axis(const Json& json) { return PerAxis(integers(json)); }

DType dtype(const Json& name) {
  static const std::map<std::string, DType> table = {
      {"F64", kF64}, {"F32", kF32}, {"F16", kF16}, {"BF16", kBF16}, {"BOOL", kBool},
      {"I64", kI64}, {"I32", kI32}, {"I16", kI16}, {"I8", kI8},     {"U8", kU8}};
  return look_up("dtype", table, name);
}

Reduction reduction(const Json& name) {
  static const std::map<std::string, Reduction> table = {{"none", Reduction::None},
                                                         {"mean", Reduction::Mean},
                                                         {"sum", Reduction::Sum},
                                                         {"batchmean", Reduction::BatchMean}};
  return look_up("reduction", table, name);
}

std::vector<Index> index_list(const Json& json, const std::vector<Tensor>& tensors) {
  std::vector<Index> out;
  for (const Json& entry : json) out.push_back(index_entry(entry, tensors));
  return out;
}

}  // namespace tiny::conformance
