#include "codegen/matrix.h"

#include <algorithm>
#include <bit>

#include "codegen/access.h"
#include "codegen/matrix_operand.h"
#include "codegen/matrix_parts.h"
#include "tiny/algebra.h"
#include "tiny/env.h"
#include "tiny/error.h"

namespace tiny {

namespace {

// Every number of a tile in one order, for the payload of its node and back.
template <class Visit> void each_number(MatrixTile& tile, Visit visit) {
  visit(tile.rows);
  visit(tile.columns);
  visit(tile.halved);
  visit(tile.wide);
  visit(tile.depth);
  visit(tile.begin);
  int type = static_cast<int>(tile.dtype.scalar);
  visit(type);
  tile.dtype = static_cast<Scalar>(type);
  for (MatrixOperand* o : {&tile.a, &tile.b}) {
    TensorMap& map = o->map;
    visit(map.slot);
    visit(o->elements);
    visit(map.offset);
    visit(map.rank);
    visit(map.windows);
    visit(o->k_major);
    visit(o->boxes);
    for (int d = 0; d < 5; ++d) {
      visit(map.sizes[d]);
      visit(map.strides[d]);
      visit(map.box[d]);
    }
    for (int d = 0; d < 3; ++d) {
      visit(map.lower[d]);
      visit(map.upper[d]);
      visit(map.steps[d]);
    }
    for (MatrixPlace& at : o->at) {
      visit(at.source);
      visit(at.step);
      visit(at.divide);
      visit(at.modulo);
      visit(at.times);
      visit(at.plus);
      visit(at.by_box);
    }
    map.element_bytes = tile.dtype.size();
    map.dtype = tile.dtype;
  }
  visit(tile.deep);
}

int64_t tiles_of(int64_t n, int64_t size) { return (n + size - 1) / size; }

}  // namespace

MatrixTile::MatrixTile(Node matrix) {
  const Ints numbers = matrix->ints();
  size_t at = 0;
  each_number(*this, [&](auto& n) { n = static_cast<std::decay_t<decltype(n)>>(numbers[at++]); });
  steps.assign(numbers.begin() + static_cast<ptrdiff_t>(at), numbers.end());
}

int64_t MatrixTile::all_steps() const {
  int64_t n = 1;
  for (int64_t s : steps) n *= s;
  return n;
}

int MatrixOperand::box_bytes() const {
  int bytes = map.element_bytes;
  for (int d = 0; d < map.rank; ++d) bytes *= map.box[d];
  return bytes;
}

bool MatrixTile::reads_once() const {
  const auto is_matrix = [](const TensorMap& map) { return map.rank == 2 && !map.windows; };
  return is_matrix(a.map) && is_matrix(b.map) && b.map.sizes[b.k_major ? 1 : 0] <= columns;
}

// Two where half of the registers hold a tile, and half of the shared memory enough stages; of the
// smallest tiles three.
int MatrixTile::shared_by() const {
  if (groups() == 1) return columns <= 64 ? 3 : 2;
  if (type().apart && registers() > kMostRegisters / 4) return 1;
  return rows == 128 && columns <= 128 ? 2 : 1;
}

// A warpgroup can leave its registers to the others; that pays where one block has all of them.
int MatrixTile::threads() const { return multipliers() + (reallots() ? 128 : 32); }

// Of 228 KiB, less what the system takes of each block, makes the addresses multiples of 1024, and
// the barriers.
int MatrixTile::stages() const {
  return std::min(8, (228 / blocks() * 1024 - 4096) / stage_bytes());
}

namespace {
constexpr int64_t kTile = 1024;  // times eight times the pieces of 64 rows, and three flags
}

int64_t amount_of(const TileShape& shape) {
  const int flags = shape.deep * 4 + shape.halved * 2 + shape.wide;
  if (shape.rows == 128 && flags == 0) return shape.columns;
  return shape.columns + kTile * (shape.rows / 64 * 8 + flags);
}

TileShape shape_of(int64_t amount) {
  const int columns = static_cast<int>(amount % kTile), rest = static_cast<int>(amount / kTile);
  if (rest == 0) return {128, columns};
  return {rest / 8 * 64, columns, rest / 2 % 2 != 0, rest % 2 != 0, rest / 4 % 2 != 0};
}

// PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions: wgmma.mma_async", the shapes and
// types of its operands, and the bits of descriptors that turn them.
const MatrixType* matrix_type(DType dtype) {
  static constexpr MatrixType kTypes[] = {{kBF16, "bf16", kF32, true},
                                          {kF16, "f16", kF32, true},
                                          {kI8, "s8", kI32},
                                          {kF8E4M3, "e4m3", kF32, false, true},
                                          {kF8E5M2, "e5m2", kF32, false, true},
                                          {kF32, "tf32", kF32}};
  for (const MatrixType& type : kTypes)
    if (type.dtype == dtype && (dtype != kF32 || env_int("ALLOW_TF32"))) return &type;
  return nullptr;
}

bool has_matrix_unit(const Target& target, DType dtype) {
  return target.has_wgmma && matrix_type(dtype);
}

bool has_window_unit(const Target& target, DType dtype) {
  return has_matrix_unit(target, dtype) && matrix_type(dtype)->turns;
}

namespace {

// The sum of products of a kernel: two loads in the same dtype, multiplied in that of the sum.
struct Product {
  Node reduce = nullptr, a = nullptr, b = nullptr;
  Node mask = nullptr;  // one of them is zero where it does not hold
  uint64_t closed = 0;
};

// Loads give zero where their gate does not hold.
Node operand_load(Node n, Node& mask) {
  Node load = n->op == Op::Cast ? n->src(0) : n;
  if (load->op == Op::Where && load->src(2)->is_const(0) && load->src(1)->op == Op::Load) {
    Node where = load;
    load = load->src(1);
    if (load->num_src == 2 && !mask)
      mask = where->src(0);
    else if (load->num_src == 2 || load->src(2) != where->src(0))
      return nullptr;
  }
  if (load->op != Op::Load) return nullptr;
  const MatrixType* type = matrix_type(load->dtype);
  return type && type->sum == n->dtype ? load : nullptr;
}

bool find_product(Node sink, Product& p) {
  const std::vector<Node> reduces = all_of(sink, Op::Reduce);
  if (reduces.size() != 1 || reduces[0]->arg<OpArg>().op != Op::Add) return false;
  p.reduce = reduces[0];
  Node mul = p.reduce->src(0);
  if (mul->op != Op::Mul) return false;
  p.a = operand_load(mul->src(0), p.mask);
  p.b = operand_load(mul->src(1), p.mask);
  for (Node r : p.reduce->srcs().subspan(1)) p.closed |= r->ranges;
  for (Node s : sink->srcs())
    if (s->op != Op::Store || std::holds_alternative<OpArg>(s->payload)) return false;
  return p.a && p.b && p.a->dtype == p.b->dtype;
}

struct Plan {
  Product product;
  MatrixSide m, n, k;
  std::vector<Node> sums, origins;
};

// The range along k that both operands are read along in rows of 128 bytes.
Node k_range(const Product& p) {
  Node k = nullptr;
  for (Node load : {p.a, p.b}) {
    Node first = contiguous_range(load);
    if (!first || !(first->ranges & p.closed)) continue;
    if (k && k != first) return nullptr;
    k = first;
  }
  return k;
}

// The ranges of the sum that both operands depend on: as one, or the longest of them.
std::vector<MatrixSide> shared_ranges(const Product& p) {
  MatrixSide all, one{{nullptr}};
  for (Node r : p.reduce->srcs().subspan(1)) {
    if (!(p.a->ranges & p.b->ranges & r->ranges)) continue;
    all.ranges.push_back(r);
    if (!one.ranges[0] || extent(r) > extent(one.ranges[0])) one.ranges[0] = r;
  }
  std::sort(all.ranges.begin(), all.ranges.end(),
            [](Node x, Node y) { return range_id(x) < range_id(y); });
  if (all.ranges.empty()) return {};
  return all.ranges.size() == 1 ? std::vector{one} : std::vector{all, one};
}

Node first_of_tile(const MatrixSide& side, Node range) {
  return index_mul(index_div(range, side.size), side.size);
}

// The range that counts all of a side when its ranges are merged.
Node merged(const MatrixSide& side) {
  Node first = side.ranges[0];
  if (side.ranges.size() == 1) return first;
  return make(Op::Range, kIndex, {index(side.extent())}, RangeArg{range_id(first), kind(first)});
}

std::string describe_operands(MatrixTile& tile, Plan& p) {
  p.sums.clear();
  p.origins.clear();
  tile.a = tile.b = {};
  tile.depth = static_cast<int>(p.k.size);
  const Product& product = p.product;
  const auto view = [&](const MatrixSide& side, int64_t part, bool clipped) {
    return MatrixView{side,           part,    clipped,   p.k, first_of_tile(side, merged(side)),
                      product.closed, &p.sums, &p.origins};
  };
  std::string why = describe(product.a, view(p.m, tile.group_rows(), tile.halved), tile.a);
  if (why.empty()) why = describe(product.b, view(p.n, tile.width(), false), tile.b);
  if (why.empty() && tile.b.boxes == 0) why = "so few columns that do not lie along the sum";
  tile.steps = {tiles_of(p.k.extent(), tile.depth)};
  tile.begin = -1;
  if (product.mask) {
    const auto part = part_of_sum(product.mask, p.k);
    if (!part || ((p.m.mask() | p.n.mask() | product.closed) & part->range->ranges))
      return "an operand with a mask";
    if (part->length % tile.depth) return "parts that end within a step";
    tile.steps = {part->length / tile.depth};
    tile.begin = static_cast<int>(p.origins.size());
    p.origins.push_back(index_mul(part->range, part->length));
  }
  uint64_t seen = p.k.mask();
  for (Node k : p.sums) {
    tile.steps.push_back(extent(k));
    seen |= k->ranges;
  }
  // What a step reads beyond the last pixel of a part is the next part's, unless one of the
  // operands is a tensor of just that part: zero there.
  const auto has_parts = [](const MatrixOperand& o) {
    return o.map.windows && o.at[o.map.rank - 1].source >= 0;
  };
  if (why.empty() && tile.a.map.windows && tile.b.map.windows && has_parts(tile.b) &&
      p.k.extent() % tile.depth)
    why = "both operands are windows that end within a step";
  if (why.empty() && seen != product.closed) why = "a range of the sum is no axis of an operand";
  return why;
}

// Steps of the depth of the boxes that few channels are copied in, or of half the depth where tiles
// are so large that few stages would fit.
std::string plan_steps(MatrixTile& tile, Plan& out) {
  constexpr int64_t kFewest = 3;
  const int bytes = tile.dtype.size();
  const int64_t depth = 128 / bytes, half = depth / 2;
  std::vector<MatrixSide> ks = shared_ranges(out.product);
  Node contiguous = k_range(out.product);
  if (contiguous) ks = {{{contiguous}}};
  const bool few = contiguous && tile.columns >= 16 && has_half_boxes(extent(contiguous), bytes);
  std::string why = "the operands have no range of the sum in common";
  for (const MatrixSide& k : ks) {
    out.k = k;
    out.k.size = few ? half : depth;
    why = describe_operands(tile, out);
    if (why.empty() && !contiguous && tile.stages() < kFewest) {
      out.k.size = half;
      why = describe_operands(tile, out);
    }
    if (why.empty()) break;
  }
  if (why.empty() && tile.stages() < 2) why = "a tile has no room for two stages";
  return why;
}

std::string plan(Node sink, const Opt& opt, MatrixTile& tile, Plan& out) {
  Product& p = out.product;
  if (!find_product(sink, p)) return "the kernel is no product of two loads";
  if (opt.axes.empty()) return "no range for the columns";
  const TileShape shape = shape_of(opt.amount);
  tile.rows = shape.rows;
  tile.columns = shape.columns;
  tile.halved = shape.halved;
  tile.wide = shape.wide;
  tile.deep = shape.deep;
  tile.dtype = p.a->dtype;
  if (tile.width() < 8 || tile.columns > 256 ||
      !std::has_single_bit(static_cast<unsigned>(tile.columns)))
    return "a tile has 8, 16, 32, 64, 128 or 256 columns";
  if (tile.rows < 64 || tile.rows > 1024 || tile.rows % 64 || tile.group_rows() % 64)
    return "a tile has rows for all warpgroups, 64 at a time";
  if (tile.wide && tile.width() % 32) return "threads exchange what they have of 32 columns";
  if (tile.deep && tile.shared_by() == 1)
    return "a block has its multiprocessor to itself as it is";
  const int most = MatrixTile::kMostRegisters / (tile.type().apart ? 2 : 1);
  if (tile.registers() > most) return cat("a tile has at most ", most, " elements for a thread");
  std::vector<int> rows{opt.axis};
  rows.insert(rows.end(), opt.axes.begin() + 1, opt.axes.end());
  out.m.size = tile.rows;
  out.n.size = tile.columns;
  const std::vector<Node> ranges = ranges_of(sink);
  const auto add = [&](MatrixSide& side, int id) {
    for (Node r : ranges)
      if (range_id(r) == id && !out.m.has(r) && !out.n.has(r)) side.ranges.push_back(r);
  };
  for (int id : rows) add(out.m, id);
  add(out.n, opt.axes[0]);
  if (out.m.ranges.size() != rows.size() || out.n.ranges.size() != 1 ||
      ((out.m.mask() | out.n.mask()) & p.closed))
    return "no such ranges";
  if (tile.halved ? out.n.extent() <= tile.width()
                  : tile.pieces() > 1 && out.m.extent() <= tile.rows / 2)
    return "a warpgroup has nothing of the only tile";
  if (p.b->ranges & out.m.mask()) std::swap(p.a, p.b);
  if ((p.b->ranges & out.m.mask()) || (p.a->ranges & out.n.mask()))
    return "both operands depend on a range of the tile";
  return plan_steps(tile, out);
}

}  // namespace

std::string matrix_problem(Node sink, const Opt& opt) {
  MatrixTile tile;
  Plan p;
  return plan(sink, opt, tile, p);
}

Node use_matrix_unit(Node sink, const Opt& opt) {
  MatrixTile tile;
  Plan p;
  const std::string why = plan(sink, opt, tile, p);
  expect(why.empty(), "matrix: ", why);
  std::vector<int64_t> numbers;
  each_number(tile, [&](auto& n) { numbers.push_back(n); });
  numbers.insert(numbers.end(), tile.steps.begin(), tile.steps.end());
  for (size_t i = 1; i < p.m.ranges.size(); ++i)
    sink = apply(sink, {OptKind::Merge, opt.axis, range_id(p.m.ranges[i]), {}}, {});
  Node m = merged(p.m), n = p.n.ranges[0];
  Node piece = index_mod(index_div(m, 64), tile.pieces()), row = index_div(index_mod(m, 16), 8);
  const int side = tile.wide ? 8 : 2, group = side * 4;  // columns of a thread, and of four
  Node column = index_div(index_mod(n, tile.width()), group);
  column = index_add(index_mul(piece, tile.width() / group), column);
  Node at = index_add(index_mul(index_add(index_mul(column, 2), row), side), index_mod(n, side));
  const int64_t shape[] = {-1, tile.registers()};
  Node registers = make(Op::Param, tile.type().sum, {}, Ints(shape));
  NodeMap<Node> map;
  for (Node reduce : all_of(sink, Op::Reduce))
    map[reduce] = make(Op::Load, registers->dtype, {registers, at});
  sink = substitute(sink, map);
  std::vector<Node> srcs(sink->srcs().begin(), sink->srcs().end());
  srcs.push_back(make(Op::Matrix, kVoid, p.origins, Ints(numbers)));
  return make(Op::Sink, kVoid, srcs);
}

namespace {

constexpr int64_t kFewestColumns = 24;

// Options in the order in which they are applied, each to what the last one made.
class Chooser {
 public:
  Chooser(Node sink, const Target& target) : sink_(sink), target_(target) {}

