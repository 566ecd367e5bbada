#include "codegen/product_unit.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "codegen/kernel/access.h"
#include "codegen/options/mma.h"
#include "codegen/wgmma/tile.h"
#include "tiny/base/text.h"

namespace tiny {

namespace {

// The dtype as PTX spells it.
std::string type_in_ptx(DType t) {
  const MatrixType* type = matrix_type(t);
  return type ? type->name : std::string(t.name());
}

// Both operands' where they differ.
std::string types_in_ptx(DType a, DType b) {
  return a == b ? type_in_ptx(a) : cat(type_in_ptx(a), '.', type_in_ptx(b));
}

std::string wgmma_text(int columns, int depth, DType a, DType b) {
  return cat("wgmma.m64n", columns, 'k', depth, '.', types_in_ptx(a, b));
}

std::string instruction_of(Node n) {
  if (n->op == Op::Matrix) {
    const MatrixTile tile(n);
    constexpr int kDepthBytes = 32;  // of each row that an instruction reads
    return wgmma_text(tile.width(), kDepthBytes / tile.dtype.size(), tile.dtype, tile.second);
  }
  const MmaUnit& unit = mma_unit(n);
  if (unit.warpgroup)
    return wgmma_text(warpgroup_product(n).columns, unit.depth, unit.dtype, unit.second);
  if (!unit.intrinsic)
    return cat("mma.sync.m", unit.rows, 'n', unit.columns, 'k', unit.depth, '.',
               types_in_ptx(unit.dtype, unit.second));
  std::string_view name = unit.intrinsic;  // "llvm.amdgcn.mfma..."
  for (int words = 0; words < 2; ++words) name.remove_prefix(name.find('.') + 1);
  return std::string(name);
}

// How many values each factor has that the other does not depend on, and terms.
struct ProductSizes {
  int64_t rows = 1, columns = 1, terms = 1;
};

// Of a sum of products of matrices.
std::optional<ProductSizes> sizes_of(Node reduce) {
  const auto c = contraction_of(reduce);
  if (!c || !(c->a->ranges & c->k) || !(c->b->ranges & c->k)) return {};
  const std::vector<Node> ranges = ranges_of(reduce);
  const ProductSizes out{iterations_of(ranges, c->m()), iterations_of(ranges, c->n()),
                         iterations_of(ranges, c->k)};
  if (out.rows == 1 && out.columns == 1) return {};  // of vectors
  return out;
}

std::string reason_of(Node reduce, const ProductSizes& p, const Target& target) {
  const int64_t few = std::min(p.rows, p.columns), many = std::max(p.rows, p.columns);
  const std::string sizes = cat(few, " x ", many, " results of ", p.terms, " terms");
  if (few == 1) return cat("a vector times a matrix, ", sizes);
  MmaProduct product;
  if (const std::string why = mma_product(reduce, target, product); !why.empty())
    return cat(why, "; ", sizes);
  const MmaUnit& unit = *product.unit;
  const int least = std::min(unit.rows, unit.columns);
  if (few % least) return cat(sizes, ": ", few, " is no multiple of ", least);
  if (p.terms % unit.depth)
    return cat(sizes, ": ", p.terms, " terms are no multiple of ", unit.depth);
  return cat("no tile of a matrix unit fits ", sizes);
}

}  // namespace

ProductUnit product_unit(Node loops, Node optimised, const Target& target) {
  ProductUnit out;
  std::set<std::string> names;
  for (Op op : {Op::Matrix, Op::Mma})
    for (Node n : all_of(optimised, op)) names.insert(instruction_of(n));
  for (const std::string& name : names)
    out.instruction += (out.instruction.empty() ? "" : ", ") + name;
  if (!names.empty()) return out;
  int64_t most = 0;
  for (Node reduce : all_of(loops, Op::Reduce))
    if (const auto p = sizes_of(reduce); p && p->rows * p->columns * p->terms > most) {
      most = p->rows * p->columns * p->terms;
      out.reason = reason_of(reduce, *p, target);
    }
  return out;
}

std::string to_text(const ProductUnit& unit) {
  if (!unit.reason.empty()) return cat("no matrix unit: ", unit.reason);
  return unit.instruction;
}

}  // namespace tiny
