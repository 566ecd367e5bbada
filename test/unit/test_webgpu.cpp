// WGSL's text, and kernels in a real browser where there is one (devices/webgpu).
#include "devices/webgpu/webgpu.h"

#include <doctest/doctest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>

#include "codegen/lower.h"
#include "runtime/device/buffer.h"
#include "runtime/schedule/schedule.h"
#include "test/error_of.h"
#include "test/temporary_folder.h"
#include "tiny/base/env.h"
#include "tiny/ir/build.h"
#include "tiny/tiny.h"

using namespace tiny;

namespace {

// The kernels of a tensor on WebGPU, which no browser is needed for.
std::vector<Lowered> kernels_of(const Tensor& t) {
  const Node root = build::contiguous(t.node());
  const Normalized graph = normalize({&root, 1});
  const int id = device_id("WEBGPU");
  const auto s = schedule(graph, std::vector<int>(graph.buffers.size(), id), id);
  std::vector<Lowered> out;
  for (const Step& step : s->steps)
    out.push_back(lower(step.kernel.get(), step.name, webgpu_target()));
  return out;
}

std::string text_of(const Tensor& t) {
  std::string out;
  for (const Lowered& low : kernels_of(t)) out += low.source.text;
  return out;
}

Tensor memory(const Shape& shape, DType dtype = kF32) {
  return Tensor::zeros(shape, dtype).contiguous().realize();
}

size_t count(const std::string& text, const std::string& what) {
  size_t out = 0;
  for (size_t at = 0; (at = text.find(what, at)) != text.npos; at += what.size()) ++out;
  return out;
}

// The text for devices that have a feature, or for others: as devices/webgpu/page.js makes it.
std::string text_for(bool has, const std::string& text, const std::string& feature = "subgroups") {
  std::string out;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    if (!line.ends_with((has ? "//-" : "//+") + feature)) out += line + "\n";
  return out;
}

Tensor bits_of(const Tensor& halves) { return halves.bitcast(kU16).to(kI32); }

// Kernels of f16 that access it by whole words and otherwise, and threads that add to it.
std::vector<Tensor> uses_of_halves() {
  const auto halves = [](const Shape& shape) { return memory(shape, kF16); };
  return {halves({64, 1024}).softmax(1),
          halves({1001}) * 3,
          halves({1002}).narrow(0, 1, 999).reshape({333, 3}).narrow(1, 0, 1).flip({0}) + 1,
          halves({64, 96}).matmul(halves({96, 64})),
          bits_of(halves({100})),
          where(memory({100}) > 0, halves({100}), INFINITY),
          halves({50}).scatter_add(0, memory({100}, kI32), halves({100})),
          halves({3, 1000}).cumsum(1)};
}

// False, and says so once, where kernels cannot be run.
bool has_browser() {
  const std::string why = missing_for_webgpu();
  static bool said = false;
  if (!why.empty() && !std::exchange(said, true)) MESSAGE("no kernels run in a browser: " << why);
  return why.empty();
}

// The values, of type R, of a function of x on the CPU and in the browser.
template <class R = void, class T, class F> void check_same(const std::vector<T>& x, F function) {
  using Value = std::conditional_t<std::is_void_v<R>, T, R>;
  if (!has_browser()) return;
  const Tensor given = Tensor::from(x);
  const Tensor here = function(given.to("CPU"));
  const Tensor there = function(given.to("WEBGPU"));
  const auto a = there.to("CPU").template to_vector<Value>(), b = here.template to_vector<Value>();
  REQUIRE(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i)
    if (a[i] != b[i]) FAIL_CHECK("element " << i << " is " << a[i] << " and not " << b[i]);
}

}  // namespace

TEST_CASE("kernels of WebGPU have at most eight buffers and 256 threads") {
  Tensor sum = memory({1000});
  for (int i = 0; i < 20; ++i) sum = sum + memory({1000}) * float(i + 1);
  const auto all = kernels_of(sum);
  CHECK(all.size() >= 3);
  for (const Lowered& low : all)
    CHECK(count(low.source.text, "@binding") <= size_t(webgpu_target().most_buffers));
  for (const Lowered& low : kernels_of(memory({8, 100000}).sum(1)))
    CHECK(low.launch.block[0] * low.launch.block[1] * low.launch.block[2] <= 256);
}

