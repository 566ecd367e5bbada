// Models of ONNX files: what a module takes and gives, shapes on the host, control flow, errors.
#include <doctest/doctest.h>

#include <cmath>
#include <fstream>

#include "test/error_of.h"
#include "test/unit/onnx_models.h"
#include "tiny/onnx/ops/table.h"
#include "tiny/run/jit.h"
#include "tiny/tensor/variable.h"

using namespace tiny;
using test::attribute;
using test::ModelFile;
using test::operation;
using test::value;

namespace {

using Reals = std::vector<float>;

// The error of a model, without the name of its file.
std::string message_of(const ModelFile& file, const std::function<void()>& call) {
  std::string text = error_of(call);
  const std::string path = file.path() + ": ";
  if (const size_t at = text.find(path); at != text.npos) text.erase(at, path.size());
  return text;
}

// y = x W + b, x (n, 2), W (2, 3).
onnx::Graph linear_graph() {
  onnx::Graph graph;
  graph.nodes = {operation("MatMul", {"x", "w"}, {"p"}), operation("Add", {"p", "b"}, {"y"})};
  graph.nodes[0].name = "product";
  graph.initializers = {test::reals("w", {1, 2, 3, 4, 5, 6}, {2, 3}),
                        test::reals("b", {10, 20, 30}, {3})};
  graph.inputs = {value("x", 1, {{-1, "n"}, {2, ""}})};
  graph.outputs = {value("y", 1, {{-1, "n"}, {3, ""}})};
  return graph;
}

// x (n, c, h, w) as (n, c h w), with its shape computed by operators.
onnx::Graph flattening_graph() {
  onnx::Graph graph;
  graph.nodes = {
      operation("Shape", {"x"}, {"shape"}),
      operation("Gather", {"shape", "zero"}, {"n"}),
      operation("Slice", {"shape", "one", "four"}, {"rest"}),
      operation("ReduceProd", {"rest"}, {"size"}, {attribute("keepdims", 0)}),
      operation("Unsqueeze", {"n", "zeros"}, {"n1"}),
      operation("Unsqueeze", {"size", "zeros"}, {"size1"}),
      operation("Concat", {"n1", "size1"}, {"wanted"}, {attribute("axis", 0)}),
      operation("Reshape", {"x", "wanted"}, {"flat"}),
      operation("Cast", {"n"}, {"factor"}, {attribute("to", 1)}),
      operation("Mul", {"flat", "factor"}, {"y"}),
  };
  graph.initializers = {test::integers("one", {1}), test::integers("four", {4}),
                        test::integers("zeros", {0})};
  graph.initializers.push_back({.name = "zero", .type = 7, .integers = {0}});
  graph.inputs = {value("x", 1, {{-1, "n"}, {-1, "c"}, {-1, "h"}, {-1, "w"}})};
  graph.outputs = {value("y", 1, {{-1, ""}, {-1, ""}})};
  return graph;
}

}  // namespace

TEST_CASE("an ONNX model is called by position, by name and as a module") {
  const ModelFile file(test::model_of(linear_graph()));
  onnx::Module model = file.load();
  REQUIRE(model.inputs().size() == 1);
  CHECK(onnx::port_text(model.inputs()[0]) == "x f32 (n,2)");
  CHECK(onnx::port_text(model.outputs()[0]) == "y f32 (n,3)");
  CHECK(model.opset() == 17);
  CHECK(model.producer() == "test");
  const Tensor x = Tensor::from({1.0f, 0.0f, 0.0f, 1.0f}, {2, 2});
  const Reals expected{11, 22, 33, 14, 25, 36};
  CHECK(model.run({x})[0].to_vector<float>() == expected);
  CHECK(model.run({{"x", x}}).at("y").to_vector<float>() == expected);
  CHECK(model(x).to_vector<float>() == expected);
  CHECK(model.state_dict("m.")[0].name == "m.w");
}

TEST_CASE("weights of an ONNX model learn as those of any module") {
  onnx::Module model = ModelFile(test::model_of(linear_graph())).load();
  for (const NamedTensor& t : model.state_dict()) t.tensor->requires_grad_();
  CHECK(model.parameters().size() == 2);
  const Tensor x = Tensor::from({1.0f, 2.0f}, {1, 2});
  model(x).sum().backward();
  CHECK(model.state_dict()[0].tensor->grad().to_vector<float>() == Reals{1, 1, 1, 2, 2, 2});
}