  std::vector<Opt> run() {
    Product p;
    if (!find_product(sink_, p) || !has_matrix_unit(target_, p.a->dtype)) return {};
    MatrixSide m = tile_ranges(p, p.a, p.b), n = tile_ranges(p, p.b, p.a);
    if (m.ranges.empty() || n.ranges.empty()) return {};
    // Stores are wide along the columns, and windows go along the rows.
    if (stride(sink_->src(0), range_id(m.ranges[0])) == 1 || n.ranges.size() > 1) std::swap(m, n);
    if (m.extent() < 64 && m.ranges.size() == 1) std::swap(m, n);
    for (Node s : sink_->srcs())
      if (s->ranges != sink_->src(0)->ranges) return {};
    if (std::optional<Opt> opt = by_elements(p)) {
      widen(*opt);
      lay_out(*opt);
      return std::move(options_);
    }
    const int64_t others = others_of(p, m, n);
    if (is_few(p, n, m, others)) std::swap(m, n);
    const bool few = is_few(p, m, n, others);
    if (n.ranges.size() > 1 || m.extent() < 64 || (!few && n.extent() < kFewestColumns)) return {};
    Opt opt{OptKind::Matrix,
            range_id(m.ranges[0]),
            best_tile(p, m, n.extent(), others),
            {range_id(n.ranges[0])}};
    for (size_t i = 1; i < m.ranges.size(); ++i) opt.axes.push_back(range_id(m.ranges[i]));
    if (!is_legal(sink_, opt, target_)) opt.amount = 64;
    if (few) {
      const auto columns = std::max<int64_t>(8, std::bit_ceil(static_cast<uint64_t>(n.extent())));
      // What reads each element once has all multiprocessors read.
      const bool fills = tiles_of(m.extent(), 128) * others >= target_.cores;
      opt.amount = amount_of({fills ? 128 : 64, static_cast<int>(columns)});
      if (!is_legal(sink_, opt, target_)) opt.amount = columns;
      if (!is_legal(sink_, opt, target_)) opt.amount = 64;
    }
    if (!is_legal(sink_, opt, target_)) return {};
    widen(opt);
    deepen(opt, m.extent(), n.extent(), others);
    lay_out(opt);
    return std::move(options_);
  }

