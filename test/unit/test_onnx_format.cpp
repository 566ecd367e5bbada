// Reading ONNX files: what they hold, and what damaged ones are told.
#include <doctest/doctest.h>

#include <fstream>
#include <random>

#include "test/error_of.h"
#include "test/unit/onnx_models.h"
#include "tiny/onnx/call/host_values.h"
#include "tiny/onnx/format/wire.h"

using namespace tiny;
using test::attribute;
using test::operation;
using test::value;

namespace {

// A model of all that files have: nested graphs, functions, lists of all kinds, sparse tensors.
onnx::Model rich_model() {
  onnx::Graph inner;
  inner.name = "inner";
  inner.nodes = {operation("Identity", {"x"}, {"z"})};
  inner.outputs = {value("z", 1, {{2, ""}, {-1, "n"}})};
  onnx::Graph graph;
  graph.nodes = {
      operation("If", {"c"}, {"y"},
                {attribute("then_branch", inner), attribute("else_branch", inner)}),
      operation("Constant", {}, {"k"}, {attribute("value", test::reals("", {1, 2}, {2}))}),
      operation("Gemm", {"a", "b"}, {"d"}, {attribute("alpha", 0.5f), attribute("transA", 0)}),
      operation("RNN", {"a"}, {"e"}, {attribute("direction", "forward")}),
  };
  graph.nodes[0].name = "branch";
  graph.nodes[2].attributes.push_back({.name = "reals", .type = 6, .reals = {0.5f, -1}});
  graph.nodes[2].attributes.push_back({.name = "texts", .type = 8, .texts = {"", "Tanh"}});
  graph.nodes[2].attributes.push_back({.name = "beta", .reference = "outer", .type = 1});
  graph.initializers = {test::integers("shape", {2, -1}), test::reals("w", {1, 2, 3, 4}, {2, 2})};
  graph.initializers.push_back({.name = "far",
                                .type = 1,
                                .dims = {4},
                                .is_external = true,
                                .external = {{"location", "w.bin"}, {"offset", "4"}}});
  graph.initializers.push_back({.name = "wide", .type = 11, .dims = {1}, .doubles = {2.5}});
  graph.sparse_initializers = {{test::reals("s", {7}, {1}), test::integers("", {2}), {5}}};
  graph.inputs = {value("x", 1, {{2, ""}, {-1, "n"}}), value("c", 9, {})};
  graph.outputs = {value("y", 1, {{2, ""}, {-1, ""}})};
  onnx::Model model = test::model_of(graph);
  onnx::Function f;
  f.name = "twice";
  f.domain = "own";
  f.inputs = {"a"};
  f.outputs = {"b"};
  f.attributes = {"by"};
  f.defaults = {attribute("more", 1.5f)};
  f.nodes = {operation("Add", {"a", "a"}, {"b"})};
  f.opsets[""] = 17;
  model.functions = {f};
  model.opsets["own"] = 1;
  return model;
}

// The error of reading these bytes, after the file's name; "no error".
std::string read_error(const test::TemporaryFolder& folder, const std::string& bytes) {
  const std::string path = folder.file("a.onnx"), start = cat("onnx: ", path, ": ");
  std::ofstream(path, std::ios::binary).write(bytes.data(), std::ssize(bytes));
  const std::string message = error_of([&] { onnx::read_model(path); });
  return message.starts_with(start) ? message.substr(start.size()) : message;
}

std::string varint(uint64_t value) {
  std::string out;
  for (; value >= 128; value >>= 7) out += static_cast<char>(value | 128);
  return out + static_cast<char>(value);
}
// A field with a length.
std::string field(uint32_t number, const std::string& bytes) {
  return varint(number << 3 | 2) + varint(bytes.size()) + bytes;
}

}  // namespace

TEST_CASE("an ONNX model that is written and read again is the same") {
  const test::TemporaryFolder folder("onnx_format");
  const onnx::Model model = rich_model();
  onnx::write_model(folder.file("m.onnx"), model);
  const onnx::Model read = onnx::read_model(folder.file("m.onnx"));
  CHECK(onnx::model_bytes(read) == onnx::model_bytes(model));
  CHECK(read.producer == "test");
  CHECK(read.opsets == onnx::Opsets{{"", 17}, {"own", 1}});
  REQUIRE(read.graph.nodes.size() == 4);
  CHECK(read.graph.nodes[0].name == "branch");
  CHECK(read.graph.nodes[0].attributes[1].graph->nodes[0].inputs[0] == "x");
  CHECK(read.graph.nodes[2].attributes[0].real == 0.5f);
  CHECK(read.graph.nodes[2].attributes[2].reals == std::vector<float>{0.5f, -1});
  CHECK(read.graph.nodes[2].attributes[4].reference == "outer");
  CHECK(read.graph.initializers[2].external.at("offset") == "4");
  CHECK(read.graph.sparse_initializers[0].dims == Shape{5});
  CHECK(read.graph.inputs[0].shape->at(1).name == "n");
  CHECK(read.graph.inputs[1].shape->empty());
  CHECK(read.functions[0].defaults[0].real == 1.5f);
}