TEST_CASE("a tensor that no kernel of WebGPU may see is an error with its size and the limit") {
  constexpr int64_t kLimit = int64_t{128} << 20;
  CHECK(webgpu_target().most_buffer_bytes == kLimit);
  // Nothing is allocated: the values are made where they are asked for.
  const auto rows = [](int64_t n) { return Tensor::arange(1 << 10).expand({n, 1 << 10}).to(kF32); };
  CHECK(kernels_of(rows(kLimit >> 12)).size() == 1);
  const std::string error = error_of([&] { kernels_of(rows((kLimit >> 12) + 1)); });
  CHECK(has(error, "shape (32769,1024) f32, 134221824 bytes"));
  CHECK(has(error, "webgpu lets it see 134217728"));
  // f16 has two bytes an element, and what is read counts as well.
  CHECK(kernels_of(rows(kLimit >> 11).to(kF16)).size() == 1);
  CHECK(has(error_of([&] { kernels_of(rows((kLimit >> 11) + 1).to(kF16)); }), "134219776 bytes"));
  CHECK(has(error_of([&] { kernels_of(memory({(kLimit >> 2) + 1}).narrow(0, 5, 3) + 1); }),
            "shape (33554433) f32"));
}

TEST_CASE("threads of WebGPU share a sum where each of them has 64 elements") {
  const auto shared = [](const Shape& shape, int axis) {
    return count(text_of(memory(shape).sum(axis)), "workgroupBarrier") > 0;
  };
  CHECK(!shared({8, 96}, 1));
  CHECK(shared({8, 1024}, 1));
  CHECK(!shared({96, 24}, 0));
}

TEST_CASE("kernels are WGSL, whatever features a device has") {
  if (env_text("DAWN").empty()) {
    MESSAGE("no WGSL is compiled: DAWN names no folder of npm's package webgpu");
    return;
  }
  std::vector<std::string> texts;
  for (const Tensor& t : uses_of_halves())
    for (const Lowered& low : kernels_of(t)) texts.push_back(low.source.text);
  const test::TemporaryFolder folder("wgsl");
  std::ofstream(folder.file("texts")) << nlohmann::json(texts).dump();
  const std::string command =
      cat("cd ", TINY_ROOT, " && node test/webgpu/validate.mjs ", folder.file("texts"));
  FILE* pipe = popen(command.c_str(), "r");
  REQUIRE(pipe);
  std::string out;
  for (char part[512]; fgets(part, sizeof part, pipe);) out += part;
  CHECK(pclose(pipe) == 0);
  CHECK(out == cat(4 * texts.size(), " compiled\n"));
}

TEST_CASE("threads of WebGPU exchange by subgroups in a text that stands without them as well") {
  const std::string text = text_of(memory({64, 1024}).softmax(1));
  const std::string with = text_for(true, text), without = text_for(false, text);
  CHECK(with.substr(with.find('\n') + 1).starts_with("enable subgroups;"));
  CHECK(count(with, "subgroupShuffleXor(") == 2);  // the maximum and the sum
  CHECK(count(without, "subgroup") == count(without, "//-subgroups"));
  for (const std::string* one : {&with, &without}) {
    CHECK(count(*one, "fn main(") == 1);
    CHECK(count(*one, "let tid = ") == 1);
    CHECK(count(*one, "let lanes = ") == 1);
  }
  // Threads that exchange nothing need no subgroups.
  CHECK(count(text_of(memory({64, 1024}) + 1), "subgroup") == 0);
}

