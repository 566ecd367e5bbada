// Creation of tensors and movement of their elements.
#include <map>

#include "test/conformance/arguments.h"
#include "test/conformance/operators.h"

namespace tiny::conformance {

namespace {

// --- Creation ------------------------------------------------------------------------------------

Tensors full(const Inputs&, const Json& a) {
  return {Tensor::full(integers(a.at("shape")), number(a.at("value")), dtype(a.at("dtype")))};
}

Tensors arange(const Inputs&, const Json& a) {
  return {Tensor::arange(number(a.at("start")), number(a.at("stop")), number(a.at("step")),
                         dtype(a.at("dtype")))};
}

Tensors linspace(const Inputs&, const Json& a) {
  return {Tensor::linspace(real(a.at("start")), real(a.at("stop")), a.at("steps"),
                           dtype(a.at("dtype")))};
}

Tensors eye(const Inputs&, const Json& a) {
  return {Tensor::eye(a.at("n"), maybe_integer(a.at("m")), dtype(a.at("dtype")))};
}

// --- Views ---------------------------------------------------------------------------------------

Tensors reshape(const Inputs& in, const Json& a) {
  return {in[0].reshape(integers(a.at("shape")))};
}
Tensors permute(const Inputs& in, const Json& a) { return {in[0].permute(integers(a.at("dims")))}; }

Tensors transpose(const Inputs& in, const Json& a) {
  return {in[0].transpose(a.at("dim0"), a.at("dim1"))};
}

Tensors expand(const Inputs& in, const Json& a) { return {in[0].expand(integers(a.at("shape")))}; }

Tensors slice(const Inputs& in, const Json& a) {
  return {in[0].slice(bounds(a.at("starts")), bounds(a.at("stops")), integers(a.at("steps")))};
}

Tensors flip(const Inputs& in, const Json& a) { return {in[0].flip(dims(a.at("dims")))}; }
Tensors unsqueeze(const Inputs& in, const Json& a) { return {in[0].unsqueeze(a.at("dim"))}; }
Tensors squeeze(const Inputs& in, const Json& a) { return {in[0].squeeze(dims(a.at("dim")))}; }

Tensors flatten(const Inputs& in, const Json& a) {
  return {in[0].flatten(a.at("start_dim"), a.at("end_dim"))};
}

Tensors unflatten(const Inputs& in, const Json& a) {
  return {in[0].unflatten(a.at("dim"), integers(a.at("sizes")))};
}

Tensors diagonal(const Inputs& in, const Json& a) {
  return {in[0].diagonal(a.at("offset"), a.at("dim1"), a.at("dim2"))};
}

Tensors unfold(const Inputs& in, const Json& a) {
  return {in[0].unfold(a.at("dim"), a.at("size"), a.at("step"))};
}

Tensors split(const Inputs& in, const Json& a) {
  const int64_t dim = a.at("dim");
  const Json& sizes = a.at("sizes");
  if (sizes.is_array()) return in[0].split(integers(sizes), dim);
  return in[0].split(sizes.get<int64_t>(), dim);
}

Tensors chunk(const Inputs& in, const Json& a) { return in[0].chunk(a.at("chunks"), a.at("dim")); }

// --- Joining, repeating, filling -----------------------------------------------------------------

Tensors pad(const Inputs& in, const Json& a) {
  static const std::map<std::string, PadMode> modes = {{"constant", PadMode::Constant},
                                                       {"reflect", PadMode::Reflect},
                                                       {"replicate", PadMode::Replicate},
                                                       {"circular", PadMode::Circular}};
  return {in[0].pad(paddings(a.at("pads")), modes.at(a.at("mode")), number(a.at("value")))};
}

Tensors roll(const Inputs& in, const Json& a) {
  return {in[0].roll(integers(a.at("shifts")), dims(a.at("dims")))};
}

Tensors repeat(const Inputs& in, const Json& a) {
  return {in[0].repeat(integers(a.at("repeats")))};
}

Tensors repeat_interleave(const Inputs& in, const Json& a) {
  const Json& repeats = a.at("repeats");
  const auto dim = maybe_integer(a.at("dim"));
  if (repeats.is_array()) return {in[0].repeat_interleave(integers(repeats), dim)};
  return {in[0].repeat_interleave(repeats.get<int64_t>(), dim)};
}

Tensors concatenate(const Inputs& in, const Json& a) {
  return {Tensor::cat(in.from(0), a.at("dim"))};
}

Tensors stack(const Inputs& in, const Json& a) { return {Tensor::stack(in.from(0), a.at("dim"))}; }
Tensors tril(const Inputs& in, const Json& a) { return {in[0].tril(a.at("diagonal"))}; }
Tensors triu(const Inputs& in, const Json& a) { return {in[0].triu(a.at("diagonal"))}; }

}  // namespace

void add_movement(Table& table) {
  table.insert({
      {"full", full},
      {"arange", arange},
      {"linspace", linspace},
      {"eye", eye},
      {"reshape", reshape},
      {"permute", permute},
      {"transpose", transpose},
      {"expand", expand},
      {"pad", pad},
      {"slice", slice},
      {"flip", flip},
      {"roll", roll},
      {"repeat", repeat},
      {"repeat_interleave", repeat_interleave},
      {"cat", concatenate},
      {"stack", stack},
      {"split", split},
      {"chunk", chunk},
      {"unsqueeze", unsqueeze},
      {"squeeze", squeeze},
      {"flatten", flatten},
      {"unflatten", unflatten},
      {"tril", tril},
      {"triu", triu},
      {"diagonal", diagonal},
      {"unfold", unfold},
  });
}

}  // namespace tiny::conformance
