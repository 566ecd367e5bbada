// Random tensor programs on every device against the reference evaluator, forward and gradient.
// FUZZ_PROGRAMS is how many; FUZZ_SEED repeats a run.
#include <doctest/doctest.h>

#include <cmath>
#include <iostream>

#include "runtime/kernels/kernel.h"
#include "runtime/schedule/schedule.h"
#include "test/devices.h"
#include "test/fuzz/error_bound.h"
#include "test/fuzz/random_graph.h"
#include "test/little_memory.h"
#include "test/reference.h"
#include "tiny/base/env.h"

using namespace tiny;

namespace {

// A device, and settings under which it gets other kernels.
struct Setting {
  std::string device;
  int64_t opt = 1, fuse = 1;
  bool tight = false;  // less memory than the plan would take
  std::string name() const {
    return cat("device ", device, " OPT=", opt, " FUSE=", fuse, tight ? " with little memory" : "");
  }
};

bool agrees(double got, double wanted, double bound) {
  if (std::isnan(got) || std::isnan(wanted)) return std::isnan(got) == std::isnan(wanted);
  if (got == wanted) return true;
  if (!std::isfinite(bound)) return true;  // the analysis has nothing to say here
  return std::abs(got - wanted) <= bound;
}

double unit_of(Node root) {
  for (Node n : topological(root))
    if (n->dtype == kF32) return 0x1p-24;
  return 0x1p-53;
}

std::string compare(const char* what, size_t which, const HostTensor& got, const HostTensor& wanted,
                    const HostTensor* bounds, double unit) {
  if (!wanted.dtype.is_float()) {
    const auto a = got.integers(), b = wanted.integers();
    for (size_t i = 0; i < a.size(); ++i)
      if (a[i] != b[i]) return cat(what, ' ', which, " [", i, "]: ", a[i], " and not ", b[i]);
    return "";
  }
  const auto a = got.numbers(), b = wanted.numbers();
  for (size_t i = 0; i < a.size(); ++i) {
    const double bound = (bounds ? bounds->as<double>()[i] * 4 * unit : 0) + 1e-35;
    if (!agrees(a[i], b[i], bound))
      return cat(what, ' ', which, " [", i, "]: ", a[i], " and not ", b[i], " (may be off by ",
                 bound, ")");
  }
  return "";
}

// Realizes the tensors at once and compares; the first difference as text.
std::string compare_all(const char* what, std::vector<Tensor>& tensors, const Setting& setting) {
  fuzz::ErrorBounds errors;
  std::vector<Tensor> bounds;  // keeps the nodes
  std::vector<Node> roots;
  std::vector<double> units;
  for (Tensor& t : tensors) {
    Node e = errors.of(t.node());
    bounds.push_back(e ? Tensor(e) : Tensor());
    roots.push_back(t.node());
    units.push_back(unit_of(t.node()));
  }
  const size_t count = roots.size();
  std::vector<size_t> at(count, 0);
  for (size_t i = 0; i < count; ++i) {
    if (!bounds[i].defined()) continue;
    at[i] = roots.size();
    roots.push_back(bounds[i].node());
  }
  const std::vector<HostTensor> wanted = evaluate(roots);
  std::vector<Tensor*> pointers;
  for (Tensor& t : tensors) pointers.push_back(&t);
  if (setting.tight) test::realize_in_little_memory(pointers);
  Tensor::realize(pointers);
  for (size_t i = 0; i < count; ++i) {
    HostTensor got(tensors[i].dtype(), tensors[i].shape());
    tensors[i].to_bytes(got.data.data());
    const std::string text =
        compare(what, i, got, wanted[i], at[i] ? &wanted[at[i]] : nullptr, units[i]);
    if (!text.empty()) return text;
  }
  return "";
}

std::string difference(const fuzz::Program& program, const Setting& setting) {
  const EnvOverride opt("OPT", std::to_string(setting.opt));
  const EnvOverride fuse("FUSE", std::to_string(setting.fuse));
  const bool several = setting.device.find(',') != setting.device.npos;
  const EnvOverride device("DEVICE", several ? "CPU" : setting.device);
  try {
    fuzz::Built built = fuzz::build(program, setting.device);
    std::vector<Tensor> gradients;
    if (built.loss.defined() && built.loss.requires_grad())
      gradients = Tensor::gradient(built.loss, built.leaves);
    const std::string text = compare_all("output", built.outputs, setting);
    return text.empty() && !gradients.empty() ? compare_all("gradient", gradients, setting) : text;
  } catch (const std::exception& e) {
    return cat("throws: ", e.what());
  }
}

// The program made smaller while it fails in the same way: with or without an exception.
std::string report(const fuzz::Program& program, const Setting& setting, const std::string& text) {
  const bool throws = text.starts_with("throws");
  const fuzz::Program small = fuzz::shrink(program, [&](const fuzz::Program& p) {
    const std::string d = difference(p, setting);
    return !d.empty() && d.starts_with("throws") == throws;
  });
  return cat("program ", program.seed, " on ", setting.name(), ": ", text,
             "\nsmaller: ", difference(small, setting), '\n', fuzz::to_cpp(small));
}

uint64_t first_seed() {
  if (const int64_t given = env_int("FUZZ_SEED")) return static_cast<uint64_t>(given);
  return static_cast<uint64_t>(today()) * 1000000;
}

// The second CPU is opened with the other compiler; it is slow, so few programs go there.
std::string device_of_c_compiler() {
  const EnvOverride compiler("CPU_COMPILER", "cc");
  find_device("CPU:99");
  return "CPU:99";
}

std::vector<Setting> settings_of(int64_t program, const std::string& other) {
  std::vector<Setting> out{{"CPU"}};
  if (program % 4 == 1) out.push_back({"CPU", 0, 1});
  if (program % 4 == 3) out.push_back({"CPU", 1, 0});
  if (program % 8 == 5) out.push_back({"CPU", 0, 0});
  if (program % 4 == 0) out.push_back({"CPU", 1, program % 8 == 0, true});
  if (program % 60 == 7) out.push_back({other});
  if (program % 4 == 2) out.push_back({program % 8 == 2 ? "CPU,CPU:1,CPU:2" : "CPU:1,CPU:2"});
  // Other devices get each program; emulators, whose compiler is slow, a few.
  for (const std::string& device : test_devices()) {
    if (device == "CPU") continue;
    if (device.starts_with("EMU") && program % (4 * parts_on(device)) != 3) continue;
    out.push_back({device});
    out.push_back({device, 1, 1, true});
    if (program % 8 == 3) out.push_back({device, 0, 1});
    if (program % 8 == 7) out.push_back({device, 1, 0});
  }
  return out;
}

}  // namespace

