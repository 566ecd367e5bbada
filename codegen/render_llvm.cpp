#include "codegen/render_llvm.h"

#include <cmath>
#include <set>
#include <string_view>

#include "codegen/llvm_text.h"
#include "codegen/render.h"
#include "tiny/error.h"

namespace tiny {

namespace {

using namespace llvm_text;

class Printer {
 public:
  Printer(const Linear& program, const Target& target) : program_(program), target_(target) {}

  Source print() {
    for (Node n : program_.body) statement(n);
    return {program_.name, text(), Source::Language::LlvmIr, program_.heavy};
  }

 private:
  using Str = const std::string&;

  // --- lines and names ---------------------------------------------------------------------------

  void line(Str text) { body_ += "  " + text + "\n"; }
  std::string fresh() { return cat("%v", ++names_); }
  std::string define(Str text) {
    const std::string name = fresh();
    line(name + " = " + text);
    return name;
  }
  void open_block(Str label) {
    body_ += label + ":\n";
    block_ = label;
  }

  std::string value(Node n) const {
    if (n->is_const()) return const_text(n);
    if (n->is(Op::Ramp)) return ramp_text(n->dtype);
    if (n->is(Op::Range)) return "%r" + *tags_.find(n);
    const std::string* name = values_.find(n);
    expect(name, "render_llvm: ", n->op, " is used before it is defined");
    return *name;
  }
  std::string typed(Node n) const { return type_of(n->dtype) + " " + value(n); }

  // The intrinsic's declaration is its call without the values.
  std::string intrinsic(Str flags, Str result, Str name, const std::vector<std::string>& types,
                        const std::vector<std::string>& values) {
    std::string signature, args;
    for (size_t i = 0; i < types.size(); ++i) {
      signature += (i ? ", " : "") + types[i];
      args += (i ? ", " : "") + types[i] + " " + values[i];
    }
    declarations_.insert(cat("declare ", result, " @", name, "(", signature, ")\n"));
    const std::string call = cat("call ", flags, result, " @", name, "(", args, ")");
    if (result != "void") return define(call);
    line(call);
    return {};
  }

  std::string text() const {
    std::string params, loads, args;
    for (size_t i = 0; i < program_.params.size(); ++i) {
      if (!program_.params[i]) continue;
      params += cat("ptr noalias ", program_.written[i] ? "" : "readonly ", "%b", i, ", ");
      loads += cat("  %p", i, " = getelementptr ptr, ptr %args, i64 ", i, "\n  %b", i,
                   " = load ptr, ptr %p", i, "\n");
      args += cat("ptr %b", i, ", ");
    }
    // The buffers are parameters of an inner function because only there `noalias` can be said.
    std::string out = cat("define internal void @", program_.name, ".body(", params,
                          "i64 %begin, i64 %end) nounwind noinline {\nentry:\n", allocas_, body_,
                          streams_ ? "  fence seq_cst\n" : "",  // streaming stores are not ordered
                          "  ret void\n}\n\ndefine void @", program_.name,
                          "(ptr %args, i64 %begin, i64 %end) nounwind {\n", loads, "  call void @",
                          program_.name, ".body(", args, "i64 %begin, i64 %end)\n  ret void\n}\n");
    if (!declarations_.empty()) out += "\n";
    for (Str declaration : declarations_) out += declaration;
    if (streams_) out += "\n!0 = !{i32 1}\n";
    return out;
  }

  // --- statements --------------------------------------------------------------------------------

  void statement(Node n) {
    switch (n->op) {
      case Op::Const:
      case Op::Range:
      case Op::Param:
      case Op::Ramp: return;
      case Op::Loop: return open_loop(n->src(0));
      case Op::EndLoop: return close_loop(n->src(0));
      case Op::Acc: return declare_accumulator(n->src(0));
      case Op::Update: return update(n->src(0));
      case Op::Store: return store(n);
      case Op::Reduce:
        values_[n] = define(cat("load ", type_of(n->dtype), ", ptr ", accumulators_[n]));
        return;
      case Op::Load: values_[n] = load(n); return;
      default: values_[n] = arithmetic(n);
    }
  }