TEST_CASE("f16 is a type where the device has it, and bits of words in the same text elsewhere") {
  for (const Tensor& t : uses_of_halves()) {
    const std::string text = text_of(t);
    const std::string with = text_for(true, text, "f16"), without = text_for(false, text, "f16");
    CHECK(with.find("enable f16;") != with.npos);
    CHECK(with.find("alias half = f16;") != with.npos);
    CHECK(without.find("f16;") == without.npos);
    CHECK(count(with, "@binding") == count(without, "@binding"));
  }
  // Each thread has its element, none goes through a word; halves that lie side by side are one.
  const std::string odd = text_for(true, text_of(memory({1001}, kF16) * 3), "f16");
  CHECK(count(odd, "array<half, 1001>") == 2);
  CHECK(count(odd, "atomic") == 0);
  CHECK(count(text_of(memory({1024}, kF16) * 3), "array<halves, 512>") == 2);
  CHECK(count(text_of(memory({64}) + 1), "f16") == 0);
}

TEST_CASE("WGSL declares what a kernel writes, and lengths as uniforms") {
  const Variable n = Variable("n", 1, 64).bind(5);
  const std::string text = text_of(memory({64}).narrow(0, 0, n).sum(0));
  CHECK(text.find("var<uniform> b") != text.npos);
  CHECK(text.find("b0: array<f32, 1>;  // 4 bytes, written\n") != text.npos);
  CHECK(count(text_of(memory({100}) + 1), "// 400 bytes") == 2);
}

TEST_CASE("doubles are an error that says what to use") {
  CHECK(error_of([&] { text_of(memory({4}, kF64) * 2); }).find("of f64: use f32") !=
        std::string::npos);
}

TEST_CASE("integers of 64 bits are pairs of words where a high word counts") {
  const auto pairs = [](const Tensor& t) { return count(text_of(t), "_64("); };
  CHECK(pairs(memory({4}, kI64) * memory({4}, kI64)) > 0);
  CHECK(pairs(memory({4}, kI32).sum(0)) > 0);
  // Bounds that are known, indices and what is only moved are words.
  CHECK(pairs(memory({3, 50}).argmax(1)) == 0);
  CHECK(pairs(memory({9, 40}, kI32).sum(1).to(kI32)) == 0);
  CHECK(pairs(memory({9, 4}).index_select(0, memory({3}, kI64))) == 0);
  CHECK(pairs(memory({3, 5}, kI64).permute({1, 0})) == 0);
}

