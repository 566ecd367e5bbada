#include "tiny/models/text/character_sets.h"

#include <algorithm>
#include <utility>

#include "tiny/base/error.h"

#if __has_include(<pcre2.h>)
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#endif

namespace tiny::models::tokenizers {
namespace {

// PCRE2 10.40 knows Alphabetic, and \p{Han} is what has the script among its Script_Extensions;
// before that it is the script alone, as it is to Oniguruma.
#if PCRE2_MINOR >= 40
constexpr std::string_view kAlphabetic = "\\p{Alphabetic}", kScript = "sc:";
#else
constexpr std::string_view kAlphabetic =
    "\\p{L}\\p{Mc}\\p{Nl}\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}"
    "\\x{1f170}-\\x{1f189}";
constexpr std::string_view kScript = "";
#endif
constexpr std::string_view kSpace =
    "\\x09-\\x0d\\x20\\x85\\xa0\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}"
    "\\x{3000}";
constexpr std::string_view kUpper =
    "\\p{Lu}\\x{2160}-\\x{216f}\\x{24b6}-\\x{24cf}\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}"
    "\\x{1f170}-\\x{1f189}";
constexpr std::string_view kLower =
    "\\p{Ll}\\xaa\\xba\\x{2b0}-\\x{2b8}\\x{2c0}\\x{2c1}\\x{2e0}-\\x{2e4}\\x{345}\\x{37a}"
    "\\x{1d2c}-\\x{1d6a}\\x{1d78}\\x{1d9b}-\\x{1dbf}\\x{2071}\\x{207f}\\x{2090}-\\x{209c}"
    "\\x{2170}-\\x{217f}\\x{24d0}-\\x{24e9}\\x{2c7c}\\x{2c7d}\\x{a69c}\\x{a69d}\\x{a770}\\x{a7f8}"
    "\\x{a7f9}\\x{ab5c}-\\x{ab5f}";
constexpr std::string_view kGraph = "\\p{L}\\p{M}\\p{N}\\p{P}\\p{S}\\p{Cf}\\p{Co}";

using Name = std::pair<std::string_view, std::string_view>;

// Both for \p{name} and [:name:].
constexpr Name kSets[] = {
    {"alpha", kAlphabetic},  {"ascii", "\\x00-\\x7f"}, {"blank", "\\p{Zs}\\x09"},
    {"cntrl", "\\p{Cc}"},    {"digit", "\\p{Nd}"},     {"graph", kGraph},
    {"lower", kLower},       {"space", kSpace},        {"upper", kUpper},
    {"xdigit", "0-9a-fA-F"},
};

// For \p{name} alone: names of two spellings, and what PCRE2 knows that is no script.
constexpr Name kProperties[] = {
    {"alphabetic", kAlphabetic},
    {"any", "\\x{0}-\\x{10ffff}"},
    {"lowercase", kLower},
    {"punct", "\\p{P}"},
    {"uppercase", kUpper},
    {"whitespace", kSpace},
    {"emoji", "\\p{Emoji}"},
    {"emojimodifier", "\\p{Emoji_Modifier}"},
    {"emojimodifierbase", "\\p{Emoji_Modifier_Base}"},
    {"emojipresentation", "\\p{Emoji_Presentation}"},
    {"extendedpictographic", "\\p{Extended_Pictographic}"},
    {"ideographic", "\\p{Ideographic}"},
    {"math", "\\p{Math}"},
};

// General categories, of which PCRE2 knows the short names alone.
constexpr Name kCategories[] = {
    {"letter", "L"},
    {"casedletter", "L&"},
    {"uppercaseletter", "Lu"},
    {"lowercaseletter", "Ll"},
    {"titlecaseletter", "Lt"},
    {"modifierletter", "Lm"},
    {"otherletter", "Lo"},
    {"mark", "M"},
    {"nonspacingmark", "Mn"},
    {"spacingmark", "Mc"},
    {"enclosingmark", "Me"},
    {"number", "N"},
    {"decimalnumber", "Nd"},
    {"letternumber", "Nl"},
    {"othernumber", "No"},
    {"punctuation", "P"},
    {"connectorpunctuation", "Pc"},
    {"dashpunctuation", "Pd"},
    {"openpunctuation", "Ps"},
    {"closepunctuation", "Pe"},
    {"initialpunctuation", "Pi"},
    {"finalpunctuation", "Pf"},
    {"otherpunctuation", "Po"},
    {"symbol", "S"},
    {"mathsymbol", "Sm"},
    {"currencysymbol", "Sc"},
    {"modifiersymbol", "Sk"},
    {"othersymbol", "So"},
    {"separator", "Z"},
    {"spaceseparator", "Zs"},
    {"lineseparator", "Zl"},
    {"paragraphseparator", "Zp"},
    {"other", "C"},
    {"control", "Cc"},
    {"format", "Cf"},
    {"unassigned", "Cn"},
    {"privateuse", "Co"},
};

template <size_t N> std::string_view find(const Name (&names)[N], std::string_view name) {
  for (const auto& [known, value] : names)
    if (known == name) return value;
  return {};
}

std::string_view find_category(std::string_view name) {
  const auto is_short = [&](std::string_view category) {
    return std::equal(name.begin(), name.end(), category.begin(), category.end(),
                      [](char a, char b) { return a == to_lower(b); });
  };
  for (const auto& [known, category] : kCategories)
    if (known == name || is_short(category)) return category;
  return {};
}

// The sets that are both for properties and brackets.
std::string shared_items(std::string_view name) {
  if (name == "alnum") return cat(kAlphabetic, "\\p{Nd}");
  if (name == "print") return cat(kGraph, "\\p{Zs}");
  if (name == "word") return word_items();
  return std::string(find(kSets, name));
}

}  // namespace

std::string space_items() { return std::string(kSpace); }
std::string word_items() { return cat(kAlphabetic, "\\p{M}\\p{Nd}\\p{Pc}"); }
std::string word_items_alone() { return word_items() + "\\xb2\\xb3\\xb9\\xbc-\\xbe"; }

std::string bracket_items(std::string_view name) {
  return name == "punct" ? "\\p{P}\\p{S}" : shared_items(name);
}

std::string property_items(std::string_view name) {
  std::string plain;  // names match whatever their case, hyphens and underscores
  for (const char c : name)
    if (c != ' ' && c != '_' && c != '-') plain += to_lower(c);
  std::string items = shared_items(plain);
  if (items.empty()) items = find(kProperties, plain);
  if (!items.empty()) return items;
  const std::string_view category = find_category(plain);
  return category.empty() ? cat("\\p{", kScript, name, "}") : cat("\\p{", category, "}");
}

}  // namespace tiny::models::tokenizers
