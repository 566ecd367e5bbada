// Computing tensors in less memory than their plan takes.
#pragma once
#include <algorithm>
#include <string>
#include <vector>

#include "runtime/device/buffer.h"
#include "runtime/schedule/schedule.h"
#include "tiny/base/env.h"
#include "tiny/base/error.h"
#include "tiny/tensor/tensor.h"

namespace tiny::test {

// A limit for the device that leaves the share of what computing the tensors at once takes besides
// its inputs.
inline std::string little_memory(const std::vector<Tensor*>& tensors, const std::string& device,
                                 double share) {
  std::vector<Node> roots;
  for (const Tensor* t : tensors) roots.push_back(t->node());
  const Normalized graph = normalize(roots);
  std::vector<int> devices;
  for (Node b : graph.buffers) devices.push_back(b->device);
  const int id = device_id(device);
  const auto added = schedule(graph, devices, id)->memory.added;
  const auto own = added.find(id);
  const double bytes = own == added.end() ? 0 : share * static_cast<double>(own->second);
  return std::to_string(bytes_held(find_device(device)) +
                        std::max<int64_t>(1, static_cast<int64_t>(bytes)));
}

// Realizes the tensors in as little of that as computing again allows, in steps.
inline void realize_in_little_memory(const std::vector<Tensor*>& tensors) {
  std::string device;  // of the first that is not made of constants alone
  for (const Tensor* t : tensors)
    if (device.empty()) device = t->device();
  if (device.empty()) return Tensor::realize(tensors);
  for (const double share : {0.3, 0.5, 0.65, 0.75, 0.85}) {
    const EnvOverride limit("MEMORY_LIMIT", little_memory(tensors, device, share));
    try {
      return Tensor::realize(tensors);
    } catch (const DeviceError&) {  // nothing has been computed
    }
  }
  Tensor::realize(tensors);
}

}  // namespace tiny::test
