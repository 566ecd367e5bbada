// What the repository's text must keep to: who may include whom, and the form of its files. The
// rules are functions of one file's text, so that tests can show that each of them fails.
// Two seams need no forbidden include: Tensor::realize and the device registry are declared low
// and defined high.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "test/lint/sources.h"

using namespace tiny::lint;

namespace {

constexpr size_t kMaxColumns = 100;

// What the files of a folder may include of this repository: a folder ("tiny/") or one header.
struct IncludeRule {
  std::string_view folder;
  std::vector<std::string_view> allowed;
};

const std::vector<IncludeRule>& include_rules() {
  static const std::vector<IncludeRule> rules = {
      {"tiny", {"tiny/"}},
      {"codegen", {"tiny/", "codegen/"}},
      {"runtime", {"tiny/", "codegen/", "runtime/"}},
      {"devices", {"tiny/", "codegen/target/target.h", "runtime/device/device.h", "devices/"}},
      {"examples", {"tiny/tiny.h", "tiny/models.h", "tiny/onnx.h", "examples/common/"}},
  };
  return rules;
}

bool is_header(const File& file) { return file.path.ends_with(".h"); }
std::string_view trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t");
  return begin == text.npos ? std::string_view() : text.substr(begin);
}

// The included path with its opening quote or bracket, `"tiny/ir/node.h`; empty for other lines.
std::string_view included(std::string_view line) {
  line = trim(line);
  if (!line.starts_with('#')) return {};
  line = trim(line.substr(1));
  if (!line.starts_with("include")) return {};
  line = trim(line.substr(7));
  return line.substr(0, line.find_first_of("\">", 1));
}

// Code points of UTF-8, not bytes.
size_t columns(std::string_view line) {
  return std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xC0) != 0x80; });
}

std::string offence(const File& file, size_t index, std::string_view what) {
  std::ostringstream out;
  out << file.path << ":" << index + 1 << ": " << what;
  return out.str();
}

bool is_allowed(const IncludeRule& rule, std::string_view path) {
  return std::any_of(rule.allowed.begin(), rule.allowed.end(), [&](std::string_view allowed) {
    return allowed.ends_with('/') ? path.starts_with(allowed) : path == allowed;
  });
}

Offences check_includes(const File& file) {
  Offences found;
  const auto& rules = include_rules();
  const auto rule = std::find_if(rules.begin(), rules.end(), [&](const IncludeRule& r) {
    return r.folder == folder_of(file.path);
  });
  if (rule == rules.end()) return found;  // test/ and extra/ include what they like
  const auto lines = lines_of(file.text);
  for (size_t i = 0; i < lines.size(); i++) {
    const std::string_view include = included(lines[i]);
    if (include.empty()) continue;
    const std::string_view path = include.substr(1);
    const bool ours = contains(kFolders, folder_of(path)) && path.find('/') != path.npos;
    if (ours && !is_allowed(*rule, path))
      found.push_back(offence(file, i, "may not include " + std::string(path)));
    if (!ours && include[0] == '"')
      found.push_back(offence(file, i, "write the path from the root: " + std::string(path)));
  }
  return found;
}

Offences check_lines(const File& file) {
  Offences found;
  const auto lines = lines_of(file.text);
  for (size_t i = 0; i < lines.size(); i++) {
    if (columns(lines[i]) > kMaxColumns) found.push_back(offence(file, i, "over 100 columns"));
    if (lines[i].find('\t') != std::string::npos) found.push_back(offence(file, i, "a tab"));
  }
  return found;
}

Offences check_header(const File& file) {
  Offences found;
  if (!is_header(file)) return found;
  const auto lines = lines_of(file.text);
  // A purpose is a comment of more than a word or two.
  if (lines.empty() || !lines[0].starts_with("//") || lines[0].size() < 15)
    found.push_back(offence(file, 0, "starts with no comment that states its purpose"));
  if (!contains(lines, "#pragma once")) found.push_back(offence(file, 0, "no #pragma once"));
  for (size_t i = 0; i < lines.size(); i++) {
    const std::string code = lines[i].substr(0, lines[i].find("//"));
    if (code.find("using namespace") != std::string::npos)
      found.push_back(offence(file, i, "using namespace in a header"));
  }
  return found;
}

// What asks the locales how numbers and letters look; tiny/base/text.h has what does not.
constexpr std::array<std::string_view, 14> kLocal = {
    "stringstream", "printf(",      "scanf(",       "std::stof(",   "std::stod(",
    "strtod(",      "strtof(",      "atof(",        "std::isalnum", "std::isalpha",
    "std::isspace", "std::isdigit", "std::tolower", "std::toupper"};

Offences check_locale(const File& file) {
  Offences found;
  if (!is_product(file) || file.path.starts_with("tiny/base/text.")) return found;
  const auto lines = lines_of(file.text);
  for (size_t i = 0; i < lines.size(); i++)
    for (const std::string_view word : kLocal)
      if (lines[i].find(word) != std::string::npos && included(lines[i]).empty())
        found.push_back(
            offence(file, i, std::string(word) + " depends on the locale: tiny/base/text.h"));
  return found;
}

