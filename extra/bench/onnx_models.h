// ONNX models of known forms with random weights, as PyTorch exports them: ResNet-50, MobileNetV2
// (both with batch norms in the convolutions, as exporters fold them), BERT-base.
#pragma once
#include <cmath>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "tiny/base/splitmix.h"
#include "tiny/base/text.h"
#include "tiny/onnx/format/model.h"

namespace tiny::bench {

// Appends nodes to a graph; functions give the name of their result.
class OnnxBuilder {
 public:
  using Name = std::string;

  Name node(const std::string& op, const std::vector<Name>& inputs,
            std::vector<onnx::Attribute> attributes = {}) {
    const Name out = cat("v", next_++);
    graph_.nodes.push_back({"", op, "", "", inputs, {out}, std::move(attributes)});
    return out;
  }
  // Uniform in +-bound.
  Name weight(const Shape& shape, double bound) {
    std::vector<float> values(static_cast<size_t>(numel(shape)));
    for (float& v : values)
      v = random_.between(static_cast<float>(-bound), static_cast<float>(bound));
    const Name name = cat("w", next_++);
    bytes_.push_back(std::move(values));
    const auto raw = std::as_bytes(std::span<const float>(bytes_.back()));
    graph_.initializers.push_back(
        {.name = name, .type = 1, .dims = shape, .has_raw = true, .raw = raw});
    return name;
  }
  Name full(const Shape& shape, float value) {
    const Name name = cat("w", next_++);
    graph_.initializers.push_back(
        {.name = name,
         .type = 1,
         .dims = shape,
         .floats = std::vector<float>(static_cast<size_t>(numel(shape)), value)});
    return name;
  }
  Name integers(const Shape& values) {
    const Name name = cat("w", next_++);
    graph_.initializers.push_back(
        {.name = name, .type = 7, .dims = {std::ssize(values)}, .integers = values});
    return name;
  }
  void input(const Name& name, int64_t type, const Shape& shape) {
    graph_.inputs.push_back(info(name, type, shape));
  }

  // The raw bytes of weights are this builder's.
  onnx::Model finish(const Name& output, const Shape& shape) {
    graph_.name = "graph";
    graph_.nodes.push_back({"", "Identity", "", "", {output}, {"output"}, {}});
    graph_.outputs = {info("output", 1, shape)};
    onnx::Model model;
    model.ir_version = 8;
    model.producer = "tiny";
    model.opsets[""] = 17;
    model.graph = std::move(graph_);
    return model;
  }

  static onnx::Attribute ints(const std::string& name, const Shape& values) {
    return {.name = name, .type = 7, .integers = values};
  }
  static onnx::Attribute integer(const std::string& name, int64_t value) {
    return {.name = name, .type = 2, .integer = value};
  }
  static onnx::Attribute real(const std::string& name, float value) {
    return {.name = name, .type = 1, .real = value};
  }

 private:
  static onnx::ValueInfo info(const Name& name, int64_t type, const Shape& shape) {
    std::vector<onnx::Dimension> dims;
    for (const int64_t size : shape) dims.push_back({size, ""});
    return {name, onnx::ValueInfo::Kind::Tensor, type, dims};
  }

