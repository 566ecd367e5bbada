// Exported graphs, read again: the same numbers, and operators that other programs know.
#include "tiny/onnx/export/export.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <set>

#include "test/error_of.h"
#include "test/unit/onnx_models.h"
#include "tiny/nn/layers.h"
#include "tiny/nn/transformer.h"
#include "tiny/tensor/random.h"

using namespace tiny;

namespace {

using Function = std::function<std::vector<Tensor>(const std::vector<Tensor>&)>;

std::vector<double> numbers(const Tensor& x) { return x.to(kF64).to_vector<double>(); }

// Debian's python3-onnx, where it is.
bool has_checker() {
  static const bool found =
      std::system("/usr/bin/python3 -c 'import onnx.checker' 2>/dev/null") == 0;
  return found;
}

// The operators of the exported graph, after its results were compared with the function's.
std::vector<std::string> exported(const Function& function, const std::vector<Tensor>& inputs) {
  const test::TemporaryFolder folder("onnx_export");
  const std::string path = folder.file("a.onnx");
  onnx::export_graph(function, inputs, path);
  if (has_checker() && onnx::read_model(path).opsets.at("") <= 17) {  // it knows no newer one
    const std::string command = cat("/usr/bin/python3 -c 'import onnx; m = onnx.load(\"", path,
                                    "\"); onnx.checker.check_model(m, full_check=True)' 2>&1");
    CHECK(std::system(command.c_str()) == 0);
  }
  onnx::Module model = onnx::load(path);
  const std::vector<Tensor> expected = function(inputs), got = model.run(inputs);
  REQUIRE(got.size() == expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    CHECK(got[i].dtype() == expected[i].dtype());
    REQUIRE(to_shape(got[i].shape()) == to_shape(expected[i].shape()));
    const auto a = numbers(got[i]), b = numbers(expected[i]);
    double size = 0, most = 0;
    for (size_t k = 0; k < a.size(); ++k) {
      CHECK(std::isnan(a[k]) == std::isnan(b[k]));
      if (std::isnan(a[k]) || a[k] == b[k]) continue;
      most = std::max(most, std::abs(a[k] - b[k]));
      size = std::max(size, std::abs(b[k]));
    }
    CHECK(most <= 1e-5 * size);
  }
  std::vector<std::string> ops;
  for (const onnx::GraphNode& node : onnx::read_model(path).graph.nodes) ops.push_back(node.op);
  return ops;
}

int64_t count(const std::vector<std::string>& ops, const std::string& op) {
  return std::count(ops.begin(), ops.end(), op);
}

Tensor random(const Shape& shape) { return Tensor::randn(shape).contiguous().realize(); }

}  // namespace

TEST_CASE("a multilayer perceptron is exported as products and runs the same") {
  manual_seed(1);
  nn::Sequential net(nn::Linear(6, 8), &Tensor::relu, nn::Linear(8, 3));
  const auto ops =
      exported([&](const auto& in) { return std::vector<Tensor>{net(in[0])}; }, {random({4, 6})});
  CHECK(count(ops, "Einsum") == 2);
  CHECK(count(ops, "Gather") == 0);
}

TEST_CASE("convolutions are exported as Conv with their strides, groups and padding") {
  manual_seed(2);
  const Tensor w = random({6, 2, 3, 3}), b = random({6}), v = random({4, 6, 1, 1});
  const auto net = [&](const std::vector<Tensor>& in) {
    const Tensor y = conv2d(in[0], w, b, {.stride = {2, 1}, .padding = 1, .groups = 2}).relu();
    return std::vector<Tensor>{conv2d(y, v)};
  };
  const auto ops = exported(net, {random({2, 4, 9, 8})});
  CHECK(count(ops, "Conv") == 2);
  CHECK(count(ops, "Pad") == 0);
  const Tensor u = random({3, 2, 3});
  const auto dilated = [&](const std::vector<Tensor>& in) {
    return std::vector<Tensor>{conv1d(in[0], u, Tensor(), {.dilation = 2})};
  };
  CHECK(count(exported(dilated, {random({1, 2, 11})}), "Conv") == 1);
}

