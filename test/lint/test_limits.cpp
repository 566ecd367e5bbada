// Sizes of files, functions and classes. Sources are formatted by clang-format, so that a body ends
// at the first line that closes a brace at the indent of its beginning. Those over a limit stand in
// docs/architecture.md with their size, which may only shrink.
#include <doctest/doctest.h>

#include <cstdlib>
#include <map>

#include "test/lint/sources.h"

using namespace tiny::lint;

namespace {

constexpr size_t kMaxFile = 600, kMaxFunction = 80, kMaxClass = 200, kMaxMembers = 8;

// "`Fuser` in `runtime/fusion/fuse.cpp`: 607 lines, 14 members" by what stands before the colon.
using Sizes = std::map<std::string, std::string>;

size_t indent_of(const std::string& line) {
  const size_t at = line.find_first_not_of(' ');
  return at == line.npos ? line.size() : at;
}

bool starts_with_any(std::string_view text, std::initializer_list<std::string_view> words) {
  return std::any_of(words.begin(), words.end(),
                     [&](std::string_view w) { return text.starts_with(w); });
}

// The line after `begin` that closes a body which opened at this indent.
size_t end_of_body(const std::vector<std::string>& lines, size_t begin, size_t indent) {
  size_t end = begin + 1;
  while (end < lines.size() && !(indent_of(lines[end]) == indent && lines[end][indent] == '}'))
    ++end;
  return end;
}

// The name of the class whose body opens in the line; empty for other lines.
std::string class_name(const std::string& line) {
  const std::string_view text = std::string_view(line).substr(indent_of(line));
  if (!text.starts_with("class ") || !text.ends_with("{")) return "";
  return std::string(text.substr(6, text.find_first_of(" :{", 6) - 6));
}

// Without comments and what stands between brackets.
std::string plain(const std::string& text) {
  std::string out;
  int depth = 0;
  for (size_t i = 0; i < text.size() && text.substr(i, 2) != "//"; ++i) {
    if (std::string_view("<({[").find(text[i]) != std::string_view::npos) ++depth;
    if (depth == 0 || (depth == 1 && text[i] == '(')) out += text[i];
    if (std::string_view(">)}]").find(text[i]) != std::string_view::npos) --depth;
  }
  return out;
}

// Data members that a declaration makes: 2 for "int a, b = 3;", 0 for a function.
size_t members_of(const std::string& declaration) {
  if (starts_with_any(declaration, {"using ", "static ", "friend ", "template ", "enum ", "struct ",
                                    "class ", "constexpr ", "explicit ", "virtual ", "operator "}))
    return 0;
  const std::string text = plain(declaration);
  if (text.substr(0, text.find('=')).find('(') != text.npos) return 0;
  if (text.find(" operator") != text.npos) return 0;
  return 1 + static_cast<size_t>(std::count(text.begin(), text.end(), ','));
}

size_t count_members(const std::vector<std::string>& lines, size_t begin, size_t end) {
  const size_t indent = indent_of(lines[begin]) + 2;
  size_t count = 0;
  std::string declaration;
  for (size_t i = begin + 1; i < end; ++i) {
    std::string line = lines[i].substr(0, lines[i].find("//"));
    line.erase(line.find_last_not_of(' ') + 1);
    if (indent_of(line) < indent || line.empty()) continue;  // "private:", comments
    declaration += line.substr(indent_of(line));
    if (line.ends_with("{")) i = end_of_body(lines, i, indent);  // of a function or a struct
    if (line.ends_with(";")) count += members_of(declaration);
    if (line.find_last_of(";{}") + 1 == line.size()) declaration.clear();
  }
  return count;
}

// The first line of the function, or of the block in one, that a line of a brace alone closes: the
// nearest one at its indent.
size_t begin_of_body(const std::vector<std::string>& lines, size_t end) {
  size_t begin = end;
  while (begin > 0 && (lines[begin - 1].empty() || lines[begin - 1][0] == '#' ||
                       indent_of(lines[begin - 1]) > indent_of(lines[end])))
    --begin;
  return begin - (begin > 0);
}

Sizes over_the_limits(const File& file) {
  Sizes found;
  const auto lines = lines_of(file.text);
  const std::string in = " in `" + file.path + "`";
  if (lines.size() > kMaxFile)
    found["`" + file.path + "`"] = std::to_string(lines.size()) + " lines";
  for (size_t i = 0; i < lines.size(); ++i) {
    if (!class_name(lines[i]).empty()) {
      const size_t end = end_of_body(lines, i, indent_of(lines[i])), size = end - i + 1;
      const size_t members = count_members(lines, i, end);
      if (size > kMaxClass || members > kMaxMembers)
        found["`" + class_name(lines[i]) + "`" + in] =
            std::to_string(size) + " lines, " + std::to_string(members) + " members";
    }
    if (lines[i].substr(indent_of(lines[i])) != "}") continue;
    const size_t begin = begin_of_body(lines, i), size = i - begin + 1;
    if (size > kMaxFunction)
      found["the function at line " + std::to_string(begin + 1) + in] =
          std::to_string(size) + " lines";
  }
  return found;
}

// The list of the document: "- `x` in `file`: 300 lines, 9 members".
Sizes allowed_sizes(const std::string& text) {
  Sizes out;
  for (const std::string& line : lines_of(text))
    if (const size_t colon = line.find("`: "); line.starts_with("- `") && colon != line.npos)
      out[line.substr(2, colon - 1)] = line.substr(colon + 3);
  return out;
}

// Whether a number of `now` is larger than the same one of `before`.
bool has_grown(const std::string& now, const std::string& before) {
  const auto second = [](const std::string& s) {
    const size_t comma = s.find(',');
    return comma == s.npos ? 0 : std::atoi(s.c_str() + comma + 1);
  };
  return std::atoi(now.c_str()) > std::atoi(before.c_str()) || second(now) > second(before);
}

Offences check_limits(const std::vector<File>& files, const Sizes& allowed) {
  Offences out;
  Sizes left = allowed;
  for (const File& file : files) {
    if (!is_product(file)) continue;
    for (const auto& [what, size] : over_the_limits(file)) {
      const auto before = left.find(what);
      if (before == left.end())
        out.push_back(what + ": " + size);
      else if (has_grown(size, before->second))
        out.push_back(what + ": " + size + " and not " + before->second);
      left.erase(what);
    }
  }
  for (const auto& [what, size] : left) out.push_back(what + " is within the limits now");
  return out;
}

}  // namespace

