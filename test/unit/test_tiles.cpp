// Products on the matrix units of CPUs: numbers, where the processor lacks an instruction by plain
// code; the instructions, compiled for a processor that has them; layouts that they are used for.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <map>
#include <random>

#include "codegen/lower.h"
#include "codegen/options/mma.h"
#include "devices/compilers/llvm_library.h"
#include "devices/cpu/cpu.h"
#include "runtime/device/buffer.h"
#include "runtime/schedule/schedule.h"
#include "test/unit/integers.h"
#include "tiny/base/env.h"
#include "tiny/rewrite/algebra.h"
#include "tiny/tiny.h"

using namespace tiny;

namespace {

// CPU devices with other units than those of the processor, and so many threads, each under a
// number of its own.
std::string device_with(const std::string& units, const std::string& threads = "2") {
  static std::map<std::string, std::string> known;
  std::string& name = known[units + " " + threads];
  if (name.empty()) {
    name = "CPU:" + std::to_string(40 + known.size());
    const EnvOverride override("CPU_UNITS", units.c_str()), cores("THREADS", threads.c_str());
    find_device(name);
  }
  return name;
}

bool has_units() { return llvm_available() && find_device("CPU").target().vector_bytes >= 16; }

constexpr const char* kF16Unit = "plain amx-fp16";
constexpr const char* kHalves[] = {"plain amx-bf16", "plain avx512bf16"};
constexpr const char* kBytes[] = {"plain amx-int8", "plain avx512vnni"};

std::shared_ptr<const Schedule> schedule_of(const Tensor& t, const std::string& device) {
  const Node root = t.node();
  const Normalized graph = normalize({&root, 1});
  std::vector<int> devices;
  for (Node b : graph.buffers) devices.push_back(b->device);
  return schedule(graph, devices, device_id(device));
}

// The kernel of the product, lowered for such a device with the instructions themselves.
Lowered lowered(const Tensor& t, const std::string& device) {
  const auto s = schedule_of(t, device);
  Target target = find_device(device).target();
  target.emulates = false;
  for (const Step& step : s->steps)
    if (step.kernel) {
      Lowered l = lower(step.kernel.get(), "k", target);
      if (to_text(l.options).find("mma r") != std::string::npos) return l;
    }
  return {};
}

bool uses_units(const Tensor& t, const std::string& device) {
  return lowered(t, device).machine != nullptr;
}

Tensor product(const Tensor& a, const Tensor& b, DType sum) {
  return sum == kI32 ? a.to(kI32).matmul(b.to(kI32)) : a.matmul(b, sum);
}

// As the tensor's own device computes them.
std::vector<double> values_of(const Tensor& t) { return t.to(kF64).to_vector<double>(); }

// Compares with the same product where there are no units; numbers are integers, and so exact.
void check_product(Shape a, Shape b, DType t, const std::string& units, bool is_used = true) {
  const std::string device = device_with(units), plain = device_with("none");
  const DType sum = t.is_half() ? kF32 : kI32;
  for (const char* form : {"nn", "nt", "tn", "tt"}) {
    CAPTURE(units);
    CAPTURE(form);
    CAPTURE(to_text(a));
    CAPTURE(to_text(b));
    const auto on = [&](const std::string& where) {
      const auto operand = [&](Shape shape, bool turned) {
        if (turned) std::swap(shape[shape.size() - 1], shape[shape.size() - 2]);
        const Tensor x = integers(shape, t, where);
        return turned ? x.transpose(-1, -2) : x;
      };
      return product(operand(a, form[0] == 't'), operand(b, form[1] == 't'), sum);
    };
    const Tensor found = on(device);
    CHECK(uses_units(found, device) == is_used);
    CHECK(values_of(found) == values_of(on(plain)));
  }
}

}  // namespace

TEST_CASE("tiles: products of any size have the numbers of plain products") {
  if (!has_units()) return;
  for (const char* units : kHalves) {
    check_product({64, 64}, {64, 64}, kBF16, units);
    check_product({33, 31}, {31, 65}, kBF16, units);
    check_product({100, 257}, {257, 24}, kBF16, units);
    check_product({3, 70, 40}, {3, 40, 70}, kBF16, units);
    check_product({3, 70, 40}, {40, 70}, kBF16, units);
  }
  for (const auto& [m, k, n] : {std::array<int64_t, 3>{64, 64, 64}, {33, 31, 65}, {100, 257, 24}})
    check_product({m, k}, {k, n}, kF16, kF16Unit);
  for (const char* units : kBytes)
    for (DType t : {kI8, kU8}) {
      const bool is_used = t == kI8 || std::string(units).find("amx") != std::string::npos;
      check_product({64, 64}, {64, 64}, t, units, is_used);
      check_product({33, 31}, {31, 65}, t, units, is_used);
      check_product({2, 70, 99}, {99, 70}, t, units, is_used);
    }
}

