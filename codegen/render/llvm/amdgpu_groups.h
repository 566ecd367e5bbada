// Of the printer for AMD's GPUs (amdgpu.cpp): threads of a block that combine their values.
#pragma once
#include <bit>
#include <string>
#include <utility>

#include "codegen/kernel/facts.h"
#include "codegen/options/thread_group.h"
#include "codegen/render/llvm/amdgpu_lanes.h"

namespace tiny::amdgpu {

class Groups : public Lanes {
 public:
  using Lanes::Lanes;

 protected:
  void barrier() {
    line("fence syncscope(\"workgroup\") release");
    intrinsic("", "void", "llvm.amdgcn.s.barrier", {}, {});
    line("fence syncscope(\"workgroup\") acquire");
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

  std::string globals_;
  int open_loops_ = 0, meetings_ = 0;
};

}  // namespace tiny::amdgpu