TEST_CASE("inputs that an ONNX model does not declare are errors") {
  const ModelFile file(test::model_of(linear_graph()));
  onnx::Module model = file.load();
  const auto error = [&](const Tensor& x) { return message_of(file, [&] { model.run({x}); }); };
  CHECK(error(Tensor::zeros({2, 3})) ==
        "onnx: the input \"x\" has the shape (2,3), expected x f32 (n,2)");
  CHECK(error(Tensor::zeros({2, 2}, kF64)) == "onnx: the input \"x\" is f64, expected x f32 (n,2)");
  CHECK(error(Tensor()) == "onnx: the input \"x\" is left out");
  CHECK(error_of([&] { model.run(std::vector<Tensor>()); }) ==
        "onnx: 0 inputs for the 1 of the model");
  CHECK(error_of([&] {
          model.run({{"x", Tensor::zeros({1, 2})}, {"z", Tensor::zeros({1})}});
        }) == "onnx: the model has no input \"z\"");
  CHECK(has(error_of([&] { model.to(kF16); }), "keeps the dtypes of its file"));
}

TEST_CASE("shapes that an ONNX model computes are known while a Jit captures") {
  onnx::Module model = ModelFile(test::model_of(flattening_graph())).load();
  // A value that is read from a device is an Error in the second call, which is recorded.
  Jit step([&](const Tensor& x) { return model(x); });
  for (int i = 1; i <= 4; ++i) {
    const Tensor y = step(Tensor::full({2, 3, 2, 1}, static_cast<float>(i)).contiguous().realize());
    CHECK(to_shape(y.shape()) == Shape{2, 6});
    CHECK(y.to_vector<float>() == Reals(12, static_cast<float>(2 * i)));
  }
  CHECK(step.statistics().replays >= 1);
}

TEST_CASE("values that follow from host values are evaluated on the host") {
  onnx::HostValues values;
  const auto integers = [&](const Tensor& x) { return values.find(x).value().integers; };
  const Tensor a = Tensor::arange(6).reshape({2, 3});
  CHECK(integers(a.transpose(0, 1)) == Shape{0, 3, 1, 4, 2, 5});
  CHECK(integers(a.flip(1).narrow(1, 0, 2)) == Shape{2, 1, 5, 4});
  CHECK(integers(a.sum(1)) == Shape{3, 12});
  CHECK(integers(a.max(0)) == Shape{3, 4, 5});
  CHECK(integers(Tensor::cat({a.select(0, 1), Tensor::full({1}, 9)})) == Shape{3, 4, 5, 9});
  CHECK(integers(floor_div(a - 3, 2)) == Shape{-2, -1, -1, 0, 0, 1});
  CHECK(integers(trunc_div(a - 3, 2)) == Shape{-1, -1, 0, 0, 0, 1});
  CHECK(integers(where(a > 3, a, -1)) == Shape{-1, -1, -1, -1, 4, 5});
  CHECK(integers(a.slice({0, 0}, {2, 3}, {1, 2})) == Shape{0, 2, 3, 5});
  CHECK(integers(a.index_select(1, Tensor::arange(2) + 1)) == Shape{1, 2, 4, 5});
  CHECK(integers(a.gather(1, Tensor::full({2, 1}, 2))) == Shape{2, 5});
  CHECK(values.find(a.to(kF32) * 0.5).value().reals == std::vector<double>{0, .5, 1, 1.5, 2, 2.5});
  CHECK(integers((a.to(kF32) * 0.5).ceil().to(kI64)) == Shape{0, 1, 1, 2, 2, 3});
  // Memory of a device is read only where its values are known; a division by zero has none.
  const Tensor stored = Tensor::from(Shape{7, 8});
  CHECK(!values.find(stored + 1));
  values.know(stored, onnx::host_array(reinterpret_cast<const std::byte*>("\7\0\0\0\0\0\0\0"
                                                                          "\10\0\0\0\0\0\0"),
                                       kI64, {2}));
  CHECK(integers(stored + 1) == Shape{8, 9});
  CHECK(integers(stored.reshape({2, 1}).flip(0)) == Shape{8, 7});
  CHECK(!values.find(floor_div(a, a)));
}

