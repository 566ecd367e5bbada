// Intrinsics, address spaces (1: buffers, 3: shared memory, 5: a thread's own) and attributes are
// those of LLVM's "User Guide for AMDGPU Backend".
#include "codegen/render/llvm/amdgpu.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "codegen/kernel/access.h"
#include "codegen/kernel/facts.h"
#include "codegen/options/mma.h"
#include "codegen/options/stage.h"
#include "codegen/options/thread_group.h"
#include "codegen/render/c/text.h"
#include "codegen/render/llvm/printer.h"

namespace tiny {

namespace {

using namespace llvm_text;

class AmdPrinter : public LlvmPrinter {
 public:
  AmdPrinter(const Linear& program, const Target& target)
      : LlvmPrinter(program, target), single_use_(program) {
    find_grid();
    find_stages();
    for (Node n : program_.body)
      if (n->is(Op::Update) && is_sum_of_fragments(n->src(0))) added_[updated_with(n->src(0))] = 1;
  }

 private:
  void find_grid() {
    for (Node n : program_.body) {
      if (!n->is(Op::Loop)) continue;
      if (kind(n->src(0)) == RangeKind::Block) grid_.push_back(n->src(0));
      if (kind(n->src(0)) == RangeKind::Thread) threads_.push_back(n->src(0));
    }
    for (Node r : threads_) count_ *= static_cast<int>(extent(r));
  }

  // Stages lie in the block's dynamic shared memory in the order of their slots.
  void find_stages() {
    std::vector<Node> stages;
    for (Node n : program_.body) {
      Node access = n->is(Op::Fetch) ? n->src(0) : n;
      if (!access->is(Op::Load) && !access->is(Op::Store)) continue;
      if (is_stage(access->src(0))) stages.push_back(access->src(0));
    }
    std::sort(stages.begin(), stages.end(), [](Node a, Node b) { return slot_of(a) > slot_of(b); });
    stages.erase(std::unique(stages.begin(), stages.end()), stages.end());
    int64_t at = 0;
    for (Node s : stages) {
      stages_[s] = cat("%stage", kFirstStage - slot_of(s));
      allocas_ +=
          cat("  ", stages_[s], " = getelementptr i8, ptr addrspace(3) @stages, i32 ", at, "\n");
      at += stage_bytes(s);
    }
    if (at) globals_ += "@stages = external addrspace(3) global [0 x i8], align 16\n";
  }

  std::string text() const override {
    std::string params;
    for (size_t i = 0; i < program_.params.size(); ++i)
      params += cat(i ? ", " : "", "ptr addrspace(1) noalias ",
                    program_.written[i] ? "" : "readonly ", "%b", i);
    return cat(globals_, "\ndefine amdgpu_kernel void @", program_.name, "(", params,
               ") #0 {\nentry:\n", allocas_, body_, "  ret void\n}\n", declarations(),
               "\nattributes #0 = { convergent nounwind \"amdgpu-flat-work-group-size\"=\"1,",
               count_, "\" \"uniform-work-group-size\"=\"true\" }\n",
               metadata_.empty() ? "" : "\n!0 = !{!\"llvm.loop.unroll.full\"}\n" + metadata_);
  }

  std::string space(Node param) const override {
    return !param ? " addrspace(5)" : is_stage(param) ? " addrspace(3)" : " addrspace(1)";
  }
  std::string base(Node param) const override {
    return is_stage(param) ? *stages_.find(param) : LlvmPrinter::base(param);
  }
  int alignment(Node index, DType t) const override {
    const int64_t bytes = std::gcd<int64_t>(16, t.size() * t.lanes);
    return static_cast<int>(std::gcd(bytes, std::gcd<int64_t>(16, known_factor(index)) * t.size()));
  }

  void statement(Node n) override {
    switch (n->op) {
      case Op::Stage: return;
      case Op::Barrier: return barrier();
      case Op::Fetch: values_[n->src(0)->src(2)] = load(n->src(0)->src(2)); return store(n->src(0));
      case Op::Group: return group(n->src(0));
      case Op::Prefix: values_[n] = prefix(n); return;
      case Op::Mma:
        if (!added_.contains(n)) values_[n] = mma(n, "");
        return;
      default: return LlvmPrinter::statement(n);
    }
  }

