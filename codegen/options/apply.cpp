#include "codegen/kernel/facts.h"
#include "codegen/kernel/option.h"

#include <algorithm>

#include "codegen/kernel/access.h"
#include "codegen/kernel/choice.h"
#include "codegen/kernel/linear.h"
#include "codegen/options/fragments.h"
#include "codegen/options/mma.h"
#include "codegen/options/roll.h"
#include "codegen/options/stage.h"
#include "codegen/wgmma/product.h"
#include "tiny/base/error.h"
#include "tiny/base/text.h"
#include "tiny/ir/print.h"
#include "tiny/ir/sizes.h"
#include "tiny/rewrite/algebra.h"
#include "tiny/rewrite/rebuild.h"

namespace tiny {

namespace {

constexpr std::string_view kWords[] = {  // in the order of the kinds
    "split", "align", "extend", "merge",     "bind",       "join", "matrix",
    "mma",   "stage", "roll",   "fragments", "warpgroups", "order"};
static_assert(std::size(kWords) == static_cast<size_t>(OptKind::Order) + 1);
constexpr std::string_view kMmaReads[] = {"", "matrices"};  // MmaReads

// In texts: 0 or 1, 2 more for Raw, 4 more for Windows.
int factor_number(const StagedFactor& f) { return f.number + 2 * static_cast<int>(f.form); }

}  // namespace

std::string to_text(const Opt& opt) {
  std::string text(kWords[static_cast<size_t>(opt.kind)]);
  if (opt.kind != OptKind::Order) text += cat(" r", opt.axis);
  const auto with_axes = [&] {
    for (int a : opt.axes) text += cat(" r", a);
    return text;
  };
  switch (opt.kind) {
    case OptKind::Split:
    case OptKind::Align:
    case OptKind::Extend: return cat(text, ' ', opt.amount);
    case OptKind::Merge:
    case OptKind::Join: return cat(text, " r", opt.amount);
    case OptKind::Bind: return cat(text, ' ', name_of(static_cast<RangeKind>(opt.amount)));
    case OptKind::Fragments:
    case OptKind::Warpgroups: return cat(with_axes(), " x ", opt.amount);
    case OptKind::Mma: return cat(with_axes(), opt.amount ? " " : "", kMmaReads[opt.amount]);
    case OptKind::Stage:
      text += cat(" factor ", factor_number(opt.staged), " pad ", opt.staged.padding);
      return cat(with_axes(), " x ", opt.amount);
    case OptKind::Matrix: {
      const TileShape& tile = opt.tile;
      text = cat(with_axes(), " x ", tile.columns);
      if (tile.rows != 128) text += cat(" rows ", tile.rows);
      text = cat(text, tile.split_n ? " halved" : "", tile.vectorized_epilogue ? " wide" : "",
                 tile.max_stages ? " deep" : "");
      if (tile.cluster_m > 1) text += cat(" down ", tile.cluster_m);
      if (tile.cluster_n > 1) text += cat(" across ", tile.cluster_n);
      return tile.split_k > 1 ? cat(text, " parts ", tile.split_k) : text;
    }
    case OptKind::Roll:
    case OptKind::Order: break;
  }
  return with_axes();
}

std::string to_text(const std::vector<Opt>& opts) {
  std::string text;
  for (const Opt& o : opts) text += (text.empty() ? "" : ", ") + to_text(o);
  return text;
}

namespace {

// What a tile's text has behind its columns.
bool read_words(TextReader& in, TileShape& tile) {
  for (std::string word; in >> word;) {
    int* const number = word == "rows"     ? &tile.rows
                        : word == "down"   ? &tile.cluster_m
                        : word == "across" ? &tile.cluster_n
                        : word == "parts"  ? &tile.split_k
                                           : nullptr;
    bool* const flag = word == "halved" ? &tile.split_n
                       : word == "wide" ? &tile.vectorized_epilogue
                       : word == "deep" ? &tile.max_stages
                                        : nullptr;
    if (flag)
      *flag = true;
    else if (!number || !(in >> *number) || *number < 1)
      return false;
  }
  return true;
}

Opt option_from_text(const std::string& text) {
  TextReader in(text);
  std::string word;
  in >> word;
  const auto at = std::ranges::find(kWords, word);
  bool good = at != std::end(kWords);
  Opt opt{good ? static_cast<OptKind>(at - kWords) : OptKind::Order, 0, 0, {}};
  const auto range = [&] {  // "r3"
    char r = 0;
    int id = -1;
    good = good && (in >> r >> id) && r == 'r' && id >= 0 && id < 64;
    return id;
  };
  const auto axes = [&] {
    while (good && (in >> std::ws) && in.peek() == 'r') opt.axes.push_back(range());
  };
  const auto times = [&](auto& number) { good = good && (in >> word >> number) && word == "x"; };
  if (opt.kind != OptKind::Order) opt.axis = range();
  switch (opt.kind) {
    case OptKind::Split:
    case OptKind::Align:
    case OptKind::Extend: good = good && (in >> opt.amount); break;
    case OptKind::Merge:
    case OptKind::Join: opt.amount = range(); break;
    case OptKind::Bind:
      in >> word;
      while (opt.amount <= static_cast<int64_t>(RangeKind::Device) &&
             word != name_of(static_cast<RangeKind>(opt.amount)))
        ++opt.amount;
      good = good && opt.amount <= static_cast<int64_t>(RangeKind::Device);
      break;
    case OptKind::Fragments:
    case OptKind::Warpgroups:
      opt.axes = {range()};
      times(opt.amount);
      break;
    case OptKind::Mma:
      opt.axes = {range(), range()};
      if (good && in >> word) {
        opt.amount = std::find(kMmaReads + 1, std::end(kMmaReads), word) - kMmaReads;
        good = opt.amount <= kMmaMatrices;
      }
      in.clear();
      break;
    case OptKind::Stage: {
      int factor = 0, padding = 0;
      good = good && (in >> word >> factor) && word == "factor" && (in >> word >> padding) &&
             word == "pad";
      opt.staged = {factor % 2, static_cast<StagedFactor::Form>(factor / 2), padding};
      axes();
      times(opt.amount);
      break;
    }
    case OptKind::Matrix:
      opt.axes = {range()};
      axes();
      times(opt.tile.columns);
      good = good && read_words(in, opt.tile);
      in.clear();
      break;
    case OptKind::Order: axes(); break;
    case OptKind::Roll: break;
  }
  check(good && (in >> std::ws).eof(), "option '", text,
        "': expected such as split r1 16, align r1 8, extend r0 6, merge r0 r1, join r0 r1, "
        "bind r4 vector, matrix r0 r1 x 256, mma r0 r1 r2, stage r2 factor 0 pad 4 r0 r3 x 3, "
        "order r0 r2 r1");
  return opt;
}

}  // namespace

std::vector<Opt> options_from_text(const std::string& text) {
  std::vector<Opt> out;
  TextReader parts(text);
  for (std::string part; std::getline(parts, part, ',');)
    out.push_back(
        option_from_text(part.substr(std::min(part.find_first_not_of(' '), part.size()))));
  return out;
}

std::vector<Node> ranges_of(Node sink) {
  std::vector<Node> out;
  for (Node n : topological(sink))
    if (n->op == Op::Range) out.push_back(n);
  std::ranges::sort(out, {}, range_id);
  return out;
}

Node find_range(Node sink, int64_t id) {
  for (Node r : ranges_of(sink))
    if (range_id(r) == id) return r;
  return nullptr;
}

Node range_with_id(Node sink, int id) {
  if (Node r = find_range(sink, id)) return r;
  throw Error(cat("the kernel has no range r", id));
}

int next_range_id(Node sink) {
  const auto ranges = ranges_of(sink);
  return ranges.empty() ? 0 : range_id(ranges.back()) + 1;
}

namespace {

Node new_range(Node extent, int id, RangeKind kind) {
  expect(id < 64, "a kernel with more than 64 ranges");
  return make(Op::Range, kIndex, {extent}, RangeArg{id, kind});
}

// The substitute of a range after an option: its value, the ranges that replace it where a Reduce
// closes it, and a gate under which the value is inside its extent (nullptr: always).
struct Replacement {
  Node value = nullptr;
  std::vector<Node> ranges;
  Node gate = nullptr;
  bool speculates = false;  // loads may read anything that is there, where only stores are gated
};

// Rewrites a kernel graph with ranges replaced. Loads and stores that depend on a replaced range
// get its gate; a Reduce that closes it, or a Prefix, combines its identity where the gate is
// false.
class Replacer {
 public:
  explicit Replacer(NodeMap<Replacement> map) : map_(std::move(map)) {}

