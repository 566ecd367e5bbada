// Operators of versions 18 to 21, and of old ones, which the standard's data of version 17 have
// not: against formulas, or against operators that must agree with them. All of these were also
// compared with onnxruntime.
#include <doctest/doctest.h>

#include <cmath>

#include "test/error_of.h"
#include "test/unit/onnx_models.h"
#include "tiny/nn/functional.h"
#include "tiny/tensor/random.h"

using namespace tiny;
using test::attribute;
using test::operation;

namespace {

using Reals = std::vector<float>;

onnx::TensorData data_of(const std::string& name, const Tensor& x,
                         std::vector<std::vector<std::byte>>& bytes) {
  bytes.emplace_back(static_cast<size_t>(x.numel() * x.dtype().size()));
  if (x.numel() > 0) x.to_bytes(bytes.back().data());
  onnx::TensorData out;
  out.name = name;
  out.type = onnx::type_of_dtype(x.dtype());
  out.dims = to_shape(x.shape());
  out.has_raw = true;
  out.raw = bytes.back();
  return out;
}

// The outputs of a model of this node: the first input is given, the others are initializers, and
// those that are not defined are left out.
std::vector<Tensor> run(int64_t version, const std::string& op, const std::vector<Tensor>& inputs,
                        const std::vector<onnx::Attribute>& attributes = {}, int outputs = 1) {
  std::vector<std::vector<std::byte>> bytes;
  bytes.reserve(inputs.size());
  onnx::Graph graph;
  std::vector<std::string> names, results;
  for (size_t i = 0; i < inputs.size(); ++i) {
    names.push_back(inputs[i].defined() ? cat("x", i) : "");
    if (i > 0 && inputs[i].defined())
      graph.initializers.push_back(data_of(names.back(), inputs[i], bytes));
  }
  for (int i = 0; i < outputs; ++i) {
    results.push_back(cat("y", i));
    graph.outputs.push_back({results.back(), onnx::ValueInfo::Kind::Tensor});
  }
  graph.nodes = {operation(op, names, results, attributes)};
  graph.inputs = {{"x0", onnx::ValueInfo::Kind::Tensor, onnx::type_of_dtype(inputs[0].dtype())}};
  return test::ModelFile(test::model_of(graph, version)).load().run({inputs[0]});
}

Reals reals(const Tensor& x) { return x.to_vector<float>(); }
Shape integers(const Tensor& x) { return x.to(kI64).to_vector<int64_t>(); }
Tensor list(const Shape& values) { return Tensor::from(values); }
Tensor random(const Shape& shape) {
  Tensor out = Tensor::randn(shape).contiguous();
  return out.realize();
}

double difference(const Tensor& x, const Tensor& y) {
  REQUIRE(to_shape(x.shape()) == to_shape(y.shape()));
  return static_cast<double>((x - y).abs().max().item<float>());
}

}  // namespace

TEST_CASE("element-wise operators of ONNX from version 18 on") {
  const Tensor x = Tensor::from({-2.0f, 0.0f, 1.5f});
  const auto check_each = [&](const Tensor& got, double (*f)(double)) {
    const Reals in = reals(x), out = reals(got);
    for (size_t i = 0; i < in.size(); ++i)
      CHECK(static_cast<double>(out[i]) ==
            doctest::Approx(f(static_cast<double>(in[i]))).epsilon(1e-5));
  };
  check_each(run(18, "Mish", {x})[0],
             [](double v) { return v * std::tanh(std::log1p(std::exp(v))); });
  check_each(run(20, "Gelu", {x})[0],
             [](double v) { return v / 2 * (1 + std::erf(v / std::sqrt(2.0))); });
  check_each(run(20, "Gelu", {x}, {attribute("approximate", "tanh")})[0], [](double v) {
    return v / 2 * (1 + std::tanh(std::sqrt(2 / 3.14159265358979) * (v + 0.044715 * v * v * v)));
  });
  CHECK(integers(run(18, "BitwiseAnd", {list({12, -1}), list({10, 7})})[0]) == Shape{8, 7});
  CHECK(integers(run(18, "BitwiseXor", {list({12, -1}), list({10, 7})})[0]) == Shape{6, -8});
  CHECK(integers(run(18, "BitwiseNot", {list({0, 5})})[0]) == Shape{-1, -6});
  const Tensor wide = Tensor::from({470.0f, -470.0f, 460.0f});
  const auto f8 = run(19, "Cast", {wide}, {attribute("to", 17)})[0];
  CHECK(reals(f8.to(kF32)) == Reals{448, -448, 448});
  const auto loose = run(19, "Cast", {wide}, {attribute("to", 17), attribute("saturate", 0)})[0];
  CHECK(std::isnan(reals(loose.to(kF32))[0]));
  CHECK(reals(loose.to(kF32))[2] == 448);
}

