#include "tiny/tensor/pieces.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <numeric>

#include "tiny/base/error.h"

using namespace tiny;

TEST_CASE("a tensor is made of pieces that are asked for in order, each once") {
  const int64_t count = 2 * kPieceElements + 5;
  std::vector<int32_t> values(static_cast<size_t>(count));
  std::iota(values.begin(), values.end(), -7);
  std::vector<int64_t> sizes;
  int64_t next = 0;
  const Tensor t = from_pieces(
      [&](int64_t begin, int64_t size) {
        CHECK(begin == next);
        next += size;
        sizes.push_back(size);
        return values.data() + begin;
      },
      kI32, {count});
  CHECK(sizes == std::vector<int64_t>{kPieceElements, kPieceElements, 5});
  CHECK(t.to_vector<int32_t>() == values);
}

TEST_CASE("a tensor of no elements asks for no piece, and a piece's error is the caller's") {
  const auto fails = [](int64_t, int64_t) -> const void* { throw Error("no piece"); };
  CHECK(from_pieces(fails, kF32, {3, 0}).numel() == 0);
  CHECK_THROWS_WITH_AS(from_pieces(fails, kF32, {3}), "no piece", Error);
  CHECK_THROWS_AS(from_pieces(fails, kF32, {-3}), Error);
}

TEST_CASE("a tensor comes from any byte of a file, also onto several devices") {
  const std::string path = "/tmp/tiny-test-pieces-" + std::to_string(getpid());
  const std::vector<float> values = {1, 2, 3, 4};
  std::ofstream(path, std::ios::binary)
      .write("xyz", 3)
      .write(reinterpret_cast<const char*>(values.data()), 16);
  const MappedFile file("test", path);
  CHECK(from_file(file, 3, kF32, {2, 2}).to_vector<float>() == values);
  const Tensor both = from_file(file, 3, kF32, {4}, "CPU,CPU:1");
  CHECK(both.device() == "CPU,CPU:1");
  CHECK(both.to_vector<float>() == values);
  CHECK_THROWS_WITH_AS(
      from_file(file, 4, kF32, {4}),
      cat("test: ", path, ": expected 16 bytes at 4, found 19 bytes in all").c_str(), Error);
  std::filesystem::remove(path);
}