// One line an offence; empty when every file keeps the rule.
std::string report(Offences (*rule)(const File&)) {
  Offences all;
  for (const File& file : repository())
    for (const std::string& found : rule(file)) all.push_back(found);
  std::sort(all.begin(), all.end());
  std::string text;
  for (const std::string& found : all) text += found + "\n";
  return text;
}

// docs/architecture.md: the folders from the lowest up, and the includes that still point up.
struct Architecture {
  std::vector<std::string> folders;
  std::vector<std::pair<std::string, std::string>> upward;  // who includes what

  size_t floor_of(std::string_view path) const {
    const std::string_view folder = path.substr(0, path.rfind('/'));
    return static_cast<size_t>(std::find(folders.begin(), folders.end(), folder) - folders.begin());
  }
};

// The words between backticks.
std::vector<std::string> quoted(const std::string& line) {
  std::vector<std::string> words;
  for (size_t at = 0; (at = line.find('`', at)) != line.npos;) {
    const size_t end = std::min(line.find('`', at + 1), line.size());
    words.push_back(line.substr(at + 1, end - at - 1));
    at = end + 1;
  }
  return words;
}

Architecture architecture_of(const std::string& text) {
  Architecture out;
  for (const std::string& line : lines_of(text)) {
    const auto words = quoted(line);
    if (line.starts_with("| `")) out.folders.push_back(words[0]);
    if (line.starts_with("- `") && line.find("` includes `") != line.npos)
      out.upward.emplace_back(words[0], words[1]);
  }
  return out;
}

Offences check_folders(const std::vector<File>& files, const Architecture& a) {
  constexpr size_t kMaxFiles = 16;
  Offences found;
  auto still = a.upward;
  std::map<std::string, size_t> counts;
  for (const File& file : files) {
    if (!is_product(file)) continue;
    ++counts[file.path.substr(0, file.path.rfind('/'))];
    const auto lines = lines_of(file.text);
    for (size_t i = 0; i < lines.size(); ++i) {
      const std::string_view include = included(lines[i]);
      if (include.empty() || !contains(kProduct, folder_of(include.substr(1)))) continue;
      const std::string_view path = include.substr(1);
      if (a.floor_of(path) <= a.floor_of(file.path)) continue;
      if (!std::erase(still, std::pair(file.path, std::string(path))))
        found.push_back(offence(file, i, "points up to " + std::string(path)));
    }
  }
  for (const auto& [from, to] : still) found.push_back(from + " includes no " + to + " any more");
  for (const std::string& folder : a.folders)
    if (!counts.count(folder)) found.push_back(folder + " has no files");
  for (const auto& [folder, count] : counts) {
    if (!contains(a.folders, folder)) found.push_back(folder + " is not in docs/architecture.md");
    if (count > kMaxFiles) found.push_back(folder + " has " + std::to_string(count) + " files");
  }
  return found;
}

Offences includes(const std::string& path, const std::string& line) {
  return check_includes({path, line + "\n"});
}

}  // namespace

TEST_CASE("the repository's sources are found") {
  const auto files = repository();
  const auto has = [&](std::string_view path) {
    return std::any_of(files.begin(), files.end(), [&](auto& f) { return f.path == path; });
  };
  CHECK(has("tiny/base/error.h"));
  CHECK(has("runtime/device/device.h"));
  CHECK(has("test/lint/test_lint.cpp"));
}

TEST_CASE("no file includes what its folder may not know") { CHECK(report(check_includes) == ""); }

TEST_CASE("folders stand in docs/architecture.md, are small, and include what lies below them") {
  const Architecture a =
      architecture_of(text_of(std::filesystem::path(TINY_ROOT) / "docs/architecture.md"));
  std::string all;
  for (const std::string& found : check_folders(repository(), a)) all += found + "\n";
  CHECK(all == "");
}

TEST_CASE("the folder rule finds edges that point up, strangers, crowds and what is over") {
  const Architecture a = architecture_of(
      "| `tiny/ir` | nodes |\n| `tiny/nn` | layers |\n\n- `tiny/ir/b.h` includes `tiny/nn/b.h`\n");
  const File low{"tiny/ir/a.h", "#include \"tiny/nn/a.h\"\n"}, high{"tiny/nn/a.h", ""};
  const File known{"tiny/ir/b.h", "#include \"tiny/nn/b.h\"\n"};
  const File down{"tiny/nn/c.h", "#include \"tiny/ir/a.h\"\n"};
  CHECK(check_folders({high, known, down}, a).empty());
  CHECK(check_folders({low, high, known}, a) ==
        Offences{"tiny/ir/a.h:1: points up to tiny/nn/a.h"});
  CHECK(check_folders({high, {"tiny/ir/b.h", ""}}, a) ==
        Offences{"tiny/ir/b.h includes no tiny/nn/b.h any more"});
  CHECK(check_folders({known}, a) == Offences{"tiny/nn has no files"});
  CHECK(check_folders({high, known, {"tiny/x/a.h", ""}}, a) ==
        Offences{"tiny/x is not in docs/architecture.md"});
  std::vector<File> many{known};
  for (int i = 0; i < 17; ++i) many.push_back({"tiny/nn/" + std::to_string(i) + ".h", ""});
  CHECK(check_folders(many, a) == Offences{"tiny/nn has 17 files"});
}

