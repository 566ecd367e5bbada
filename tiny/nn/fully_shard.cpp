#include "tiny/nn/fully_shard.h"

#include <algorithm>

#include "tiny/ir/build.h"

namespace tiny {

namespace {

int axis_to_cut(const Tensor& t, int64_t parts) {
  if (t.size(0) >= parts) return 0;
  const Ints shape = t.shape();
  return static_cast<int>(std::max_element(shape.begin(), shape.end()) - shape.begin());
}

}  // namespace

void fully_shard(const std::vector<Tensor*>& tensors, const std::vector<std::string>& devices,
                 const FullyShardOptions& options) {
  for (Tensor* t : tensors) {
    check(t->numel() > 0, "fully_shard: a tensor of shape ", to_text(t->shape()),
          " has no elements");
    const LabelScope label("fully_shard");
    const Tensor whole = t->detach().shard(devices);  // says what is wrong with the devices
    const bool is_cut = devices.size() > 1 && t->rank() > 0 && t->numel() >= options.least;
    const bool wanted = t->requires_grad();
    const int axis = is_cut ? axis_to_cut(*t, static_cast<int64_t>(devices.size())) : -1;
    if (is_cut)  // the part of its own device is memory of its own too
      *t = Tensor(build::shard(t->detach().node(), whole.node()->device, axis, true)).contiguous();
    else
      *t = whole;
    t->realize();
    if (wanted) t->requires_grad_();
  }
}

void fully_shard(nn::Module& module, const std::vector<std::string>& devices,
                 const FullyShardOptions& options) {
  std::vector<Tensor*> tensors;
  for (Tensor* t : module.tensors())
    if (std::find(tensors.begin(), tensors.end(), t) == tensors.end()) tensors.push_back(t);
  fully_shard(tensors, devices, options);
}

}  // namespace tiny
