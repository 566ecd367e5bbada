// Runs an ONNX model: prints its inputs and outputs, runs it with random numbers or those of a
// file, times it and, where onnxruntime-node is installed (extra/onnx_peer.mjs), compares.
//   build/release/onnx-run model.onnx [--inputs x.npz] [--sizes batch=2,length=128] [--runs 20]
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cxxopts.hpp>
#include <iostream>
#include <thread>

#include "extra/bench/timing.h"
#include "extra/onnx_peer.h"
#include "tiny/data/npz.h"
#include "tiny/onnx.h"

using namespace tiny;

namespace {

using Sizes = std::map<std::string, int64_t>;

// "batch=2,length=128" as sizes of named dimensions.
Sizes read_sizes(const std::vector<std::string>& words) {
  Sizes out;
  for (const std::string& word : words) {
    const size_t at = word.find('=');
    check(at != std::string::npos && at > 0, "--sizes: '", word, "' is not name=size");
    out[word.substr(0, at)] = parse_number<int64_t>("sizes", word.substr(at + 1), 0, 1 << 30);
  }
  return out;
}

// A shape for a declared one: dimensions that vary are those given, else 1.
Shape shape_of(const onnx::Port& port, const Sizes& sizes) {
  Shape out;
  check(port.shape.has_value(), "the model says no shape of ", port.name, ": --inputs gives it");
  for (const onnx::Dimension& d : *port.shape) {
    const auto at = sizes.find(d.name);
    out.push_back(d.value >= 0 ? d.value : at != sizes.end() ? at->second : 1);
  }
  return out;
}

Tensor random_input(const onnx::Port& port, const Sizes& sizes) {
  const Shape shape = shape_of(port, sizes);
  if (port.dtype == kVoid || port.dtype.is_float())
    return Tensor::rand(shape, port.dtype == kVoid ? kF32 : port.dtype);
  if (port.dtype.is_bool()) return Tensor::randint(0, 2, shape, kU8) != 0;
  // Small: they may be positions in a table.
  return Tensor::randint(0, 100, shape, kI32).to(port.dtype);
}

std::vector<Tensor> make_inputs(const onnx::Module& model, const std::string& file,
                                const Sizes& sizes) {
  const auto given = file.empty() ? std::map<std::string, Tensor>() : load_npz(file);
  for (const auto& [name, x] : given) {
    const auto is_it = [&key = name](const onnx::Port& port) { return port.name == key; };
    check(std::any_of(model.inputs().begin(), model.inputs().end(), is_it), "--inputs: ", file,
          ": the model has no input ", name);
  }
  std::vector<Tensor> out;
  for (const onnx::Port& port : model.inputs()) {
    const auto at = given.find(port.name);
    out.push_back(at != given.end() ? at->second : random_input(port, sizes));
    out.back() = out.back().contiguous();
    out.back().realize();
  }
  return out;
}

void print_ports(const char* title, const std::vector<onnx::Port>& ports) {
  for (const onnx::Port& port : ports) std::printf("%s %s\n", title, onnx::port_text(port).c_str());
}

void print_outputs(const onnx::Module& model, const std::vector<Tensor>& outputs) {
  for (size_t i = 0; i < outputs.size(); ++i)
    std::printf("%s %s %s\n%s\n", model.outputs()[i].name.c_str(),
                outputs[i].dtype().name().c_str(), std::string(to_text(outputs[i].shape())).c_str(),
                to_string(outputs[i]).c_str());
}

struct RunTimes {
  std::vector<double> own, peer;  // milliseconds
};

void print_times(const RunTimes& times, int threads) {
  const bench::Timing own = bench::summary(times.own);
  std::printf("tiny: %.3f ms, the best %.3f, of %zu runs\n", own.median, own.best,
              times.own.size());
  if (times.peer.empty()) return;
  const bench::Timing peer = bench::summary(times.peer);
  std::printf("onnxruntime, %d threads: %.3f ms, the best %.3f; %.2f x its speed\n", threads,
              peer.median, peer.best, peer.median / own.median);
}

int run(const cxxopts::ParseResult& options) {
  const Arguments given(options);
  const std::string path = given.text("model");
  onnx::Module model = onnx::load(path);
  std::printf("version %d of the default domain, by %s\n", static_cast<int>(model.opset()),
              model.producer().empty() ? "an unknown program" : model.producer().c_str());
  print_ports("input", model.inputs());
  print_ports("output", model.outputs());
  const auto words = options.count("sizes") ? options["sizes"].as<std::vector<std::string>>()
                                            : std::vector<std::string>();
  const auto inputs = make_inputs(model, given.text("inputs"), read_sizes(words));
  const NoGrad no_grad;
  Jit step([&](const std::vector<Tensor>& in) { return model.run(in); });
  std::vector<Tensor> outputs = step(inputs);
  std::vector<Tensor*> all;
  for (Tensor& t : outputs) all.push_back(&t);
  Tensor::realize(all);
  if (given.given("print")) print_outputs(model, outputs);
  const int threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  std::unique_ptr<OnnxPeer> peer;
  if (OnnxPeer::is_installed())
    peer = std::make_unique<OnnxPeer>(path, threads, model.inputs(), inputs);
  else
    std::printf("no onnxruntime-node in build/node_modules: nothing is compared\n");
  RunTimes times;
  for (int64_t i = -2, count = given.whole("runs", 1, 100000); i < count; ++i) {
    const double start = bench::seconds();
    outputs = step(inputs);
    outputs.back().to(kF32).flatten().narrow(0, 0, 1).to_vector<float>();  // waits
    const double own = (bench::seconds() - start) * 1e3;
    const double other = peer ? peer->run() : 0;
    if (i < 0) continue;
    times.own.push_back(own);
    if (peer) times.peer.push_back(other);
  }
  print_times(times, threads);
  if (!peer) return 0;
  double most = 0;
  const auto theirs = peer->finish();
  for (size_t i = 0; i < outputs.size(); ++i)
    most = std::max(most, onnx_difference(outputs[i], theirs.at(model.outputs()[i].name)));
  std::printf("largest difference of an output, over its largest magnitude: %.2e\n", most);
  return most <= given.number("tolerance", 0, 1e9) ? 0 : 1;
}

}  // namespace

int main(int count, char** arguments) {
  if (print_version("onnx-run", count, arguments)) return 0;
  cxxopts::Options options("onnx-run", "runs an ONNX model, times and compares it");
  auto add = options.add_options();
  add("model", "the file", cxxopts::value<std::string>());
  add("inputs", "a file .npz with inputs by name; the others are random",
      cxxopts::value<std::string>());
  add("sizes", "of dimensions that vary: batch=2,length=128 (default 1)",
      cxxopts::value<std::vector<std::string>>());
  add("runs", "how many are timed", cxxopts::value<std::string>()->default_value("20"));
  add("tolerance", "of the comparison with onnxruntime, else the status is 1",
      cxxopts::value<std::string>()->default_value("1e-3"));
  add("print", "prints the outputs");
  add("help", "this text");
  options.parse_positional({"model"});
  options.positional_help("model.onnx");
  try {
    const auto parsed = options.parse(count, arguments);
    if (parsed.count("help") || !parsed.count("model")) {
      std::cout << options.help();
      return parsed.count("help") ? 0 : 2;
    }
    return run(parsed);
  } catch (const std::exception& e) {
    std::cerr << e.what() << '\n';
    return 2;
  }
}
