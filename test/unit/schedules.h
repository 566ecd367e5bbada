// Schedules of tensors for a device, whether their inputs lie there or not.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "runtime/analysis/views.h"
#include "runtime/schedule/schedule.h"
#include "tiny/tensor/tensor.h"

namespace tiny::test {

inline std::shared_ptr<const Schedule> schedule_on(const std::string& device,
                                                   const std::vector<Tensor>& tensors) {
  std::vector<Node> roots;
  for (const Tensor& t : tensors) roots.push_back(resolved(t.node()));
  const Normalized graph = normalize(roots);
  const std::vector<int> devices(graph.buffers.size(), device_id(device));
  return schedule(graph, devices, device_id(device));
}

}  // namespace tiny::test
