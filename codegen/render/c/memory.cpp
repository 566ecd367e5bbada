#include <algorithm>
#include <numeric>

#include "codegen/kernel/access.h"
#include "codegen/kernel/facts.h"
#include "codegen/options/load_matrix.h"
#include "codegen/options/stage.h"
#include "codegen/render/c/printer.h"
#include "codegen/wgmma/tile.h"

namespace tiny {

void CPrinter::declare_stages() {
  std::vector<Node> stages = stages_of(program_.body);
  std::ranges::sort(stages, std::ranges::greater(), slot_of);
  if (!dialect_.classes) {  // of one thread, on its stack
    for (Node s : stages)
      shared_ += cat("  ", type(in_memory(s->dtype)), " ", buffer(s), "[", elements_of(s),
                     "] __attribute__((aligned(64)));\n");
    return;
  }
  if (fragments_.has_warpgroups())
    shared_ +=
        "  DYNAMIC_SHARED(stage_memory);\n  char* const stages = swizzled_stages(stage_memory);\n";
  else if (!stages.empty())
    shared_ += "  DYNAMIC_SHARED(stages);\n";
  int64_t at = 0;
  for (Node s : stages) {
    const std::string t = type(in_memory(s->dtype));
    shared_ += cat("  ", t, "* const ", buffer(s), " = (", t, "*)(stages + ", at, ");\n");
    at += stage_bytes(s);
  }
  if (fetches_) shared_ += "  Copies copies;\n";
}

// Stages lie in the block's dynamic shared memory in the order of their slots.
std::string CPrinter::buffer(Node param) {
  return is_stage(param) ? cat("s", kFirstStage - slot_of(param)) : cat("b", slot_of(param));
}

std::string CPrinter::element(Node param, Str index) {
  return cat(buffer(param), "[", bare(index), "]");
}

// Straight from memory to shared memory where the pieces are large enough for that.
void CPrinter::fetch(Node store) {
  Node stage = store->src(0), load = store->src(2), gate = gate_of(load);
  const DType t = in_memory(load->dtype);
  const int bytes = t.size() * t.lanes;
  const int each = std::min(proved_alignment(load->src(1), t), proved_alignment(store->src(1), t));
  if (each < 4 || !dialect_.classes) {
    values_[load] = this->load(load);
    return this->store(store);
  }
  const std::string to = named(store->src(1)), from = named(load->src(1));
  const std::string on = gate ? named(gate) : "true";
  for (int at = 0; at < bytes; at += each)
    line(cat(once_per_grid(store), "copies.start<", each, ">(", buffer(stage), " + ", to,
             at ? cat(" + ", at / t.size()) : "", ", ", buffer(load->src(0)), " + ", from,
             at ? cat(" + ", at / t.size()) : "", ", ", on, ");"));
}

std::string CPrinter::vector_at(Node param, DType t, Str index, const char* access) {
  return cat("*(", access, type(in_memory(t)), "*)(", buffer(param), " + ", index, ")");
}

// A lane read from memory, as it is kept in a register.
std::string CPrinter::lane_from(DType t, Str v) {
  if (!t.is_bool()) return v;
  return t.lanes > 1 && !dialect_.classes ? cat("-(", v, " != 0)") : cat("(", v, " != 0)");
}

// Bytes that are known to divide the address of an access by class vectors, at most their own
// alignment: the power of two that divides their size, up to 16. Buffers are aligned further.
int CPrinter::proved_alignment(Node index, DType t) const {
  const int64_t bytes = std::gcd<int64_t>(16, t.size() * t.lanes);
  const int64_t elements = std::gcd<int64_t>(16, known_factor(index));
  return static_cast<int>(std::gcd(bytes, elements * t.size()));
}

bool CPrinter::is_streaming(Node param) const {
  return !is_stage(param) && (program_.streaming >> slot_of(param) & 1) != 0 &&
         !program_.written[slot_of(param)];
}

// All lanes from consecutive elements. A GPU faults where a vector is not aligned; other compilers
// are told of the element's alignment only.
std::string CPrinter::vector_load(Node n) {
  const DType t = in_memory(n->dtype);
  const Node param = n->src(0), index = n->src(1);
  if (is_matrix_load(n))
    return cat("load_matrices<", type(t), ", ", n->ints()[0] ? "true" : "false", ">(",
               buffer(param), " + ", value(index), ")");
  std::string v = vector_at(param, t, value(index), "const ");
  if (dialect_.classes && proved_alignment(index, t) < std::gcd<int64_t>(16, t.size() * t.lanes))
    v = cat("load<", type(t), ", ", proved_alignment(index, t), ">(", buffer(param), " + ",
            value(index), ")");
  else if (dialect_.language == Source::Language::Cuda && t.size() * t.lanes == 16 &&
           is_streaming(param))
    v = cat("load_once((const ", type(t), "*)(", buffer(param), " + ", value(index), "))");
  if (!n->dtype.is_bool()) return v;
  return dialect_.classes ? convert(v, t, n->dtype) : as(n->dtype, cat("(", v, " != 0)"));
}

std::string CPrinter::vector_store(Node n, Str v) {
  const DType t = in_memory(n->src(2)->dtype);
  const Node param = n->src(0), index = n->src(1);
  const std::string at = value(index);
  if (dialect_.classes && proved_alignment(index, t) < std::gcd<int64_t>(16, t.size() * t.lanes))
    return cat("store<", proved_alignment(index, t), ">(", buffer(param), " + ", at, ", ", bare(v),
               ")");
  return cat(vector_at(param, t, at, ""), " = ", bare(v));
}

// Registers have no address: an index that is a number names one.
std::string CPrinter::registers(Node n) {
  const DType t = n->dtype;
  expect(n->src(1)->is_const(), "render_c: a register with an index that is no number");
  const MatrixTile tile(matrix_);
  const int64_t of_piece = tile.width() / 2;
  std::string lanes;
  for (int i = 0; i < t.lanes; ++i) {
    int64_t at = n->src(1)->int_value() + i;
    // Eight columns of a row are in pairs, between which are those of another row.
    if (tile.vectorized_epilogue) at = at / 16 * 16 + at % 8 / 2 * 4 + at / 8 % 2 * 2 + at % 2;
    lanes += cat(i ? ", " : "", "acc[", at / of_piece, "][", at % of_piece, "]");
  }
  return t.lanes == 1 ? lanes : fill(dialect_.lanes, {{'T', type(t)}, {'L', lanes}});
}

std::string CPrinter::load(Node n) {
  const Node param = n->src(0), index = n->src(1), gate = gate_of(n);
  if (is_accumulator(param)) return define(n->dtype, registers(n));
  const DType t = n->dtype;
  if (t.lanes > 1 && (index->dtype.lanes > 1 || (gate && gate->dtype.lanes > 1)))
    return load_lanes(n);
  if (t.lanes == 1) {
    const std::string v = lane_from(t, element(param, value(index)));
    if (!gate) return define(t, v);
    Node filling = selections_.constant_of(n);
    const std::string none = filling         ? scalar_text(filling, dialect_)
                             : t.is_narrow() ? scalar_text(constant(t, 0), dialect_)
                                             : "0";
    return define(t, cat(value(gate), " ? ", v, " : ", none));
  }
  const std::string v = vector_load(n);
  if (!gate) return define(t, v);
  const std::string name = where_gated(n);
  line(cat("if (", bare(value(gate)), ") ", name, " = ", v, ";"));
  return name;
}

// A statement for each lane: a loop over `l`, but spelt out for class vectors, since a GPU has no
// registers that could be numbered by a variable.
void CPrinter::each_lane(int lanes, const std::function<std::string(Str l)>& statement) {
  if (!dialect_.classes)
    return line(cat("for (int l = 0; l < ", lanes, "; ++l) ", statement("l"), ";"));
  for (int l = 0; l < lanes; ++l) line(statement(cat(l)) + ";");
}

// The index of lane `l`, and the condition that guards it, from the printed vectors.
std::string CPrinter::lane_index(Node index, Str v, Str l) {
  return index->dtype.lanes > 1 ? cat(v, "[", l, "]") : cat(v, " + ", l);
}

std::string CPrinter::lane_gate(Node gate, Str v, Str l) {
  if (!gate) return "";
  return cat("if (", v, gate->dtype.lanes > 1 ? "[" + l + "]" : "", ") ");
}

namespace {

bool is_affine(Node n) {
  if (n->dtype.lanes == 1 || n->is_const() || n->op == Op::Ramp || n->op == Op::Broadcast)
    return true;
  if (n->op == Op::Add || n->op == Op::Sub) return is_affine(n->src(0)) && is_affine(n->src(1));
  return n->op == Op::Mul && n->src(1)->is_const() && is_affine(n->src(0));
}

// Whether a gate that holds for the first and for the last lane holds for all between.
bool is_convex(Node gate) {
  if (gate->op == Op::And) return is_convex(gate->src(0)) && is_convex(gate->src(1));
  if (gate->op == Op::Broadcast) return true;
  return (gate->op == Op::Lt || gate->op == Op::Le) && is_affine(gate->src(0)) &&
         is_affine(gate->src(1));
}

}  // namespace

// Whether all lanes of an access may go at once where its gate holds for all of them.
bool CPrinter::is_mostly_whole(Node index, Node gate, DType t) const {
  return dialect_.classes && gate && gate->dtype.lanes > 1 && index->dtype.lanes == 1 &&
         !t.is_bool() && is_convex(gate) &&
         proved_alignment(index, t) == std::gcd<int64_t>(16, t.size() * t.lanes);
}

void CPrinter::open_whole(Str on, int lanes, Str statement) {
  line(cat("if (", on, "[0] && ", on, "[", lanes - 1, "]) {"));
  ++depth_;
  line(statement + ";");
  --depth_;
  line("} else {");
  ++depth_;
}
void CPrinter::close_whole() {
  --depth_;
  line("}");
}

std::string CPrinter::where_gated(Node load) {
  const DType t = load->dtype;
  const std::string name = fresh();
  Node filling = selections_.constant_of(load);
  line(cat(type(t), " ", name, " = ", filling ? splat(t, scalar_text(filling, dialect_)) : "{0}",
           ";"));
  return name;
}

std::string CPrinter::load_lanes(Node n) {
  const Node index = n->src(1), gate = gate_of(n);
  const DType t = n->dtype;
  const std::string at = subscripted(index), on = gate ? subscripted(gate) : "";
  const std::string target = where_gated(n);
  const bool whole = is_mostly_whole(index, gate, t);
  if (whole) open_whole(on, t.lanes, cat(target, " = ", vector_load(n)));
  each_lane(t.lanes, [&](Str l) {
    const std::string from = element(n->src(0), lane_index(index, at, l));
    return cat(lane_gate(gate, on, l), target, "[", l, "] = ", lane_from(t, from));
  });
  if (whole) close_whole();
  return target;
}

void CPrinter::store(Node n) {
  const Node param = n->src(0), index = n->src(1), gate = gate_of(n);
  const DType t = n->src(2)->dtype;
  if (std::holds_alternative<OpArg>(n->payload))
    return dialect_.classes ? combine_atomically(n) : combine_lanes(n);
  if (t.lanes > 1 && (index->dtype.lanes > 1 || (gate && gate->dtype.lanes > 1)))
    return store_lanes(n);
  std::string v = value(n->src(2));
  if (t.lanes > 1 && t.is_bool())
    v = dialect_.classes ? convert(v, t, in_memory(t)) : as(in_memory(t), cat("-", v));
  line(cat(once_per_grid(n), gate ? cat("if (", bare(value(gate)), ") ") : "",
           t.lanes == 1 ? cat(element(param, value(index)), " = ", bare(v)) : vector_store(n, v),
           ";"));
}

void CPrinter::store_lanes(Node n) {
  const Node index = n->src(1), gate = gate_of(n);
  const DType t = n->src(2)->dtype;
  const std::string v = define(t, value(n->src(2))), at = subscripted(index);
  const std::string on = gate ? subscripted(gate) : "";
  const std::string once = once_per_grid(n);
  const bool whole = is_mostly_whole(index, gate, t) && once.empty();
  if (whole) open_whole(on, t.lanes, vector_store(n, v));
  each_lane(t.lanes, [&](Str l) {
    return cat(once, lane_gate(gate, on, l), element(n->src(0), lane_index(index, at, l)), " = ",
               t.is_bool() && !dialect_.classes ? "-" : "", v, "[", l, "]");
  });
  if (whole) close_whole();
}

// Reads, combines and writes each lane in turn: two lanes may meet in one element.
void CPrinter::combine_lanes(Node n) {
  const Node index = n->src(1), gate = gate_of(n);
  const DType t = n->src(2)->dtype, one = t.one();
  const bool scalar = t.lanes == 1;
  const std::string v = scalar ? named(n->src(2)) : define(t, value(n->src(2)));
  const std::string i = scalar ? named(index) : lane_index(index, subscripted(index), "l");
  const std::string at = element(n->src(0), i);
  const std::string test = !gate    ? ""
                           : scalar ? cat("if (", named(gate), ") ")
                                    : lane_gate(gate, subscripted(gate), "l");
  line(cat("for (int l = 0; l < ", t.lanes, "; ++l) ", test, "{"));
  ++depth_;
  const std::string old = define(one, lane_from(one, at));
  line(cat(at, " = ", combine(n->arg<OpArg>().op, one, old, scalar ? v : v + "[l]"), ";"));
  --depth_;
  line("}");
}

// Other threads may meet in the element too.
void CPrinter::combine_atomically(Node n) {
  const Node index = n->src(1), gate = gate_of(n);
  const DType t = n->src(2)->dtype, memory = in_memory(t.one());
  const std::string at = subscripted(index), on = gate ? subscripted(gate) : "";
  const std::string v = typed(n->src(2));
  const std::string function = function_name(combine_op(n->arg<OpArg>().op, t));
  const std::string once = once_per_grid(n);
  if (t.one() == kF32 && t.lanes % 4 == 0 && function == "add" && index->dtype.lanes == 1 &&
      (!gate || gate->dtype.lanes == 1) && proved_alignment(index, t) == 16)
    return line(cat(once, gate ? cat("if (", on, ") ") : "", "atomic_add_lanes(b",
                    slot_of(n->src(0)), " + ", at, ", ", v, ");"));
  each_lane(t.lanes, [&](Str l) {
    const std::string i = t.lanes > 1 ? lane_index(index, at, l) : at;
    const std::string one = t.lanes > 1 ? cat(v, "[", l, "]") : v;
    return cat(once, lane_gate(gate, on, l), "atomic_", function, "(b", slot_of(n->src(0)), " + ",
               i, ", ", t.is_bool() ? as(memory, one) : one, ")");
  });
}

std::string CPrinter::once_per_grid(Node store) {
  std::string first;
  for (Node r : repeated_along(store, blocks_, threads_))
    first += cat(first.empty() ? "" : " && ", value(r), " == 0");
  return first.empty() ? "" : "if (" + first + ") ";
}

}  // namespace tiny