  onnx::Graph graph_;
  SplitMix64 random_{7};
  int next_ = 0;
  std::deque<std::vector<float>> bytes_;
};

struct ConvForm {
  int64_t in, out, kernel, stride = 1, groups = 1;
};

inline std::string conv_node(OnnxBuilder& b, const std::string& x, const ConvForm& f) {
  const int64_t pad = f.kernel / 2, fan = f.in / f.groups * f.kernel * f.kernel;
  const std::string w = b.weight({f.out, f.in / f.groups, f.kernel, f.kernel},
                                 std::sqrt(6.0 / static_cast<double>(fan)));
  const std::string bias = b.weight({f.out}, 0.1);
  return b.node("Conv", {x, w, bias},
                {b.ints("kernel_shape", {f.kernel, f.kernel}), b.ints("pads", {pad, pad, pad, pad}),
                 b.ints("strides", {f.stride, f.stride}), b.integer("group", f.groups)});
}

inline std::string classifier(OnnxBuilder& b, const std::string& x, int64_t width) {
  const std::string pooled = b.node("GlobalAveragePool", {x});
  const std::string flat = b.node("Flatten", {pooled}, {b.integer("axis", 1)});
  return b.node("Gemm", {flat, b.weight({1000, width}, 0.02), b.weight({1000}, 0.1)},
                {b.integer("transB", 1)});
}

// K. He et al., "Deep residual learning for image recognition", arXiv 1512.03385.
inline onnx::Model resnet50(OnnxBuilder& b, int64_t batch) {
  b.input("input", 1, {batch, 3, 224, 224});
  std::string x = b.node("Relu", {conv_node(b, "input", {3, 64, 7, 2})});
  x = b.node(
      "MaxPool", {x},
      {b.ints("kernel_shape", {3, 3}), b.ints("strides", {2, 2}), b.ints("pads", {1, 1, 1, 1})});
  int64_t in = 64;
  const int64_t blocks[] = {3, 4, 6, 3};
  for (int stage = 0; stage < 4; ++stage) {
    const int64_t width = int64_t{64} << stage, out = 4 * width;
    for (int64_t i = 0; i < blocks[stage]; ++i) {
      const int64_t stride = i == 0 && stage > 0 ? 2 : 1;
      std::string y = b.node("Relu", {conv_node(b, x, {in, width, 1})});
      y = b.node("Relu", {conv_node(b, y, {width, width, 3, stride})});
      y = conv_node(b, y, {width, out, 1});
      const std::string shortcut = i == 0 ? conv_node(b, x, {in, out, 1, stride}) : x;
      // The sums of many blocks stay within the range of floats.
      x = b.node("Relu", {b.node("Mul", {b.node("Add", {y, shortcut}), b.full({}, 0.6f)})});
      in = out;
    }
  }
  return b.finish(classifier(b, x, in), {batch, 1000});
}

// M. Sandler et al., "MobileNetV2: inverted residuals and linear bottlenecks", arXiv 1801.04381.
inline onnx::Model mobilenet_v2(OnnxBuilder& b, int64_t batch) {
  const auto relu6 = [&](const std::string& x) {
    return b.node("Clip", {x, b.full({}, 0), b.full({}, 6)});
  };
  b.input("input", 1, {batch, 3, 224, 224});
  std::string x = relu6(conv_node(b, "input", {3, 32, 3, 2}));
  int64_t in = 32;
  struct Stage {
    int64_t expansion, out, count, stride;
  };
  for (const Stage& s :
       {Stage{1, 16, 1, 1}, Stage{6, 24, 2, 2}, Stage{6, 32, 3, 2}, Stage{6, 64, 4, 2},
        Stage{6, 96, 3, 1}, Stage{6, 160, 3, 2}, Stage{6, 320, 1, 1}})
    for (int64_t i = 0; i < s.count; ++i) {
      const int64_t width = in * s.expansion, stride = i == 0 ? s.stride : 1;
      std::string y = s.expansion == 1 ? x : relu6(conv_node(b, x, {in, width, 1}));
      y = relu6(conv_node(b, y, {width, width, 3, stride, width}));
      y = conv_node(b, y, {width, s.out, 1});
      x = i > 0 ? b.node("Add", {x, y}) : y;
      in = s.out;
    }
  x = relu6(conv_node(b, x, {in, 1280, 1}));
  return b.finish(classifier(b, x, 1280), {batch, 1000});
}

struct BertForm {
  int64_t batch = 1, length = 128, layers = 12, width = 768, heads = 12, inner = 3072;
  int64_t vocabulary = 30522;
};

// J. Devlin et al., "BERT", arXiv 1810.04805; GELU and layer norms of exporters of version 17.
inline onnx::Model bert(OnnxBuilder& b, const BertForm& f) {
  const int64_t head = f.width / f.heads;
  const auto linear = [&](const std::string& x, int64_t in, int64_t out) {
    const double bound = std::sqrt(3.0 / static_cast<double>(in));
    return b.node("Add", {b.node("MatMul", {x, b.weight({in, out}, bound)}), b.weight({out}, 0.1)});
  };
  const auto norm = [&](const std::string& x) {
    return b.node("LayerNormalization", {x, b.full({f.width}, 1), b.full({f.width}, 0)},
                  {b.integer("axis", -1), b.real("epsilon", 1e-12f)});
  };
  b.input("input_ids", 7, {f.batch, f.length});
  const std::string tokens = b.node("Gather", {b.weight({f.vocabulary, f.width}, 1), "input_ids"});
  std::string x = norm(b.node("Add", {tokens, b.weight({f.length, f.width}, 1)}));
  for (int64_t layer = 0; layer < f.layers; ++layer) {
    const auto split = [&](const std::string& t, const Shape& order) {
      const std::string parts =
          b.node("Reshape", {t, b.integers({f.batch, f.length, f.heads, head})});
      return b.node("Transpose", {parts}, {b.ints("perm", order)});
    };
    const std::string q = split(linear(x, f.width, f.width), {0, 2, 1, 3});
    const std::string k = split(linear(x, f.width, f.width), {0, 2, 3, 1});
    const std::string v = split(linear(x, f.width, f.width), {0, 2, 1, 3});
    const auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(head)));
    const std::string scores = b.node("Mul", {b.node("MatMul", {q, k}), b.full({}, scale)});
    const std::string weights = b.node("Softmax", {scores}, {b.integer("axis", -1)});
    const std::string mixed =
        b.node("Transpose", {b.node("MatMul", {weights, v})}, {b.ints("perm", {0, 2, 1, 3})});
    const std::string joined = b.node("Reshape", {mixed, b.integers({f.batch, f.length, f.width})});
    x = norm(b.node("Add", {linear(joined, f.width, f.width), x}));
    const std::string y = linear(x, f.width, f.inner);
    const std::string erf = b.node("Erf", {b.node("Div", {y, b.full({}, std::sqrt(2.0f))})});
    const std::string gate = b.node("Mul", {y, b.node("Add", {erf, b.full({}, 1)})});
    const std::string gelu = b.node("Mul", {gate, b.full({}, 0.5f)});
    x = norm(b.node("Add", {linear(gelu, f.inner, f.width), x}));
  }
  return b.finish(x, {f.batch, f.length, f.width});
}

}  // namespace tiny::bench
