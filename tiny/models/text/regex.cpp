#include "tiny/models/text/regex.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "tiny/base/error.h"
#include "tiny/models/text/oniguruma.h"
#include "tiny/models/text/unicode.h"

#if __has_include(<pcre2.h>)
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#define TINY_HAS_PCRE2 1
#endif

namespace tiny::models::tokenizers {

Regex Regex::literal(std::string_view text) {
  std::string pattern;
  for (const char c : text) {
    if (std::string_view("\\^$.|?*+()[]{}&~-#").find(c) != std::string_view::npos) pattern += '\\';
    pattern += c;
  }
  return Regex(pattern);
}

#if TINY_HAS_PCRE2

namespace {

std::string message_of(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

// What matching writes to: one for each thread, as it is costly to make.
struct Scratch {
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(32 << 10, 16 << 20, nullptr);

  Scratch() {
    expect(data && context, "no memory for a regular expression");
    if (stack) pcre2_jit_stack_assign(context, nullptr, stack);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() {
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
  }

  // Backtracking over a long run of white space takes steps in proportion to it; more are refused.
  void allow_steps_for(std::string_view text) {
    constexpr size_t kSteps = 10'000'000, kStepsForEachByte = 16;
    const size_t steps = std::min<size_t>(kSteps + kStepsForEachByte * text.size(), UINT32_MAX);
    pcre2_set_match_limit(context, static_cast<uint32_t>(steps));
  }

  // The result of pcre2_match. The interpreter takes over where the compiled code's stack is full.
  int match(const pcre2_code* code, std::string_view text, size_t from) {
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.empty() ? "" : text.data());
    const auto run = [&](uint32_t options) {
      return pcre2_match(code, subject, text.size(), from, options, data, context);
    };
    const int result = run(PCRE2_NO_UTF_CHECK);
    return result == PCRE2_ERROR_JIT_STACKLIMIT ? run(PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT) : result;
  }

  Match found() const {
    const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(data);
    return {ends[0], ends[1]};
  }
};

}  // namespace

Regex::Regex(const std::string& pattern) : pattern_(pattern) {
  check(is_valid_utf8(pattern), "a regular expression is no valid UTF-8: ", valid_utf8(pattern));
  const std::string translated = to_pcre2(pattern);
  const std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(
      pcre2_compile_context_create(nullptr), pcre2_compile_context_free);
  expect(context != nullptr, "no memory for a regular expression");
  // Oniguruma ends lines at \n alone, and ^ and $ see them.
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE at = 0;
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &error, &at, context.get());
  check(code != nullptr, "the regular expression ", pattern,
        " cannot be compiled: ", message_of(error), " at byte ", at, " of ", translated);
  code_ = std::shared_ptr<const void>(
      code, [](const void* p) { pcre2_code_free(static_cast<pcre2_code*>(const_cast<void*>(p))); });
  // Without a JIT for this processor the interpreter matches.
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
}

std::vector<Match> Regex::find_all(std::string_view text) const {
  thread_local Scratch scratch;
  const auto* code = static_cast<const pcre2_code*>(code_.get());
  scratch.allow_steps_for(text);
  std::vector<Match> out;
  for (size_t from = 0; from <= text.size();) {
    const int result = scratch.match(code, text, from);
    if (result == PCRE2_ERROR_NOMATCH) break;
    if (result < 0)
      throw Error(cat("the regular expression ", pattern_, " gives up on a text of ", text.size(),
                      " bytes: ", message_of(result)));
    const Match found = scratch.found();
    if (found.begin == found.end && !out.empty() && out.back().end == found.end) {
      from = found.end + (found.end < text.size() ? utf8_size(text[found.end]) : 1);
      continue;
    }
    out.push_back(found);
    from = found.end;
  }
  return out;
}

#else

Regex::Regex(const std::string& pattern) {
  throw Error(cat("this build has no regular expressions, as for ", pattern,
                  ": pcre2.h (package libpcre2-dev) was missing"));
}

std::vector<Match> Regex::find_all(std::string_view) const { return {}; }

#endif

}  // namespace tiny::models::tokenizers