  Node operator()(Node root) {
    const std::vector<Node> order = topological(root);
    for (Node n : order)
      if (map_.contains(n)) keys_.push_back(n);
    for (Node n : order) done_[n] = one(n);
    return *done_.find(root);
  }

 private:
  Node now(Node n) { return *done_.find(n); }

  Node one(Node n) {
    if (const Replacement* r = map_.find(n)) return r->value;
    std::vector<Node> srcs;
    if (n->op == Op::Reduce || n->op == Op::Prefix) return reduce(n);
    if (n->op == Op::Stage) return stage(n);
    for (Node s : n->srcs()) srcs.push_back(now(s));
    if (n->op == Op::Load || n->op == Op::Store) add_gates(n, srcs);
    return with_sources(n, srcs);
  }

  Node gates(uint64_t ranges, bool all = true) {
    Node gate = nullptr;
    for (Node r : keys_)
      if ((ranges & r->ranges) && (all || !map_.find(r)->speculates))
        gate = both(gate, map_.find(r)->gate);
    return gate;
  }

  // Whether an access is inside its buffer, gated or not.
  static bool is_inside(Node param, Node at) {
    if (param->op != Op::Param) return false;
    at = simplify(at);
    return at->vmin >= 0 && at->vmax < elements_of(param);
  }