  bool is_sum_of_fragments(Node reduce) const {
    const Node term = updated_with(reduce);
    return is_fragment_product(term) && reduce->arg<OpArg>().op == Op::Add && single_use_(term);
  }

  std::string number(const char* what, size_t dimension) {
    return intrinsic("", "i32", cat("llvm.amdgcn.", what, ".id.", "xyz"[dimension]), {}, {});
  }

  void open_loop(Node loop) override {
    Node range = loop->src(0);
    const std::string type = type_of(range->dtype);
    if (is_grid(range)) {
      const bool block = kind(range) == RangeKind::Block;
      const std::vector<Node>& all = block ? grid_ : threads_;
      const auto after = all.end() - std::find(all.begin(), all.end(), range);
      const std::string id = cat(range_id(range), ".", ++loops_);
      tags_[range] = id;
      const std::string v =
          number(block ? "workgroup" : "workitem", static_cast<size_t>(after - 1));
      line(cat("%r", id, " = ", type == "i32" ? "or" : "zext", " i32 ", v,
               type == "i32" ? ", 0" : " to i64"));
      return;
    }
    if (loop->num_src == 3) return open_ahead(range, loop->src(1), loop->src(2)->int_value());
    const int64_t lead = loop->num_src == 2 ? loop->src(1)->int_value() : 0;
    ++open_loops_;
    begin_loop(range, cat(-lead), value(range->src(0)), !lead && range->src(0)->vmin > 0);
  }

  // One iteration of a loop that has begun, or none.
  void open_ahead(Node range, Node of, int64_t lead) {
    const std::string type = type_of(range->dtype), id = cat(range_id(range), ".", ++loops_);
    behind_[range] = of;
    tags_[range] = id;
    line(cat("%r", id, " = add nsw ", type, " ", value(of), ", ", lead));
    const std::string on = define(cat("icmp slt ", type, " %r", id, ", ", value(of->src(0))));
    line(cat("br i1 ", on, ", label %loop", id, ", label %done", id));
    open_block("loop" + id);
    ++open_loops_;
  }

  void close_loop(Node range) override {
    if (is_grid(range)) return;
    --open_loops_;
    const Node* of = behind_.find(range);
    if (!of) return LlvmPrinter::close_loop(range);
    const std::string id = *tags_.find(range);
    line(cat("br label %done", id));
    open_block("done" + id);
    const std::string early =
        define(cat("icmp slt ", type_of(range->dtype), " ", value(*of), ", 0"));
    line(cat("br i1 ", early, ", label %latch", *tags_.find(*of), ", label %now", id));
    open_block("now" + id);
  }

  static bool is_grid(Node range) {
    return kind(range) == RangeKind::Block || kind(range) == RangeKind::Thread;
  }

  std::string loop_metadata(Node range) override {
    if (kind(range) != RangeKind::Unroll) return "";
    const std::string id = cat("!", 1 + unrolled_++);
    metadata_ += cat(id, " = distinct !{", id, ", !0}\n");
    return ", !llvm.loop " + id;
  }

  void update(Node reduce) override {
    if (!added_.contains(updated_with(reduce))) return LlvmPrinter::update(reduce);
    const std::string type = type_of(reduce->dtype);
    const std::string at = cat("ptr addrspace(5) ", accumulators_[reduce]);
    const std::string before = define(cat("load ", type, ", ", at));
    line(cat("store ", type, " ", mma(updated_with(reduce), before), ", ", at));
  }

  // --- memory ------------------------------------------------------------------------------------