  // A bottom-tested loop; the test before it is left out where the extent's bounds allow.
  // A range may be looped over more than once: each time under another name.
  void open_loop(Node range) {
    const std::string id = cat(range->arg<RangeArg>().id, ".", ++loops_);
    const std::string type = type_of(range->dtype);
    tags_[range] = id;
    std::string begin = "0", end;
    if (range->arg<RangeArg>().kind == RangeKind::Core) {
      begin = type == "i64" ? "%begin" : define(cat("trunc i64 %begin to ", type));
      end = type == "i64" ? "%end" : define(cat("trunc i64 %end to ", type));
      if (!range->src(0)->is_const())  // the launch covers the extent's bound
        end = combine(Op::Min, range->dtype, end, value(range->src(0)));
    } else {
      end = value(range->src(0));
    }
    if (begin == "0" && range->src(0)->vmin > 0) {
      line(cat("br label %loop", id));
    } else {
      const std::string any = define(cat("icmp slt ", type, " ", begin, ", ", end));
      line(cat("br i1 ", any, ", label %loop", id, ", label %done", id));
    }
    const std::string before = block_;
    open_block("loop" + id);
    line(cat("%r", id, " = phi ", type, " [ ", begin, ", %", before, " ], [ %next", id, ", %latch",
             id, " ]"));
    ends_.push_back(end);
  }

  void close_loop(Node range) {
    const std::string id = *tags_.find(range), type = type_of(range->dtype);
    line(cat("br label %latch", id));
    open_block("latch" + id);
    line(cat("%next", id, " = add nuw nsw ", type, " %r", id, ", 1"));
    line(cat("%more", id, " = icmp slt ", type, " %next", id, ", ", ends_.back()));
    line(cat("br i1 %more", id, ", label %loop", id, ", label %done", id));
    open_block("done" + id);
    ends_.pop_back();
  }

  void declare_accumulator(Node reduce) {
    std::string& name = accumulators_[reduce];
    const std::string type = type_of(reduce->dtype);
    if (name.empty()) {
      name = cat("%acc", accumulators_.size());
      allocas_ += cat("  ", name, " = alloca ", type, "\n");
    }
    const Node start = identity(reduce->arg<OpArg>().op, reduce->dtype);
    line(cat("store ", type, " ", const_text(start), ", ptr ", name));
  }

  void update(Node reduce) {
    const std::string type = type_of(reduce->dtype), at = accumulators_[reduce];
    const std::string before = define(cat("load ", type, ", ptr ", at));
    const std::string after =
        combine(reduce->arg<OpArg>().op, reduce->dtype, before, value(reduce->src(0)));
    line(cat("store ", type, " ", after, ", ptr ", at));
  }

  // --- memory ------------------------------------------------------------------------------------

  // Where the gate is false the address may lie outside the buffer: then without `inbounds`.
  std::string address(Node param, Str index, bool inbounds) {
    return define(cat("getelementptr ", inbounds ? "inbounds " : "",
                      memory_type(param->dtype.one()), ", ptr %b", slot_of(param), ", ", index));
  }

  std::string from_memory(DType t, Str v) {
    if (!t.is_bool()) return v;
    return define(
        cat("icmp ne ", memory_type(t), " ", v, ", ", t.lanes > 1 ? "zeroinitializer" : "0"));
  }
  std::string to_memory(DType t, Str v) {
    if (!t.is_bool()) return v;
    return define(cat("zext ", type_of(t), " ", v, " to ", memory_type(t)));
  }

  std::string load_one(Node param, DType t, Str index) {
    const std::string at = address(param, index, true);
    return from_memory(t, define(cat("load ", memory_type(t), ", ptr ", at, ", align ", t.size())));
  }

  std::string load(Node n) {
    const Node param = n->src(0), index = n->src(1), gate = gate_of(n);
    const DType t = n->dtype;
    if (t.lanes > 1 && index->dtype.lanes == 1)
      return gate ? masked_load(n) : load_one(param, t, typed(index));
    // Element 0 exists: reading it instead of branching keeps the block whole.
    std::string at = value(index);
    if (gate)
      at = define(cat("select ", gate_for(gate, t.lanes), ", ", typed(index), ", ",
                      type_of(index->dtype), " zeroinitializer"));
    const std::string v =
        t.lanes == 1 ? load_one(param, t, type_of(index->dtype) + " " + at) : gather(n, at);
    if (!gate) return v;
    return define(cat("select ", gate_for(gate, t.lanes), ", ", type_of(t), " ", v, ", ",
                      type_of(t), " zeroinitializer"));
  }

