// Regular expressions over UTF-8 as tokenizers write them, in Oniguruma's syntax, matched by PCRE2.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tiny::models::tokenizers {

struct Match {
  size_t begin, end;  // bytes
};

// PCRE2 beside ICU: it matches UTF-8 as it stands, where ICU wants UTF-16, compiles to machine
// code, and is a tenth of ICU's size. May be used by several threads at once.
class Regex {
 public:
  // Throws Error, with the pattern, where it cannot be compiled.
  explicit Regex(const std::string& pattern);
  // Matches these characters and nothing else.
  static Regex literal(std::string_view text);

  // All matches from left to right, which do not overlap. No empty match ends where the match
  // before it does. Throws Error where the pattern needs too many steps.
  std::vector<Match> find_all(std::string_view text) const;

 private:
  std::string pattern_;
  std::shared_ptr<const void> code_;
};

}  // namespace tiny::models::tokenizers
