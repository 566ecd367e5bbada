// Chains of products that one kernel computes: a matrix of scores is made by one product (or
// several), reduced along an axis and multiplied with another matrix along the same one, as in
// attention. It is computed tile by tile where it is used, and never stored: computing an element
// again costs less than memory where its sum is short.
#pragma once
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "runtime/analysis/node_targets.h"
#include "tiny/ir/node.h"

namespace tiny {

struct Chain {
  Node product = nullptr;         // the last one, or the last reduction where nothing is multiplied
  std::vector<Node> rows;         // reductions of the scores that its kernel computes as well
  std::vector<Node> scores = {};  // products
};

struct Chains {
  std::vector<Chain> all;
  std::vector<std::pair<Node, Node>> together;  // last products that one kernel may compute
  NodeMap<char> inside;  // values of the size of the scores, which get no memory
  NodeMap<char> sums;    // of all chains, their products included
};

// `order`: all nodes below the roots, sources first. Only chains whose kernel has options: those of
// GPUs with matrix units whose results are operands (codegen/options/fragments.h), and those of
// CPUs for which that is worth it (codegen/heuristics/chains.cpp). `refused`: products that
// are no last ones of a chain.
Chains find_chains(std::span<const Node> roots, std::span<const Node> order,
                   const std::set<Node>& refused, const NodeTargets& targets);

}  // namespace tiny
