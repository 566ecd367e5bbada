#include "codegen/matrix.h"

#include <algorithm>
#include <bit>

#include "codegen/access.h"
#include "tiny/algebra.h"
#include "tiny/error.h"

namespace tiny {

namespace {

// Every number of a tile in one order, for the payload of its node and back.
template <class Visit> void each_number(MatrixTile& tile, Visit visit) {
  visit(tile.columns);
  int bf16 = tile.dtype == kBF16;
  visit(bf16);
  tile.dtype = bf16 ? kBF16 : kF16;
  for (MatrixOperand* o : {&tile.a, &tile.b}) {
    TensorMap& map = o->map;
    visit(map.slot);
    visit(o->elements);
    visit(map.offset);
    visit(map.rank);
    int k_major = o->k_major;
    visit(k_major);
    o->k_major = k_major != 0;
    visit(o->boxes);
    for (int d = 0; d < 5; ++d) {
      visit(map.sizes[d]);
      visit(map.strides[d]);
      visit(map.box[d]);
      visit(o->source_of[d]);
      visit(o->step_of[d]);
    }
    map.element_bytes = tile.dtype.size();
    map.is_bf16 = bf16 != 0;
  }
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

// Of 227 KiB, less what makes the addresses multiples of 1024 and the barriers.
int MatrixTile::stages() const {
  return std::min(8, (226 * 1024 - 2048) / (a_bytes() + b_bytes()));
}

bool has_matrix_unit(const Target& target, DType dtype) {
  return target.has_wgmma && dtype.is_half();
}

namespace {

// The sum of products of a kernel: two loads in the same dtype, multiplied in f32.
struct Product {
  Node reduce = nullptr, a = nullptr, b = nullptr;
  uint64_t closed = 0;
};

Node half_load(Node n) {
  if (n->op != Op::Cast) return nullptr;
  Node load = n->src(0);
  return load->op == Op::Load && load->num_src == 2 && load->dtype.is_half() ? load : nullptr;
}

bool find_product(Node sink, Product& p) {
  const std::vector<Node> reduces = all_of(sink, Op::Reduce);
  if (reduces.size() != 1 || reduces[0]->arg<OpArg>().op != Op::Add) return false;
  p.reduce = reduces[0];
  Node mul = p.reduce->src(0);
  if (mul->op != Op::Mul || mul->dtype != kF32) return false;
  p.a = half_load(mul->src(0));
  p.b = half_load(mul->src(1));
  for (Node r : p.reduce->srcs().subspan(1)) p.closed |= r->ranges;
  for (Node s : sink->srcs())
    if (s->op != Op::Store || std::holds_alternative<OpArg>(s->payload)) return false;
  return p.a && p.b && p.a->dtype == p.b->dtype;
}

// The ranges that an affine index counts, the contiguous one first, with their steps.
bool axes_of(Node load, std::vector<std::pair<int64_t, Node>>& axes) {
  const Sum sum = to_sum(load->src(1));
  const int64_t bytes = load->dtype.size();
  if (sum.constant * bytes % 16) return false;
  for (const auto& t : sum.terms) {
    if (t.atom->op != Op::Range || t.factor < 1) return false;
    axes.emplace_back(t.factor, t.atom);
  }
  std::sort(axes.begin(), axes.end(), [](const auto& x, const auto& y) {
    return std::pair(x.first, range_id(x.second)) < std::pair(y.first, range_id(y.second));
  });
  if (axes.size() < 2 || axes.size() > 5 || axes[0].first != 1) return false;
  return std::all_of(axes.begin() + 1, axes.end(),
                     [&](const auto& axis) { return axis.first * bytes % 16 == 0; });
}

// One operand of the tile: `across` is its range m or n, in boxes of `size` elements together.
std::string describe(Node load, Node across, int size, Node k, const Product& p,
                     std::vector<Node>& origins, std::vector<Node>& ks, MatrixOperand& out) {
  std::vector<std::pair<int64_t, Node>> axes;
  if (!axes_of(load, axes)) return "an operand's elements do not lie as the copy engine wants them";
  TensorMap& map = out.map;
  map.slot = static_cast<int>(load->src(0)->ints()[0]);
  out.elements = load->src(0)->ints()[1];
  map.offset = to_sum(load->src(1)).constant * load->dtype.size();
  map.rank = static_cast<int>(axes.size());
  Node first = axes[0].second;
  out.k_major = first == k;
  if (first != k && first != across) return "an operand is contiguous along another range";
  out.boxes = out.k_major ? 1 : size / MatrixTile::kStep;
  bool has_k = false, has_across = false;
  for (int d = 0; d < 5; ++d) out.source_of[d] = out.step_of[d] = -1;
  for (int d = 0; d < map.rank; ++d) {
    const auto [step, r] = axes[d];
    map.sizes[d] = extent(r);
    map.strides[d] = step * load->dtype.size();
    map.box[d] = 1;
    if (r == k) {
      map.box[d] = MatrixTile::kStep;
      out.step_of[d] = 0;
      has_k = true;
    } else if (p.closed & r->ranges) {
      auto at = std::find(ks.begin(), ks.end(), r);
      if (at == ks.end()) at = ks.insert(ks.end(), r);
      out.step_of[d] = static_cast<int>(at - ks.begin());
    } else {
      Node origin = r;
      if (r == across) {
        map.box[d] = out.k_major ? size : MatrixTile::kStep;
        origin = index_mul(index_div(r, size), size);
        has_across = true;
      }
      out.source_of[d] = static_cast<int>(origins.size());
      origins.push_back(origin);
    }
  }
  return has_k && has_across ? "" : "an operand does not depend on its ranges";
}

struct Plan {
  Product product;
  Node m = nullptr, n = nullptr, k = nullptr;
  MatrixTile* tile = nullptr;
  std::vector<Node> origins;
};

// The range along k that both operands are read along in rows of 64.
Node k_range(const Product& p) {
  Node k = nullptr;
  for (Node load : {p.a, p.b}) {
    std::vector<std::pair<int64_t, Node>> axes;
    if (!axes_of(load, axes)) return nullptr;
    Node first = axes[0].second;
    if (!(first->ranges & p.closed)) continue;
    if (k && k != first) return nullptr;
    k = first;
  }
  if (k) return k;
  for (Node r : p.reduce->srcs().subspan(1))
    if ((p.a->ranges & p.b->ranges & r->ranges) && (!k || extent(r) > extent(k))) k = r;
  return k;
}

std::string plan(Node sink, const Opt& opt, MatrixTile& tile, Plan& out) {
  Product& p = out.product;
  if (!find_product(sink, p)) return "the kernel is no product of two loads";
  if (opt.axes.size() != 1) return "no range for the columns";
  for (Node r : ranges_of(sink)) {
    if (range_id(r) == opt.axis) out.m = r;
    if (range_id(r) == opt.axes[0]) out.n = r;
  }
  if (!out.m || !out.n || ((out.m->ranges | out.n->ranges) & p.closed)) return "no such ranges";
  if (p.b->ranges & out.m->ranges) std::swap(p.a, p.b);
  if ((p.b->ranges & out.m->ranges) || (p.a->ranges & out.n->ranges))
    return "both operands depend on a range of the tile";
  out.k = k_range(p);
  if (!out.k) return "the operands have no range of the sum in common";
  const int columns = static_cast<int>(opt.amount);
  if (columns != 64 && columns != 128 && columns != 256) return "a tile has 64, 128 or 256 columns";
  tile.columns = columns;
  tile.dtype = p.a->dtype;
  std::vector<Node> ks{out.k};
  std::string why = describe(p.a, out.m, MatrixTile::kRows, out.k, p, out.origins, ks, tile.a);
  if (why.empty()) why = describe(p.b, out.n, columns, out.k, p, out.origins, ks, tile.b);
  tile.steps = {tiles_of(extent(out.k), MatrixTile::kStep)};
  for (size_t i = 1; i < ks.size(); ++i) tile.steps.push_back(extent(ks[i]));
  uint64_t seen = 0;
  for (Node k : ks) seen |= k->ranges;
  if (why.empty() && seen != p.closed) why = "a range of the sum is no axis of an operand";
  return why;
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
  Node row = index_div(index_mod(p.m, 16), 8);
  Node column = index_div(index_mod(p.n, tile.columns), 8);
  Node at = index_add(index_mul(index_add(index_mul(column, 2), row), 2), index_mod(p.n, 2));
  const int64_t shape[] = {-1, tile.columns / 2};
  Node registers = make(Op::Param, kF32, {}, Ints(shape));
  NodeMap<Node> map;
  map[p.product.reduce] = make(Op::Load, kF32, {registers, at});
  sink = substitute(sink, map);
  std::vector<Node> srcs(sink->srcs().begin(), sink->srcs().end());
  srcs.push_back(make(Op::Matrix, kVoid, p.origins, Ints(numbers)));
  return make(Op::Sink, kVoid, srcs);
}

namespace {

// Options in the order in which they are applied, each to what the last one made.
class Chooser {
 public:
  Chooser(Node sink, const Target& target) : sink_(sink), target_(target) {}

  std::vector<Opt> run() {
    Product p;
    if (!find_product(sink_, p) || !has_matrix_unit(target_, p.a->dtype)) return {};
    Node m = tile_range(p, p.a, p.b), n = tile_range(p, p.b, p.a);
    if (!m || !n) return {};
    // Stores are wide along the columns.
    if (stride(sink_->src(0), range_id(m)) == 1) std::swap(m, n);
    if (extent(m) < 64 || extent(n) < 32) return {};
    for (Node s : sink_->srcs())
      if (s->ranges != sink_->src(0)->ranges) return {};
    int64_t others = 1;
    for (Node r : ranges_of(sink_))
      if (r != m && r != n && !(r->ranges & p.closed)) others *= extent(r);
    const Opt opt{
        OptKind::Matrix, range_id(m), best_columns(extent(m), extent(n), others), {range_id(n)}};
    if (!is_legal(sink_, opt, target_)) return {};
    lay_out(opt);
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

  // The range of an operand alone that a tile goes along: where it is contiguous, else the longest.
  static Node tile_range(const Product& p, Node load, Node other) {
    Node best = nullptr;
    for (const auto& t : to_sum(load->src(1)).terms) {
      if (t.atom->op != Op::Range || (t.atom->ranges & (p.closed | other->ranges))) continue;
      if (t.factor == 1) return t.atom;
      if (!best || extent(t.atom) > extent(best)) best = t.atom;
    }
    return best;
  }

  // Wide tiles multiply faster, as far as there are enough of them for all multiprocessors.
  // Measured on an H200: 1, 0.87 and 0.6 of the rate with 256, 128 and 64 columns.
  int64_t best_columns(int64_t m, int64_t n, int64_t others) const {
    int64_t best = 256;
    double best_time = 0;
    for (const auto& [columns, rate] :
         {std::pair<int64_t, double>{256, 1.0}, {128, 0.87}, {64, 0.6}}) {
      const int64_t tiles = tiles_of(m, MatrixTile::kRows) * tiles_of(n, columns) * others;
      const double time = static_cast<double>(tiles_of(tiles, target_.cores) * columns) / rate;
      if (best_time != 0 && time >= best_time) continue;
      best = columns;
      best_time = time;
    }
    return best;
  }

  // Element, thread and register as matrix.h says.
  void lay_out(const Opt& opt) {
    const int m = opt.axis, n = opt.axes[0];
    apply(opt);
    const int group = split(m, MatrixTile::kRows), in_group = split(group, 64);
    const int half = split(in_group, 16), row = split(half, 8);
    const int eight = split(n, opt.amount), quad = split(eight, 8), pair = split(quad, 2);
    for (int id : {in_group, row, quad}) apply({OptKind::Merge, group, id, {}});
    bind(group, RangeKind::Thread);
    bind(half, RangeKind::Unroll);
    bind(eight, RangeKind::Unroll);
    bind(pair, RangeKind::Vector);
    std::vector<int> blocks;
    for (Node r : ranges_of(sink_))
      if (kind(r) == RangeKind::Loop && range_id(r) != m && range_id(r) != n)
        blocks.push_back(range_id(r));
    // Tiles that run at a time lie in a band: their rows and columns stay in the second cache.
    int band = -1;
    if (has(m)) {
      blocks.push_back(m);
      int64_t rows = std::min<int64_t>(16, extent(range_with_id(sink_, m)));
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
    for (int id : {group, half, eight, pair}) order.push_back(id);
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

void set_launch(const MatrixTile& tile, const Target& target, LaunchSize& size) {
  size.grid[0] = std::min<int64_t>(size.grid[0], target.cores);
  size.block[0] = MatrixTile::kMultipliers + 128;
  size.shared_bytes = tile.stages() * (tile.a_bytes() + tile.b_bytes()) + 1024;
  size.maps = {tile.a.map, tile.b.map};
}

}  // namespace tiny
