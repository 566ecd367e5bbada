// The generated parts of README.md and docs/*.md are what the program says: the tables of
// operators, of environment variables and of GPUs, and the stages of a kernel. `make golden-update`
// writes them anew. A part stands between
//   <!-- generated: environment -->    or    <!-- generated: row_sum, options, 20 lines -->
// and `<!-- end -->`; `4+7 lines` shows seven lines after the first four.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>
#include <vector>

#include "codegen/target/target.h"
#include "tiny/base/env.h"
#include "tiny/base/error.h"
#include "tiny/onnx/ops/table.h"

using namespace tiny;

namespace {

const std::filesystem::path kRoot = TINY_ROOT;

std::string read(const std::filesystem::path& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

// Lines skip .. skip + count - 1 of a section of a golden file, as a block.
std::string stage(const std::string& file, const std::string& section, int skip, int count) {
  std::istringstream in(read(kRoot / "test/golden" / (file + ".txt")));
  std::string out = "```text\n", line;
  while (std::getline(in, line) && line != "--- " + section) {
  }
  int at = 0, shown = 0;
  for (; std::getline(in, line) && !line.starts_with("--- "); ++at) {
    if (at < skip || shown == count) continue;
    out += line + "\n";
    ++shown;
  }
  return out + (at > skip + shown ? "...\n" : "") + "```\n";
}

// Appends what the group of the text's first match names, each name once.
void add_name(std::vector<std::string>& names, const std::string& line, const std::regex& form) {
  std::smatch m;
  if (!std::regex_search(line, m, form)) return;
  const std::string name = m[1];
  if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
}

std::string table_row(const std::string& group, const std::vector<std::string>& names) {
  std::string row = "| " + group + " |";
  for (const std::string& name : names) row += " `" + (name == "|" ? "\\|" : name) + "`";
  return row + " |\n";
}

// A row for each section of a header, "// --- Title ---", with the functions in it that give
// tensors.
std::string sections_of(const std::string& header) {
  const std::regex title("// --- (.*?)(?: \\(.*\\))? -+$"),
      function(
          "^ *(?:template <.*?> )?(?:static "
          ")?(?:Tensor&?|WithIndices|std::vector<Tensor>|\\w+Result|"
          "LstmState) (?:operator)?([^ :(]+)\\(");
  std::istringstream in(header);
  std::string rows, group, line;
  std::vector<std::string> names;
  const auto finish = [&] {
    if (!names.empty()) rows += table_row(group, names);
    names.clear();
  };
  while (std::getline(in, line)) {
    std::smatch m;
    if (std::regex_search(line, m, title)) {
      finish();
      group = m[1];
    } else {
      add_name(names, line, function);
    }
  }
  finish();
  return rows;
}

// The classes that are made from these ones and are none of them.
std::vector<std::string> classes_of(const std::string& header, const std::string& bases) {
  const std::regex form("^class (\\w+) : public (?:" + bases + ") ");
  std::istringstream in(header);
  std::vector<std::string> names;
  for (std::string line; std::getline(in, line);) add_name(names, line, form);
  const std::regex base(bases);
  std::erase_if(names, [&](const std::string& name) { return std::regex_match(name, base); });
  return names;
}

std::string operator_table() {
  const auto header = [](const char* name) { return read(kRoot / "tiny" / name); };
  return "| group | functions |\n|---|---|\n" + sections_of(header("tensor/tensor.h")) +
         sections_of(header("nn/functional.h")) + sections_of(header("vision/boxes.h")) +
         table_row(
             "Layers (`nn::`)",
             classes_of(header("nn/layers.h") + header("nn/transformer.h") + header("nn/lora.h") +
                            header("vision/resnet.h") + header("vision/retinanet.h"),
                        "Module|RecurrentLayer")) +
         table_row("Optimizers", classes_of(header("train/optim.h"), "Optimizer|AdamBase"));
}

std::string gpu_rows() {
  std::string out =
      "| architecture | as in | language | lanes of a warp | multiprocessors | shared memory of a "
      "block, KiB | L2, MiB | matrix instruction | 8-bit floats |\n"
      "|---|---|---|---|---|---|---|---|---|\n";
  for (const GpuRow& gpu : gpu_table()) {
    const char* language = gpu.language == Target::Language::Cuda ? "CUDA" : "HIP";
    out += cat("| `", gpu.arch, "` | ", gpu.model, " | ", language, " | ", gpu.warp, " | ",
               gpu.cores, " | ", gpu.shared_kb, " | ", gpu.l2_mb, " | ", gpu.matrix_units, " | ",
               gpu.has_fp8 ? "yes" : "no", " |\n");
  }
  return out;
}

std::string generated(const std::string& what) {
  if (what == "environment") return env_table_markdown();
  if (what == "operators") return operator_table();
  if (what == "onnx operators") return onnx::operator_table_markdown();
  if (what == "gpus") return gpu_rows();
  std::smatch m;
  const std::regex form("(\\w+), (.+), (?:(\\d+)\\+)?(\\d+) lines");
  check(std::regex_match(what, m, form), "cannot generate '", what, "'");
  return stage(m[1], m[2], m[3].matched ? std::stoi(m[3]) : 0, std::stoi(m[4]));
}

// The text with its generated parts made anew.
std::string filled(const std::string& text) {
  const std::string begin = "<!-- generated: ", close = " -->\n", end = "<!-- end -->";
  std::string out;
  size_t at = 0;
  for (size_t mark; (mark = text.find(begin, at)) != std::string::npos;) {
    const size_t name = mark + begin.size(), body = text.find(close, name);
    const size_t last = text.find(end, mark);
    check(body < last && last != std::string::npos, "a generated part has no end");
    out += text.substr(at, body + close.size() - at) + generated(text.substr(name, body - name));
    at = last;
  }
  return out + text.substr(at);
}

std::vector<std::filesystem::path> pages() {
  std::vector<std::filesystem::path> out{kRoot / "README.md"};
  for (const auto& entry : std::filesystem::directory_iterator(kRoot / "docs"))
    if (entry.path().extension() == ".md") out.push_back(entry.path());
  return out;
}

}  // namespace

TEST_CASE("the generated parts of the pages are up to date") {
  std::string all;
  for (const auto& path : pages()) {
    const std::string text = read(path);
    all += text;
    if (std::getenv("GOLDEN_UPDATE"))
      std::ofstream(path) << filled(text);
    else
      CHECK_MESSAGE(filled(text) == text, "make golden-update writes ", path.string(), " anew");
  }
  for (const char* part :
       {"environment", "operators", "onnx operators", "gpus", "row_sum, tensors"})
    CHECK_MESSAGE(all.find(cat("<!-- generated: ", part)) != std::string::npos, part);
}

TEST_CASE("the table of operators has a row for each section of a header") {
  const std::string header =
      "// --- Making (tiny/x.h) ------\n"
      "  static Tensor full(const Shape& shape, Number value);\n"
      "  template <class T> static Tensor from(std::span<const T> values) {\n"
      "  Tensor full(const Shape& shape);\n"
      "  int rank() const;\n"
      "  // Tensor comment(x)\n"
      "// --- Nothing ---\n"
      "// --- Two operands ---\n"
      "Tensor operator|(const Operand& x, const Operand& y);\n"
      "WithIndices sort(int64_t dim);\n"
      "Tensor Tensor::from(T x) {\n";
  CHECK(sections_of(header) == "| Making | `full` `from` |\n| Two operands | `\\|` `sort` |\n");
  CHECK(classes_of("class B : public D {\nclass A : public B {\nclass C : public E {\n", "B|D") ==
        std::vector<std::string>{"A"});
}

TEST_CASE("a generated part of a page is replaced, the rest stays") {
  const std::string before = "a\n<!-- generated: environment -->\nold\n<!-- end -->\nb\n";
  const std::string after = filled(before);
  CHECK(after ==
        "a\n<!-- generated: environment -->\n" + env_table_markdown() + "<!-- end -->\nb\n");
  CHECK(filled(after) == after);
  CHECK_THROWS_WITH_AS(filled("<!-- generated: x -->\n<!-- end -->"), "cannot generate 'x'", Error);
}
