#include <cmath>

#include "test/ops/ops.h"
#include "tiny/ir/build.h"
#include "tiny/tensor/checkpoint.h"

namespace tiny::ops {

namespace {

struct Row {
  const char* name;
  std::vector<Input> inputs;
  std::function<Outputs(const Inputs&)> build;
};

Cases with_factor(const std::vector<Row>& rows, double factor) {
  Cases out;
  for (const Row& r : rows) out.push_back({r.name, r.inputs, r.build, factor});
  return out;
}

// An integer input of positions below n.
Input positions(const Shape& shape, int64_t n, DType t = kI64) {
  return {shape, t, 0, static_cast<double>(n - 1)};
}

#define OUT(...) [](const Inputs& in) { return Outputs{__VA_ARGS__}; }

}  // namespace

Cases movement_cases() {
  const Input x{{3, 4, 5}}, m{{4, 6}}, v{{7}};
  return with_factor(
      {
          {"reshape",
           {x},
           OUT(in[0].reshape({5, -1}) * 2, in[0].reshape({60}).reshape({2, 30}) + 1)},
          {"reshape of permute", {x}, OUT(in[0].permute({2, 0, 1}).reshape({15, 4}) * 2)},
          {"transpose",
           {m},
           OUT(in[0].t() + 1, in[0] + in[0].narrow(1, 0, 4).t().repeat({1, 2}).narrow(1, 0, 6))},
          {"expand", {{{3, 1, 5}}}, OUT(in[0].expand({2, 3, 4, 5}) * 2)},
          {"squeeze", {{{1, 3, 1}}}, OUT(in[0].squeeze() * 2, in[0].unsqueeze(1).squeeze(0) * 3)},
          {"flatten", {x}, OUT(in[0].flatten(1) * 2, in[0].unflatten(1, {2, 2}) * 3)},
          {"pad", {x}, OUT(in[0].pad({{1, 0}, {0, 2}, {3, 1}}) + 1)},
          {"pad with a value", {m}, OUT(in[0].pad({{1, 1}, {0, 2}}, PadMode::Constant, 7) * 2)},
          {"pad crops", {m}, OUT(in[0].pad({{-1, 2}, {1, -2}}) + 1)},
          {"pad reflect", {m}, OUT(in[0].pad({{2, 1}, {0, 3}}, PadMode::Reflect))},
          {"pad replicate", {m}, OUT(in[0].pad({{2, 1}, {0, 3}}, PadMode::Replicate))},
          {"pad circular", {m}, OUT(in[0].pad({{2, 1}, {0, 3}}, PadMode::Circular))},
          {"pad of pad", {v}, OUT((in[0].pad({{2, 3}}) + 1).pad({{1, 1}}) * 2)},
          {"slice", {x}, OUT(in[0].slice({1, {}, -3}, {3, 3, {}}, {1, 2, 2}) * 2)},
          {"flip", {x}, OUT(in[0].flip({0, 2}) * 2, in[0].flip() + in[0])},
          {"roll", {x}, OUT(in[0].roll({1, -2}, {0, 2}), in[0].roll({7}))},
          {"repeat", {m}, OUT(in[0].repeat({2, 1, 3}) + 1)},
          {"repeat_interleave",
           {m},
           OUT(in[0].repeat_interleave(3, 1), in[0].repeat_interleave(2))},
          {"repeat_interleave each",
           {v},
           OUT(in[0].repeat_interleave(Shape{1, 0, 2, 3, 0, 1, 2}, 0))},
          {"cat", {m, {{1, 6}}, {{3, 6}}}, OUT(Tensor::cat({in[0], in[1] * 2, in[2]}, 0))},
          {"cat of one", {v, v}, OUT(Tensor::cat({in[0], in[1], in[0]}))},
          {"stack", {m, m}, OUT(Tensor::stack({in[0], in[1]}, 1))},
          {"split", {v}, OUT(in[0].split(3)[0] * 2, in[0].split(3)[2] * 3, in[0].chunk(2)[1])},
          {"tril", {m}, OUT(in[0].tril(), in[0].tril(-1), in[0].triu(1))},
          {"diagonal",
           {x},
           OUT(in[0].diagonal(), in[0].diagonal(1, 1, 2), in[0].diagonal(-1, 2, 0))},
          {"unfold", {v}, OUT(in[0].unfold(0, 3, 1), in[0].unfold(0, 2, 3), in[0].unfold(0, 3, 2))},
          {"unfold dilated",
           {{{2, 11}}},
           OUT(in[0].unfold(1, 3, 2, 2).sum(2), in[0].unfold(1, 4, 1))},
          {"arange", {v}, OUT(in[0] * Tensor::arange(7), in[0] + Tensor::arange(0, 7, 1, kF32))},
          {"linspace and eye",
           {v},
           OUT(in[0] + Tensor::linspace(-1, 2, 7), Tensor::eye(7) * in[0])},
          {"flip of pad of permute of flip",
           {x},
           OUT((in[0].flip({1}) * 2).permute({1, 2, 0}).pad({{1, 2}, {0, 1}, {2, 0}}).flip({0, 2}) +
               1)},
          {"strided view of a sum", {x}, OUT(in[0].sum(1).slice({0, 1}, {3, 5}, {2, 3}) * 2)},
          {"affine view",
           {{{4, 6}, kI32}},
           OUT(Tensor(build::affine(in[0].node(), Shape{3, 2, 3}, Shape{3, -1, 0, 0, 0, 1, 1, 1})) +
               1)},
          {"views without elements",
           {{{0, 3}}, {{4, 3}}},
           OUT(in[0].t(), in[0].pad({{1, 1}, {0, 0}}), Tensor::cat({in[0], in[1]}),
               in[1].narrow(0, 2, 0) * 2)},
      },
      1);
}

namespace {

// A reduction over every set of axes of a 3-d tensor.
Outputs over_all_axes(const Tensor& x, const std::function<Tensor(const Tensor&, Dims, bool)>& f) {
  Outputs out;
  for (int mask = 0; mask < 8; ++mask) {
    Shape dims;
    for (int i = 0; i < 3; ++i)
      if (mask >> i & 1) dims.push_back(i);
    if (!dims.empty()) out.push_back(f(x, dims, mask % 2 == 0));
  }
  return out;
}

struct ReduceRow {
  const char* name;
  Tensor (Tensor::*f)(const Dims&, bool) const;
  bool floats_only = false;
};

const ReduceRow kReduce[] = {
    {"sum", &Tensor::sum},         {"prod", &Tensor::prod},
    {"max", &Tensor::max},         {"min", &Tensor::min},
    {"any", &Tensor::any},         {"all", &Tensor::all},
    {"mean", &Tensor::mean, true}, {"logsumexp", &Tensor::logsumexp, true},
};

void add_sizes(Cases& out) {
  for (int64_t n : {1, 2, 7, 31, 64, 97, 257, 1031, 4099})
    out.push_back(
        {cat("reductions of ", n),
         {{{n}}, {{3, n}}, {{n, 3}}},
         [](const Inputs& in) {
           return Outputs{in[0].sum(), in[1].sum(1), in[2].sum(0), in[1].max(1), in[2].mean(0)};
         },
         20});
}

}  // namespace

Cases reduce_cases() {
  Cases out;
  for (const ReduceRow& row : kReduce)
    for (DType t : {kF32, kF16, kI32, kU8, kI64, kBool}) {
      if (row.floats_only && !t.is_float()) continue;
      const double low = t.is_float() ? -1.5 : 0, high = t.is_bool() ? 1 : t.is_float() ? 1.5 : 3;
      out.push_back({cat(row.name, " ", t),
                     {{{3, 5, 4}, t, low, high}},
                     [f = row.f](const Inputs& in) {
                       return over_all_axes(in[0], [&](const Tensor& x, const Dims& d, bool keep) {
                         return (x.*f)(d, keep);
                       });
                     },
                     8});
    }
  add_sizes(out);
  const Input x{{3, 5, 4}}, m{{6, 17}}, none{{0, 3}};
  const Cases more = with_factor(
      {
          {"var and std",
           {x},
           OUT(in[0].var(), in[0].var(1), in[0].std(2, true), in[0].std({0, 1}),
               in[0].var({0, 2}, false, 0))},
          {"norm",
           {x},
           OUT(in[0].norm(), in[0].norm(1, false, 1), in[0].norm({0, 2}, true, 3),
               in[0].norm(2, false, 0), in[0].norm(1, false, INFINITY))},
          {"argmax",
           {x},
           OUT(in[0].argmax(), in[0].argmax(1), in[0].argmin(2, true), in[0].argmin(0))},
          {"softmax", {m}, OUT(in[0].softmax(1), in[0].softmax(0))},
          {"log_softmax", {m}, OUT(in[0].log_softmax(1), in[0].log_softmax(0))},
          {"softmax of 16-bit floats",
           {{{6, 17}, kF16}},
           OUT(in[0].softmax(1), in[0].log_softmax(0))},
          {"softmax of large numbers", {{{6, 17}, kF32, -1e4, 1e4}}, OUT(in[0].softmax(1))},
          {"reductions of nothing",
           {none},
           OUT(in[0].sum(0), in[0].prod(0), in[0].mean(0), in[0].sum(1), in[0].any(0),
               in[0].all(0))},
          {"sum of a sum", {x}, OUT((in[0] - in[0].sum(1, true)).square().sum({0, 2}))},
          {"two reductions of one tensor", {m}, OUT(in[0].sum(1) * in[0].max(1), in[0].sum(0))},
          {"sum of a padded flip", {m}, OUT(in[0].flip({1}).pad({{1, 0}, {2, 3}}).sum(1))},
          {"0-d", {{{}}}, OUT(in[0].sum(), in[0].max(), in[0].mean(), in[0].softmax(0))},
      },
      10);
  out.insert(out.end(), more.begin(), more.end());
  return out;
}

Cases scan_cases() {
  const Input x{{3, 11}}, v{{37}}, i{{3, 11}, kI32, -3, 3}, near_one{{3, 11}, kF32, 0.5, 1.5};
  return with_factor(
      {
          {"cumsum",
           {x, v, i},
           OUT(in[0].cumsum(1), in[0].cumsum(0), in[1].cumsum(0), in[2].cumsum(1))},
          {"cumprod", {near_one}, OUT(in[0].cumprod(1), in[0].cumprod(0))},
          {"cummax",
           {x, i},
           OUT(in[0].cummax(1).values, in[0].cummax(1).indices, in[1].cummin(1).values,
               in[1].cummin(1).indices)},
          {"logcumsumexp", {x}, OUT(in[0].logcumsumexp(1))},
          {"sort",
           {x, v},
           OUT(in[0].sort(1).values, in[0].sort(0, true).values, in[1].sort().indices)},
          {"sort of equals",
           {i},
           OUT(in[0].sort(1).values, in[0].argsort(1), in[0].argsort(1, true))},
          {"topk",
           {x},
           OUT(in[0].topk(3).values, in[0].topk(2, 0, false).values, in[0].topk(4).indices)},
          {"median", {x}, OUT(in[0].median(1), in[0].median())},
      },
      20);
}

Cases index_cases() {
  const Input x{{5, 4}}, rows = positions({7}, 5), at = positions({3, 4}, 5);
  const Input flags{{5, 4}, kBool, 0, 1};
  return with_factor(
      {
          {"checkpoint",
           {{{3, 4}}, {{4, 2}}},
           OUT(checkpoint([](const Tensor& a, const Tensor& b) { return a.matmul(b).tanh(); },
                          in[0], in[1]))},
          {"matmul of 16-bit floats to f32",
           {{{3, 4}, kBF16}, {{4, 2}, kBF16}},
           OUT(in[0].matmul(in[1], kF32))},
          {"gather", {x, at}, OUT(in[0].gather(0, in[1]))},
          {"gather of a view",
           {x, positions({4, 5}, 5, kI32)},
           OUT(in[0].t().gather(1, in[1]) * 2)},
          {"take_along_dim", {x, positions({1, 6}, 4)}, OUT(in[0].take_along_dim(in[1], 1))},
          {"index_select",
           {x, rows},
           OUT(in[0].index_select(0, in[1]), in[0].index_select(1, mod(in[1], 4)))},
          {"embedding",
           {x, positions({2, 3}, 5)},
           OUT(in[0].embedding(in[1]), in[0].embedding(in[1], 2))},
          {"one_hot", {rows}, OUT(in[0].one_hot(6))},
          {"index",
           {x, rows, positions({7}, 4)},
           OUT(in[0].index({in[1], in[2]}), in[0].index({in[1]}), in[0].index({2, Slice{1, {}, 2}}),
               in[0].index({kEllipsis, kNewAxis, in[2]}))},
          {"index_put",
           {x, {{7}}, rows, positions({7}, 4)},
           OUT(in[0].index_put({in[2], in[3]}, in[1], true))},
          {"index_put of slices",
           {x, {{7}}, rows, positions({7}, 4)},
           OUT(in[0].index_put({in[2]}, in[1].unsqueeze(1), true),
               in[0].index_put({Slice{1, {}, 2}, in[3]}, in[1], true),
               in[0].index_put({in[2], Slice{1, 3}}, in[1].unsqueeze(1), true),
               in[0].index_put({kNewAxis, 2, in[3]}, in[1], true),
               in[0].index_put({Slice{0, {}, 3}, -1}, in[1].narrow(0, 0, 2)))},
          {"slice_assign", {x, {{2, 2}}}, OUT(in[0].slice_assign({1, 0}, {5, 4}, {2, 2}, in[1]))},
          {"index_add", {x, {{7, 4}}, rows}, OUT(in[0].index_add(0, in[2], in[1]))},
          {"scatter",
           {x, {{1, 4}}, positions({1, 4}, 5)},
           OUT(in[0].scatter(0, in[2], in[1]), in[0].scatter(0, in[2], 2.5))},
          {"scatter_add", {x, {{3, 4}}, at}, OUT(in[0].scatter_add(0, in[2], in[1]))},
          {"scatter_reduce",
           {x, {{3, 4}}, at},
           OUT(in[0].scatter_reduce(0, in[2], in[1], "sum"),
               in[0].scatter_reduce(0, in[2], in[1], "amax"),
               in[0].scatter_reduce(0, in[2], in[1], "mean", false))},
          {"masked_select",
           {x, flags},
           OUT(in[0].masked_select(in[1]), in[0].masked_select(in[1], 20))},
          {"nonzero", {flags}, OUT(in[0].nonzero(), in[0].nonzero(6))},
          {"gather of an expression",
           {x, rows},
           OUT((in[0] * 2 + 1).index_select(0, in[1]).sum(0))},
          {"copy by assignment",
           {x, x},
           [](const Inputs& in) {
             Tensor y = in[0].detach().contiguous();
             const Tensor before = y + 1;
             y.assign(in[1].detach() * 2);
             return Outputs{before, y, y + in[0]};
           }},
      },
      4);
}

}  // namespace tiny::ops
