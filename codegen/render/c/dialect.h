// The differences between C, CUDA and HIP, as a table with a row each.
#pragma once
#include <initializer_list>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "codegen/target/source.h"
#include "codegen/target/target.h"
#include "tiny/ir/dtype.h"

namespace tiny {

// A function of vectors that a kernel calls. Class vectors have none but those that are printed for
// their kernel: lane by lane, which compiles faster than a loop in a template. `name` is that of
// the function or an operator's symbol, `to` the dtype of the result, `from` of the operands.
struct LaneFunction {
  std::string name;
  DType to, from;
  friend bool operator<(const LaneFunction& a, const LaneFunction& b) {
    const auto key = [](const LaneFunction& f) {
      return std::tuple(std::string_view(f.name), f.to.scalar, f.to.lanes, f.from.scalar);
    };
    return key(a) < key(b);
  }
};

// The helpers that a kernel's text needs in front of it.
struct PreludeUse {
  std::string text;  // the kernel, with the types of its vectors
  std::set<LaneFunction> functions;
  int threads = 1;  // of a block
  int warp = 32;
};

// How a language of the C family spells what they do not share. In patterns, {T} is the name of a
// type, {F} of the type that is converted to it, {S} a scalar type, {I} integers of its width, {B}
// its bytes, {V} the bytes of a vector, {L} a list of numbers, {m}, {a}, {b}, {x} operands, {N} the
// kernel's name, {P} its parameters, {A} the buffers taken from `args`, {K} the threads of a block,
// {H} the primitive that begins it.
struct Dialect {
  Source::Language language;
  // Vectors are classes. Their operators wrap, and lanes of vectors of bools are bools. Else they
  // are the compiler's own, with bools of 0 and -1.
  bool classes;
  const char* boolean;  // a bool in a register
  const char* restrict_word;
  const char* vector_type;  // a definition of {T}
  const char *splat, *where, *convert, *bitcast, *shuffle, *lanes;
  std::string (*prelude)(const PreludeUse& use);  // helpers, before the vector types' definitions
  const char* body;                               // head of the function with the loops
  const char* entry;                              // text between `extern "C"` and the kernel's name
};

// The row for target.language, that of C for LlvmIr.
const Dialect& dialect_of(const Target& target);

// The pattern with the values in its holes.
std::string fill(std::string pattern, std::initializer_list<std::pair<char, std::string>> values);

// The texts whose name occurs as a word in `use` or in a text that was chosen after it.
struct Helper {
  std::string_view name, text;
};
std::string needed(std::span<const Helper> helpers, const std::string& use);

// The type behind the name DType::name(), the same in all dialects.
const char* c_scalar(Scalar s);

}  // namespace tiny
