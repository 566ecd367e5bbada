// What the heuristic for GPUs chooses for kernels whose speed hangs on it.
#include <doctest/doctest.h>

#include <algorithm>

#include "codegen/kernel/access.h"
#include "codegen/kernel/option.h"
#include "codegen/lower.h"
#include "runtime/device/buffer.h"
#include "runtime/realize/realize.h"
#include "runtime/schedule/schedule.h"
#include "test/unit/matrix_kernel.h"
#include "test/unit/schedules.h"
#include "tiny/base/env.h"
#include "tiny/ir/build.h"
#include "tiny/ir/sizes.h"
#include "tiny/tiny.h"

using namespace tiny;

namespace {

constexpr const char* kGpu = "EMU:CUDA:sm_90a";

// In memory that nobody touches.
Tensor memory(const Shape& shape, DType dtype = kF32) {
  const auto buffer = std::make_shared<Buffer>(kGpu, dtype, numel(shape));
  return Tensor(build::reshape(buffer_node(buffer), shape));
}

std::vector<Lowered> kernels(const Tensor& t, const char* gpu = kGpu) {
  const Node root = t.node();
  const Normalized graph = normalize({&root, 1});
  const std::vector<int> devices(graph.buffers.size(), device_id(kGpu));
  const auto s = schedule(graph, devices, device_id(kGpu));
  std::vector<Lowered> out;
  for (const auto& step : s->steps)
    if (step.kernel) out.push_back(lower(step.kernel.get(), "k", find_device(gpu).target()));
  return out;
}

// The last kernel of what computes the tensor.
Lowered last_kernel(const Tensor& t) { return kernels(t).back(); }

// A convolution of 16-bit floats, whose channels are innermost in memory.
Tensor convolved(int64_t images, int64_t channels, int64_t size) {
  const Tensor x = memory({images, size, size, 64}, kF16).permute({0, 3, 1, 2});
  return conv2d(x, memory({channels, 64, 3, 3}, kF16), {}, {.padding = 1});
}

bool holds(const Lowered& low, const char* text) {
  return low.source.text.find(text) != std::string::npos;
}

}  // namespace

TEST_CASE("GPU options: a row is read once, also where its sum looks like a product") {
  const Tensor x = memory({2048, 4096}), w = memory({4096});
  const Lowered low = last_kernel(rms_norm(x, {4096}, w));
  CHECK(to_text(low.options).find("join") == 0);
  CHECK(low.launch.grid[0] == 2048);
}

TEST_CASE(
    "GPU options: what is written across the rows that it belongs to has a kernel of its own") {
  const Tensor x = memory({1024, 8192}), bias = memory({8192, 1});
  const std::vector<Lowered> all = kernels(x.min(1).reshape({1, 1024}) + bias);
  REQUIRE(all.size() == 2);
  CHECK(all[0].launch.grid[0] == 1024);
  CHECK(kernels(x.min(1, true) + memory({8192})).size() == 1);  // along them
}

TEST_CASE("GPU options: a window is unrolled, and a thread has some that share elements") {
  const Tensor x = memory({64, 32, 64, 64});
  const auto threads = [](const Lowered& low) { return low.launch.grid[0] * low.launch.block[0]; };
  const Lowered low = last_kernel(max_pool2d(x, 3, {.stride = 2, .padding = 1}));
  CHECK(threads(low) == 64 * 32 * 32 * 32 / 4);
  const std::string& text = low.source.text;
  for (size_t at = text.find("for ("); at != std::string::npos; at = text.find("for (", at + 1))
    CHECK(text.substr(at - 7, 7) == "UNROLL ");
  CHECK(threads(last_kernel(max_pool2d(x, 2))) == 64 * 32 * 32 * 32);
  // Where there are few, several threads share one.
  const Lowered few =
      last_kernel(max_pool2d(memory({1, 32, 64, 64}), 3, {.stride = 2, .padding = 1}));
  CHECK(threads(few) * few.launch.block[1] == 8 * 32 * 32 * 32);
}

TEST_CASE("GPU options: threads that share a row have several of its elements each") {
  const auto threads = [](const Lowered& low) { return low.launch.block[0]; };
  const auto rows = [](int64_t width, DType t = kF32) { return memory({1 << 20, width}, t); };
  CHECK(threads(last_kernel(rows(33).sum(1))) == 4);
  CHECK(threads(last_kernel(rows(101).max(1))) == 16);
  CHECK(threads(last_kernel(rows(256, kBF16).sum(1))) == 8);
  CHECK(threads(last_kernel(rows(17).softmax(1))) == 4);
  CHECK(threads(last_kernel(rows(61).softmax(1))) == 16);
  CHECK(threads(last_kernel(rows(256, kBF16).softmax(1))) == 16);
  CHECK(threads(last_kernel(rows(256).softmax(1))) == 32);
  // A short tensor has all its elements read at once.
  CHECK(threads(last_kernel(memory({1024, 33}).sum(1))) == 64);
}

