#include "codegen/render/c/dialect.h"

#include "codegen/render/c/prelude_gpu.h"
#include "tiny/base/error.h"
#include "tiny/base/text.h"

namespace tiny {

namespace {

constexpr Helper kHelpersOfC[] = {
    {"splat", "#define splat(T, x) ((x) - (T){0})  // x in every lane\n"},
    {"where",
     "// lanes of a where m holds, else of b; I: integers of T's width\n"
     "#define where(T, I, m, a, b) \\\n"
     "  ({ I m_ = __builtin_convertvector(m, I); (T)((m_ & (I)(a)) | (~m_ & (I)(b))); })\n"},
    // Compilers may contract the one and not the other: gcc does so unasked.
    {"mul_add",
     "#ifdef __clang__\n"
     "#define mul_add(a, b, c) ({ _Pragma(\"clang fp contract(fast)\")(a) * (b) + (c); })\n"
     "#else\n#define mul_add(a, b, c) ((a) * (b) + (c))\n#endif\n"},
    {"product",
     "#ifdef __clang__\n#define product(x) (x)\n"
     "#elif __GNUC__ >= 12\n#define product(x) __builtin_assoc_barrier(x)\n"
     "#else  // sums of products are not fused either\n"
     "#pragma GCC optimize(\"fp-contract=off\")\n#define product(x) (x)\n#endif\n"},
    {"bitcast", "#define bitcast(T, S, x) (((union { S from; T to; }){.from = (x)}).to)\n"},
};

std::string c_prelude(const PreludeUse& use) {
  return needed(kHelpersOfC, use.text) +
         "#ifdef __clang__\n#pragma clang fp contract(off)\n#endif\n\n";
}

constexpr Dialect kC = {
    Source::Language::C,
    false,
    "_Bool",
    "restrict",
    "typedef {S} {T} __attribute__((vector_size({V}), aligned({B})));\n",
    "splat({T}, {x})",
    "where({T}, {I}, {m}, {a}, {b})",
    "__builtin_convertvector({x}, {T})",
    "bitcast({T}, {F}, {x})",
    "__builtin_shufflevector({a}, {b}, {L})",
    "({T}){{L}}",
    c_prelude,
    "static __attribute__((noinline)) void {N}_body({P}, i64 begin, i64 end) {\n",
    "\nvoid {N}(void** args, i64 begin, i64 end) {\n  {N}_body({A}begin, end);\n}\n",
};

// CUDA and HIP: what they do not share is in their preludes.
constexpr Dialect gpu_dialect(Source::Language language, std::string (*prelude)(const PreludeUse&),
                              const char* body) {
  return {
      language,
      true,
      "bool",
      "RESTRICT",
      "typedef vec<{S}, {L}> {T};\n",
      "splat<{T}>({x})",
      "where({m}, {a}, {b})",
      "convert<{T}>({x})",
      "bitcast<{T}>({x})",
      "shuffle<{L}>({a}, {b})",
      "{T}{{L}}",
      prelude,
      body,
      "",
  };
}

constexpr Dialect kCuda = gpu_dialect(Source::Language::Cuda, cuda_prelude,
                                      "\nextern \"C\" {H} {N}({P}) {\n  wait_for_earlier();\n");
constexpr Dialect kHip =
    gpu_dialect(Source::Language::Hip, hip_prelude, "\nextern \"C\" KERNEL({K}) {N}({P}) {\n");

bool is_word(char c) { return is_letter(c) || is_digit(c) || c == '_'; }

bool has_word(std::string_view text, std::string_view word) {
  for (size_t at = 0; (at = text.find(word, at)) != std::string::npos; at += word.size()) {
    const size_t end = at + word.size();
    if ((at == 0 || !is_word(text[at - 1])) && (end == text.size() || !is_word(text[end])))
      return true;
  }
  return false;
}

}  // namespace

const Dialect& dialect_of(const Target& target) {
  switch (target.language) {
    case Target::Language::Cuda: return kCuda;
    case Target::Language::Hip: return kHip;
    default: return kC;
  }
}

std::string fill(std::string pattern, std::initializer_list<std::pair<char, std::string>> values) {
  for (const auto& [key, value] : values) {
    const std::string hole{'{', key, '}'};
    for (size_t at = 0; (at = pattern.find(hole, at)) != std::string::npos; at += value.size())
      pattern.replace(at, hole.size(), value);
  }
  return pattern;
}

std::string needed(std::span<const Helper> helpers, const std::string& use) {
  std::string out;
  for (size_t i = helpers.size(); i-- > 0;)
    if (has_word(use, helpers[i].name) || has_word(out, helpers[i].name))
      out.insert(0, helpers[i].text);
  return out;
}

const char* c_scalar(Scalar s) {
  switch (s) {
    case Scalar::Bool: return "signed char";  // a lane of a vector of bools: 0 or -1
    case Scalar::I8: return "signed char";
    case Scalar::I16: return "short";
    case Scalar::I32: return "int";
    case Scalar::I64: return "long long";
    case Scalar::U8:
    case Scalar::F8E4M3:
    case Scalar::F8E5M2: return "unsigned char";
    case Scalar::U16:
    case Scalar::F16:
    case Scalar::BF16: return "unsigned short";
    case Scalar::U32: return "unsigned";
    case Scalar::U64: return "unsigned long long";
    case Scalar::F32: return "float";
    case Scalar::F64: return "double";
    default: throw Bug(cat("render_c: the dtype ", DType(s).name(), " in a linear program"));
  }
}

}  // namespace tiny
