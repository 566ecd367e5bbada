// Speed of ONNX models on the CPU beside onnxruntime (extra/onnx_peer.mjs says how to install it):
// ResNet-50, MobileNetV2 and BERT-base with random weights, in runs that take turns. One JSON line
// for each; an argument selects names that contain it.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <thread>

#include "extra/bench/onnx_models.h"
#include "extra/bench/timing.h"
#include "extra/onnx_peer.h"
#include "tiny/onnx.h"

using namespace tiny;
using namespace tiny::bench;

namespace {

struct Row {
  const char* name;
  std::function<onnx::Model(OnnxBuilder&)> make;
  int runs;
};

const Row kRows[] = {
    {"resnet50 1x3x224x224", [](OnnxBuilder& b) { return resnet50(b, 1); }, 20},
    {"mobilenet_v2 1x3x224x224", [](OnnxBuilder& b) { return mobilenet_v2(b, 1); }, 100},
    {"bert_base 1x128", [](OnnxBuilder& b) { return bert(b, {}); }, 15},
};

void measure(const Row& row) {
  const std::string path =
      (std::filesystem::temp_directory_path() / cat("tiny-bench-", getpid(), ".onnx")).string();
  {
    OnnxBuilder builder;
    onnx::write_model(path, row.make(builder));
  }
  onnx::Module model = onnx::load(path);
  const onnx::Port& port = model.inputs()[0];
  Shape shape;
  for (const onnx::Dimension& d : *port.shape) shape.push_back(d.value);
  Tensor x = port.dtype.is_float() ? Tensor::rand(shape) : Tensor::randint(0, 30000, shape);
  x = x.contiguous();
  x.realize();
  const int threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  const NoGrad no_grad;
  Jit step([&](const Tensor& input) { return model(input); });
  Tensor y = step(x);
  OnnxPeer peer(path, threads, model.inputs(), {x});
  std::vector<double> own, theirs;
  for (int i = -2; i < row.runs; ++i) {
    const double start = bench::seconds();
    y = step(x);
    y.flatten().narrow(0, 0, 1).to_vector<float>();  // waits
    const double mine = (bench::seconds() - start) * 1e3, other = peer.run();
    if (i < 0) continue;
    own.push_back(mine);
    theirs.push_back(other);
  }
  const double difference = onnx_difference(y, peer.finish().at(model.outputs()[0].name));
  const Timing a = summary(own), b = summary(theirs);
  std::printf(
      "{\"name\": \"onnx %s\", \"ms\": %.3f, \"best_ms\": %.3f, \"peer_ms\": %.3f, "
      "\"peer_best_ms\": %.3f, \"speedup\": %.3f, \"kernels\": %zu, "
      "\"difference\": %.1e}\n",
      row.name, a.median, a.best, b.median, b.best, b.median / a.median, step.statistics().kernels,
      difference);
  std::fflush(stdout);
  std::filesystem::remove(path);
}

}  // namespace

int main(int count, char** arguments) {
  if (!OnnxPeer::is_installed()) {
    std::printf("no onnxruntime-node in build/node_modules: nothing to compare with\n");
    return 0;
  }
  for (const Row& row : kRows)
    if (count < 2 || std::strstr(row.name, arguments[1]) != nullptr) measure(row);
}
