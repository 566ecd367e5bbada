// What README.md and the pages in docs/ must keep to: links lead somewhere, files, make targets,
// programs and variables that they name exist, and each page opens with what its reader can do
// afterwards. The rules are functions of a page's text, so that tests can show that each of them
// fails. test/golden/test_readme.cpp checks what is generated, test/train/test_quickstart.cpp the
// programs.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tiny/base/env.h"

namespace {

namespace fs = std::filesystem;

using Offences = std::vector<std::string>;

const fs::path kRoot = TINY_ROOT;
constexpr size_t kMaxReadmeLines = 150;

std::string read(const fs::path& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

// A page's lines outside of code blocks, and the commands in its console blocks: what follows "$ ".
struct Page {
  std::string path;  // from the repository's root, "docs/kernels.md"
  std::vector<std::string> prose, commands;
  size_t lines = 0;
};

Page page_of(const std::string& path, const std::string& text) {
  Page page{path, {}, {}, 0};
  std::istringstream in(text);
  bool is_code = false, is_console = false;
  for (std::string line; std::getline(in, line); ++page.lines) {
    const size_t begin = std::min(line.find_first_not_of(' '), line.size());
    if (line.compare(begin, 3, "```") == 0) {
      is_code = !is_code;
      is_console = is_code && line.compare(begin, std::string::npos, "```console") == 0;
    } else if (!is_code) {
      page.prose.push_back(line);
    } else if (is_console && line.starts_with("$ ")) {
      page.commands.push_back(line.substr(2));
    }
  }
  return page;
}

std::vector<Page> pages() {
  std::vector<Page> out{page_of("README.md", read(kRoot / "README.md"))};
  for (const auto& entry : fs::directory_iterator(kRoot / "docs"))
    if (entry.path().extension() == ".md")
      out.push_back(page_of("docs/" + entry.path().filename().string(), read(entry.path())));
  return out;
}

std::vector<std::string> matches(const std::string& text, const std::string& form) {
  const std::regex regex(form);
  std::vector<std::string> out;
  for (std::sregex_iterator m(text.begin(), text.end(), regex), end; m != end; ++m)
    out.push_back((*m)[1]);
  return out;
}

// The anchors of a page's headings, as GitHub makes them: lower case, spaces as hyphens, no other
// punctuation than "-" and "_".
std::set<std::string> anchors_of(const Page& page) {
  std::set<std::string> out;
  for (const std::string& line : page.prose) {
    const size_t level = line.find_first_not_of('#');
    if (level == 0 || level == line.npos || line[level] != ' ') continue;
    std::string anchor;
    for (const char c : line.substr(level + 1)) {
      const auto u = static_cast<unsigned char>(c);
      if (u >= 0x80 || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_')
        anchor += c;
      else if (c >= 'A' && c <= 'Z')
        anchor += static_cast<char>(c - 'A' + 'a');
      else if (c == ' ')
        anchor += '-';
    }
    std::string unique = anchor;
    for (int i = 1; !out.insert(unique).second; ++i) unique = anchor + "-" + std::to_string(i);
  }
  return out;
}

// Links to other sites are left alone.
Offences check_links(const Page& page, const std::vector<Page>& all) {
  Offences found;
  for (const std::string& line : page.prose)
    for (const std::string& link : matches(line, "\\]\\(([^)\\s]*)\\)")) {
      if (link.starts_with("https://") || link.starts_with("http://")) continue;
      const std::string file = link.substr(0, link.find('#'));
      const std::string anchor = file.size() < link.size() ? link.substr(file.size() + 1) : "";
      const fs::path target = file.empty()
                                  ? fs::path(page.path)
                                  : (fs::path(page.path).parent_path() / file).lexically_normal();
      const auto there = std::find_if(all.begin(), all.end(),
                                      [&](const Page& p) { return target == fs::path(p.path); });
      if (there == all.end() && !fs::exists(kRoot / target))
        found.push_back(page.path + ": no file " + link);
      else if (!anchor.empty() && (there == all.end() || !anchors_of(*there).count(anchor)))
        found.push_back(page.path + ": no heading " + link);
    }
  return found;
}

// Whether a word that begins with one of the repository's folders is a file or folder there.
bool names_nothing(const std::string& word) {
  static const std::regex path(
      "(tiny|codegen|runtime|devices|test|extra|examples|docs)/[A-Za-z0-9_./-]+");
  return std::regex_match(word, path) && !fs::exists(kRoot / word);
}

Offences check_paths(const Page& page) {
  Offences found;
  for (const std::string& line : page.prose)
    for (const std::string& code : matches(line, "`([^`]+)`"))
      if (names_nothing(code)) found.push_back(page.path + ": no file " + code);
  return found;
}

// Targets and variables of the Makefile.
struct Makefile {
  explicit Makefile(const std::string& text) {
    for (const std::string& list : matches(text, "\n\\.PHONY: ((?:[^\\n\\\\]|\\\\\n)*)"))
      for (const std::string& name : matches(list, "([a-z0-9-]+)")) targets.insert(name);
    for (const std::string& name : matches(text, "\\$[({]([A-Z0-9_]+)[)}]")) variables.insert(name);
    for (const std::string& list : matches(text, "\nFUZZ_ARGUMENTS := ([^\\n]*)"))
      for (const std::string& name : matches(list, "([A-Z]+)")) variables.insert(name);
  }
  std::set<std::string> targets, variables;
};

const Makefile& makefile() {
  static const Makefile made(read(kRoot / "Makefile"));
  return made;
}

// Where the source of build/release/... is.
bool has_source(const std::string& program) {
  std::string name = program.substr(std::string("build/release/").size());
  if (name == "libtiny.a" || name.starts_with("kernelbench")) return true;
  if (name.starts_with("examples/")) return fs::exists(kRoot / (name + ".cpp"));
  if (!name.starts_with("bench/")) std::replace(name.begin(), name.end(), '-', '_');
  return fs::exists(kRoot / "extra" / (name + ".cpp"));
}

bool is_variable(const std::string& name) {
  const auto known = tiny::env_table_markdown();
  return known.find("| `" + name + "` |") != std::string::npos || makefile().variables.count(name);
}

// What one command names that does not exist; empty where there is nothing.
std::string missing_of(const std::string& command) {
  static const std::regex setting("([A-Z][A-Z0-9_]*)=.*");
  bool is_make = false, is_first = true;
  // Words, with quoted parts of them.
  for (const std::string& word : matches(command, "((?:[^\\s\"]|\"[^\"]*\")+)")) {
    std::smatch m;
    if (std::regex_match(word, m, setting)) {
      if (!is_variable(m[1])) return "no variable " + m[1].str();
      continue;
    }
    if (names_nothing(word)) return "no file " + word;
    if (word.starts_with("build/release/") && !has_source(word)) return "no program " + word;
    if (is_make && word[0] != '-' && !word.starts_with("build/") && !makefile().targets.count(word))
      return "no target " + word;
    if (is_first) is_make = word == "make";
    is_first = false;
  }
  return "";
}

Offences check_commands(const Page& page) {
  Offences found;
  std::vector<std::string> commands = page.commands;
  for (const std::string& line : page.prose)
    for (const std::string& code : matches(line, "`([^`]+)`"))
      if (code.starts_with("make ") || code.starts_with("build/release/")) commands.push_back(code);
  for (const std::string& command : commands)
    if (const std::string missing = missing_of(command); !missing.empty())
      found.push_back(page.path + ": " + missing + ": " + command);
  return found;
}

Offences check_opening(const Page& page) {
  if (page.path == "README.md") return {};
  const auto& p = page.prose;
  if (p.size() > 2 && p[0].starts_with("# ") && p[1].empty() && p[2].starts_with("After this page"))
    return {};
  return {page.path + ": does not open with a title and 'After this page'"};
}

std::string joined(const Offences& offences) {
  std::string text;
  for (const std::string& found : offences) text += found + "\n";
  return text;
}

std::string report(Offences (*rule)(const Page&)) {
  std::string text;
  for (const Page& page : pages()) text += joined(rule(page));
  return text;
}

}  // namespace

TEST_CASE("links of the pages lead to files and headings") {
  const auto all = pages();
  CHECK(all.size() > 10);
  for (const Page& page : all) CHECK(joined(check_links(page, all)) == "");
}

TEST_CASE("files that the pages name exist") { CHECK(report(check_paths) == ""); }

TEST_CASE("targets, programs and variables in the pages' commands exist") {
  CHECK(report(check_commands) == "");
}

TEST_CASE("every page opens with what its reader can do afterwards") {
  CHECK(report(check_opening) == "");
}

TEST_CASE("the README is short and links to every page") {
  const auto all = pages();
  const Page& readme = all[0];
  CHECK(readme.lines <= kMaxReadmeLines);
  std::string text;
  for (const std::string& line : readme.prose) text += line + "\n";
  for (const Page& page : all)
    if (page.path != "README.md")
      CHECK_MESSAGE(text.find("](" + page.path) != std::string::npos, "no link to ", page.path);
}

TEST_CASE("the link rule finds missing files and headings") {
  const Page here = page_of("docs/a.md",
                            "# One, `two` & three\n## Same\n## Same\n[x](b.md#b-1) [y](#same-1) "
                            "[z](../Makefile)\n[q](#one-two--three) [w](https://a.b/c.md)\n");
  const Page other = page_of("docs/b.md", "# B 1\n```text\n# code\n[x](nowhere)\n```\n");
  CHECK(check_links(here, {here, other}).empty());
  CHECK(check_links(other, {other}).empty());
  const Page wrong = page_of(
      "docs/a.md", "[a](none.md) [b](b.md#code) [c](#c) [d](../Makefile#d) [e](docs/b.md)\n");
  CHECK(check_links(wrong, {wrong, other}) ==
        Offences{"docs/a.md: no file none.md", "docs/a.md: no heading b.md#code",
                 "docs/a.md: no heading #c", "docs/a.md: no heading ../Makefile#d",
                 "docs/a.md: no file docs/b.md"});
}

TEST_CASE("the path rule finds files that are gone") {
  CHECK(check_paths(page_of("docs/a.md", "`tiny/tiny.h` `codegen/render` `tiny/*` `a/b`\n")) ==
        Offences{});
  CHECK(check_paths(page_of("docs/a.md", "see `tiny/gone.h`\n")) ==
        Offences{"docs/a.md: no file tiny/gone.h"});
}

TEST_CASE("the command rule finds targets, programs and variables that do not exist") {
  const auto found = [](const std::string& command) {
    return check_commands(page_of("p", "```console\n$ " + command + "\noutput\n```\n"));
  };
  CHECK(found("BEAM=2 make mnist ARGS=\"--steps 1 --none\"").empty());
  CHECK(found("make fuzz N=1000 SETTING=\"FUSE=0 OPT=0\"").empty());
  CHECK(found("mpirun -n 2 build/release/examples/mnist --ranks").empty());
  CHECK(found("build/release/beam-cache list").empty());
  CHECK(found("make mnits") == Offences{"p: no target mnits: make mnits"});
  CHECK(found("BEAN=2 make mnist").size() == 1);
  CHECK(found("make mnist ARG=1").size() == 1);
  CHECK(found("build/release/bench/none 1").size() == 1);
  CHECK(found("python3 extra/none.py").size() == 1);
  CHECK(check_commands(page_of("p", "run `make nothing` and `make  the best`\n")).size() == 2);
}

TEST_CASE("the opening rule finds a page that begins with something else") {
  CHECK(check_opening(page_of("docs/a.md", "# A\n\nAfter this page you can b.\n")).empty());
  CHECK(check_opening(page_of("docs/a.md", "# A\n\nThis page is long.\n")).size() == 1);
  CHECK(check_opening(page_of("docs/a.md", "")).size() == 1);
}