  // Lane by lane: with 4, 8 and 16 lanes the gather instruction was 0.9 to 1.6 times as slow on
  // Zen 5, from every level of the cache.
  std::string gather(Node n, Str index) {
    const DType t = n->dtype;
    std::string v = "poison";
    for (int i = 0; i < t.lanes; ++i) {
      const std::string one = load_one(n->src(0), t.one(), lane_of(n->src(1)->dtype, index, i));
      v = define(
          cat("insertelement ", type_of(t), " ", v, ", ", type_of(t.one()), " ", one, ", i32 ", i));
    }
    return v;
  }

  // "type %v": lane i of a vector, or the scalar itself.
  std::string lane_of(DType t, Str v, int i) {
    if (t.lanes == 1) return type_of(t) + " " + v;
    return type_of(t.one()) + " " + define(cat("extractelement ", type_of(t), " ", v, ", i32 ", i));
  }

  // "type %v" of a gate with this many lanes.
  std::string gate_for(Node gate, int lanes) {
    if (gate->dtype.lanes == lanes || gate->dtype.lanes == 1) return typed(gate);
    throw Bug(cat("render_llvm: a gate of ", gate->dtype.name(), " for ", lanes, " lanes"));
  }

  std::string masked_load(Node n) {
    const DType t = n->dtype, mask = kBool.vec(t.lanes);
    const std::string type = memory_type(t);
    const Node gate = gate_of(n), index = n->src(1);
    const std::string on = gate->dtype.lanes == 1 ? broadcast(mask, value(gate)) : value(gate);
    // An instruction whose lanes are all off still takes hundreds of cycles where the page is not
    // there: then it reads element 0 instead.
    const std::string some = gate->dtype.lanes == 1 ? value(gate) : any_lane(mask, on);
    const std::string from =
        define(cat("select i1 ", some, ", ", typed(index), ", ", type_of(index->dtype), " 0"));
    const std::string at = address(n->src(0), type_of(index->dtype) + " " + from, false);
    const std::string v =
        intrinsic("", type, cat("llvm.masked.load.", memory_suffix(t), ".p0"),
                  {"ptr", "i32", type_of(mask), type}, {at, cat(t.size()), on, "zeroinitializer"});
    return from_memory(t, v);
  }

  std::string any_lane(DType mask, Str on) {
    const std::string bits = cat("i", mask.lanes);
    const std::string all = define(cat("bitcast ", type_of(mask), " ", on, " to ", bits));
    return define(cat("icmp ne ", bits, " ", all, ", 0"));
  }

  std::string memory_suffix(DType t) const { return suffix_of(t.is_bool() ? kU8.vec(t.lanes) : t); }

  void store(Node n) {
    const Node index = n->src(1), v = n->src(2), gate = gate_of(n);
    const DType t = v->dtype;
    if (std::holds_alternative<OpArg>(n->payload)) return combine_lanes(n);
    const std::string bits = to_memory(t, value(v));
    if (t.lanes > 1 && index->dtype.lanes > 1) return scatter(n, bits);
    const std::string at = address(n->src(0), typed(index), !gate);
    if (gate && gate->dtype.lanes > 1) {
      intrinsic("", "void", cat("llvm.masked.store.", memory_suffix(t), ".p0"),
                {memory_type(t), "ptr", "i32", type_of(gate->dtype)},
                {bits, at, cat(t.size()), value(gate)});
      return;
    }
    const bool streams = is_streaming_store(n);
    streams_ |= streams;
    branch_if(gate ? typed(gate) : "", [&] {
      line(cat("store ", memory_type(t), " ", bits, ", ptr ", at, ", align ",
               streams ? t.size() * t.lanes : t.size(), streams ? ", !nontemporal !0" : ""));
    });
  }

