// Nodes of tensor graphs with their dtype and shape worked out: what Tensor, gradients and the
// scheduler build graphs with. Arguments must be legal already (Tensor checks what users pass);
// what does nothing gives its source back, and a view of a view is merged where it is one view.
#pragma once
#include "tiny/ir/node.h"

namespace tiny::build {

// Element-wise: sources have one shape; unary and binary results keep the dtype of the first
// source, comparisons are bool. `where(c, a, b)`: c bool, a and b of one dtype.
Node unary(Op op, Node x);
Node binary(Op op, Node x, Node y);
Node where(Node condition, Node x, Node y);
Node byte_dot(Node x, Node y, Node sum);  // i32
Node cast(Node x, DType to);
Node bitcast(Node x, DType to);  // of the same size

// While it lives, on this thread, a view that a tensor holds and that was made before `mark` is not
// merged with views of it: a capture of a Jit knows by it that the tensor is read.
class KeptViews {
 public:
  explicit KeptViews(NodeMark mark);
  ~KeptViews();
  KeptViews(const KeptViews&) = delete;
  KeptViews& operator=(const KeptViews&) = delete;
};

// Movement.
Node reshape(Node x, Ints shape);
Node permute(Node x, Ints axes);
Node expand(Node x, Ints shape);  // same rank
Node pad(Node x, Ints before_after);
Node shrink(Node x, Ints begin_end);
Node flip(Node x, Ints flags);
Node stride(Node x, Ints steps);
// The movement of one source with that argument, merged with one below where it can be.
Node movement(Op op, Node x, Ints arg);

// out[i...] = x[offset_d + sum over axes a of factors_d[a] * i_a for each axis d of x]: the general
// view. Every element must lie inside x. `map`: for each axis of x its offset, then its factors.
Node affine(Node x, Ints shape, Ints map);

// Lengths that are known when a kernel runs (facts.h: infer_lengths). `limit`: of `axis` of x only
// the first n elements count; n: an i64 scalar whose bounds lie in [0, size]. `with_lengths`: the
// same for all axes, from a node of the same shape. `filled`: all elements count, those beyond a
// length being what leaves a reduction by op as it is. `bound`: x is known to lie in [min, max].
Node bound(Node x, int64_t min, int64_t max);
Node limit(Node x, int axis, Node n);
Node with_lengths(Node x, Node like);
Node filled(Node x, Op op, uint32_t axes = ~0u);

// `value` in every element of a tensor of this shape.
Node full(Ints shape, DType dtype, double value);
Node full(Ints shape, DType dtype, int64_t value);
Node full(Ints shape, Node scalar);  // scalar: any node of shape ()

Node iota(int64_t n, DType dtype);             // [n]: 0, 1, ...
Node iota(Ints shape, int axis, DType dtype);  // the index along `axis`, in that shape

// Reduced axes (bit i: axis i) stay with size 1. Ops: Add, Mul, Max, Min; bool: Max is or.
Node reduce(Op op, Node x, uint32_t axes);
Node identity(Op op, DType t, Ints shape);  // the value of a reduction of no elements

// out[i...] = data[index_0[i...], index_1[i...], ...]; every index (i32 or i64) has the result's
// shape; an element with an index outside [0, size) is zero.
Node gather(Node data, std::span<const Node> indices);
// base, with base[index_0[i...], ...] = combine(old, values[i...]) for each i in row-major order;
// an element with an index outside is dropped. Shape of `base`.
Node scatter(Node base, Node values, std::span<const Node> indices, ScatterArg how);

Node contiguous(Node x);
// x as a view of memory, without a gradient: for comparisons of elements with a value made from
// them. Floats are summed in an order that suits each kernel, so that computing an element twice
// may give two results. Operations that give the same bits in every kernel (movement, selection,
// comparison of values in memory) stay as they are.
Node in_memory(Node x);
Node detach(Node x);
// x, whose gradient is rounded to `dtype` on its way down.
Node round_gradient(Node x, DType dtype);
Node leaf(Node x);                 // a new tensor whose gradient is wanted
Node copy_to(Node x, int device);  // of a group: to each of its members
// On a group of devices, cut along an axis (-1: each device has all of it); and from such pieces,
// in the order of the devices. `gathered_for_use`: a weight that is whole only while it is used
// (fully_shard).
Node shard(Node x, int group, int axis, bool gathered_for_use = false);
Node multi(std::span<const Node> pieces, int group, int axis, bool gathered_for_use = false);
Node assign(Node old, Node value);  // one shape, dtype and device
Node after(Node x, Node before);    // x, read once `before` is there; constants as they are

}  // namespace tiny::build
