#include "runtime/rewrites/mask_tiles.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "runtime/analysis/views.h"
#include "runtime/fusion/chain.h"
#include "tiny/ir/build.h"
#include "tiny/ir/sizes.h"
#include "tiny/rewrite/rebuild.h"

namespace tiny {

namespace {

constexpr int64_t kManyScores = int64_t{1} << 24;  // more time than the kernels of the tiles
constexpr int64_t kFewTiles = 4;                   // along rows and columns: nothing to leave out
constexpr int64_t kShared = 4;                     // scores for each element of the mask
constexpr int64_t kLargest = int64_t{1} << 31;     // bools: their words take 256 MiB
constexpr size_t kManyNodes = 64;                  // of a mask: computed once more

// The mask itself, before it is broadcast.
Node own_mask(Node condition) {
  while (condition->op == Op::Expand) condition = condition->src(0);
  return condition;
}

bool is_in_memory(Node n) { return n->op == Op::Param || n->op == Op::Contiguous; }

// Whether elements in memory are read that differ along an axis.
bool reads_along(Node root, int axis) {
  bool found = false;
  visit_below({root}, [&](Node n) {
    if (n->shape()[axis] == 1) return false;
    const bool has_axis = is_elementwise(n->op) || n->op == Op::Expand;
    if (!has_axis)
      visit_below({n}, [&](Node below) {
        found |= is_in_memory(below);
        return !found;
      });
    return has_axis && !found;
  });
  return found;
}

// Whether a mask is the same to the bit where it is computed again, and cheap: integers and bools,
// of floats those in memory. Also whether it reads numbers of rows or columns from memory: all
// others are the same for a whole tile, and loops end by them as they are.
bool may_have_tiles(Node mask) {
  size_t count = 0;
  bool is_stable = true;
  visit_below({mask}, [&](Node n) {
    const bool is_known = is_in_memory(n) || is_leaf(n) || is_movement(n->op) ||
                          ((is_elementwise(n->op) || n->op == Op::Gather) && !n->dtype.is_float());
    is_stable &= is_known && !n->lengths && ++count <= kManyNodes;
    return is_stable && !is_in_memory(n);
  });
  return is_stable && (reads_along(mask, mask->rank - 2) || reads_along(mask, mask->rank - 1));
}

// The last two axes cut into tiles; an axis of one element stays as it is.
class Tiling {
 public:
  Tiling(Ints shape, int64_t rows, int64_t columns) {
    const size_t rank = shape.size();
    for (size_t i = 0; i < rank; ++i) {
      const bool is_cut = i + 2 >= rank;
      const int64_t tile = !is_cut || shape[i] == 1 ? shape[i] : i + 2 == rank ? rows : columns;
      const int64_t count = ceil_div(shape[i], tile);
      for (Shape* cut : {&tiled_, &tiles})
        if (is_cut) cut->push_back(count);
      tiled_.push_back(tile);
      tiles.push_back(is_cut ? 1 : tile);
      padded_.push_back(count * tile);
      pads_.insert(pads_.end(), {0, count * tile - shape[i]});
      parts_.insert(parts_.end(), {0, shape[i]});
    }
    row = static_cast<int>(tiles.size()) - 4;
  }
  // [..., tiles, rows of a tile, tiles, columns of a tile], zeros behind the last ones.
  Node cut(Node x) const { return build::reshape(build::pad(x, pads_), tiled_); }
  // Whether any element of a tile is true.
  Node any(Node x) const { return build::reduce(Op::Max, cut(x), 0b1010u << row); }
  // What tiles have, for all of their elements.
  Node spread(Node x) const {
    return build::shrink(build::reshape(build::expand(x, tiled_), padded_), parts_);
  }

  Shape tiles;  // [..., tiles along rows, 1, along columns, 1]
  int row;      // the first of those four