  // Consecutive elements at once; else each lane in turn, as two may meet in one element.
  void combine_lanes(Node n) {
    const Node index = n->src(1), gate = gate_of(n);
    const DType t = n->src(2)->dtype, one = t.one();
    if (index->dtype.lanes == 1 && (!gate || gate->dtype.lanes == 1))
      return branch_if(gate ? typed(gate) : "", [&] {
        const std::string old = load_one(n->src(0), t, typed(index));
        const std::string v = combine(n->arg<OpArg>().op, t, old, value(n->src(2)));
        const std::string at = address(n->src(0), typed(index), true);
        line(cat("store ", memory_type(t), " ", to_memory(t, v), ", ptr ", at, ", align ",
                 t.size()));
      });
    for (int i = 0; i < t.lanes; ++i)
      branch_if(gate ? lane_of(gate->dtype, value(gate), i) : "", [&] {
        const std::string to = lane_of(index->dtype, value(index), i);
        const std::string old = load_one(n->src(0), one, to);
        const std::string v = lane_of(t, value(n->src(2)), i).substr(type_of(one).size() + 1);
        const std::string sum = to_memory(one, combine(n->arg<OpArg>().op, one, old, v));
        const std::string at = address(n->src(0), to, true);
        line(cat("store ", memory_type(one), " ", sum, ", ptr ", at, ", align ", one.size()));
      });
  }

  void scatter(Node n, Str bits) {
    const Node index = n->src(1), gate = gate_of(n);
    const DType t = n->src(2)->dtype;
    const DType memory = t.is_bool() ? kU8.vec(t.lanes) : t;
    for (int i = 0; i < t.lanes; ++i)
      branch_if(gate ? lane_of(gate->dtype, value(gate), i) : "", [&] {
        const std::string at = address(n->src(0), lane_of(index->dtype, value(index), i), true);
        const std::string one = lane_of(memory, bits, i);
        line(cat("store ", one, ", ptr ", at, ", align ", t.size()));
      });
  }

  template <class Body> void branch_if(Str condition, Body body) {
    if (condition.empty()) return body();
    const int id = ++blocks_;
    line(cat("br ", condition, ", label %then", id, ", label %after", id));
    open_block(cat("then", id));
    body();
    line(cat("br label %after", id));
    open_block(cat("after", id));
  }

  // --- arithmetic --------------------------------------------------------------------------------

  std::string shuffle_two(Node n) {
    std::string lanes = cat("<", n->ints().size(), " x i32> <");
    for (size_t i = 0; i < n->ints().size(); ++i) lanes += cat(i ? ", " : "", "i32 ", n->ints()[i]);
    return define(
        cat("shufflevector ", typed(n->src(0)), ", ", typed(n->src(1)), ", ", lanes, ">"));
  }

  std::string arithmetic(Node n) {
    const DType t = n->dtype;
    switch (n->op) {
      case Op::Cast: return cast(n);
      case Op::Bitcast: return define(cat("bitcast ", typed(n->src(0)), " to ", type_of(t)));
      case Op::Broadcast: return broadcast(t, value(n->src(0)));
      case Op::Reverse: return shuffle(t, value(n->src(0)), t.lanes, t.lanes - 1, -1);
      case Op::Fold: return fold(n);
      case Op::Shuffle: return shuffle_two(n);
      case Op::Where:
        return define(
            cat("select ", typed(n->src(0)), ", ", typed(n->src(1)), ", ", typed(n->src(2))));
      case Op::TruncDiv:
      case Op::TruncMod: return divide(n);
      case Op::Shl:
      case Op::Shr: return shift(n);
      case Op::Max:
      case Op::Min:
        if (t.is_float() && ordered_operand(n) >= 0) return max_with_const(n);
        break;
      default: break;
    }
    if (is_comparison(n->op)) return compare(n);
    if (info(n->op).cls == OpClass::Unary) return unary(n->op, t, value(n->src(0)));
    if (info(n->op).cls == OpClass::Binary) {
      const bool may_say_so = n->is(Op::Add) || n->is(Op::Sub) || n->is(Op::Mul);
      const bool exact = may_say_so && cannot_wrap(n);
      const char* flags = !exact ? "" : t.is_unsigned() ? "nuw " : "nsw ";
      return combine(n->op, t, value(n->src(0)), value(n->src(1)), flags);
    }
    throw Bug(cat("render_llvm: ", n->op, " has no place in a linear program"));
  }

