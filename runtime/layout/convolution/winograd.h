// Winograd's convolutions of f32 on GPUs (Lavin and Gray, "Fast Algorithms for Convolutional Neural
// Networks", 2015), along one or two axes: image and weight are transformed by matrices of
// constants (runtime/layout/convolution/toom_cook.h), multiplied at each point, which is a batch of
// matrix products of fewer multiplications, and transformed back. The gradient of a weight is a
// convolution of a few large windows, of which tiles are summed before they are transformed back.
#pragma once
#include <optional>
#include <vector>

#include "codegen/target/target.h"
#include "tiny/ir/node.h"

namespace tiny {

struct WinogradProduct {
  Node product = nullptr;  // of the transforms: a sum of the product of two views

  // Along an axis of the convolution's results: `count` tiles of so many results each, computed at
  // so many points.
  struct Tile {
    int axis;
    int64_t results, points, count;
  };
  std::vector<Tile> tiles;
  std::vector<int> order;  // of the convolution's axes, behind the points
  Shape shape;             // of the convolution's results

  // The convolution's results, from that product.
  Node restored(Node results) const;
};

// `product` is a sum of the product of two views. Nothing where it is no convolution of f32 whose
// windows lie one next to the other, or where that takes less time as it is; with WINOGRAD=2 where
// it cannot be computed so.
std::optional<WinogradProduct> find_winograd(Node product, const Target& target);

}  // namespace tiny
