#include "runtime/schedule/schedule.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <sstream>

#include "test/unit/kernels.h"
#include "test/unit/schedules.h"
#include "tiny/base/env.h"
#include "tiny/nn/functional.h"
#include "tiny/tensor/tensor.h"

using namespace tiny;

namespace {

std::shared_ptr<const Schedule> schedule_of(const std::vector<Tensor>& tensors) {
  std::vector<Node> roots;
  for (const Tensor& t : tensors) roots.push_back(t.node());
  const Normalized graph = normalize(roots);
  std::vector<int> devices;
  for (Node b : graph.buffers) devices.push_back(b->device);
  return schedule(graph, devices, device_id("NULL"));
}

// Buffers on the null device: nothing is computed here.
Tensor input(const Shape& shape) {
  return Tensor::from(std::vector<float>(static_cast<size_t>(numel(shape))), shape, "NULL");
}

size_t kernels(const std::vector<Tensor>& tensors) { return schedule_of(tensors)->steps.size(); }

Tensor layer_norm(const Tensor& x) {
  const Tensor centered = x - x.mean(-1, true);
  return centered / (centered.square().mean(-1, true) + 1e-5f).sqrt();
}

}  // namespace

TEST_CASE("numbers of kernels of common graphs") {
  const Tensor x = input({256, 128});
  CHECK(kernels({((x + 1.0f) * 2.0f).sin()}) == 1);
  CHECK(kernels({x.softmax(-1)}) == 1);
  CHECK(kernels({x.log_softmax(-1)}) == 1);
  CHECK(kernels({layer_norm(x)}) == 1);
  CHECK(kernels({x.t()}) == 0);
  CHECK(kernels({x.reshape({128, 256}).slice({2}, {9})}) == 0);
  CHECK(kernels({(x.matmul(input({128, 64})) + input({64})).relu()}) == 1);
}

TEST_CASE("batch norm in training is statistics and a normalisation") {
  const Tensor x = input({32, 16, 8, 8});
  const Tensor mean = x.mean({0, 2, 3}, true);
  const Tensor var = (x - mean).square().mean({0, 2, 3}, true);
  const Tensor y = (x - mean) / (var + 1e-5f).sqrt();
  CHECK(kernels({y, mean, var}) <= 2);
}

TEST_CASE("two outputs that read one input are one kernel with two results") {
  const Tensor x = input({256, 128});
  const auto s = schedule_of({x + 1.0f, x * 2.0f});
  CHECK(s->steps.size() == 1);
  CHECK(s->results[0].value != s->results[1].value);
  CHECK(s->steps[0].values.size() == 3);
}

TEST_CASE("the same graph on other buffers is the same schedule") {
  const Tensor a = input({64, 32}), b = input({64, 32});
  const auto first = schedule_of({a.softmax(-1).sum()}),
             second = schedule_of({b.softmax(-1).sum()});
  CHECK(first == second);
  CHECK(first != schedule_of({input({64, 33}).softmax(-1).sum()}));
}

TEST_CASE("one buffer read twice is another graph than two buffers") {
  const Tensor a = input({64}), b = input({64});
  CHECK(schedule_of({a + b}) != schedule_of({a + a}));
}

TEST_CASE("a setting that changes kernels changes the schedule's key") {
  const Tensor a = input({64, 32});
  const auto fused = schedule_of({a.softmax(-1)});
  const EnvOverride off("FUSE", "0");
  const auto apart = schedule_of({a.softmax(-1)});
  CHECK(fused != apart);
  CHECK(apart->steps.size() > fused->steps.size());
}

TEST_CASE("normalizing puts parameters in the place of buffers, in order") {
  const Tensor a = input({4}), b = input({4});
  const Tensor c = a * b + a;
  Node root = c.node();
  const Normalized n = normalize(std::span(&root, 1));
  REQUIRE(n.buffers.size() == 2);
  CHECK(n.buffers[0] == a.node());
  CHECK(n.buffers[1] == b.node());
  CHECK(test::count_op(n.roots[0], Op::Buffer) == 0);
  CHECK(test::count_op(n.roots[0], Op::Param) == 2);
}

TEST_CASE("kernels have the names of the user's operations") {
  const auto s = schedule_of({input({64, 32}).softmax(-1)});
  CHECK(s->steps[0].name.find("softmax") != std::string::npos);
}

TEST_CASE("an assignment takes over the memory of the old value where nobody reads it elsewhere") {
  Tensor x = input({64}), y = input({8, 8});
  x.assign(x * 2.0f);
  CHECK(schedule_of({x})->values.back().in_place == 0);
  y.assign(y.t());
  for (const Value& v : schedule_of({y})->values) CHECK(v.in_place == -1);
}

TEST_CASE("a schedule has a text with a line for each kernel") {
  const auto s = schedule_of({input({6}) + 1.0f});
  CHECK(to_text(*s) == s->steps[0].name + " f32[6] f32[6]\n");
}

namespace {

constexpr const char* kGpu = "EMU:CUDA:sm_90a";

Tensor zeros_on(const std::string& device, const Shape& shape, DType dtype) {
  const std::vector<std::byte> bytes(static_cast<size_t>(numel(shape)) * dtype.size());
  return Tensor::from_bytes(bytes.data(), dtype, shape, device);
}

// Texts of all steps but copies, whose order copies may change.
std::vector<std::string> kernels_of(const std::vector<Tensor>& tensors) {
  std::vector<std::string> out;
  std::istringstream lines(to_text(*schedule_of(tensors)));
  for (std::string line; std::getline(lines, line);)
    if (!line.starts_with("copy ")) out.push_back(line);
  std::sort(out.begin(), out.end());
  return out;
}

std::vector<std::string> both(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  std::sort(a.begin(), a.end());
  return a;
}

}  // namespace

