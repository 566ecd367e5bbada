// Random programs over the public Tensor API: lists of steps, each a row of one table of operators
// that says how its arguments are drawn, how the tensor is made and how that reads in C++.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "test/reference.h"
#include "tiny/tiny.h"

namespace tiny::programs {

struct Step {
  int row = 0;               // of operators()
  std::vector<int> in = {};  // earlier steps
  Shape a = {}, b = {};
  int64_t i = 0, j = 0, k = 0;
  double r = 0;
  DType t = kF64;
  uint64_t seed = 0;
};

struct Program {
  uint64_t seed = 0;
  std::vector<Step> steps;
  std::vector<int> outputs;
  bool gradient = false;   // of the outputs' weighted sum, for all float leaves
  int grouping = 0;        // 0: results are realized in one call, 1: gradients first, 2: one by one
  bool in_memory = false;  // the weights of that sum are, else they are computed where read
};

// What an expression of the table can name: x, y and z are the inputs, all others members of Step.
struct Arguments {
  const Step& step;
  std::span<const Tensor> in;
  const Tensor& tensor(size_t i) const;  // not defined where there are fewer inputs
};

// Functions that expressions of the table call; the C++ of a program holds their text.
// Integers low .. high, or reals in -2 .. 2 where both are 0.
Tensor leaf(const Shape& shape, DType dtype, uint64_t seed, int64_t low, int64_t high);
Tensor wave(const Tensor& like, double phase);  // sines of the positions, not realized
Tensor shrunk(const Tensor& v, const Shape& begin, const Shape& end);
Tensor padded(const Tensor& v, const Shape& before, const Shape& after, PadMode mode, double fill);

class Draw;
struct Row {
  const char* name;
  int weight;                  // how often it is drawn
  const char* traits;          // letters, see below
  bool (*draw)(Draw&, Step&);  // fills the step; false where no value is fit for it
  Tensor (*make)(const Arguments&);
  const char* text;  // the expression of make
};
// Letters of Row::traits.
//   l  a leaf: its values come from the host
//   m  values are moved or chosen: nothing is rounded
//   e  integers give integers; other values are rounded
//   s  the result is a step function of its inputs, or hides them from the gradient: difference
//      quotients say nothing
//   r  random numbers
inline bool has(const Row& row, char trait) {
  return std::string_view(row.traits).find(trait) != std::string_view::npos;
}

// An expression over x, y, z, a, b, i, j, k, r, t, seed, and its text.
#define TINY_EXPRESSION(...)                                                            \
  [](const Arguments& v) -> Tensor {                                                    \
    [[maybe_unused]] const Tensor &x = v.tensor(0), &y = v.tensor(1), &z = v.tensor(2); \
    [[maybe_unused]] const Shape &a = v.step.a, &b = v.step.b;                          \
    [[maybe_unused]] const int64_t i = v.step.i, j = v.step.j, k = v.step.k;            \
    [[maybe_unused]] const double r = v.step.r;                                         \
    [[maybe_unused]] const DType t = v.step.t;                                          \
    [[maybe_unused]] const uint64_t seed = v.step.seed;                                 \
    return __VA_ARGS__;                                                                 \
  },                                                                                    \
      #__VA_ARGS__

const std::vector<Row>& operators();
inline const Row& row_of(const Step& s) { return operators()[static_cast<size_t>(s.row)]; }
int row_named(std::string_view name);

// The parts of the table.
std::vector<Row> leaf_rows(), elementwise_rows(), integer_rows(), reduction_rows(), scan_rows(),
    movement_rows(), joining_rows(), index_rows(), product_rows(), network_rows(), state_rows();

// A pure function of its arguments. The values of each step are known while it is drawn, from the
// reference evaluator: they stay finite and small.
// `rows`: what steps are drawn from, each as often as it stands there; {}: some of all of them.
Program random_program(uint64_t seed, const std::vector<int>& rows = {});

// How a program is made into tensors.
struct BuildOptions {
  bool realizes = true;                          // steps that ask for values do so
  std::vector<std::string> devices = {};         // leaves are cut over these
  std::function<Tensor(const Step&)> leaf = {};  // makes leaves, in place of their row
  // Takes the place of the value that a step has made.
  std::function<Tensor(size_t step, const Tensor& value)> made = {};
};
void realize_results(const Program& program, std::vector<Tensor>& results);
struct Built {
  std::vector<Tensor> values;   // one for each step
  std::vector<Tensor> leaves;   // those that want gradients
  std::vector<Tensor> results;  // outputs, then gradients
  Tensor loss;
};
Built build(const Program& program, const BuildOptions& options = {});
bool wants_gradient(const Program& program, const Step& s);

// The axis along which a leaf is cut over so many devices, -1 where each has all of it.
int axis_of_shard(const Step& s, size_t devices);

// A whole C++ program that prints how far the results are from those of FUSE=0 OPT=0 on the CPU.
// `setting`: words such as FUSE=0, for its first run.
std::string to_cpp(const Program& program, const std::string& setting);

// One line of text, and back.
std::string to_line(const Program& program);
Program from_line(const std::string& line);

// The smallest program found by dropping outputs and steps and by shrinking sizes that still fails.
Program shrink(Program program, const std::function<bool(const Program&)>& fails);

}  // namespace tiny::programs
