#include "codegen/options/stage.h"

#include <algorithm>

#include "codegen/kernel/access.h"
#include "codegen/kernel/facts.h"
#include "codegen/options/mma.h"
#include "tiny/base/error.h"
#include "tiny/ir/sizes.h"
#include "tiny/rewrite/algebra.h"

namespace tiny {

Node narrow(Node factor, const Target& target) {
  if (factor->op != Op::Cast || target.language == Target::Language::Wgsl) return factor;
  const DType from = factor->src(0)->dtype;
  if (from.is_half()) return factor->dtype == kF32 ? factor->src(0) : factor;
  const MmaUnit* unit = from.size() == 1 ? mma_unit(target, from) : nullptr;
  return unit && unit->sum == factor->dtype ? factor->src(0) : factor;
}

bool narrow_factors(Contraction& c, const Target& target) {
  Node a = narrow(c.a, target), b = narrow(c.b, target);
  if (a->dtype != b->dtype && !mma_unit(target, a->dtype, b->dtype)) return false;
  c.a = a;
  c.b = b;
  return true;
}

bool move_alike(Node value, Node r, Node s) {
  Node at_first = substitute(value, s, index(0));
  return simplify(substitute(at_first, r, index_add(r, s))) == simplify(value);
}

namespace {

bool holds(Node gate, Node condition) {
  if (gate == condition) return true;
  return gate->op == Op::And && (holds(gate->src(0), condition) || holds(gate->src(1), condition));
}

Node added(Node gate, Node condition) {
  if (condition->op == Op::And && condition->dtype.is_bool())
    return added(added(gate, condition->src(0)), condition->src(1));
  return gate && holds(gate, condition) ? gate : both(gate, condition);
}

// Zero where the condition is false: loads can be told.
Node gated(Node n, Node condition) {
  if (n->op == Op::Cast) return make(Op::Cast, n->dtype, {gated(n->src(0), condition)});
  if (n->op == Op::Load && !is_stage(n->src(0)))
    return make(Op::Load, n->dtype,
                {n->src(0), n->src(1), added(n->num_src > 2 ? n->src(2) : nullptr, condition)});
  return make(Op::Where, n->dtype, {condition, n, constant(n->dtype, 0)});
}

bool is_padded_load(Node n) {
  return n->op == Op::Where && n->src(1)->op == Op::Load && n->src(2)->is_const(0);
}

// The sum and its factors, each of which is zero in terms that do not count: zero times zero is
// zero.
std::optional<Contraction> gated_contraction(Node reduce) {
  auto c = contraction_of(reduce);
  if (!c || c->is_converted || !(c->product->dtype.is_float() || c->product->dtype == kI32))
    return {};
  Node gate = c->gate();
  for (Node* f : {&c->a, &c->b}) {
    if (gate) *f = gated(*f, gate);
    if (is_padded_load(*f)) *f = gated((*f)->src(1), (*f)->src(0));
  }
  return c;
}

Node factor_of(const Contraction& c, const Opt& opt) { return opt.staged.number ? c.b : c.a; }

// Whether a factor has all ranges of the option's tile, and lies in no stage.
bool is_to_be_staged(Node factor, const Opt& opt) {
  return !(factor->op == Op::Load && is_stage(factor->src(0))) &&
         std::ranges::all_of(opt.axes, [&](int id) { return factor->ranges >> id & 1; });
}

// Of several sums that close the range, as a CPU's chains have them, the first with such a factor.
std::optional<Contraction> find_product(Node sink, const Opt& opt, bool cpu, std::string& why) {
  const std::vector<Node> sums = reductions_along(sink, opt.axis);
  why = sums.empty()       ? "no range of a sum"
        : sums.size() == 1 ? "the reduction is no sum of products"
                           : "more than one reduction closes the range";
  for (Node sum : sums)
    if (auto c = gated_contraction(sum);
        c && (sums.size() == 1 || (cpu && is_to_be_staged(factor_of(*c, opt), opt))))
      return c;
  return {};
}

// One dimension of a tile: the ranges of the kernel that move along it, and its extent.
struct StageSide {
  std::vector<Node> ranges;
  int64_t extent = 1;
};

// `windows`: what they share is in the tile once.
std::vector<StageSide> sides_of(Node value, const std::vector<Node>& tile, bool windows) {
  std::vector<StageSide> out;
  for (Node r : tile) {
    const auto at = std::ranges::find_if(out, [&](const StageSide& s) {
      return windows && s.ranges.size() == 1 && move_alike(value, s.ranges[0], r);
    });
    StageSide& side = at == out.end() ? out.emplace_back() : *at;
    side.extent += extent(r) - 1;
    side.ranges.push_back(r);
  }
  return out;
}

// Elements between neighbours along each side: `padding` lies between those along the first one.
std::vector<int64_t> steps_of(const std::vector<StageSide>& sides, int64_t padding) {
  std::vector<int64_t> out(sides.size(), 1);
  for (size_t i = sides.size() - 1; i-- > 0;) out[i] = out[i + 1] * sides[i + 1].extent;
  if (sides.size() > 1) out[0] += padding;
  return out;
}

Node place(const std::vector<StageSide>& sides, const std::vector<int64_t>& steps) {
  Node at = index(0);
  for (size_t i = 0; i < sides.size(); ++i)
    for (Node r : sides[i].ranges) at = index_add(at, index_mul(r, steps[i]));
  return at;
}

// The only load of a factor that has an element of its own for each of the tile's; nullptr where
// there are several.
Node own_load(Node factor, Node loop, const std::vector<Node>& tile) {
  Node own = nullptr;
  for (Node n : topological(factor)) {
    const bool is_own =
        n->op == Op::Load && (n->ranges & loop->ranges) &&
        std::ranges::all_of(tile, [&](Node r) { return (n->ranges & r->ranges) != 0; });
    if (!is_own) continue;
    if (own || is_stage(n->src(0))) return nullptr;
    own = n;
  }
  return own;
}

bool is_raw(const Opt& opt) { return opt.staged.form == StagedFactor::Form::Raw; }
bool is_of_windows(const Opt& opt) { return opt.staged.form == StagedFactor::Form::Windows; }

bool is_valid(const StagedFactor& f) {
  return (f.number == 0 || f.number == 1) && f.form <= StagedFactor::Form::Windows &&
         f.padding >= 0;
}

// Those that there are, each once.
std::vector<Node> tile_ranges(Node sink, const Opt& opt) {
  std::vector<Node> out;
  for (int id : opt.axes)
    if (Node r = find_range(sink, id); r && !contains(out, r)) out.push_back(r);
  return out;
}

}  // namespace

std::string stage_problem(Node sink, const Opt& opt, const Target& target) {
  const bool cpu = target.kind == Target::Kind::Cpu;
  if (cpu && (opt.amount != 1 || opt.staged.form != StagedFactor::Form::Value))
    return "a CPU stages values, and one tile of them";
  if (opt.axes.empty() || !is_valid(opt.staged) || opt.amount < 1 || opt.amount > 8)
    return "a factor, a padding, ranges of a tile and a depth of 1 to 8 are wanted";
  std::string why;
  const auto c = find_product(sink, opt, cpu, why);
  if (!c) return why;
  Node value = factor_of(*c, opt);
  if (!cpu) value = narrow(value, target);
  if (value->op == Op::Load && is_stage(value->src(0))) return "the factor is staged already";
  if (!all_of(value, Op::Reduce).empty()) return "the factor is computed from a reduction";
  if (target.language == Target::Language::Wgsl && value->dtype.size() != 4)
    return "shared memory has elements of 32 bits";
  const std::vector<Node> tile = tile_ranges(sink, opt);
  if (tile.size() != opt.axes.size()) return "no such ranges of a tile";
  if (is_raw(opt) && value->op == Op::Load) return "the factor is what lies in memory";
  if (is_raw(opt) && !own_load(value, range_with_id(sink, opt.axis), tile))
    return "the factor is not computed from one load";
  for (Node r : tile) {
    if (!(value->ranges & r->ranges) || (range_id(r) == opt.axis && !cpu))
      return cat("the factor has no tile along r", range_id(r));
    if (!r->src(0)->is_const()) return cat("the extent of r", range_id(r), " is not known");
  }
  return "";
}

namespace {

// The exclusive or of the lowest three bits of each.
Node exchanged(Node a, Node b) {
  Node out = index(0);
  for (int64_t bit = 1; bit < 8; bit *= 2) {
    Node sum = index_add(index_div(index_mod(a, 8), bit), index_div(index_mod(b, 8), bit));
    out = index_add(out, index_mul(index_mod(sum, 2), bit));
  }
  return out;
}

// StageTile::swizzled.
Node swizzled_place(const std::vector<StageSide>& sides) {
  constexpr int64_t kRow = 64, kPart = 8;  // elements of 128 bytes, and of 16
  const Node row = place({sides[0]}, {1}), column = place({sides[1]}, {1});
  Node box = index_mul(index_div(column, kRow), sides[0].extent * kRow);
  Node part = exchanged(index_div(column, kPart), row);
  return index_add(index_add(box, index_mul(row, kRow)),
                   index_add(index_mul(part, kPart), index_mod(column, kPart)));
}

// `loop`: whose iterations count the tiles.
Node staged(Node value, const std::vector<StageSide>& sides, const StageTile& tile, int slot,
            int& id) {
  const std::vector<int64_t> steps = steps_of(sides, tile.padding);
  NodeMap<Node> map;
  std::vector<StageSide> fill;
  std::vector<Node> closed;
  for (const StageSide& side : sides) {
    Node r = make_range(side.extent, id++, RangeKind::Loop);
    for (Node of : side.ranges) map[of] = of == side.ranges[0] ? r : index(0);
    fill.push_back({{r}, side.extent});
    closed.push_back(r);
  }
  const auto place_in = [&](const std::vector<StageSide>& s) {
    return tile.swizzled ? swizzled_place(s) : place(s, steps);
  };
  const int64_t size = round_up(steps[0] * sides[0].extent, tile.swizzled ? 512 : 16);
  Node turn = tile.depth > 1 ? index_mul(index_mod(tile.loop, tile.depth), size) : index(0);
  const int64_t numbers[] = {slot, size * tile.depth, tile.depth};
  std::vector<Node> srcs{substitute(value, map), index_add(turn, place_in(fill)), index(0)};
  srcs.insert(srcs.end(), closed.begin(), closed.end());
  Node stage = make(Op::Stage, value->dtype, srcs, Ints(numbers));
  return make(Op::Load, value->dtype, {stage, index_add(turn, place_in(sides))});
}

}  // namespace

Node staged_value(Node value, const StageTile& tile, int slot, int& id) {
  return staged(value, sides_of(value, tile.ranges, false), tile, slot, id);
}

Node use_stage(Node sink, const Opt& opt, const Target& target) {
  std::string why;
  auto c = find_product(sink, opt, target.kind == Target::Kind::Cpu, why);
  expect(c.has_value(), "stage: ", why);
  Node factor = factor_of(*c, opt), value = factor;
  if (target.kind != Target::Kind::Cpu) value = narrow(factor, target);
  const std::vector<Node> tile = tile_ranges(sink, opt);
  Node loop = range_with_id(sink, opt.axis);
  Node raw = is_raw(opt) ? own_load(value, loop, tile) : nullptr;
  if (raw) value = c->gate() ? gated(raw, c->gate()) : raw;
  int id = next_range_id(sink);
  const bool is_filled_again = (value->ranges & loop->ranges) && !contains(tile, loop);
  const StageTile how{tile, opt.staged.padding, loop, is_filled_again ? opt.amount : 1};
  Node read =
      staged(value, sides_of(value, tile, is_of_windows(opt)), how, next_stage_slot(sink), id);
  if (raw)
    read = substitute(factor, raw, read);
  else if (value != factor)
    read = make(Op::Cast, factor->dtype, {read});
  (opt.staged.number ? c->b : c->a) = read;
  std::vector<Node> sum(c->reduce->srcs().begin(), c->reduce->srcs().end());
  sum[0] = make(Op::Mul, factor->dtype, {c->a, c->b});
  return substitute(sink, c->reduce, with_sources(c->reduce, sum));
}

int next_stage_slot(Node sink) {
  int slot = kFirstStage;
  for (Node s : all_of(sink, Op::Stage)) slot = std::min(slot, slot_of(s) - 1);
  return slot;
}

std::vector<Node> stages_of(std::span<const Node> statements) {
  std::vector<Node> out;
  for (Node n : statements) {
    Node access = n->op == Op::Fetch ? n->src(0) : n;
    if (access->op != Op::Load && access->op != Op::Store) continue;
    if (Node s = access->src(0); is_stage(s) && !contains(out, s)) out.push_back(s);
  }
  return out;
}

std::vector<Node> repeated_along(Node store, std::span<const Node> blocks,
                                 std::span<const Node> threads) {
  std::vector<Node> out;
  if (!is_stage(store->src(0))) out.assign(blocks.begin(), blocks.end());
  out.insert(out.end(), threads.begin(), threads.end());
  std::erase_if(out, [&](Node r) { return store->ranges & r->ranges; });
  return out;
}

uint64_t staged_ranges(Node sink) {
  uint64_t out = 0;
  for (Node s : all_of(sink, Op::Stage)) out |= mask_of(s->srcs().subspan(3));
  return out;
}

namespace {

// Whether results or sums run in the range, too.
bool is_of_results(Node sink, Node range) {
  uint64_t ranges = sink->ranges;
  for (Node reduce : all_of(sink, Op::Reduce)) ranges |= reduced_ranges(reduce);
  return ranges & range->ranges;
}

// Whether neighbouring iterations of the loop that a stage is filled ahead of ask for one tile: its
// copies would still be under way while it is read.
bool is_filled_twice(Node stage, const std::vector<Node>& ranges) {
  Node of = nullptr;
  for (Node r : ranges)
    if (!is_of_grid(r) && (stage->ranges & r->ranges)) of = r;
  if (stage_depth(stage) == 1 || !of || extent(of) == 1) return false;
  const auto place = [&](int64_t turn) {
    return simplify(substitute(stage->src(1), of, index(turn)));
  };
  return place(0) == place(1);
}

}  // namespace

std::string staging_problem(Node sink) {
  const std::vector<Node> stages = all_of(sink, Op::Stage);
  for (Node s : stages)
    for (Node r : s->srcs().subspan(3))
      if (kind(r) != RangeKind::Thread && is_of_results(sink, r))
        return cat("r", range_id(r), ": an iteration fills a part of a stage that it reads all of");
  const std::vector<Node> ranges = ranges_of(sink);
  for (Node s : stages)
    if (is_filled_twice(s, ranges)) return "a tile is copied again by the next iteration";
  for (Node r : ranges) {
    if (is_of_grid(r) && kind(r) == RangeKind::Block) continue;
    const bool each = is_of_grid(r) || kind(r) == RangeKind::Unroll || kind(r) == RangeKind::Vector;
    for (Node s : stages)
      if (each && (s->ranges & r->ranges))
        return cat("r", range_id(r), ": threads do not have a stage of their own each");
  }
  return "";
}

int64_t stage_bytes(Node stage) {
  constexpr int64_t kAlignment = 16;  // bytes of the largest access by a thread
  const int64_t bytes = elements_of(stage) * stage->dtype.size();
  return round_up(bytes, kAlignment);
}

int64_t all_stage_bytes(Node sink) {
  int64_t bytes = 0;
  for (Node s : all_of(sink, Op::Stage)) bytes += stage_bytes(s);
  const std::vector<Node> products = all_of(sink, Op::Mma);
  const auto is_of_warpgroup = [](Node n) { return mma_unit(n).warpgroup; };
  if (std::ranges::any_of(products, is_of_warpgroup))
    bytes += 1024;  // swizzled stages begin at a multiple
  return bytes;
}

StageSchedule stage_schedule(int64_t depth) {
  if (depth < 2) return {};
  return {depth, depth - 1, depth - 2};
}

}  // namespace tiny
