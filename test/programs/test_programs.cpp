// Random programs over the public API against the reference evaluator, in this process: a part of
// what `make fuzz` does in others. FUZZ_PROGRAMS is how many; FUZZ_SEED repeats a run.
#include <doctest/doctest.h>

#include <iostream>
#include <map>

#include "runtime/kernels/kernel.h"
#include "runtime/schedule/schedule.h"
#include "test/devices.h"
#include "test/programs/check.h"
#include "tiny/base/env.h"

namespace tiny::programs {
namespace {

// The default, another setting in turn, and now and then a device that is no CPU.
std::vector<std::string> settings_of(int64_t program, const std::vector<std::string>& devices) {
  std::vector<std::string> out;
  const std::string& device = devices[static_cast<size_t>(program) % devices.size()];
  const int64_t parts = device.starts_with("EMU") ? 8 * parts_on(device) : 1;
  if (device != "CPU" && program / static_cast<int64_t>(devices.size()) % parts == 0)
    out.push_back("DEVICE=" + device);
  const auto usual = usual_settings("CPU");
  out.push_back("");
  out.push_back(usual[static_cast<size_t>(program) % usual.size()]);
  return out;
}

std::string failure_of(const Program& program, const std::vector<std::string>& settings) {
  Checker checker(program);
  for (const std::string& setting : settings)
    if (const std::string text = checker.difference(setting); !text.empty())
      return report(program, setting, text);
  return "";
}

// x (4, 3), summed over its last axis beside its softmax; gradients of both.
Program small_program() {
  Program p;
  p.gradient = true;
  const auto add = [&](const char* row, std::vector<int> in, Shape a) {
    Step s;
    s.row = row_named(row);
    s.in = std::move(in);
    s.a = std::move(a);
    s.seed = 5;
    p.steps.push_back(std::move(s));
  };
  add("leaf", {}, {4, 3});
  add("tanh", {0}, {});
  add("sum", {1}, {1});
  add("softmax", {1}, {});
  p.outputs = {2, 3};
  return p;
}

}  // namespace

TEST_CASE("random programs of the public interface give what the reference evaluator gives") {
  const EnvOverride cache("CACHE", "0");  // thousands of kernels that nobody needs again
  const int64_t given = env_int("FUZZ_SEED"), count = env_int("FUZZ_PROGRAMS");
  const auto first = static_cast<uint64_t>(given ? given : today() * 1000000);
  std::cout << count << " random programs of the public interface, FUZZ_SEED=" << first
            << std::endl;
  const std::vector<std::string> devices = test_devices();
  int failures = 0;
  for (int64_t i = 0; i < count && failures < 5; ++i) {
    const Program program = random_program(first + static_cast<uint64_t>(i));
    if (const std::string text = failure_of(program, settings_of(i, devices)); !text.empty()) {
      ++failures;
      FAIL_CHECK(text);
    }
    if (i % 32 == 31) {
      clear_kernel_cache();
      clear_schedule_cache();
    }
  }
}

TEST_CASE("every operator of the table is drawn, and the same seed draws the same program") {
  std::map<int, int> drawn;
  for (uint64_t seed = 0; seed < 6000; ++seed)
    for (const Step& s : random_program(seed).steps) ++drawn[s.row];
  const auto& rows = operators();
  for (size_t i = 0; i < rows.size(); ++i) {
    CAPTURE(rows[i].name);
    CHECK(drawn[static_cast<int>(i)] > 0);
  }
  CHECK(to_line(random_program(5)) == to_line(random_program(5)));
  CHECK(to_line(random_program(5)) != to_line(random_program(6)));
}

TEST_CASE("a program survives as a line of text") {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const std::string line = to_line(random_program(seed));
    CHECK(to_line(from_line(line)) == line);
  }
  CHECK_THROWS_AS(from_line("1 1 1 2 0"), Error);
}

TEST_CASE("the checker sees a wrong value, a wrong gradient and an exception") {
  const Program program = small_program();
  Checker honest(program);
  for (const char* setting : {"", "FUSE=0", "JIT", "SLOPE", "DEVICE=CPU,CPU:1"}) {
    CAPTURE(setting);
    CHECK(honest.difference(setting) == "");
  }
  // Off by a hundred-millionth in the values of a step, and then in those of the gradient alone.
  Checker off(program, [](size_t n, const Tensor& v) { return n == 3 ? v * (1 + 1e-8) : v; });
  CHECK(off.difference("").starts_with("output 1 ["));
  Checker slope(program, [](size_t n, const Tensor& v) {
    return n == 1 ? v * 2 - v.detach() : v;  // the same values, twice the gradient
  });
  CHECK(slope.difference("").starts_with("gradient 0 ["));
  Checker thrown(program, [](size_t, const Tensor&) -> Tensor { throw Error("no"); });
  CHECK(thrown.difference("") == "throws: no");
}

TEST_CASE("a comparison that rounding decides is a tie and no failure") {
  Program program = small_program();
  program.gradient = false;
  Step less;
  less.row = row_named("equal");  // of two sums that differ by their rounding
  less.in = {2, 2};
  program.steps.push_back(less);
  program.outputs = {4};
  Checker checker(program, [](size_t n, const Tensor& v) {
    return n == 4 ? v.logical_not() : v;  // as if the last bit had been another
  });
  CHECK(checker.difference("") != "");  // a value is always equal to itself
  program.steps[1].row = row_named("times_number");
  program.steps[1].r = 0.1;
  program.steps.insert(program.steps.begin() + 3, program.steps[2]);  // summed once more
  program.steps[4].in = {1};
  program.steps[5].in = {2, 3};
  program.outputs = {5};
  Checker twice(program, [](size_t n, const Tensor& v) { return n == 5 ? v.logical_not() : v; });
  CHECK(twice.difference("") == "");
  CHECK(twice.was_tie());
}

TEST_CASE("a program of the public interface is shrunk to the steps that matter") {
  const auto has_softmax = [](const Program& p) {  // that an output needs
    std::vector<int> open = p.outputs;
    while (!open.empty()) {
      const Step& s = p.steps[static_cast<size_t>(open.back())];
      open.pop_back();
      if (s.row == row_named("softmax")) return true;
      for (int i : s.in)
        if (i >= 0) open.push_back(i);
    }
    return false;
  };
  uint64_t seed = 0;
  while (!has_softmax(random_program(seed)) || random_program(seed).steps.size() < 8) ++seed;
  const Program small = shrink(random_program(seed), has_softmax);
  CHECK(small.steps.size() == 2);
  CHECK(small.outputs.size() == 1);
  CHECK_FALSE(small.gradient);
  const std::string text = to_cpp(small, "FUSE=0");
  CHECK(text.find("Tensor v1 = v0.softmax(") != std::string::npos);
  CHECK(text.find("int main()") != std::string::npos);
}

}  // namespace tiny::programs