  void add_gates(Node n, std::vector<Node>& srcs) {
    Node gate = gates(n->ranges, n->op == Op::Store || !is_inside(srcs[0], srcs[1]));
    const size_t slot = n->op == Op::Load ? 2 : 3;
    if (!gate) return;
    if (srcs.size() > slot)
      srcs[slot] = both(srcs[slot], gate);
    else
      srcs.push_back(gate);
  }

  // The ranges that a node closes from its source `first` on, as they are now, behind `srcs`.
  uint64_t close(Node n, size_t first, std::vector<Node>& srcs) {
    uint64_t closed = 0;
    for (Node r : n->srcs().subspan(first)) {
      const Replacement* to = map_.find(r);
      const auto parts = to ? to->ranges : std::vector<Node>{now(r)};
      if (to) closed |= r->ranges;
      for (Node part : parts)
        if (std::find(srcs.begin() + static_cast<ptrdiff_t>(first), srcs.end(), part) == srcs.end())
          srcs.push_back(part);
    }
    return closed;
  }

  Node stage(Node n) {
    std::vector<Node> srcs{now(n->src(0)), now(n->src(1)), now(n->src(2))};
    const uint64_t closed = close(n, 3, srcs);
    expect(!gates(closed), "a stage that is filled in part");
    return with_sources(n, srcs);
  }

  Node reduce(Node n) {
    std::vector<Node> srcs{now(n->src(0))};
    const uint64_t closed = close(n, 1, srcs);
    if (Node gate = gates(closed)) {
      Node none = identity(n->arg<OpArg>().op, n->dtype);
      srcs[0] = make(Op::Where, n->dtype, {gate, srcs[0], none});
    }
    return with_sources(n, srcs);
  }