TEST_CASE("depthwise and transposed convolutions, pools and batch norms are exported") {
  manual_seed(3);
  const Tensor w = random({4, 1, 3, 3}), t = random({4, 2, 3, 3});
  const Tensor mean = random({4}), var = random({4}).square() + 0.5;
  const auto net = [&](const std::vector<Tensor>& in) {
    Tensor y = conv2d(in[0], w, Tensor(), {.stride = 2, .padding = 1, .groups = 4});
    y = batch_norm(y, Tensor(), Tensor(), mean, var).y;
    y = conv_transpose2d(y, t, Tensor(), {.stride = 2, .padding = 1});
    return std::vector<Tensor>{max_pool2d(y, 3, {.stride = 2, .padding = 1}), avg_pool2d(y, 2),
                               adaptive_avg_pool2d(y, 1)};
  };
  CHECK(count(exported(net, {random({2, 4, 8, 8})}), "Conv") >= 1);
}

// An axis that both factors vary with is none of filters.
TEST_CASE("sums of products whose samples or places have filters of their own are no Conv") {
  manual_seed(7);
  const Tensor x = random({3, 1, 5}), y = random({1, 1, 2, 6}), w = random({2, 6});
  const auto net = [&](const std::vector<Tensor>& in) {
    return std::vector<Tensor>{in[0].square().mean({2}, true), layer_norm(in[0], {5}),
                               (in[1] * w).sum({3})};
  };
  CHECK(count(exported(net, {x, y}), "Conv") == 0);
}

TEST_CASE("attention, norms and lookups are exported") {
  manual_seed(4);
  nn::TransformerEncoderLayer layer(16, 2, {.dim_feedforward = 24});
  nn::Embedding table(11, 16);
  const Tensor tokens = Tensor::from(Shape{3, 1, 4, 1, 10, 0}, {2, 3});
  const auto net = [&](const std::vector<Tensor>& in) {
    return std::vector<Tensor>{layer(table(in[0])).softmax(-1).log_softmax(0)};
  };
  const auto ops = exported(net, {tokens});
  CHECK(count(ops, "Gather") >= 1);
  CHECK(count(ops, "GatherND") == 0);
}

TEST_CASE("functions, views, reductions and choices of every kind are exported") {
  manual_seed(5);
  const Tensor x = random({3, 4, 5}), n = (random({3, 4}) * 3).to(kI64).contiguous().realize();
  exported(
      [](const std::vector<Tensor>& in) {
        const Tensor& a = in[0];
        return std::vector<Tensor>{a.exp() + a.abs().log() - a.sin() * a.tanh() / a.erf(),
                                   a.floor() + a.trunc() + a.round() + a.sigmoid(),
                                   a.permute({2, 0, 1}).flip(1).slice({0, 1}, {5, 3}, {2, 1}),
                                   a.pad({{1, 0}, {0, 2}, {-1, 1}}).transpose(0, 1),
                                   a.diagonal(0, 1, 2),
                                   a.unfold(2, 3, 1),
                                   Tensor::cat({a, a * 2}, 1),
                                   a.sum({0, 2}),
                                   a.max(1),
                                   a.min(),
                                   a.prod(2),
                                   a.argmax(1),
                                   a.mean(0).var(),
                                   (a > 0).any(1),
                                   (a > 0).all(),
                                   (a > 0).to(kI64).sum(1),
                                   a.isnan(),
                                   where(a > 0, a, -1),
                                   a.cumsum(1),
                                   Tensor::einsum("abc,dbc->ad", {a, a}),
                                   a.to(kF16) * 2,
                                   a.to(kF64).sqrt()};
      },
      {x});
  exported(
      [](const std::vector<Tensor>& in) {
        const Tensor& a = in[0];
        const Tensor odd = a * 2 + 1;
        return std::vector<Tensor>{floor_div(a, odd), trunc_div(a, odd), mod(a, odd),   -a,
                                   maximum(a, 1),     a.to(kF32),        a.to(kI8) + 1, a == 2,
                                   a != a.flip(0),    a.max(1),          a.sum(),       a.to(kBool),
                                   a.repeat({2, 1}),  a.one_hot(4),      a & 3,         a ^ 1,
                                   a.to(kU8) << 2};
      },
      {n});
  exported(
      [](const std::vector<Tensor>& in) {
        return std::vector<Tensor>{in[0].gather(1, in[1]),
                                   in[0].index_select(0, in[1].select(0, 0))};
      },
      {random({3, 6}), Tensor::from(Shape{0, 2, 1, 1}, {2, 2})});
}