TEST_CASE("integers of 64 bits in pairs are those of the CPU") {
  std::vector<int64_t> x{
      0,         1,         -1,           INT64_MIN, INT64_MAX,    1LL << 32, -(1LL << 32),
      INT32_MAX, INT32_MIN, 0xffffffffLL, -5,        3'000'000'007};
  for (uint64_t state = 88172645463325252u; x.size() < 400;) {  // xorshift
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    x.push_back(static_cast<int64_t>(state) >> (x.size() % 60));
  }
  const std::vector<uint64_t> y(x.begin(), x.end());
  const auto check_both = [&](const auto& function) {
    check_same(x, [&](const Tensor& t) { return function(t).to(t.dtype()); });
    check_same(y, [&](const Tensor& t) { return function(t).to(t.dtype()); });
  };
  const auto turned = [](const Tensor& t) { return t.flip({0}); };
  check_both([&](const Tensor& t) { return t + turned(t) * 3 - (t & turned(t)); });
  check_both([&](const Tensor& t) { return t * turned(t); });
  check_both([&](const Tensor& t) { return trunc_div(t, turned(t) | 1); });
  check_both([&](const Tensor& t) { return mod(t, turned(t) | 1); });
  check_both([&](const Tensor& t) { return maximum(t, turned(t)) ^ minimum(t, 77); });
  check_both([&](const Tensor& t) {
    return where(t < turned(t), t << 5, where(t <= turned(t) * 2, t >> 33, t.bitwise_not()));
  });
  check_both([&](const Tensor& t) { return (t == turned(t)).to(kI32) + (t != 0).to(kI32) * 2; });
  check_both([&](const Tensor& t) { return t.to(kF32).to(t.dtype()); });
  check_both([&](const Tensor& t) { return t.to(kF32).to(kI64).to(t.dtype()); });
  check_both([&](const Tensor& t) { return (t.to(kI32).to(kI64) + t.to(kU8).to(kI64)) * 9; });
  check_both([&](const Tensor& t) { return t.reshape({4, 100}).sum(1); });
  check_both([&](const Tensor& t) {
    return t.expand({30, 400}).max(1) + t.expand({30, 400}).min(1);
  });
  check_both([&](const Tensor& t) { return t.cumsum(0); });
  check_both([&](const Tensor& t) { return t.reshape({20, 20}).cumprod(1); });
  check_both([&](const Tensor& t) { return t.reshape({20, 20}).matmul(t.reshape({20, 20})); });
  check_both([&](const Tensor& t) { return t.sort(0).values + t.argsort(0, true).to(t.dtype()); });
}

TEST_CASE("a word of 64 bits is shifted by more than a word has") {
  std::vector<int64_t> x(256);
  for (size_t i = 0; i < x.size(); ++i) x[i] = (static_cast<int64_t>(i) - 100) * 0x123456789;
  const auto by = [](const Tensor& t, int64_t most) {
    return mod(Tensor::arange(t.numel()).to(t.device()), most);
  };
  // Nothing depends on the high word of these but the number of bits.
  check_same(x, [&](const Tensor& t) { return (t << by(t, 64)).to(kI32).to(kI64); });
  check_same(x, [](const Tensor& t) { return (t << 40).to(kI32).to(kI64); });
  check_same(x, [](const Tensor& t) { return (t << 7).to(kI32).to(kI64); });
  const auto small = [](const Tensor& t) { return t.to(kI8).to(kI64); };
  check_same(x, [&](const Tensor& t) { return small(t) >> by(t, 64); });
  check_same(x, [&](const Tensor& t) { return small(t) >> 40; });
  check_same(x, [&](const Tensor& t) { return small(t) >> 3; });
  const std::vector<uint64_t> y(x.begin(), x.end());
  check_same(y, [&](const Tensor& t) { return t.to(kU8).to(kU64) >> by(t, 64).to(kU64); });
}

TEST_CASE("sort, topk, median, nonzero and sums of integers are those of the CPU") {
  std::vector<float> x(1500);
  std::vector<int32_t> y(1500);
  for (size_t i = 0; i < x.size(); ++i) {
    y[i] = static_cast<int32_t>(static_cast<uint32_t>(i) * 2654435761U);
    x[i] = static_cast<float>(y[i] % 40) / 8;  // many are equal
  }
  x[7] = NAN, x[9] = -INFINITY, x[11] = -0.F;
  const auto both = [&](const auto& function) {
    check_same(x, [&](const Tensor& t) {
      const Tensor out = function(t).to(kF32);
      return where(out.isnan(), 99, out);
    });
    check_same(y, [&](const Tensor& t) { return function(t).to(kI32); });
  };
  both([](const Tensor& t) { return t.sort(0).values; });
  both([](const Tensor& t) { return t.sort(0, true).indices; });
  both([](const Tensor& t) { return t.reshape({3, 500}).argsort(1); });
  both([](const Tensor& t) { return t.reshape({3, 500}).topk(7, 1).indices; });
  both([](const Tensor& t) { return t.reshape({500, 3}).topk(400, 0, false).values; });
  both([](const Tensor& t) { return t.reshape({3, 500}).median(1); });
  both([](const Tensor& t) { return t.cummax(0).indices; });
  check_same(y, [](const Tensor& t) { return (t.reshape({3, 500}).sum(1) >> 8).to(kI32); });
  check_same(y, [](const Tensor& t) { return (t > 0).nonzero(700).to(kI32); });
}

TEST_CASE("a grid larger than a dimension of a dispatch goes on in the next one") {
  LaunchSize size;
  size.grid[0] = 65535;
  CHECK(!dispatch_size(size, webgpu_target()).linear);
  size.grid[0] = 70000;
  size.grid[1] = 3;
  const Dispatch d = dispatch_size(size, webgpu_target());
  CHECK(d.linear);
  CHECK(d.groups[0] == 65535);
  CHECK(d.groups[1] == (3 * 70000 + 65534) / 65535);
  if (!has_browser()) return;
  // A block of one thread for each element.
  constexpr int64_t kSize = 70000;
  Tensor x = Tensor::arange(kSize).to(kI32).contiguous().realize();
  const Node root = build::contiguous((x * 2 + 1).node());
  const auto s = schedule(normalize({&root, 1}), {device_id("WEBGPU")}, device_id("WEBGPU"));
  const Choice choice{options_from_text("bind r0 block"), false};
  const Lowered low = lower(s->steps[0].kernel.get(), "k", webgpu_target(), nullptr, &choice);
  CHECK(dispatch_size(low.launch, webgpu_target()).linear);
  Device& device = find_device("WEBGPU");
  Tensor given = x.to("WEBGPU").contiguous();
  given.realize();
  Buffer out("WEBGPU", kI32, kSize);
  const auto program = device.load(low.source.text, low.source.entry);
  device.launch(*program, low.launch, {out.data(), whole_buffer(given.node())->data()});
  std::vector<int32_t> values(kSize);
  out.download(values.data());
  for (size_t i = 0; i < values.size(); ++i)
    if (values[i] != static_cast<int32_t>(2 * i + 1)) FAIL("element " << i << " is " << values[i]);
}

TEST_CASE("bytes and halves lie in words that several threads change") {
  std::vector<uint8_t> bytes(1001);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * 37);
  check_same(bytes, [](const Tensor& x) { return x * 3 + 1; });
  check_same(bytes, [](const Tensor& x) {
    return x.narrow(0, 1, 999).reshape({333, 3}).narrow(1, 0, 1).flip({0});
  });
  std::vector<int8_t> small(bytes.begin(), bytes.end());
  check_same(small, [](const Tensor& x) { return -x; });
  check_same(small, [](const Tensor& x) { return floor_div(x, 7); });
  std::vector<int16_t> words(bytes.begin(), bytes.end());
  check_same(words, [](const Tensor& x) { return x * x - 5; });
}