TEST_CASE("GPU options: a column that is read again is kept in registers") {
  const auto loads = [](const Tensor& t) {
    const std::string text = last_kernel(t).source.text;
    size_t count = 0;
    for (size_t at = text.find("b1["); at != std::string::npos; at = text.find("b1[", at + 1))
      ++count;
    return std::pair(count, text.find("for (i32") != std::string::npos);
  };
  CHECK(loads(memory({16, 64, 256, 256}).softmax(1)) == std::pair(size_t{64}, false));
  CHECK(loads(memory({16, 33, 255, 255}).softmax(1)) == std::pair(size_t{33}, false));
  CHECK(loads(memory({16, 96, 255, 255}).softmax(1)).second);  // too many
  // Of sums alone nothing is kept.
  CHECK(loads(memory({16, 33, 255, 255}).sum(1)).second);
}

TEST_CASE("GPU options: a thread has the pixels for which a strided convolution has other taps") {
  const Tensor x = memory({16, 64, 64, 128}), w = memory({64, 32, 3, 3});
  const Lowered low = last_kernel(conv_transpose2d(x, w, {}, {.stride = 5, .dilation = 2}));
  CHECK(to_text(low.options).find("5, bind r") != std::string::npos);
  const std::string& text = low.source.text;
  size_t remainders = 0;  // of the columns alone
  for (size_t at = text.find("% 5"); at != std::string::npos; at = text.find("% 5", at + 1))
    ++remainders;
  CHECK(remainders == 3);
}

TEST_CASE("GPU options: a thread has the windows of several channels that lie side by side") {
  const auto pooled = [](int64_t images, int64_t size, int64_t side) {
    const Shape windows{images, size, side, size, side, 64};
    return last_kernel(memory(windows, kF16).max(Shape{2, 4}));
  };
  const Lowered four = pooled(500, 16, 2), many = pooled(100, 16, 5), few = pooled(4, 16, 2);
  CHECK(four.launch.grid[0] * four.launch.block[0] == 500 * 16 * 16 * 64 / 8);
  CHECK(holds(four, "const f16x8*)(b1 + "));
  CHECK(holds(four, "*(f16x8*)(b0 + "));
  CHECK(holds(many, "const f16x2*)(b1 + "));  // not to have too many elements
  CHECK(!holds(few, "f16x"));                 // not to leave too few threads
}

TEST_CASE("GPU options: neighbouring threads have the pools that lie side by side") {
  // What is added to each channel is read along the channels, but it stays in L1.
  for (int64_t side : {2, 3}) {
    const Tensor x = memory({64, 96, 55, 55}) + memory({1, 96, 1, 1});
    const std::string text =
        to_text(last_kernel(max_pool2d(x.relu(), side, {.stride = 2})).options);
    CHECK(text.find("merge r0 r1, merge r0 r2, merge r0 r3") != std::string::npos);
  }
  const auto threads = [](const Lowered& low) { return low.launch.grid[0] * low.launch.block[0]; };
  const Tensor x = memory({64, 96, 55, 55});
  CHECK(threads(last_kernel(max_pool2d(x, 3, {.stride = 2}))) == 64 * 96 * 27 * 27 / 3);
}

TEST_CASE("GPU options: the ends of a padded pool are masked where it is read") {
  CHECK(kernels(max_pool2d(memory({4, 64, 56, 56}), 3, {.padding = 1})).size() == 1);
  CHECK(
      kernels(max_pool3d(memory({2, 8, 32, 32, 32}), 3, {.stride = 2, .padding = 1, .dilation = 3}))
          .size() == 1);
  // Each element would be computed for 49 windows.
  CHECK(kernels(max_pool2d(memory({4, 64, 56, 56}), 7, {.stride = 1, .padding = 3})).size() == 2);
}

