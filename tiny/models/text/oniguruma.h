// Oniguruma's syntax of regular expressions, in which tokenizers are written, in PCRE2's.
#pragma once
#include <string>

namespace tiny::models::tokenizers {

// The pattern for PCRE2 with PCRE2_UTF, PCRE2_MULTILINE and lines that end at \n, which matches
// what `pattern` matches to Oniguruma (doc/RE of its sources): \s, \w, \d, \h, \b and [:name:] by
// Oniguruma's sets of Unicode characters, (?m) for a dot that matches \n, nested classes and
// intersections, {n,m}+ as a repeated repetition, {,m}, \uHHHH, isolated options. Throws Error,
// with the pattern, for what cannot be said to PCRE2.
std::string to_pcre2(const std::string& pattern);

}  // namespace tiny::models::tokenizers