TEST_CASE("an ONNX file that is cut off anywhere is an error, or a whole one without its end") {
  const test::TemporaryFolder folder("onnx_format");
  const std::string whole = onnx::model_bytes(rich_model());
  REQUIRE(read_error(folder, whole) == "no error");
  // The graph is one field: what comes after it may be missing.
  int good = 0;
  for (size_t size = 0; size < whole.size(); ++size)
    good += read_error(folder, whole.substr(0, size)) == "no error" ? 1 : 0;
  CHECK(good == 3);  // before the opsets, and before the function
  CHECK(read_error(folder, "") ==
        "the model at byte 0: the file has no graph: it is no ONNX model");
}

TEST_CASE("bytes of an ONNX file that are changed at random give an error or a model") {
  const test::TemporaryFolder folder("onnx_format");
  onnx::Model model = rich_model();
  std::erase_if(model.graph.initializers, [](const auto& t) { return t.is_external; });
  const std::string whole = onnx::model_bytes(model);
  std::mt19937 random(5);
  int refused = 0;
  for (int round = 0; round < 4000; ++round) {
    std::string bytes = whole;
    for (size_t i = 0, changes = 1 + random() % 4; i < changes; ++i)
      bytes[random() % bytes.size()] = static_cast<char>(random());
    std::string error = read_error(folder, bytes);  // another exception ends the test
    if (error == "no error")
      error = error_of([&] { onnx::Module module(onnx::read_model(folder.file("a.onnx"))); });
    refused += error != "no error" ? 1 : 0;
  }
  CHECK(refused > 1000);
  CHECK(refused < 4000);
}

TEST_CASE("lengths near 2^64, deep nesting and wrong kinds in an ONNX file are told") {
  const test::TemporaryFolder folder("onnx_format");
  const auto error = [&](const std::string& bytes) { return read_error(folder, bytes); };
  const uint64_t huge = ~uint64_t{0};
  CHECK(error("\x3a" + varint(huge)) ==
        "the model at byte 11: a field has 18446744073709551615 bytes, the message only 0 more");
  CHECK(error(std::string("\x3a") + std::string(11, '\xff')) ==
        "the model at byte 11: a varint has more than 10 bytes");
  CHECK(error("\x3a\xff") == "the model at byte 2: the message ends in a varint");
  CHECK(error(std::string(1, '\0')) == "the model at byte 1: a field has the number 0");
  CHECK(error("\x3b") ==
        "the model at byte 1: field 7 is of the wire type 3, expected 0, 1, 2 or 5");
  CHECK(error("\x38\x01") ==
        "the model at byte 2: field 7 holds a varint, expected bytes with a length");
  CHECK(error(field(1, "abc")) ==
        "the model at byte 5: field 1 holds bytes with a length, expected a varint");
  // Dimensions and elements that no file holds.
  const auto tensor = [&](const std::string& fields) { return field(7, field(5, fields)); };
  CHECK(error(tensor(field(1, varint(huge)))) ==
        "an initializer at byte 4: tensor  has the shape (-1)");
  CHECK(error(tensor(field(1, std::string(40, '\1')))) ==
        "an initializer at byte 4: tensor  has 40 axes, at most 32 are had");
  CHECK(error(tensor(field(4, "abc"))) ==
        "an initializer at byte 9: field 4 has 3 bytes of packed numbers of 4 bytes");
  CHECK(error(field(7, field(1, ""))) == "a node at byte 4: a node has no operator");
  // Graphs in attributes of nodes of graphs.
  const auto nested = [&](int depth) {
    std::string graph;
    for (int i = 0; i < depth; ++i) graph = field(1, field(4, "If") + field(5, field(6, graph)));
    return field(7, graph);
  };
  CHECK(error(nested(20)) == "no error");
  CHECK(error(nested(30)).ends_with("messages are nested more than 64 deep"));
}

