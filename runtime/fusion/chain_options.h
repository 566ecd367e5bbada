// Whether kernels of chains (runtime/fusion/chain.h) have options that keep products on matrix
// units of GPUs, or that are worth it on CPUs.
#pragma once
#include <span>

#include "codegen/target/target.h"
#include "tiny/ir/node.h"

namespace tiny {

// An argument of a kernel in place of a value.
Node argument(int slot, Node value);

// The kernel whose first arguments are the outputs' memory. `now`: what each is in terms of its
// arguments.
NodeRef kernel_that_stores(std::span<const Node> outputs, const NodeMap<Node>& now);

bool has_chain_options(NodeRef kernel, const Target& target);

// Of a kernel that has come to be of a chain, and of what follows it.
bool has_chain_options(std::span<const Node> outputs, std::span<const Node> inputs,
                       const Target& target);

}  // namespace tiny
