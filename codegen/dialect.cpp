#include "codegen/dialect.h"

#include "tiny/error.h"

namespace tiny {

namespace {

constexpr Dialect kC = {
    Source::Language::C,
    "_Bool",
    "restrict",
    "typedef {S} {T} __attribute__((vector_size({V}), aligned({B})));\n",
    {"#define splat(T, x) ((x) - (T){0})  // x in every lane\n",
     "// lanes of a where m holds, else of b; I: integers of T's width\n"
     "#define where(T, I, m, a, b) \\\n"
     "  ({ I m_ = __builtin_convertvector(m, I); (T)((m_ & (I)(a)) | (~m_ & (I)(b))); })\n",
     "#define bitcast(T, S, x) (((union { S from; T to; }){.from = (x)}).to)\n"},
    "static __attribute__((noinline)) void {N}_body({P}i64 begin, i64 end) {\n",
    "\nvoid {N}(void** args, i64 begin, i64 end) {\n  {N}_body({A}begin, end);\n}\n",
};

}  // namespace

const Dialect& dialect_of(const Target& target) {
  using Language = Target::Language;
  expect(target.language == Language::C || target.language == Language::LlvmIr,
         "render_c: no dialect for this language yet");
  return kC;
}

std::string fill(std::string pattern, std::initializer_list<std::pair<char, std::string>> values) {
  for (const auto& [key, value] : values) {
    const std::string hole{'{', key, '}'};
    for (size_t at = 0; (at = pattern.find(hole, at)) != std::string::npos; at += value.size())
      pattern.replace(at, hole.size(), value);
  }
  return pattern;
}

const char* c_scalar(Scalar s) {
  switch (s) {
    case Scalar::Bool: return "signed char";  // a lane of a vector of bools: 0 or -1
    case Scalar::I8: return "signed char";
    case Scalar::I16: return "short";
    case Scalar::I32: return "int";
    case Scalar::I64: return "long long";
    case Scalar::U8: return "unsigned char";
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