TEST_CASE("functions of one real number are exported, whatever they are made of") {
  manual_seed(6);
  const Tensor x = (Tensor::rand({3, 40}) * 1.8 - 0.9).contiguous().realize();
  exported(
      [](const std::vector<Tensor>& in) {
        const Tensor& a = in[0];
        return std::vector<Tensor>{a.exp2(), a.expm1(), a.log1p(),    a.cos(),      a.tan(),
                                   a.asin(), a.acos(),  a.atan(),     a.sinh(),     a.cosh(),
                                   a.tanh(), a.asinh(), a.atanh(),    a.softplus(), a.mish(),
                                   a.silu(), a.gelu(),  a.gelu(true), a.selu(),     a.elu(),
                                   a.celu(), a.sign(),  a.hardtanh(), a.hardswish()};
      },
      {x});
}

TEST_CASE("a Jit that was called is exported with names of inputs, outputs and weights") {
  const test::TemporaryFolder folder("onnx_export");
  const std::string path = folder.file("a.onnx");
  nn::Linear layer(2, 3);
  Jit step([&](const Tensor& x, const std::vector<Tensor>& more) {
    return std::pair(layer(x) + more[0], more[1] * 2);
  });
  CHECK(error_of([&] { onnx::export_onnx(step, path); }) == "Jit: trace before the first call");
  const Tensor x = random({1, 2}), a = random({1, 3}), b = random({4});
  const auto expected = step(x, std::vector<Tensor>{a, b});
  onnx::export_onnx(
      step, path, {.inputs = {"x", "a", "b"}, .outputs = {"y"}, .weights = layer.state_dict("l.")});
  onnx::Module model = onnx::load(path);
  CHECK(onnx::port_text(model.inputs()[1]) == "a f32 (1,3)");
  CHECK(model.outputs()[0].name == "y");
  CHECK(model.outputs()[1].name == "output_1");
  std::set<std::string> names;
  for (const NamedTensor& t : model.state_dict()) names.insert(t.name);
  CHECK(names.contains("l.weight"));
  CHECK(names.contains("l.bias"));
  const auto got = model.run({{"x", x}, {"a", a}, {"b", b}});
  CHECK(got.at("y").to_vector<float>() == expected.first.to_vector<float>());
  CHECK(got.at("output_1").to_vector<float>() == expected.second.to_vector<float>());
  // It goes on as before.
  CHECK(step(x, std::vector<Tensor>{a, b}).first.to_vector<float>() ==
        expected.first.to_vector<float>());
}

TEST_CASE("what no forward graph has is an error of the export") {
  const test::TemporaryFolder folder("onnx_export");
  const auto error = [&](const Function& function, const onnx::ExportOptions& options = {}) {
    return error_of([&] {
      onnx::export_graph(function, {Tensor::zeros({3})}, folder.file("a.onnx"), options);
    });
  };
  Tensor state = Tensor::zeros({3}).contiguous().realize();
  CHECK(error([&](const auto& in) {
          Tensor copy = state;
          copy.assign(copy + in[0]);
          return std::vector<Tensor>{copy * 2};
        }).find("only forward graphs are exported") != std::string::npos);
  CHECK(error([](const auto& in) {
          return std::vector<Tensor>{in[0].scatter_add(0, Tensor::arange(3), in[0])};
        }).find("scatter") != std::string::npos);
  CHECK(error([](const auto& in) {
          return std::vector<Tensor>{in[0].bitcast(kI32)};
        }).find("bits of a number") != std::string::npos);
  const auto same = [](const auto& in) { return std::vector<Tensor>{in[0]}; };
  CHECK(error(same, {.inputs = {"a", "b"}}) ==
        "export_onnx: 2 names for 1 inputs, 0 for 1 outputs");
  CHECK(error(same, {.inputs = {"a"}, .outputs = {"a"}}) ==
        "export_onnx: the name \"a\" is empty or there twice");
  CHECK(error(same) == "no error");
}

TEST_CASE("the checker of ONNX sees what is exported, where it is installed") {
  if (!has_checker())
    std::cout << "no onnx of Python (package python3-onnx): exported files are not checked by it\n";
}
