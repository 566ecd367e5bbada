// What the languages of the C family do not share, as a table: C now, CUDA and HIP a row each.
#pragma once
#include <initializer_list>
#include <string>
#include <utility>

#include "codegen/source.h"
#include "codegen/target.h"
#include "tiny/dtype.h"

namespace tiny {

// How a language of the C family spells what they do not share. In patterns, {T} is the name of a
// type, {S} a scalar type, {B} its bytes, {V} the bytes of a vector, {N} the kernel's name, {P} its
// parameters and {A} the buffers taken from `args`.
struct Dialect {
  Source::Language language;
  const char* boolean;  // a bool in a register
  const char* restrict_word;
  const char* vector_type;  // a definition of {T}
  const char* helpers[3];   // macros, each printed where it is used; see Helper
  const char* body;         // head of the function with the loops
  const char* entry;        // what follows it
};

enum class Helper { Splat, Where, Bitcast };

// The row for target.language, that of C for LlvmIr.
const Dialect& dialect_of(const Target& target);

// The pattern with the values in its holes.
std::string fill(std::string pattern, std::initializer_list<std::pair<char, std::string>> values);

// The type behind the name DType::name(), the same in all dialects.
const char* c_scalar(Scalar s);

}  // namespace tiny
