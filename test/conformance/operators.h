// The suites' operations on the Tensor API: one table from an operation's name to a function of its
// inputs and arguments. Names, inputs and arguments are those of the suites' README.md.
#pragma once
#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "test/conformance/suite.h"
#include "tiny/tensor/tensor.h"

namespace tiny::conformance {

using Tensors = std::vector<Tensor>;

// The inputs of a step, in their order. One that is left out is Tensor().
class Inputs {
 public:
  explicit Inputs(Tensors tensors) : tensors_(std::move(tensors)) {}

  size_t size() const { return tensors_.size(); }
  const Tensor& operator[](size_t i) const { return i < size() ? tensors_[i] : missing_; }
  bool has(size_t i) const { return (*this)[i].defined(); }
  Tensors from(size_t first) const;  // those at `first` and after it

 private:
  Tensors tensors_;
  Tensor missing_;
};

using Operator = Tensors (*)(const Inputs&, const Json& args);
using Table = std::map<std::string, Operator>;

// All operations.
const Table& operators();

// --- Parts of the table, one file each -----------------------------------------------------------

void add_elementwise(Table& table);
void add_movement(Table& table);  // and creation
void add_indexing(Table& table);
void add_reduce(Table& table);  // and scans, sorting
void add_linalg(Table& table);
void add_windows(Table& table);  // convolutions, pools, interpolation
void add_nn(Table& table);       // normalisations, losses, attention, recurrent cells
void add_optim(Table& table);

}  // namespace tiny::conformance