TEST_CASE("no line is too long or has a tab") { CHECK(report(check_lines) == ""); }

TEST_CASE("no text of the product depends on the program's locales") {
  CHECK(report(check_locale) == "");
}

TEST_CASE("every header states its purpose, is included once and opens no namespace") {
  CHECK(report(check_header) == "");
}

TEST_CASE("the include rule finds each forbidden edge") {
  CHECK(includes("tiny/a.h", "#include \"codegen/target/target.h\"") ==
        Offences{"tiny/a.h:1: may not include codegen/target/target.h"});
  CHECK(includes("tiny/a.cpp", "#include \"runtime/device/device.h\"").size() == 1);
  CHECK(includes("codegen/a.cpp", "#include \"runtime/device/device.h\"").size() == 1);
  CHECK(includes("runtime/a.cpp", "#include \"devices/cpu/cpu.h\"").size() == 1);
  CHECK(includes("devices/a.cpp", "#include \"runtime/device/disk_cache.h\"").size() == 1);
  CHECK(includes("devices/a.cpp", "#include \"codegen/lower.h\"").size() == 1);
  CHECK(includes("examples/a.cpp", "#include \"tiny/ir/node.h\"").size() == 1);
  CHECK(includes("runtime/a.cpp", "#include \"test/reference.h\"").size() == 1);
  CHECK(includes("examples/a.cpp", "#include \"extra/resnet.h\"").size() == 1);
}

TEST_CASE("the include rule sees every spelling of an include") {
  CHECK(includes("tiny/a.cpp", "  #  include <runtime/device/device.h>").size() == 1);
  CHECK(includes("tiny/a.cpp", "#include\"runtime/device/device.h\"").size() == 1);
  CHECK(includes("tiny/a.cpp", "#include \"node.h\"") ==
        Offences{"tiny/a.cpp:1: write the path from the root: node.h"});
}

TEST_CASE("the include rule lets what is allowed pass") {
  CHECK(includes("tiny/a.cpp", "#include \"tiny/ir/node.h\"\n#include <vector>").empty());
  CHECK(includes("codegen/a.cpp", "#include \"tiny/ir/node.h\"").empty());
  CHECK(includes("runtime/a.cpp", "#include \"codegen/lower.h\"").empty());
  CHECK(includes("devices/a.cpp", "#include \"codegen/target/target.h\"").empty());
  CHECK(includes("devices/a.cpp", "#include \"runtime/device/device.h\"").empty());
  CHECK(includes("examples/a.cpp", "#include \"tiny/tiny.h\"").empty());
  CHECK(includes("examples/a.cpp", "#include <sys/types.h>").empty());
  CHECK(includes("test/a.cpp", "#include \"codegen/lower.h\"").empty());
}

TEST_CASE("the line rule finds long lines, tabs and long files") {
  CHECK(check_lines({"tiny/a.h", std::string(100, 'x')}).empty());
  CHECK(check_lines({"tiny/a.h", "\n" + std::string(101, 'x')}) ==
        Offences{"tiny/a.h:2: over 100 columns"});
  CHECK(check_lines({"tiny/a.h", "int a;\tint b;"}) == Offences{"tiny/a.h:1: a tab"});
  std::string accents;
  for (int i = 0; i < 100; i++) accents += "\u00e9";
  CHECK(check_lines({"tiny/a.h", accents}).empty());
}

TEST_CASE("the locale rule finds streams and printf, but not in what replaces them") {
  CHECK(check_locale({"tiny/a.cpp", "  std::ostringstream out;"}).size() == 1);
  CHECK(check_locale({"devices/a.cpp", "\nstd::snprintf(a, 3, b);"}) ==
        Offences{"devices/a.cpp:2: printf( depends on the locale: tiny/base/text.h"});
  CHECK(
      check_locale({"tiny/base/text.h", "class TextStream : public std::ostringstream {"}).empty());
  CHECK(check_locale({"tiny/a.cpp", "TextStream out;"}).empty());
  CHECK(check_locale({"extra/a.cpp", "std::ostringstream out;"}).empty());
}

TEST_CASE("the header rule finds what a header lacks") {
  const std::string purpose = "// Shapes and broadcasting.\n", once = "#pragma once\n";
  CHECK(check_header({"tiny/a.h", purpose + once}).empty());
  CHECK(check_header({"tiny/a.h", once}) ==
        Offences{"tiny/a.h:1: starts with no comment that states its purpose"});
  CHECK(check_header({"tiny/a.h", ""}).size() == 2);
  CHECK(check_header({"tiny/a.h", purpose}) == Offences{"tiny/a.h:1: no #pragma once"});
  CHECK(check_header({"tiny/a.h", purpose + once + "using namespace std;"}) ==
        Offences{"tiny/a.h:3: using namespace in a header"});
  CHECK(check_header({"tiny/a.h", purpose + once + "// no using namespace here"}).empty());
  CHECK(check_header({"tiny/a.cpp", "using namespace std;"}).empty());
}