  // The value where the condition holds, else zero.
  template <class Body> std::string value_if(Str condition, DType t, Body body) {
    const int id = ++blocks_;
    const std::string before = block_;
    line(cat("br ", condition, ", label %then", id, ", label %after", id));
    open_block(cat("then", id));
    const std::string v = body(), from = block_;
    line(cat("br label %after", id));
    open_block(cat("after", id));
    return define(cat("phi ", type_of(t), " [ ", v, ", %", from, " ], [ ",
                      splat_text(t, t.is_float() && !t.is_narrow() ? double_bits(0)
                                    : t.is_bool()                  ? "false"
                                                                   : "0"),
                      ", %", before, " ]"));
  }

  std::string all_lanes(Node gate) {
    const std::string bits = cat("i", gate->dtype.lanes);
    const std::string all = define(cat("bitcast ", typed(gate), " to ", bits));
    return "i1 " + define(cat("icmp eq ", bits, " ", all, ", -1"));
  }

  std::string load(Node n) override {
    const Node param = n->src(0), index = n->src(1), gate = gate_of(n);
    const DType t = n->dtype;
    if (t.lanes == 1 || index->dtype.lanes > 1 || !gate) return LlvmPrinter::load(n);
    const auto whole = [&] { return load_one(param, t, typed(index), alignment(index, t)); };
    if (gate->dtype.lanes == 1) return value_if(typed(gate), t, whole);
    // All at once, or lane by lane.
    const int id = ++blocks_;
    line(cat("br ", all_lanes(gate), ", label %all", id, ", label %some", id));
    open_block(cat("all", id));
    const std::string all = whole(), after_all = block_;
    line(cat("br label %both", id));
    open_block(cat("some", id));
    std::string some = "zeroinitializer";
    for (int i = 0; i < t.lanes; ++i) {
      const std::string one = value_if(lane_of(gate->dtype, value(gate), i), t.one(), [&] {
        return load_one(param, t.one(), place(index, i), t.size());
      });
      some = define(cat("insertelement ", type_of(t), " ", some, ", ", type_of(t.one()), " ", one,
                        ", i32 ", i));
    }
    const std::string after_some = block_;
    line(cat("br label %both", id));
    open_block(cat("both", id));
    return define(cat("phi ", type_of(t), " [ ", all, ", %", after_all, " ], [ ", some, ", %",
                      after_some, " ]"));
  }

  // "type %v": the index of a lane.
  std::string place(Node index, int lane) {
    if (index->dtype.lanes > 1) return lane_of(index->dtype, value(index), lane);
    const std::string type = type_of(index->dtype);
    return type + " " + define(cat("add ", type, " ", value(index), ", ", lane));
  }

  // Threads that differ in ranges which the store does not depend on would repeat it; some of them
  // after others have read what it overwrites. A stage is the block's own.
  std::string once_per_grid(Node store) {
    std::string first;
    for (const auto& ranges : {grid_, threads_})
      for (Node r : ranges)
        if (!(store->ranges & r->ranges) &&
            !(is_stage(store->src(0)) && kind(r) == RangeKind::Block))
          first = both(first, "i1 " + define(cat("icmp eq ", typed(r), ", 0")));
    return first;
  }

  // "i1 %v": both of two conditions, of which either may be empty.
  std::string both(Str a, Str b) {
    if (a.empty() || b.empty()) return a + b;
    return "i1 " + define(cat("and ", a, ", ", b.substr(3)));
  }

  void store(Node n) override {
    const Node param = n->src(0), index = n->src(1), gate = gate_of(n);
    const DType t = n->src(2)->dtype, one = t.one();
    const bool combines = std::holds_alternative<OpArg>(n->payload);
    const std::string once = once_per_grid(n), bits = to_memory(t, value(n->src(2)));
    if (!combines && index->dtype.lanes == 1 && (!gate || gate->dtype.lanes == 1))
      return branch_if(both(once, gate ? typed(gate) : ""),
                       [&] { store_one(param, t, bits, typed(index), alignment(index, t)); });
    const auto lanes = [&] {
      for (int i = 0; i < t.lanes; ++i) {
        const std::string on = gate ? lane_of(gate->dtype, value(gate), i) : "";
        branch_if(both(once, on), [&] {
          const std::string v = lane_of(in_memory(t), bits, i).substr(memory_type(one).size() + 1);
          const std::string at = t.lanes > 1 ? place(index, i) : typed(index);
          if (combines)
            combine_atomically(param, combine_op(n->arg<OpArg>().op, one), v, at);
          else
            store_one(param, one, v, at, t.size());
        });
      }
    };
    if (combines || index->dtype.lanes > 1) return lanes();
    const int id = ++blocks_;  // all at once, or lane by lane
    line(cat("br ", both(once, all_lanes(gate)), ", label %all", id, ", label %some", id));
    open_block(cat("all", id));
    store_one(param, t, bits, typed(index), alignment(index, t));
    line(cat("br label %both", id));
    open_block(cat("some", id));
    lanes();
    line(cat("br label %both", id));
    open_block(cat("both", id));
  }