TEST_CASE("GPU options: a thread has several elements of images that are padded to odd rows") {
  const auto threads = [](const Tensor& x) {
    const Lowered low = last_kernel(x.pad({{0, 0}, {0, 0}, {1, 0}, {1, 0}}).contiguous());
    return low.launch.grid[0] * low.launch.block[0];
  };
  CHECK(threads(memory({128, 64, 56, 56})) == ceil_div(128 * 64 * 57 * 57 / 4, 128) * 128);
  CHECK(threads(memory({127, 62, 56, 56})) == ceil_div(127 * 62 * 57 * 57 / 2, 128) * 128);
  CHECK(threads(memory({2, 64, 56, 56})) == ceil_div(2 * 64 * 57 * 57, 128) * 128);
  CHECK(threads(memory({512, 512, 4, 4})) == 512 * 512 * 25);  // they would write short pieces
}

TEST_CASE("GPU options: a thread that writes windows out walks all of theirs") {
  const auto written = [](int64_t images) {
    // Three pixels apart: two apart they would begin at multiples of 16 bytes and be read in place.
    const Tensor x = memory({images, 3, 168, 168}, kBF16), w = memory({64, 3, 7, 7}, kBF16);
    for (const Lowered& low : kernels(conv2d(x, w, {}, {.stride = {3}, .padding = {2}})))
      if (low.options[0].kind != OptKind::Matrix && holds(low, "bf16x4*)(b0 + ")) return low;
    return Lowered();
  };
  const int64_t pixels = int64_t{56} * 56 * 3;
  const Lowered many = written(128), few = written(8);
  CHECK(many.launch.grid[0] * many.launch.block[0] == 128 * pixels / 4);
  CHECK(few.launch.grid[0] * few.launch.block[0] >= 8 * pixels * 7 / 4);  // not to have few threads
}

TEST_CASE("GPU options: skinny GEMMs, which no tensor core takes, are split-K") {
  const auto product = [](int64_t rows, int64_t length) {
    return kernels(memory({length, rows}, kF16).t().matmul(memory({length, 256}, kF16)));
  };
  CHECK(product(10, 2000).size() == 2);
  CHECK(product(10, 2000)[0].launch.grid[0] > 64);
  CHECK(product(10, 500).size() == 1);   // not worth a second kernel
  CHECK(product(16, 2000).size() == 1);  // fragments
}

TEST_CASE("GPU options: a sum that is rounded for several readers is stored rounded") {
  const Tensor a = memory({512, 24}, kF16), b = memory({24, 40}, kF16), c = memory({40}, kF16);
  const Tensor y = a.matmul(b) + c;
  const Tensor both = Tensor::cat({y.relu().sum(0), (y * y.relu()).sum(1)});
  const auto all = kernels(both);
  REQUIRE(all.size() >= 2);
  CHECK(!holds(all[0], "f32* RESTRICT"));  // its results are 16-bit floats
}

TEST_CASE("GPU options: what a batch norm has for each channel is computed by one kernel") {
  const Tensor w = memory({64}), b = memory({64}), mean = memory({64}), var = memory({64});
  const BatchNormResult r =
      batch_norm(memory({64, 64, 28, 28}), w, b, mean, var, {.training = true});
  const Node roots[] = {r.y.node(), r.running_mean.node(), r.running_var.node()};
  const Normalized graph = normalize(roots);
  const std::vector<int> devices(graph.buffers.size(), device_id(kGpu));
  // A few samples, sums of parts, the channels' values, what is done with them.
  CHECK(schedule(graph, devices, device_id(kGpu))->steps.size() == 4);
}

TEST_CASE("GPU options: gradients of looked-up rows are added in vectors") {
  const Tensor w = memory({5000, 64}).requires_grad_(), g = memory({3000, 64});
  const Tensor sum = (w.embedding(memory({3000}, kI32)) * g).sum();
  CHECK(last_kernel(Tensor::gradient(sum, {w})[0]).source.text.find("atomic_add_lanes(b") !=
        std::string::npos);
}

TEST_CASE("GPU options: casts of 16-bit floats are stored 16 bytes at a time") {
  const Tensor x = memory({4096, 4096}, kBF16), at = memory({8192}, kI32);
  for (const Tensor& wide : {x.to(kF32), x.index_select(0, at).to(kF32)}) {
    const Lowered low = last_kernel(wide);
    CHECK(holds(low, "bf16x4*)(b"));
    CHECK(holds(low, "*(f32x4*)(b0 + "));
  }
  CHECK(holds(last_kernel(x + 1), "*(bf16x8*)(b0 + "));
}

