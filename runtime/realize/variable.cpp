// Values of variables: one small buffer for each, shared by all who have it.
#include "tiny/tensor/variable.h"

#include <map>
#include <mutex>
#include <tuple>

#include "runtime/device/buffer.h"
#include "runtime/launch/capture.h"
#include "runtime/realize/realize.h"

namespace tiny {

namespace {

struct Values {
  std::mutex mutex;
  std::map<std::tuple<std::string, std::string, int64_t>, std::weak_ptr<Buffer>> buffers;
};
Values& values() {
  static Values* v = new Values;
  return *v;
}

}  // namespace

Node runtime_seam::variable_value(const std::string& name, int64_t value,
                                  const std::string& device) {
  constexpr size_t kMaxBuffers = 1024;
  forbid_in_capture("a Variable that gets its value in the step would have it in every replay",
                    "give the Jit the Variable as an argument");
  const std::string where = device.empty() ? default_device() : device;
  Values& v = values();
  std::lock_guard lock(v.mutex);
  if (v.buffers.size() >= kMaxBuffers)
    std::erase_if(v.buffers, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<Buffer>& kept = v.buffers[{name, where, value}];
  std::shared_ptr<Buffer> b = kept.lock();
  if (!b || b->moved()) {
    b = std::make_shared<Buffer>(where, kI64, 1);
    b->label = "variable " + name;
    b->upload(&value);
    kept = b;
  }
  return buffer_node(b);
}

}  // namespace tiny