TEST_CASE("tiles: every number of rows, columns and terms from 1 to 33") {
  if (!has_units()) return;
  for (const char* units : kHalves)
    for (int64_t n : {1, 2, 15, 16, 17, 23, 24, 31, 32, 33}) {
      check_product({n, 48}, {48, 80}, kBF16, units, n >= 24);
      check_product({80, 48}, {48, n}, kBF16, units, n >= 24);
      check_product({80, n}, {n, 80}, kBF16, units, n >= 24);
    }
}

TEST_CASE("tiles: bytes of either sign keep their extremes") {
  if (!has_units()) return;
  const std::vector<std::pair<DType, DType>> all = {{kI8, kI8}, {kI8, kU8}, {kU8, kI8}, {kU8, kU8}};
  for (const char* units : kBytes)
    for (const auto& [x, y] : all) {
      CAPTURE(units);
      CAPTURE(x.name());
      CAPTURE(y.name());
      const auto operand = [](DType t, Shape shape, int64_t step, const std::string& device) {
        const Tensor bytes = mod(Tensor::arange(0, numel(shape)) * step, 256);
        return bytes.to(kU8).bitcast(t).reshape(shape).to(device).realize();
      };
      const auto on = [&](const std::string& device) {
        const Tensor p =
            product(operand(x, {70, 200}, 37, device), operand(y, {200, 64}, 91, device), kI32);
        return (p + 3).relu();
      };
      CHECK(values_of(on(device_with(units))) == values_of(on(device_with("none"))));
    }
}

TEST_CASE("tiles: what comes before and after a product goes with it") {
  if (!has_units()) return;
  for (const char* units : kHalves) {
    CAPTURE(units);
    const auto on = [&](const std::string& device) {
      const Tensor a = integers({40, 64}, kF32, device), b = integers({64, 72}, kBF16, device);
      const Tensor bias = integers({72}, kF32, device);
      return ((a * 2).to(kBF16).matmul(b, kF32) + bias).relu();
    };
    const Tensor found = on(device_with(units));
    CHECK(uses_units(found, device_with(units)));
    CHECK(schedule_of(found, device_with(units))->steps.size() == 3);  // both operands, the product
    CHECK(values_of(found) == values_of(on(device_with("none"))));
  }
}

TEST_CASE("tiles: convolutions and both of their gradients have the numbers of plain ones") {
  if (!has_units()) return;
  struct Row {
    Shape image, weight;
    ConvOptions options;
    bool uses_units[3];  // the convolution, the gradients of the image and of the weight
  };
  const Row rows[] = {
      {{2, 48, 9, 11}, {64, 48, 3, 3}, {}, {true, true, true}},
      {{2, 48, 12, 12}, {48, 48, 3, 3}, {.stride = 1, .padding = 1}, {true, true, true}},
      {{2, 48, 12, 11}, {64, 48, 3, 3}, {.stride = 2, .padding = 1}, {true, true, true}},
      {{1, 64, 13, 13}, {48, 64, 5, 5}, {.padding = 2}, {true, true, true}},
      {{2, 48, 15, 15}, {64, 48, 3, 3}, {.padding = 2, .dilation = 2}, {true, true, true}},
      {{2, 96, 9, 9}, {128, 48, 3, 3}, {.padding = 1, .groups = 2}, {true, false, true}},
      {{3, 64, 8, 8}, {64, 64, 1, 1}, {}, {true, true, true}},
      {{2, 24, 9, 9}, {64, 24, 3, 3}, {}, {false, false, false}},   // few channels at a time
      {{2, 16, 9, 9}, {32, 16, 3, 3}, {}, {false, false, false}}};  // few results of each copy
  for (const Row& row : rows)
    for (const char* units : kHalves) {
      CAPTURE(std::string(units));
      CAPTURE(to_text(row.image));
      CAPTURE(to_text(row.weight));
      const auto on = [&](const std::string& where) {
        Tensor x = integers(row.image, kBF16, where).requires_grad_();
        Tensor w = integers(row.weight, kBF16, where).requires_grad_();
        const Tensor y = conv2d(x, w, Tensor(), row.options);
        const Tensor r = integers(to_shape(y.shape()), kBF16, where);
        std::vector<Tensor> out{y};
        y.backward(r);
        for (const Tensor& of : {x, w}) out.push_back(of.grad());
        return out;
      };
      const std::vector<Tensor> found = on(device_with(units)), want = on(device_with("none"));
      for (size_t i = 0; i < 3; ++i) {
        CAPTURE(i);
        CHECK(uses_units(found[i], device_with(units)) == row.uses_units[i]);
        CHECK(values_of(found[i]) == values_of(want[i]));
      }
    }
}