TEST_CASE("GPU options: a row that is left over has a warp, which waits for all of it together") {
  const Tensor w = memory({50257, 768}).requires_grad_(), g = memory({32768, 768});
  const Tensor y = (w.embedding(memory({32768}, kI32)) * g).sum();
  const Lowered low = last_kernel(Tensor::gradient(y, {w})[0]);
  CHECK(low.launch.block[0] == 32);
  CHECK(low.launch.block[1] * low.launch.grid[0] == 32768);
  const std::string& text = low.source.text;
  CHECK(text.find("for (", text.find("KERNEL(256)")) == std::string::npos);
  CHECK(text.rfind("const f32x4*)(b3 + ") < text.find("atomic_add_lanes(b0"));
}

TEST_CASE(
    "GPU options: rows that begin anywhere are read in aligned vectors, gated at their ends") {
  const Tensor x = memory({4096, 50257}, kBF16);
  const Lowered row = last_kernel(x.to(kF32).max(1));
  CHECK(to_text(row.options).find("align r1 8, split r1 8, bind r2 vector") != std::string::npos);
  CHECK(row.source.text.find("const bf16x8*)(b1 + ") != std::string::npos);
  const Lowered stream = last_kernel(x + memory({4096, 1}, kBF16));
  CHECK(to_text(stream.options).find("align r1 8, split r1 8, bind r2 vector") == 0);
  CHECK(stream.source.text.find("*(bf16x8*)(b0 + ") != std::string::npos);
  CHECK(to_text(last_kernel(memory({4096, 50264}, kBF16).to(kF32).max(1)).options).find("align") ==
        std::string::npos);
}

TEST_CASE("GPU options: a loss over long rows reads them once, in pieces that threads can hold") {
  const Tensor x = memory({4096, 50257}, kBF16).to(kF32), y = memory({4096}, kI64);
  const Node root = cross_entropy(x, y).node();
  const Normalized graph = normalize({&root, 1});
  const std::vector<int> devices(graph.buffers.size(), device_id(kGpu));
  const auto s = schedule(graph, devices, device_id(kGpu));
  const Target& target = find_device(kGpu).target();
  REQUIRE(s->steps.size() == 3);  // pieces; rows and what the target picks; the mean
  const Lowered first = lower(s->steps[0].kernel.get(), "k", target);
  CHECK(first.launch.grid[0] == 4096 * 25 / 2);  // pieces, of which a warp holds one
  CHECK(first.source.text.find("UNROLL for (i32") == std::string::npos);  // held in registers
  for (size_t i = 1; i < s->steps.size(); ++i)  // the others read a few elements of each row
    CHECK(lower(s->steps[i].kernel.get(), "k", target).work.flops < 4096 * 256);
  CHECK(lower(s->steps[1].kernel.get(), "k", target).launch.block[1] == 8);  // full blocks of them
}

TEST_CASE("GPU options: few columns are summed by many threads each, in one kernel") {
  const Tensor x = memory({8192, 8192});
  const Lowered sum = last_kernel(x.sum(0));
  CHECK(sum.launch.block[0] * sum.launch.block[1] == 1024);
  CHECK(sum.launch.grid[0] == 256);
  CHECK(sum.source.text.find("apart_add<128, 8>") != std::string::npos);
  const Tensor w = memory({11008, 4096}, kBF16), v = memory({1, 11008}, kBF16);
  const Lowered product = last_kernel(v.matmul(w));
  CHECK(product.launch.grid[0] == 128);
  CHECK(product.source.text.find("const bf16x8*)(b1 + ") != std::string::npos);
  // Enough columns: a thread for each four of them, or rather for as many parts of the rows.
  const Lowered many = last_kernel(memory({64, 1 << 20}).sum(0));
  CHECK(many.source.text.find("apart_") == std::string::npos);
}

TEST_CASE("GPU options: what is only moved is transposed in registers, in vectors both ways") {
  for (DType t : {kF32, kBF16}) {
    const std::string text = last_kernel(memory({4096, 4096}, t).t().contiguous()).source.text;
    const std::string vector = t == kF32 ? "f32x4" : "bf16x8";
    CHECK(text.find("const " + vector + "*)(b1 + ") != std::string::npos);
    CHECK(text.find("*(" + vector + "*)(b0 + ") != std::string::npos);
  }
}

TEST_CASE("GPU options: blocks that transpose several rows have whole warps") {
  const Tensor part =
      memory({512, 32, 24, 24}).slice({0, 0, 0, 0}, {512, 32, 20, 20}, {1, 1, 1, 1});
  const Lowered low = last_kernel(part.permute({0, 2, 3, 1}).contiguous());
  CHECK(holds(low, "*(f32x4*)(b0"));
  const auto& block = low.launch.block;
  CHECK(block[0] * block[1] * block[2] % 32 == 0);
}

