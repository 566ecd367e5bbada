#include "codegen/lower.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <thread>

#include "test/unit/kernels.h"
#include "tiny/base/env.h"

using namespace tiny;
using namespace tiny::test;

namespace {

Target target_of(Target::Language language) {
  Target t;
  t.language = language;
  t.vector_bytes = 32;
  return t;
}

Node layer_norm(Node x) {
  const double share = 1.0 / static_cast<double>(x->shape()[1]);
  const auto mean = [&](Node v) {
    Node s = sum(v, 2);
    return build::binary(Op::Mul, s, build::full(s->shape(), kF32, share));
  };
  Node centered = build::binary(Op::Sub, x, spread(mean(x), x));
  Node variance = mean(build::binary(Op::Mul, centered, centered));
  Node scale = build::unary(Op::Recip, build::unary(Op::Sqrt, variance));
  return build::binary(Op::Mul, centered, spread(scale, x));
}

std::string stage_text(Node kernel, const std::string& wanted) {
  std::string found;
  lower(kernel, "k", target_of(Target::Language::C),
        [&](const char* pass, const std::string& text) {
          if (pass == wanted) found = text;
        });
  return found;
}

}  // namespace

TEST_CASE("lowering shows each of its passes by name, in order") {
  Arena arena;
  ArenaScope scope(arena);
  std::vector<std::string> passes;
  lower(kernel_of({build::unary(Op::Neg, tensor_param(1, {64}))}), "k",
        target_of(Target::Language::C),
        [&](const char* pass, const std::string&) { passes.push_back(pass); });
  CHECK(passes == std::vector<std::string>{"ranges", "simplify", "merge_ranges", "options", "gates",
                                           "end_loops", "whole_tiles", "masked_powers",
                                           "split_scans", "vectorize", "unroll", "decompose",
                                           "roll_fragments", "pair_casts", "index_width",
                                           "linearize", "render"});
}

TEST_CASE("a softmax is one kernel that loads its input in three loops of a row") {
  const EnvOverride plain("OPT", "0");
  Arena arena;
  ArenaScope scope(arena);
  const std::string text =
      stage_text(kernel_of({softmax(tensor_param(1, {8, 16}), 2)}), "linearize");
  CHECK(occurrences(text, "Load") + occurrences(text, "load") == 3);
}

TEST_CASE("each pass leaves a legal graph for rows, columns, products and windows") {
  const EnvOverride check("CHECK", "1");
  Arena arena;
  ArenaScope scope(arena);
  Node x = tensor_param(1, {12, 40}), y = tensor_param(2, {40, 24});
  const std::vector<Node> kernels{
      kernel_of({softmax(x, 2)}),
      kernel_of({softmax(x, 1)}),
      kernel_of({layer_norm(x)}),
      kernel_of({matmul(x, y)}),
      kernel_of({build::pad(x, Shape{1, 1, 2, 2})}),
      kernel_of({build::unary(Op::Neg, build::permute(x, Shape{1, 0}))}),
      kernel_of({sum(x, 3)}),
      kernel_of({build::reduce(Op::Max, x, 1)})};
  for (const char* opt : {"0", "1"}) {
    const EnvOverride optimize("OPT", opt);
    for (Node k : kernels)
      for (auto language : {Target::Language::C, Target::Language::LlvmIr})
        CHECK(lower(k, "k", target_of(language)).source.text.find("k") != std::string::npos);
  }
}

TEST_CASE("reductions that have one of their ranges in common get one vector range each") {
  Arena arena;
  ArenaScope scope(arena);
  Node x = tensor_param(1, {2, 2}), y = tensor_param(2, {2, 2});
  Node a = build::reshape(sum(build::reshape(x, Shape{1, 2, 2}), 6), Shape{1, 1});
  Node b = sum(build::binary(Op::Mul, x, y), 3);
  Node k = kernel_of({build::binary(Op::Add, a, b)});
  CHECK_NOTHROW(lower(k, "k", target_of(Target::Language::C)));
}

TEST_CASE("OPT=0 chooses no options") {
  Arena arena;
  ArenaScope scope(arena);
  Node k = kernel_of({matmul(tensor_param(1, {32, 32}), tensor_param(2, {32, 32}))});
  CHECK_FALSE(lower(k, "k", target_of(Target::Language::C)).options.empty());
  const EnvOverride plain("OPT", "0");
  CHECK(lower(k, "k", target_of(Target::Language::C)).options.empty());
}

TEST_CASE("a matrix product is a GEMM and its work is counted") {
  Arena arena;
  ArenaScope scope(arena);
  Node k = kernel_of({matmul(tensor_param(1, {64, 32}), tensor_param(2, {32, 48}))});
  const Lowered low = lower(k, "k", target_of(Target::Language::C));
  CHECK(low.source.is_gemm);
  CHECK(low.work.flops == 2.0 * 64 * 32 * 48);
  CHECK(low.work.bytes == 4.0 * (64 * 32 + 32 * 48 + 64 * 48));
}

TEST_CASE("the same kernel lowers to the same text on any thread") {
  Arena arena;
  std::vector<Node> kernels;
  {
    ArenaScope scope(arena);
    Node x = tensor_param(1, {12, 40});
    kernels = {kernel_of({softmax(x, 2)}), kernel_of({layer_norm(x)}),
               kernel_of({matmul(x, tensor_param(2, {40, 24}))})};
  }
  const Target target = target_of(Target::Language::LlvmIr);
  std::vector<std::string> alone;
  for (Node k : kernels) alone.push_back(lower(k, "k", target).source.text);
  std::vector<std::vector<std::string>> texts(4);
  std::vector<std::thread> threads;
  for (auto& out : texts)
    threads.emplace_back([&out, &kernels, &target] {
      for (int turn = 0; turn < 3; ++turn) {
        out.clear();
        for (Node k : kernels) out.push_back(lower(k, "k", target).source.text);
      }
    });
  for (std::thread& t : threads) t.join();
  for (const auto& text : texts) CHECK(text == alone);
}

TEST_CASE("lowering leaves nothing behind in the arena of its caller") {
  Arena arena;
  ArenaScope scope(arena);
  Node k = kernel_of({softmax(tensor_param(1, {8, 16}), 2)});
  const size_t before = arena.size();
  lower(k, "k", target_of(Target::Language::C));
  CHECK(arena.size() == before);
}