TEST_CASE(
    "tiles: sums of random products are as exact as in f32, results in bf16 as those can be") {
  if (!has_units()) return;
  const int64_t n = 300;
  const Tensor a = Tensor::randn({n, n}).to(kBF16).realize();
  const Tensor b = Tensor::randn({n, n}).to(kBF16).realize();
  const auto x = a.to(kF64).contiguous().realize(), y = b.to(kF64).contiguous().realize();
  const Tensor exact = x.matmul(y).realize();
  const auto error = [&](const Tensor& r) {
    const Tensor difference = r.to("CPU").to(kF64) - exact;
    return (difference.square().sum() / exact.square().sum()).sqrt().item<double>();
  };
  const auto product_on = [&](const std::string& device, DType t) {
    return a.to(device).matmul(b.to(device), t);
  };
  const double plain = error(product_on(device_with("none"), kF32));
  const double rounded = error(exact.to(kBF16));  // the least that results in bf16 can have
  for (const char* units : kHalves) {
    CAPTURE(std::string(units));
    CHECK(error(product_on(device_with(units), kF32)) < 1.5 * plain);
    CHECK(error(product_on(device_with(units), kBF16)) < 1.001 * rounded);
  }
}

// Four numbers of each kind by four: what differs is how they are rounded, and that subnormal ones
// count as zeros.
TEST_CASE("tiles: plain code rounds as the processor does, bit for bit") {
  if (!has_units()) return;
  const std::string own = find_device("CPU").target().arch;
  std::mt19937 random(1);
  for (const std::string unit : {"amx-bf16", "avx512bf16"}) {
    if (own.find(unit) == std::string::npos) continue;
    CAPTURE(unit);
    std::vector<uint16_t> bits(2 * 64 * 96);
    for (uint16_t& b : bits) {
      const uint32_t exponent = random() % 8 == 0 ? random() % 3 : 100 + random() % 60;
      b = static_cast<uint16_t>((random() & 0x807f) | exponent << 7);
    }
    const auto on = [&](const std::string& units) {
      const std::string device = device_with(units);
      const Tensor all = Tensor::from(bits, {2, 64, 96}).bitcast(kBF16).to(device).realize();
      const Tensor r = all.select(0, 0).matmul(all.select(0, 1).t(), kF32);
      CHECK(uses_units(r, device));
      return r.to("CPU").bitcast(kI32).to_vector<int32_t>();
    };
    CHECK(on(unit) == on("plain " + unit));
  }
}

TEST_CASE("tiles: subnormal numbers of f16 count, as they are no subnormal ones of f32") {
  if (!has_units()) return;
  const std::string device = device_with(kF16Unit);
  const auto all = [&](float v) {
    return Tensor::full({64, 64}, v, kF32).to("CPU").to(kF16).to(device).realize();
  };
  const Tensor out = all(0x1p-24f).matmul(all(-0x1.8p-14f), kF32);
  CHECK(uses_units(out, device));
  CHECK(out.to("CPU").to_vector<float>()[0] == -0x1.8p-32f);
}

TEST_CASE("tiles: rows in order are read where they are, others are stored as tiles") {
  if (!has_units()) return;
  struct Row {
    const char* name;
    std::function<Tensor(Tensor)> rows;  // of [80, 192]
    size_t steps;                        // kernels: those that store an operand, and the product's
  };
  const Row all[] = {{"whole", [](Tensor x) { return x; }, 2},
                     {"a part of each row", [](Tensor x) { return x.narrow(1, 64, 64); }, 2},
                     {"some rows", [](Tensor x) { return x.narrow(0, 5, 64); }, 2},
                     {"rows that fill no tile", [](Tensor x) { return x.narrow(0, 0, 70); }, 3},
                     {"sums that fill no tile", [](Tensor x) { return x.narrow(1, 0, 100); }, 3},
                     {"columns", [](Tensor x) { return x.narrow(1, 0, 80).t(); }, 3},
                     {"backwards", [](Tensor x) { return x.flip(1); }, 3},
                     {"computed", [](Tensor x) { return -x; }, 3}};
  for (const Row& row : all)
    for (const auto& [t, units] : {std::pair(kBF16, kHalves[0]), std::pair(kI8, kBytes[0])}) {
      CAPTURE(row.name);
      CAPTURE(units);
      const auto on = [&](const std::string& device) {
        const Tensor a = row.rows(integers({80, 192}, t, device));
        return product(a, integers({a.shape()[1], 48}, t, device), t == kI8 ? kI32 : kF32);
      };
      const Tensor found = on(device_with(units));
      CHECK(uses_units(found, device_with(units)));
      CHECK(schedule_of(found, device_with(units))->steps.size() == row.steps);
      CHECK(values_of(found) == values_of(on(device_with("none"))));
    }
}

