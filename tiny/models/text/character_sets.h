// The sets of characters that Oniguruma has names for, as PCRE2 writes them.
#pragma once
#include <string>
#include <string_view>

namespace tiny::models::tokenizers {

// What stands between brackets, or all other characters.
struct CharacterSet {
  std::string items;
  bool negated = false;

  std::string text() const { return (negated ? "[^" : "[") + items + "]"; }
};

std::string space_items();       // \s: White_Space, where PCRE2's own has U+180E too
std::string word_items();        // \w
std::string word_items_alone();  // \w outside of brackets: digits and fractions of Latin-1 too

// \p{name}. A name that Oniguruma and PCRE2 do not share goes to PCRE2 as it is.
std::string property_items(std::string_view name);
// [:name:]. Empty for a name that there is not.
std::string bracket_items(std::string_view name);

}  // namespace tiny::models::tokenizers