  // Those of a tile that is given.
  std::vector<Opt> run(const Opt& matrix, int64_t band) {
    lay_out(matrix, band);
    return std::move(options_);
  }

 private:
  void apply(Opt opt) {
    sink_ = simplify(tiny::apply(sink_, opt, target_));
    options_.push_back(std::move(opt));
  }
  bool has(int id) const {
    const auto all = ranges_of(sink_);
    return std::any_of(all.begin(), all.end(), [&](Node r) { return range_id(r) == id; });
  }
  int split(int id, int64_t amount) {
    const int inner = next_range_id(sink_);
    apply({OptKind::Split, id, amount, {}});
    return inner;
  }
  void bind(int id, RangeKind kind) { apply({OptKind::Bind, id, static_cast<int64_t>(kind), {}}); }

  // Threads write eight columns at a time where those lie side by side in memory: of halves 16
  // bytes, not 4. Pairs of floats are as wide as memory's sectors already.
  void widen(Opt& opt) const {
    const int n = opt.axes[0];
    for (Node s : sink_->srcs()) {
      if (stride(s, n) != 1 || !s->src(0)->dtype.is_half()) return;
      for (Node r : ranges_of(s))
        if (range_id(r) != n && stride(s, range_id(r)) % 8) return;
    }
    TileShape shape = shape_of(opt.amount);
    const int64_t columns = extent(range_with_id(sink_, n));
    shape.wide = columns % 8 == 0 && columns >= 32;  // of four threads
    Opt wide = opt;
    wide.amount = amount_of(shape);
    if (is_legal(sink_, wide, target_)) opt = wide;
  }

