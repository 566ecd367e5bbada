// What a kernel may see of one buffer, on targets where that is limited.
#pragma once
#include <string>

#include "codegen/target/target.h"
#include "tiny/ir/node.h"

namespace tiny {

// Of a kernel in tensor form. Throws Error where one of its arguments has more bytes than
// target.most_buffer_bytes, with its shape, its bytes and the limit.
void require_buffers_fit(Node kernel, const std::string& name, const Target& target);

}  // namespace tiny
