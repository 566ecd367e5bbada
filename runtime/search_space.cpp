#include "runtime/search_space.h"

#include <algorithm>
#include <bit>
#include <map>
#include <optional>
#include <set>

#include "codegen/access.h"
#include "codegen/option.h"
#include "tiny/algebra.h"
#include "tiny/error.h"

namespace tiny {

namespace {

// Ranges by names that stay when options before them come and go: those of the kernel before any
// option have their ids, the inner part of a split has the number of that option.
using Symbol = int;
constexpr Symbol kFirstPart = 1000;

struct SymbolicOpt {
  OptKind kind;
  Symbol axis = 0;
  int64_t amount = 0;
  Symbol other = 0;  // of Merge and Join
  std::vector<Symbol> axes;
  Symbol part = 0;  // of Split: what its inner range is called
};
using Program = std::vector<SymbolicOpt>;

std::vector<int> ids_of(Node sink) {
  std::vector<int> out;
  for (Node r : ranges_of(sink)) out.push_back(range_id(r));
  return out;
}

// Follows options through the kernel: which symbol has which id at each moment.
class Names {
 public:
  explicit Names(Node loops) {
    for (int id : ids_of(loops)) ids_[id] = id;
  }

  Symbol symbol_of(int id) const {
    for (const auto& [symbol, now] : ids_)
      if (now == id) return symbol;
    throw Error(cat("no range r", id));
  }
  std::optional<int> id_of(Symbol s) const {
    const auto found = ids_.find(s);
    return found == ids_.end() ? std::nullopt : std::optional(found->second);
  }
  std::vector<Symbol> symbols() const {
    std::vector<Symbol> out;
    for (const auto& [symbol, id] : ids_) out.push_back(symbol);
    return out;
  }

  // `after` is the kernel once the option has been applied.
  void advance(const Opt& opt, Symbol part, Node after) {
    const std::vector<int> ids = ids_of(after);
    if (opt.kind == OptKind::Order) {
      std::map<Symbol, int> now;
      for (size_t i = 0; i < opt.axes.size(); ++i)
        now[symbol_of(opt.axes[i])] = static_cast<int>(i);
      ids_ = now;
      return;
    }
    std::erase_if(ids_, [&](const auto& e) {
      return std::find(ids.begin(), ids.end(), e.second) == ids.end();
    });
    for (int id : ids) {
      const bool known =
          std::any_of(ids_.begin(), ids_.end(), [&](const auto& e) { return e.second == id; });
      if (!known) ids_[part++] = id;
    }
  }