  // Tiles of all rows and columns that are computed one by one.
  int64_t others_of(const Product& p, const MatrixSide& m, const MatrixSide& n) const {
    int64_t others = 1;
    for (Node r : ranges_of(sink_))
      if (!m.has(r) && !n.has(r) && !(r->ranges & p.closed)) others *= extent(r);
    return others;
  }

  // Where no multiprocessor gets a second tile, it has the stages of the blocks that would share
  // it: on an H200 a product of 1024 x 1024 x 1024 takes 9.4 us so, not 10.7.
  void deepen(Opt& opt, int64_t m, int64_t n, int64_t others) const {
    TileShape shape = shape_of(opt.amount);
    shape.deep = tiles_of(m, shape.rows) * tiles_of(n, shape.columns) * others <= target_.cores;
    Opt deep = opt;
    deep.amount = amount_of(shape);
    if (is_legal(sink_, deep, target_)) opt = deep;
  }

  // Rows that count the elements of windows, channels innermost.
  std::optional<Opt> by_elements(const Product& p) const {
    for (Node load : {p.a, p.b}) {
      Node other = load == p.a ? p.b : p.a, first = contiguous_range(load);
      const MatrixSide n = tile_ranges(p, other, load);
      if (!first || n.ranges.size() != 1) continue;
      MatrixSide m;
      for (const auto& t : to_sum(load->src(1)).terms)
        if (t.atom->op == Op::Range && !(t.atom->ranges & (p.closed | other->ranges)))
          m.ranges.push_back(t.atom);
      std::sort(m.ranges.begin(), m.ranges.end(), [&](Node x, Node y) {
        return x != first && (y == first || range_id(x) < range_id(y));
      });
      if (m.ranges.size() < 2 || m.ranges.back() != first) continue;
      const WindowTile tile = window_tile({m.extent() / extent(first), extent(first), n.extent()},
                                          others_of(p, m, n), target_.cores);
      if (!tile.by_element) continue;
      Opt opt{
          OptKind::Matrix, range_id(m.ranges[0]), amount_of(tile.shape), {range_id(n.ranges[0])}};
      for (size_t i = 1; i < m.ranges.size(); ++i) opt.axes.push_back(range_id(m.ranges[i]));
      if (is_legal(sink_, opt, target_)) return opt;
    }
    return {};
  }

