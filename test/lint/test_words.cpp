// Words that have a better one: docs/glossary.md has a table of them, and no source or page may use
// its left column. Figures behind constants: a comment that names a row of docs/measurements.md
// names one that is there. The rules are functions of a text, so that tests can show that they
// fail.
#include <doctest/doctest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "test/lint/sources.h"

using namespace tiny::lint;

namespace {

namespace fs = std::filesystem;

const fs::path kRoot = TINY_ROOT;

std::string lower_case(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

// The cells of the first column of the table whose head begins with `head`.
std::vector<std::string> first_column(const std::string& page, const std::string& head) {
  std::vector<std::string> cells;
  bool inside = false;
  for (const std::string& line : lines_of(page)) {
    if (inside && line.starts_with("| ")) cells.push_back(line.substr(2, line.find(" |") - 2));
    if (!line.starts_with("|")) inside = false;
    if (line.starts_with("| " + head + " |")) inside = true;
  }
  return cells;
}

// In lower case. One that ends in `*` stands for all words that begin with it.
std::vector<std::string> words_to_avoid(const std::string& glossary) {
  std::vector<std::string> words;
  for (const std::string& cell : first_column(glossary, "do not write"))
    for (size_t begin = 0, end; begin < cell.size(); begin = end + 2) {
      end = std::min(cell.find(", ", begin), cell.size());
      words.push_back(lower_case(cell.substr(begin, end - begin)));
    }
  return words;
}

// The text with its line breaks, and the comment signs behind them, as so many blanks: phrases run
// on over the ends of lines, and offsets stay.
std::string joined(std::string text) {
  for (size_t at = text.find('\n'); at != text.npos; at = text.find('\n', at)) {
    size_t end = text.find_first_not_of(' ', at + 1);
    if (end != text.npos && text.compare(end, 2, "//") == 0) end += 2;
    end = std::min(end, text.size());
    std::fill(text.begin() + static_cast<ptrdiff_t>(at), text.begin() + static_cast<ptrdiff_t>(end),
              ' ');
  }
  return text;
}

// As above, and runs of blanks are one: `lines` says on which line each character stood.
std::string plain(const std::string& text, std::vector<size_t>& lines) {
  const std::string flat = joined(text);
  std::string out;
  size_t line = 1;
  for (size_t i = 0; i < flat.size(); ++i) {
    if (flat[i] != ' ' || (!out.empty() && out.back() != ' ')) {
      out += flat[i];
      lines.push_back(line);
    }
    line += text[i] == '\n';
  }
  return lower_case(out);
}

Offences check_words(const File& file, const std::vector<std::string>& words) {
  Offences found;
  std::vector<size_t> lines;
  const std::string text = plain(file.text, lines);
  for (const std::string& word : words) {
    const bool begins = word.ends_with('*');
    const std::string form = begins ? word.substr(0, word.size() - 1) : word;
    for (size_t at = text.find(form); at != text.npos; at = text.find(form, at + 1)) {
      const size_t end = at + form.size();
      const bool is_inside = at > 0 && is_word(text[at - 1]);
      if (!is_inside && (begins || end == text.size() || !is_word(text[end])))
        found.push_back(file.path + ":" + std::to_string(lines[at]) + ": \"" + word +
                        "\": docs/glossary.md has another word");
    }
  }
  return found;
}

// Comments that say "(measurements.md: key)" of a key that is no row there.
Offences check_keys(const File& file, const std::vector<std::string>& rows) {
  std::set<std::string> keys;
  for (std::string row : rows) {
    std::erase(row, '`');
    keys.insert(lower_case(row));
  }
  Offences found;
  std::vector<size_t> lines;
  const std::string text = plain(file.text, lines), mark = "(measurements.md: ";
  for (size_t at = text.find(mark); at != text.npos; at = text.find(mark, at + 1)) {
    const size_t begin = at + mark.size();
    const std::string key = text.substr(begin, text.find(')', begin) - begin);
    if (!keys.count(key))
      found.push_back(file.path + ":" + std::to_string(lines[at]) +
                      ": docs/measurements.md has no " + "row " + key);
  }
  return found;
}

// All sources, and the pages but the one that lists the words and the one that has the figures.
std::vector<File> texts() {
  std::vector<File> files = repository();
  std::erase_if(files, [](const File& f) { return f.path == "test/lint/test_words.cpp"; });
  files.push_back({"README.md", text_of(kRoot / "README.md")});
  for (const auto& entry : fs::directory_iterator(kRoot / "docs")) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(".md") && name != "glossary.md" && name != "measurements.md")
      files.push_back({"docs/" + name, text_of(entry.path())});
  }
  return files;
}

std::string report(Offences found) {
  std::sort(found.begin(), found.end());
  std::string text;
  for (const std::string& f : found) text += f + "\n";
  return text;
}

}  // namespace

TEST_CASE("the sources and pages use the glossary's words") {
  const auto words = words_to_avoid(text_of(kRoot / "docs/glossary.md"));
  REQUIRE(words.size() > 20);
  Offences all;
  for (const File& file : texts())
    for (std::string& found : check_words(file, words)) all.push_back(std::move(found));
  CHECK_MESSAGE(all.empty(), report(all));
}

TEST_CASE("measurements that comments name are there") {
  const auto rows = first_column(text_of(kRoot / "docs/measurements.md"), "key");
  REQUIRE(rows.size() > 20);
  Offences all;
  for (const File& file : texts())
    for (std::string& found : check_keys(file, rows)) all.push_back(std::move(found));
  CHECK_MESSAGE(all.empty(), report(all));
}

TEST_CASE("words to avoid are found as whole words, over the ends of lines") {
  const std::string page =
      "| do not write | write |\n|---|---|\n| old Word, gone | new |\n| kOld* | `kNew` |\n\n| x | "
      "y |";
  const auto words = words_to_avoid(page);
  CHECK(words == std::vector<std::string>{"old word", "gone", "kold*"});
  const auto lines = [&](const std::string& text) {
    return check_words({"f", text}, words).size();
  };
  CHECK(lines("// An old\n  // word.\nint kOldest = 0;\n") == 2);
  CHECK(lines("bold words, goner, ungone, old_word, unkOld") == 0);
  CHECK(check_words({"f", "x\n\n  // it is gone"}, words) ==
        Offences{"f:3: \"gone\": docs/glossary.md has another word"});
}

TEST_CASE("a measurement that is no row is found") {
  const std::vector<std::string> rows{"`stored`", "rows of tiles"};
  CHECK(check_keys({"f", "// So (measurements.md:\n// Rows of tiles)."}, rows).empty());
  CHECK(check_keys({"f", "// So (measurements.md: other)."}, rows) ==
        Offences{"f:1: docs/measurements.md has no row other"});
}