  static DType in_memory(DType t) { return t.is_bool() ? kU8.vec(t.lanes) : t; }

  // Other threads may meet in the element too. By compare-and-swap where there is no instruction.
  void combine_atomically(Node param, Op op, Str v, Str index) {
    const DType t = param->dtype.one();
    const std::string at = cat("ptr addrspace(1) ", address(param, index, true));
    const std::string type = type_of(t), scope = " syncscope(\"agent\") monotonic";
    const bool adds = op == Op::Add && !t.is_narrow() && t.bits() >= 32;
    if (adds || (t.is_int() && t.bits() >= 32 && op != Op::Mul)) {
      const std::string sign = t.is_unsigned() ? "u" : "";
      const std::string name = adds            ? (t.is_float() ? "fadd" : "add")
                               : op == Op::Max ? sign + "max"
                               : op == Op::Min ? sign + "min"
                               : op == Op::And ? "and"
                               : op == Op::Or  ? "or"
                                               : "xor";
      define(cat("atomicrmw ", name, " ", at, ", ", type, " ", v, scope));
      return;
    }
    const DType wide = t.is_narrow() ? kF32 : t;
    const std::string bits = cat("i", 8 * t.size()), id = cat(++blocks_);
    const std::string first =
        define(cat("load atomic ", bits, ", ", at, scope, ", align ", t.size()));
    const std::string x = widened(t, from_memory(t, v)), before = block_;
    line(cat("br label %try", id));
    open_block("try" + id);
    const std::string seen = define(
        cat("phi ", bits, " [ ", first, ", %", before, " ], [ %old", id, ", %try", id, " ]"));
    const std::string old = widened(t, from_bits(t, seen));
    const std::string next = to_bits(t, narrowed(t, combine(op, wide, old, x, "")));
    line(cat("%swap", id, " = cmpxchg ", at, ", ", bits, " ", seen, ", ", bits, " ", next, scope,
             " monotonic"));
    line(cat("%old", id, " = extractvalue { ", bits, ", i1 } %swap", id, ", 0"));
    const std::string done = define(cat("extractvalue { ", bits, ", i1 } %swap", id, ", 1"));
    line(cat("br i1 ", done, ", label %swapped", id, ", label %try", id));
    open_block("swapped" + id);
  }

  std::string from_bits(DType t, Str v) {
    if (t.is_bool()) return from_memory(t, v);
    return t.is_float() && !t.is_narrow()
               ? define(cat("bitcast i", t.bits(), " ", v, " to ", type_of(t)))
               : v;
  }
  std::string to_bits(DType t, Str v) {
    if (t.is_bool()) return to_memory(t, v);
    return t.is_float() && !t.is_narrow()
               ? define(cat("bitcast ", type_of(t), " ", v, " to i", t.bits()))
               : v;
  }