 private:
  std::map<Symbol, int> ids_;
};

// The options with symbols in place of ids.
Program to_program(Node loops, const std::vector<Opt>& options, const Target& target) {
  Program out;
  Names names(loops);
  Node sink = loops;
  for (size_t i = 0; i < options.size(); ++i) {
    const Opt& o = options[i];
    SymbolicOpt s{o.kind, 0, o.amount, 0, {}, kFirstPart + 16 * static_cast<int>(i)};
    if (o.kind != OptKind::Order) s.axis = names.symbol_of(o.axis);
    if (o.kind == OptKind::Merge || o.kind == OptKind::Join)
      s.other = names.symbol_of(static_cast<int>(o.amount));
    for (int a : o.axes) s.axes.push_back(names.symbol_of(a));
    sink = apply(sink, o, target);
    names.advance(o, s.part, sink);
    out.push_back(std::move(s));
  }
  return out;
}

// And back. What names a range that is gone is left out; an order gets the ranges that it does not
// name at its end. Nothing where an option is not legal.
std::optional<std::vector<Opt>> to_options(Node loops, const Program& program,
                                           const Target& target) {
  std::vector<Opt> out;
  Names names(loops);
  Node sink = loops;
  for (const SymbolicOpt& s : program) {
    Opt o{s.kind, 0, s.amount, {}};
    if (s.kind == OptKind::Order) {
      std::set<int> left;
      for (int id : ids_of(sink)) left.insert(id);
      for (Symbol a : s.axes)
        if (const auto id = names.id_of(a); id && left.erase(*id)) o.axes.push_back(*id);
      o.axes.insert(o.axes.end(), left.begin(), left.end());
    } else {
      const auto axis = names.id_of(s.axis), other = names.id_of(s.other);
      const bool pair = s.kind == OptKind::Merge || s.kind == OptKind::Join;
      if (!axis || (pair && !other)) continue;
      o.axis = *axis;
      if (pair) o.amount = *other;
      if (s.kind == OptKind::Matrix) {
        const auto columns = names.id_of(s.axes[0]);
        if (!columns) return std::nullopt;
        o.axes.push_back(*columns);
      }
    }
    if (!is_legal(sink, o, target)) return std::nullopt;
    sink = apply(sink, o, target);
    names.advance(o, s.part, sink);
    out.push_back(std::move(o));
  }
  return out;
}

// Ranges of stores that go on in order: no reduction closes them.
uint64_t sequential_ranges(Node sink) {
  uint64_t out = 0;
  for (Node r : ranges_of(sink))
    if (kind(r) == RangeKind::Reduce)
      for (Node s : sink->srcs()) out |= s->ranges & r->ranges;
  return out;
}

class Editor {
 public:
  Editor(Node loops, const Choice& choice, const Target& target)
      : loops_(loops), choice_(choice), target_(target) {
    base_ = to_program(loops, choice.options, target);
    end_ = base_.size();
    while (end_ > 0 && base_[end_ - 1].kind == OptKind::Order) --end_;
    std::vector<Opt> before(choice.options.begin(),
                            choice.options.begin() + static_cast<ptrdiff_t>(end_));
    Names names(loops);
    Node sink = loops;
    for (size_t i = 0; i < end_; ++i) {
      sink = apply(sink, before[i], target);
      names.advance(before[i], base_[i].part, sink);
    }
    for (Node r : ranges_of(sink)) final_.push_back({names.symbol_of(range_id(r)), r});
    ordered_ = sequential_ranges(loops);
    seen_.insert(to_text(choice));
  }

  std::vector<Choice> run() {
    Choice other = choice_;
    other.heavy = !other.heavy;
    if (target_.kind == Target::Kind::Cpu) keep(other);
    amounts();
    removals();
    parts();
    bindings();
    exchanges();
    orders();
    merges();
    return std::move(out_);
  }

 private:
  struct Final {  // a range as the options leave it
    Symbol symbol;
    Node range;
  };

  bool is_cpu() const { return target_.kind == Target::Kind::Cpu; }
  bool is_sequential(Symbol s) const { return s < 64 && (ordered_ >> s & 1); }

  void keep(Choice c) {
    if (seen_.insert(to_text(c)).second) out_.push_back(std::move(c));
  }
  void keep(const Program& p) {
    auto options = to_options(loops_, p, target_);
    if (!options) return;
    keep(Choice{*std::move(options), choice_.heavy});
  }

  const SymbolicOpt* split_of(Symbol part) const {
    for (const SymbolicOpt& o : base_)
      if (o.kind == OptKind::Split && o.part == part) return &o;
    return nullptr;
  }
  RangeKind kind_of(Symbol s) const {
    for (const Final& f : final_)
      if (f.symbol == s) return kind(f.range);
    return RangeKind::Loop;
  }

  // Divisors on both sides, halves and doubles.
  static std::set<int64_t> near(int64_t amount, int64_t n) {
    std::set<int64_t> out = {amount / 2, amount * 2};
    for (int64_t d = amount - 1; d > 1; --d)
      if (n % d == 0) {
        out.insert(d);
        break;
      }
    for (int64_t d = amount + 1; d <= n && d <= 8 * amount; ++d)
      if (n % d == 0) {
        out.insert(d);
        break;
      }
    return out;
  }

  void amounts() {
    Node sink = loops_;
    for (size_t i = 0; i < base_.size(); ++i) {
      const Opt& o = choice_.options[i];
      std::set<int64_t> others;
      if (o.kind == OptKind::Split) others = near(o.amount, extent(range_with_id(sink, o.axis)));
      if (o.kind == OptKind::Matrix) others = {64, 128, 192, 256};
      const bool vector = kind_of(base_[i].part) == RangeKind::Vector;
      for (int64_t amount : others) {
        if (amount < 2 || (vector && !std::has_single_bit(static_cast<uint64_t>(amount)))) continue;
        Program p = base_;
        p[i].amount = amount;
        keep(p);
      }
      sink = apply(sink, o, target_);
    }
  }

