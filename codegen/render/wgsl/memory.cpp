
#include "codegen/kernel/access.h"
#include "codegen/kernel/facts.h"
#include "codegen/options/stage.h"
#include "codegen/render/wgsl/printer.h"
#include "tiny/ir/sizes.h"

namespace tiny {

namespace {

bool is_access(Node n) { return n->is(Op::Load) || n->is(Op::Store); }

DType accessed(Node access) { return access->is(Op::Load) ? access->dtype : access->src(2)->dtype; }

int bytes_of_element(DType t) { return t.is_bool() ? 1 : t.size(); }

int per_word(DType t) { return 4 / bytes_of_element(t); }

bool is_part(DType t) { return bytes_of_element(t) < 4; }

}  // namespace

// --- declarations --------------------------------------------------------------------------------

// Words that a store changes in part, and elements that several threads combine theirs with, are
// atomic to all accesses of the kernel.
void WgslPrinter::find_memory() {
  memory_.resize(program_.params.size());
  std::vector<int> loads(memory_.size()), lengths(memory_.size());
  for (Node n : program_.body) {
    if (n->is(Op::Bound) && n->src(0)->is(Op::Load) && !is_stage(n->src(0)->src(0)))
      ++lengths[slot_of(n->src(0)->src(0))];
    Node access = n->is(Op::Fetch) ? n->src(0) : n;
    for (Node a : {access, n->is(Op::Fetch) ? access->src(2) : nullptr}) {
      if (!a || !is_access(a) || is_stage(a->src(0))) continue;
      const DType t = accessed(a);
      const auto slot = static_cast<size_t>(slot_of(a->src(0)));
      Memory& m = memory_[slot];
      m.layout = t.scalar == Scalar::F16 ? Layout::Halves
                 : is_part(t)            ? Layout::Parts
                 : t.bits() == 64        ? Layout::Pairs
                                         : Layout::Whole;
      m.by_words &= has_whole_words(a, t);
      loads[slot] += a->is(Op::Load);
      if (a->is(Op::Load)) continue;
      const bool combines = std::holds_alternative<OpArg>(a->payload);
      expect(!combines || m.layout != Layout::Halves, "render_wgsl: threads that add to f16");
      m.atomic |= combines || (is_part(t) && !has_whole_words(a, t));
      check(m.layout != Layout::Pairs || !m.atomic, "WGSL has no numbers of 64 bits: kernel ",
            program_.name, " adds to ", t.one().name(), " in memory: use i32 or f32");
    }
  }
  for (size_t i = 0; i < memory_.size(); ++i)
    memory_[i].uniform = program_.params[i] && !program_.written[i] && lengths[i] > 0 &&
                         lengths[i] == loads[i] && elements_of(program_.params[i]) == 1;
}

void WgslPrinter::declare_buffers() {
  int count = 0;
  for (size_t i = 0; i < program_.params.size(); ++i) {
    Node param = program_.params[i];
    if (!param) continue;
    const Memory& m = memory_[i];
    std::string element = m.layout == Layout::Whole    ? type(param->dtype)
                          : m.layout == Layout::Parts  ? "u32"
                          : m.layout == Layout::Halves ? "halves"
                                                       : "vec2<u32>";
    if (m.atomic) element = "atomic<u32>";
    const int64_t bytes = elements_of(param) * bytes_of_element(param->dtype);
    const bool whole = m.layout == Layout::Whole || m.layout == Layout::Pairs;
    const auto declaration = [&](Str type) {
      return cat("@group(0) @binding(", i, ") var<",
                 m.uniform ? "uniform> b" : "storage, read_write> b", i, ": ", type, ";  // ",
                 ceil_div(bytes, 4) * 4, " bytes", program_.written[i] ? ", written" : "");
    };
    const std::string array =
        cat("array<", element, ", ", whole ? elements_of(param) : ceil_div(bytes, 4), ">");
    text_.declarations += declaration(m.uniform ? element : array);
    if (m.layout == Layout::Halves && !m.by_words)
      text_.declarations +=
          cat("  //-f16\n", declaration(cat("array<half, ", elements_of(param), ">")), "  //+f16");
    text_.declarations += "\n";
    count += !m.uniform;
  }
  check(count <= target_.most_buffers, "kernel ", program_.name, " has ", count,
        " buffers, of at most ", target_.most_buffers, " on ", target_.arch);
}

// Of buffers of f16 that are not accessed by whole words: half_bN(i) and set_half_bN(i, x) are
// element i, halves_bN(w) and set_halves_bN(w, x) the two of word w.
std::string WgslPrinter::half_functions() const {
  std::string out;
  for (size_t i = 0; i < memory_.size(); ++i) {
    const Memory& m = memory_[i];
    if (!program_.params[i] || m.layout != Layout::Halves || m.by_words) continue;
    const std::string b = cat("b", i);
    const auto add = [&](const char* name, Str rest, Str with, Str without) {
      const std::string function = cat(name, b);
      if (text_.body.find(function + "(") == text_.body.npos) return;
      out += cat("fn ", function, rest, " { ", with, " }  //+f16\nfn ", function, rest, " { ",
                 without, " }  //-f16\n");
    };
    const auto get = [&](Str at) {
      return m.atomic ? cat("atomicLoad(&", b, "[", at, "])") : cat(b, "[", at, "]");
    };
    add("half_", "(i: u32) -> half", cat("return ", b, "[i];"),
        cat("return extractBits(", get("i / 2u"), ", (i % 2u) * 16u, 16u);"));
    add("halves_", "(w: u32) -> halves",
        cat("return vec2<f16>(", b, "[2u * w], ", b, "[2u * w + 1u]);"),
        cat("return ", get("w"), ";"));
    add("set_half_", "(i: u32, x: half)", cat(b, "[i] = x;"),
        cat("let at = &", b, "[i / 2u]; var old = atomicLoad(at); loop { ",
            "let done = atomicCompareExchangeWeak(at, old, "
            "insertBits(old, x, (i % 2u) * 16u, 16u)); ",
            "if (done.exchanged) { break; } old = done.old_value; }"));
    add("set_halves_", "(w: u32, x: halves)", cat(b, "[2u * w] = x.x; ", b, "[2u * w + 1u] = x.y;"),
        m.atomic ? cat("atomicStore(&", b, "[w], x);") : cat(b, "[w] = x;"));
  }
  return out;
}

// An element of less than a word has one of its own here.
void WgslPrinter::declare_stages() {
  for (Node s : stages_of(program_.body))
    text_.declarations += cat("var<workgroup> ", buffer(s), ": array<",
                              s->dtype.bits() == 64 ? "vec2<u32>" : type(s->dtype), ", ",
                              stage_bytes(s) / bytes_of_element(s->dtype), ">;\n");
}

std::string WgslPrinter::buffer(Node param) const {
  return is_stage(param) ? cat("s", kFirstStage - slot_of(param)) : cat("b", slot_of(param));
}

// --- elements ------------------------------------------------------------------------------------

std::string WgslPrinter::word(Node param, Str index) const {
  const std::string at = cat(buffer(param), "[", bare(index), "]");
  if (is_stage(param)) return at;
  const Memory& m = memory_[slot_of(param)];
  if (m.layout == Layout::Halves && !m.by_words)
    return cat("halves_", buffer(param), "(", bare(index), ")");
  return m.atomic ? cat("atomicLoad(&", at, ")") : at;
}

// The element that begins at bit `shift` of a word.
std::string WgslPrinter::from_word(DType t, Str word, Str shift) const {
  const bool extends = t.is_int() && t.is_signed();
  const std::string part =
      cat("extractBits(", extends ? cat("bitcast<i32>(", bare(word), ")") : word, ", ", shift, ", ",
          8 * bytes_of_element(t), "u)");
  return t.is_bool() ? cat("(", part, " != 0u)") : part;
}

std::string WgslPrinter::element(Node param, DType t, Str index) {
  if (is_stage(param) && t.bits() == 64) return low_word(t, word(param, index));
  if (is_stage(param)) return word(param, index);
  const Memory& m = memory_[slot_of(param)];
  if (m.uniform)
    return m.layout == Layout::Pairs ? cat("i32(", buffer(param), ".x)") : buffer(param);
  if (m.layout == Layout::Pairs) return low_word(t, word(param, index));
  if (m.layout == Layout::Whole)
    return m.atomic ? from_bits(t, word(param, index)) : word(param, index);
  if (m.layout == Layout::Halves) return cat("half_", buffer(param), "(u32(", bare(index), "))");
  const std::string i = define(cat("u32(", bare(index), ")"));
  const int n = per_word(t);
  return from_word(t, word(param, cat(i, " / ", n, "u")),
                   cat("(", i, " % ", n, "u) * ", 8 * bytes_of_element(t), "u"));
}

// Whether an access to parts of words has all of each of them.
bool WgslPrinter::has_whole_words(Node access, DType t) const {
  Node index = access->src(1), gate = gate_of(access);
  return is_part(t) && index->dtype.lanes == 1 && (!gate || gate->dtype.lanes == 1) &&
         t.lanes % per_word(t) == 0 && known_factor(index) % per_word(t) == 0;
}

// --- loads ---------------------------------------------------------------------------------------

// Gated, the index of an element that is there is taken instead: no branch. Pairs of words where
// the load is wide.
WgslPrinter::Lanes WgslPrinter::load(Node n) {
  Node param = n->src(0), index = n->src(1), gate = gate_of(n);
  const DType t = n->dtype;
  const Lanes at = named(index), on = gate ? named(gate) : Lanes();
  std::string none;
  if (gate) {
    Node filling = selections_.constant_of(n);
    if (!filling) filling = constant(t.one(), 0);
    none = is_wide(n) ? pair_literal(filling) : literal(filling);
  }
  if (!is_stage(param) && t.lanes > 1 && has_whole_words(n, t)) {
    Lanes out = load_words(n, gate ? define(select(on[0], at[0], "0")) : at[0]);
    for (std::string& e : out) e = define(gate ? select(on[0], e, none) : e);
    return out;
  }
  Lanes out;
  for (int l = 0; l < t.lanes; ++l) {
    const auto lane = static_cast<size_t>(l);
    std::string i = at.size() > 1 ? at[lane] : l ? cat("(", at[0], " + ", l, ")") : at[0];
    const std::string holds = gate ? on[on.size() > 1 ? lane : 0] : "";
    if (gate) i = define(select(holds, i, "0"));
    const std::string e = is_wide(n) ? word(param, i) : element(param, t, i);
    out.push_back(define(gate ? select(holds, e, none) : e));
  }
  return out;
}

void WgslPrinter::set_load(Node n) {
  const Lanes lanes = load(n);
  if (is_wide(n)) return set_pairs(n, lanes);
  known_.values[n] = lanes;
}

WgslPrinter::Lanes WgslPrinter::load_words(Node n, Str at) {
  const DType t = n->dtype;
  const int each = per_word(t);
  const bool halves = memory_[slot_of(n->src(0))].layout == Layout::Halves;
  const std::string first = define(cat("u32(", at, ") / ", each, "u"));
  Lanes out;
  for (int l = 0; l < t.lanes; l += each) {
    const std::string w = define(word(n->src(0), l ? cat(first, " + ", l / each, "u") : first));
    for (int i = 0; i < each; ++i)
      out.push_back(halves ? cat(i ? "high_half(" : "low_half(", w, ")")
                           : from_word(t, w, cat(8 * bytes_of_element(t) * i, "u")));
  }
  return out;
}

// --- stores --------------------------------------------------------------------------------------

std::string WgslPrinter::once_per_grid(Node store) {
  std::string first;
  for (Node r : repeated_along(store, grid_.blocks, grid_.threads))
    first += cat(first.empty() ? "" : " && ", scalar(r), " == 0");
  return first;
}

void WgslPrinter::store(Node n) {
  Node param = n->src(0), index = n->src(1), gate = gate_of(n);
  const DType t = n->src(2)->dtype;
  const bool as_pairs = t.is_int() && t.bits() == 64;
  const Lanes at = named(index), v = as_pairs ? pairs(n->src(2)) : named(n->src(2)),
              on = gate ? named(gate) : Lanes();
  const std::string once = once_per_grid(n);
  if (!once.empty()) open(cat("if (", once, ")"));
  if (!is_stage(param) && has_whole_words(n, t) && !std::holds_alternative<OpArg>(n->payload)) {
    if (gate) open(cat("if (", on[0], ")"));
    store_words(n, at[0], v);
    if (gate) close();
  } else {
    for (int l = 0; l < t.lanes; ++l) {
      const auto lane = static_cast<size_t>(l);
      if (gate) open(cat("if (", on[on.size() > 1 ? lane : 0], ")"));
      const std::string i = at.size() > 1 ? at[lane] : l ? cat(at[0], " + ", l) : at[0];
      if (as_pairs)
        line(cat(buffer(param), "[", i, "] = ", v[lane], ";"));
      else
        store_element(n, i, v[lane]);
      if (gate) close();
    }
  }
  if (!once.empty()) close();
}

void WgslPrinter::store_words(Node n, Str at, const Lanes& v) {
  const DType t = n->src(2)->dtype;
  const int each = per_word(t), bits = 8 * bytes_of_element(t);
  const Memory& m = memory_[slot_of(n->src(0))];
  const std::string first = define(cat("u32(", at, ") / ", each, "u"));
  for (int l = 0; l < t.lanes; l += each) {
    const std::string at_word = cat(first, " + ", l / each, "u");
    const std::string place = cat(buffer(n->src(0)), "[", at_word, "]");
    if (m.layout == Layout::Halves) {
      const std::string both = cat("halves_of(", v[l], ", ", v[l + 1], ")");
      line(m.by_words ? cat(place, " = ", both, ";")
                      : cat("set_halves_", buffer(n->src(0)), "(", at_word, ", ", both, ");"));
      continue;
    }
    std::string w;
    for (int i = 0; i < each; ++i) {
      const std::string part = as_word(t, v[l + i]);
      const std::string own = i + 1 == each ? part : cat("(", part, " & ", (1 << bits) - 1, "u)");
      w += i ? cat(" | (", own, " << ", bits * i, "u)") : own;
    }
    line(m.atomic ? cat("atomicStore(&", place, ", ", w, ");") : cat(place, " = ", w, ";"));
  }
}

// Sets a word to what `next` makes of it, although other threads may change it meanwhile.
void WgslPrinter::change_word(Node param, Str at, const std::function<std::string(Str old)>& next) {
  const std::string place = cat("&", buffer(param), "[", at, "]");
  const std::string old = fresh();
  line(cat("var ", old, " = atomicLoad(", place, ");"));
  open("loop");
  const std::string now = define(next(old)), done = fresh();
  line(cat("let ", done, " = atomicCompareExchangeWeak(", place, ", ", old, ", ", now, ");"));
  line(cat("if (", done, ".exchanged) { break; }"));
  line(cat(old, " = ", done, ".old_value;"));
  close();
}

void WgslPrinter::store_element(Node n, Str index, Str v) {
  Node param = n->src(0);
  const DType t = n->src(2)->dtype.one();
  if (is_stage(param)) return line(cat(buffer(param), "[", index, "] = ", v, ";"));
  const Memory& m = memory_[slot_of(param)];
  const bool combines = std::holds_alternative<OpArg>(n->payload);
  if (m.layout == Layout::Halves)
    return line(cat("set_half_", buffer(param), "(u32(", index, "), ", bare(v), ");"));
  const auto combined = [&](Str old) {
    return combines ? as_word(t, combine(n->arg<OpArg>().op, t, old, v)) : as_word(t, v);
  };
  if (m.layout == Layout::Whole) {
    if (!m.atomic) return line(cat(buffer(param), "[", index, "] = ", bare(v), ";"));
    if (!combines)
      return line(cat("atomicStore(&", buffer(param), "[", index, "], ", combined(v), ");"));
    return change_word(param, define(index), [&](Str old) { return combined(from_bits(t, old)); });
  }
  const int bits = 8 * bytes_of_element(t);
  const std::string i = define(cat("u32(", index, ")"));
  const std::string shift = define(cat("(", i, " % ", per_word(t), "u) * ", bits, "u"));
  change_word(param, define(cat(i, " / ", per_word(t), "u")), [&](Str old) {
    const std::string part = combined(combines ? define(from_word(t, old, shift)) : v);
    return cat("insertBits(", old, ", ", bare(part), ", ", shift, ", ", bits, "u)");
  });
}

}  // namespace tiny
