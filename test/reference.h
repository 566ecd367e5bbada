// The oracle of the operator tests: interprets an unscheduled tensor graph with plain loops over
// host arrays. It shares no code with scheduling and code generation.
//
// Floats of f16 and bf16 nodes are computed in f32 and rounded after every node; sums and products
// over axes accumulate in f64; integers wrap around in their dtype.
#pragma once
#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "tiny/ir/node.h"

namespace tiny {

// A row-major array in host memory.
struct HostTensor {
  DType dtype;
  Shape shape;
  std::vector<std::byte> data;

  HostTensor() = default;
  HostTensor(DType type, Ints dims);  // zeros
  int64_t size() const { return numel(shape); }
  template <class T> const T* as() const { return reinterpret_cast<const T*>(data.data()); }
  template <class T> T* as() { return reinterpret_cast<T*>(data.data()); }

  std::vector<double> numbers() const;    // any dtype; i64 beyond 2^53 is rounded
  std::vector<int64_t> integers() const;  // bool and integer dtypes
};

// Writes the bytes of a Buffer node to `out`.
using BufferReader = std::function<void(Node buffer, void* out)>;

// Downloads from the buffer's device.
void read_buffer(Node buffer, void* out);

// Values of tensor graphs. A node that was realized is computed again from its sources.
// Throws Bug for a node that cannot stand in a tensor graph.
std::vector<HostTensor> evaluate(std::span<const Node> roots,
                                 const BufferReader& reader = read_buffer);
HostTensor evaluate(Node root, const BufferReader& reader = read_buffer);

}  // namespace tiny