TEST_CASE("axes that newer versions of ONNX give as inputs") {
  const Tensor x = random({2, 3, 4});
  CHECK(difference(run(18, "ReduceMax", {x, list({0, -1})}, {attribute("keepdims", 0)})[0],
                   x.max({0, 2})) == 0);
  CHECK(difference(run(18, "ReduceL1", {x, list({1})})[0], x.abs().sum(1, true)) < 1e-5);
  CHECK(difference(run(18, "ReduceMean", {x}, {attribute("noop_with_empty_axes", 1)})[0], x) == 0);
  const auto parts = run(18, "Split", {x}, {attribute("axis", 2), attribute("num_outputs", 3)}, 3);
  CHECK(parts[0].size(2) == 2);
  CHECK(parts[2].size(2) == 0);  // of ceil(4 / 3) each
  const Tensor signal = random({2, 6, 3, 1});
  CHECK(difference(run(20, "DFT", {signal, Tensor(), list({1}).reshape({})})[0],
                   run(17, "DFT", {signal}, {attribute("axis", 1)})[0]) == 0);
  CHECK(difference(
            run(19, "Pad", {x, list({1, 2}), Tensor(), list({2})}, {attribute("mode", "wrap")})[0],
            x.pad({{0, 0}, {0, 0}, {1, 2}}, PadMode::Circular)) == 0);
  CHECK(difference(run(18, "CenterCropPad", {x, list({5, 1})}, {attribute("axes", Shape{1, 2})})[0],
                   x.pad({{0, 0}, {1, 1}, {-1, -2}})) == 0);
}

TEST_CASE("a slice of ONNX that goes backwards starts at the first element at the latest") {
  const Tensor x = list({1, 2, 3, 4, 5});
  const auto slice = [&](int64_t start, int64_t end, int64_t step) {
    return integers(run(13, "Slice", {x, list({start}), list({end}), list({0}), list({step})})[0]);
  };
  CHECK(slice(-7, INT64_MIN, -1) == Shape{1});
  CHECK(slice(-7, -6, -1) == Shape{1});
  CHECK(slice(-7, 0, -1) == Shape{});
  CHECK(slice(9, INT64_MIN, -2) == Shape{5, 3, 1});
}

TEST_CASE("normalizations, quantised blocks and columns of newer versions of ONNX") {
  const Tensor x = random({2, 4, 5}), by_channel = random({4}), shift = random({4});
  const auto groups = attribute("num_groups", 2);
  CHECK(difference(run(21, "GroupNormalization", {x, by_channel, shift}, {groups})[0],
                   group_norm(x, 2, by_channel, shift)) < 1e-5);
  const Tensor by_group = random({2}), zero = Tensor::zeros({2});
  CHECK(difference(run(18, "GroupNormalization", {x, by_group, zero}, {groups})[0],
                   group_norm(x, 2, by_group.repeat_interleave(2))) < 1e-5);
  const Tensor q = Tensor::from({1.0f, 2.0f, 3.0f, 4.0f}, {1, 4});
  const auto blocks = {attribute("axis", 1), attribute("block_size", 2)};
  const Tensor scales = Tensor::from({0.5f, 2.0f}, {1, 2}),
               zeros = Tensor::from({1.0f, 0.0f}, {1, 2}).to(kU8);
  const Tensor quantised = run(21, "QuantizeLinear", {q, scales, zeros}, blocks)[0];
  CHECK(integers(quantised.flatten()) == Shape{3, 5, 2, 2});  // 1.5 to even
  CHECK(reals(run(21, "DequantizeLinear", {quantised.contiguous().realize(), scales, zeros},
                  blocks)[0]) == Reals{1, 2, 4, 4});
  const Tensor image = random({1, 2, 4, 5});
  const Tensor columns = image.unfold(2, 2, 1).unfold(3, 3, 1);  // (1, 2, 3, 3, 2, 3)
  const Tensor flat = columns.permute({0, 1, 4, 5, 2, 3}).reshape({1, 12, 9}).contiguous();
  const Tensor counts =
      run(18, "Col2Im", {Tensor::ones({1, 12, 9}), list({4, 5}), list({2, 3})})[0];
  CHECK(difference(run(18, "Col2Im", {flat, list({4, 5}), list({2, 3})})[0], image * counts) <
        1e-5);
}

