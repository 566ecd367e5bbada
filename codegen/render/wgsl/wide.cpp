// Integers of 64 bits as pairs of words, vec2<u32>(low, high), where 32 bits do not hold them and
// something depends on the high word: a store, a comparison, a division. What only indices are made
// of stays one word.
#include "codegen/kernel/access.h"
#include "codegen/kernel/facts.h"
#include "codegen/render/wgsl/printer.h"

namespace tiny {

namespace {

bool is_long(DType t) { return t.is_int() && t.bits() == 64; }

bool is_long_number(Node n) { return is_long(n->dtype) && !fits_word(n) && !n->is(Op::Param); }

bool keeps_low_word(Op op) {
  static const OpSet ops =
      op_set(Op::Bound, Op::Add, Op::Sub, Op::Mul, Op::Neg, Op::Shl, Op::And, Op::Or, Op::Xor,
             Op::Where, Op::Broadcast, Op::Shuffle, Op::Reverse, Op::Bitcast, Op::Load);
  return ops[static_cast<size_t>(op)];
}

// Whether the low word of the result, or all of it, depends on low words alone.
bool keeps_low_word(Node n) {
  if (n->is(Op::Cast)) return n->dtype.is_int() && !n->dtype.is_bool();
  if (n->is(Op::Reduce) || n->is(Op::Fold) || n->is(Op::Prefix))
    return keeps_low_word(n->arg<OpArg>().op);
  return keeps_low_word(n->op);
}

const char* suffix(DType t) { return t.is_unsigned() ? "_u64(" : "_i64("; }

std::string call(const std::string& function, const std::string& a, const std::string& b) {
  return cat(function, bare(a), ", ", bare(b), ")");
}

}  // namespace

// From uses to what they use, until nothing is added: an accumulator is used before its update,
// too.
void WgslPrinter::find_wide() {
  for (size_t before = SIZE_MAX; before != known_.wide.size();) {
    before = known_.wide.size();
    for (size_t i = program_.body.size(); i-- > 0;) find_wide(program_.body[i]);
  }
}

void WgslPrinter::find_wide(Node n) {
  const auto need = [&](Node s) {
    if (is_long_number(s) && !s->is_const()) known_.wide[s] = true;
  };
  if (n->is(Op::Store)) return need(n->src(2));
  if (n->is(Op::Fetch)) return need(n->src(0)->src(2));
  if (n->is(Op::Update) && known_.wide.contains(n->src(0))) return need(updated_with(n->src(0)));
  if (info(n->op).cls == OpClass::Statement || n->is(Op::Load)) return;
  const auto srcs = n->srcs();
  if (!known_.wide.contains(n)) {
    const bool takes_long = std::ranges::any_of(srcs, is_long_number);
    if (!takes_long || keeps_low_word(n)) return;
    known_.wide[n] = true;
  }
  if (n->is(Op::Prefix) && is_running(n)) known_.wide[running_reduce(n)] = true;
  const bool shifts = n->is(Op::Shl) || n->is(Op::Shr);
  for (Node s : shifts ? srcs.first(1) : srcs) need(s);
}

void WgslPrinter::require_width(Node n) const {
  if (info(n->op).cls == OpClass::Statement && !n->is(Op::Store)) return;
  for (Node s : n->srcs())
    check(s->dtype.scalar != Scalar::F64 || s->is(Op::Param) || is_stage(s),
          "WGSL has no numbers of 64 bits: kernel ", program_.name, " takes ", n->op,
          " of f64: cast to f32 before");
  check(n->dtype.scalar != Scalar::F64, "WGSL has no numbers of 64 bits: kernel ", program_.name,
        " computes ", n->op, " of f64: use f32");
}

std::string WgslPrinter::low_word(DType t, Str pair) const {
  return t.is_unsigned() ? cat(pair, ".x") : cat("bitcast<i32>(", pair, ".x)");
}

std::string WgslPrinter::pair_literal(Node n) const {
  const auto v = static_cast<uint64_t>(n->int_value());
  return cat("vec2<u32>(", static_cast<uint32_t>(v), "u, ", static_cast<uint32_t>(v >> 32), "u)");
}

WgslPrinter::Lanes WgslPrinter::pairs(Node n) {
  if (const Lanes* known = known_.pairs.find(n)) return *known;
  if (n->is_const()) return Lanes(n->dtype.lanes, pair_literal(n));
  expect(!is_long(n->dtype) || fits_word(n), "render_wgsl: the high word of ", n->op,
         " is unknown");
  Lanes out;
  for (Str e : value(n)) out.push_back(widened(is_long(n->dtype) ? n->dtype : n->dtype.one(), e));
  return out;
}

// A number in a register of 32 bits.
std::string WgslPrinter::widened(DType t, Str x) const {
  if (t.is_bool()) return cat("vec2<u32>(select(0u, 1u, ", bare(x), "), 0u)");
  return t.is_unsigned() ? cat("vec2<u32>(", bare(x), ", 0u)") : cat("wide_i32(", bare(x), ")");
}

void WgslPrinter::set_pairs(Node n, const Lanes& names) {
  known_.pairs[n] = names;
  Lanes& low = known_.values[n];
  low.clear();
  for (Str name : names) low.push_back(low_word(n->dtype, name));
}

// A statement whose result or operands are pairs.
void WgslPrinter::wide_statement(Node n) {
  Lanes lanes = selections_.is_done(n) ? pairs(n->src(1)) : wide_arithmetic(n);
  for (std::string& e : lanes)
    if (e.find_first_of(" (") != e.npos) e = define(e);
  if (is_long(n->dtype)) return set_pairs(n, lanes);
  known_.values[n] = lanes;
}

WgslPrinter::Lanes WgslPrinter::wide_arithmetic(Node n) {
  const DType t = n->dtype, from = n->src(0)->dtype;
  switch (n->op) {
    case Op::Broadcast: return Lanes(t.lanes, pairs(n->src(0))[0]);
    case Op::Reverse: {
      const Lanes v = pairs(n->src(0));
      return {v.rbegin(), v.rend()};
    }
    case Op::Shuffle: {
      Lanes all = pairs(n->src(0)), out;
      const Lanes more = pairs(n->src(1));
      all.insert(all.end(), more.begin(), more.end());
      for (int64_t i : n->ints()) out.push_back(all[static_cast<size_t>(i)]);
      return out;
    }
    case Op::Fold: {
      const Lanes v = pairs(n->src(0));
      std::string sum = v[0];
      for (size_t i = 1; i < v.size(); ++i)
        sum = define(combine_pairs(n->arg<OpArg>().op, t, sum, v[i]));
      return {sum};
    }
    default: break;
  }
  std::vector<Lanes> sources;
  for (Node s : n->srcs()) {
    const bool is_amount = (n->is(Op::Shl) || n->is(Op::Shr)) && !sources.empty();
    sources.push_back(is_long(s->dtype) && !is_amount ? pairs(s) : value(s));
  }
  Lanes out;
  for (size_t l = 0; l < static_cast<size_t>(t.lanes); ++l) {
    Lanes x;
    for (const Lanes& s : sources) x.push_back(s[s.size() == 1 ? 0 : l]);
    out.push_back(n->is(Op::Cast) || n->is(Op::Bitcast) ? wide_cast(from.one(), t.one(), x[0])
                                                        : wide_operation(n, x));
  }
  return out;
}

std::string WgslPrinter::wide_operation(Node n, const Lanes& x) {
  const DType from = n->src(0)->dtype;
  switch (n->op) {
    case Op::Bound:
    case Op::Floor:
    case Op::Trunc: return x[0];
    case Op::Neg: return call("sub_64(", "vec2<u32>()", x[0]);
    case Op::Where: return select(x[0], x[1], x[2]);
    case Op::Lt: return call(cat("lt", suffix(from)), x[0], x[1]);
    case Op::Le: return cat("!", call(cat("lt", suffix(from)), x[1], x[0]));
    case Op::Eq: return cat("all(", x[0], " == ", x[1], ")");
    case Op::Ne: return cat("any(", x[0], " != ", x[1], ")");
    case Op::TruncDiv: return call(cat("div", suffix(from)), x[0], x[1]);
    case Op::TruncMod: return call(cat("mod", suffix(from)), x[0], x[1]);
    case Op::Shl:
    case Op::Shr: {
      Node amount = n->src(1);
      const std::string by = amount->is_const() ? cat(amount->int_value() & 63, "u")
                                                : cat("u32(", bare(x[1]), ") & 63u");
      return call(n->is(Op::Shl) ? "shl_64(" : cat("shr", suffix(from)), x[0], by);
    }
    default: return combine_pairs(n->op, n->dtype, x[0], x[1]);
  }
}

// A binary operation that is also one of a reduction. Integers wrap.
std::string WgslPrinter::combine_pairs(Op op, DType t, Str a, Str b) {
  switch (op) {
    case Op::Add: return call("add_64(", a, b);
    case Op::Sub: return call("sub_64(", a, b);
    case Op::Mul: return call("mul_64(", a, b);
    case Op::Max: return call(cat("max", suffix(t)), a, b);
    case Op::Min: return call(cat("min", suffix(t)), a, b);
    case Op::And:
    case Op::Or:
    case Op::Xor: return cat("(", a, " ", symbol(op), " ", b, ")");
    default: throw Bug(cat("render_wgsl: ", op, " of integers of 64 bits"));
  }
}

// Of a pair, or to one.
std::string WgslPrinter::wide_cast(DType from, DType to, Str x) {
  if (is_long(from) && is_long(to)) return x;
  if (is_long(to))
    return from.is_float() ? cat("f32_to", suffix(to), bare(x), ")") : widened(from, x);
  if (to.is_bool()) return cat("any(", x, " != vec2<u32>())");
  expect(to.scalar == Scalar::F32, "render_wgsl: the cast of ", from.name(), " to ", to.name());
  return cat(from.is_unsigned() ? "u64" : "i64", "_to_f32(", bare(x), ")");
}

}  // namespace tiny
