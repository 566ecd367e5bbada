#include "codegen/render/wgsl/render.h"

#include <algorithm>

#include "codegen/kernel/access.h"
#include "codegen/kernel/facts.h"
#include "codegen/options/stage.h"
#include "codegen/options/thread_group.h"
#include "codegen/render/wgsl/helpers.h"
#include "codegen/render/wgsl/printer.h"

namespace tiny {

namespace {

constexpr const char* kWith = "//+subgroups\n";
constexpr const char* kWithout = "//-subgroups\n";

}  // namespace

Source render_wgsl(const Linear& program, const Target& target) {
  return WgslPrinter(program, target).print();
}

Source WgslPrinter::print() {
  find_grid();
  find_memory();
  find_wide();
  declare_buffers();
  declare_stages();
  for (Node n : program_.body) {
    require_width(n);
    statement(n);
  }
  return {program_.name, text(), Source::Language::Wgsl, program_.is_gemm};
}

std::string WgslPrinter::define(Str expression) {
  const std::string name = fresh();
  line(cat("let ", name, " = ", bare(expression), ";"));
  return name;
}

WgslPrinter::Lanes WgslPrinter::define_all(const Lanes& expressions) {
  Lanes out;
  for (Str e : expressions) out.push_back(define(e));
  return out;
}

WgslPrinter::Lanes WgslPrinter::named(Node n) {
  Lanes v = value(n);
  for (std::string& e : v)
    if (!n->is_const() && (e.size() > 12 || e.find_first_of(" (") != e.npos)) e = define(e);
  return v;
}

WgslPrinter::Lanes WgslPrinter::value(Node n) {
  switch (n->op) {
    case Op::Const: return Lanes(n->dtype.lanes, literal(n));
    case Op::Ramp: {
      Lanes out;
      for (int i = 0; i < n->dtype.lanes; ++i) out.push_back(cat(i));
      return out;
    }
    case Op::Range: return {cat("r", range_id(n))};
    default: break;
  }
  const Lanes* lanes = known_.values.find(n);
  expect(lanes, "render_wgsl: ", n->op, " is used before it is defined");
  return *lanes;
}

// --- the text as a whole -------------------------------------------------------------------------

void WgslPrinter::find_grid() {
  for (Node n : program_.body) {
    if (!n->is(Op::Loop)) continue;
    Node range = n->src(0);
    if (kind(range) == RangeKind::Block) grid_.blocks.push_back(range);
    if (kind(range) == RangeKind::Thread) grid_.threads.push_back(range);
  }
  expect(grid_.blocks.size() <= 3 && grid_.threads.size() <= 3,
         "render_wgsl: more than three grid ranges");
}

// The numbers of the thread's block and of the thread in it, by the launch's sizes.
std::string WgslPrinter::grid_text() const {
  std::string out;
  LaunchSize size;
  for (size_t i = 0; i < grid_.blocks.size(); ++i)
    size.grid[grid_.blocks.size() - 1 - i] = extent(grid_.blocks[i]);
  if (dispatch_size(size, target_).linear) {
    const int64_t all = size.grid[0] * size.grid[1] * size.grid[2];
    out += cat("  let block = wid.x + wid.y * ", target_.most_blocks, "u;\n  if (block >= ", all,
               "u) { return; }\n");
  }
  const bool linear = !out.empty();
  int64_t below = 1;
  for (size_t i = 0; i < 3; ++i) {
    if (i < grid_.blocks.size()) {
      Node r = grid_.blocks[grid_.blocks.size() - 1 - i];
      const std::string number =
          linear ? cat("block / ", below, "u % ", extent(r), "u") : cat("wid.", "xyz"[i]);
      out += cat("  let ", "r", range_id(r), " = i32(", number, ");\n");
      below *= extent(r);
    }
  }
  int64_t before = 1;
  for (size_t i = 0; i < grid_.threads.size(); ++i) {
    Node r = grid_.threads[grid_.threads.size() - 1 - i];
    const std::string number =
        grid_.by_lanes ? cat("tid / ", before, "u % ", extent(r), "u") : cat("lid.", "xyz"[i]);
    out += cat("  let r", range_id(r), " = i32(", number, ");\n");
    before *= extent(r);
  }
  return out;
}

// Of kernels whose threads combine values by subgroups: thread `tid` is lane tid % lanes of
// subgroup tid / lanes, whichever the device has put there, where all subgroups are full; else, and
// without the feature, there is one lane.
std::string WgslPrinter::lanes_text(int64_t threads) const {
  return cat("  let whole = subgroups * lanes_of == ", threads, "u;  ", kWith,
             "  let lanes = select(1u, lanes_of, whole);  ", kWith,
             "  let tid = select(index, subgroup * lanes_of + lane, whole);  ", kWith,
             "  let lanes = 1u;  ", kWithout, "  let tid = index;  ", kWithout);
}

std::string WgslPrinter::text() const {
  int64_t block[3] = {1, 1, 1}, threads = 1;
  for (size_t i = 0; i < grid_.threads.size(); ++i) {
    block[grid_.threads.size() - 1 - i] = extent(grid_.threads[i]);
    threads *= extent(grid_.threads[i]);
  }
  std::string shared;
  for (int i = 0; i < grid_.lanes; ++i)
    shared += cat("var<workgroup> g", i, ": array<u32, ", threads, ">;\n");
  const std::string inside =
      (grid_.by_lanes ? lanes_text(threads) : std::string()) + grid_text() + text_.body;
  std::string builtins;
  const auto add = [&](const char* name, const char* builtin, const char* type) {
    if (inside.find(name) != inside.npos)
      builtins += cat(builtins.empty() ? "" : ", ", "@builtin(", builtin, ") ", name, ": ", type);
  };
  add("wid", "workgroup_id", "vec3<u32>");
  add("lid", "local_invocation_id", "vec3<u32>");
  add(grid_.by_lanes ? "index" : "tid", "local_invocation_index", "u32");
  std::string head = cat("fn main(", builtins, ") {\n");
  if (grid_.by_lanes)
    head = cat("fn main(", builtins,
               ", @builtin(subgroup_id) subgroup: u32, @builtin(num_subgroups) subgroups: u32, "
               "@builtin(subgroup_size) lanes_of: u32, @builtin(subgroup_invocation_id) lane: u32) "
               "{  ",
               kWith, "fn main(", builtins, ") {  ", kWithout);
  const std::string kernel = cat("@compute @workgroup_size(", block[0], ", ", block[1], ", ",
                                 block[2], ")\n", head, inside, "}\n");
  const std::string functions = half_functions(), memory = text_.declarations + shared;
  const std::string helpers = wgsl_helpers(memory + functions + kernel);
  return cat("// ", program_.name, "\n", grid_.by_lanes ? cat("enable subgroups;  ", kWith) : "",
             helpers.find("//+f16") != helpers.npos ? "enable f16;  //+f16\n" : "", memory, helpers,
             functions, kernel);
}

// --- statements ----------------------------------------------------------------------------------

void WgslPrinter::statement(Node n) {
  switch (n->op) {
    case Op::Const:
    case Op::Range:
    case Op::Param:
    case Op::Ramp:
    case Op::Roll:  // printed with the sum's update
    case Op::Stage: return;
    case Op::Loop: return open_loop(n);
    case Op::Fetch: {
      Node copy = n->src(0);
      set_load(copy->src(2));
      return store(copy);
    }
    case Op::Barrier: return line("workgroupBarrier();");
    case Op::EndLoop: return close_loop(n->src(0));
    case Op::Acc: return declare_accumulator(n->src(0));
    case Op::Update: return update(n->src(0));
    case Op::Group: return group(n->src(0));
    case Op::Store: return store(n);
    // An accumulator that is declared anew has another name.
    case Op::Reduce:
      if (is_wide(n)) return set_pairs(n, known_.accumulators[n]);
      known_.values[n] = known_.accumulators[n];
      return;
    case Op::Load: return set_load(n);
    case Op::Prefix: return prefix(n);
    default: break;
  }
  if (is_wide(n)) return wide_statement(n);
  const Lanes lanes = selections_.is_done(n) ? value(n->src(1)) : arithmetic(n);
  Lanes& out = known_.values[n];
  out.clear();
  const bool inside = single_use_(n) || n->is(Op::Broadcast) || n->is(Op::Shuffle);
  for (Str e : lanes) {
    const bool simple = e.find_first_of(" (") == e.npos;
    out.push_back(simple || (inside && e.size() <= 60) ? e : define(e));
  }
}

void WgslPrinter::open_loop(Node loop) {
  if (loop->num_src == 3) return open_ahead(loop);
  Node range = loop->src(0);
  if (is_of_grid(range)) return;
  const int64_t lead = loop->num_src == 2 ? loop->src(1)->int_value() : 0;
  const std::string r = scalar(range);
  open(cat("for (var ", r, ": i32 = ", -lead, "; ", r, " < ", scalar(range->src(0)), "; ", r,
           " += 1)"));
}

// One iteration of a loop that has begun, or none.
void WgslPrinter::open_ahead(Node loop) {
  Node range = loop->src(0), of = loop->src(1);
  const std::string r = scalar(range);
  known_.behind[range] = of;
  open("");
  line(cat("let ", r, " = ", scalar(of), " + ", loop->src(2)->int_value(), ";"));
  open(cat("if (", r, " < ", scalar(of->src(0)), ")"));
}

void WgslPrinter::close_loop(Node range) {
  if (is_of_grid(range)) return;
  close();
  const Node* of = known_.behind.find(range);
  if (!of) return;
  close();
  line(cat("if (", scalar(*of), " < 0) { continue; }"));
}

void WgslPrinter::declare_accumulator(Node reduce) {
  DType t = reduce->dtype;
  if (t.scalar == Scalar::I64 && !is_wide(reduce)) t = kI32.vec(t.lanes);  // one word of it
  Node none = identity(reduce->arg<OpArg>().op, t);
  const std::string start = is_wide(reduce) ? pair_literal(none) : bare(literal(none));
  Lanes& names = known_.accumulators[reduce];
  names.clear();
  for (int i = 0; i < t.lanes; ++i) {
    names.push_back(cat("a", ++text_.accumulators));
    line(cat("var ", names.back(), " = ", start, ";"));
  }
}

void WgslPrinter::update(Node reduce) {
  Node term = updated_with(reduce);
  const Lanes acc = known_.accumulators[reduce];
  if (is_wide(reduce)) {
    const Lanes terms = pairs(term);
    for (size_t i = 0; i < acc.size(); ++i)
      line(cat(acc[i], " = ",
               combine_pairs(reduce->arg<OpArg>().op, reduce->dtype, acc[i], terms[i]), ";"));
    return;
  }
  const bool rolls = term->is(Op::Roll), product = !rolls && adds_product(reduce);
  const Lanes a = value(rolls || product ? term->src(0) : term);
  const Lanes b = rolls || product ? value(term->src(1)) : Lanes();
  for (size_t i = 0; i < acc.size(); ++i) {
    std::string next = combine(reduce->arg<OpArg>().op, reduce->dtype, acc[i], a[i]);
    if (rolls) next = cat("fma(", acc[i], ", ", bare(b[i]), ", ", bare(a[i]), ")");
    if (product) next = cat("fma(", bare(a[i]), ", ", bare(b[i]), ", ", acc[i], ")");
    line(cat(acc[i], " = ", bare(next), ";"));
  }
}

// --- threads that combine what they have ---------------------------------------------------------

// Values go through arrays in workgroup memory with a word for each thread, one or, of a pair, two
// of them, a few values at a time, between barriers of which the last one lets the arrays be used
// again.
struct WgslPrinter::Exchange {
  std::function<std::string(int i, Str thread)> get;  // value i of a thread
  std::function<void(int i, Str thread, Str value)> put;
  std::function<std::string(Str a, Str b)> combine;
  int values = 0;  // at a time
};

void WgslPrinter::among_threads(Node n, const Lanes& x, Str place, Str only,
                                const std::function<void(const Exchange&)>& exchange) {
  constexpr int kArrays = 4;  // and so kGroupBytes of codegen/target/target.cpp
  const DType t = n->dtype;
  const bool wide = is_wide(n);
  const int words = wide ? 2 : 1;
  const auto array = [&](int i, int word, Str thread) {
    return cat("g", i * words + word, "[", thread, "]");
  };
  Exchange e;
  e.get = [&](int i, Str thread) {
    if (!wide) return from_bits(t, array(i, 0, thread));
    return cat("vec2<u32>(", array(i, 0, thread), ", ", array(i, 1, thread), ")");
  };
  e.put = [&](int i, Str thread, Str value) {
    if (!wide) return line(cat(array(i, 0, thread), " = ", bare(as_word(t, value)), ";"));
    const std::string pair = define(value);
    line(cat(array(i, 0, thread), " = ", pair, ".x;"));
    line(cat(array(i, 1, thread), " = ", pair, ".y;"));
  };
  e.combine = [&, op = n->arg<OpArg>().op](Str a, Str b) {
    return wide ? combine_pairs(op, t, a, b) : combine(op, t, a, b);
  };
  for (size_t first = 0; first < x.size(); first += kArrays / words) {
    e.values = static_cast<int>(std::min<size_t>(kArrays / words, x.size() - first));
    grid_.lanes = std::max(grid_.lanes, e.values * words);
    if (!only.empty()) open(cat("if (", only, ")"));
    for (int i = 0; i < e.values; ++i) e.put(i, place, x[first + static_cast<size_t>(i)]);
    if (!only.empty()) close();
    line("workgroupBarrier();");
    exchange(e);
  }
}

// The lanes of a subgroup that lie in one group: so many, of a size that is known when the kernel
// runs, exchange values without a barrier.
std::string WgslPrinter::combine_lanes(Node reduce, const ThreadGroup& g) {
  const int most = g.apart > 1 ? 1 : g.width & -g.width;  // power of two
  if (most == 1) return "1u";
  grid_.by_lanes = true;
  const DType t = reduce->dtype;
  const Op op = reduce->arg<OpArg>().op;
  const std::string together = define(cat("min(lanes, ", most, "u)")), step = fresh();
  for (Str acc : known_.accumulators[reduce]) {
    const bool wide = is_wide(reduce);
    const std::string there =
        cat("subgroupShuffleXor(", wide ? acc : bare(as_word(t, acc)), ", ", step, ")");
    const std::string other = fresh();
    const std::string sum =
        wide ? combine_pairs(op, t, acc, other) : combine(op, t, acc, from_bits(t, other));
    line(cat("for (var ", step, " = 1u; ", step, " < ", together, "; ", step, " *= 2u) { let ",
             other, " = ", there, "; ", acc, " = ", bare(sum), "; }  //+subgroups"));
  }
  return together;
}

// A tree: the values of the second half of those that are left are added to the first. What lanes
// of a subgroup have combined is one value, which the first of them leaves.
void WgslPrinter::group(Node reduce) {
  const ThreadGroup g = group_of(reduce, grid_.threads, target_.warp, false);
  const Lanes acc = known_.accumulators[reduce];
  const std::string lanes = combine_lanes(reduce, g);
  const bool by_lanes = lanes != "1u", all = g.width == g.threads;
  const std::string member = all           ? "tid"
                             : g.apart > 1 ? define(cat("tid / ", g.apart, "u % ", g.width, "u"))
                                           : define(cat("tid % ", g.width, "u"));
  const auto shared_by = [&](Str number) { return by_lanes ? cat(number, " / ", lanes) : number; };
  const std::string first =
      all ? "0" : define(shared_by(cat("(tid - ", member, " * ", g.apart, "u)")));
  const std::string own = by_lanes && !all ? define(cat(first, " + ", member)) : "tid";
  if (by_lanes) open(cat("if (", lanes, " < ", g.width, "u)"));
  size_t done = 0;
  const std::string only = by_lanes ? cat("tid % ", lanes, " == 0u") : "";
  among_threads(reduce, acc, shared_by("tid"), only, [&](const Exchange& e) {
    // So many are left, of which the last `half` go to others.
    const std::string left = fresh(), half = cat("(", left, " / 2u)");
    open(cat("for (var ", left, " = ", shared_by(cat(g.width, "u")), "; ", left, " > 1u; ", left,
             " -= ", half, ")"));
    open(cat("if (", member, " < ", half, ")"));
    const std::string other =
        cat(own, " + (", left, " - ", half, ")", g.apart > 1 ? cat(" * ", g.apart, "u") : "");
    for (int i = 0; i < e.values; ++i) e.put(i, own, e.combine(e.get(i, own), e.get(i, other)));
    close();
    line("workgroupBarrier();");
    close();
    for (int i = 0; i < e.values; ++i) line(cat(acc[done++], " = ", bare(e.get(i, first)), ";"));
    line("workgroupBarrier();");
  });
  if (by_lanes) close();
}

// Each thread combines its value with that of one 1, 2, 4, ... before it, and then takes what the
// thread before it has.
void WgslPrinter::prefix(Node n) {
  const auto known = [&](const Lanes& names) {
    if (is_wide(n)) return set_pairs(n, names);
    known_.values[n] = names;
  };
  if (is_running(n)) return known(define_all(known_.accumulators[running_reduce(n)]));
  const ThreadGroup g = group_of(n, grid_.threads, target_.warp, false);
  expect(g.apart == 1, "render_wgsl: a scan of threads that lie apart");
  const DType t = n->dtype.one();
  Node start = identity(n->arg<OpArg>().op, t.scalar == Scalar::I64 && !is_wide(n) ? kI32 : t);
  const std::string none = is_wide(n) ? pair_literal(start) : literal(start);
  const std::string member = define(cat("tid % ", g.width, "u"));
  Lanes out;
  const Lanes given = is_wide(n) ? pairs(n->src(0)) : value(n->src(0));
  among_threads(n, given, "tid", "", [&](const Exchange& e) {
    for (int step = 1; step < g.width; step *= 2) {
      Lanes sums;
      for (int i = 0; i < e.values; ++i) {
        sums.push_back(fresh());
        line(cat("var ", sums.back(), " = ", bare(e.get(i, "tid")), ";"));
      }
      open(cat("if (", member, " >= ", step, "u)"));
      for (int i = 0; i < e.values; ++i)
        line(
            cat(sums[i], " = ", bare(e.combine(e.get(i, cat("tid - ", step, "u")), sums[i])), ";"));
      close();
      line("workgroupBarrier();");
      for (int i = 0; i < e.values; ++i) e.put(i, "tid", sums[i]);
      line("workgroupBarrier();");
    }
    for (int i = 0; i < e.values; ++i) {
      const std::string before = e.get(i, "tid - select(0u, 1u, tid > 0u)");
      out.push_back(define(select(cat(member, " > 0u"), before, none)));
    }
    line("workgroupBarrier();");
  });
  known(out);
}

}  // namespace tiny