TEST_CASE("GPU options: windows one below the other read their rows once for a matrix unit") {
  const EnvOverride allow("ALLOW_TF32", "1");
  // More pixels of an image than a block has warps for.
  const Lowered low = last_kernel(conv2d(memory({64, 32, 84, 24}), memory({32, 32, 5, 5})));
  REQUIRE(holds(low, "mma_tf32("));
  CHECK(low.launch.shared_bytes == 0);
  const std::string &text = low.source.text, mark = "UNROLL for (i32 ";
  const size_t at = text.find(mark, text.find("acc1 = "));
  REQUIRE(at != std::string::npos);
  const std::string name = text.substr(at + mark.size(), 2);
  CHECK(text.substr(at).find("for (", mark.size()) == std::string::npos);  // the innermost loop
  CHECK(holds(low, (name + " * 24").c_str()));                             // of rows
  CHECK(holds(low, (name + " < 5").c_str()));
}

TEST_CASE(
    "GPU options: windows of images that fit into a block are staged once, with the filters") {
  const EnvOverride allow("ALLOW_TF32", "1");
  const Tensor x = memory({512, 32, 24, 24}).requires_grad_();
  const Tensor w = memory({32, 32, 5, 5}).requires_grad_();
  const Tensor y = conv2d(x, w);
  const Tensor g = memory({512, 32, 20, 20});
  const Tensor of_filters = Tensor::gradient((y * g).sum(), {w})[0];
  int staged = 0;
  for (const Lowered& low : kernels(of_filters))
    staged += holds(low, "mma_tf32(") && holds(low, "copies.start<16>(") && holds(low, "wait<0>");
  CHECK(staged == 1);
  const Lowered low = last_kernel(y);
  REQUIRE(holds(low, "mma_tf32("));
  REQUIRE(holds(low, "copies.start<16>("));
  // What a thread copies is a constant distance apart, and products are added where they are made.
  const std::string& text = low.source.text;
  const size_t first = text.find("copies.wait", text.find("acc1 = "));
  const std::string copies = text.substr(first, text.rfind("copies.start") - first);
  CHECK(copies.find(" / ") == std::string::npos);
  CHECK(copies.find(" % ") == std::string::npos);
  CHECK(text.find("splat<f32x4>(0.0f));") == std::string::npos);
}

TEST_CASE("GPU options: channels that are innermost in memory are summed side by side, in parts") {
  for (int64_t channels : {64, 256}) {
    CAPTURE(channels);
    const Tensor x = convolved(500, channels, 24), w = memory({channels});
    const std::vector<Lowered> all = kernels(batch_norm(x, w, w, {}, {}, {.training = true}).y);
    // A line of memory is 64 channels: 32 threads for each of its vectors of eight.
    const auto sums = std::find_if(
        all.begin(), all.end(), [](const Lowered& low) { return holds(low, "apart_add<32, 8>"); });
    REQUIRE(sums != all.end());
    CHECK(holds(*sums, "const f16x8*)(b"));
    CHECK(sums->launch.grid[0] == 500);  // 4 blocks for each multiprocessor, or almost
    // What is done with the sums is another kernel's, which reads and writes whole vectors.
    CHECK(holds(all.back(), "*(f16x8*)(b0 + "));
    CHECK(!holds(all.back(), "acc"));
  }
}

TEST_CASE("GPU options: what is kept in memory for a gradient has its channels innermost as well") {
  const Tensor w = memory({64}).requires_grad_();
  const Tensor image = memory({500, 64, 9, 9}, kF16), filter = memory({64, 64, 3, 3}, kF16);
  const Tensor y = conv2d(image, filter, {}, {.padding = 1});
  const Tensor x = batch_norm(y, w, w, {}, {}, {.training = true}).y.gelu();
  const Tensor largest = max_pool2d(x, 3).flatten(1).matmul(memory({64 * 9, 16}, kF16));
  int found = 0;
  for (const Lowered& low : kernels(Tensor::gradient(largest.to(kF32).sum(), {w})[0])) {
    if (!holds(low, "exp2_of") || !holds(low, "(f16* RESTRICT b0")) continue;
    ++found;
    CHECK(holds(low, "*(f16x4*)(b0 + "));  // as wide as what it reads for each channel
  }
  CHECK(found > 0);
}