TEST_CASE("files, functions and classes are within their limits, or shrink") {
  const Sizes allowed =
      allowed_sizes(text_of(std::filesystem::path(TINY_ROOT) / "docs/architecture.md"));
  std::string all;
  for (const std::string& found : check_limits(repository(), allowed)) all += "- " + found + "\n";
  CHECK(all == "");
}

TEST_CASE("the limits find long files, functions and classes, and lists that are over") {
  std::string body;
  for (int i = 0; i < 79; ++i) body += "  f();\n";
  const File fits{"tiny/a.cpp", "void f(\n    int x) {\n" + body.substr(14) + "}\n"};
  const File function{"tiny/a.cpp", "void f(int x) {\n" + body + "}\n"};
  CHECK(check_limits({fits}, {}).empty());
  CHECK(check_limits({function}, {}) ==
        Offences{"the function at line 1 in `tiny/a.cpp`: 81 lines"});
  CHECK(check_limits({{"test/a.cpp", function.text}}, {}).empty());

  CHECK(check_limits({{"tiny/b.h", std::string(601, '\n')}}, {}) ==
        Offences{"`tiny/b.h`: 601 lines"});
  const std::string members =
      "class A : B {\n public:\n  void f() const { g(x, y); }\n  A(int a, int b)\n"
      "      : a_(a) {\n    int x;\n  }\n  void h(int a,\n         int b);\n\n private:\n"
      "  int a_, b_ = 2;  // two, not three; f(x)\n  std::map<int, int> c_;\n"
      "  std::function<void(int)> d_;\n  static int e_;\n  int f_ = g(1, 2), g_{1}, h_;\n"
      "  struct C {\n    int x, y, z;\n  };\n  std::vector<int>\n      i_;\n";
  CHECK(check_limits({{"tiny/c.h", members + "};\n"}}, {}).empty());
  const File nine{"tiny/c.h", members + "  int j_;\n};\n"};
  CHECK(check_limits({nine}, {}) == Offences{"`A` in `tiny/c.h`: 23 lines, 9 members"});
  CHECK(check_limits({nine}, {{"`A` in `tiny/c.h`", "23 lines, 9 members"}}).empty());
  CHECK(check_limits({nine}, {{"`A` in `tiny/c.h`", "23 lines, 8 members"}}).size() == 1);
  CHECK(check_limits({nine}, {{"`A` in `tiny/c.h`", "22 lines, 9 members"}}).size() == 1);
  CHECK(check_limits({fits}, {{"`A` in `tiny/c.h`", "23 lines, 9 members"}}) ==
        Offences{"`A` in `tiny/c.h` is within the limits now"});
}

TEST_CASE("the list of what is over its limit is read from text") {
  const Sizes sizes =
      allowed_sizes("x\n- `a.h` includes `b.h`\n- `A` in `c.h`: 300 lines, 9 members\n");
  CHECK(sizes == Sizes{{"`A` in `c.h`", "300 lines, 9 members"}});
}
