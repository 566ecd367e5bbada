#include "codegen/render/wgsl/render.h"

#include <algorithm>
#include <bit>

#include "codegen/kernel/access.h"
#include "codegen/kernel/facts.h"
#include "codegen/options/stage.h"
#include "codegen/options/thread_group.h"
#include "codegen/render/wgsl/helpers.h"
#include "codegen/render/wgsl/printer.h"

namespace tiny {

Source render_wgsl(const Linear& program, const Target& target) {
  return WgslPrinter(program, target).print();
}

Source WgslPrinter::print() {
  find_grid();
  find_memory();
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
    if (i < grid_.threads.size())
      out += cat("  let r", range_id(grid_.threads[grid_.threads.size() - 1 - i]), " = i32(lid.",
                 "xyz"[i], ");\n");
  }
  return out;
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
  const std::string inside = grid_text() + text_.body;
  std::string builtins;
  const auto add = [&](const char* name, const char* builtin, const char* type) {
    if (inside.find(name) != inside.npos)
      builtins += cat(builtins.empty() ? "" : ", ", "@builtin(", builtin, ") ", name, ": ", type);
  };
  add("wid", "workgroup_id", "vec3<u32>");
  add("lid", "local_invocation_id", "vec3<u32>");
  add("tid", "local_invocation_index", "u32");
  const std::string kernel = cat("@compute @workgroup_size(", block[0], ", ", block[1], ", ",
                                 block[2], ")\nfn main(", builtins, ") {\n", inside, "}\n");
  return cat("// ", program_.name, "\n", text_.declarations, shared, wgsl_helpers(kernel), kernel);
}

// --- statements ----------------------------------------------------------------------------------

namespace {

// Operations whose low words are those of 64 bits, whatever the high ones are.
bool keeps_low_word(Op op) {
  static const OpSet ops =
      op_set(Op::Bound, Op::Add, Op::Sub, Op::Mul, Op::Neg, Op::Shl, Op::And, Op::Or, Op::Xor,
             Op::Where, Op::Broadcast, Op::Shuffle, Op::Reverse, Op::Cast, Op::Bitcast, Op::Load);
  return ops[static_cast<size_t>(op)];
}

}  // namespace

// Whether an operation may take an integer of 64 bits of which only the low word, and perhaps the
// high one, is known. An index lies in its buffer, where it counts, so that its low word is all of
// it.
bool WgslPrinter::takes_wide(Node n, Node s) const {
  const bool is_access = n->is(Op::Load) || n->is(Op::Store);
  if (is_access && s == n->src(1)) return true;
  if (n->is(Op::Store))
    return (s->is(Op::Load) || s->is(Op::Where)) && known_.high.contains(s) && !is_stage(n->src(0));
  if (is_comparison(n->op)) return s->dtype.is_signed() && known_.high.contains(s);
  if (n->is(Op::Cast)) return n->dtype.is_int() && (n->dtype.bits() <= 32 || n->dtype == s->dtype);
  if (n->is(Op::Reduce) || n->is(Op::Fold) || n->is(Op::Prefix)) {
    const Op op = n->arg<OpArg>().op;
    return op == Op::Add || op == Op::Mul;
  }
  return keeps_low_word(n->op);
}

// Error where the kernel needs a number of 64 bits.
void WgslPrinter::require_width(Node n) const {
  if (info(n->op).cls == OpClass::Statement && !n->is(Op::Store)) return;
  for (Node s : n->srcs()) {
    const DType t = s->dtype;
    if (t.bits() <= 32 || s->is(Op::Param) || is_stage(s)) continue;
    check(!t.is_float() && (fits_word(s) || takes_wide(n, s)),
          "WGSL has no numbers of 64 bits: kernel ", program_.name, " takes ", n->op, " of ",
          t.one().name(),
          t.is_float() ? ": cast to f32 before"
                       : " of which no bounds below 2^31 are known: use i32 (x.to(kI32)) there");
  }
  check(n->dtype.scalar != Scalar::F64, "WGSL has no numbers of 64 bits: kernel ", program_.name,
        " computes ", n->op, " of f64: use f32");
}