  // Whether `n` has less than a tile's usual columns and that is no loss, as memory is what limits:
  // each element along m is read once, for all columns.
  bool is_few(const Product& p, const MatrixSide& m, const MatrixSide& n, int64_t others) const {
    constexpr int64_t kFewest = 4, kMost = 127;
    if (m.ranges.size() > 1 || n.ranges.size() > 1 || n.extent() < kFewest || n.extent() > kMost)
      return false;
    Node load = p.a->ranges & m.mask() ? p.a : p.b;
    int64_t reads = 1;
    for (const auto& t : to_sum(load->src(1)).terms)
      if (t.atom->op == Op::Range) reads *= extent(t.atom);
    return reads <= load->src(0)->ints()[1] &&
           2 * tiles_of(m.extent(), 128) * others >= target_.cores;
  }

  // The ranges of an operand alone that a tile goes along: the one where it is contiguous, or all
  // of windows, or the longest.
  static MatrixSide tile_ranges(const Product& p, Node load, Node other) {
    MatrixSide own;
    Node first = contiguous_range(load), longest = nullptr;
    for (const auto& t : to_sum(load->src(1)).terms) {
      if (t.atom->op != Op::Range || (t.atom->ranges & (p.closed | other->ranges))) continue;
      if (t.atom == first) return {{first}};
      own.ranges.push_back(t.atom);
      if (!longest || extent(t.atom) > extent(longest)) longest = t.atom;
    }
    std::sort(own.ranges.begin(), own.ranges.end(),
              [](Node x, Node y) { return range_id(x) < range_id(y); });
    const bool windows = load->num_src > 2 || is_walked_twice(p, load);
    return windows || !longest ? own : MatrixSide{{longest}};
  }

