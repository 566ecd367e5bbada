// The preludes of kernels as files (codegen/render/c/prelude): how they are cut into helpers, and
// that each compiles as a whole, where its compiler is.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "codegen/render/c/prelude_gpu.h"
#include "devices/cuda/nvrtc.h"
#include "devices/hip/clang.h"
#include "tiny/base/error.h"

using namespace tiny;

namespace {

constexpr PreludeTable kTables[] = {PreludeTable::Cuda,          PreludeTable::Hip,
                                    PreludeTable::Numbers,       PreludeTable::SmallFloats,
                                    PreludeTable::NativeAtomics, PreludeTable::Helpers,
                                    PreludeTable::Wgmma};

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

std::set<std::string> words_of(std::string_view text) {
  std::set<std::string> words;
  for (size_t i = 0, end; i < text.size(); i = end) {
    for (end = i; end < text.size() && is_word(text[end]); ++end) {
    }
    if (end > i) words.emplace(text.substr(i, end - i));
    if (end == i) ++end;
  }
  return words;
}

// The names of `table` that are not those of `other`.
std::set<std::string> own_names(PreludeTable table, PreludeTable other) {
  std::set<std::string> names;
  for (const Helper& h : prelude_table(table)) names.emplace(h.name);
  for (const Helper& h : prelude_table(other)) names.erase(std::string(h.name));
  return names;
}

// All helpers but those that use a primitive of the other language, and in turn what uses them.
std::string all_of_language(PreludeTable primitives, PreludeTable others, int warp) {
  std::string text = cat("#define THREADS 128\n#define WARP ", warp, "\n");
  std::set<std::string> unknown = own_names(others, primitives);
  for (const PreludeTable table : {PreludeTable::Numbers, PreludeTable::SmallFloats, primitives,
                                   PreludeTable::NativeAtomics, PreludeTable::Helpers})
    for (const Helper& h : prelude_table(table)) {
      const auto words = words_of(h.text);
      if (table == PreludeTable::Helpers &&
          std::any_of(words.begin(), words.end(), [&](auto& w) { return unknown.count(w); }))
        unknown.emplace(h.name);
      else
        text += h.text;
    }
  return text;
}

}  // namespace

TEST_CASE("each helper of a prelude has a name of its own and whole lines of text") {
  for (const PreludeTable table : kTables) {
    CHECK(!prelude_table(table).empty());
    std::set<std::string_view> names;
    for (const Helper& h : prelude_table(table)) {
      CAPTURE(std::string(h.name));
      CHECK(names.insert(h.name).second);
      CHECK(h.name.find_first_of(" \n") == h.name.npos);
      CHECK(h.text.size() > 1);
      CHECK(h.text.ends_with('\n'));
      CHECK(h.text.find("\n\n") == h.text.npos);
      CHECK(h.text.find("//#") == h.text.npos);
    }
  }
  CHECK_THROWS_AS(prelude_text(PreludeTable::Wgmma, "no such"), Bug);
}

TEST_CASE("the library's preludes are the files") {
  std::string all;
  for (const PreludeTable table : kTables)
    for (const Helper& h : prelude_table(table)) all += h.text;
  size_t lines = 0;
  namespace fs = std::filesystem;
  for (const auto& entry :
       fs::directory_iterator(fs::path(TINY_ROOT) / "codegen/render/c/prelude")) {
    std::ifstream in(entry.path());
    bool inside = false;
    for (std::string line; std::getline(in, line);) {
      if (inside && !line.empty()) {
        ++lines;
        CHECK_MESSAGE(all.find(line + "\n") != all.npos, (entry.path().string() + ": " + line));
      }
      inside = line.starts_with("//# ") || (inside && !line.empty());
    }
  }
  CHECK(lines == static_cast<size_t>(std::count(all.begin(), all.end(), '\n')));
}

TEST_CASE("cuda: all of the prelude compiles") {
  if (!nvrtc_available()) return;
  const std::string text = all_of_language(PreludeTable::Cuda, PreludeTable::Hip, 32);
  for (const char* arch : {"sm_80", "sm_90a"}) {
    std::string kernel = text;
    if (arch == std::string("sm_90a"))
      for (const Helper& h : prelude_table(PreludeTable::Wgmma)) kernel += h.text;
    const NvrtcResult result = nvrtc_compile(kernel + "extern \"C\" KERNEL(128) k() {}\n", arch);
    CHECK_MESSAGE(result.ok, result.log);
  }
}

TEST_CASE("hip: all of the prelude compiles") {
  if (!hip_clang_available()) return;
  const std::string text = all_of_language(PreludeTable::Hip, PreludeTable::Cuda, 64);
  CHECK(!compile_hip(text + "extern \"C\" KERNEL(128) k() {}\n", "gfx942", "k").empty());
}
