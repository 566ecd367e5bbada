// Indexing by tensors: gathers, scatters and what has a data-dependent shape.
#include "test/conformance/arguments.h"
#include "test/conformance/operators.h"

namespace tiny::conformance {

namespace {

Tensors gather(const Inputs& in, const Json& a) { return {in[0].gather(a.at("dim"), in[1])}; }

Tensors take_along_dim(const Inputs& in, const Json& a) {
  return {in[0].take_along_dim(in[1], a.at("dim"))};
}

Tensors index_select(const Inputs& in, const Json& a) {
  return {in[0].index_select(a.at("dim"), in[1])};
}

Tensors index_add(const Inputs& in, const Json& a) {
  return {in[0].index_add(a.at("dim"), in[1], in[2])};
}

Tensors index(const Inputs& in, const Json& a) {
  return {in[0].index(index_list(a.at("index"), in.from(1)))};
}

Tensors index_put(const Inputs& in, const Json& a) {
  return {in[0].index_put(index_list(a.at("index"), in.from(2)), in[1], a.at("accumulate"))};
}

Tensors slice_assign(const Inputs& in, const Json& a) {
  return {in[0].slice_assign(bounds(a.at("starts")), bounds(a.at("stops")), integers(a.at("steps")),
                             in[1])};
}

Tensors masked_select(const Inputs& in, const Json&) { return {in[0].masked_select(in[1])}; }

Tensors masked_fill(const Inputs& in, const Json& a) {
  return {in[0].masked_fill(in[1], number(a.at("value")))};
}

Tensors nonzero(const Inputs& in, const Json&) { return {in[0].nonzero()}; }

Tensors scatter(const Inputs& in, const Json& a) {
  const int64_t dim = a.at("dim");
  if (in.has(2)) return {in[0].scatter(dim, in[1], in[2])};
  return {in[0].scatter(dim, in[1], number(a.at("value")))};
}

Tensors scatter_add(const Inputs& in, const Json& a) {
  return {in[0].scatter_add(a.at("dim"), in[1], in[2])};
}

Tensors scatter_reduce(const Inputs& in, const Json& a) {
  return {in[0].scatter_reduce(a.at("dim"), in[1], in[2], a.at("reduce"), a.at("include_self"))};
}

Tensors one_hot(const Inputs& in, const Json& a) { return {in[0].one_hot(a.at("num_classes"))}; }

Tensors embedding(const Inputs& in, const Json& a) {
  return {in[1].embedding(in[0], maybe_integer(a.at("padding_idx")))};
}

}  // namespace

void add_indexing(Table& table) {
  table.insert({
      {"gather", gather},
      {"take_along_dim", take_along_dim},
      {"index_select", index_select},
      {"index_add", index_add},
      {"index", index},
      {"index_put", index_put},
      {"slice_assign", slice_assign},
      {"masked_select", masked_select},
      {"masked_fill", masked_fill},
      {"nonzero", nonzero},
      {"scatter", scatter},
      {"scatter_add", scatter_add},
      {"scatter_reduce", scatter_reduce},
      {"one_hot", one_hot},
      {"embedding", embedding},
  });
}

}  // namespace tiny::conformance
