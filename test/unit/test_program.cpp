#include "tiny/program/program.h"

#include <doctest/doctest.h>

#include <fstream>

#include "devices/webgpu/webgpu.h"
#include "runtime/program/plan.h"
#include "test/error_of.h"
#include "test/temporary_folder.h"
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
  CHECK(saved([](const Tensor& t) { return t + Tensor::rand({4}); }, x, "CPU") ==
        "save_program: the function takes random numbers, which another program has not");
  CHECK(saved([](const Tensor& t) { return t.to(kF64).exp(); }, x, "WEBGPU")
            .starts_with("WGSL has no numbers of 64 bits: kernel "));
  CHECK(saved([](const Tensor& t) { return t * 3; }, Tensor::zeros({4}, kI64), "WEBGPU")
            .find("use i32 (x.to(kI32)) there") != std::string::npos);
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