  // A half as f32, and back to nearest even; others as they are.
  std::string widened(DType t, Str v) {
    if (t.scalar == Scalar::F16) return cast_half(t, v, kF32);
    if (t.scalar != Scalar::BF16) return v;
    const std::string high =
        define(cat("shl i32 ", define(cat("zext i16 ", v, " to i32")), ", 16"));
    return define(cat("bitcast i32 ", high, " to float"));
  }
  std::string narrowed(DType t, Str v) {
    if (t.scalar == Scalar::F16) return cast_half(kF32, v, t);
    if (t.scalar != Scalar::BF16) return v;
    const std::string i = define(cat("bitcast float ", v, " to i32"));
    const std::string odd = define(cat("and i32 ", define(cat("lshr i32 ", i, ", 16")), ", 1"));
    const std::string up =
        define(cat("add i32 ", define(cat("add i32 ", i, ", 32767")), ", ", odd));
    const std::string high =
        define(cat("trunc i32 ", define(cat("lshr i32 ", up, ", 16")), " to i16"));
    const std::string nan = define(cat("fcmp uno float ", v, ", ", v));
    return define(cat("select i1 ", nan, ", i16 32704, i16 ", high));
  }

  // --- arithmetic --------------------------------------------------------------------------------

  std::string unary(Op op, DType t, Str x) override {
    const std::string type = type_of(t);
    if (op == Op::Exp2) return intrinsic("", type, "llvm.exp2." + suffix_of(t), {type}, {x});
    if (op == Op::Log2) return intrinsic("", type, "llvm.log2." + suffix_of(t), {type}, {x});
    return LlvmPrinter::unary(op, t, x);
  }

  // Not all versions have llvm.maximum for these GPUs.
  std::string combine(Op op, DType t, Str a, Str b, const char* flags) override {
    if (!t.is_float() || (op != Op::Max && op != Op::Min))
      return LlvmPrinter::combine(op, t, a, b, flags);
    const std::string type = type_of(t), mask = type_of(kBool.vec(t.lanes));
    const std::string wins =
        define(cat("fcmp ", op == Op::Max ? "ogt " : "olt ", type, " ", a, ", ", b));
    const std::string nan = define(cat("fcmp uno ", type, " ", a, ", ", a));
    const std::string first = define(cat("or ", mask, " ", wins, ", ", nan));
    return define(cat("select ", mask, " ", first, ", ", type, " ", a, ", ", type, " ", b));
  }

  // The intrinsic's type of each operand.
  static std::string operand_type(const MmaUnit& unit, bool is_mfma) {
    const int count = unit.a_count();
    if (unit.dtype.size() == 1) return is_mfma ? cat("i", 8 * count) : vector_of(count / 4, "i32");
    return vector_of(count, unit.dtype == kF32 ? "float" : unit.dtype == kF16 ? "half" : "i16");
  }

  // The product of two fragments plus `c`, or plus what it is added to.
  std::string mma(Node n, std::string c) {
    const MmaUnit& unit = mma_unit(n);
    if (c.empty())
      c = adds_fragment(n) ? value(n->srcs().back()) : splat_text(n->dtype, double_bits(0));
    const bool is_mfma = std::string_view(unit.intrinsic).find("mfma") != std::string_view::npos;
    const std::string operand = operand_type(unit, is_mfma);
    const auto elements = [&](int begin, int count) {
      if (count == 1) return value(n->src(begin));
      const DType t = unit.dtype.vec(count);
      std::string v = "poison";
      for (int i = 0; i < count; ++i)
        v = define(
            cat("insertelement ", type_of(t), " ", v, ", ", typed(n->src(begin + i)), ", i32 ", i));
      if (unit.fnuz) v = to_fnuz(t, v);
      return type_of(t) == operand ? v
                                   : define(cat("bitcast ", type_of(t), " ", v, " to ", operand));
    };
    std::string a = elements(0, unit.a_count()), b = elements(unit.a_count(), unit.b_count());
    if (unit.is_transposed()) std::swap(a, b);
    const std::string result = type_of(n->dtype);
    if (unit.dtype == kI8 && !is_mfma)  // signed operands, sums that wrap around
      return intrinsic("", result, unit.intrinsic, {"i1", operand, "i1", operand, result, "i1"},
                       {"true", a, "true", b, c, "false"});
    std::vector<std::string> types{operand, operand, result}, values{a, b, c};
    if (is_mfma)
      for (int i = 0; i < 3; ++i) types.push_back("i32"), values.push_back("0");
    if (!unit.fnuz) return intrinsic("", result, unit.intrinsic, types, values);
    values[2] = splat_text(n->dtype, double_bits(0));
    const std::string quarter = intrinsic("", result, unit.intrinsic, types, values);
    const std::string four = splat_text(n->dtype, double_bits(4));
    const std::string all = define(cat("fmul ", result, " ", quarter, ", ", four));
    return define(cat("fadd ", result, " ", c, ", ", all));
  }

