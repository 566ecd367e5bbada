// Collectives as ordinary nodes: copies between devices, slices and sums, which the scheduler
// places, fuses and orders like the rest of a graph, and which therefore run on every device.
//
// Pieces are nodes with one on each device: pieces[i] on devices[i]. Constants are on no device and
// are never copied. Cuts of an axis of n elements for k devices: 0 = c_0 <= c_1 ... <= c_k = n;
// device i has the elements [c_i, c_i+1).
#pragma once
#include <span>
#include <vector>

#include "runtime/device/device.h"
#include "tiny/ir/node.h"

namespace tiny {

using Pieces = std::vector<Node>;

// As even as can be, the longer parts first.
Shape even_cuts(int64_t size, size_t parts);

// Elements [begin, end) of an axis, as a view of what is below `x`.
Node slice(Node x, int axis, int64_t begin, int64_t end);

// Pieces that are all on one device, one after the other along an axis.
Node join(const Pieces& pieces, int axis);

// `x` on that device.
Node bring(Node x, int device);

// The sum of pieces that may be on other devices, on one of these. By flags and a library the
// devices make it together.
Node sum_on(int device, const Pieces& pieces, SumBy by);
// Pieces, of as many elements as are a multiple of 16 bytes where GPUs have them, one after the
// other along their first axis on one of their devices, which make it together by flags.
Node gather_on(int device, const Pieces& pieces);
bool is_gather(Node n);
bool is_sum_by_kernel(Node n);  // on one device, whose kernel reads the pieces where they are
SumBy sum_by(Node sum);

// The reduction of all pieces (Add, Mul, Max, Min), on one device.
Node reduce_to(Op op, const Pieces& pieces, int device);

// The same on each of the devices, to the same bits. COLLECTIVE chooses the way:
// - naive: each device fetches all pieces, k - 1 times their size;
// - two_shot: reduce_scatter, then all_gather, 2 (k - 1) / k times the size;
// - ring: as much, but each device only reads from the one before it;
// - one_shot, two_shot_direct: naive and two_shot with sums (Op::Add) whose kernels read the pieces
//   in the memory of the other devices, where these can (Device::reads).
// - flags: GPUs add up in kernels that wait for one another and not for the host: as in one_shot,
//   and from 512 KiB on each a part, which it writes into the memory of all;
// - nccl: NVIDIA's library adds up, where all are GPUs of this process, or each is that of another
//   one; AMD's does so in its place.
// By default nccl for GPUs of several processes; flags for GPUs, and from 256 MiB on nccl for more
// than two of them; without flags one_shot, two_shot_direct beyond 1 MiB for more than two; naive
// and two_shot, from 256 KiB on, for devices of other kinds and those that cannot read one
// another's memory.
Pieces all_reduce(Op op, const Pieces& pieces, std::span<const int> devices);

// Each device gets its part of the same: by flags, read from where it is, as above, or fetched.
Pieces reduce_scatter(Op op, const Pieces& pieces, std::span<const int> devices, int axis,
                      const Shape& cuts);

// Each device gets all pieces, joined: by flags, for GPUs, or fetched.
Pieces all_gather(const Pieces& pieces, std::span<const int> devices, int axis);

}  // namespace tiny
