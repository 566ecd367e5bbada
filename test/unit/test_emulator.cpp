#include "devices/emulator/emulator.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "codegen/render/c/prelude_gpu.h"
#include "runtime/device/device.h"
#include "tiny/base/error.h"

using namespace tiny;

namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

Device& emulator() { return find_device("EMULATOR"); }

LaunchSize launch_size(int64_t blocks, int64_t threads) {
  LaunchSize size;
  size.grid[0] = blocks;
  size.block[0] = threads;
  return size;
}

// A buffer of the device with the values of a vector.
template <class T> class OnDevice {
 public:
  explicit OnDevice(std::vector<T> values) : values_(std::move(values)) {
    data_ = emulator().alloc(bytes());
    emulator().upload(data_, values_.data(), bytes());
  }
  ~OnDevice() { emulator().free(data_, bytes()); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  void* data() const { return data_; }
  std::vector<T> values() {
    emulator().download(values_.data(), data_, bytes());
    return values_;
  }

 private:
  size_t bytes() const { return values_.size() * sizeof(T); }
  std::vector<T> values_;
  void* data_;
};

// `body` has a kernel "KERNEL(threads) k(...)", to which this adds what a renderer would.
void run(std::string body, const LaunchSize& size, const std::vector<void*>& args) {
  body.insert(body.find("KERNEL("), "extern \"C\" ");
  const auto threads = static_cast<int>(size.block[0] * size.block[1] * size.block[2]);
  const std::string text = cat(cuda_prelude({body, {}, threads}), "#line 1\n", body);
  const Source source{"k", text, Source::Language::Cuda};
  const auto program = emulator().load(emulator().compile(source), "k");
  emulator().launch(*program, size, args);
}

std::string error_of(const std::string& text, const LaunchSize& size,
                     const std::vector<void*>& args) {
  try {
    run(text, size, args);
  } catch (const DeviceError& error) {
    return error.what();
  }
  return "no error";
}

std::vector<float> ramp(int64_t n) {
  std::vector<float> v(static_cast<size_t>(n));
  std::iota(v.begin(), v.end(), 1.0f);
  return v;
}

}  // namespace

TEST_CASE("the emulator looks like a GPU") {
  const Target& target = emulator().target();
  CHECK(target.kind == Target::Kind::Gpu);
  CHECK(target.language == Target::Language::Cuda);
  CHECK(target.arch == "sm_90a");
  CHECK(target.warp == 32);
}

TEST_CASE("blocks and threads of a grid in three dimensions each run once") {
  OnDevice<int> out(std::vector<int>(4 * 3 * 2 * 6 * 2 * 3, -1));
  LaunchSize size;
  const int64_t grid[] = {4, 3, 2}, block[] = {6, 2, 3};
  std::copy(grid, grid + 3, size.grid);
  std::copy(block, block + 3, size.block);
  run(R"(
KERNEL(36) k(i32* RESTRICT b0) {
  const int b = (block_z() * 3 + block_y()) * 4 + block_x();
  const int t = (thread_z() * 2 + thread_y()) * 6 + thread_x();
  b0[b * 36 + t] += 1 + b * 36 + t;
})",
      size, {out.data()});
  std::vector<int> expected(4 * 3 * 2 * 6 * 2 * 3);
  std::iota(expected.begin(), expected.end(), 0);
  CHECK(out.values() == expected);
}

TEST_CASE("vectors are added over several blocks") {
  const int64_t n = 100 * 256;
  OnDevice<float> a(ramp(n)), b(ramp(n)), out(std::vector<float>(n, 0));
  run(R"(
KERNEL(256) k(f32* RESTRICT b0, const f32* RESTRICT b1, const f32* RESTRICT b2) {
  const i32 i = block_x() * 256 + thread_x();
  b0[i] = b1[i] + b2[i];
})",
      launch_size(100, 256), {out.data(), a.data(), b.data()});
  const auto values = out.values();
  for (int64_t i = 0; i < n; ++i) REQUIRE(values[i] == 2.0f * static_cast<float>(i + 1));
}

TEST_CASE("a block sums through shared memory and barriers") {
  const int64_t blocks = 7, threads = 256;
  OnDevice<float> in(ramp(blocks * threads)), out(std::vector<float>(blocks, 0));
  run(R"(
KERNEL(256) k(f32* RESTRICT b0, const f32* RESTRICT b1) {
  SHARED(f32, s, 256);
  const int t = thread_x();
  s[t] = b1[block_x() * 256 + t];
  for (int half = 128; half > 0; half /= 2) {
    barrier();
    if (t < half) s[t] += s[t + half];
  }
  if (t == 0) b0[block_x()] = s[0];
})",
      launch_size(blocks, threads), {out.data(), in.data()});
  const auto values = out.values();
  for (int64_t b = 0; b < blocks; ++b)
    CHECK(values[b] == (256.0f * b + 1 + 256.0f * b + 256) * 128);
}