  // As `to_fnuz` of codegen/render/c/prelude_gpu.cpp.
  std::string to_fnuz(DType t, Str v) {
    const DType words = kU32.vec(t.lanes / 4);
    const std::string type = type_of(words);
    const auto number = [&](uint32_t n) { return splat_text(words, cat(n)); };
    const auto both = [&](const char* op, Str a, Str b) {
      return define(cat(op, " ", type, " ", a, ", ", b));
    };
    const std::string signs = number(0x80808080u), others = number(0x7f7f7f7fu);
    const std::string x = define(cat("bitcast ", type_of(t), " ", v, " to ", type));
    const std::string magnitude = both("and", x, others);
    const std::string nan = both("and", both("add", magnitude, number(0x01010101u)), signs);
    const std::string some = both("and", both("add", magnitude, others), signs);
    const std::string code = both("sub", nan, both("lshr", nan, number(7)));  // 0x7f of each NaN
    const std::string rest = both("xor", both("or", magnitude, code), code);
    const std::string out = both("or", both("or", rest, both("and", x, some)), nan);
    return define(cat("bitcast ", type, " ", out, " to ", type_of(t)));
  }

  // --- threads that combine theirs ---------------------------------------------------------------

  void barrier() {
    line("fence syncscope(\"workgroup\") release");
    intrinsic("", "void", "llvm.amdgcn.s.barrier", {}, {});
    line("fence syncscope(\"workgroup\") acquire");
  }

  template <class T> std::string binary(const char* op, Str a, const T& b) {
    return define(cat(op, " i32 ", a, ", ", b));
  }

  // The thread's number in its block.
  std::string thread_index() {
    std::string index = "0";
    for (size_t i = 0; i < threads_.size(); ++i) {  // z, y, x
      const std::string wide = define(cat("mul i32 ", index, ", ", extent(threads_[i])));
      index = define(cat("add i32 ", wide, ", ", number("workitem", threads_.size() - 1 - i)));
    }
    return index;
  }

  std::string lane_index() {
    const std::string low =
        intrinsic("", "i32", "llvm.amdgcn.mbcnt.lo", {"i32", "i32"}, {"-1", "0"});
    if (target_.warp == 32) return low;
    return intrinsic("", "i32", "llvm.amdgcn.mbcnt.hi", {"i32", "i32"}, {"-1", low});
  }

  // The value of another lane: ds_bpermute takes four times its number.
  std::string from_lane(DType t, Str v, Str lane) {
    const std::string at = binary("shl", lane, 2);
    const auto word = [&](Str x) {
      return intrinsic("", "i32", "llvm.amdgcn.ds.bpermute", {"i32", "i32"}, {at, x});
    };
    if (t.lanes > 1) {
      std::string out = "poison";
      for (int i = 0; i < t.lanes; ++i) {
        const std::string one = lane_of(t, v, i).substr(type_of(t.one()).size() + 1);
        out = define(cat("insertelement ", type_of(t), " ", out, ", ", type_of(t.one()), " ",
                         from_lane(t.one(), one, lane), ", i32 ", i));
      }
      return out;
    }
    const std::string type = type_of(t);
    if (t.bits() == 64 && !t.is_bool()) {
      std::string words = define(cat("bitcast ", type, " ", v, " to <2 x i32>"));
      for (int i = 0; i < 2; ++i)
        words = define(cat("insertelement <2 x i32> ", words, ", i32 ",
                           word(define(cat("extractelement <2 x i32> ", words, ", i32 ", i))),
                           ", i32 ", i));
      return define(cat("bitcast <2 x i32> ", words, " to ", type));
    }
    if (t == kF32)
      return define(
          cat("bitcast i32 ", word(define(cat("bitcast float ", v, " to i32"))), " to float"));
    if (type == "i32") return word(v);
    return define(
        cat("trunc i32 ", word(define(cat("zext ", type, " ", v, " to i32"))), " to ", type));
  }