  std::string unary(Op op, DType t, Str x) {
    const std::string type = type_of(t);
    if (!t.is_float()) {
      if (op == Op::Neg) return combine(Op::Sub, t, "zeroinitializer", x);
      if (op == Op::Floor || op == Op::Trunc || op == Op::Bound) return x;
    }
    expect(t.is_float(), "render_llvm: ", op, " of ", t.name());
    switch (op) {
      case Op::Neg: return define(cat("fneg contract ", type, " ", x));
      case Op::Recip:
        return define(cat("fdiv contract ", type, " ", splat_text(t, double_bits(1)), ", ", x));
      case Op::Sqrt: return intrinsic("", type, "llvm.sqrt." + suffix_of(t), {type}, {x});
      case Op::Floor: return intrinsic("", type, "llvm.floor." + suffix_of(t), {type}, {x});
      case Op::Trunc: return intrinsic("", type, "llvm.trunc." + suffix_of(t), {type}, {x});
      default: throw Bug(cat("render_llvm: ", op, " should have been decomposed"));
    }
  }

  static const char* instruction(Op op, bool is_float) {
    switch (op) {
      case Op::Add: return is_float ? "fadd contract" : "add";
      case Op::Sub: return is_float ? "fsub contract" : "sub";
      case Op::Mul: return is_float ? "fmul contract" : "mul";
      case Op::Div: return is_float ? "fdiv contract" : nullptr;
      case Op::And: return is_float ? nullptr : "and";
      case Op::Or: return is_float ? nullptr : "or";
      case Op::Xor: return is_float ? nullptr : "xor";
      default: return nullptr;
    }
  }

  // A binary operation that is also one of a reduction.
  std::string combine(Op op, DType t, Str a, Str b, const char* flags = "") {
    op = combine_op(op, t);
    const std::string type = type_of(t);
    if (op == Op::Max || op == Op::Min) {
      const char* what = op == Op::Max ? "max" : "min";
      // maximum and minimum return NaN where either is; nsz spares the order of -0 and 0.
      if (t.is_float())
        return intrinsic("nsz ", type, cat("llvm.", what, "imum.", suffix_of(t)), {type, type},
                         {a, b});
      return intrinsic("", type, cat("llvm.", t.is_signed() ? "s" : "u", what, ".", suffix_of(t)),
                       {type, type}, {a, b});
    }
    const char* name = instruction(op, t.is_float());
    expect(name, "render_llvm: ", op, " of ", t.name());
    return define(cat(name, " ", t.is_bool() ? "" : flags, type, " ", a, ", ", b));
  }

  // One instruction on x86, where max(a, b) is a > b ? a : b.
  std::string max_with_const(Node n) {
    const int at = ordered_operand(n);
    const std::string c = typed(n->src(at)), x = typed(n->src(1 - at));
    const std::string wins =
        define(cat("fcmp ", n->is(Op::Max) ? "ogt " : "olt ", c, ", ", value(n->src(1 - at))));
    return define(cat("select ", type_of(kBool.vec(n->dtype.lanes)), " ", wins, ", ", c, ", ", x));
  }

  std::string compare(Node n) {
    const DType t = n->src(0)->dtype;
    const int which = static_cast<int>(n->op) - static_cast<int>(Op::Lt);
    static constexpr const char* kFloat[] = {"olt", "ole", "oeq", "une"};
    static constexpr const char* kSigned[] = {"slt", "sle", "eq", "ne"};
    static constexpr const char* kUnsigned[] = {"ult", "ule", "eq", "ne"};
    const char* name = t.is_float()    ? kFloat[which]
                       : t.is_signed() ? kSigned[which]
                                       : kUnsigned[which];
    expect(!t.is_half(), "render_llvm: a comparison of halves should have been decomposed");
    return define(
        cat(t.is_float() ? "fcmp " : "icmp ", name, " ", typed(n->src(0)), ", ", value(n->src(1))));
  }

