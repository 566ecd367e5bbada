#include "runtime/launch/check_nan.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <utility>

#include "codegen/kernel/facts.h"
#include "runtime/device/buffer.h"
#include "runtime/launch/launch.h"
#include "runtime/realize/realize.h"
#include "tiny/base/env.h"
#include "tiny/base/error.h"
#include "tiny/base/thread.h"
#include "tiny/ir/build.h"
#include "tiny/ir/print.h"
#include "tiny/rewrite/rebuild.h"

namespace tiny {

namespace {

using Bytes = std::vector<std::byte>;

struct NanFinding {
  std::string text;
};
std::string& finding() { return of_thread<NanFinding>().text; }
thread_local bool locating = false;  // kernels that only look for the operation are not checked

double element(const Bytes& bytes, DType t, size_t i) {
  const auto at = [&](auto value) {
    std::memcpy(&value, &bytes[i * sizeof value], sizeof value);
    return value;
  };
  switch (t.scalar) {
    case Scalar::F8E4M3:
    case Scalar::F8E5M2: return f8_to_f32(at(uint8_t{}), t.scalar);
    case Scalar::F16: return f16_to_f32(at(uint16_t{}));
    case Scalar::BF16: return bf16_to_f32(at(uint16_t{}));
    case Scalar::F32: return at(float{});
    default: return at(double{});
  }
}

// The first element that is a NaN or infinite; -1 if there is none.
int64_t find_bad(const Bytes& bytes, DType t) {
  if (!t.is_float()) return -1;
  const size_t count = bytes.size() / static_cast<size_t>(t.size());
  for (size_t i = 0; i < count; ++i)
    if (!std::isfinite(element(bytes, t, i))) return static_cast<int64_t>(i);
  return -1;
}

// The values of a node above buffers, computed in kernels of its own.
Bytes values_of(Node n, int device) {
  Node root = build::contiguous(n);
  const NodeRef keep(root);
  const Normalized graph = normalize(std::span(&root, 1));
  std::vector<int> devices;
  std::vector<std::shared_ptr<Buffer>> inputs;
  for (Node b : graph.buffers) {
    devices.push_back(b->device);
    inputs.push_back(b->arg<BufferArg>().buffer);
  }
  const auto schedule_of_it = schedule(graph, devices, device);
  const auto made = run(*schedule_of_it, inputs);
  Bytes out(static_cast<size_t>(numel(n->shape())) * static_cast<size_t>(n->dtype.size()));
  if (!made[0]) return out;  // a view of constants
  made[0]->device().synchronize();
  made[0]->download(out.data());
  return out;
}

}  // namespace

bool checks_nan() { return !locating && env_int("CHECK_NAN") != 0; }

NanCheck::NanCheck(const Schedule& s, const Step& step, const Kernel& kernel,
                   const std::vector<void*>& args)
    : schedule_(s), step_(step), kernel_(kernel), args_(args), before_(step.values.size()) {
  if (!finding().empty()) return;
  const std::vector<bool> reads = read_slots(step);
  for (size_t i = 0; i < reads.size(); ++i) {
    if (!reads[i]) continue;
    before_[i] = read(i);
    is_finite_ &= find_bad(before_[i], s.values[step.values[i]].dtype) < 0;
  }
}

Bytes NanCheck::read(size_t slot) const {
  int64_t bytes = 0;
  for (Node n : topological(step_.kernel.get()))
    if (n->op == Op::Param && static_cast<size_t>(slot_of(n)) == slot)
      bytes = std::max(bytes, bytes_of(n->dtype, numel(n->shape())));
  Bytes out(static_cast<size_t>(bytes));
  Device& device = find_device(device_name(step_.device));
  device.synchronize();
  if (!out.empty()) device.download(out.data(), args_[slot], out.size());
  return out;
}

// Elements beyond a length keep what the memory held before.
bool NanCheck::leaves_out(size_t slot) const {
  const auto stores = step_.kernel->srcs();
  return std::any_of(stores.begin(), stores.end(), [&](Node s) {
    return s->num_src > 2 && static_cast<size_t>(slot_of(s->src(0))) == slot;
  });
}

void NanCheck::look_at_results() {
  if (!is_finite_ || !finding().empty()) return;
  const std::vector<bool> writes = written_slots(step_);
  for (size_t i = 0; i < writes.size(); ++i) {
    if (!writes[i] || leaves_out(i)) continue;
    const Value& v = schedule_.values[step_.values[i]];
    const Bytes bytes = read(i);
    const int64_t bad = find_bad(bytes, v.dtype);
    if (bad < 0) continue;
    finding() =
        cat("CHECK_NAN: ", kernel_.name, " (", step_.operations, ") on ", device_name(step_.device),
            " made ", element(bytes, v.dtype, static_cast<size_t>(bad)),
            " from finite values, element ", bad, " of ", v.dtype, " x ", v.size);
    finding() += locate();
    return;
  }
}

// Computes the kernel's nodes one by one from what it read, and says which is the first that is not
// finite.
std::string NanCheck::locate() const {
  locating = true;
  std::string out;
  try {
    NodeMap<Node> done;
    std::vector<NodeRef> keep;
    for (Node n : topological(step_.kernel.get())) {
      if (n->op == Op::Sink || n->op == Op::Store) continue;
      if (n->op == Op::Param) {
        const auto slot = static_cast<size_t>(slot_of(n));
        auto b = std::make_shared<Buffer>(device_name(step_.device), n->dtype, numel(n->shape()));
        if (before_[slot].size() == b->bytes()) b->upload(before_[slot].data());
        b->label = "CHECK_NAN";
        done[n] = build::reshape(buffer_node(b), n->shape());
      } else {
        done[n] = on_new_sources(n, done);
      }
      keep.emplace_back(done[n]);
      if (n->op == Op::Param || n->is_const() || is_movement(n->op) || !n->dtype.is_float())
        continue;
      const Bytes values = values_of(done[n], step_.device);
      const int64_t bad = find_bad(values, n->dtype);
      if (bad < 0) continue;
      out = cat("; the first operation that is not finite is ", operation_of(n), ": ", n->op);
      if (!is_elementwise(n->op)) break;
      for (Node s : n->srcs())
        if (s->dtype.is_float())
          out += cat(s == n->src(0) ? " of " : ", ",
                     element(values_of(done[s], step_.device), s->dtype, static_cast<size_t>(bad)));
      break;
    }
  } catch (const std::exception&) {  // the kernel's name has to do
  }
  locating = false;
  return out;
}

void throw_found_nan() {
  if (finding().empty()) return;
  throw Error(std::exchange(finding(), {}));
}

}  // namespace tiny
