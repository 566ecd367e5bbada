// Speed of every operator of the conformance vocabulary at about a million elements, one JSON line
// each: {"name", "ms", "min_ms"}, or {"name", "error"}. Inputs are in memory, kernels compiled.
// `extra/bench/operators.py` runs it beside PyTorch, with the inputs that `--list` describes.
//
//   operators [--list] [--seconds S] [NAME...]
//
// A name with a dot is one more row of an operator: another shape or dtype, or its gradient.
#include <cstdio>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "extra/bench/timing.h"
#include "runtime/realize/realize.h"
#include "tiny/tiny.h"

using namespace tiny;

namespace {

using In = const std::vector<Tensor>&;

// What a row computes: all of it is realized together.
struct Results : std::vector<Tensor> {
  Results() = default;
  Results(const Tensor& one) : vector{one} {}
  Results(std::vector<Tensor> all) : vector(std::move(all)) {}
  Results(const WithIndices& both) : vector{both.values, both.indices} {}
};
using Work = std::function<Results(In)>;

// Uniform values in [low, high), for integers and bools [low, high].
struct Input {
  Shape shape;
  DType dtype;
  double low, high;
  bool grad = false;  // its gradient is wanted
};

struct Row {
  std::string name;
  std::vector<Input> inputs;
  Work work;
};
using Rows = std::vector<Row>;

constexpr int64_t kSide = 1024, kCount = kSide * kSide;
const Shape kSquare = {kSide, kSide};

Input reals(Shape shape, double low = -1, double high = 1) {
  return {std::move(shape), kF32, low, high};
}
Input wanted(Input x) {
  x.grad = true;
  return x;
}
Input integers(Shape shape, double low, double high, DType dtype = kI32) {
  return {std::move(shape), dtype, low, high};
}
Input indices(Shape shape, int64_t count) {
  return {std::move(shape), kI64, 0, static_cast<double>(count - 1)};
}
Input bools(Shape shape) { return {std::move(shape), kBool, 0, 1}; }

const Input kReal = reals(kSquare), kPositive = reals(kSquare, 0.1, 1), kBool1 = bools(kSquare);
const Input kInteger = integers(kSquare, -1000, 1000), kFew = integers(kSquare, 1, 15);
const Input kAlong = indices(kSquare, kSide), kRows = indices({kSide}, kSide);
const Input kImages = reals({16, 64, 32, 32}), kChannels = reals({64});

Tensor plus_one(const Tensor& x) { return x + 1; }

// Reads a view, which alone would cost nothing.
Results read(const std::vector<Tensor>& views) {
  std::vector<Tensor> out;
  for (const Tensor& x : views) out.push_back(plus_one(x));
  return out;
}

// The loss mean(y^2) of what `f` gives, and its gradient for each input that wants one.
Work backward(std::function<Tensor(In)> f) {
  return [f = std::move(f)](In x) {
    const Tensor y = f(x), loss = y.rank() == 0 ? y : y.square().mean();
    std::vector<Tensor> leaves;
    for (const Tensor& t : x)
      if (t.requires_grad()) leaves.push_back(t);
    std::vector<Tensor> out = Tensor::gradient(loss, leaves);
    out.push_back(loss);
    return Results(std::move(out));
  };
}

// --- Element-wise --------------------------------------------------------------------------------

void add_unary(Rows& rows) {
  struct Unary {
    const char* name;
    Tensor (Tensor::*f)() const;
    Input x = reals(kSquare, -3, 3);
  };
  const Unary unary[] = {
      {"neg", &Tensor::neg},
      {"exp", &Tensor::exp},
      {"exp2", &Tensor::exp2},
      {"expm1", &Tensor::expm1},
      {"log", &Tensor::log, kPositive},
      {"log2", &Tensor::log2, kPositive},
      {"log10", &Tensor::log10, kPositive},
      {"log1p", &Tensor::log1p, kPositive},
      {"sin", &Tensor::sin},
      {"cos", &Tensor::cos},
      {"tan", &Tensor::tan},
      {"asin", &Tensor::asin, kReal},
      {"acos", &Tensor::acos, kReal},
      {"atan", &Tensor::atan},
      {"sinh", &Tensor::sinh},
      {"cosh", &Tensor::cosh},
      {"tanh", &Tensor::tanh},
      {"asinh", &Tensor::asinh},
      {"acosh", &Tensor::acosh, reals(kSquare, 1, 10)},
      {"atanh", &Tensor::atanh, kReal},
      {"sqrt", &Tensor::sqrt, kPositive},
      {"rsqrt", &Tensor::rsqrt, kPositive},
      {"reciprocal", &Tensor::reciprocal, kPositive},
      {"square", &Tensor::square},
      {"abs", &Tensor::abs},
      {"sign", &Tensor::sign},
      {"floor", &Tensor::floor},
      {"ceil", &Tensor::ceil},
      {"round", &Tensor::round},
      {"trunc", &Tensor::trunc},
      {"erf", &Tensor::erf},
      {"sigmoid", &Tensor::sigmoid},
      {"logsigmoid", &Tensor::logsigmoid},
      {"relu", &Tensor::relu},
      {"relu6", &Tensor::relu6},
      {"silu", &Tensor::silu},
      {"mish", &Tensor::mish},
      {"selu", &Tensor::selu},
      {"hardswish", &Tensor::hardswish},
      {"hardsigmoid", &Tensor::hardsigmoid},
      {"isnan", &Tensor::isnan},
      {"isinf", &Tensor::isinf},
      {"isfinite", &Tensor::isfinite},
      {"logical_not", &Tensor::logical_not, kBool1},
      {"bitwise_not", &Tensor::bitwise_not, kInteger},
  };
  for (const Unary& u : unary)
    rows.push_back({u.name, {u.x}, [f = u.f](In x) { return (x[0].*f)(); }});
  const Rows more = {
      {"detach", {kReal}, [](In x) { return plus_one(x[0].detach()); }},
      {"contiguous", {kReal}, [](In x) { return x[0].t().contiguous(); }},
      {"gelu", {kReal}, [](In x) { return x[0].gelu(); }},
      {"gelu.tanh", {kReal}, [](In x) { return x[0].gelu(true); }},
      {"softplus", {kReal}, [](In x) { return x[0].softplus(); }},
      {"elu", {kReal}, [](In x) { return x[0].elu(); }},
      {"celu", {kReal}, [](In x) { return x[0].celu(); }},
      {"leaky_relu", {kReal}, [](In x) { return x[0].leaky_relu(); }},
      {"hardtanh", {kReal}, [](In x) { return x[0].hardtanh(-0.5, 0.5); }},
      {"clamp", {kReal}, [](In x) { return x[0].clamp(-0.5, 0.5); }},
  };
  rows.insert(rows.end(), more.begin(), more.end());
}

void add_binary(Rows& rows) {
  const Rows more = {
      {"add", {kReal, kReal}, [](In x) { return x[0] + x[1]; }},
      {"sub", {kReal, kReal}, [](In x) { return x[0] - x[1]; }},
      {"mul", {kReal, kReal}, [](In x) { return x[0] * x[1]; }},
      {"div", {kReal, kPositive}, [](In x) { return x[0] / x[1]; }},
      {"trunc_div", {kInteger, kFew}, [](In x) { return trunc_div(x[0], x[1]); }},
      {"floor_div", {kInteger, kFew}, [](In x) { return floor_div(x[0], x[1]); }},
      {"mod", {kInteger, kFew}, [](In x) { return mod(x[0], x[1]); }},
      {"trunc_div.f32", {kReal, kPositive}, [](In x) { return trunc_div(x[0], x[1]); }},
      {"floor_div.f32", {kReal, kPositive}, [](In x) { return floor_div(x[0], x[1]); }},
      {"mod.f32", {kReal, kPositive}, [](In x) { return mod(x[0], x[1]); }},
      {"pow", {kPositive, kReal}, [](In x) { return pow(x[0], x[1]); }},
      {"pow.3", {kReal}, [](In x) { return pow(x[0], 3); }},
      {"maximum", {kReal, kReal}, [](In x) { return maximum(x[0], x[1]); }},
      {"minimum", {kReal, kReal}, [](In x) { return minimum(x[0], x[1]); }},
      {"atan2", {kReal, kReal}, [](In x) { return atan2(x[0], x[1]); }},
      {"copysign", {kReal, kReal}, [](In x) { return copysign(x[0], x[1]); }},
      {"eq", {kFew, kFew}, [](In x) { return x[0] == x[1]; }},
      {"ne", {kFew, kFew}, [](In x) { return x[0] != x[1]; }},
      {"lt", {kReal, kReal}, [](In x) { return x[0] < x[1]; }},
      {"le", {kReal, kReal}, [](In x) { return x[0] <= x[1]; }},
      {"gt", {kReal, kReal}, [](In x) { return x[0] > x[1]; }},
      {"ge", {kReal, kReal}, [](In x) { return x[0] >= x[1]; }},
      {"logical_and", {kBool1, kBool1}, [](In x) { return logical_and(x[0], x[1]); }},
      {"logical_or", {kBool1, kBool1}, [](In x) { return logical_or(x[0], x[1]); }},
      {"logical_xor", {kBool1, kBool1}, [](In x) { return logical_xor(x[0], x[1]); }},
      {"bitwise_and", {kInteger, kInteger}, [](In x) { return x[0] & x[1]; }},
      {"bitwise_or", {kInteger, kInteger}, [](In x) { return x[0] | x[1]; }},
      {"bitwise_xor", {kInteger, kInteger}, [](In x) { return x[0] ^ x[1]; }},
      {"shl", {kInteger, kFew}, [](In x) { return x[0] << x[1]; }},
      {"shr", {kInteger, kFew}, [](In x) { return x[0] >> x[1]; }},
      {"where", {kBool1, kReal, kReal}, [](In x) { return where(x[0], x[1], x[2]); }},
      {"lerp", {kReal, kReal}, [](In x) { return x[0].lerp(x[1], 0.3); }},
      {"clamp_tensor", {kReal, kReal, kReal}, [](In x) { return x[0].clamp(x[1], x[2]); }},
      {"add.rows", {kReal, reals({kSide})}, [](In x) { return x[0] + x[1]; }},
      {"add.columns", {kReal, reals({kSide, 1})}, [](In x) { return x[0] + x[1]; }},
  };
  rows.insert(rows.end(), more.begin(), more.end());
}

void add_dtype(Rows& rows) {
  const Input bytes = integers(kSquare, 0, 126, kU8);
  const Rows more = {
      {"cast", {kReal}, [](In x) { return x[0].to(kF16); }},
      {"cast.bf16", {kReal}, [](In x) { return x[0].to(kBF16); }},
      {"cast.i32", {kReal}, [](In x) { return x[0].to(kI32); }},
      {"cast.f64", {kReal}, [](In x) { return x[0].to(kF64); }},
      {"bitcast", {kReal}, [](In x) { return plus_one(x[0].bitcast(kI32)); }},
      {"f8_encode", {kReal}, [](In x) { return x[0].f8_encode(Float8::E4M3FN); }},
      {"f8_decode", {bytes}, [](In x) { return x[0].f8_decode(Float8::E4M3FN); }},
  };
  rows.insert(rows.end(), more.begin(), more.end());
}

// --- Creation and movement -----------------------------------------------------------------------

void add_creation(Rows& rows) {
  const Rows more = {
      {"full", {}, [](In) { return Tensor::full(kSquare, 1.5).contiguous(); }},
      {"arange", {}, [](In) { return Tensor::arange(kCount).contiguous(); }},
      {"linspace", {}, [](In) { return Tensor::linspace(0, 1, kCount).contiguous(); }},
      {"eye", {}, [](In) { return Tensor::eye(kSide).contiguous(); }},
  };
  rows.insert(rows.end(), more.begin(), more.end());
}

void add_views(Rows& rows) {
  const Input cube = reals({64, 128, 128}), column = reals({kSide, 1});
  const Input blocks = reals({kSide, 32, 32}), thin = reals({1, kSide, 1, kSide});
  const Rows more = {
      {"reshape",
       {kReal},
       [](In x) {
         return plus_one(x[0].reshape({512, 2048}));
       }},
      {"permute",
       {cube},
       [](In x) {
         return x[0].permute({2, 0, 1}).contiguous();
       }},
      {"transpose", {cube}, [](In x) { return x[0].transpose(0, 1).contiguous(); }},
      {"expand", {column}, [](In x) { return x[0].expand(kSquare).contiguous(); }},
      {"slice",
       {reals({2048, kSide})},
       [](In x) {
         return x[0].slice({0, 8}, {2048, 1016}, {2, 1}).contiguous();
       }},
      {"slice.step",
       {kReal},
       [](In x) {
         return x[0].slice({0, 0}, {1024, 1024}, {1, 2}).neg();
       }},
      {"flip",
       {kReal},
       [](In x) {
         return x[0].flip({0, 1}).contiguous();
       }},
      {"split", {kReal}, [](In x) { return read(x[0].split(256, 0)); }},
      {"chunk", {kReal}, [](In x) { return read(x[0].chunk(4, 1)); }},
      {"unsqueeze", {kReal}, [](In x) { return plus_one(x[0].unsqueeze(1)); }},
      {"squeeze", {thin}, [](In x) { return plus_one(x[0].squeeze()); }},
      {"flatten", {kReal}, [](In x) { return plus_one(x[0].flatten()); }},
      {"unflatten",
       {kReal},
       [](In x) {
         return plus_one(x[0].unflatten(1, {32, 32}));
       }},
      {"diagonal", {blocks}, [](In x) { return x[0].diagonal(0, 1, 2).contiguous(); }},
      {"unfold", {kReal}, [](In x) { return x[0].unfold(1, 8, 4).contiguous(); }},
  };
  rows.insert(rows.end(), more.begin(), more.end());
}

void add_movement(Rows& rows) {
  const Input half = reals({512, kSide}), quarter = reals({256, kSide});
  const std::vector<Padding> enclosing = {{}, {}, {1, 1}, {1, 1}};
  const auto pad = [enclosing](PadMode mode) {
    return [enclosing, mode](In x) { return x[0].pad(enclosing, mode).contiguous(); };
  };
  const Rows more = {
      {"pad", {kImages}, pad(PadMode::Constant)},
      {"pad.reflect", {kImages}, pad(PadMode::Reflect)},
      {"pad.replicate", {kImages}, pad(PadMode::Replicate)},
      {"pad.circular", {kImages}, pad(PadMode::Circular)},
      {"roll",
       {kReal},
       [](In x) {
         return x[0].roll({3, 5}, {0, 1}).contiguous();
       }},
      {"repeat",
       {quarter},
       [](In x) {
         return x[0].repeat({4, 1}).contiguous();
       }},
      {"repeat_interleave", {half}, [](In x) { return x[0].repeat_interleave(2, 1).contiguous(); }},
      {"cat", {half, half}, [](In x) { return Tensor::cat(x, 0).contiguous(); }},
      {"cat.columns", {half, half}, [](In x) { return Tensor::cat(x, 1).contiguous(); }},
      {"stack", {half, half}, [](In x) { return Tensor::stack(x, 1).contiguous(); }},
      {"tril", {kReal}, [](In x) { return x[0].tril(); }},
      {"triu", {kReal}, [](In x) { return x[0].triu(); }},
  };
  rows.insert(rows.end(), more.begin(), more.end());
}

// --- Indexing by tensors -------------------------------------------------------------------------

void add_gathers(Rows& rows) {
  const Input table = reals({16384, 64}), words = indices({16384}, 16384);
  const auto embed = [](In x) { return x[1].embedding(x[0]); };
  const Rows more = {
      {"gather", {kReal, kAlong}, [](In x) { return x[0].gather(1, x[1]); }},
      {"gather.dim0", {kReal, kAlong}, [](In x) { return x[0].gather(0, x[1]); }},
      {"take_along_dim", {kReal, kAlong}, [](In x) { return x[0].take_along_dim(x[1], 1); }},
      {"index_select", {kReal, kRows}, [](In x) { return x[0].index_select(0, x[1]); }},
      {"index_select.dim1", {kReal, kRows}, [](In x) { return x[0].index_select(1, x[1]); }},
      {"index",
       {kReal, kAlong, kAlong},
       [](In x) {
         return x[0].index({x[1], x[2]});
       }},
      {"index.rows", {kReal, kRows}, [](In x) { return x[0].index({x[1]}); }},
      {"index.mask", {kReal, kBool1}, [](In x) { return x[0].index({x[1]}); }},
      {"masked_select", {kReal, kBool1}, [](In x) { return x[0].masked_select(x[1]); }},
      {"masked_fill", {kReal, kBool1}, [](In x) { return x[0].masked_fill(x[1], 2.5); }},
      {"nonzero", {kBool1}, [](In x) { return x[0].nonzero(); }},
      {"one_hot", {indices({4096}, 256)}, [](In x) { return x[0].one_hot(256); }},
      {"embedding", {words, table}, embed},
      {"embedding.backward", {words, wanted(table)}, backward(embed)},
  };
  rows.insert(rows.end(), more.begin(), more.end());
}

void add_scatters(Rows& rows) {
  const auto reduce = [](const char* kind) {
    return [kind](In x) { return x[0].scatter_reduce(1, x[1], x[2], kind); };
  };
  const auto put = [](bool accumulate) {
    return [accumulate](In x) { return x[0].index_put({x[2]}, x[1], accumulate); };
  };
  const Input part = reals({512, 1008});
  const std::vector<Input> inputs = {kReal, kAlong, kReal};
  const Rows more = {
      {"index_add", {kReal, kRows, kReal}, [](In x) { return x[0].index_add(0, x[1], x[2]); }},
      {"index_put", {kReal, kReal, kRows}, put(false)},
      {"index_put.accumulate", {kReal, kReal, kRows}, put(true)},
      {"slice_assign",
       {kReal, part},
       [](In x) {
         return x[0].slice_assign({0, 8}, {1024, 1016}, {2, 1}, x[1]);
       }},
      {"scatter", inputs, [](In x) { return x[0].scatter(1, x[1], x[2]); }},
      {"scatter.dim0", inputs, [](In x) { return x[0].scatter(0, x[1], x[2]); }},
      {"scatter_add", inputs, [](In x) { return x[0].scatter_add(1, x[1], x[2]); }},
      {"scatter_add.dim0", inputs, [](In x) { return x[0].scatter_add(0, x[1], x[2]); }},
      {"scatter_reduce", inputs, reduce("amax")},
      {"scatter_reduce.prod", inputs, reduce("prod")},
      {"scatter_reduce.mean", inputs, reduce("mean")},
  };
  rows.insert(rows.end(), more.begin(), more.end());
}

// --- Reductions, scans, sorting ------------------------------------------------------------------

void add_reductions(Rows& rows) {
  const Input near_one = reals(kSquare, 0.999, 1.001), odd = reals({kSide, kSide - 1});
  const auto softmax = [](In x) { return x[0].softmax(1); };
  const Rows more = {
      {"sum", {kReal}, [](In x) { return x[0].sum(); }},
      {"sum.rows", {kReal}, [](In x) { return x[0].sum(1); }},
      {"sum.columns", {kReal}, [](In x) { return x[0].sum(0); }},
      {"sum.i32", {kInteger}, [](In x) { return x[0].sum(); }},
      {"mean", {kReal}, [](In x) { return x[0].mean(); }},
      {"prod", {near_one}, [](In x) { return x[0].prod(); }},
      {"max", {kReal}, [](In x) { return x[0].max(); }},
      {"max.rows", {kReal}, [](In x) { return x[0].max(1); }},
      {"max.columns", {kReal}, [](In x) { return x[0].max(0); }},
      {"min", {kReal}, [](In x) { return x[0].min(); }},
      {"any", {kBool1}, [](In x) { return x[0].any(1); }},
      {"all", {kBool1}, [](In x) { return x[0].all(1); }},
      {"logsumexp", {kReal}, [](In x) { return x[0].logsumexp(1); }},
      {"var", {kReal}, [](In x) { return x[0].var(); }},
      {"var.rows", {kReal}, [](In x) { return x[0].var(1); }},
      {"std", {kReal}, [](In x) { return x[0].std(); }},
      {"norm", {kReal}, [](In x) { return x[0].norm(); }},
      {"argmax", {kReal}, [](In x) { return x[0].argmax(); }},
      {"argmax.rows", {kReal}, [](In x) { return x[0].argmax(1); }},
      {"argmax.columns", {kReal}, [](In x) { return x[0].argmax(0); }},
      {"argmin", {kReal}, [](In x) { return x[0].argmin(); }},
      {"median", {odd}, [](In x) { return x[0].median(1); }},
      {"softmax", {kReal}, softmax},
      {"softmax.columns", {kReal}, [](In x) { return x[0].softmax(0); }},
      {"softmax.backward", {wanted(kReal)}, backward(softmax)},
      {"log_softmax", {kReal}, [](In x) { return x[0].log_softmax(1); }},
  };
  rows.insert(rows.end(), more.begin(), more.end());
}

void add_scans(Rows& rows) {
  const Input near_one = reals(kSquare, 0.999, 1.001), flat = reals({kCount});
  const Rows more = {
      {"cumsum", {kReal}, [](In x) { return x[0].cumsum(1); }},
      {"cumsum.columns", {kReal}, [](In x) { return x[0].cumsum(0); }},
      {"cumsum.flat", {flat}, [](In x) { return x[0].cumsum(0); }},
      {"cumprod", {near_one}, [](In x) { return x[0].cumprod(1); }},
      {"cummax", {kReal}, [](In x) { return x[0].cummax(1); }},
      {"cummin", {kReal}, [](In x) { return x[0].cummin(1); }},
      {"logcumsumexp", {kReal}, [](In x) { return x[0].logcumsumexp(1); }},
      {"sort", {kReal}, [](In x) { return x[0].sort(); }},
      {"sort.flat", {flat}, [](In x) { return x[0].sort(); }},
      {"argsort", {kReal}, [](In x) { return x[0].argsort(); }},
      {"topk", {kReal}, [](In x) { return x[0].topk(10); }},
      {"topk.flat", {flat}, [](In x) { return x[0].topk(10); }},
  };
  rows.insert(rows.end(), more.begin(), more.end());
}

// --- Products and convolutions -------------------------------------------------------------------

void add_products(Rows& rows) {
  const Input flat = reals({kCount}), batch = reals({16, 256, 256}), vector = reals({kSide});
  const Input heads = reals({8, 8, 128, 128});
  const auto matmul = [](In x) { return x[0].matmul(x[1]); };
  const Rows more = {
      {"matmul", {kReal, kReal}, matmul},
      {"matmul.backward", {wanted(kReal), wanted(kReal)}, backward(matmul)},
      {"matmul.vector", {kReal, vector}, matmul},
      {"bmm", {batch, batch}, [](In x) { return x[0].bmm(x[1]); }},
      {"dot", {flat, flat}, [](In x) { return x[0].dot(x[1]); }},
      {"outer", {vector, vector}, [](In x) { return x[0].outer(x[1]); }},
      {"einsum", {heads, heads}, [](In x) { return Tensor::einsum("bhqd,bhkd->bhqk", x); }},
      {"linear", {kReal, kReal, vector}, [](In x) { return x[0].linear(x[1], x[2]); }},
  };
  rows.insert(rows.end(), more.begin(), more.end());
}

void add_convolutions(Rows& rows) {
  const Input line = reals({16, 64, 1024}), image = reals({4, 64, 64, 64});
  const Input volume = reals({2, 16, 32, 32, 32}), kernel2 = reals({64, 64, 3, 3});
  const auto same1 = [](In x) { return conv1d(x[0], x[1], x[2], {.padding = 2}); };
  const auto same2 = [](In x) { return conv2d(x[0], x[1], x[2], {.padding = 1}); };
  const auto same3 = [](In x) { return conv3d(x[0], x[1], x[2], {.padding = 1}); };
  const auto depthwise = [](In x) {
    return conv2d(x[0], x[1], Tensor(), {.padding = 1, .groups = 64});
  };
  const auto up1 = [](In x) {
    return conv_transpose1d(x[0], x[1], Tensor(), {.stride = 2, .padding = 1});
  };
  const auto up2 = [](In x) { return conv_transpose2d(x[0], x[1], Tensor(), {.stride = 2}); };
  const auto up3 = [](In x) { return conv_transpose3d(x[0], x[1], Tensor(), {.stride = 2}); };
  const Rows more = {
      {"conv1d", {line, reals({64, 64, 5}), kChannels}, same1},
      {"conv2d", {image, kernel2, kChannels}, same2},
      {"conv2d.depthwise", {image, reals({64, 1, 3, 3})}, depthwise},
      {"conv2d.backward", {wanted(image), wanted(kernel2), wanted(kChannels)}, backward(same2)},
      {"conv3d", {volume, reals({16, 16, 3, 3, 3}), reals({16})}, same3},
      {"conv_transpose1d", {line, reals({64, 64, 4})}, up1},
      {"conv_transpose2d", {image, reals({64, 32, 2, 2})}, up2},
      {"conv_transpose3d", {volume, reals({16, 16, 2, 2, 2})}, up3},
  };
  rows.insert(rows.end(), more.begin(), more.end());
}

// --- Pools, resampling, normalisations -----------------------------------------------------------

void add_pools(Rows& rows) {
  const Input line = reals({16, 64, 1024}), volume = reals({4, 8, 32, 32, 32});
  const PoolOptions halved = {.stride = 2, .padding = 1};
  const auto max2 = [=](In x) { return max_pool2d(x[0], 3, halved); };
  const Rows more = {
      {"max_pool1d", {line}, [=](In x) { return max_pool1d(x[0], 3, halved); }},
      {"avg_pool1d", {line}, [=](In x) { return avg_pool1d(x[0], 3, halved); }},
      {"adaptive_avg_pool1d", {line}, [](In x) { return adaptive_avg_pool1d(x[0], 100); }},
      {"adaptive_max_pool1d", {line}, [](In x) { return adaptive_max_pool1d(x[0], 100); }},
      {"max_pool2d", {kImages}, max2},
      {"max_pool2d.backward", {wanted(kImages)}, backward(max2)},
      {"max_pool2d.indices",
       {kImages},
       [=](In x) { return max_pool_with_indices(x[0], 2, 3, halved); }},
      {"avg_pool2d", {kImages}, [=](In x) { return avg_pool2d(x[0], 3, halved); }},
      {"adaptive_avg_pool2d", {kImages}, [](In x) { return adaptive_avg_pool2d(x[0], 7); }},
      {"adaptive_max_pool2d", {kImages}, [](In x) { return adaptive_max_pool2d(x[0], 7); }},
      {"max_pool3d", {volume}, [=](In x) { return max_pool3d(x[0], 3, halved); }},
      {"avg_pool3d", {volume}, [=](In x) { return avg_pool3d(x[0], 3, halved); }},
      {"avg_pool3d.large", {volume}, [](In x) { return avg_pool3d(x[0], 8); }},
      {"adaptive_avg_pool3d", {volume}, [](In x) { return adaptive_avg_pool3d(x[0], 7); }},
      {"adaptive_max_pool3d", {volume}, [](In x) { return adaptive_max_pool3d(x[0], 7); }},
  };
  rows.insert(rows.end(), more.begin(), more.end());
}

Results batch_norm_row(In x, bool training) {
  const BatchNormResult r = batch_norm(x[0], x[1], x[2], x[3], x[4], {.training = training});
  if (!training) return r.y;
  return std::vector<Tensor>{r.y, r.running_mean, r.running_var};
}

void add_norms(Rows& rows) {
  const Input small = reals({4, 64, 32, 32}), vector = reals({kSide});
  const Input variance = reals({64}, 0.5, 1);
  const std::vector<Input> batch = {kImages, kChannels, kChannels, kChannels, variance};
  const auto resize = [](Resample mode) {
    return [mode](In x) { return interpolate(x[0], 64, mode).contiguous(); };
  };
  const auto layer = [](In x) { return layer_norm(x[0], {kSide}, x[1], x[2]); };
  const Rows more = {
      {"interpolate", {small}, resize(Resample::Nearest)},
      {"interpolate.exact", {small}, resize(Resample::NearestExact)},
      {"interpolate.bilinear", {small}, resize(Resample::Linear)},
      {"batch_norm", batch, [](In x) { return batch_norm_row(x, true); }},
      {"batch_norm.eval", batch, [](In x) { return batch_norm_row(x, false); }},
      {"layer_norm", {kReal, vector, vector}, layer},
      {"layer_norm.backward", {wanted(kReal), wanted(vector), wanted(vector)}, backward(layer)},
      {"rms_norm", {kReal, vector}, [](In x) { return rms_norm(x[0], {kSide}, x[1]); }},
      {"group_norm",
       {kImages, kChannels, kChannels},
       [](In x) { return group_norm(x[0], 8, x[1], x[2]); }},
      {"instance_norm",
       {kImages, kChannels, kChannels},
       [](In x) { return instance_norm(x[0], x[1], x[2]); }},
  };
  rows.insert(rows.end(), more.begin(), more.end());
}

// --- Losses, attention, cells, optimizers --------------------------------------------------------

void add_losses(Rows& rows) {
  const Input logits = reals({kSide, 1000}), classes = indices({kSide}, 1000);
  const Input share = reals(kSquare, 0.01, 0.99), minus = reals(kSquare, -5, -0.1);
  const auto entropy = [](In x) { return cross_entropy(x[0], x[1]); };
  const auto bce_logits = [](In x) { return binary_cross_entropy_with_logits(x[0], x[1]); };
  const Rows more = {
      {"cross_entropy", {logits, classes}, entropy},
      {"cross_entropy.backward", {wanted(logits), classes}, backward(entropy)},
      {"nll_loss", {logits, classes}, [](In x) { return nll_loss(x[0], x[1]); }},
      {"mse_loss", {kReal, kReal}, [](In x) { return mse_loss(x[0], x[1]); }},
      {"l1_loss", {kReal, kReal}, [](In x) { return l1_loss(x[0], x[1]); }},
      {"smooth_l1_loss", {kReal, kReal}, [](In x) { return smooth_l1_loss(x[0], x[1]); }},
      {"huber_loss", {kReal, kReal}, [](In x) { return huber_loss(x[0], x[1]); }},
      {"bce", {share, share}, [](In x) { return binary_cross_entropy(x[0], x[1]); }},
      {"bce_with_logits", {kReal, share}, bce_logits},
      {"kl_div", {minus, share}, [](In x) { return kl_div(x[0], x[1]); }},
  };
  rows.insert(rows.end(), more.begin(), more.end());
}

void add_attention(Rows& rows) {
  const Input q = reals({4, 8, 256, 128}), angles = reals({128, 32});
  const Input x = reals({512, 512}), bias3 = reals({1536}), bias4 = reals({2048});
  const Input w3 = reals({1536, 512}, -0.1, 0.1), w4 = reals({2048, 512}, -0.1, 0.1);
  const auto attend = [](bool causal) {
    return [causal](In x) {
      return scaled_dot_product_attention(x[0], x[1], x[2], {.is_causal = causal});
    };
  };
  const auto lstm = [](In x) {
    const LstmState s = lstm_cell(x[0], {x[1], x[2]}, {x[3], x[4], x[5], x[6]});
    return std::vector<Tensor>{s.h, s.c};
  };
  const Rows more = {
      {"sdpa", {q, q, q}, attend(false)},
      {"sdpa.causal", {q, q, q}, attend(true)},
      {"rope",
       {reals({8, 16, 128, 64}), angles, angles},
       [](In x) { return rope(x[0], x[1], x[2]); }},
      {"gru_cell",
       {x, x, w3, w3, bias3, bias3},
       [](In x) {
         return gru_cell(x[0], x[1], {x[2], x[3], x[4], x[5]});
       }},
      {"lstm_cell", {x, x, x, w4, w4, bias4, bias4}, lstm},
  };
  rows.insert(rows.end(), more.begin(), more.end());
}

// One step of the first input with the second one as its gradient. The first call makes the
// optimizer.
template <class Kind, class... Options> Work step(double lr, const Options&... options) {
  struct State {
    Tensor p;
    std::unique_ptr<Kind> optimizer;
  };
  return [=, state = std::make_shared<State>()](In x) {
    if (!state->optimizer) {
      state->p = x[0].detach().contiguous();
      state->p.requires_grad_();
      state->optimizer = std::make_unique<Kind>(std::vector<Tensor*>{&state->p}, lr, options...);
    }
    state->p.set_grad(x[1]);
    state->optimizer->step();
    return Results();
  };
}

void add_optimizers(Rows& rows) {
  const std::vector<Input> inputs = {kReal, kReal};
  rows.push_back({"sgd", inputs, step<SGD>(0.01, SgdOptions{.momentum = 0.9})});
  rows.push_back({"adam", inputs, step<Adam>(1e-3)});
  rows.push_back({"adamw", inputs, step<AdamW>(1e-3)});
}

Rows all_rows() {
  Rows rows;
  for (auto add :
       {add_unary, add_binary, add_dtype, add_creation, add_views, add_movement, add_gathers,
        add_scatters, add_reductions, add_scans, add_products, add_convolutions, add_pools,
        add_norms, add_losses, add_attention, add_optimizers})
    add(rows);
  return rows;
}

// --- Measuring -----------------------------------------------------------------------------------

template <class T> Tensor random_tensor(const Input& input, std::mt19937& random) {
  std::vector<T> values(static_cast<size_t>(numel(input.shape)));
  std::uniform_int_distribution<int64_t> whole(static_cast<int64_t>(input.low),
                                               static_cast<int64_t>(input.high));
  std::uniform_real_distribution<double> real(input.low, input.high);
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<T>(std::is_floating_point_v<T> ? real(random)
                                                           : static_cast<double>(whole(random)));
  return Tensor::from(values, input.shape);
}

Tensor make(const Input& input, std::mt19937& random) {
  Tensor x = input.dtype == kF32   ? random_tensor<float>(input, random)
             : input.dtype == kI32 ? random_tensor<int32_t>(input, random)
             : input.dtype == kI64 ? random_tensor<int64_t>(input, random)
             : input.dtype == kU8  ? random_tensor<uint8_t>(input, random)
                                   : random_tensor<bool>(input, random);
  x.realize();
  if (input.grad) x.requires_grad_();
  return x;
}

// Frees the last results first: the graph would find them again instead of computing anew.
double time_once(const Row& row, In inputs) {
  live();
  const double start = bench::seconds();
  Results results = row.work(inputs);
  std::vector<Tensor*> pointers;
  for (Tensor& t : results) pointers.push_back(&t);
  Tensor::realize(pointers);
  return bench::seconds() - start;
}

// At least 5 times and for so many seconds; after 2 s no more.
bench::Timing measure(const Row& row, double least_seconds) {
  std::mt19937 random(1);
  std::vector<Tensor> inputs;
  for (const Input& input : row.inputs) inputs.push_back(make(input, random));
  for (int warm_up = 0; warm_up < 3; ++warm_up) time_once(row, inputs);
  std::vector<double> times;
  double total = 0;
  while ((times.size() < 5 || total < least_seconds) && total < 2) {
    times.push_back(time_once(row, inputs));
    total += times.back();
  }
  return bench::summary(times);
}

std::string escaped(const std::string& text) {
  std::string out;
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out;
}

void print_inputs(const Row& row) {
  std::printf("{\"name\": \"%s\", \"inputs\": [", row.name.c_str());
  const char* separator = "";
  for (const Input& x : row.inputs) {
    std::printf("%s{\"shape\": [", separator);
    for (size_t i = 0; i < x.shape.size(); ++i)
      std::printf("%s%lld", i ? ", " : "", static_cast<long long>(x.shape[i]));
    std::printf("], \"dtype\": \"%s\", \"low\": %g, \"high\": %g, \"grad\": %s}",
                std::string(x.dtype.name()).c_str(), x.low, x.high, x.grad ? "true" : "false");
    separator = ", ";
  }
  std::printf("]}\n");
}

void print_time(const Row& row, double least_seconds) {
  try {
    const bench::Timing t = measure(row, least_seconds);
    std::printf("{\"name\": \"%s\", \"ms\": %.4f, \"min_ms\": %.4f}\n", row.name.c_str(),
                t.median * 1e3, t.best * 1e3);
  } catch (const std::exception& e) {
    std::printf("{\"name\": \"%s\", \"error\": \"%s\"}\n", row.name.c_str(),
                escaped(e.what()).c_str());
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (print_version("operators", argc, argv)) return 0;
  std::set<std::string> names;
  bool list = false;
  double least_seconds = 0.05;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--list")
      list = true;
    else if (argument == "--seconds" && i + 1 < argc)
      least_seconds = std::stod(argv[++i]);
    else
      names.insert(argument);
  }
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  for (const Row& row : all_rows()) {
    if (!names.empty() && !names.count(row.name)) continue;
    if (list)
      print_inputs(row);
    else
      print_time(row, least_seconds);
  }
}
