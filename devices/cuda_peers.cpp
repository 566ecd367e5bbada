// Copies between a GPU and other devices.
#include "devices/cuda.h"
#include "tiny/error.h"

namespace tiny {

// Lets copies go from the peer's memory to this GPU without the host, and kernels read it, where
// the machine can.
bool CudaDevice::reach(CudaDevice& peer) {
  std::lock_guard lock(ordering_);
  const auto [at, fresh] = reached_.try_emplace(&peer, false);
  int can = 0;
  if (!fresh) return at->second;
  if (cuda_.device_can_access(&can, ordinal_, peer.ordinal_) != kCuSuccess || !can) return false;
  const CudaScope here(cuda_, context_);
  const int status = cuda_.context_enable_peer(peer.context_, 0);
  if (status != kCuPeerAccessAlreadyEnabled)
    check_cuda(status, "let ", name_, " read the memory of ", peer.name_);
  const CudaScope scope(cuda_, peer.context_);
  peer.memory_->allow_access(ordinal_);
  return at->second = true;
}

bool CudaDevice::reads(Device& peer) {
  auto* gpu = dynamic_cast<CudaDevice*>(&peer);
  return gpu && (gpu == this || reach(*gpu));
}

void CudaDevice::meet(std::span<Device* const> devices) {
  std::vector<CudaDevice*> all;
  for (Device* d : devices) all.push_back(&dynamic_cast<CudaDevice&>(*d));
  for (CudaDevice* d : all) d->mark_order();
  for (CudaDevice* d : all)
    for (CudaDevice* other : all)
      if (other != d) d->wait_for_order(*other);
}

// Marks what this GPU has been given to do so far, for others to wait for.
void CudaDevice::mark_order() {
  const CudaScope scope(cuda_, context_);
  std::lock_guard lock(ordering_);
  check_cuda(cuda_.event_record(order_, compute_), "record an event on ", name_);
}

void CudaDevice::wait_for_order(CudaDevice& other) {
  const CudaScope scope(cuda_, context_);
  std::lock_guard lock(other.ordering_);
  check_cuda(cuda_.stream_wait(compute_, other.order_, 0), "order two streams");
}

bool CudaDevice::copy_from(Device& source, void* to, const void* from, size_t bytes) {
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
bool CudaDevice::transfer(std::span<const Transfer> all) {
  struct Copy {
    CudaDevice *to, *from;
  };
  std::vector<Copy> copies;
  std::set<CudaDevice*> involved, receiving;
  for (const Transfer& t : all) {
    copies.push_back(
        {dynamic_cast<CudaDevice*>(t.to_device), dynamic_cast<CudaDevice*>(t.from_device)});
    const auto [to, from] = copies.back();
    if (!to || !from || to == from) return false;
    involved.insert({to, from});
    receiving.insert(to);
  }
  for (CudaDevice* d : involved) d->mark_order();
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].bytes == 0) continue;
    const auto [to, from] = copies[i];
    to->reach(*from);
    to->wait_for_order(*from);
    const CudaScope scope(cuda_, to->context_);
    check_cuda(cuda_.copy_peer(reinterpret_cast<CuAddress>(all[i].to), to->context_,
                               reinterpret_cast<CuAddress>(all[i].from), from->context_,
                               all[i].bytes, to->compute_),
               "copy ", all[i].bytes, " bytes from ", from->name_, " to ", to->name_);
  }
  for (CudaDevice* d : receiving) d->mark_order();
  for (const auto& [to, from] : copies) from->wait_for_order(*to);
  return true;
}

}  // namespace tiny