TEST_CASE("layouts of a GPU's product are a GPU's wherever its operands come from") {
  const auto x = [](const std::string& device) {
    return zeros_on(device, {2047, 2047}, kBF16);  // rows at no multiple of 16 bytes: packed
  };
  const auto alone = kernels_of({x(kGpu).matmul(x(kGpu))});
  CHECK(alone.size() == 3);
  CHECK(kernels_of({x(kGpu).matmul(x("CPU").to(kGpu))}) == alone);
  CHECK(kernels_of({x("CPU").to(kGpu).matmul(x(kGpu))}).size() == alone.size());
  CHECK(kernels_of({(x("CPU") + 1).to(kGpu).matmul(x(kGpu)).to("CPU")}).size() == alone.size() + 1);
}

TEST_CASE("what a CPU and a GPU compute in one graph has the kernels that it has alone") {
  const auto product = [](const std::string& device) {
    return zeros_on(device, {2047, 2047}, kBF16).matmul(zeros_on(device, {2047, 2047}, kBF16));
  };
  const auto convolution = [](const std::string& device) {
    return conv2d(zeros_on(device, {64, 3, 64, 64}, kBF16), zeros_on(device, {64, 3, 7, 7}, kBF16),
                  {}, {.stride = {2}, .padding = {3}});
  };
  for (const auto& work : {std::function<Tensor(const std::string&)>(product),
                           std::function<Tensor(const std::string&)>(convolution)}) {
    const auto cpu = kernels_of({work("CPU")}), gpu = kernels_of({work(kGpu)});
    CHECK(cpu != gpu);
    CHECK(kernels_of({work("CPU"), work(kGpu)}) == both(cpu, gpu));
    CHECK(kernels_of({work(kGpu), work("CPU")}) == both(cpu, gpu));
  }
}

TEST_CASE("kernels that differ only in which part of a tensor they read are one kernel") {
  const Tensor x = input({4, 64});
  const auto kernel_of = [](const Tensor& t) { return schedule_of({t})->steps.at(0); };
  const auto row = [&](int64_t i) { return kernel_of(x.select(0, i).sin()); };
  CHECK(row(1).kernel.get() == row(3).kernel.get());
  CHECK(row(3).offset(1) == 3 * 64 * 4);
  CHECK(row(0).kernel.get() == row(3).kernel.get());
  const Tensor seed = input({8});
  const auto scaled = [&](const Tensor& by) { return kernel_of(seed * by); };
  CHECK(scaled(x.flatten().select(0, 1)).kernel.get() ==
        scaled(x.flatten().select(0, 77)).kernel.get());
  // A part that is in several pieces, begins where vectors do not, or is not all that is read.
  CHECK(kernel_of(x.narrow(1, 32, 32).sin()).offsets.empty());
  CHECK(kernel_of(x.flatten().narrow(0, 4, 64).sin()).offsets.empty());
  CHECK(kernel_of(x.select(0, 1) + x.select(0, 2)).offsets.empty());
}

TEST_CASE("many tensors are joined by kernels that each read few") {
  for (const int64_t axis : {0, 1}) {
    std::vector<Tensor> parts;
    for (int i = 0; i < 600; ++i) parts.push_back(zeros_on(kGpu, {2, 3}, kF32) + i);
    const auto made = test::schedule_on(kGpu, {Tensor::stack(parts, axis)});
    for (const Step& s : made->steps) CHECK(s.values.size() <= 33);
    CHECK(made->steps.size() == 19 + 1);
  }
  std::vector<Tensor> parts;
  std::vector<float> expected;
  for (int i = 0; i < 100; ++i) {
    parts.push_back(Tensor::from(std::vector<float>{i * 2.0f, i * 2.0f + 1}).reshape({1, 2}));
    expected.insert(expected.end(), {i * 2.0f, i * 2.0f + 1});
  }
  CHECK(Tensor::cat(parts).to_vector<float>() == expected);
  const Tensor x = Tensor::arange(0, 100, 1, kF32).realize().requires_grad_();
  std::vector<Tensor> pieces;
  for (int i = 0; i < 100; ++i) pieces.push_back(x.narrow(0, 99 - i, 1) * i);
  Tensor::cat(pieces).sum().backward();
  for (int i = 0; i < 100; ++i) CHECK(x.grad().to_vector<float>()[i] == 99 - i);
}

TEST_CASE(
    "scheduling makes as many nodes for a layer of a deep graph as for one of a shallow one") {
  // All layers add to one value, of which the gradient of each layer's weights is made. Widths are
  // different ones, so that no nodes are those of another graph.
  const auto nodes_made = [](int layers, int64_t width) {
    Tensor x = input({64, width});
    std::vector<Tensor> weights;
    for (int i = 0; i < layers; ++i) {
      weights.push_back(input({width, width}).requires_grad_());
      x = x + layer_norm(x).matmul(weights.back());
    }
    const std::vector<Tensor> gradients = Tensor::gradient(x.square().sum(), weights);
    const size_t before = Arena::global().size();
    schedule_of(gradients);
    return static_cast<double>(Arena::global().size() - before);
  };
  const double few = nodes_made(16, 32), many = nodes_made(48, 40);
  CHECK(many / 48 < 1.5 * few / 16);
}