  // Lanes whose numbers differ by multiples of `from` below `to` combine theirs.
  std::string combine_lanes_of(int to, Op op, DType t, std::string x, int from = 1) {
    for (int i = from; i < to; i *= 2)
      x = combine(op, t, x, from_lane(t, x, binary("xor", lane_index(), i)), "");
    return x;
  }

  // An array in shared memory with an element for each warp, and which of it is in use now.
  struct Meeting {
    ThreadGroup group;
    std::string array, first = "0";
    DType dtype;
  };
  Meeting meet(Node n) {
    Meeting m{group_of(n, threads_, target_.warp, open_loops_ > 0), cat("@shared", ++meetings_),
              "0", n->dtype};
    if (m.group.width * m.group.apart <= m.group.warp) return m;
    globals_ += cat(m.array, " = internal addrspace(3) global [", m.group.elements(), " x ",
                    memory_type(n->dtype), "] poison, align 16\n");
    if (!m.group.turns) return m;
    const std::string turn = cat("ptr addrspace(5) %turn", meetings_);
    allocas_ +=
        cat("  %turn", meetings_, " = alloca i32, addrspace(5)\n  store i32 0, ", turn, "\n");
    m.first = binary("xor", define("load i32, " + turn), m.group.values());
    line(cat("store i32 ", m.first, ", ", turn));
    return m;
  }
  std::string element(const Meeting& m, Str at) {
    const std::string index = define(cat("add i32 ", m.first, ", ", at));
    return cat("ptr addrspace(3) ", define(cat("getelementptr ", memory_type(m.dtype),
                                               ", ptr addrspace(3) ", m.array, ", i32 ", index)));
  }
  void leave(const Meeting& m, Str at, Str x) {
    const std::string bits = to_memory(m.dtype, x);
    line(cat("store ", memory_type(m.dtype), " ", bits, ", ", element(m, at)));
  }
  std::string find(const Meeting& m, Str at) {
    return from_memory(m.dtype, define(cat("load ", memory_type(m.dtype), ", ", element(m, at))));
  }

  void group(Node reduce) {
    const std::string type = type_of(reduce->dtype),
                      at = cat("ptr addrspace(5) ", accumulators_[reduce]);
    const std::string x = combine_group(reduce, define(cat("load ", type, ", ", at)));
    line(cat("store ", type, " ", x, ", ", at));
  }

  std::string combine_group(Node n, std::string x) {
    const DType t = n->dtype;
    const Op op = combine_op(n->arg<OpArg>().op, t);
    const Meeting m = meet(n);
    if (m.group.apart > 1) return combine_apart(m, op, std::move(x));
    const int width = m.group.width, warp = m.group.warp, warps = width / warp;
    x = combine_lanes_of(std::min(width, warp), op, t, x);
    if (width <= warp) return x;
    const std::string thread = thread_index(), own = binary("udiv", thread, warp);
    branch_if("i1 " + binary("icmp eq", binary("urem", thread, warp), 0),
              [&] { leave(m, own, x); });
    barrier();
    const std::string first =
        width == count_ ? "0" : binary("mul", binary("udiv", own, warps), warps);
    const auto from = [&](Str i) { return find(m, define(cat("add i32 ", first, ", ", i))); };
    if (warps > 8 && std::has_single_bit(static_cast<unsigned>(warps)))
      return combine_lanes_of(warps, op, t, from(binary("urem", thread, warps)));
    x = from("0");
    for (int i = 1; i < warps; ++i) x = combine(op, t, x, from(cat(i)), "");
    return x;
  }

