#include "tiny/program/program.h"

#include <doctest/doctest.h>

#include <cstdio>
#include <fstream>

#include "devices/webgpu/webgpu.h"
#include "runtime/program/plan.h"
#include "test/error_of.h"
#include "test/temporary_folder.h"
#include "test/unit/small_models.h"
#include "tiny/base/file.h"
#include "tiny/tiny.h"

using namespace tiny;

namespace {

// A small network with a softmax, of which one output is a view of another.
struct Network {
  nn::Sequential layers{nn::Linear(20, 33), &Tensor::relu, nn::Linear(33, 7)};
  std::vector<Tensor> operator()(const Tensor& x) {
    Tensor scores = layers(x);
    return {scores.softmax(1), scores.permute({1, 0})};
  }
};

std::vector<float> values(const Tensor& t) { return t.to("CPU").to_vector<float>(); }

void check_near(const Tensor& a, const Tensor& b, float tolerance) {
  REQUIRE(to_shape(a.shape()) == to_shape(b.shape()));
  const std::vector<float> x = values(a), y = values(b);
  for (size_t i = 0; i < x.size(); ++i) CHECK(std::abs(x[i] - y[i]) <= tolerance);
}

std::string read_all(const std::string& path) { return InputFile("test", path).read_all(); }

// The devices on which saved programs can run here.
std::vector<std::string> devices() {
  std::vector<std::string> out{"CPU", "EMU:CUDA:sm_80"};
  if (missing_for_webgpu().empty())
    out.push_back("WEBGPU");
  else
    MESSAGE("saved programs for WebGPU are not run: " << missing_for_webgpu());
  return out;
}

}  // namespace

TEST_CASE("a saved program gives what the function gives, on every device that it is saved for") {
  Network network;
  Jit step([&](const Tensor& x) { return network(x); });
  Tensor x = Tensor::randn({5, 20});
  const std::vector<Tensor> expected = step(x);
  for (const std::string& device : devices()) {
    CAPTURE(device);
    const test::TemporaryFolder folder("program");
    save_program(step, folder.file("model"),
                 {.inputs = {"x"}, .outputs = {"p", "turned"}, .device = device});
    const SavedProgram program = load_program(folder.file("model"));
    CHECK(program.device() == device);
    CHECK(program.inputs()[0].name == "x");
    CHECK(program.outputs()[1].shape == Shape{7, 5});
    for (int run = 0; run < 2; ++run) {
      Tensor other = x * (run + 1.0);
      const std::vector<Tensor> out = program({other}), wanted = network(other);
      check_near(out[0], wanted[0], 1e-5F);
      check_near(out[1], wanted[1], 1e-4F);
    }
    CHECK(error_of([&] {
            program({Tensor::zeros({5, 21})});
          }) == "the program's input x is f32 (5,20), given f32 (5,21)");
  }
}

TEST_CASE("a saved program keeps state, and lengths that vary") {
  for (const std::string& device : devices()) {
    CAPTURE(device);
    Tensor total = Tensor::from(std::vector<float>{1, 2, 3, 4}).realize();
    const Variable n("n", 1, 4);
    Jit step([&](const Tensor& x, const Variable& length) {
      total.assign(total + x);
      return std::vector<Tensor>{total.narrow(0, 0, length).sum(0), x.narrow(0, 0, length) * 2};
    });
    Tensor x = Tensor::from(std::vector<float>{10, 20, 30, 40});
    step(x, n.bind(2));  // total: 11 22 33 44
    const test::TemporaryFolder folder("program");
    save_program(step, folder.file("model"), {.weights = {{"total", &total}}, .device = device});
    const SavedProgram program = load_program(folder.file("model"));
    const auto at = [&](int64_t length) { return program({x, n.bind(length).tensor()}); };
    CHECK(values(at(3)[0]) == std::vector<float>{21 + 42 + 63});
    const std::vector<Tensor> out = at(2);
    CHECK(values(out[0]) == std::vector<float>{31 + 62});
    CHECK(values(out[1]) == std::vector<float>{20, 40});
    CHECK(values(total) == std::vector<float>{11, 22, 33, 44});
    CHECK(error_of([&] {
            program({x, Tensor::from(std::vector<int64_t>{5}, {})});
          }) == "the program's input input_1 lies in [1, 4], given 5");
  }
}