  void removals() {
    for (size_t i = 0; i < end_; ++i) {
      Program p = base_;
      p.erase(p.begin() + static_cast<ptrdiff_t>(i));
      keep(p);
    }
  }

  // Puts a symbol into all orders: right after `after`, or, with -1, last but for the vectors.
  void place(Program& p, Symbol s, Symbol after) const {
    for (SymbolicOpt& o : p) {
      if (o.kind != OptKind::Order) continue;
      std::erase(o.axes, s);
      auto at = std::find(o.axes.begin(), o.axes.end(), after);
      if (at != o.axes.end()) {
        ++at;
      } else {
        while (at != o.axes.begin() && kind_of(*(at - 1)) == RangeKind::Vector) --at;
      }
      o.axes.insert(at, s);
    }
  }

  static SymbolicOpt bind(Symbol s, RangeKind k) {
    return {OptKind::Bind, s, static_cast<int64_t>(k), 0, {}, 0};
  }

  // A piece of a loop unrolled, as a vector, as an inner loop, as threads.
  void parts() {
    for (const Final& f : final_) {
      const RangeKind k = kind(f.range);
      if ((k != RangeKind::Loop && k != RangeKind::Reduce) || is_sequential(f.symbol)) continue;
      const int64_t n = extent(f.range);
      for (int64_t amount : {2, 3, 4, 7, 8, 16}) {
        if (n % amount || n == amount) continue;
        add_part(f.symbol, amount, RangeKind::Unroll, -1);
        if (!std::has_single_bit(static_cast<uint64_t>(amount)) || amount < 4) continue;
        if (is_cpu() || amount <= 8) add_part(f.symbol, amount, RangeKind::Vector, -1);
      }
      for (int64_t amount : {16, 64, 256}) {
        if (amount >= n) continue;
        if (n % amount == 0) add_part(f.symbol, amount, k, f.symbol);
        if (n % amount == 0) add_part(f.symbol, amount, k, -1);
        if (!is_cpu()) add_part(f.symbol, amount, RangeKind::Thread, f.symbol);
      }
    }
  }

  void add_part(Symbol of, int64_t amount, RangeKind k, Symbol after) {
    Program p = base_;
    const Symbol part = kFirstPart + 16 * static_cast<int>(base_.size() + 1);
    const auto at = p.begin() + static_cast<ptrdiff_t>(end_);
    const auto split = p.insert(at, {OptKind::Split, of, amount, 0, {}, part});
    if (k != RangeKind::Loop && k != RangeKind::Reduce) p.insert(split + 1, bind(part, k));
    place(p, part, after);
    keep(p);
  }

  // A whole range bound to something else.
  void bindings() {
    for (const Final& f : final_) {
      const int64_t n = extent(f.range);
      const RangeKind k = kind(f.range);
      if (is_sequential(f.symbol)) continue;
      if (k == RangeKind::Loop || k == RangeKind::Reduce) {
        if (n <= 16) rebind(f.symbol, RangeKind::Unroll);
        if (n <= 32 && std::has_single_bit(static_cast<uint64_t>(n)))
          rebind(f.symbol, RangeKind::Vector);
      }
      if (k == RangeKind::Vector && n <= 16) rebind(f.symbol, RangeKind::Unroll);
      if (k == RangeKind::Loop && is_cpu()) to_cores(f.symbol);
      if (k == RangeKind::Loop && !is_cpu()) rebind(f.symbol, RangeKind::Block);
      if (!is_cpu() && n <= target_.most_threads && (k == RangeKind::Loop || k == RangeKind::Block))
        rebind(f.symbol, RangeKind::Thread);
    }
  }

  void rebind(Symbol s, RangeKind k) {
    Program p = base_;
    p.insert(p.begin() + static_cast<ptrdiff_t>(end_), bind(s, k));
    keep(p);
  }

