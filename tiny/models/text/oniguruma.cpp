#include "tiny/models/text/oniguruma.h"

#include <array>
#include <string_view>
#include <utility>
#include <vector>

#include "tiny/base/error.h"
#include "tiny/models/text/character_sets.h"
#include "tiny/models/text/unicode.h"

namespace tiny::models::tokenizers {
namespace {

class Translator {
 public:
  explicit Translator(const std::string& pattern) : pattern_(pattern) {}

  std::string run() {
    groups_.push_back({});
    while (!at_end()) {
      if (groups_.back().extended && skip_extended()) continue;
      if (!quantifier()) atom();
    }
    require(groups_.size() == 1, "a group is not closed");
    out_.append(groups_.back().closings, ')');
    return out_;
  }

 private:
  struct Group {
    size_t begin = 0;       // within out_
    size_t closings = 0;    // of the groups that isolated options became
    bool extended = false;  // (?x): white space does not count
  };
  // A bracket's content: what PCRE2 takes between brackets, and what needs expressions of their
  // own.
  struct ClassItems {
    std::string items;
    std::vector<std::string> others;

    std::string text() const {
      if (others.empty()) return "[" + items + "]";
      std::string all = items.empty() ? "" : "[" + items + "]";
      for (const std::string& other : others) all += (all.empty() ? "" : "|") + other;
      return "(?:" + all + ")";
    }
  };

  static constexpr int kMaxNesting = 100;

  bool at_end() const { return at_ >= pattern_.size(); }
  char peek(size_t ahead = 0) const {
    return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : '\0';
  }
  bool take(std::string_view text) {
    if (std::string_view(pattern_).substr(at_, text.size()) != text) return false;
    at_ += text.size();
    return true;
  }
  char32_t take_code_point() {
    require(!at_end(), "it ends too early");
    const CodePoint c = code_point_at(pattern_, at_);
    at_ += c.size;
    return c.value;
  }
  // The text up to an end mark, which is taken too.
  std::string take_until(char end) {
    const size_t found = pattern_.find(end, at_);
    require(found != std::string::npos, cat("there is no ", end));
    const std::string text = pattern_.substr(at_, found - at_);
    at_ = found + 1;
    return text;
  }
  void require(bool ok, std::string_view what) const {
    check(ok, "the regular expression ", pattern_, ": ", what, " (byte ", at_, ")");
  }

  bool skip_extended();
  bool quantifier();
  bool interval();
  void wrap_last() {
    out_.insert(last_, "(?:");
    out_ += ')';
  }
  void atom();
  void open_group();
  void options();
  void close_group();
  void escape();
  bool set_escape(char letter, CharacterSet& set);
  CharacterSet property(bool negated);
  char32_t hexadecimal(size_t most);
  char32_t character_escape(char letter);
  std::string character_class(int nesting);
  ClassItems class_operand(int nesting);
  void class_item(ClassItems& operand, int nesting);
  bool posix_bracket(CharacterSet& set);
  char32_t class_character();