TEST_CASE("If takes the branch of its condition, which sees the names around it") {
  onnx::Graph twice, same;
  twice.nodes = {operation("Add", {"x", "x"}, {"t"})};
  twice.outputs = {value("t", 1, {})};
  same.nodes = {operation("Identity", {"x"}, {"s"})};
  same.outputs = {value("s", 1, {})};
  onnx::Graph graph;
  graph.nodes = {operation("Size", {"x"}, {"size"}), operation("Greater", {"size", "two"}, {"c"}),
                 operation("If", {"c"}, {"y"},
                           {attribute("then_branch", twice), attribute("else_branch", same)})};
  graph.initializers = {{.name = "two", .type = 7, .integers = {2}}};
  graph.inputs = {value("x", 1, {{-1, "n"}})};
  graph.outputs = {value("y", 1, {{-1, "n"}})};
  onnx::Module model = ModelFile(test::model_of(graph)).load();
  CHECK(model(Tensor::from({1.0f, 2.0f})).to_vector<float>() == Reals{1, 2});
  CHECK(model(Tensor::from({1.0f, 2.0f, 3.0f})).to_vector<float>() == Reals{2, 4, 6});
}

TEST_CASE("Loop is unrolled, carries values on and collects those of each round") {
  onnx::Graph body;
  body.nodes = {operation("Mul", {"v", "x"}, {"w"}), operation("Identity", {"c"}, {"d"}),
                operation("Cast", {"i"}, {"r"}, {attribute("to", 1)}),
                operation("Add", {"w", "r"}, {"s"})};
  body.inputs = {value("i", 7, {}), value("c", 9, {}), value("v", 1, {})};
  body.outputs = {value("d", 9, {}), value("w", 1, {}), value("s", 1, {})};
  onnx::Graph graph;
  graph.nodes = {
      operation("Loop", {"rounds", "", "one"}, {"last", "all"}, {attribute("body", body)})};
  graph.initializers = {{.name = "rounds", .type = 7, .integers = {3}},
                        test::reals("one", {1}, {})};
  graph.inputs = {value("x", 1, {})};
  graph.outputs = {value("last", 1, {}), value("all", 1, {{3, ""}})};
  onnx::Module model = ModelFile(test::model_of(graph)).load();
  const auto out = model.run({Tensor::full({}, 2.0f)});
  CHECK(out[0].to_vector<float>() == Reals{8});
  CHECK(out[1].to_vector<float>() == Reals{2, 5, 10});
  graph.initializers[0].integers = {0};
  graph.outputs[1] = value("all", 1, {{0, ""}});
  const auto none = ModelFile(test::model_of(graph)).load().run({Tensor::full({}, 2.0f)});
  CHECK(none[0].to_vector<float>() == Reals{1});
  CHECK(to_shape(none[1].shape()) == Shape{0});
}

TEST_CASE("functions of an ONNX file have names and attributes of their own") {
  onnx::Function f;
  f.name = "Leaky";
  f.domain = "own";
  f.inputs = {"a", "unused"};
  f.outputs = {"b"};
  f.attributes = {"slope"};
  f.defaults = {attribute("scale", 10.0f)};
  f.nodes = {operation("LeakyRelu", {"a"}, {"x"}), operation("Constant", {}, {"k"}),
             operation("Mul", {"x", "k"}, {"b"})};
  f.nodes[0].attributes = {{.name = "alpha", .reference = "slope", .type = 1}};
  f.nodes[1].attributes = {{.name = "value_float", .reference = "scale", .type = 1}};
  f.opsets[""] = 17;
  onnx::Graph graph;
  graph.nodes = {
      operation("Leaky", {"x"}, {"p"}, {attribute("slope", 0.5f)}),
      operation("Leaky", {"p"}, {"y"}, {attribute("slope", 0.25f), attribute("scale", 1.0f)})};
  for (onnx::GraphNode& node : graph.nodes) node.domain = "own";
  graph.inputs = {value("x", 1, {{2, ""}})};
  graph.outputs = {value("y", 1, {{2, ""}})};
  onnx::Model model = test::model_of(graph);
  model.functions = {f};
  model.opsets["own"] = 1;
  CHECK(ModelFile(model).load()(Tensor::from({-2.0f, 2.0f})).to_vector<float>() ==
        Reals{-2.5f, 20});
}

