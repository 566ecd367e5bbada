// The repository's sources as text, for the tests of their form.
#pragma once
#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace tiny::lint {

struct File {
  std::string path;  // from the repository's root, "tiny/ir/node.h"
  std::string text;
};

// One line each, "path:line: rule that is broken".
using Offences = std::vector<std::string>;

constexpr std::array<std::string_view, 4> kProduct = {"tiny", "codegen", "runtime", "devices"};
constexpr std::array<std::string_view, 7> kFolders = {"tiny",     "codegen", "runtime", "devices",
                                                      "examples", "test",    "extra"};

template <class List> bool contains(const List& list, std::string_view item) {
  return std::find(list.begin(), list.end(), item) != list.end();
}

inline std::string_view folder_of(std::string_view path) {
  return path.substr(0, std::min(path.find('/'), path.size()));
}

inline bool is_product(const File& file) { return contains(kProduct, folder_of(file.path)); }

inline std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

inline std::string text_of(const std::filesystem::path& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

// All headers and sources.
inline std::vector<File> repository() {
  namespace fs = std::filesystem;
  const fs::path root = TINY_ROOT;
  std::vector<File> files;
  for (const std::string_view folder : kFolders) {
    if (!fs::is_directory(root / folder)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      const std::string extension = entry.path().extension();
      if (!entry.is_regular_file() || (extension != ".h" && extension != ".cpp")) continue;
      files.push_back({fs::relative(entry.path(), root), text_of(entry.path())});
    }
  }
  return files;
}

}  // namespace tiny::lint