TEST_CASE("f16 has the values of the CPU, whether a device has it or not") {
  std::vector<int32_t> all(1 << 16);
  std::iota(all.begin(), all.end(), 0);
  const auto half = [](const Tensor& t) { return t.to(kU16).bitcast(kF16); };
  check_same(all, [&](const Tensor& t) { return bits_of(half(t)); });
  check_same(all, [&](const Tensor& t) {
    const Tensor wide = half(t).to(kF32);
    return where(wide.isnan(), 7, wide).bitcast(kI32);
  });
  std::vector<float> x{0,       -0.F,    INFINITY,     -INFINITY, 65504,       65519,
                       65520,   1e6F,    6e-8F,        3e-8F,     2.9e-8F,     -1e-7F,
                       6.1e-5F, 6.2e-5F, 1 + 0x1p-11F, 1e-30F,    0x3p-11F + 1};
  for (int i = 0; x.size() < 3001; ++i) x.push_back(std::sin(i * 0.7F) * std::exp2(i % 40 - 24.F));
  check_same<int32_t>(x, [](const Tensor& t) { return bits_of(t.to(kF16)); });
  check_same<int32_t>(
      x, [](const Tensor& t) { return bits_of(t.to(kF16) * 3 + t.flip({0}).to(kF16)); });
  check_same<int32_t>(x, [](const Tensor& t) {
    const Tensor h = t.to(kF16).contiguous();
    return bits_of(h.narrow(0, 1, 2999).flip({0}).contiguous() + h.narrow(0, 2, 2999));
  });
  check_same<int32_t>(x, [](const Tensor& t) {
    const Tensor few = t.clamp(-1, 1).to(kF16).narrow(0, 0, 3000).reshape({3, 1000});
    return bits_of(few.max(1)) + bits_of(few.permute({1, 0}).contiguous().min(0));
  });
  check_same<int32_t>(x, [](const Tensor& t) {
    const Tensor at = mod(t.abs().to(kI32), 50);
    const Tensor ones = Tensor::ones({3001}).to(t.device()).to(kF16);
    return bits_of(Tensor::zeros({50}, kF16).to(t.device()).scatter_add(0, at, ones));
  });
}