TEST_CASE("operators and values that an ONNX model may not have are told when it is loaded") {
  const auto error = [](const onnx::Graph& graph, int64_t opset = 17) {
    const ModelFile file(test::model_of(graph, opset));
    return message_of(file, [&] { file.load(); });
  };
  onnx::Graph graph = linear_graph();
  graph.nodes[0].op = "Frobnicate";
  CHECK(error(graph) == "onnx: Frobnicate: no such operator in version 17 of the default domain");
  graph.nodes[0].op = "SequenceAt";
  CHECK(error(graph) ==
        "onnx: SequenceAt: the operator is refused: it takes a sequence, and only "
        "tensors are values");
  graph.nodes[0].op = "Gelu";
  CHECK(error(graph) == "onnx: Gelu: no such operator in version 17 of the default domain");
  CHECK(error(graph, 20) == "no error");
  graph = linear_graph();
  graph.nodes[1].domain = "com.example";
  CHECK(error(graph) ==
        "onnx: Add: the operator is of the domain \"com.example\": only those of "
        "the default domain and functions of the file are had");
  CHECK(error(linear_graph(), 22) == "onnx: version 22 of the default domain, expected 1 to 21");
  CHECK(error(linear_graph(), 0) == "onnx: version 0 of the default domain, expected 1 to 21");
  graph = linear_graph();
  graph.inputs.push_back({"s", onnx::ValueInfo::Kind::Sequence});
  CHECK(error(graph) == "onnx: \"s\" is a sequence, an optional value or a map: these are refused");
  graph = linear_graph();
  graph.inputs[0].type = 8;
  CHECK(error(graph) == "onnx: \"x\" is a tensor of STRING, which is refused");
  graph = linear_graph();
  graph.initializers.push_back(graph.initializers[0]);
  CHECK(error(graph) == "onnx: the initializer \"w\" is there twice");
}

TEST_CASE("an error inside of an ONNX model names the node") {
  const auto error = [](const onnx::Graph& graph, const Tensor& x) {
    const ModelFile file(test::model_of(graph));
    onnx::Module model = file.load();
    return message_of(file, [&] { model.run({x}); });
  };
  onnx::Graph graph = linear_graph();
  graph.initializers[0].dims = {3, 2};
  CHECK(has(error(graph, Tensor::zeros({1, 2})), "onnx: MatMul \"product\": matmul: "));
  graph = linear_graph();
  graph.inputs[0].type = 7;
  CHECK(error(graph, Tensor::zeros({1, 2}, kI64)) ==
        "onnx: MatMul \"product\": MatMul: operands of i64 and f32, expected one dtype");
  graph = linear_graph();
  graph.nodes[0] = operation("Sin", {"x"}, {"p"});
  graph.inputs[0].type = 7;
  CHECK(error(graph, Tensor::zeros({1, 2}, kI64)) ==
        "onnx: Sin: the first input is i64, which this operator does not take");
  graph = linear_graph();
  graph.nodes[0].inputs[1] = "nothing";
  CHECK(error(graph, Tensor::zeros({1, 2})) ==
        "onnx: MatMul \"product\": no value is called \"nothing\"");
  graph = linear_graph();
  graph.nodes[0].inputs[1] = "";
  CHECK(error(graph, Tensor::zeros({1, 2})) ==
        "onnx: MatMul \"product\": MatMul: input 1 is left out");
  graph = linear_graph();
  graph.nodes[1] = operation("Softmax", {"p"}, {"y"}, {attribute("axis", 0.5f)});
  CHECK(error(graph, Tensor::zeros({1, 2})) ==
        "onnx: Softmax: Softmax: the attribute axis is a float, expected an integer");
}

