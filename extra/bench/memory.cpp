// Memory of a training step as it is planned, without running it: ResNet-50 at batch 64,
// GPT-2 at 4 texts of 1024 tokens.
#include <cstdio>

#include "extra/bench/gpt2.h"
#include "extra/bench/networks.h"
#include "extra/bench/timing.h"
#include "runtime/device/device.h"
#include "runtime/schedule/schedule.h"
#include "tiny/base/env.h"
#include "tiny/ir/build.h"

using namespace tiny;

namespace {

std::shared_ptr<const Schedule> schedule_of(const std::vector<Tensor>& tensors) {
  std::vector<Node> roots;
  for (const Tensor& t : tensors) roots.push_back(t.node());
  const Normalized graph = normalize(roots);
  std::vector<int> devices;
  for (Node b : graph.buffers) devices.push_back(b->device);
  return schedule(graph, devices, device_id(env_text("DEVICE")));
}

void show(const char* what, const std::vector<Tensor>& tensors) {
  const double start = bench::seconds();
  const auto s = schedule_of(tensors);
  const double time = bench::seconds() - start;
  const MemoryPlan& m = s->memory;
  std::printf("%s: %zu kernels, %s; peak / sum %.3f, live %.3f GB; scheduled in %.1f ms\n", what,
              s->steps.size(), to_text(m).c_str(),
              static_cast<double>(m.peak) / static_cast<double>(m.sum),
              static_cast<double>(m.live) * 1e-9, time * 1e3);
}

void show_resnet50() {
  const Tensor x = Tensor::from(std::vector<float>(64 * 3 * 224 * 224), {64, 3, 224, 224});
  const Tensor labels = Tensor::from(std::vector<int32_t>(64));
  bench::ResNet50 net(true);
  const Tensor loss = cross_entropy(net(x), labels);
  std::vector<Tensor> step = Tensor::gradient(loss, net.parameters());
  step.push_back(loss);
  show("ResNet-50 gradients, batch 64", step);
  // The same with an update by momentum, in place.
  const NoGrad no_grad;
  std::vector<Tensor> updated{loss};
  for (size_t i = 0; i < net.parameters().size(); ++i) {
    Tensor& p = net.parameters()[i];
    const std::vector<float> zeros(static_cast<size_t>(p.numel()));
    Tensor m = Tensor::from(zeros, to_shape(p.shape()));
    m.assign(m * 0.9 + step[i]);
    p.assign(p.detach() - m * 0.1);
    updated.push_back(m);
    updated.push_back(p);
  }
  show("ResNet-50 training step, batch 64", updated);
}

void show_gpt2() {
  bench::Gpt2 net;
  std::vector<Tensor> parameters;
  for (Tensor* t : net.parameters()) parameters.push_back(*t);
  const Tensor tokens = Tensor::from(std::vector<int32_t>(4 * 1024), {4, 1024});
  const Tensor next = Tensor::from(std::vector<int32_t>(4 * 1024));
  const Tensor loss = cross_entropy(net(tokens).flatten(0, 1), next);
  std::vector<Tensor> all = Tensor::gradient(loss, parameters);
  all.push_back(loss);
  show("GPT-2 gradients, 4 x 1024 tokens", all);
}

}  // namespace

int main() {
  const EnvOverride device("DEVICE", "NULL");
  show_resnet50();
  show_gpt2();
}