  // Threads that lie apart, as combine_apart does it (codegen/options/thread_group.h).
  std::string combine_apart(const Meeting& m, Op op, std::string x) {
    const int apart = m.group.apart, width = m.group.width, warp = m.group.warp;
    x = combine_lanes_of(std::min(apart * width, warp), op, m.dtype, x, apart);
    if (apart * width <= warp) return x;
    const int kept = std::min(apart, warp), members = apart * width / std::max(apart, warp);
    const std::string thread = thread_index(), lane = binary("urem", thread, warp);
    const std::string at = binary("add", binary("mul", binary("udiv", thread, warp), kept),
                                  binary("urem", lane, kept));
    const std::string member = binary("urem", binary("udiv", at, apart), members);
    const std::string keeps = binary("icmp ult", lane, kept);
    branch_if("i1 " + keeps, [&] { leave(m, at, x); });
    barrier();
    for (int n = members; n > 1; n = (n + 1) / 2) {
      const int half = (n + 1) / 2;
      const std::string has = binary("icmp ult", binary("add", member, half), n);
      branch_if("i1 " + define(cat("and i1 ", keeps, ", ", has)), [&] {
        const std::string other = find(m, binary("add", at, half * apart));
        leave(m, at, combine(op, m.dtype, find(m, at), other, ""));
      });
      barrier();
    }
    return find(m, binary("sub", at, binary("mul", member, apart)));
  }

  // The combined values of the group's earlier threads.
  std::string prefix(Node n) {
    if (is_running(n)) return accumulated(running_reduce(n));
    const DType t = n->dtype;
    const Op op = combine_op(n->arg<OpArg>().op, t);
    const Meeting m = meet(n);
    const int width = m.group.width, warp = m.group.warp, lanes = std::min(width, warp);
    const std::string none = value(identity(n->arg<OpArg>().op, t));
    const std::string thread = thread_index(), lane = binary("urem", thread, lanes);
    const std::string own_lane = lane_index();
    const auto up = [&](Str x, int by) {  // its own where there is none
      const std::string has = binary("icmp uge", own_lane, by),
                        before = binary("sub", own_lane, by);
      return from_lane(t, x, define(cat("select i1 ", has, ", i32 ", before, ", i32 ", own_lane)));
    };
    const auto choose = [&](Str condition, Str a, Str b) {
      return define(
          cat("select i1 ", condition, ", ", type_of(t), " ", a, ", ", type_of(t), " ", b));
    };
    std::string x = value(n->src(0));
    for (int i = 1; i < lanes; i *= 2)
      x = choose(binary("icmp uge", lane, i), combine(op, t, up(x, i), x, ""), x);
    std::string sum = choose(binary("icmp ne", lane, 0), up(x, 1), none);
    if (width <= warp) return sum;
    const int warps = width / warp;
    const std::string own = binary("udiv", thread, warp);
    branch_if("i1 " + binary("icmp eq", lane, warp - 1), [&] { leave(m, own, x); });
    barrier();
    const std::string first = binary("mul", binary("udiv", own, warps), warps);
    const std::string mine = binary("urem", own, warps);
    std::string before = none;
    for (int i = 0; i < warps - 1; ++i) {
      const std::string more =
          combine(op, t, before, find(m, define(cat("add i32 ", first, ", ", i))), "");
      before = choose(binary("icmp ugt", mine, i), more, before);
    }
    return combine(op, t, before, sum, "");
  }

  const SingleUse single_use_;
  std::vector<Node> grid_, threads_;  // ranges of these kinds, x last
  int count_ = 1;                     // threads of a block
  NodeMap<std::string> stages_;       // their places in shared memory
  NodeMap<Node> behind_;              // of a range that is ahead of a loop: that loop
  NodeMap<char> added_;               // products of fragments that are added to one sum
  std::string globals_, metadata_;
  int open_loops_ = 0, meetings_ = 0, unrolled_ = 0;
};

}  // namespace

Source render_amdgpu(const Linear& program, const Target& target) {
  return AmdPrinter(program, target).print();
}

}  // namespace tiny
