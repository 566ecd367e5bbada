// Of the printer for AMD's GPUs (amdgpu.cpp): loads, stores and atomics; address spaces are 1 for
// buffers, 3 for shared memory, 5 for a thread's own.
#pragma once
#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "codegen/kernel/facts.h"
#include "codegen/options/stage.h"
#include "codegen/render/llvm/amdgpu_groups.h"

namespace tiny::amdgpu {

class Memory : public Groups {
 public:
  using Groups::Groups;

 protected:
  // Stages lie in the block's dynamic shared memory in the order of their slots.
  void find_stages() {
    std::vector<Node> stages = stages_of(program_.body);
    std::ranges::sort(stages, std::ranges::greater(), slot_of);
    int64_t at = 0;
    for (Node s : stages) {
      stages_[s] = cat("%stage", kFirstStage - slot_of(s));
      allocas_ +=
          cat("  ", stages_[s], " = getelementptr i8, ptr addrspace(3) @stages, i32 ", at, "\n");
      at += stage_bytes(s);
    }
    if (at) globals_ += "@stages = external addrspace(3) global [0 x i8], align 16\n";
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

  std::string once_per_grid(Node store) {
    std::string first;
    for (Node r : repeated_along(store, grid_, threads_))
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

  std::vector<Node> grid_;       // ranges of blocks, x last
  NodeMap<std::string> stages_;  // their places in shared memory
};

}  // namespace tiny::amdgpu