TEST_CASE("sums of threads, scans and additions in memory are those of the CPU") {
  std::vector<int32_t> x(3000);
  for (size_t i = 0; i < x.size(); ++i)
    x[i] = static_cast<int32_t>(static_cast<uint32_t>(i) * 2654435761U >> 20) - 2000;
  const auto i32 = [](const Tensor& t) { return t.to(kI32); };
  check_same(x, [](const Tensor& t) { return t.reshape({3, 1000}).max(1); });
  check_same(x, [](const Tensor& t) { return t.reshape({3, 1000}).min(0); });
  check_same(x, [&](const Tensor& t) { return i32(t.reshape({30, 100}).argmax(1)); });
  std::vector<float> y(x.begin(), x.end());
  check_same(y, [](const Tensor& t) { return t.cumsum(0); });
  check_same(y, [](const Tensor& t) {
    const Tensor at = mod(t.to(kI32).abs(), 50);
    return Tensor::zeros({50}).to(t.device()).scatter_add(0, at, t);
  });
}

TEST_CASE("what threads of a block combine is what the CPU gives, whatever its width") {
  std::vector<int32_t> x(3 * 40960);
  for (size_t i = 0; i < x.size(); ++i)
    x[i] = static_cast<int32_t>(static_cast<uint32_t>(i) * 2654435761U >> 24) - 128;
  const std::vector<float> y(x.begin(), x.end());  // whose sums, below 2^24, are exact
  const auto i32 = [](const Tensor& t) { return t.to(kI32); };
  for (int64_t n : {128, 192, 320, 640, 1000, 1536, 8192, 40960}) {
    CAPTURE(n);
    const auto rows = [n](const Tensor& t) { return t.narrow(0, 0, 3 * n).reshape({3, n}); };
    check_same(y, [&](const Tensor& t) { return rows(t).sum(1); });
    check_same(y, [&](const Tensor& t) { return rows(t).max(1) - rows(-t).min(1); });
    check_same(x, [&](const Tensor& t) { return i32(rows(t | 1).prod(1)); });
    check_same(
        x, [&](const Tensor& t) { return i32(rows(t).sum(1) + rows(t.to(kI64) << 40).sum(1)); });
    check_same(
        x, [&](const Tensor& t) { return i32(rows(t > 126).any(1)) + i32(rows(t > -129).all(1)); });
    check_same(y, [&](const Tensor& t) { return t.narrow(0, 0, 3 * n).reshape({n, 3}).sum(0); });
    check_same(y, [&](const Tensor& t) {
      const Tensor few = rows(t).clamp(-8, 7);
      return few.matmul(few.permute({1, 0}));
    });
  }
}

TEST_CASE("NaN, infinities and large angles are what they are on the CPU") {
  const float inf = INFINITY, nan = NAN;
  const std::vector<float> x{1, -inf, inf, nan, -0.F, 0, -3, 1e-30F};
  const auto flag = [](const Tensor& t) { return t.to(kF32); };
  check_same(x, [&](const Tensor& t) { return flag(t != t) + flag(t.isinf()) * 2; });
  check_same(x, [&](const Tensor& t) { return flag(maximum(t, t.flip({0})) == t) + flag(t > 0); });
  check_same(std::vector<float>{3.5F, -2.5F, 300, nan, inf, -inf},
             [](const Tensor& t) { return t.to(kI8).to(kF32) + t.to(kU8).to(kF32); });
  if (!has_browser()) return;
  const std::vector<float> angles{0.5F, 100, 1e5F, 123456.7F, -3e7F, 2.5e20F, 3e38F};
  const std::vector<float> sines =
      Tensor::from(angles).to("WEBGPU").sin().to("CPU").to_vector<float>();
  for (size_t i = 0; i < angles.size(); ++i)
    CHECK(std::abs(sines[i] - std::sin(static_cast<double>(angles[i]))) < 4e-7);
}
