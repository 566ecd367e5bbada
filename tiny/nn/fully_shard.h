// Training with everything cut over devices: parameters, their gradients and the optimizer's state.
#pragma once
#include <string>
#include <vector>

#include "tiny/nn/layers.h"

namespace tiny {

struct FullyShardOptions {
  int64_t least = 4096;  // tensors of fewer elements stay whole on each device
};

// Cuts the tensors over the devices, each along its first axis, or along its longest one where that
// has fewer positions than there are devices (ZeRO stage 3, PyTorch's fully_shard; S. Rajbhandari
// et al., arXiv 1910.02054):
//
//   fully_shard(model, devices);  // before an optimizer takes the tensors
//   AdamW optimizer(model.tensors(), 3e-4);
//   Tensor loss = cross_entropy(model(x.shard(devices, 0)), labels.shard(devices, 0));
//   loss.backward();
//   optimizer.step({&loss});
//
// What a layer uses is gathered on each device where it meets a batch that is cut over the devices,
// one use ahead, and freed behind it; the backward gathers it again. Gradients are
// reduce-scattered, and each device updates its own part. Devices are those of Tensor::shard; with
// rank_devices() each process has one. With one device the tensors move there whole. Error for no
// device, one that is named twice and a tensor without elements.
void fully_shard(nn::Module& module, const std::vector<std::string>& devices,
                 const FullyShardOptions& options = {});
void fully_shard(const std::vector<Tensor*>& tensors, const std::vector<std::string>& devices,
                 const FullyShardOptions& options = {});

}  // namespace tiny