  // The cores take this loop instead of theirs.
  void to_cores(Symbol s) {
    Program p = base_;
    for (SymbolicOpt& o : p) {
      if (o.kind == OptKind::Bind && o.amount == static_cast<int64_t>(RangeKind::Core)) o.axis = s;
      if (o.kind != OptKind::Order) continue;
      std::erase(o.axes, s);
      o.axes.insert(o.axes.begin(), s);
    }
    keep(p);
  }

  // Two ranges of the kernel trade all that is done with them.
  void exchanges() {
    const auto ranges = ranges_of(loops_);
    for (size_t i = 0; i < ranges.size(); ++i)
      for (size_t j = i + 1; j < ranges.size(); ++j) {
        const Symbol a = range_id(ranges[i]), b = range_id(ranges[j]);
        if (kind(ranges[i]) != kind(ranges[j]) || is_sequential(a) || is_sequential(b)) continue;
        Program p = base_;
        const auto swap = [&](Symbol& s) { s = s == a ? b : s == b ? a : s; };
        for (SymbolicOpt& o : p) {
          swap(o.axis);
          swap(o.other);
          for (Symbol& s : o.axes) swap(s);
        }
        keep(p);
      }
  }

  // One range moved to another place among the loops; all of them where there are few.
  void orders() {
    for (size_t i = end_; i < base_.size(); ++i) {
      const auto& axes = base_[i].axes;
      for (size_t from = 0; from < axes.size(); ++from)
        for (size_t to = 0; to < axes.size(); ++to) {
          if (from == to || from + 1 == to) continue;  // the latter is the same as its reverse
          std::vector<Symbol> moved = axes;
          moved.erase(moved.begin() + static_cast<ptrdiff_t>(from));
          moved.insert(moved.begin() + static_cast<ptrdiff_t>(to), axes[from]);
          if (!keeps_order(axes, moved)) continue;
          Program p = base_;
          p[i].axes = moved;
          keep(p);
        }
    }
  }

  bool keeps_order(const std::vector<Symbol>& a, const std::vector<Symbol>& b) const {
    std::vector<Symbol> x, y;
    for (Symbol s : a)
      if (is_ordered_part(s)) x.push_back(s);
    for (Symbol s : b)
      if (is_ordered_part(s)) y.push_back(s);
    return x == y;
  }
  bool is_ordered_part(Symbol s) const {
    const SymbolicOpt* split = split_of(s);
    return split ? is_ordered_part(split->axis) : is_sequential(s);
  }

  // Neighbouring loops as one, before anything else is done with them; two ranges of the same
  // extent in the same hands.
  void merges() {
    const auto ranges = ranges_of(loops_);
    for (size_t i = 0; i < ranges.size(); ++i)
      for (size_t j = 0; j < ranges.size(); ++j) {
        const Symbol a = range_id(ranges[i]), b = range_id(ranges[j]);
        if (i == j || kind(ranges[i]) != kind(ranges[j]) || is_sequential(a) || is_sequential(b))
          continue;
        const SymbolicOpt merge{OptKind::Merge, a, 0, b, {}, 0};
        if (j == i + 1) insert(merge);
        const SymbolicOpt join{OptKind::Join, a, 0, b, {}, 0};
        if (!is_cpu() && i < j && extent(ranges[i]) == extent(ranges[j])) insert(join);
      }
  }
  void insert(const SymbolicOpt& o) {
    Program p = base_;
    p.insert(p.begin(), o);
    keep(p);
  }