TEST_CASE("tiles: one core stores rows that fall into the same set of its cache") {
  if (!has_units()) return;
  for (const auto& [threads, terms, steps] :
       {std::tuple("1", 2048, size_t{3}), {"1", 1984, size_t{2}}, {"2", 2048, size_t{2}}}) {
    CAPTURE(threads);
    CAPTURE(terms);
    const std::string device = device_with(kHalves[0], threads);
    const Tensor a = integers({64, terms}, kBF16, device), b = integers({terms, 64}, kBF16, device);
    CHECK(schedule_of(product(a, b, kF32), device)->steps.size() == steps);
  }
}

TEST_CASE("tiles: strips of rows are divided among the cores one by one") {
  if (!has_units()) return;
  const std::string device = device_with(kHalves[0]);
  const Tensor a = integers({512, 256}, kBF16, device), b = integers({256, 512}, kBF16, device);
  CHECK(lowered(product(a, b, kF32), device).launch.grid[0] == 16 * 16);
}

TEST_CASE("tiles: LLVM compiles the instructions for a processor that has them") {
  if (!has_units()) return;
#if defined(__x86_64__)
  const auto count = [](const std::string& text, const std::string& what) {
    int n = 0;
    for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += what.size()) ++n;
    return n;
  };
  const auto assembly = [&](DType t, const std::string& units) {
    const std::string device = device_with(units);
    const Tensor a = integers({128, 1024}, t, device), b = integers({1024, 128}, t, device);
    const Lowered l = lowered(product(a, b, t.is_half() ? kF32 : kI32), device);
    const char* name = t == kF16 ? "graniterapids" : "sapphirerapids";
    const llvm_c::Processor processor{llvm_c::library().triple, name, ""};
    return llvm_c::compile(l.source, processor, "default<O2>", llvm_c::Output::Assembly);
  };
  if (llvm_c::library().major < 18)
    return;  // what such a processor has is not used: llvm_library.cpp
  const std::string halves = assembly(kBF16, "plain amx-bf16");
  // Two tiles of rows by two of columns: a product for each load, however LLVM unrolls the loop.
  CHECK(count(halves, "tdpbf16ps") >= 4);
  CHECK(count(halves, "tileloadd") == count(halves, "tdpbf16ps"));
  CHECK(count(halves, "ldtilecfg") == 1);
  CHECK(count(halves, "tilerelease") == 1);
  CHECK(count(assembly(kF16, kF16Unit), "tdpfp16ps") >= 4);
  CHECK(count(assembly(kI8, "plain amx-int8"), "tdpbssd") >= 4);
  CHECK(count(assembly(kU8, "plain amx-int8"), "tdpbuud") >= 4);
  CHECK(count(assembly(kBF16, "plain avx512bf16"), "vdpbf16ps") > 8);
  CHECK(count(assembly(kI8, "plain avx512vnni"), "vpdpbusd") > 8);
#endif
}

TEST_CASE(
    "tiles: rows that lie beside each other are stored together, for as many columns as a line "
    "has") {
  if (!has_units()) return;
  const bool is_wide = find_device("CPU").target().vector_bytes == 64;
  for (const auto& [t, units] : {std::pair(kBF16, kHalves[1]), std::pair(kI8, kBytes[0])}) {
    const std::string device = device_with(units);
    const Tensor a = integers({64, 64}, t, device), b = integers({64, 64}, t, device);
    const auto s = schedule_of(product(a, b, t == kBF16 ? kF32 : kI32), device);
    int joined = 0;
    for (const Step& step : s->steps) {
      const Lowered l = lower(step.kernel.get(), "k", find_device(device).target());
      for (Node store : l.machine->srcs())
        joined +=
            store->src(2)->op == Op::Shuffle &&
            store->src(2)->dtype == t.vec(find_device(device).target().vector_bytes / t.size());
    }
    CHECK(joined == (is_wide ? 4 : 1));
  }
}

