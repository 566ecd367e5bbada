#include "codegen/buffer_limit.h"

#include "tiny/base/error.h"
#include "tiny/ir/shape.h"

namespace tiny {

void require_buffers_fit(Node kernel, const std::string& name, const Target& target) {
  if (target.most_buffer_bytes == INT64_MAX) return;
  for (Node n : topological(kernel)) {
    if (n->op != Op::Param) continue;
    const int64_t bytes = numel(n->shape()) * (n->dtype.is_bool() ? 1 : n->dtype.size());
    check(bytes <= target.most_buffer_bytes, "kernel ", name, " sees a tensor of shape ",
          to_text(n->shape()), " ", n->dtype.name(), ", ", bytes, " bytes, and ", target.arch,
          " lets it see ", target.most_buffer_bytes,
          ": compute it in parts, or export it for devices that grant more "
          "(ProgramOptions::most_buffer_bytes)");
  }
}

}  // namespace tiny
