// Small kernels in tensor form, as the scheduler makes them, for tests of the passes.
#pragma once
#include <string>
#include <vector>

#include "codegen/kernel/linear.h"
#include "tiny/ir/build.h"

namespace tiny::test {

inline Node tensor_param(int slot, Shape shape, DType dtype = kF32) {
  shape.insert(shape.begin(), slot);
  return make(Op::Param, dtype, {}, Ints(shape));
}

// Stores each value in a parameter of its own, slots 0, 1, ...
inline Node kernel_of(const std::vector<Node>& values) {
  std::vector<Node> stores;
  for (Node v : values) {
    Node to = tensor_param(static_cast<int>(stores.size()), to_shape(v->shape()), v->dtype);
    stores.push_back(make(Op::Store, kVoid, {to, v}));
  }
  return make(Op::Sink, kVoid, stores);
}

inline Node sum(Node x, uint32_t axes) { return build::reduce(Op::Add, x, axes); }
inline Node spread(Node x, Node like) { return build::expand(x, like->shape()); }

// exp2(x - max) / sum(exp2(x - max)) over the axes.
inline Node softmax(Node x, uint32_t axes) {
  Node most = spread(build::reduce(Op::Max, x, axes), x);
  Node e = build::unary(Op::Exp2, build::binary(Op::Sub, x, most));
  return build::binary(Op::Div, e, spread(sum(e, axes), e));
}

// (rows, inner) by (inner, columns)
inline Node matmul(Node a, Node b) {
  const int64_t n = a->shape()[0], k = a->shape()[1], m = b->shape()[1];
  Node x = build::expand(build::reshape(a, Shape{n, k, 1}), Shape{n, k, m});
  Node y = build::expand(build::reshape(b, Shape{1, k, m}), Shape{n, k, m});
  return build::reshape(sum(build::binary(Op::Mul, x, y), 2), Shape{n, m});
}

inline int count_op(Node root, Op op) {
  int count = 0;
  for (Node n : topological(root)) count += n->op == op;
  return count;
}
inline int count_op(const Linear& program, Op op) {
  int count = 0;
  for (Node n : program.body) count += n->op == op;
  return count;
}

inline int occurrences(const std::string& text, const std::string& of) {
  int count = 0;
  for (size_t at = text.find(of); at != std::string::npos; at = text.find(of, at + 1)) ++count;
  return count;
}

}  // namespace tiny::test