TEST_CASE("an ONNX file of empty messages takes no more memory than its size justifies") {
  const test::TemporaryFolder folder("onnx_format");
  std::string inputs;
  for (int i = 0; i < 100; ++i) inputs += std::string("\x5a\x00", 2);
  CHECK(read_error(folder, field(7, inputs))
            .ends_with("the file of 203 bytes has more than 66 messages"));
}

TEST_CASE("elements of an ONNX tensor of every type are read from raw bytes and from lists") {
  const auto array = [](const onnx::TensorData& data) {
    return onnx::host_array(onnx::element_bytes(data, "").data(),
                            onnx::dtype_of_type(data.type).value(), data.dims);
  };
  const std::vector<std::byte> raw{std::byte{0x01}, std::byte{0x80}, std::byte{0xff},
                                   std::byte{0x3c}};
  const auto of_raw = [&](int64_t type, const Shape& dims) {
    return array({.name = "t", .type = type, .dims = dims, .has_raw = true, .raw = raw});
  };
  CHECK(of_raw(2, {4}).integers == Shape{1, 128, 255, 60});
  CHECK(of_raw(3, {4}).integers == Shape{1, -128, -1, 60});
  CHECK(of_raw(5, {2}).integers == Shape{-32767, 15615});
  CHECK(of_raw(6, {1}).integers == Shape{0x3cff8001});
  CHECK(of_raw(21, {7}).integers == Shape{1, 0, 0, 8, 15, 15, 12});
  CHECK(of_raw(22, {2, 4}).integers == Shape{1, 0, 0, -8, -1, -1, -4, 3});
  const auto listed = [&](int64_t type, const Shape& values) {
    return array({.name = "t", .type = type, .dims = {std::ssize(values)}, .integers = values});
  };
  CHECK(listed(10, {0x3c00, 0xc000}).reals == std::vector<double>{1, -2});
  CHECK(listed(16, {0x3f80}).reals == std::vector<double>{1});
  CHECK(listed(9, {1, 0}).integers == Shape{1, 0});
  CHECK(listed(13, {-1}).integers == Shape{-1});
  const auto error = [&](const onnx::TensorData& data) {
    return error_of([&] { onnx::element_bytes(data, "/tmp"); });
  };
  CHECK(error({.name = "t", .type = 1, .dims = {2}, .floats = {1}}) ==
        "onnx: tensor \"t\" of FLOAT (2): expected 8 bytes of elements, found 4");
  CHECK(error({.name = "t", .type = 8, .dims = {1}, .strings = {"a"}}) ==
        "onnx: tensor \"t\" of STRING (1): no tensor has elements of this type here");
  CHECK(error({.name = "t", .type = 99}).find("type 99") != std::string::npos);
  CHECK(error({.name = "t", .type = 1, .dims = {int64_t{1} << 61}, .floats = {1}})
            .find("more bytes than there are") != std::string::npos);
}

TEST_CASE("external data of an ONNX model lie in its folder and in their file") {
  const test::TemporaryFolder folder("onnx_external");
  std::ofstream(folder.file("w.bin"), std::ios::binary).write("\1\2\3\4\5\6\7\10", 8);
  const auto data = [](const std::map<std::string, std::string>& entries) {
    return onnx::TensorData{
        .name = "w", .type = 2, .dims = {4}, .is_external = true, .external = entries};
  };
  const auto bytes = onnx::element_bytes(
      data({{"location", "w.bin"}, {"offset", "4"}, {"length", "4"}}), folder.path());
  CHECK(std::to_integer<int>(bytes[0]) == 5);
  const auto error = [&](const std::map<std::string, std::string>& entries) {
    const std::string text = error_of([&] { onnx::element_bytes(data(entries), folder.path()); });
    const std::string start = "onnx: tensor \"w\" of UINT8 (4)";
    return text.starts_with(start) ? text.substr(start.size()) : text;
  };
  CHECK(error({}) == " has external data without a location");
  CHECK(error({{"location", "../w.bin"}}) ==
        ": external data in \"../w.bin\", which is not inside of the model's folder");
  CHECK(error({{"location", "/etc/passwd"}}).find("not inside") != std::string::npos);
  CHECK(error({{"location", "w.bin"}, {"offset", "9"}}) ==
        ": external data begin at byte 9 of a file of 8");
  CHECK(error({{"location", "w.bin"}, {"offset", "6"}}) ==
        ": expected 4 bytes of external data at byte 6, found 2");
  CHECK(error({{"location", "w.bin"}, {"offset", "x"}}) ==
        ": the offset of its external data is \"x\"");
  CHECK(has(error({{"location", "none.bin"}}), "none.bin"));
}