  // Guarded by replacing the divisor where the division would trap (see DivideHazard).
  std::string divide(Node n) {
    const DType t = n->dtype;
    const std::string type = type_of(t), mask = type_of(kBool.vec(t.lanes));
    const DivideHazard hazard = divide_hazard(n);
    const std::string x = value(n->src(0)), one = splat_text(t, "1");
    std::string y = value(n->src(1)), zero, bad;
    if (hazard.by_zero) bad = zero = define(cat("icmp eq ", type, " ", y, ", zeroinitializer"));
    if (hazard.overflow) {
      const std::string lowest =
          define(cat("icmp eq ", type, " ", x, ", ", const_text(constant(t, int_min(t)))));
      const std::string minus = define(cat("icmp eq ", type, " ", y, ", ", splat_text(t, "-1")));
      bad = define(cat("and ", mask, " ", lowest, ", ", minus));
      if (hazard.by_zero) bad = define(cat("or ", mask, " ", bad, ", ", zero));
    }
    if (hazard.any())
      y = define(cat("select ", mask, " ", bad, ", ", type, " ", one, ", ", type, " ", y));
    const bool mod = n->is(Op::TruncMod);
    const std::string result =
        define(cat(t.is_signed() ? "s" : "u", mod ? "rem " : "div ", type, " ", x, ", ", y));
    if (mod || !hazard.by_zero) return result;
    return define(
        cat("select ", mask, " ", zero, ", ", type, " zeroinitializer, ", type, " ", result));
  }

  // A larger amount would be poison: its low bits are taken, as most machines do.
  std::string shift(Node n) {
    const DType t = n->dtype;
    const std::string type = type_of(t);
    std::string amount = value(n->src(1));
    if (shift_may_exceed(n))
      amount = define(cat("and ", type, " ", amount, ", ", splat_text(t, cat(t.bits() - 1))));
    const char* name = n->is(Op::Shl) ? "shl " : t.is_signed() ? "ashr " : "lshr ";
    return define(cat(name, type, " ", value(n->src(0)), ", ", amount));
  }

  // --- casts -------------------------------------------------------------------------------------

  std::string convert(const char* how, DType from, Str v, DType to) {
    return define(cat(how, " ", type_of(from), " ", v, " to ", type_of(to)));
  }

  std::string cast(Node n) {
    const Node x = n->src(0);
    const DType from = x->dtype, to = n->dtype;
    const std::string v = value(x);
    if (from == to) return v;
    if (from.is_half() || to.is_half()) return cast_half(from, v, to);
    if (to.is_bool()) {
      const char* test = from.is_float() ? "fcmp une " : "icmp ne ";
      return define(cat(test, type_of(from), " ", v, ", zeroinitializer"));
    }
    if (from.is_bool()) return convert(to.is_float() ? "uitofp" : "zext", from, v, to);
    if (from.is_float() && to.is_float())
      return convert(to.size() > from.size() ? "fpext" : "fptrunc", from, v, to);
    if (to.is_float()) return convert(from.is_signed() ? "sitofp" : "uitofp", from, v, to);
    // Saturating: plain fptosi is poison outside the range.
    if (from.is_float() && to.is_signed() && to.lanes > 1) return saturate(from, v, to);
    if (from.is_float())
      return intrinsic("", type_of(to),
                       cat("llvm.fpto", to.is_signed() ? "si" : "ui", ".sat.", suffix_of(to), ".",
                           suffix_of(from)),
                       {type_of(from)}, {v});
    if (to.size() == from.size()) return v;
    if (to.size() < from.size()) return convert("trunc", from, v, to);
    return convert(from.is_signed() ? "sext" : "zext", from, v, to);
  }