TEST_CASE("a missing barrier is a race that names both threads and the line") {
  OnDevice<float> out(std::vector<float>(4 * 64, 0));
  const auto message = [&](const char* read, const char* meet) {
    return error_of(cat("#define OTHER ", read, "\n#define MEET ", meet, R"(
KERNEL(64) k(f32* b0) {
  SHARED(f32, s, 64);
  const int t = thread_x();
  s[t] = t;
  MEET
  b0[block_x() * 64 + t] = s[OTHER & 63];
  MEET
  s[t ^ 32] = 1;
})"),
                    launch_size(1, 64), {out.data()});
  };
  CHECK(message("t + 32", "barrier();") == "no error");
  const std::string early = message("t + 32", "");
  CHECK_MESSAGE(contains(early,
                         "thread (0, 0, 0): reads 4 bytes of shared memory, from byte 128 of "
                         "an array of 256, that no thread has written (line 8)"),
                early);
  const std::string late = message("(t > 0 ? t - 1 : 0)", "");
  CHECK_MESSAGE(contains(late,
                         "thread (1, 0, 0): reads 4 bytes of shared memory, from byte 0 of an "
                         "array of 256, that thread (0, 0, 0) writes with no barrier"),
                late);
  const std::string own = message("t", "");
  CHECK_MESSAGE(contains(own,
                         "thread (32, 0, 0): writes 4 bytes of shared memory, from byte 128 of "
                         "an array of 256, that thread (0, 0, 0) writes with no barrier "
                         "between them (line 6)"),
                own);
}

TEST_CASE("a write to what others still read is a race") {
  OnDevice<float> out(std::vector<float>(64, 0));
  const std::string message = error_of(R"(
KERNEL(64) k(f32* b0) {
  SHARED(f32, s, 1);
  if (thread_x() == 0) s[0] = 1;
  barrier();
  b0[thread_x()] = s[0];
  if (thread_x() == 63) s[0] = 2;
})",
                                       launch_size(1, 64), {out.data()});
  CHECK_MESSAGE(contains(message,
                         "thread (63, 0, 0): writes 4 bytes of shared memory, from byte 0 of "
                         "an array of 4, that others read with no barrier between them "
                         "(line 7)"),
                message);
}

TEST_CASE("an access beside an array of shared memory is an error") {
  OnDevice<float> out(std::vector<float>(64, 0));
  const std::string message = error_of(R"(
KERNEL(64) k(f32* b0) {
  SHARED(f32, s, 63);
  SHARED(f32, other, 64);
  other[thread_x()] = 0;
  s[thread_x()] = 1;
})",
                                       launch_size(1, 64), {out.data()});
  CHECK_MESSAGE(contains(message,
                         "thread (63, 0, 0): writes 4 bytes of shared memory, outside of "
                         "its arrays (line 6)"),
                message);
}

TEST_CASE("group_add sums all threads of a group") {
  for (const int width : {8, 32, 256, 1024}) {
    CAPTURE(width);
    const int threads = std::max(width, 64);
    OnDevice<float> in(ramp(2 * threads)), out(std::vector<float>(2 * threads, 0));
    run(cat("KERNEL(1024) k(f32* RESTRICT b0, const f32* RESTRICT b1) {\n  SHARED(f32, s, 32);\n",
            "  const int i = block_x() * ", threads, " + thread_x();\n  b0[i] = group_add<", width,
            ">(b1[i], s);\n}\n"),
        launch_size(2, threads), {out.data(), in.data()});
    const auto values = out.values();
    for (int i = 0; i < 2 * threads; ++i) {
      const float first = static_cast<float>(i / width * width + 1);
      REQUIRE(values[i] == (first + first + static_cast<float>(width - 1)) * width / 2);
    }
  }
}

TEST_CASE("lanes of a warp exchange values") {
  OnDevice<double> out(std::vector<double>(96, 0));
  run(R"(
KERNEL(96) k(f64* RESTRICT b0) {
  f64 x = thread_x();
  for (int i = 0; i < 3; ++i) x = shuffle_xor(x, 1 << i) * 2;
  b0[thread_x()] = x;
})",
      launch_size(1, 96), {out.data()});
  const auto values = out.values();
  for (int i = 0; i < 96; ++i) CHECK(values[i] == 8.0 * (i ^ 7));
}

