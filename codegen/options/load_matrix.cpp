#include "codegen/options/load_matrix.h"

#include <algorithm>

#include "codegen/kernel/access.h"
#include "codegen/kernel/facts.h"
#include "codegen/kernel/linear.h"
#include "codegen/options/stage.h"
#include "tiny/rewrite/algebra.h"

namespace tiny {

namespace {

constexpr int kRow = 16, kRows = 8;  // bytes of a matrix's row, and how many

// Coordinates of the first element of a row that a thread reads.
struct MatrixRow {
  Node across, k;
};

// Its index, where elements follow each other from there on along `along` and rows begin at
// multiples of their size; nullptr elsewhere.
Node index_of_row(const FragmentOperand& o, const MatrixRow& row, Node along, int id) {
  const int count = kRow / o.x->dtype.size();
  const auto at = [&](Node n) {
    NodeMap<Node> map;
    map[o.across] = along == o.across ? index_add(row.across, n) : row.across;
    map[o.k] = along == o.k ? index_add(row.k, n) : row.k;
    return simplify(substitute(o.x->src(1), map));
  };
  Node begin = at(index(0));
  Node next = make_range(count, id, RangeKind::Loop);
  const Sum rest = to_sum(index_add(at(next), index_mul(index_add(begin, next), -1)));
  const bool follow = rest.constant == 0 &&
                      std::ranges::all_of(rest.terms, [](const auto& t) { return t.factor == 0; });
  return follow && known_factor(begin) % count == 0 ? begin : nullptr;
}

// How many fragments an operand has: a number stands for a single one.
int64_t fragments_along(Node first) { return first->op == Op::Range ? extent(first) : 1; }

}  // namespace

std::vector<Node> load_matrices(const FragmentOperand& o, const MmaUnit& unit, int size, int id) {
  if (o.x->op != Op::Load || o.x->num_src != 2 || !is_stage(o.x->src(0))) return {};
  const int bytes = o.x->dtype.size();
  // Four matrices are two fragments of columns, where there are two.
  const int fragments = size == kRows && fragments_along(o.first) % 2 == 0 ? 2 : 1;
  const int words = 2 * size * fragments / kRows;
  Node matrix = index_mod(index_div(o.thread, kRows), words), row = index_mod(o.thread, kRows);
  // In the order of the instruction's registers: the second eight rows come before the next k.
  const bool down_first = size > kRows;
  Node down = down_first ? index_mod(matrix, 2) : index_div(matrix, 2);
  Node along = down_first ? index_div(matrix, 2) : index_mod(matrix, 2);
  Node first = index_mul(index_div(o.first, fragments), size * fragments);
  first = index_add(first, index_mul(down, kRows));
  Node k = index_add(index_mul(o.step, unit.depth), index_mul(along, kRow / bytes));
  Node at = index_of_row(o, {index_add(first, row), k}, o.k, id);
  const bool turned = !at && bytes == 2;
  if (turned) at = index_of_row(o, {first, index_add(k, row)}, o.across, id);
  if (!at) return {};
  const int64_t form[] = {turned};
  const int each = words * 4 / bytes;
  Node load = make(Op::Load, o.x->dtype.vec(each), {o.x->src(0), at}, Ints(form));
  const auto element = [&](int64_t i) {
    const int64_t pick[] = {i};
    return make(Op::Shuffle, o.x->dtype, {load, load}, Ints(pick));
  };
  std::vector<Node> out;
  const int word = 4 / bytes, own = each / fragments;
  for (int i = 0; i < own; ++i) {
    const int at_word = i / word;  // rows 0, along k 0, 1; rows 8, along k 0, 1
    out.push_back(element(down_first ? (at_word % 2 * 2 + at_word / 2) * word + i % word : i));
    if (fragments == 1) continue;
    Node even = make(Op::Lt, kBool, {index_mod(o.first, 2), index(1)});
    out.back() = make(Op::Where, o.x->dtype, {even, out.back(), element(i + own)});
  }
  return out;
}

}  // namespace tiny
