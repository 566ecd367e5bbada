#include "test/conformance/operators.h"

#include <algorithm>

namespace tiny::conformance {

Tensors Inputs::from(size_t first) const {
  return Tensors(tensors_.begin() + static_cast<std::ptrdiff_t>(std::min(first, size())),
                 tensors_.end());
}

const Table& operators() {
  static const Table table = [] {
    Table t;
    for (auto add : {add_elementwise, add_movement, add_indexing, add_reduce, add_linalg,
                     add_windows, add_nn, add_optim})
      add(t);
    return t;
  }();
  return table;
}

}  // namespace tiny::conformance