TEST_CASE("atomics of many blocks lose nothing") {
  OnDevice<float> sums({0, 0});
  OnDevice<int> ints({0, 0, 0, 1 << 30});
  run(R"(
KERNEL(128) k(f32* b0, i32* b1) {
  const int i = block_x() * 128 + thread_x();
  atomic_add(b0 + i % 2, 1.0f);
  atomic_add(b1, 3);
  atomic_or(b1 + 1, 1 << i % 20);
  atomic_max(b1 + 2, i);
  atomic_min(b1 + 3, -i);
})",
      launch_size(500, 128), {sums.data(), ints.data()});
  CHECK(sums.values() == std::vector<float>{32000, 32000});
  CHECK(ints.values() == std::vector<int>{192000, (1 << 20) - 1, 63999, -63999});
}

TEST_CASE("threads that do not meet at a barrier are an error that names them") {
  OnDevice<float> out(std::vector<float>(64, 0));
  const std::string message = error_of(R"(
KERNEL(64) k(f32* b0) {
  if (thread_x() != 40) barrier();
  b0[thread_x()] = 1;
})",
                                       launch_size(1, 64), {out.data()});
  CAPTURE(message);
  CHECK(contains(message, "EMULATOR: kernel k, block (0, 0, 0): threads do not meet"));
  CHECK(contains(message, "thread (32, 0, 0) waits at the barrier of line 3"));
  CHECK(contains(message, "thread (40, 0, 0) has ended"));
}

TEST_CASE("warps that do not meet at a barrier are an error") {
  OnDevice<float> out(std::vector<float>(64, 0));
  const std::string message = error_of(R"(
KERNEL(64) k(f32* b0) {
  if (thread_x() < 32) barrier();
  b0[thread_x()] = 1;
})",
                                       launch_size(1, 64), {out.data()});
  CAPTURE(message);
  CHECK(contains(message, "threads do not meet"));
  CHECK(contains(message, "thread (32, 0, 0) has ended"));
}

TEST_CASE("lanes that exchange at different places are an error, and the next kernel runs") {
  OnDevice<float> out(std::vector<float>(32, 0));
  const std::string message = error_of(R"(
KERNEL(32) k(f32* b0) {
  f32 x = thread_x();
  if (thread_x() < 16) x = shuffle_xor(x, 1);
  else x = shuffle_xor(x, 1);
  b0[thread_x()] = x;
})",
                                       launch_size(1, 32), {out.data()});
  CAPTURE(message);
  CHECK(contains(message, "threads do not meet"));
  CHECK(contains(message, "exchanges values of lanes at line 4"));
  CHECK(contains(message, "exchanges values of lanes at line 5"));
  run("KERNEL(32) k(f32* b0) {\n  barrier();\n  b0[thread_x()] = 2;\n}\n", launch_size(1, 32),
      {out.data()});
  CHECK(out.values() == std::vector<float>(32, 2));
}

TEST_CASE("a lane that does not exist cannot be read") {
  OnDevice<float> out(std::vector<float>(40, 0));
  CHECK(contains(error_of(R"(
KERNEL(40) k(f32* b0) { b0[thread_x()] = shuffle_xor(1.0f, 16); })",
                          launch_size(1, 40), {out.data()}),
                 "thread (32, 0, 0), line 2: reads a lane that does not exist"));
}

TEST_CASE("an access beside a buffer is an error with its thread, line and argument") {
  OnDevice<float> in(ramp(70)), out(std::vector<float>(70, 0));
  const std::string text = R"(
KERNEL(32) k(f32* RESTRICT b0, const f32* RESTRICT b1) {
  const int i = block_x() * 32 + thread_x();
  b0[i + OFFSET] = b1[i + FROM];
})";
  const auto message = [&](int offset, int from) {
    return error_of(cat("#define OFFSET ", offset, "\n#define FROM ", from, text),
                    launch_size(2, 32), {out.data(), in.data()});
  };
  CHECK(message(6, 6) == "no error");
  CHECK(message(7, 0) ==
        "EMULATOR: kernel k, block (1, 0, 0), thread (31, 0, 0): writes 4 bytes outside of its "
        "buffers: 0 bytes after the end of argument 0, a buffer of 280 bytes (line 5)");
  CHECK(contains(message(-1, 0),
                 "block (0, 0, 0), thread (0, 0, 0): writes 4 bytes outside of its "
                 "buffers: 4 bytes before the start of argument 0"));
  CHECK(contains(message(0, 7),
                 "thread (31, 0, 0): reads 4 bytes outside of its buffers: 0 bytes "
                 "after the end of argument 1"));
  CHECK(message(0, 0) == "no error");
  float* const middle = static_cast<float*>(out.data()) + 5;
  CHECK(contains(error_of(cat("#define OFFSET 2\n#define FROM 0", text), launch_size(2, 32),
                          {middle, in.data()}),
                 "0 bytes after the end of argument 0, a buffer of 280 bytes"));
}