TEST_CASE("GPU options: what is there for each channel is read four at a time, for two pixels") {
  const Tensor x = memory({256, 56, 56, 128}, kBF16), a = memory({128}), b = memory({128});
  const Lowered low = last_kernel(((x.to(kF32) - a) * b).to(kBF16).contiguous());
  CHECK(holds(low, "*(bf16x4*)(b0 + "));
  CHECK(low.launch.grid[0] * low.launch.block[0] == numel(x.shape()) / 8);
  CHECK(holds(last_kernel((x.to(kF32) * 2).to(kBF16)), "*(bf16x8*)(b0 + "));
}

TEST_CASE("GPU options: sums over several operands have four columns in a thread, over one eight") {
  const auto x = [] { return memory({256, 56, 56, 64}, kBF16).to(kF32); };
  const std::vector<Lowered> two = kernels((x() * x()).sum(Shape{0, 1, 2})),
                             one = kernels(x().square().sum(Shape{0, 1, 2}));
  CHECK(holds(two[0], "const bf16x4*)(b1 + "));
  CHECK(holds(one[0], "const bf16x8*)(b1 + "));
}

TEST_CASE("GPU options: a sum over many parts has a block for each vector of columns") {
  const std::vector<Lowered> all = kernels(convolved(500, 64, 24).to(kF32).sum(Shape{0, 2, 3}));
  CHECK(holds(all.back(), "group_add<"));  // threads share the parts
  CHECK(all.back().launch.grid[0] == 64 / 4);
}

TEST_CASE("GPU options: what threads sum is unrolled, also where no good number divides it") {
  // 41 * 41 / 32 rows for a thread are 53, a prime number.
  const std::vector<Lowered> all = kernels(convolved(500, 64, 41).to(kF32).sum(Shape{0, 2, 3}));
  const auto sums = std::find_if(all.begin(), all.end(),
                                 [](const Lowered& low) { return holds(low, "apart_add<32, 8>"); });
  REQUIRE(sums != all.end());
  CHECK(holds(*sums, "UNROLL for"));
}

TEST_CASE("GPU options: threads beyond the last of few channels do nothing") {
  const Tensor x = convolved(500, 24, 30);
  const std::vector<Lowered> all = kernels((x.to(kF32) * 2).gelu().sum(Shape{0, 2, 3}));
  const auto sums = std::find_if(all.begin(), all.end(),
                                 [](const Lowered& low) { return holds(low, "apart_add<"); });
  REQUIRE(sums != all.end());
  CHECK(holds(*sums, ", 4>(acc"));  // three threads of four have a vector
  CHECK(holds(*sums, "< 3"));
  CHECK(sums->launch.grid[0] == 500);
}

TEST_CASE("GPU options: padded channels of a pixel are stored at once") {
  const Tensor x = memory({256, 224, 224, 3}, kBF16);
  const Lowered low = last_kernel(x.pad({{0, 0}, {3, 3}, {3, 3}, {0, 1}}).contiguous());
  CHECK(low.launch.grid[0] * low.launch.block[0] < 256 * 230 * 230 + 1024);
  CHECK(holds(low, "*(bf16x4*)(b0"));
  // Also where channels lie one plane after the other.
  const Tensor planes = memory({256, 3, 224, 224}, kBF16).permute({0, 2, 3, 1});
  const Lowered turned = last_kernel(planes.pad({{0, 0}, {3, 3}, {3, 3}, {0, 1}}).contiguous());
  CHECK(turned.launch.grid[0] * turned.launch.block[0] < 256 * 230 * 230 + 1024);
  CHECK(holds(turned, "*(bf16x4*)(b0"));
  // Wider elements fill memory's sectors by threads side by side.
  CHECK(!holds(
      last_kernel(memory({256, 224, 224, 3}).pad({{0, 0}, {0, 0}, {0, 0}, {0, 1}}).contiguous()),
      "*(f32x4*)(b0"));
}

TEST_CASE("GPU options: few narrow columns have threads side by side, long rows a block each") {
  CHECK(holds(kernels(memory({100000, 64}).sum(0))[0], "apart_add<"));
  CHECK(!holds(last_kernel(memory({64, 1000}).sum(1)), "apart_add<"));
}