 private:
  Shape tiled_, padded_, pads_, parts_;
};

Node full_like(Node x, int64_t value) { return build::full(x->shape(), x->dtype, value); }
Node differs(Node x, int64_t value) { return build::binary(Op::Ne, x, full_like(x, value)); }

Node with_last_swapped(Node x, int count) {
  Shape axes(x->rank);
  std::iota(axes.begin(), axes.end(), 0);
  std::rotate(axes.end() - 2 * count, axes.end() - count, axes.end());
  return build::permute(x, axes);
}

constexpr int64_t kWord = 32;

// [..., S, T] of bools as [..., T / 32, S] of words, u32: threads beside each other have rows.
Node words_of(Node mask) {
  const int last = mask->rank - 1;
  const Tiling words(mask->shape(), 1, kWord);
  Node bits = words.cut(mask);
  Node place = build::iota(bits->shape(), last + 2, kU32);
  Node value = build::binary(Op::Shl, full_like(place, 1), place);
  Node sum =
      build::reduce(Op::Add, build::where(bits, value, full_like(value, 0)), 1u << (last + 2));
  Shape shape = to_shape(mask->shape());
  shape[static_cast<size_t>(last)] = sum->shape()[last + 1];
  return build::contiguous(with_last_swapped(build::reshape(sum, shape), 1));
}

// The bools that the words are made of, in their shape.
Node bits_of(Node words, Ints shape) {
  const Tiling columns(shape, 1, kWord);
  Node x = with_last_swapped(words, 1);
  x = columns.spread(build::reshape(x, columns.tiles));
  const Node column = build::iota(shape, static_cast<int>(shape.size()) - 1, kI32);
  const Node place =
      build::cast(build::binary(Op::FloorMod, column, full_like(column, kWord)), kU32);
  const Node bit = build::binary(Op::Shl, full_like(place, 1), place);
  return differs(build::binary(Op::And, x, bit), 0);
}

}  // namespace

Node with_tiles(Node mask, int64_t tile) {
  const Tiling tiling(mask->shape(), tile, tile);
  const Node words = words_of(mask);
  const Tiling by_words(words->shape(), tile / kWord, tile);
  const auto any_but = [&](int64_t value) {
    return with_last_swapped(by_words.any(differs(words, value)), 2);
  };
  const Node open = build::contiguous(any_but(0)), hidden = any_but(0xffffffff);
  const Node is_whole =
      build::contiguous(build::where(hidden, full_like(hidden, 0), full_like(hidden, 1)));
  // Between the first and the last open tile of each row of tiles, and of each column of them.
  Node is_inside = nullptr;
  for (const int axis : {tiling.row + 2, tiling.row}) {
    const int64_t count = tiling.tiles[static_cast<size_t>(axis)];
    if (count == 1) continue;
    const Node at = build::iota(tiling.tiles, axis, kI32);
    const Node behind = build::binary(Op::Add, at, full_like(at, 1));
    const auto bound = [&](Op op, Node places, int64_t none) {
      Node all = build::where(open, places, full_like(places, none));
      return build::expand(build::contiguous(build::reduce(op, all, 1u << axis)), tiling.tiles);
    };
    for (Node side : {build::binary(Op::Le, bound(Op::Min, at, count), at),
                      build::binary(Op::Lt, at, bound(Op::Max, behind, 0))})
      is_inside = is_inside ? build::binary(Op::And, is_inside, side) : side;
  }
  Node out = build::binary(Op::Or, tiling.spread(is_whole), bits_of(words, mask->shape()));
  return is_inside ? build::binary(Op::And, tiling.spread(is_inside), out) : out;
}

NodeMap<Node> mask_tiles(std::span<const Node> roots, std::span<const Node> order,
                         const NodeTargets& targets) {
  NodeMap<Node> masks;  // of conditions that may be worth it
  std::vector<Node> selections;
  for (Node n : order) {
    if (n->op != Op::Where || n->lengths || n->rank < 2 || !n->dtype.is_float()) continue;
    const int64_t size = numel(n->shape()), rows = n->shape()[n->rank - 2];
    if (size < kManyScores || std::min(rows, n->shape()[n->rank - 1]) < kFewTiles * kMaskTile)
      continue;
    if (!base_of(n->src(2))->is_const() || targets.of(n).kind != Target::Kind::Gpu) continue;
    const Node mask = own_mask(n->src(0));
    const int64_t own = numel(mask->shape());
    if (own * kShared > size || own > kLargest || !may_have_tiles(mask)) continue;
    masks[n->src(0)] = mask;
    selections.push_back(n);
  }
  if (selections.empty()) return NodeMap<Node>();
  const Chains chains = find_chains(roots, order, {}, targets);
  NodeMap<Node> wanted;  // the new ones
  for (Node n : selections)
    if (chains.inside.contains(n) && !wanted.contains(n->src(0)))
      wanted[n->src(0)] = build::expand(with_tiles(*masks.find(n->src(0)), kMaskTile), n->shape());
  if (wanted.size() == 0) return NodeMap<Node>();
  return rebuild_all(order, [&](Node n, Node now) {
    const Node* mask = n->op == Op::Where && n->dtype.is_float() ? wanted.find(n->src(0)) : nullptr;
    return mask ? build::where(*mask, now->src(1), now->src(2)) : now;
  });
}

}  // namespace tiny