TEST_CASE("random programs give what the reference evaluator gives") {
  const EnvOverride cache("CACHE", "0");  // thousands of kernels that nobody needs again
  const uint64_t first = first_seed();
  const int64_t count = env_int("FUZZ_PROGRAMS");
  const std::string other = device_of_c_compiler();
  std::cout << count << " random programs, FUZZ_SEED=" << first << std::endl;
  int failures = 0;
  for (int64_t i = 0; i < count && failures < 5; ++i) {
    const fuzz::Program program = fuzz::random_program(first + static_cast<uint64_t>(i));
    for (const Setting& setting : settings_of(i, other)) {
      const std::string text = difference(program, setting);
      if (text.empty()) continue;
      ++failures;
      FAIL_CHECK(report(program, setting, text));
      break;
    }
    if (i % 64 == 63) {
      clear_kernel_cache();
      clear_schedule_cache();
    }
  }
}

TEST_CASE("a program that fails is shrunk to the steps that matter") {
  const fuzz::Program program = fuzz::random_program(12);
  const auto has_sum = [](const fuzz::Program& p) {
    for (const fuzz::Step& s : p.steps)
      if (s.kind != fuzz::Kind::Leaf) return true;
    return false;
  };
  REQUIRE(has_sum(program));
  const fuzz::Program small = fuzz::shrink(program, has_sum);
  int steps = 0;
  for (const fuzz::Step& s : small.steps) steps += s.kind != fuzz::Kind::Leaf;
  CHECK(steps == 1);
  CHECK(fuzz::to_cpp(small).find("Node n") != std::string::npos);
}

TEST_CASE("the same seed makes the same program") {
  CHECK(fuzz::to_cpp(fuzz::random_program(5)) == fuzz::to_cpp(fuzz::random_program(5)));
  CHECK(fuzz::to_cpp(fuzz::random_program(5)) != fuzz::to_cpp(fuzz::random_program(6)));
}
