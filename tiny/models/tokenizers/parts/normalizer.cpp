#include "tiny/models/tokenizers/parts/normalizer.h"

#include <utility>

#include "tiny/models/tokenizers/parts/byte_level.h"

namespace tiny::models::tokenizers {
namespace {

// The code points that `keep` holds for.
template <class Keep> std::string filtered(std::string_view text, const Keep& keep) {
  std::string out;
  out.reserve(text.size());
  for_each_code_point(text, [&](char32_t c, size_t at, size_t size) {
    if (keep(c)) out += text.substr(at, size);
  });
  return out;
}

std::string stripped(std::string_view text, bool left, bool right) {
  size_t begin = text.size(), end = 0;
  for_each_code_point(text, [&](char32_t c, size_t at, size_t size) {
    if (is_white_space(c)) return;
    begin = std::min(begin, at);
    end = at + size;
  });
  if (!left) begin = 0;
  if (!right) end = text.size();
  return std::string(begin < end ? text.substr(begin, end - begin) : "");
}

constexpr bool ends_line_or_tab(char32_t c) { return c == '\t' || c == '\n' || c == '\r'; }

std::string cleaned_for_bert(std::string_view text) {
  std::string out;
  for_each_code_point(text, [&](char32_t c, size_t at, size_t size) {
    if (ends_line_or_tab(c)) {
      out += ' ';
    } else if (c != 0 && c != 0xfffd && !is_control_or_format(c)) {
      out += is_white_space(c) ? " " : text.substr(at, size);
    }
  });
  return out;
}

std::string with_spaced_ideographs(std::string_view text) {
  std::string out;
  for_each_code_point(text, [&](char32_t c, size_t at, size_t size) {
    const bool ideograph = is_han_ideograph(c);
    if (ideograph) out += ' ';
    out += text.substr(at, size);
    if (ideograph) out += ' ';
  });
  return out;
}

// Tables of sentencepiece's builder.cc, BuildNmtNFKCMap.
bool is_removed_by_nmt(char32_t c) {
  return (1 <= c && c <= 8) || c == 0xb || (0xe <= c && c <= 0x1f) || c == 0x7f || c == 0x8f ||
         c == 0x9f;
}
bool is_space_to_nmt(char32_t c) {
  return c == 9 || c == 0xa || c == 0xc || c == 0xd || c == 0x1680 ||
         (0x200b <= c && c <= 0x200f) || c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xfeff ||
         c == 0xfffd;
}

}  // namespace

std::string replace_all(std::string_view text, const Regex& pattern, std::string_view content) {
  std::string out;
  size_t done = 0;
  for (const Match& match : pattern.find_all(text)) {
    out += text.substr(done, match.begin - done);
    out += content;
    done = match.end;
  }
  return out += text.substr(done);
}

std::string replace_all(std::string_view text, std::string_view pattern, std::string_view content) {
  std::string out;
  if (pattern.empty()) return std::string(text);
  for (size_t found; (found = text.find(pattern)) != std::string_view::npos;) {
    out += text.substr(0, found);
    out += content;
    text.remove_prefix(found + pattern.size());
  }
  return out += text;
}

Normalizer normalize_in_sequence(std::vector<Normalizer> steps) {
  return [steps = std::move(steps)](std::string_view text) {
    std::string out(text);
    for (const Normalizer& step : steps) out = step(out);
    return out;
  };
}

Normalizer normalize_to(NormalForm form) {
  return [form](std::string_view text) { return normal_form(text, form); };
}

Normalizer normalize_to_lower_case() { return lower_case; }

Normalizer strip_accents() {
  return
      [](std::string_view text) { return filtered(text, [](char32_t c) { return !is_mark(c); }); };
}

Normalizer strip_white_space(bool left, bool right) {
  return [=](std::string_view text) { return stripped(text, left, right); };
}

Normalizer replace_text(std::string pattern, std::string content) {
  return [pattern = std::move(pattern), content = std::move(content)](std::string_view text) {
    return replace_all(text, pattern, content);
  };
}

Normalizer replace_regex(Regex pattern, std::string content) {
  return [pattern = std::move(pattern), content = std::move(content)](std::string_view text) {
    return replace_all(text, pattern, content);
  };
}

Normalizer prepend_text(std::string prefix) {
  return [prefix = std::move(prefix)](std::string_view text) {
    return text.empty() ? std::string() : prefix + std::string(text);
  };
}

Normalizer map_bytes() { return to_byte_level; }

Normalizer normalize_nmt() {
  return [](std::string_view text) {
    std::string out;
    for_each_code_point(text, [&](char32_t c, size_t at, size_t size) {
      if (!is_removed_by_nmt(c)) out += is_space_to_nmt(c) ? " " : text.substr(at, size);
    });
    return out;
  };
}

Normalizer apply_character_map(CharacterMap map) {
  return [map = std::move(map)](std::string_view text) { return map.replace_graphemes(text); };
}

Normalizer normalize_for_bert(const BertNormalization& options) {
  std::vector<Normalizer> steps;
  if (options.clean_text) steps.emplace_back(cleaned_for_bert);
  if (options.handle_chinese_chars) steps.emplace_back(with_spaced_ideographs);
  if (options.strip_accents) {
    steps.push_back(normalize_to(NormalForm::D));
    steps.emplace_back([](std::string_view text) {
      return filtered(text, [](char32_t c) { return !is_nonspacing_mark(c); });
    });
  }
  if (options.lowercase) steps.emplace_back(lower_case);
  return normalize_in_sequence(std::move(steps));
}

}  // namespace tiny::models::tokenizers
