// Convolutions of so few results for each window that no axis of them fills a tile, as gradients of
// images under strided windows, with some channels for each phase of the pixels: joins these axes.
#pragma once
#include <optional>

#include "codegen/target/target.h"
#include "tiny/ir/node.h"

namespace tiny {

// A product with all results of a window along one axis, the last, padded to a tile's columns.
struct JoinedResults {
  Node product = nullptr;
  Shape sizes,
      order;  // of the results, those of a window last; where the axes of those asked for are
  int64_t count = 0;  // results of a window

  Node restored(Node results) const;  // from the product's to those asked for
};

// Nothing where the product is of another kind, or would be none that TMA reads
// (runtime/layout/convolution/implicit.h).
std::optional<JoinedResults> join_results(Node product, const Target& target);

}  // namespace tiny
