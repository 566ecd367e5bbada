#include "codegen/render/llvm/text.h"

#include <bit>

#include "tiny/base/error.h"
#include "tiny/base/text.h"

namespace tiny::llvm_text {

std::string scalar_type(Scalar s) {
  switch (s) {
    case Scalar::Bool: return "i1";
    case Scalar::I8:
    case Scalar::U8:
    case Scalar::F8E4M3:
    case Scalar::F8E5M2: return "i8";
    case Scalar::I16:
    case Scalar::U16: return "i16";
    case Scalar::I32:
    case Scalar::U32: return "i32";
    case Scalar::I64:
    case Scalar::U64: return "i64";
    // 16-bit floats are only moved and cast: as bits they need no support of the machine.
    case Scalar::F16:
    case Scalar::BF16: return "i16";
    case Scalar::F32: return "float";
    case Scalar::F64: return "double";
    default: throw Bug(cat("render_llvm: the dtype ", DType(s).name(), " in a linear program"));
  }
}

std::string vector_of(int lanes, const std::string& element) {
  return lanes == 1 ? element : cat("<", lanes, " x ", element, ">");
}
std::string type_of(DType t) { return vector_of(t.lanes, scalar_type(t.scalar)); }
std::string memory_type(DType t) { return t.is_bool() ? vector_of(t.lanes, "i8") : type_of(t); }

// The part of an overloaded intrinsic's name that stands for a type: "v16f32".
std::string suffix_of(DType t) {
  const std::string prefix = t.lanes > 1 ? cat("v", t.lanes) : "";
  if (t.is_float() && !t.is_narrow()) return cat(prefix, "f", t.bits());
  return prefix + scalar_type(t.scalar);
}

// `one` in every lane of a constant.
std::string splat_text(DType t, const std::string& one) {
  if (t.lanes == 1) return one;
  std::string out = "<", element = scalar_type(t.scalar);
  for (int i = 0; i < t.lanes; ++i) out += cat(i ? ", " : "", element, " ", one);
  return out + ">";
}

// Floats are written as the bits of a double, which is exact and has NaN and infinity.
std::string double_bits(double v) {
  return formatted("0x%016llX", static_cast<unsigned long long>(std::bit_cast<uint64_t>(v)));
}

std::string const_text(Node n) {
  const DType t = n->dtype;
  if (t.is_f8())
    return splat_text(t, cat(int{f32_to_f8(static_cast<float>(n->float_value()), t.scalar)}));
  if (t.scalar == Scalar::F16) return splat_text(t, cat(f32_to_f16(n->float_value())));
  if (t.scalar == Scalar::BF16) return splat_text(t, cat(f32_to_bf16(n->float_value())));
  if (t.is_float()) return splat_text(t, double_bits(n->float_value()));
  if (t.is_bool()) return splat_text(t, n->int_value() ? "true" : "false");
  return splat_text(t, cat(n->int_value()));
}

std::string ramp_text(DType t) {
  std::string out = "<";
  for (int i = 0; i < t.lanes; ++i) out += cat(i ? ", " : "", scalar_type(t.scalar), " ", i);
  return out + ">";
}

std::string lane_list(int lanes, int from, int step) {
  std::string out = cat("<", lanes, " x i32> <");
  for (int i = 0; i < lanes; ++i) out += cat(i ? ", " : "", "i32 ", from + i * step);
  return out + ">";
}

}  // namespace tiny::llvm_text