TEST_CASE("a language model that is saved with its caches writes the same tokens") {
  const NoGrad no_grad;
  models::Transformer model = test::random_model(test::small_config("llama"));
  const models::ModelConfig& c = model.config();
  constexpr int64_t kCapacity = 24;
  std::vector<models::LayerCache> caches(c.layers.size());
  const auto clear = [&] {
    for (models::LayerCache& cache : caches)
      for (Tensor* t : {&cache.keys, &cache.values})
        *t = Tensor::zeros({1, c.kv_heads, kCapacity, c.head_dim}).contiguous().realize();
  };
  clear();
  const Variable at("at", 0, kCapacity - 1);
  Jit step([&](const Tensor& token, const Variable& first) {
    const Tensor where = first.tensor().reshape({1});
    Tensor logits = model.forward_cached({token.to(kI64),
                                          where.reshape({1, 1}),
                                          where,
                                          Tensor::zeros({1}, kI64),
                                          where + 1,
                                          {where, first + 1}},
                                         caches);
    return std::vector<Tensor>{logits, logits.argmax(-1).to(kI32)};
  });
  const auto write = [&](const auto& run) {
    std::vector<int32_t> tokens{7};
    std::vector<float> all;
    for (int64_t i = 0; i < kCapacity; ++i) {
      const std::vector<Tensor> out = run(Tensor::from(std::vector{tokens.back()}, {1, 1}), i);
      tokens.push_back(out[1].to("CPU").to_vector<int32_t>()[0]);
      for (float v : values(out[0])) all.push_back(v);
    }
    return std::pair(tokens, all);
  };
  const auto [tokens, logits] =
      write([&](const Tensor& t, int64_t i) { return step(t, at.bind(i)); });
  for (const std::string& device : devices()) {
    if (device.starts_with("EMU")) continue;  // slow
    CAPTURE(device);
    const test::TemporaryFolder folder("program");
    save_program(step, folder.file("model"), {.weights = model.state_dict(), .device = device});
    const SavedProgram program = load_program(folder.file("model"));
    const auto [same, others] = write([&](const Tensor& t, int64_t i) {
      return program({t, at.bind(i).tensor()});
    });
    CHECK(same == tokens);
    CHECK(test::largest_difference(others, logits) < 1e-4);
  }
}

TEST_CASE("model.js gives in a browser what the function gives") {
  if (const std::string why = missing_for_webgpu(); !why.empty()) {
    MESSAGE("model.js is not run: " << why);
    return;
  }
  Tensor total = Tensor::from(std::vector<float>{1, 2, 3}).realize();
  const Variable n("n", 1, 3);
  Jit step([&](const Tensor& x, const Variable& length) {
    total.assign(total + x);
    return std::vector<Tensor>{total.narrow(0, 0, length) * 2, x.to(kF16), x.to(kI32).argmax(0)};
  });
  step(Tensor::zeros({3}), n.bind(2));
  const test::TemporaryFolder folder("program");
  export_webgpu(step, folder.file("model"),
                {.inputs = {"x", "n"}, .outputs = {"sums", "half", "at"}});
  const std::string command =
      cat("cd ", TINY_ROOT, " && node test/webgpu/model.mjs ", folder.file("model"),
          R"( '[{"x": [1, 7, 0.5], "n": 2}, {"x": [1, 1, 1], "n": 3}, "reset",)",
          R"( {"x": [0, 0, 0], "n": 1}, {"x": [0, 0, 0], "n": 4}, {"x": [1, 2], "n": 1}]')");
  FILE* pipe = popen(command.c_str(), "r");
  REQUIRE(pipe);
  std::string out;
  for (char part[512]; fgets(part, sizeof part, pipe);) out += part;
  CHECK(pclose(pipe) == 0);
  CHECK(out ==
        "sums [2] 4 18\nhalf [3] 1 7 0.5\nat [] 1\n"
        "sums [3] 6 20 9\nhalf [3] 1 1 1\nat [] 0\n"
        "sums [1] 2\nhalf [3] 0 0 0\nat [] 0\n"
        "error the input n lies in [1,3], given 4\n"
        "error the input x has 3 elements (3), given 2\n");
}