  const Node loops_;
  const Choice& choice_;
  const Target& target_;
  Program base_;
  size_t end_ = 0;  // where the final order begins
  std::vector<Final> final_;
  uint64_t ordered_ = 0;
  std::set<std::string> seen_;
  std::vector<Choice> out_;
};

// --- What cannot be launched ---------------------------------------------------------------------

struct Counted {  // of a kernel's ranges
  int64_t threads = 1;
  int cores = 0, blocks = 0, thread_ranges = 0;
};

std::string range_problem(Node sink, Node r, const Target& target, Counted& shape) {
  const bool cpu = target.kind == Target::Kind::Cpu;
  const RangeKind k = kind(r);
  const std::string name = cat("r", range_id(r), " of ", extent(r));
  bool closed = false, everywhere = true;
  for (Node n : topological(sink)) {
    if (n->op == Op::Store) everywhere = everywhere && (n->ranges & r->ranges);
    if (n->op != Op::Reduce) continue;
    for (Node c : n->srcs().subspan(1)) closed = closed || c == r;
    everywhere = everywhere && (n->ranges & r->ranges);
  }
  if (cpu && (k == RangeKind::Block || k == RangeKind::Thread)) return name + " is of a GPU";
  if (!cpu && k == RangeKind::Core) return name + " is of a CPU";
  if (k == RangeKind::Core && ++shape.cores > 1) return "two ranges for the cores";
  if ((k == RangeKind::Core || k == RangeKind::Block) && closed)
    return name + " is reduced along: " + (cpu ? "cores" : "blocks") + " do not meet";
  if (k == RangeKind::Core && !everywhere) return name + " is not around everything";
  if (k == RangeKind::Block && ++shape.blocks > 3) return "more than three ranges of blocks";
  if (k == RangeKind::Thread && ++shape.thread_ranges > 3) return "more than three of threads";
  if (k == RangeKind::Thread) shape.threads *= extent(r);
  if (k == RangeKind::Thread && closed && extent(r) % target.warp &&
      !(extent(r) < target.warp && std::has_single_bit(static_cast<uint64_t>(extent(r)))))
    return name + ": threads that share a sum are a power of two or whole warps";
  if (k == RangeKind::Vector && extent(r) > 64) return name + " as one vector";
  return "";
}

}  // namespace

std::string to_text(const Choice& choice) {
  return cat(choice.heavy ? "heavy; " : "light; ", to_text(choice.options));
}

Choice choice_from_text(const std::string& text) {
  const bool heavy = text.starts_with("heavy; ");
  check(heavy || text.starts_with("light; "), "choice '", text,
        "': begins with neither 'light; ' nor 'heavy; '");
  return {options_from_text(text.substr(7)), heavy};
}

std::vector<Choice> neighbours(Node loops, const Choice& choice, const Target& target) {
  return Editor(loops, choice, target).run();
}

std::string launch_problem(Node loops, const Choice& choice, const Target& target) {
  constexpr int64_t kMostCopies = 512;  // longer kernels never win
  Node sink;
  try {
    sink = simplify(apply(loops, choice.options, target));
  } catch (const std::exception& e) {
    return e.what();
  }
  Counted shape;
  const uint64_t before = sequential_ranges(loops), after = sequential_ranges(sink);
  if ((before == 0) != (after == 0)) return "what goes on in order no longer does";
  for (Node r : ranges_of(sink))
    if (const std::string why = range_problem(sink, r, target, shape); !why.empty()) return why;
  if (shape.threads > target.most_threads)
    return cat("blocks of ", shape.threads, " threads, of ", target.most_threads, " at most");
  for (Node n : topological(sink)) {
    if (n->op != Op::Reduce && n->op != Op::Store) continue;
    const uint64_t around = n->op == Op::Reduce ? n->src(0)->ranges : n->ranges;
    int64_t unrolled = 1, lanes = 1;
    for (Node r : ranges_of(sink)) {
      if (!(around >> range_id(r) & 1)) continue;
      if (kind(r) == RangeKind::Unroll) unrolled *= extent(r);
      if (kind(r) == RangeKind::Vector) lanes *= extent(r);
    }
    const int64_t copies = unrolled * std::max<int64_t>(1, lanes / 16);
    if (copies > kMostCopies) return cat(copies, " copies of an innermost statement");
  }
  return "";
}

std::string launch_problem(const LaunchSize& size, const Target& target) {
  if (target.kind == Target::Kind::Cpu) return "";
  for (int i = 0; i < 3; ++i)
    if (size.grid[i] < 1 || size.grid[i] > (i ? 65535 : INT32_MAX))
      return cat(size.grid[i], " blocks in dimension ", i);
  const int64_t threads = size.block[0] * size.block[1] * size.block[2];
  if (threads > target.most_threads)
    return cat("blocks of ", threads, " threads, of ", target.most_threads, " at most");
  if (size.shared_bytes > target.shared_bytes)
    return cat(size.shared_bytes, " bytes of shared memory, of ", target.shared_bytes, " at most");
  return "";
}

}  // namespace tiny
