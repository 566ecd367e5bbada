#include "tiny/models/files/load_state.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>

#include "test/error_of.h"
#include "tiny/base/error.h"
#include "tiny/models/files/formats/gguf.h"
#include "tiny/models/files/save_shards.h"
#include "tiny/nn/layers.h"
#include "tiny/tensor/variable.h"

using namespace tiny;
namespace fs = std::filesystem;

namespace {

struct Loading {
  std::string folder = "/tmp/tiny-test-load-XXXXXX", path;
  Tensor a = Tensor::zeros({2, 3}).contiguous().realize(), b = Tensor::zeros({4}).realize();
  StateDict state{{"a.weight", &a}, {"b.weight", &b}};

  Loading() {
    REQUIRE(mkdtemp(folder.data()) != nullptr);
    path = folder + "/model.safetensors";
  }
  ~Loading() { fs::remove_all(folder); }
  void write(const std::vector<std::pair<std::string, Tensor>>& tensors) const {
    std::vector<OutputTensor> out;
    for (const auto& [name, tensor] : tensors) out.push_back(output_tensor(name, tensor));
    save_shards(path, out);
  }
};

}  // namespace

TEST_CASE(
    "what fits is loaded, and the report names what is missing, left over and of another shape") {
  Loading l;
  l.write({{"a.weight", Tensor::full({2, 3}, 2.0f)},
           {"b.weight", Tensor::full({5}, 3.0f)},
           {"c.weight", Tensor::full({5}, 3.0f)},
           {"bn.num_batches_tracked", Tensor::full({}, 3)}});
  Tensor d = Tensor::ones({1}).contiguous().realize();
  l.state.push_back({"d", &d});
  const StateLoadReport report = load_state(l.folder, l.state);
  CHECK(report.loaded == std::vector<std::string>{"a.weight"});
  CHECK(report.missing == std::vector<std::string>{"d"});
  CHECK(report.unexpected == std::vector<std::string>{"c.weight"});
  REQUIRE(report.other_shape.size() == 1);
  CHECK(!report.complete());
  CHECK(report.text() ==
        "missing: d\nunexpected: c.weight\nshape: b.weight is (5) in the file and (4) here\n");
  CHECK(l.a.to_vector<float>() == std::vector<float>(6, 2));
  CHECK(l.b.to_vector<float>() == std::vector<float>(4, 0));
  CHECK(d.to_vector<float>() == std::vector<float>(1, 1));
}

TEST_CASE("names become the state's by prefixes and patterns, values its dtypes") {
  Loading l;
  l.b = l.b.to(kBF16).contiguous().realize();
  l.write({{"model.layers.0.kernel", Tensor::full({2, 3}, 2.0f).to(kF16)},
           {"model.layers.1.kernel", Tensor::full({4}, 1.00390625f)}});
  const StateLoadReport report =
      load_state(l.path, l.state,
                 {.renames = {rename_prefix("model.", ""), rename_prefix("layers.0", "a"),
                              rename_pattern(R"(^layers\.([0-9]+)\.)", "b."),
                              rename_pattern(R"((.*)\.kernel)", "$1.weight")}});
  CHECK(report.complete());
  CHECK(report.text() == "");
  CHECK(l.a.dtype() == kF32);
  CHECK(l.a.to_vector<float>() == std::vector<float>(6, 2));
  CHECK(l.b.dtype() == kBF16);
  CHECK(l.b.to(kF32).to_vector<float>() == std::vector<float>(4, 1));  // a tie goes to even
}

TEST_CASE("quantised tensors of GGUF are loaded into a module") {
  Loading l;
  nn::Linear layer(64, 32);
  const Tensor weight = (mod(Tensor::arange(2048), 255) - 127).to(kF32).reshape({32, 64});
  write_gguf(l.folder + "/a.gguf", {},
             {output_tensor("blk.weight", weight, &stored_type("Q8_0")),
              output_tensor("blk.bias", Tensor::full({32}, 0.5f))});
  const StateLoadReport report = load_state(l.folder + "/a.gguf", layer.state_dict(),
                                            {.renames = {rename_prefix("blk.", "")}});
  CHECK(report.complete());
  const Tensor& loaded = *layer.state_dict()[0].tensor;
  CHECK((loaded - weight).abs().max().item<float>() <= 0.5f);
  CHECK(layer.state_dict()[1].tensor->to_vector<float>() == std::vector<float>(32, 0.5f));
}

TEST_CASE("rules that make two names one, or are no pattern, are errors") {
  Loading l;
  l.write({{"a.weight", Tensor::full({2, 3}, 2.0f)}, {"x.a.weight", Tensor::full({2, 3}, 3.0f)}});
  CHECK(error_of([&] { load_state(l.path, l.state, {.renames = {rename_prefix("x.", "")}}); }) ==
        cat("load: ", l.path, ": a.weight and x.a.weight both become a.weight"));
  CHECK(error_of([] {
          rename_pattern("(", "");
        }).starts_with("rename: ( is no regular expression: "));
  l.write({{std::string(100000, 'a'), Tensor::full({1}, 2.0f)}});
  CHECK(error_of([&] {
          load_state(l.path, l.state, {.renames = {rename_pattern("(a|b)*c", "")}});
        }).starts_with("rename: a name of 100000 bytes, expected at most 1024: aaa"));
  CHECK(l.a.to_vector<float>() == std::vector<float>(6, 0));
}

TEST_CASE("where one tensor of a part cannot be assigned to, none changes") {
  Loading l;
  l.write({{"a.weight", Tensor::full({2, 3}, 2.0f)}, {"b.weight", Tensor::full({9}, 2.0f)}});
  Variable n("n", 1, 9);
  l.b = Tensor::zeros({9}).contiguous().realize().narrow(0, 0, n.bind(4));
  CHECK_THROWS_AS(load_state(l.path, l.state), Error);
  CHECK(l.a.to_vector<float>() == std::vector<float>(6, 0));
}