TEST_CASE("sparse initializers, external data and dtypes of four bits make tensors") {
  const test::TemporaryFolder folder("onnx_kinds");
  onnx::Graph graph;
  graph.nodes = {operation("Mul", {"sparse", "far"}, {"p"}),
                 operation("DequantizeLinear", {"small", "scale"}, {"q"}),
                 operation("Add", {"p", "q"}, {"r"}), operation("Add", {"r", "x"}, {"y"})};
  graph.sparse_initializers = {
      {test::reals("sparse", {5, 7}, {2}), test::integers("", {1, 3}), {4}}};
  graph.initializers = {{.name = "far",
                         .type = 1,
                         .dims = {4},
                         .is_external = true,
                         .external = {{"location", "w.bin"}, {"offset", "4"}}},
                        {.name = "small", .type = 22, .dims = {4}, .has_raw = true},
                        test::reals("scale", {0.5f}, {})};
  const std::vector<std::byte> nibbles{std::byte{0xf1}, std::byte{0x28}};  // 1, -1, -8, 2
  graph.initializers[1].raw = nibbles;
  graph.inputs = {value("x", 1, {{4, ""}})};
  graph.outputs = {value("y", 1, {{4, ""}})};
  onnx::write_model(folder.file("model.onnx"), test::model_of(graph, 21));
  const float data[] = {-1, 1, 2, 3, 4};
  std::ofstream(folder.file("w.bin"), std::ios::binary)
      .write(reinterpret_cast<const char*>(data), sizeof data);
  onnx::Module model = onnx::load(folder.file("model.onnx"));
  CHECK(model(Tensor::zeros({4})).to_vector<float>() == Reals{0.5f, 9.5f, -4, 29});
}

TEST_CASE("the table of ONNX operators finds the row of a version") {
  REQUIRE(onnx::find_operator("Clip", 10) != nullptr);
  CHECK(onnx::find_operator("Clip", 10)->since == 1);
  CHECK(onnx::find_operator("Clip", 13)->since == 11);
  CHECK(onnx::find_operator("LayerNormalization", 16) == nullptr);
  CHECK(onnx::find_operator("None", 17) == nullptr);
  // A name has one group, and its rows stand in the order of the alphabet and of versions.
  std::map<std::string, const char*> groups;
  for (const onnx::OperatorGroup& group : onnx::operator_groups())
    for (size_t i = 0; i < group.operators.size(); ++i) {
      const onnx::Operator& row = group.operators[i];
      CHECK(std::string(groups.emplace(row.name, group.name).first->second) == group.name);
      CHECK(onnx::refusal_of(row.name).empty());
      if (i == 0) continue;
      const onnx::Operator& before = group.operators[i - 1];
      INFO(before.name, " ", row.name);
      CHECK(std::pair<std::string, int64_t>(before.name, before.since) <
            std::pair<std::string, int64_t>(row.name, row.since));
    }
}

// --- Lengths that are Variables ------------------------------------------------------------------

