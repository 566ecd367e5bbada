#include "runtime/rewrites/split_products.h"

#include <algorithm>
#include <vector>

#include "runtime/analysis/views.h"
#include "tiny/ir/build.h"
#include "tiny/rewrite/rebuild.h"

namespace tiny {

namespace {

// The terms of a tree of additions, from left to right.
std::vector<Node> terms_of(Node sum) {
  std::vector<Node> terms, stack{sum};
  while (!stack.empty()) {
    Node n = stack.back();
    stack.pop_back();
    if (n->op == Op::Add)
      stack.insert(stack.end(), {n->src(1), n->src(0)});
    else
      terms.push_back(n);
  }
  return terms;
}

// Each product summed by itself, and what is none together.
Node split(Node reduce) {
  const std::vector<Node> terms = terms_of(reduce->src(0));
  Node sum = nullptr, rest = nullptr;
  const auto add = [](Node to, Node n) { return to ? build::binary(Op::Add, to, n) : n; };
  // Each product's kernel adds to the sum of those before it, in the same memory.
  for (Node t : terms)
    if (is_product_term(t))
      sum = add(sum ? build::contiguous(sum) : nullptr, with_sources(reduce, std::span(&t, 1)));
    else
      rest = add(rest, t);
  if (!sum) return reduce;
  return rest ? add(sum, with_sources(reduce, std::span(&rest, 1))) : sum;
}

}  // namespace

NodeMap<Node> split_products(std::span<const Node> order) {
  const auto is_sum_of_sums = [](Node n) {
    return n->op == Op::ReduceAxis && n->arg<ReduceArg>().op == Op::Add && n->src(0)->op == Op::Add;
  };
  if (std::ranges::none_of(order, is_sum_of_sums)) return NodeMap<Node>();
  return rebuild_all(order, [&](Node n, Node now) {
    if (!is_sum_of_sums(now)) return now;
    const LabelScope label(n->label);
    return split(now);
  });
}

}  // namespace tiny