// The high words of an integer of 64 bits: what indices are made of, for comparisons.
WgslPrinter::Lanes WgslPrinter::high_words(Node n) {
  if (const Lanes* known = known_.high.find(n)) return *known;
  Lanes out;
  for (Str e : value(n)) out.push_back(cat("bitcast<u32>(", e, " >> 31u)"));
  return out;
}

void WgslPrinter::keep_high_words(Node n) {
  if (n->dtype.scalar != Scalar::I64 || fits_word(n)) return;
  const auto is_known = [&](Node s) {
    return s->dtype.scalar != Scalar::I64 || fits_word(s) || known_.high.contains(s);
  };
  const auto srcs = n->srcs();
  if (!std::all_of(srcs.begin(), srcs.end(), is_known)) return;
  const auto lane = [](const Lanes& all, size_t l) { return all[all.size() == 1 ? 0 : l]; };
  const Lanes now = value(n);
  Lanes out;
  for (size_t l = 0; l < now.size(); ++l) {
    if (n->is(Op::Cast) || n->is(Op::Broadcast)) {
      out.push_back(lane(high_words(n->src(0)), l));
    } else if (n->is(Op::Where)) {
      out.push_back(define(select(lane(value(n->src(0)), l), lane(high_words(n->src(1)), l),
                                  lane(high_words(n->src(2)), l))));
    } else if (n->is(Op::Add)) {  // a sum that wraps is less than what was added
      const std::string carry = cat("select(0u, 1u, bitcast<u32>(", now[l], ") < bitcast<u32>(",
                                    lane(value(n->src(0)), l), "))");
      out.push_back(define(cat(lane(high_words(n->src(0)), l), " + ",
                               lane(high_words(n->src(1)), l), " + ", carry)));
    } else {
      return;
    }
  }
  known_.high[n] = out;
}

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
      known_.values[copy->src(2)] = load(copy->src(2));
      return store(copy);
    }
    case Op::Barrier: return line("workgroupBarrier();");
    case Op::EndLoop: return close_loop(n->src(0));
    case Op::Acc: return declare_accumulator(n->src(0));
    case Op::Update: return update(n->src(0));
    case Op::Group: return group(n->src(0));
    case Op::Store: return store(n);
    // An accumulator that is declared anew has another name.
    case Op::Reduce: known_.values[n] = known_.accumulators[n]; return;
    case Op::Load: known_.values[n] = load(n); return;
    case Op::Prefix: return prefix(n);
    default: break;
  }
  const Lanes lanes = selections_.is_done(n) ? value(n->src(1)) : arithmetic(n);
  Lanes& out = known_.values[n];
  out.clear();
  const bool inside = single_use_(n) || n->is(Op::Broadcast) || n->is(Op::Shuffle);
  for (Str e : lanes) {
    const bool simple = e.find_first_of(" (") == e.npos;
    out.push_back(simple || (inside && e.size() <= 60) ? e : define(e));
  }
  keep_high_words(n);
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
  if (t.scalar == Scalar::I64) t = kI32.vec(t.lanes);  // its bounds fit
  const std::string start = bare(literal(identity(reduce->arg<OpArg>().op, t)));
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

// Through arrays in workgroup memory with a word for each thread, a few lanes at a time, between
// barriers of which the last one lets the arrays be used again.
WgslPrinter::Lanes WgslPrinter::among_threads(Node n, const Lanes& x,
                                              const std::function<void(int lanes)>& exchange) {
  constexpr int kLanes = 4;  // arrays, and so kGroupBytes of codegen/target/target.cpp
  Lanes out;
  for (size_t first = 0; first < x.size(); first += kLanes) {
    const int lanes = static_cast<int>(std::min<size_t>(kLanes, x.size() - first));
    grid_.lanes = std::max(grid_.lanes, lanes);
    for (int i = 0; i < lanes; ++i)
      line(
          cat("g", i, "[tid] = ", bare(as_word(n->dtype, x[first + static_cast<size_t>(i)])), ";"));
    line("workgroupBarrier();");
    exchange(lanes);
    for (int i = 0; i < lanes; ++i) out.push_back(cat("g", i));
  }
  return out;
}