TEST_CASE("what does not depend on the inputs is computed when a program is saved") {
  Tensor w = Tensor::randn({8, 8}).realize(), v = Tensor::randn({8, 8}).realize();
  Jit step([&](const Tensor& x) { return x.matmul(w.matmul(v)); });
  step(Tensor::zeros({2, 8}));
  const test::TemporaryFolder folder("program");
  save_program(step, folder.file("model"), {.device = "CPU"});
  const Plan plan = plan_of_json(read_all(folder.file("model/plan.json")), "plan.json");
  CHECK(plan.steps.size() == 1);
  Tensor x = Tensor::randn({2, 8});
  check_near(load_program(folder.file("model"))({x})[0], x.matmul(w.matmul(v)), 1e-4F);
}

TEST_CASE("programs that cannot be saved say why") {
  const test::TemporaryFolder folder("program");
  const auto saved = [&](auto function, const Tensor& x, const std::string& device) {
    return error_of([&] {
      save_function(
          [&](const std::vector<Tensor>& in) { return std::vector<Tensor>{function(in[0])}; }, {x},
          folder.file("model"), {.device = device});
    });
  };
  const Tensor x = Tensor::zeros({4});
  std::ofstream(folder.file("model")) << "a file";
  CHECK(saved([](const Tensor& t) { return t + 1; }, x, "CPU") ==
        "save_program: " + folder.file("model") + " is there, and is no folder");
  std::remove(folder.file("model").c_str());
  CHECK(saved([](const Tensor& t) { return t + Tensor::rand({4}); }, x, "CPU") ==
        "save_program: the function takes random numbers, which another program has not");
  CHECK(saved([](const Tensor& t) { return t.to(kF64).exp(); }, x, "WEBGPU")
            .starts_with("WGSL has no numbers of 64 bits: kernel "));
  CHECK(saved([](const Tensor& t) { return t * 3; }, Tensor::zeros({4}, kF64), "WEBGPU")
            .find("of f64: use f32") != std::string::npos);
}

TEST_CASE("an export sees as much of a tensor as every device allows, or as it is told") {
  constexpr int64_t kLimit = int64_t{128} << 20;
  const test::TemporaryFolder folder("program");
  const auto save = [&](int64_t most) {
    const auto expanded = [](const std::vector<Tensor>& in) {
      return std::vector<Tensor>{in[0].expand({kLimit / 4 / 1024 + 1, 1024}) + 1};
    };
    ProgramOptions options;
    options.most_buffer_bytes = most;
    export_webgpu_function(expanded, {Tensor::zeros({1, 1024})}, folder.file("page"), options);
  };
  const std::string error = error_of([&] { save(0); });
  CHECK(has(error, "shape (32769,1024) f32, 134221824 bytes"));
  CHECK(has(error, "134217728"));
  CHECK(has(error, "ProgramOptions::most_buffer_bytes"));
  CHECK(has(error_of([&] { save(kLimit + 4092); }), "134221820"));
  CHECK(error_of([&] { save(kLimit + 4096); }) == "no error");
}

TEST_CASE("a plan that is damaged is an error that names the file") {
  Jit step([](const Tensor& x) { return x + 1; });
  step(Tensor::zeros({4}));
  const test::TemporaryFolder folder("program");
  save_program(step, folder.file("model"), {.device = "CPU"});
  const std::string path = folder.file("model/plan.json"), text = read_all(path);
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string other = text;
    REQUIRE(other.find(from) != std::string::npos);
    std::ofstream(path) << other.replace(other.find(from), from.size(), to);
    return error_of([&] { load_program(folder.file("model")); });
  };
  CHECK(changed("tiny program 1", "tiny program 0") ==
        "load_program: " + path + ": the format is not \"tiny program 1\"");
  CHECK(changed("\"kernel\":0", "\"kernel\":7") ==
        "load_program: " + path + ": a step without a kernel or with kernel 7");
  CHECK(changed("\"parts\":[[", "\"parts\":[[99,0],[").find("a part of buffer 99 from byte 0") !=
        std::string::npos);
}