  // Whether different elements of windows are the same in memory.
  static bool is_walked_twice(const Product& p, Node load) {
    int64_t reach = 1;
    for (const auto& t : to_sum(load->src(1)).terms)
      if (t.atom->op == Op::Range) reach += std::abs(t.factor) * (extent(t.atom) - 1);
    int64_t elements = 1;
    for (Node r : ranges_of(load)) elements *= extent(r);
    return elements > reach && p.closed;
  }

  // Wide tiles multiply faster, as far as there are enough of them for all multiprocessors.
  // Measured on an H200: 1, 0.87 and 0.6 of the rate with 128 rows and 256, 128 and 64 columns, and
  // those of 64 rows. The rates of tall tiles, which read their columns half as often, are guesses,
  // and so are those of windows with few columns: the copy engine sets them, by the rows and
  // columns that it copies.
  int64_t best_tile(const Product& p, const MatrixSide& m, int64_t n, int64_t others) const {
    struct Tile {
      int rows, columns;
      double rate;
    };
    std::vector<Tile> tiles{
        {128, 256, 1.0}, {128, 128, 0.87}, {128, 64, 0.6}, {256, 128, 1.0}, {256, 64, 0.75}};
    if (m.ranges.size() == 1)
      tiles.insert(tiles.end(), {{64, 128, 0.75}, {64, 64, 0.44}, {64, 32, 0.27}});
    if (m.ranges.size() > 1) {
      if (Node k = k_range(p); k && has_half_boxes(extent(k), 2)) tiles.push_back({512, 64, 0.84});
      tiles.push_back({384, 32, 0.45});
    }
    if (p.mask) return amount_of(tile_of_parts(m.extent(), n, others, target_.cores).shape);
    int64_t best = 256;
    double best_time = 0;
    if (matrix_type(p.a->dtype)->apart)
      std::erase_if(tiles, [](const Tile& t) { return t.rows * t.columns > 128 * 128; });
    for (const Tile& t : tiles) {
      const int64_t all = tiles_of(m.extent(), t.rows) * tiles_of(n, t.columns) * others;
      const int64_t turns = tiles_of(all, target_.cores);
      const double time = static_cast<double>(turns * t.rows * t.columns) / t.rate;
      if (best_time != 0 && time >= best_time) continue;
      best = amount_of({t.rows, t.columns});
      best_time = time;
    }
    return best;
  }

