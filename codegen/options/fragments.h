// Chains of products on a warp's matrix units: a matrix of rows m and columns n is made by one
// product (or several), reduced along n, and multiplied from the left with another matrix, as in
// attention. All of it stays in registers: the unit's result has the elements that the same thread
// needs of the first operand of the next product.
//
// The rows and columns become digits, each a range: with the table of units' places a row is
// 16 rows + y of_y + x of_x + i step, a column is depth s + 8 h + y of_y + x of_x + j step, where
// y and x are ranges of threads and i, h, j are unrolled. A reduction along n closes s, h, j and
// the digit of its threads; a sum over n of products with another matrix becomes one over s of Mma
// nodes, whose first operand's elements are the values at each h and j.
#pragma once
#include <string>
#include <vector>

#include "codegen/kernel/option.h"
#include "codegen/options/mma.h"

namespace tiny {

// The products of a kernel that has rows m and columns n.
struct ProductChain {
  struct Product : Contraction {  // the factors as the unit takes them
    Node across = nullptr;        // range of b's columns: n, or of a result's
    Node summed = nullptr;        // the chain's k, or n
  };
  Node m = nullptr, n = nullptr;
  std::vector<Product> inner, outer;  // with elements (m, n); sums along n
  const MmaUnit* unit = nullptr;
};

// The chain of these rows and columns; `why`: why there is none. Extents need not be whole
// fragments.
std::optional<ProductChain> find_chain(Node sink, Node m, Node n, const Target& target,
                                       std::string& why);
// The kernel's chain, whatever its rows and columns are.
std::optional<ProductChain> find_chain(Node sink, const Target& target);

// Whether a kernel has sums of fragments that operands of others are made of, that go along with a
// maximum of such sums, or are multiplied with others and summed; on a CPU, whether it has stages,
// which only chains have.
bool is_chain(Node sink, const Target& target);

// Option: rows along axis, columns along axes[0]; operands in memory go through stages of `amount`
// tiles. New ranges, in this order: y, x, i, j, h; a vector for each range of results' columns;
// then two for the copies of each stage.
std::string fragments_problem(Node sink, const Opt& opt, const Target& target);
Node use_fragments(Node sink, const Opt& opt, const Target& target);

// On a CPU (codegen/options/pairs.cpp) rows are the lanes of a vector; new ranges: one for pairs of
// columns, then two for the copies of each stage, the contiguous one last.
std::string pairs_problem(const ProductChain& chain);
Node use_pairs(Node sink, const ProductChain& chain);

// Expressions in place of ranges, but not of those that a reduction closes; simplified.
Node with_free_ranges(Node n, std::vector<std::pair<Node, Node>> values);

}  // namespace tiny
