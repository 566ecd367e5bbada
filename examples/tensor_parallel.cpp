// Tensor parallelism: the two layers of a transformer's feed-forward block, y = down gelu(up x),
// too wide for one device. Each device has some of the hidden units: rows of `up`, and the columns
// of `down` that read them. What each of them adds to y is summed over the devices, once a pass.
// `tensor_parallel --help` lists the options.
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cxxopts.hpp>
#include <iostream>
#include <string>
#include <vector>

#include "tiny/tiny.h"

namespace {

using namespace tiny;

struct Options {
  std::string device;
  int64_t gpus, width, hidden, batch, steps;
};

double seconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

cxxopts::Options describe_options() {
  cxxopts::Options options("tensor_parallel", "Trains a feed-forward block cut over devices.");
  const auto text = [](const char* standard) {
    return cxxopts::value<std::string>()->default_value(standard);
  };
  auto add = options.add_options();
  add("device", "the first one, such as CPU or CUDA", text(""), "NAME");
  add("gpus", "devices of that kind", text("2"), "N");
  add("width", "of inputs and outputs", text("256"), "N");
  add("hidden", "units between the layers, over all devices", text("1024"), "N");
  add("batch", "rows of a step", text("64"), "N");
  add("steps", "training steps", text("50"), "N");
  add("version", "prints the version");
  add("help", "prints this");
  return options;
}

int64_t number(const cxxopts::ParseResult& parsed, const char* name) {
  const std::string text = parsed[name].as<std::string>();
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  check(error == std::errc() && end == text.data() + text.size() && value >= 1, "--", name, ": '",
        text, "' is no whole number from 1 up");
  return value;
}

struct Block : nn::Module {
  Block(int64_t width, int64_t hidden) : up(width, hidden), down(hidden, width) {}
  Tensor forward(const Tensor& x) override { return down(up(x).gelu()); }
  void state(StateDict& out, const std::string& prefix) override {
    up.state(out, prefix + "up.");
    down.state(out, prefix + "down.");
  }
  // Hidden units in parts: axis 0 of up's weight (hidden, width), axis 1 of down's (width, hidden).
  void shard(const std::vector<std::string>& devices) {
    up.weight.shard_(devices, 0);
    up.bias.shard_(devices, 0);
    down.weight.shard_(devices, 1);
    down.bias.shard_(devices);
  }

  nn::Linear up, down;
};

// Trains the block to do what a fixed matrix does.
void train(const Options& o, int64_t gpus) {
  const EnvOverride device("DEVICE", o.device.empty() ? env_text("DEVICE") : o.device);
  const std::vector<std::string> devices = devices_from(o.device, gpus);
  manual_seed(1);
  Block block(o.width, o.hidden);
  block.shard(devices);
  Tensor x = Tensor::randn({o.batch, o.width});
  Tensor y = x.matmul(Tensor::randn({o.width, o.width})) / std::sqrt(o.width);
  for (Tensor* t : {&x, &y}) t->shard_(devices);
  Adam optimizer(block.tensors(), 1e-3);
  Jit step([&](const Tensor& in, const Tensor& wanted) {
    Tensor loss = mse_loss(block(in), wanted);
    loss.backward();
    optimizer.step({&loss});
    return loss;
  });
  const float first = step(x, y).item<float>();
  step(x, y).item<float>();  // which is captured
  const double begin = seconds();
  Tensor loss;
  for (int64_t i = 0; i < o.steps; ++i) loss = step(x, y);
  const float last = loss.item<float>();
  std::printf("%-24s loss %.5f, then %.5f; %.3f ms a step\n", block.up.weight.device().c_str(),
              first, last, (seconds() - begin) / static_cast<double>(o.steps) * 1e3);
}

}  // namespace

int main(int argc, char** argv) {
  if (print_version("tensor_parallel", argc, argv)) return 0;
  try {
    cxxopts::Options options = describe_options();
    const auto parsed = options.parse(argc, argv);
    if (parsed.count("help")) {
      std::cout << options.help() << '\n' << env_help();
      return 0;
    }
    const Options o{
        parsed["device"].as<std::string>(), number(parsed, "gpus"),  number(parsed, "width"),
        number(parsed, "hidden"),           number(parsed, "batch"), number(parsed, "steps")};
    train(o, 1);
    if (o.gpus > 1) train(o, o.gpus);
    return 0;
  } catch (const std::exception& e) {
    std::cout << std::flush;
    std::cerr << "tensor_parallel: " << e.what() << std::endl;
    return 1;
  }
}
