#include "runtime/rewrites/split_products.h"

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
  for (Node t : terms)
    if (is_product_term(t))
      sum = add(sum, with_sources(reduce, std::span(&t, 1)));
    else
      rest = add(rest, t);
  if (!sum) return reduce;
  return rest ? add(sum, with_sources(reduce, std::span(&rest, 1))) : sum;
}

}  // namespace

NodeMap<Node> split_products(std::span<const Node> roots) {
  return rebuild(roots, [](Node n, Node now) {
    const bool is_sum = now->op == Op::ReduceAxis && now->arg<ReduceArg>().op == Op::Add;
    if (!is_sum || now->src(0)->op != Op::Add) return now;
    const LabelScope label(n->label);
    return split(now);
  });
}

}  // namespace tiny