  // Element, thread and register as matrix.h says.
  void lay_out(const Opt& opt, int64_t most_in_band = kMatrixBand) {
    const int m = opt.axis, n = opt.axes[0];
    const TileShape tile = shape_of(opt.amount);
    apply(opt);
    const bool alone = tile.rows == 64 && !tile.halved;  // one warpgroup
    int group = split(m, tile.rows), piece = group;
    if (!tile.halved && !alone) piece = split(group, tile.rows / 2);
    const int in_group = tile.rows == (tile.halved || alone ? 64 : 128) ? piece : split(piece, 64);
    const int half = split(in_group, 16), row = split(half, 8);
    int eight = split(n, tile.columns);
    if (tile.halved) {
      group = eight;
      eight = split(group, tile.columns / 2);
    }
    const int quad = split(eight, tile.wide ? 32 : 8), pair = split(quad, tile.wide ? 8 : 2);
    const bool pieces = piece != in_group;
    for (int id : {in_group, row, quad})
      if (id != group) apply({OptKind::Merge, group, id, {}});
    bind(group, RangeKind::Thread);
    if (pieces) bind(piece, RangeKind::Unroll);
    bind(half, RangeKind::Unroll);
    if (has(eight)) bind(eight, RangeKind::Unroll);
    bind(pair, RangeKind::Vector);
    std::vector<int> blocks;
    for (Node r : ranges_of(sink_))
      if (kind(r) == RangeKind::Loop && range_id(r) != m && range_id(r) != n)
        blocks.push_back(range_id(r));
    // Tiles that run at a time lie in a band: their rows and columns stay in the second cache.
    int band = -1;
    if (has(m)) {
      blocks.push_back(m);
      int64_t rows = std::min<int64_t>(most_in_band, extent(range_with_id(sink_, m)));
      while (extent(range_with_id(sink_, m)) % rows) --rows;
      if (rows > 1 && rows < extent(range_with_id(sink_, m))) band = split(m, rows);
    }
    if (has(n)) blocks.push_back(n);
    if (band >= 0) blocks.push_back(band);
    for (size_t i = 1; i < blocks.size(); ++i) apply({OptKind::Merge, blocks[0], blocks[i], {}});
    std::vector<int> order;
    if (!blocks.empty()) {
      bind(blocks[0], RangeKind::Block);
      order.push_back(blocks[0]);
    }
    order.push_back(group);
    if (pieces) order.push_back(piece);
    for (int id : {half, eight, pair})
      if (has(id)) order.push_back(id);
    apply({OptKind::Order, 0, 0, order});
  }

  Node sink_;
  const Target& target_;
  std::vector<Opt> options_;
};

}  // namespace

std::vector<Opt> matrix_options(Node sink, const Target& target) {
  return Chooser(sink, target).run();
}

std::vector<Opt> matrix_options(Node sink, const Target& target, const Opt& matrix, int64_t band) {
  return Chooser(sink, target).run(matrix, band);
}

void set_launch(const MatrixTile& tile, const Target& target, LaunchSize& size) {
  size.grid[0] = std::min<int64_t>(size.grid[0], target.cores * tile.blocks());
  size.block[0] = tile.threads();
  size.shared_bytes = tile.stages() * tile.stage_bytes() + 1024;
  size.maps = {tile.a.map, tile.b.map};
}

}  // namespace tiny