TEST_CASE(
    "deformed convolutions without offsets are plain ones, boxes have their largest element") {
  const Tensor x = random({1, 4, 6, 5}), w = random({2, 2, 3, 3}), b = random({2});
  const auto pads = attribute("pads", Shape{1, 1, 1, 1});
  const std::vector<onnx::Attribute> form{pads, attribute("group", 2),
                                          attribute("offset_group", 2)};
  const Tensor plain = conv2d(x, w, b, {.padding = 1, .groups = 2});
  const Tensor still = Tensor::zeros({1, 36, 6, 5});
  CHECK(difference(run(19, "DeformConv", {x, w, still, b}, form)[0], plain) < 1e-5);
  // Each tap one element to the right, and half of what is there.
  Tensor moved = Tensor::stack({Tensor::zeros({1, 18, 6, 5}), Tensor::ones({1, 18, 6, 5})}, 2);
  const Tensor shifted = x.pad({{0, 0}, {0, 0}, {0, 0}, {-1, 1}});
  const Tensor got =
      run(19, "DeformConv",
          {x, w, moved.reshape({1, 36, 6, 5}).contiguous(), b, Tensor::full({1, 18, 6, 5}, 0.5)},
          form)[0];
  // The left border is inside of the shifted picture no more, but of the first one's.
  const Tensor left = x.narrow(3, 0, 1).pad({{0, 0}, {0, 0}, {1, 1}, {1, 0}});
  const Tensor padded =
      Tensor::cat({left.narrow(3, 1, 1), shifted.pad({{0, 0}, {0, 0}, {1, 1}, {0, 1}})}, 3);
  CHECK(difference(got, conv2d(padded, w, Tensor(), {.groups = 2}) * 0.5 + b.reshape({2, 1, 1})) <
        1e-5);
  const Tensor map = Tensor::arange(16).to(kF32).reshape({1, 1, 4, 4});
  const Tensor boxes =
      Tensor::from({0.0f, 0.0f, 0.0f, 3.0f, 3.0f, 0.0f, 1.0f, 1.0f, 2.0f, 2.0f}, {2, 5});
  CHECK(reals(run(1, "MaxRoiPool", {map, boxes}, {attribute("pooled_shape", Shape{2, 2})})[0]) ==
        Reals{5, 7, 13, 15, 5, 6, 9, 10});
}

TEST_CASE("depthwise convolutions of ONNX with strides are those of conv2d") {
  for (const int64_t width : {7, 8})
    for (const int64_t kernel : {1, 2, 3, 5})
      for (const int64_t after : {0, 1, 2}) {
        const Tensor x = random({2, 3, 9, width}), w = random({3, 1, kernel, kernel});
        const Tensor b = random({3});
        const Tensor padded = x.pad({{0, 0}, {0, 0}, {2, 1}, {1, after}});
        const std::vector<onnx::Attribute> form{attribute("pads", Shape{2, 1, 1, after}),
                                                attribute("strides", Shape{1, 2}),
                                                attribute("group", 3)};
        INFO(width, " ", kernel, " ", after);
        CHECK(difference(run(11, "Conv", {x, w, b}, form)[0],
                         conv2d(padded, w, b, {.stride = {1, 2}, .groups = 3})) < 1e-5);
      }
}

TEST_CASE("resizing in versions of ONNX that differ") {
  const Tensor x = Tensor::from({1.0f, 2.0f, 3.0f, 4.0f}, {1, 1, 1, 4});
  const auto scales = [](float s) { return Tensor::from({1.0f, 1.0f, 1.0f, s}); };
  // Fewer elements: the next one in version 10, the one before in Upsample's time.
  CHECK(reals(run(10, "Resize", {x, scales(0.6f)})[0]) == Reals{1, 3});
  CHECK(reals(run(9, "Upsample", {x, scales(1.5f)})[0]) == Reals{1, 1, 2, 3, 3, 4});
  const auto linear = attribute("mode", "linear");
  // With antialiasing half of the size is a filter of four elements, the first one repeated.
  const Reals small =
      reals(run(18, "Resize", {x, Tensor(), scales(0.5f)}, {linear, attribute("antialias", 1)})[0]);
  REQUIRE(small.size() == 2);
  CHECK(small[0] == doctest::Approx((1 * 0.25 + 1 * 0.75 + 2 * 0.75 + 3 * 0.25) / 2));
  const auto fit = [&](const char* policy) {
    return to_shape(run(18, "Resize",
                        {Tensor::zeros({1, 1, 4, 8}), Tensor(), Tensor(), list({6, 6})},
                        {linear, attribute("axes", Shape{2, 3}),
                         attribute("keep_aspect_ratio_policy", policy)})[0]
                        .shape());
  };
  CHECK(fit("not_larger") == Shape{1, 1, 3, 6});
  CHECK(fit("not_smaller") == Shape{1, 1, 6, 12});
}