TEST_CASE("GPU options: large buffers that are read once by kernels that write little pass by") {
  const auto passes = [](const Tensor& t) {
    return last_kernel(t).source.text.find(" = load_once((const f32x4*)(b1 + ") !=
           std::string::npos;
  };
  const Tensor x = memory({4096, 8192});
  CHECK(passes(x.sum(1)));
  CHECK(passes(x.sum(0)));
  CHECK(passes(x.argmax(1)));                            // from registers the second time
  CHECK_FALSE(passes(memory({512, 65536}).argmax(1)));   // from memory
  CHECK_FALSE(passes(x.softmax(1)));                     // what is written takes the cache's place
  CHECK_FALSE(passes(memory({1024, 8192}).sum(1)));      // fits into the cache
  CHECK_FALSE(passes(memory({16384, 16384}).sum(1)));    // many times as much as the cache
  CHECK_FALSE(passes(x.unfold(1, 64, 32).sum({1, 2})));  // read twice
}

TEST_CASE(
    "GPU options: a sum of all has short blocks where memory limits it, one of few elements") {
  const std::vector<Lowered> all = kernels(memory({8192, 8192}).sum());
  REQUIRE(all.size() == 2);
  CHECK(all[0].launch.grid[0] == 8192);
  CHECK(all[0].launch.block[0] == 1024);
  CHECK(all[1].launch.grid[0] == 1);
  CHECK(kernels(memory({8192}).sum()).size() == 1);
  CHECK(kernels(memory({1 << 20}).sum())[0].launch.grid[0] == 256);
}

TEST_CASE("GPU options: long rows are shared by as many threads as have two vectors of them") {
  CHECK(last_kernel(memory({4096, 8192}).sum(1)).launch.block[0] == 1024);
  CHECK(last_kernel(memory({4096, 4096}).sum(1)).launch.block[0] == 256);
  for (DType t : {kF32, kBF16})  // 16 elements of a row that is held
    CHECK(last_kernel(memory({4096, 8192}, t).softmax(1)).launch.block[0] == 512);
}

TEST_CASE("GPU options: a thread looks up the place of a row once for all its vectors") {
  const Tensor w = memory({50257, 768}), at = memory({32768}, kI64);
  const Lowered low = last_kernel(w.embedding(at));
  CHECK(low.launch.block[0] == 64);
  CHECK(low.launch.block[1] == 4);
  const std::string& text = low.source.text;
  size_t look_ups = 0;
  for (size_t i = text.find(" = b1["); i != text.npos; i = text.find(" = b1[", i + 1)) ++look_ups;
  CHECK(look_ups == 1);
  // Rows that cannot be cut into that many vectors for each thread.
  CHECK(last_kernel(memory({50257, 772}).embedding(at)).launch.block[1] == 1);
}

TEST_CASE("GPU options: rows that waves of 64 threads hold have blocks of their own") {
  const Tensor x = memory({1 << 15, 512});
  for (const auto& [gpu, rows] : {std::pair{"EMU:CUDA:sm_90a", 2}, {"EMU:HIP:gfx942", 1}}) {
    const LaunchSize size = kernels(x.softmax(1), gpu).back().launch;
    CHECK(size.block[0] == find_device(gpu).target().warp);
    CHECK(size.block[1] == rows);
  }
}

TEST_CASE("GPU options: large tiles of f32 take long steps where two blocks have room") {
  const auto tile_and_step = [](const test::Form& form, int64_t shared_kb = 227) {
    Target target = test::hopper();
    target.shared_bytes = shared_kb << 10;
    const std::string text = to_text(lower(test::kernel(form), "k", target).options);
    return text.substr(0, text.find(", stage r"));
  };
  const std::string tile = "split r0 128, split r1 128, split r2 ";
  const test::Form form{{2001, 1999}, {1999, 2004}, false, false, kF32};
  CHECK(tile_and_step(form) == tile + "32");
  CHECK(tile_and_step(form, 99) == tile + "16");
  CHECK(tile_and_step({{2001, 200}, {200, 2004}, false, false, kF32}) == tile + "16");
  // Columns that are read one by one.
  CHECK(tile_and_step({{2001, 1999}, {1999, 2001}, false, false, kF32}) == tile + "16");
  CHECK(tile_and_step({{2001, 2000}, {2004, 2000}, false, true, kF32}) == tile + "16");
}

TEST_CASE("GPU options: few results of short sums have several threads each") {
  const Lowered low = last_kernel(memory({8, 64, 10}).sum(1));
  CHECK(low.launch.block[0] * low.launch.block[1] == 512);
  CHECK(low.launch.grid[0] == 3);
  CHECK(holds(low, "apart_add<"));
}