namespace {

// Attention over x (batch, n, 4) with positions and a mask, whose shapes the graph computes.
onnx::Graph attention_graph() {
  onnx::Graph graph;
  graph.nodes = {
      operation("Shape", {"x"}, {"shape"}),
      operation("Gather", {"shape", "one"}, {"n"}),
      operation("Unsqueeze", {"n", "zeros"}, {"n1"}),
      operation("Slice", {"table", "zeros", "n1", "zeros"}, {"positions"}),
      operation("Add", {"x", "positions"}, {"h"}),
      operation("Reshape", {"h", "split"}, {"heads"}),
      operation("Transpose", {"heads"}, {"q"}, {attribute("perm", Shape{0, 2, 1, 3})}),
      operation("Transpose", {"heads"}, {"k"}, {attribute("perm", Shape{0, 2, 3, 1})}),
      operation("MatMul", {"q", "k"}, {"scores"}),
      operation("Range", {"zero", "n", "one"}, {"at"}),
      operation("Unsqueeze", {"at", "ones"}, {"rows"}),
      operation("Less", {"rows", "at"}, {"later"}),
      operation("Where", {"later", "minus", "scores"}, {"masked"}),
      operation("Softmax", {"masked"}, {"weights"}),
      operation("MatMul", {"weights", "q"}, {"mixed"}),
      operation("Transpose", {"mixed"}, {"back"}, {attribute("perm", Shape{0, 2, 1, 3})}),
      operation("Reshape", {"back", "joined"}, {"z"}),
      operation("LayerNormalization", {"z", "scale"}, {"y"}),
      operation("ReduceMean", {"y"}, {"pooled"}, {attribute("axes", Shape{1})}),
      operation("Cast", {"n"}, {"count"}, {attribute("to", 1)}),
      operation("Mul", {"pooled", "count"}, {"total"}),
  };
  std::vector<float> table(64);
  for (size_t i = 0; i < table.size(); ++i) table[i] = std::sin(static_cast<float>(i));
  graph.initializers = {test::reals("table", table, {16, 4}),
                        test::integers("zeros", {0}),
                        test::integers("ones", {1}),
                        test::integers("split", {0, -1, 2, 2}),
                        test::integers("joined", {0, -1, 4}),
                        test::reals("minus", {-1e9f}, {}),
                        test::reals("scale", {1, 2, 3, 4}, {4})};
  graph.initializers.push_back({.name = "one", .type = 7, .integers = {1}});
  graph.initializers.push_back({.name = "zero", .type = 7, .integers = {0}});
  graph.inputs = {value("x", 1, {{-1, "batch"}, {-1, "n"}, {4, ""}})};
  graph.outputs = {value("y", 1, {{-1, "batch"}, {-1, "n"}, {4, ""}}),
                   value("total", 1, {{-1, "batch"}, {1, ""}, {4, ""}})};
  return graph;
}

double largest(const Tensor& x) { return static_cast<double>(x.abs().max().item<float>()); }

}  // namespace

TEST_CASE("a named dimension may be a Variable: one capture serves all of its values") {
  onnx::Module model = ModelFile(test::model_of(attention_graph())).load();
  Tensor whole = Tensor::randn({2, 16, 4}).contiguous();
  whole.realize();
  const NoGrad no_grad;
  Jit step([&](const Tensor& x, const Variable& n) { return model.run({x.narrow(1, 0, n)}); });
  const Variable n("n", 1, 16);
  for (const int64_t length : {16, 5, 1, 9, 12}) {
    const auto got = step(whole, n.bind(length));
    const auto expected = model.run({whole.narrow(1, 0, length)});
    REQUIRE(to_shape(got[0].current_shape()) == Shape{2, length, 4});
    const auto a = got[0].to_vector<float>(), b = expected[0].to_vector<float>();
    for (size_t i = 0; i < a.size(); ++i) CHECK(std::abs(a[i] - b[i]) < 1e-4f);
    CHECK(largest(got[1] - expected[1]) < 1e-3);
  }
  CHECK(step.statistics().captures == 1);
}

TEST_CASE("what a graph cannot do with a length that is a Variable is an error") {
  const auto error = [](const onnx::Graph& graph) {
    const ModelFile file(test::model_of(graph));
    onnx::Module model = file.load();
    const Tensor x = Tensor::zeros({2, 16, 4}).narrow(1, 0, Variable("n", 1, 16).bind(7));
    return message_of(file, [&] { model.run({x}); });
  };
  onnx::Graph graph = attention_graph();
  CHECK(error(graph) == "no error");
  graph.inputs[0].shape->at(1) = {16, ""};
  CHECK(has(error(graph), "the input \"x\" has the shape (2,16,4)"));
  graph = attention_graph();
  graph.nodes[2] = operation("Add", {"n", "zeros"}, {"n1"});  // the length: no change
  CHECK(error(graph) == "no error");
  graph.nodes[2] = operation("Sub", {"n", "ones"}, {"n1"});
  CHECK(has(error(graph), "is not that length"));
  graph = attention_graph();
  graph.initializers[3] = test::integers("split", {0, -1, 4, 1});
  graph.initializers[4] = test::integers("joined", {-1, 4});
  CHECK(has(error(graph), "it cannot be split or merged with others"));
  graph = attention_graph();
  graph.nodes.back() = operation("TopK", {"pooled", "n1"}, {"total", "where"});
  CHECK(has(error(graph), "depends on a length that is a Variable: only sizes of tensors may"));
}
