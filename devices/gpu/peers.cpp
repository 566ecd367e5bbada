// Copies between a GPU and other devices, and all-reduces by a library.
#include <algorithm>

#include "devices/gpu/gpu.h"
#include "tiny/base/error.h"

namespace tiny {

// Lets copies go from the peer's memory to this GPU without the host, and kernels read it, where
// the machine can.
bool GpuDevice::reach(GpuDevice& peer) {
  std::lock_guard lock(ordering_);
  const auto [at, fresh] = reached_.try_emplace(&peer, false);
  int can = 0;
  if (!fresh) return at->second;
  if (driver_.device_can_access(&can, ordinal_, peer.ordinal_) != kGpuSuccess || !can) return false;
  const GpuScope here(driver_, context_);
  const int status = driver_.context_enable_peer(peer.context_, 0);
  if (status != kGpuPeerAccessAlreadyEnabled)
    driver_.check(status, "let ", name_, " read the memory of ", peer.name_);
  const GpuScope scope(driver_, peer.context_);
  peer.memory_->allow_access(ordinal_);
  return at->second = true;
}

bool GpuDevice::reads(Device& peer) {
  auto* gpu = dynamic_cast<GpuDevice*>(&peer);
  return gpu && &gpu->driver_ == &driver_ && (gpu == this || reach(*gpu));
}

void GpuDevice::barrier(std::span<Device* const> devices) {
  std::vector<GpuDevice*> all;
  for (Device* d : devices) all.push_back(&dynamic_cast<GpuDevice&>(*d));
  for (GpuDevice* d : all) d->mark_order();
  for (GpuDevice* d : all)
    for (GpuDevice* other : all)
      if (other != d) d->wait_for_order(*other);
}

std::shared_ptr<PendingAllReduce> GpuDevice::add_by_library(const Nccl& library,
                                                            std::span<const AllReduce> sums) {
  if (std::ranges::any_of(sums[0].devices, [](const Device* d) { return d->is_remote; }))
    return add_with_ranks(library, sums);
  std::vector<NcclSum> all;
  for (const AllReduce& s : sums)
    if (s.by == SumBy::Library) all.push_back({s.from, s.to, s.dtype, s.count});
  if (all.empty()) return nullptr;
  std::vector<int> ordinals;
  std::vector<GpuStream> streams;
  for (Device* d : sums[0].devices) {
    auto& gpu = dynamic_cast<GpuDevice&>(*d);
    ordinals.push_back(gpu.ordinal_);
    streams.push_back(gpu.compute_);
  }
  const GpuScope scope(driver_, context_);  // to which the library leaves this thread
  library.sum(ordinals, streams, all);
  return nullptr;
}

// Marks what this GPU has been given to do so far, for others to wait for.
void GpuDevice::mark_order() {
  const GpuScope scope(driver_, context_);
  std::lock_guard lock(ordering_);
  driver_.check(driver_.event_record(order_, compute_), "record an event on ", name_);
}

void GpuDevice::wait_for_order(GpuDevice& other) {
  const GpuScope scope(driver_, context_);
  std::lock_guard lock(other.ordering_);
  driver_.check(driver_.stream_wait(compute_, other.order_, 0), "order two streams");
}

bool GpuDevice::copy_from(Device& source, void* to, const void* from, size_t bytes) {
  if (&source == this) return copy(to, from, bytes), true;
  if (source.target().kind == Target::Kind::Cpu) {
    source.synchronize();
    return upload(to, from, bytes), true;
  }
  const Transfer one{this, to, &source, from, bytes};
  return transfer({&one, 1});
}

// Each copy comes after all that its two GPUs had to do, and before what they do next: the source
// may free the memory. Copies wait for no other copy, so that both directions of a link are used.
bool GpuDevice::transfer(std::span<const Transfer> all) {
  struct Copy {
    GpuDevice *to, *from;
  };
  std::vector<Copy> copies;
  std::set<GpuDevice*> involved, receiving;
  for (const Transfer& t : all) {
    copies.push_back(
        {dynamic_cast<GpuDevice*>(t.to_device), dynamic_cast<GpuDevice*>(t.from_device)});
    const auto [to, from] = copies.back();
    if (!to || !from || to == from || &to->driver_ != &from->driver_) return false;
    involved.insert({to, from});
    receiving.insert(to);
  }
  for (GpuDevice* d : involved) d->mark_order();
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].bytes == 0) continue;
    const auto [to, from] = copies[i];
    to->reach(*from);
    to->wait_for_order(*from);
    const GpuScope scope(driver_, to->context_);
    driver_.check(driver_.copy_peer(reinterpret_cast<GpuAddress>(all[i].to), to->context_,
                                    reinterpret_cast<GpuAddress>(all[i].from), from->context_,
                                    all[i].bytes, to->compute_),
                  "copy ", all[i].bytes, " bytes from ", from->name_, " to ", to->name_);
  }
  for (GpuDevice* d : receiving) d->mark_order();
  for (const auto& [to, from] : copies) from->wait_for_order(*to);
  return true;
}

}  // namespace tiny