  // The saturating intrinsic takes vectors apart.
  std::string saturate(DType from, Str v, DType to) {
    const double limit = std::ldexp(1.0, to.bits() - 1);  // exact in every float
    const auto compare = [&](const char* how, double with) {
      return define(
          cat("fcmp ", how, " ", type_of(from), " ", v, ", ", const_text(constant(from, with))));
    };
    const auto select = [&](DType t, Str test, Str a, Str b) {
      return define(cat("select ", type_of(kBool.vec(t.lanes)), " ", test, ", ", type_of(t), " ", a,
                        ", ", type_of(t), " ", b));
    };
    const std::string over = compare("oge", limit), under = compare("olt", -limit);
    const std::string number = compare("ord", 0.0);
    std::string safe = select(from, number, v, "zeroinitializer");
    safe = select(from, over, "zeroinitializer", safe);
    safe = select(from, under, "zeroinitializer", safe);
    const std::string inside = convert("fptosi", from, safe, to);
    const std::string high = select(to, over, const_text(constant(to, int_max(to))), inside);
    return select(to, under, const_text(constant(to, int_min(to))), high);
  }

  // Between a half and f32 only: decompose() casts by way of f32.
  std::string cast_half(DType from, Str v, DType to) {
    const DType half = from.is_half() ? from : to, wide = kF32.vec(half.lanes);
    const bool native = half.scalar == Scalar::F16 ? target_.has_f16 : target_.has_bf16;
    expect(native && (from == wide || to == wide), "render_llvm: the cast of ", from.name(), " to ",
           to.name(), " should have been decomposed");
    const std::string type = vector_of(half.lanes, half.scalar == Scalar::F16 ? "half" : "bfloat");
    if (from.is_half()) {
      const std::string h = define(cat("bitcast ", type_of(from), " ", v, " to ", type));
      return define(cat("fpext ", type, " ", h, " to ", type_of(to)));
    }
    const std::string h = define(cat("fptrunc ", type_of(from), " ", v, " to ", type));
    return define(cat("bitcast ", type, " ", h, " to ", type_of(to)));
  }

  // --- lanes -------------------------------------------------------------------------------------

  std::string broadcast(DType t, Str v) {
    const std::string one =
        define(cat("insertelement ", type_of(t), " poison, ", type_of(t.one()), " ", v, ", i32 0"));
    return define(cat("shufflevector ", type_of(t), " ", one, ", ", type_of(t), " poison, <",
                      t.lanes, " x i32> zeroinitializer"));
  }

  // Lanes from, from + step, ... of a vector of dtype t.
  std::string shuffle(DType t, Str v, int lanes, int from, int step) {
    return define(cat("shufflevector ", type_of(t), " ", v, ", ", type_of(t), " poison, ",
                      lane_list(lanes, from, step)));
  }

  // Halves are combined until one lane is left. The order is spelt out, rather than left to
  // llvm.vector.reduce with reassoc, so that every compiler gives the same sum.
  std::string fold(Node n) {
    const Op op = n->arg<OpArg>().op;
    DType t = n->src(0)->dtype;
    std::string v = value(n->src(0));
    for (; t.lanes > 1 && t.lanes % 2 == 0; t = t.vec(t.lanes / 2)) {
      const int half = t.lanes / 2;
      const std::string low = lanes_of(t, v, half, 0), high = lanes_of(t, v, half, half);
      v = combine(op, t.vec(half), low, high);
    }
    if (t.lanes == 1) return v;
    std::string sum = lanes_of(t, v, 1, 0);
    for (int i = 1; i < t.lanes; ++i) sum = combine(op, t.one(), sum, lanes_of(t, v, 1, i));
    return sum;
  }

  std::string lanes_of(DType t, Str v, int lanes, int from) {
    if (lanes > 1) return shuffle(t, v, lanes, from, 1);
    return define(cat("extractelement ", type_of(t), " ", v, ", i32 ", from));
  }

  const Linear& program_;
  const Target& target_;
  std::string body_, allocas_, block_ = "entry";
  std::set<std::string> declarations_;
  std::vector<std::string> ends_;  // of the open loops
  NodeMap<std::string> values_, accumulators_;
  NodeMap<std::string> tags_;  // of the ranges whose loops are open
  int loops_ = 0;
  bool streams_ = false;
  int names_ = 0, blocks_ = 0;
};

}  // namespace

Source render_llvm(const Linear& program, const Target& target) {
  return Printer(program, target).print();
}

}  // namespace tiny
