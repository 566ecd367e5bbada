#include "codegen/render/c/prelude_gpu.h"

#include "tiny/base/error.h"

namespace tiny {

namespace {

std::string spelled(DType t) {
  return t.lanes > 1 ? cat("vec<", t.one().name(), ", ", t.lanes, ">") : t.one().name();
}

// "{expression of lane 0, of lane 1, ...}", {i} in the pattern being the lane.
std::string lanes(const std::string& pattern, int count) {
  std::string out;
  for (int i = 0; i < count; ++i) out += (i ? ", " : "") + fill(pattern, {{'i', cat(i)}});
  return "{" + out + "}";
}

std::string definition(const std::string& head, const std::string& pattern, DType to) {
  return cat("INLINE ", spelled(to), " ", head, " {\n  return ", lanes(pattern, to.lanes),
             ";\n}\n");
}

// The type in which lanes are computed so that they wrap.
std::string wide(const std::string& op, DType t) {
  const bool wraps = op == "+" || op == "-" || op == "*" || op == "<<";
  return t.is_int() && wraps ? (t.bits() == 64 ? "(u64)" : "(u32)") : "";
}

std::string saturation(DType to, DType from) {
  const std::string name = to.one().name(), x = from.scalar == Scalar::F32 ? "float" : "double";
  const char* width = to.bits() == 64            ? (to.is_signed() ? "ll" : "ull")
                      : to.scalar == Scalar::U32 ? "uint"
                                                 : "int";
  const std::string integer = cat("__", x, "2", width, "_rz(x)");
  const std::string head =
      cat("template <> INLINE ", name, " saturate<", name, ">(", from.one().name(), " x) {\n");
  // The instruction saturates, but not all of its forms give 0 for NaN.
  if (to.bits() >= 32) return cat(head, "  return x != x ? 0 : ", integer, ";\n}\n");
  return cat(head, "  const int i = x != x ? 0 : ", integer, ";\n  return i < ", int_min(to), " ? ",
             int_min(to), " : i > ", int_max(to), " ? ", int_max(to), " : i;\n}\n");
}

// Two lanes at a time.
std::string convert_pairs(const LaneFunction& f) {
  const std::string half = f.to.one().name(), head = cat(f.name, "(", spelled(f.from), " x)");
  if (f.to.lanes % 2) return definition(head, f.name + "(x.v[{i}])", f.to);
  std::string pairs;
  for (int i = 0; i < f.to.lanes; i += 2)
    pairs += cat(i ? ", " : "", "pair_to_", half, "(x.v[", i, "], x.v[", i + 1, "])");
  return cat("INLINE ", spelled(f.to), " ", head, " {\n  return bitcast<", spelled(f.to),
             ">(vec<u32, ", f.to.lanes / 2, ">{", pairs, "});\n}\n");
}

// Of a pair, by the word that it is: halves by themselves cost instructions.
std::string widen_pair(const LaneFunction& f) {
  return cat("INLINE ", spelled(f.to), " ", f.name, "(", spelled(f.from),
             " x) {\n  const u32 w = bitcast<u32>(x);\n  return {bitcast<f32>(w << 16), "
             "bitcast<f32>(w & 0xffff0000u)};\n}\n");
}

std::string function_text(const LaneFunction& f) {
  const std::string to = spelled(f.to), from = spelled(f.from), one = f.to.one().name();
  const auto special = [&](const std::string& argument, const std::string& pattern) {
    return "template <> " + definition(cat(f.name, "<", to, ">(", argument, " x)"), pattern, f.to);
  };
  const auto binary = [&](const std::string& name, const std::string& pattern) {
    return definition(cat(name, "(", from, " a, ", from, " b)"), pattern, f.to);
  };
  if (f.name == "splat") return special(one, "x");
  if (f.name == "convert") return special(from, cat("(", one, ")x.v[{i}]"));
  if (f.name == "bitcast") return special(from, cat("bitcast<", one, ">(x.v[{i}])"));
  if (f.name == "saturate") return special(from, cat("saturate<", one, ">(x.v[{i}])"));
  if (f.name == "where") {
    // Halves by their bits: of two structs clang chooses the address, and puts them into memory.
    const char* lane = f.to.is_narrow() ? "{T}{m.v[{i}] ? a.v[{i}].bits : b.v[{i}].bits}"
                                        : "m.v[{i}] ? a.v[{i}] : b.v[{i}]";
    return definition(cat("where(", spelled(kBool.vec(f.to.lanes)), " m, ", to, " a, ", to, " b)"),
                      fill(lane, {{'T', one}}), f.to);
  }
  if (f.name == "negative") return definition(cat("operator-(", from, " x)"), "-x.v[{i}]", f.to);
  if (f.name == "mul_add")
    return definition(cat("mul_add(", to, " a, ", to, " b, ", to, " c)"),
                      "mul_add(a.v[{i}], b.v[{i}], c.v[{i}])", f.to);
  if (f.name == "max_of" || f.name == "min_of")
    return binary(f.name, cat(f.name, "(a.v[{i}], b.v[{i}])"));
  if (f.name == "f32_to_f16" || f.name == "f32_to_bf16") return convert_pairs(f);
  if (f.name == "bf16_to_f32" && f.to.lanes == 2) return widen_pair(f);
  if (f.name.find('_') != std::string::npos)
    return definition(cat(f.name, "(", from, " x)"), cat(f.name, "(x.v[{i}])"), f.to);
  const std::string w = wide(f.name, f.from);
  const std::string result = cat(w, "a.v[{i}] ", f.name, " ", w, "b.v[{i}]");
  const bool promoted = f.to.is_int() || (f.to.is_bool() && f.from.is_bool());
  return binary("operator" + f.name, promoted ? cat("(", one, ")(", result, ")") : result);
}

}  // namespace

std::string gpu_prelude(std::span<const Helper> primitives, const PreludeUse& use) {
  std::string functions;
  std::set<std::tuple<Scalar, Scalar>> saturated;
  for (const LaneFunction& f : use.functions) {
    if (f.name == "saturate" && saturated.emplace(f.to.scalar, f.from.scalar).second)
      functions += saturation(f.to, f.from);
    if (f.to.lanes > 1) functions += function_text(f);
  }
  const std::string helpers =
      needed(prelude_table(PreludeTable::Helpers), "vec " + functions + use.text);
  const std::string atomics =
      needed(prelude_table(PreludeTable::NativeAtomics), helpers + functions + use.text);
  const std::string all = atomics + helpers + functions + use.text;
  const std::string base = needed(primitives, "KERNEL " + all);
  const auto defined = [&](const char* name, int value) {
    const bool used = (base + all).find(name) != std::string::npos;
    return used ? cat("#define ", name, " ", value, "\n") : "";
  };
  return cat(defined("THREADS", use.threads), defined("WARP", use.warp), "#ifndef TINY_PRELUDE\n",
             prelude_text(PreludeTable::Numbers, "numbers"),
             needed(prelude_table(PreludeTable::SmallFloats), base + all), base, atomics,
             "#endif\n", helpers, functions);
}

}  // namespace tiny