TEST_CASE("tiles: an operand that lies in another order is no fragment") {
  Target target;
  target.language = Target::Language::LlvmIr;
  target.arch = "amx-bf16";
  Arena arena;
  ArenaScope scope(arena);
  const auto range = [](int64_t n, int id, RangeKind kind) {
    return make(Op::Range, kIndex, {index(n)}, RangeArg{id, kind});
  };
  const auto param = [](int64_t slot, int64_t n, DType t) {
    const int64_t numbers[] = {slot, n};
    return make(Op::Param, t, {}, Ints(numbers));
  };
  Node m = range(16, 0, RangeKind::Loop), n = range(16, 1, RangeKind::Loop);
  Node k = range(32, 2, RangeKind::Reduce);
  const auto sum_of = [&](Node of_a, Node of_b) {
    const auto operand = [&](int slot, Node at) {
      return make(Op::Cast, kF32, {make(Op::Load, kBF16, {param(slot, 512, kBF16), at})});
    };
    Node mul = make(Op::Mul, kF32, {operand(1, of_a), operand(2, of_b)});
    Node sum = make(Op::Reduce, kF32, {mul, k}, OpArg{Op::Add});
    Node at = index_add(index_mul(m, 16), n);
    return make(Op::Sink, kVoid, {make(Op::Store, kVoid, {param(0, 256, kF32), at, sum})});
  };
  Node rows = index_add(index_mul(m, 32), k);
  Node pairs =
      index_add(index_mul(index_div(k, 2), 32), index_add(index_mul(n, 2), index_mod(k, 2)));
  Node columns = index_add(index_mul(k, 16), n);
  const Opt opt{OptKind::Mma, 0, 0, {1, 2}};
  std::string why;
  CHECK_MESSAGE(is_legal(sum_of(rows, pairs), opt, target, &why), why);
  CHECK(!is_legal(sum_of(rows, columns), opt, target, &why));
  CHECK(why == "a fragment's elements do not lie one after the other");
  target.arch = "avx512vnni";
  CHECK(!is_legal(sum_of(rows, pairs), opt, target, &why));
  CHECK(why == "no matrix unit takes bf16 and bf16");
}

TEST_CASE("byte_dot is one instruction where the processor has it, and the same elsewhere") {
  if (!has_units()) return;
  const std::string native = device_with("avx512vnni"), none = device_with("none");
  std::vector<int32_t> words(67);
  for (size_t i = 0; i < words.size(); ++i)
    words[i] = static_cast<int32_t>(static_cast<uint32_t>(i + 1) * 2654435761u);
  const auto sum = [&](const std::string& device) {
    const Tensor x = Tensor::from(words, {67}, device);
    return byte_dot(x, x.flip(), x >> 9);
  };
  const auto text = [&](const std::string& device) {
    Target target = find_device(device).target();
    target.emulates = false;
    const auto s = schedule_of(sum(device), device);
    for (const Step& step : s->steps)
      if (step.kernel) return lower(step.kernel.get(), "k", target).source.text;
    return std::string();
  };
  CHECK(text(native).find("vpdpbusd") != std::string::npos);
  CHECK(text(none).find("vpdpbusd") == std::string::npos);
  std::vector<int32_t> expected(67);
  for (size_t i = 0; i < words.size(); ++i) {
    expected[i] = words[i] >> 9;
    for (int at = 0; at < 32; at += 8)
      expected[i] += static_cast<uint8_t>(words[i] >> at) *
                     static_cast<int8_t>(words[words.size() - 1 - i] >> at);
  }
  CHECK(sum(native).to_vector<int32_t>() == expected);
  CHECK(sum(none).to_vector<int32_t>() == expected);
}

TEST_CASE("tiles: CPU_UNITS names units that there are") {
  if (!has_units()) return;
  const EnvOverride wrong("CPU_UNITS", "avx512bf16 sse");
  CHECK_THROWS_WITH_AS(CpuDevice("llvm"),
                       "CPU_UNITS=avx512bf16 sse: there are amx-bf16, amx-fp16, amx-int8, "
                       "avx512bf16, avx512vnni",
                       Error);
  const EnvOverride none("CPU_UNITS", "none");
  CHECK(CpuDevice("llvm").target().arch.empty());
  CHECK(CpuDevice("cc").target().arch.empty());
}
