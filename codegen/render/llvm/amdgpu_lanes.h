// Of the printer for AMD's GPUs (amdgpu.cpp): what the lanes of a wave do together, combining
// values and multiplying fragments.
#pragma once
#include <algorithm>
#include <string>
#include <vector>

#include "codegen/kernel/access.h"
#include "codegen/options/mma.h"
#include "codegen/render/llvm/printer.h"

namespace tiny::amdgpu {

using llvm_text::double_bits;
using llvm_text::memory_type;
using llvm_text::splat_text;
using llvm_text::suffix_of;
using llvm_text::type_of;
using llvm_text::vector_of;

class Lanes : public LlvmPrinter {
 public:
  using LlvmPrinter::LlvmPrinter;

 protected:
  std::string number(const char* what, size_t dimension) {
    return intrinsic("", "i32", cat("llvm.amdgcn.", what, ".id.", "xyz"[dimension]), {}, {});
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

  std::vector<Node> threads_;  // ranges of this kind, x last
  int count_ = 1;              // threads of a block
};

}  // namespace tiny::amdgpu