TEST_CASE("an access far from all buffers is an error with its block and thread") {
  OnDevice<float> out(std::vector<float>(64, 0));
  for (int repeat = 0; repeat < 2; ++repeat) {
    const std::string message = error_of(R"(
KERNEL(32) k(f32* b0) {
  const i64 i = block_x() * 32 + thread_x();
  barrier();
  b0[i - (i == 37) * (1ll << 36)] = 1;
})",
                                         launch_size(2, 32), {out.data()});
    CAPTURE(message);
    CHECK(contains(message,
                   "block (1, 0, 0), thread (5, 0, 0): writes 4 bytes outside of its "
                   "buffers: address 0x"));
  }
  const std::string message = error_of(R"(
KERNEL(2) k(i32* b0) { b0[thread_x()] = 1000 / b0[0]; })",
                                       launch_size(1, 2), {out.data()});
  CAPTURE(message);
  CHECK(contains(message, "thread (1, 0, 0): integer division by zero"));
}

TEST_CASE("a stack that overflows is an error") {
  OnDevice<int> out(std::vector<int>(4, 0));
  CHECK(contains(error_of(R"(
static __attribute__((noinline)) i32 deep(i32 n, volatile i32* b) {
  volatile i32 frame[100];
  frame[n % 100] = n;
  return n == b[0] ? 1 : deep(n + 1, b) + frame[n % 100];
}
KERNEL(1) k(i32* b0) { b0[1] = deep(1, b0); })",
                          launch_size(1, 1), {out.data()}),
                 "illegal access"));
}

TEST_CASE("a misaligned access is an error with its thread and line") {
  OnDevice<float> out(std::vector<float>(64, 0));
  const std::string message = error_of(R"(
struct alignas(16) four { f32 v[4]; };
KERNEL(8) k(f32* b0) {
  *(four*)(b0 + thread_x() * 4 + (thread_x() == 5)) = four{{1, 2, 3, 4}};
})",
                                       launch_size(1, 8), {out.data()});
  CAPTURE(message);
  CHECK(contains(message, "thread (5, 0, 0), line 4: misaligned access"));
  CHECK(contains(message, "is no multiple of 16"));
}

TEST_CASE(
    "shared memory that nobody has written cannot be read, in any block; new buffers are NaN") {
  OnDevice<float> out(std::vector<float>(8, 0));
  const auto message = [&](int count) {
    return error_of(cat("#define COUNT ", count, R"(
KERNEL(8) k(f32* b0) {
  SHARED(f32, s, 8);
  SHARED(f32, t, 8);
  if (thread_x() < 8 - block_x() * COUNT) s[thread_x()] = t[thread_x()] = 1;
  barrier();
  b0[thread_x()] = s[thread_x()] + t[thread_x()];
})"),
                    launch_size(2, 8), {out.data()});
  };
  CHECK(message(0) == "no error");
  CHECK_MESSAGE(contains(message(4),
                         "block (1, 0, 0), thread (4, 0, 0): reads 4 bytes of shared "
                         "memory, from byte 16 of an array of 32, that no thread has "
                         "written (line 7)"),
                message(4));
  void* fresh = emulator().alloc(4);
  float value = 0;
  emulator().download(&value, fresh, 4);
  CHECK(std::isnan(value));
  emulator().free(fresh, 4);
}

TEST_CASE("a launch beyond the limits of the GPU is an error") {
  OnDevice<float> out(std::vector<float>(64, 0));
  CHECK(contains(error_of("KERNEL(32) k(f32* b0) {}", launch_size(1, 64), {out.data()}),
                 "blocks of 64 threads, of 32 at most"));
  CHECK(contains(error_of("KERNEL(32) k(f32* b0) {\n  SHARED(f32, s, 60000);\n  s[0] = 1;\n}",
                          launch_size(1, 1), {out.data()}),
                 "line 2: more than 232448 bytes of shared memory"));
}

TEST_CASE("copies outside of buffers are errors") {
  void* data = emulator().alloc(100);
  char host[101] = {};
  CHECK_NOTHROW(emulator().upload(data, host, 100));
  CHECK_THROWS_AS(emulator().upload(data, host, 101), DeviceError);
  CHECK_THROWS_AS(emulator().download(host, static_cast<char*>(data) + 1, 100), DeviceError);
  CHECK_THROWS_AS(emulator().free(data, 99), DeviceError);
  emulator().free(data, 100);
}

TEST_CASE("a kernel that does not compile is an error with its line") {
  CHECK(contains(error_of("KERNEL(1) k(f32* b0) {\n  oops;\n}", launch_size(1, 1), {}),
                 "kernel.cpp:2:3: error"));
}
