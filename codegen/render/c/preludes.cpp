// The files in codegen/render/c/prelude as tables of helpers. Make writes each into
// $(BUILD)/embedded as a raw string.
#include <array>

#include "codegen/render/c/prelude_gpu.h"
#include "tiny/base/error.h"

namespace tiny {
namespace {

constexpr std::string_view kCuda =
#include <embedded/codegen/render/c/prelude/cuda.cuh.inc>
    ;
constexpr std::string_view kHip =
#include <embedded/codegen/render/c/prelude/hip.hip.inc>
    ;
constexpr std::string_view kGpu =
#include <embedded/codegen/render/c/prelude/gpu.cuh.inc>
    ;
constexpr std::string_view kWgmma =
#include <embedded/codegen/render/c/prelude/wgmma.cuh.inc>
    ;

// Gives the text up to `end` and takes it away, `end` included.
std::string_view take_until(std::string_view& text, std::string_view end) {
  const size_t at = std::min(text.find(end), text.size());
  const std::string_view taken = text.substr(0, at);
  text.remove_prefix(std::min(at + end.size(), text.size()));
  return taken;
}

// The helpers of a file, or of one table in it: "//# name", then the text up to a blank line.
std::vector<Helper> helpers_in(std::string_view text, std::string_view table) {
  if (!table.empty()) {
    take_until(text, "\n//## ");
    while (!text.empty() && !text.starts_with(table)) take_until(text, "\n//## ");
    expect(!text.empty(), "no table ", table, " in a prelude");
    text = take_until(text, "\n//## ");
  }
  std::vector<Helper> helpers;
  for (take_until(text, "\n//# "); !text.empty(); take_until(text, "\n//# ")) {
    const std::string_view name = take_until(text, "\n");
    const size_t end = std::min(text.find("\n\n"), text.size() - 1);
    helpers.push_back({name, text.substr(0, end + 1)});
    text.remove_prefix(end);
  }
  return helpers;
}

}  // namespace

std::span<const Helper> prelude_table(PreludeTable table) {
  static const auto& tables =
      *new std::array<std::vector<Helper>, 7>{helpers_in(kCuda, ""),
                                              helpers_in(kHip, ""),
                                              helpers_in(kGpu, "numbers"),
                                              helpers_in(kGpu, "small floats"),
                                              helpers_in(kGpu, "native atomics"),
                                              helpers_in(kGpu, "helpers"),
                                              helpers_in(kWgmma, "")};
  return tables[static_cast<size_t>(table)];
}

std::string prelude_text(PreludeTable table, std::string_view name) {
  for (const Helper& helper : prelude_table(table))
    if (helper.name == name) return std::string(helper.text);
  throw Bug(cat("no ", name, " in a prelude"));
}

std::string cuda_prelude(const PreludeUse& use) {
  return gpu_prelude(prelude_table(PreludeTable::Cuda), use);
}
std::string hip_prelude(const PreludeUse& use) {
  return gpu_prelude(prelude_table(PreludeTable::Hip), use);
}

}  // namespace tiny