  NodeMap<Replacement> map_;
  NodeMap<Node> done_;
  std::vector<Node> keys_;
};

Node replace(Node sink, NodeMap<Replacement> map) { return Replacer(std::move(map))(sink); }

// Whether something goes through all of the range: a reduction, a scan, a stage that it fills.
bool is_closed(Node sink, Node range) {
  return std::ranges::any_of(topological(sink), [&](Node n) {
    const size_t first = n->op == Op::Stage ? 3 : n->op == Op::Reduce || n->op == Op::Prefix;
    return first && contains(n->srcs().subspan(first), range);
  });
}

Node split(Node sink, const Opt& opt, const Target& target) {
  Node r = range_with_id(sink, opt.axis);
  const RangeKind kind = tiny::kind(r);
  const int64_t n = extent(r), outer = ceil_div(n, opt.amount);
  Node in = new_range(index(opt.amount), next_range_id(sink), kind);
  Replacement to;
  if (outer == 1) {
    to.value = in;
    to.ranges = {in};
  } else {
    Node out = new_range(index(outer), opt.axis, kind);
    to.value = index_add(index_mul(out, opt.amount), in);
    to.ranges = {out, in};
  }
  if (n % opt.amount) {
    to.gate = less(to.value, index(n));
    to.speculates =
        target.kind == Target::Kind::Cpu && kind == RangeKind::Loop && !is_closed(sink, r);
  }
  NodeMap<Replacement> map;
  map[r] = to;
  return replace(sink, std::move(map));
}

// Where the first element along a range lies, of accesses next to each other along it of which that
// is no multiple of `amount`; nullptr where it is, or depends on what not all stores run in.
Node start_along(Node sink, Node range, int64_t amount) {
  for (const Access& a : accesses(sink)) {
    if (stride(a.node, range_id(range)) != 1) continue;
    const Node start = index_add(a.node->src(1), index_mul(range, -1));
    const Sum sum = to_sum(start);
    bool is_multiple = sum.constant % amount == 0;
    for (const Sum::Term& t : sum.terms) is_multiple &= t.factor % amount == 0;
    if (!is_multiple && !(start->ranges & ~shared_ranges(sink)) && all_of(start, Op::Load).empty())
      return start;
  }
  return nullptr;
}

// Whether accesses next to each other along a range all begin at multiples of `amount`, but a last
// vector of so many would be cut off.
bool is_cut_off(Node sink, Node range, int64_t amount) {
  const std::vector<Access> all = accesses(sink);
  return extent(range) % amount != 0 && !start_along(sink, range, amount) &&
         std::ranges::any_of(all,
                             [&](const Access& a) { return stride(a.node, range_id(range)) == 1; });
}

Node align(Node sink, const Opt& opt) {
  const Node r = range_with_id(sink, opt.axis), start = start_along(sink, r, opt.amount);
  const int64_t n = extent(r), amount = opt.amount;
  if (!start) {
    const Node in = new_range(index(round_up(n, amount)), opt.axis, kind(r));
    NodeMap<Replacement> map;
    map[r] = {in, {in}, less(in, index(n))};
    return replace(sink, std::move(map));
  }
  const int64_t most = (n + 2 * (amount - 1)) / amount * amount;
  const Node in = new_range(index(most), opt.axis, kind(r));
  const Node before = index_mod(start, amount), at = index_add(in, index_mul(before, -1));
  NodeMap<Replacement> map;
  map[r] = {at, {in}, both(less(index(-1), at), less(at, index(n)))};
  // Gates see how little comes before the start; accesses, what cancels it.
  const Node same = index_add(start, index_mul(index_div(start, amount), -amount));
  return remake(replace(sink, std::move(map)), [&](Node node, std::vector<Node>& srcs) {
    if (node->op == Op::Load || node->op == Op::Store)
      srcs[1] = simplify(substitute(srcs[1], before, same));
    return with_sources(node, srcs);
  });
}

Node extend(Node sink, const Opt& opt) {
  const Node r = range_with_id(sink, opt.axis);
  const int64_t n = extent(r), most = round_up(n, opt.amount);
  if (most == n) return sink;
  const Node longer = new_range(index(most), opt.axis, kind(r));
  const Node last = make(Op::Min, kIndex, {longer, index(n - 1)});
  NodeMap<Replacement> map;
  map[r] = {last, {longer}, nullptr};
  std::vector<Node> stores;
  const Node gate = less(longer, index(n));
  for (Node s : replace(sink, std::move(map))->srcs()) {
    std::vector<Node> srcs(s->srcs().begin(), s->srcs().end());
    if (s->ranges & r->ranges) {
      srcs[1] = simplify(substitute(srcs[1], last, longer));
      srcs.resize(3);
      srcs.push_back(s->num_src > 3 ? both(s->src(3), gate) : gate);
    }
    stores.push_back(with_sources(s, srcs));
  }
  return make(Op::Sink, kVoid, stores);
}

Node merge(Node sink, const Opt& opt) {
  Node a = range_with_id(sink, opt.axis), b = range_with_id(sink, static_cast<int>(opt.amount));
  Node m = new_range(index(extent(a) * extent(b)), opt.axis, kind(a));
  NodeMap<Replacement> map;
  map[a] = {index_div(m, extent(b)), {m}, nullptr};
  map[b] = {index_mod(m, extent(b)), {m}, nullptr};
  return simplify(replace(sink, std::move(map)));
}

Node join(Node sink, const Opt& opt) {
  Node to = range_with_id(sink, opt.axis);
  NodeMap<Replacement> map;
  map[range_with_id(sink, static_cast<int>(opt.amount))] = {to, {to}, nullptr};
  return replace(sink, std::move(map));
}

Node bind(Node sink, const Opt& opt) {
  Node r = range_with_id(sink, opt.axis);
  Node to = new_range(r->src(0), opt.axis, static_cast<RangeKind>(opt.amount));
  NodeMap<Replacement> map;
  map[r] = {to, {to}, nullptr};
  return replace(sink, std::move(map));
}

Node order(Node sink, const Opt& opt) {
  NodeMap<Replacement> map;
  for (size_t i = 0; i < opt.axes.size(); ++i) {
    Node r = range_with_id(sink, opt.axes[i]);
    Node to = new_range(r->src(0), static_cast<int>(i), kind(r));
    map[r] = {to, {to}, nullptr};
  }
  return replace(sink, std::move(map));
}

// Whether a kernel reads what it writes.
bool reads_results(Node sink) {
  return std::ranges::any_of(all_of(sink, Op::Load), [&](Node load) {
    return !is_stage(load->src(0)) && std::ranges::any_of(sink->srcs(), [&](Node s) {
      return slot_of(s->src(0)) == slot_of(load->src(0));
    });
  });
}

// Whether something runs in both loops at once: it depends on both ranges, or reduces over one of
// them or over both, perhaps what depends on neither. Stores of what nobody reads, each in a loop
// of its own, may as well run in one.
bool meet(Node sink, Node a, Node b) {
  const uint64_t both = a->ranges | b->ranges;
  const bool in_order = reads_results(sink);
  for (Node n : topological(sink)) {
    if (n->op == Op::Sink && !in_order) continue;
    uint64_t enclosing = n->ranges;
    for (Node s : n->srcs()) enclosing |= s->ranges;
    if ((enclosing & both) == both) return true;
  }
  return false;
}

// Whether a store runs in one of the loops alone, or a reduction closes one alone: as one loop it
// would be repeated. The loops of a Matrix are its own, and stores do not see them.
bool runs_in_one(Node sink, Node a, Node b) {
  if (!all_of(sink, Op::Matrix).empty()) return false;
  const auto alone = [&](uint64_t in) { return !(in & a->ranges) != !(in & b->ranges); };
  return std::ranges::any_of(sink->srcs(), [&](Node s) { return alone(s->ranges); }) ||
         std::ranges::any_of(all_of(sink, Op::Reduce),
                             [&](Node reduce) { return alone(reduced_ranges(reduce)); });
}

std::string reorder_problem(Node sink, std::vector<int> ids) {
  std::vector<int> have;
  for (Node r : ranges_of(sink)) have.push_back(range_id(r));
  std::ranges::sort(ids);
  return ids == have ? "" : "the order does not name each range of the kernel once";
}

// Of an option for one range.
std::string loop_problem(Node sink, Node r, const Opt& opt) {
  const bool splits = opt.amount >= 2 && r->src(0)->is_const();
  switch (opt.kind) {
    case OptKind::Split:
      if (!splits) return cat("cannot split r", opt.axis, " by ", opt.amount);
      if ((staged_ranges(sink) & r->ranges) && extent(r) % opt.amount)
        return cat("a stage is filled along r", opt.axis, ": ", opt.amount, " does not divide ",
                   extent(r));
      return "";
    case OptKind::Align:
      return splits && (start_along(sink, r, opt.amount) || is_cut_off(sink, r, opt.amount))
                 ? ""
                 : cat("nothing to align along r", opt.axis, " at multiples of ", opt.amount);
    case OptKind::Extend:
      return splits && kind(r) == RangeKind::Loop && !is_closed(sink, r)
                 ? ""
                 : cat("cannot extend r", opt.axis, " to a multiple of ", opt.amount);
    case OptKind::Bind:
      return static_cast<RangeKind>(opt.amount) != RangeKind::Unroll || extent(r) <= 64
                 ? ""
                 : cat("cannot unroll r", opt.axis, ": ", extent(r), " iterations");
    default: return "";
  }
}

// Of an option that makes one range of two.
std::string pair_problem(Node sink, Node r, Node other, const Opt& opt) {
  for (Node scan : all_of(sink, Op::Prefix))
    for (Node along : scan->srcs().subspan(1))
      if (along == r || along == other)
        return cat("r", range_id(along), " of a scan stays on its own");
  if (opt.kind == OptKind::Merge)
    return runs_in_one(sink, r, other)
               ? cat("not all that runs in r", opt.axis, " and r", opt.amount, " runs in both")
               : "";
  if (other == r || extent(other) != extent(r))
    return cat("cannot join r", opt.axis, " of ", extent(r), " with r", opt.amount, " of ",
               extent(other));
  return meet(sink, r, other) ? cat("r", opt.axis, " and r", opt.amount, " run in each other") : "";
}

std::string problem(Node sink, const Opt& opt, const Target& target) {
  std::string why;
  switch (opt.kind) {
    case OptKind::Order: return reorder_problem(sink, opt.axes);
    case OptKind::Matrix: return matrix_problem(sink, opt);
    case OptKind::Mma: return mma_problem(sink, opt, target);
    case OptKind::Stage: return stage_problem(sink, opt, target);
    case OptKind::Fragments:
    case OptKind::Warpgroups: return fragments_problem(sink, opt, target);
    case OptKind::Roll: return roll(sink, opt.axis, why) ? "" : why;
    default: break;
  }
  Node r = find_range(sink, opt.axis);
  if (!r) return cat("the kernel has no range r", opt.axis);
  if (opt.kind != OptKind::Merge && opt.kind != OptKind::Join) return loop_problem(sink, r, opt);
  Node other = find_range(sink, opt.amount);
  return other ? pair_problem(sink, r, other, opt) : cat("the kernel has no range r", opt.amount);
}

}  // namespace

bool is_legal(Node sink, const Opt& opt, const Target& target, std::string* why) {
  const std::string reason = problem(sink, opt, target);
  if (why) *why = reason;
  return reason.empty();
}

Node apply(Node sink, const Opt& opt, const Target& target) {
  std::string why;
  check(is_legal(sink, opt, target, &why), to_text(opt), ": ", why);
  switch (opt.kind) {
    case OptKind::Split: return split(sink, opt, target);
    case OptKind::Align: return align(sink, opt);
    case OptKind::Extend: return extend(sink, opt);
    case OptKind::Merge: return merge(sink, opt);
    case OptKind::Bind: return bind(sink, opt);
    case OptKind::Join: return join(sink, opt);
    case OptKind::Matrix: return use_matrix_unit(sink, opt);
    case OptKind::Mma: return use_mma(sink, opt, target);
    case OptKind::Stage: return use_stage(sink, opt, target);
    case OptKind::Roll: return roll(sink, opt.axis, why);
    case OptKind::Fragments:
    case OptKind::Warpgroups: return use_fragments(sink, opt, target);
    default: return order(sink, opt);
  }
}

Node apply(Node sink, const std::vector<Opt>& opts, const Target& target) {
  for (const Opt& o : opts) sink = apply(sink, o, target);
  return sink;
}

std::string to_text(const Choice& choice) {
  return cat(choice.is_gemm ? "gemm; " : "other; ", to_text(choice.options));
}

Choice choice_from_text(const std::string& text) {
  const bool is_gemm = text.starts_with("gemm; ");
  check(is_gemm || text.starts_with("other; "), "choice '", text,
        "': begins with neither 'gemm; ' nor 'other; '");
  return {options_from_text(text.substr(text.find(' ') + 1)), is_gemm};
}

}  // namespace tiny