// A tree: the values of the second half of those that are left are added to the first.
void WgslPrinter::group(Node reduce) {
  const ThreadGroup g = group_of(reduce, grid_.threads, target_.warp, false);
  const DType t = reduce->dtype;
  const Op op = reduce->arg<OpArg>().op;
  const Lanes acc = known_.accumulators[reduce];
  const bool all = g.width == g.threads;
  const std::string member = all           ? "tid"
                             : g.apart > 1 ? define(cat("tid / ", g.apart, "u % ", g.width, "u"))
                                           : define(cat("tid % ", g.width, "u"));
  const std::string first = all ? "0" : define(cat("tid - ", member, " * ", g.apart, "u"));
  size_t done = 0;
  among_threads(reduce, acc, [&](int lanes) {
    // So many are left, of which the last `half` go to others.
    const std::string left = fresh(), half = cat("(", left, " / 2u)");
    open(cat("for (var ", left, " = ", g.width, "u; ", left, " > 1u; ", left, " -= ", half, ")"));
    open(cat("if (", member, " < ", half, ")"));
    for (int i = 0; i < lanes; ++i) {
      const std::string own = cat("g", i, "[tid]"),
                        other = cat("g", i, "[tid + (", left, " - ", half, ")",
                                    g.apart > 1 ? cat(" * ", g.apart, "u") : "", "]");
      line(cat(own, " = ", bare(as_word(t, combine(op, t, from_bits(t, own), from_bits(t, other)))),
               ";"));
    }
    close();
    line("workgroupBarrier();");
    close();
    for (int i = 0; i < lanes; ++i)
      line(cat(acc[done++], " = ", bare(from_bits(t, cat("g", i, "[", first, "]"))), ";"));
    line("workgroupBarrier();");
  });
}

// Each thread combines its value with that of one 1, 2, 4, ... before it, and then takes what the
// thread before it has.
void WgslPrinter::prefix(Node n) {
  if (is_running(n)) {
    known_.values[n] = define_all(known_.accumulators[running_reduce(n)]);
    return;
  }
  const ThreadGroup g = group_of(n, grid_.threads, target_.warp, false);
  expect(g.apart == 1, "render_wgsl: a scan of threads that lie apart");
  const DType t = n->dtype;
  const Op op = n->arg<OpArg>().op;
  const std::string none = literal(identity(op, t.scalar == Scalar::I64 ? kI32 : t.one()));
  const std::string member = define(cat("tid % ", g.width, "u"));
  Lanes out;
  among_threads(n, value(n->src(0)), [&](int lanes) {
    for (int step = 1; step < g.width; step *= 2) {
      Lanes sums;
      for (int i = 0; i < lanes; ++i) {
        sums.push_back(fresh());
        line(cat("var ", sums.back(), " = g", i, "[tid];"));
      }
      open(cat("if (", member, " >= ", step, "u)"));
      for (int i = 0; i < lanes; ++i) {
        const std::string before = from_bits(t, cat("g", i, "[tid - ", step, "u]"));
        const std::string sum = combine(op, t, before, from_bits(t, sums[i]));
        line(cat(sums[i], " = ", bare(as_word(t, sum)), ";"));
      }
      close();
      line("workgroupBarrier();");
      for (int i = 0; i < lanes; ++i) line(cat("g", i, "[tid] = ", sums[i], ";"));
      line("workgroupBarrier();");
    }
    for (int i = 0; i < lanes; ++i) {
      const std::string before = from_bits(t, cat("g", i, "[tid - select(0u, 1u, tid > 0u)]"));
      out.push_back(define(select(cat(member, " > 0u"), before, none)));
    }
    line("workgroupBarrier();");
  });
  known_.values[n] = out;
}

}  // namespace tiny
