// Random tensor programs replayed by a Jit on other data, against a call without one.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <iostream>

#include "runtime/kernels/kernel.h"
#include "runtime/schedule/schedule.h"
#include "test/fuzz/random_graph.h"
#include "tiny/base/env.h"
#include "tiny/base/error.h"
#include "tiny/run/jit.h"

using namespace tiny;

namespace {

// The leaves of a program, with data of their own for each round.
std::vector<Tensor> leaves_of(const fuzz::Program& program, uint64_t round) {
  std::vector<Tensor> out;
  for (const fuzz::Step& s : program.steps)
    if (s.kind == fuzz::Kind::Leaf)
      out.push_back(fuzz::leaf(s.dtype, s.arg, s.fill, s.top, s.seed + round * 77, "CPU"));
  return out;
}

std::vector<Tensor> outputs_of(const fuzz::Program& program, const std::vector<Tensor>& leaves) {
  std::vector<Tensor> values, out;
  size_t next = 0;
  for (const fuzz::Step& s : program.steps) {
    std::vector<Node> in;
    for (int i : s.in) in.push_back(values[static_cast<size_t>(i)].node());
    if (s.kind == fuzz::Kind::Leaf)
      values.push_back(leaves[next++]);
    else
      values.emplace_back(fuzz::make_step(s, in, "CPU"));
  }
  for (int i : program.outputs) out.push_back(values[static_cast<size_t>(i)]);
  return out;
}

std::vector<std::byte> bytes_of(const Tensor& t) {
  std::vector<std::byte> out(static_cast<size_t>(t.numel()) * t.dtype().size());
  t.to_bytes(out.data());
  return out;
}

std::string difference(const fuzz::Program& program) {
  for (const Tensor& t : leaves_of(program, 0))
    if (t.numel() == 0) return "";  // no argument of a Jit
  Jit step([&](const std::vector<Tensor>& leaves) { return outputs_of(program, leaves); });
  try {
    for (uint64_t round = 0; round < 4; ++round) {
      const std::vector<Tensor> leaves = leaves_of(program, round);
      // Gone before the plain call: that one would find values of its own there, and compute others
      // from them.
      std::vector<std::vector<std::byte>> got;
      for (const Tensor& t : step(leaves)) got.push_back(bytes_of(t));
      std::vector<Tensor> wanted = outputs_of(program, leaves);
      std::vector<Tensor*> all;
      for (Tensor& t : wanted) all.push_back(&t);
      Tensor::realize(all);
      for (size_t i = 0; i < wanted.size(); ++i)
        if (got[i] != bytes_of(wanted[i])) return cat("call ", round, ": output ", i, " differs");
    }
  } catch (const Error& e) {
    // A Jit refuses a program that assigns to what it is given.
    const std::string text = e.what();
    const bool assigns = std::any_of(program.steps.begin(), program.steps.end(),
                                     [](const auto& s) { return s.kind == fuzz::Kind::Assign; });
    if (assigns && text.find("is assigned to in the step") != std::string::npos) return "";
    return cat("throws: ", text);
  } catch (const std::exception& e) {
    return cat("throws: ", e.what());
  }
  return "";
}

}  // namespace

TEST_CASE("random programs replayed by a Jit give the bits of a call") {
  const EnvOverride cache("CACHE", "0");
  using namespace std::chrono;
  const auto day = floor<days>(system_clock::now());
  const int64_t given = env_int("FUZZ_SEED");
  const auto first = static_cast<uint64_t>(given ? given : day.time_since_epoch().count() * 1000);
  const int64_t count = env_int("FUZZ_PROGRAMS") / 4;
  std::cout << count << " random programs replayed, FUZZ_SEED=" << first << std::endl;
  int failures = 0;
  for (int64_t i = 0; i < count && failures < 3; ++i) {
    const fuzz::Program program = fuzz::random_program(first + static_cast<uint64_t>(i));
    const std::string text = difference(program);
    if (text.empty()) continue;
    ++failures;
    const fuzz::Program small =
        fuzz::shrink(program, [](const fuzz::Program& p) { return !difference(p).empty(); });
    FAIL_CHECK(cat("program ", program.seed, ": ", text, "\nsmaller: ", difference(small), '\n',
                   fuzz::to_cpp(small)));
  }
  clear_kernel_cache();
  clear_schedule_cache();
}