  const std::string& pattern_;
  size_t at_ = 0;
  std::string out_;
  size_t last_ = 0;        // where the last atom begins in out_
  bool repeated_ = false;  // the last atom has its quantifier
  std::vector<Group> groups_;
};

std::string hexadecimal_text(char32_t c) { return formatted("\\x{%x}", static_cast<unsigned>(c)); }

// A character as it stands for itself within and outside of brackets.
std::string literal_text(char32_t c) {
  if (c < 0x80 && !is_letter(static_cast<char>(c)) && !is_digit(static_cast<char>(c)))
    return hexadecimal_text(c);
  std::string text;
  append_utf8(text, c);
  return text;
}

void add_set(const CharacterSet& set, std::string& items, std::vector<std::string>& others) {
  if (set.negated) {
    others.push_back(set.text());
  } else {
    items += set.items;
  }
}

bool Translator::skip_extended() {
  if (peek() == '#') {
    while (!at_end() && peek() != '\n') ++at_;
    return true;
  }
  if (peek() != ' ' && (peek() < '\t' || peek() > '\r')) return false;
  ++at_;
  return true;
}

// {n}, {n,}, {n,m}, {,m}; anything else in braces is text.
bool Translator::interval() {
  size_t end = at_ + 1;
  const auto digits = [&] {
    const size_t begin = end;
    while (end < pattern_.size() && is_digit(pattern_[end])) ++end;
    return pattern_.substr(begin, end - begin);
  };
  const std::string low = digits();
  const bool comma = end < pattern_.size() && pattern_[end] == ',';
  if (comma) ++end;
  const std::string high = comma ? digits() : low;
  if (end >= pattern_.size() || pattern_[end] != '}' || (low.empty() && high.empty())) return false;
  at_ = end + 1;
  out_ += "{" + (low.empty() ? "0" : low) + (comma ? "," + high : "") + "}";
  // {n}? is optional, not lazy; {n,m}+ repeats: a next quantifier, which wraps this one.
  if (comma && take("?")) out_ += '?';
  return true;
}

bool Translator::quantifier() {
  const char c = peek();
  if (c != '*' && c != '+' && c != '?' && c != '{') return false;
  if (last_ == out_.size()) {
    require(c == '{', "a quantifier follows nothing");
    return false;
  }
  if (repeated_) wrap_last();
  if (c == '{') {
    repeated_ = interval();
    return repeated_;
  }
  out_ += c;
  ++at_;
  if (peek() == '?' || peek() == '+') out_ += pattern_[at_++];
  repeated_ = true;
  return true;
}

void Translator::atom() {
  last_ = out_.size();
  repeated_ = false;
  switch (peek()) {
    case '\\': ++at_; return escape();
    case '[':
      ++at_;
      out_ += character_class(0);
      return;
    case '(': ++at_; return open_group();
    case ')': ++at_; return close_group();
    case '|':
      ++at_;
      out_ += '|';
      last_ = out_.size();
      return;
    case '.':
    case '^':
    case '$': out_ += pattern_[at_++]; return;
    default: out_ += literal_text(take_code_point());
  }
}

void Translator::open_group() {
  Group group{out_.size(), 0, groups_.back().extended};
  if (take("?#")) {
    take_until(')');
    return;
  }
  require(peek() != '*', "callouts are not supported");
  if (peek() == '?') {
    for (const std::string_view known : {"?:", "?=", "?!", "?>", "?<=", "?<!"}) {
      if (!take(known)) continue;
      out_ += "(" + std::string(known);
      groups_.push_back(group);
      last_ = out_.size();
      return;
    }
    if (take("?<") || take("?'")) {
      const std::string name = take_until(pattern_[at_ - 1] == '<' ? '>' : '\'');
      out_ += "(?<" + name + ">";
    } else {
      return options();
    }
  } else {
    out_ += '(';
  }
  groups_.push_back(group);
  last_ = out_.size();
}

// (?imx-imx) and (?imx-imx:...). The former holds to the end of the group that it stands in, over
// all alternatives that follow: a(?i)b|c is a(?i:b|c).
void Translator::options() {
  ++at_;
  std::string on, off;
  bool extended = groups_.back().extended, minus = false;
  for (; peek() != ')' && peek() != ':'; ++at_) {
    const char c = peek();
    require(c != '\0' && std::string_view("imx-").find(c) != std::string_view::npos,
            "a group of this kind is not supported");
    if (c == '-') minus = true;
    if (c == 'x') extended = !minus;
    if (c == 'i' || c == 'm') (minus ? off : on) += c == 'm' ? 's' : c;
  }
  const bool isolated = pattern_[at_++] == ')';
  const size_t begin = out_.size();
  out_ += "(?" + on + (off.empty() ? "" : "-" + off) + ":";
  last_ = out_.size();
  if (isolated) {
    ++groups_.back().closings;
    groups_.back().extended = extended;
  } else {
    groups_.push_back({begin, 0, extended});
  }
}

void Translator::close_group() {
  require(groups_.size() > 1, "a group is closed that was not opened");
  out_.append(groups_.back().closings + 1, ')');
  last_ = groups_.back().begin;
  groups_.pop_back();
}

char32_t Translator::hexadecimal(size_t most) {
  const bool braces = take("{");
  char32_t value = 0;
  size_t digits = 0;
  for (; digits < (braces ? 8 : most); ++digits, ++at_) {
    const char c = to_lower(peek());
    if (!is_digit(c) && !('a' <= c && c <= 'f')) break;
    value = value * 16 + static_cast<char32_t>(is_digit(c) ? c - '0' : c - 'a' + 10);
  }
  require(digits > 0 && (!braces || take("}")), "a hexadecimal number is damaged");
  require(value <= 0x10ffff && (value < 0xd800 || value > 0xdfff), "this is no code point");
  return value;
}

// The character that an escape stands for, where it stands for one.
char32_t Translator::character_escape(char letter) {
  static constexpr std::array<std::pair<char, char32_t>, 7> kControls = {
      {{'t', 9}, {'n', 10}, {'v', 11}, {'f', 12}, {'r', 13}, {'a', 7}, {'e', 27}}};
  for (const auto& [known, value] : kControls)
    if (letter == known) return value;
  if (letter == 'x') {
    const bool braces = peek() == '{';
    const char32_t value = hexadecimal(2);
    require(braces || value < 0x80, "bytes of a character are not supported");
    return value;
  }
  if (letter == 'u') return hexadecimal(4);
  if (letter == '0') {
    char32_t value = 0;
    for (int i = 0; i < 2 && peek() >= '0' && peek() <= '7'; ++i, ++at_)
      value = value * 8 + static_cast<char32_t>(peek() - '0');
    return value;
  }
  require(std::string_view("cCMyY").find(letter) == std::string_view::npos,
          cat("\\", letter, " is not supported"));
  --at_;
  return take_code_point();
}

CharacterSet Translator::property(bool negated) {
  require(take("{"), "\\p needs a name in braces");
  std::string name = take_until('}');
  if (name.starts_with("^")) {
    negated = !negated;
    name.erase(0, 1);
  }
  return {property_items(name), negated};
}

// \s, \d, \w, \h, \p{name} and their complements. False for other letters.
bool Translator::set_escape(char letter, CharacterSet& set) {
  const bool negated = 'A' <= letter && letter <= 'Z';
  switch (to_lower(letter)) {
    case 's': set = {space_items(), negated}; return true;
    case 'd': set = {"\\p{Nd}", negated}; return true;
    case 'w': set = {word_items(), negated}; return true;
    case 'h': set = {"0-9a-fA-F", negated}; return true;
    case 'p': set = property(negated); return true;
    default: return false;
  }
}

void Translator::escape() {
  require(!at_end(), "it ends with a backslash");
  const char letter = pattern_[at_++];
  CharacterSet set;
  const std::string word = "[" + word_items_alone() + "]";
  if (letter == 'w' || letter == 'W') {
    out_ += CharacterSet{word_items_alone(), letter == 'W'}.text();
  } else if (set_escape(letter, set)) {
    out_ += set.text();
  } else if (letter == 'b' || letter == 'B') {
    out_ += cat("(?:(?<=", word, ")(?", letter == 'b' ? "!" : "=", word, ")|(?<!", word, ")(?",
                letter == 'b' ? "=" : "!", word, "))");
  } else if (letter == 'N' || letter == 'O') {
    out_ += letter == 'N' ? "[^\\n]" : "(?s:.)";
  } else if (letter == 'R') {
    out_ += "(?>\\r\\n|[\\x0a-\\x0d\\x85\\x{2028}\\x{2029}])";
  } else if (letter == 'k' || letter == 'g') {
    require(take("<"), "a name in <> is missing");
    out_ += cat("\\", letter, "<", take_until('>'), ">");
  } else if (std::string_view("AGKXzZ123456789").find(letter) != std::string_view::npos) {
    out_ += cat("\\", letter);
    while (is_digit(letter) && is_digit(peek())) out_ += pattern_[at_++];
  } else {
    out_ += literal_text(character_escape(letter));
  }
}

bool Translator::posix_bracket(CharacterSet& set) {
  if (peek() != ':') return false;
  const size_t end = pattern_.find(":]", at_ + 1);
  if (end == std::string::npos) return false;
  const bool negated = peek(1) == '^';
  const size_t begin = at_ + 1 + negated;
  set = {bracket_items(std::string_view(pattern_).substr(begin, end - begin)), negated};
  if (set.items.empty()) return false;
  at_ = end + 2;
  return true;
}

char32_t Translator::class_character() {
  if (!take("\\")) return take_code_point();
  require(!at_end(), "it ends with a backslash");
  const char letter = pattern_[at_++];
  return letter == 'b' ? U'\b' : character_escape(letter);
}

void Translator::class_item(ClassItems& operand, int nesting) {
  CharacterSet set;
  if (peek() == '[') {
    ++at_;
    if (posix_bracket(set)) return add_set(set, operand.items, operand.others);
    operand.others.push_back(character_class(nesting + 1));
    return;
  }
  if (peek() == '\\') {
    const size_t before = at_;
    at_ += 2;
    if (before + 1 < pattern_.size() && set_escape(pattern_[before + 1], set))
      return add_set(set, operand.items, operand.others);
    at_ = before;
  }
  const char32_t first = class_character();
  operand.items += literal_text(first);
  // A range, unless the hyphen is the last of the class or stands before a set.
  if (peek() != '-' || peek(1) == ']' || peek(1) == '[' || peek(1) == '\0') return;
  if (peek(1) == '\\' && std::string_view("sSdDwWhHpP").find(peek(2)) != std::string_view::npos)
    return;
  ++at_;
  const char32_t last = class_character();
  require(first <= last, "a range ends before it begins");
  operand.items += "-" + literal_text(last);
}

Translator::ClassItems Translator::class_operand(int nesting) {
  ClassItems operand;
  const size_t begin = at_;
  while (true) {
    require(!at_end(), "a class is not closed");
    if (peek() == '&' && peek(1) == '&') break;
    if (peek() == ']' && at_ > begin) break;
    class_item(operand, nesting);
  }
  require(!operand.items.empty() || !operand.others.empty(), "a class is empty");
  return operand;
}

// After its opening bracket.
std::string Translator::character_class(int nesting) {
  require(nesting < kMaxNesting, "classes are nested too deep");
  const bool negated = take("^");
  const ClassItems first = class_operand(nesting);
  const bool simple = peek() == ']' && first.others.empty();
  std::string text =
      simple ? "[" + std::string(negated ? "^" : "") + first.items + "]" : first.text();
  while (take("&&")) text = "(?:(?=" + text + ")" + class_operand(nesting).text() + ")";
  require(take("]"), "a class is not closed");
  return negated && !simple ? "(?:(?!" + text + ")(?s:.))" : text;
}

}  // namespace

std::string to_pcre2(const std::string& pattern) { return Translator(pattern).run(); }

}  // namespace tiny::models::tokenizers