TEST_CASE("GPU options: what leaves a warp threads to spare has no vectors") {
  CHECK_FALSE(holds(last_kernel(memory({64}).exp()), "f32x4"));
  CHECK(holds(last_kernel(memory({128}).exp()), "f32x4"));
}

TEST_CASE("GPU options: sums that are shifted by a short one share their rows among threads") {
  const Tensor w = memory({4096}), x = memory({16384, 4096});
  for (const Lowered& low : kernels(batch_norm(x, w, w, w, w, {.training = true}).running_var)) {
    CHECK(low.launch.block[0] * low.launch.block[1] == 1024);
    CHECK(low.launch.grid[0] == 4096 / 32);  // a line of memory for each block
    CHECK(holds(low, "apart_add<128, 8>"));
    CHECK(holds(low, "f32x4*)(b"));
  }
}

TEST_CASE("GPU options: loops of several sums are unrolled once") {
  // A sum and one of differences from it, with a thread for each column.
  const auto copies = [](const Tensor& x) {
    const Lowered low = last_kernel((x - x.sum(1, true)).square().sum(1) + x.sum(1));
    int64_t n = 1;
    for (Node r : ranges_of(low.loops))
      if (kind(r) == RangeKind::Unroll) n *= extent(r);
    return n;
  };
  CHECK(copies(memory({64, 512, 4097})) == 8);
  CHECK(copies(memory({64, 32, 4097})) == 32);  // kept in registers for the second sum
}

TEST_CASE("GPU options: where extrema of columns are is found while they are read once") {
  for (const Lowered& low : {last_kernel(memory({128, 4096, 4095}).argmax(1)),
                             last_kernel(memory({64, 512, 8192}).argmin(1))})
    CHECK(to_text(low.options).find("roll r2") != std::string::npos);
}

TEST_CASE("GPU options: threads of a block share long columns of odd length") {
  const auto block = [](const Tensor& x) {
    const Lowered low = last_kernel(x.mean(1));
    return std::pair{low.launch.block[0], low.launch.block[1]};
  };
  CHECK(block(memory({128, 4096, 4095})) == std::pair<int64_t, int64_t>{64, 4});
  CHECK(block(memory({128, 4096, 4096})).second == 1);  // vectors
  CHECK(block(memory({4096, 4096, 4095})).second == 1);
  // A thread has 32 of its rows in flight.
  const std::string options = to_text(last_kernel(memory({128, 4096, 4095}).mean(1)).options);
  CHECK(options.find("split r2 128, split r3 4, bind r4 thread, bind r3 unroll") !=
        std::string::npos);
}

TEST_CASE("what is made of a tile of sums is stored piece by piece, behind all loads") {
  const Tensor x = memory({2048, 2048}), w = memory({2048, 2048}), bias = memory({2048});
  const EnvOverride exact("ALLOW_TF32", "0");
  const std::string text = last_kernel((x.matmul(w) + bias).gelu()).source.text;
  const size_t body = text.find("KERNEL("), store = text.find("*(f32x4*)(b0", body);
  REQUIRE(store != std::string::npos);
  CHECK(text.rfind("exp2_of(") > store);
  CHECK(text.rfind("*(const f32x4*)(b") < store);
  // Each has a load of its own: those are in flight together.
  const std::string sum = last_kernel((x.matmul(w) + memory({2048, 2048})).gelu()).source.text;
  CHECK(sum.rfind("exp2_of(") < sum.find("*(f32x4*)(b0", sum.find("KERNEL(")));
}

TEST_CASE("GPU options: threads of a row divide it where they can") {
  CHECK(last_kernel(memory({512, 25600}).sum(1)).launch.block[0] == 800);
  CHECK(last_kernel(memory({512, 25604}).sum(1)).launch.block[0] == 1024);
}

TEST_CASE("a sum of products beside a running sum has options") {
  for (const char* device : {"EMU:HIP:gfx942", "EMU:CUDA:sm_90a"}) {
    Tensor x = Tensor::from(std::vector<double>(33 * 33), {33, 33}, device);
    x.requires_grad_();
    const auto weights = [&](double phase) {
      return (Tensor::arange(33 * 33).to(kF64).to(device).reshape({33, 33}) + phase).cos();
    };
    const Tensor loss = (x.matmul(x) * weights(1)).sum() + (x.cumsum(1) * weights(2)).sum();
    for (const Step& step : test::schedule_on(device, Tensor::gradient(loss, {x}))->steps)
      if (step.kernel.get())
        CHECK_NOTHROW(lower(step.kernel.get(), step.name, find_device(device).target()));
  }
}
