#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "test/error_of.h"
#include "test/temporary_folder.h"
#include "tiny/base/error.h"
#include "tiny/data/datasets.h"

using namespace tiny;
namespace fs = std::filesystem;

namespace {

using Bytes = std::vector<uint8_t>;

void write_plain(const std::string& path, const Bytes& bytes) {
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<int64_t>(bytes.size()));
}

void write_gzip(const std::string& path, const Bytes& bytes) {
  gzFile file = gzopen(path.c_str(), "wb");
  gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
  gzclose(file);
}

Bytes read_plain(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

Bytes idx_bytes(const std::vector<uint32_t>& dims, size_t count) {
  Bytes bytes = {0, 0, 8, static_cast<uint8_t>(dims.size())};
  for (uint32_t dim : dims)
    for (int shift : {24, 16, 8, 0}) bytes.push_back(static_cast<uint8_t>(dim >> shift));
  for (size_t i = 0; i < count; i++) bytes.push_back(static_cast<uint8_t>(i % 10));
  return bytes;
}

void write_digits(const test::TemporaryFolder& folder, const std::string& prefix, uint32_t count) {
  write_gzip(folder.file(prefix + "-images-idx3-ubyte.gz"),
             idx_bytes({count, 28, 28}, count * kDigitPixels));
  write_plain(folder.file(prefix + "-labels-idx1-ubyte"), idx_bytes({count}, count));
}

}  // namespace

TEST_CASE("an idx file reads the same plain and compressed") {
  test::TemporaryFolder folder("data");
  const Bytes bytes = idx_bytes({2, 3}, 6);
  write_plain(folder.file("plain"), bytes);
  write_gzip(folder.file("packed.gz"), bytes);
  for (const char* name : {"plain", "packed.gz"}) {
    const IdxFile idx = read_idx(folder.file(name));
    CHECK(idx.dims == std::vector<int64_t>{2, 3});
    CHECK(idx.data == Bytes{0, 1, 2, 3, 4, 5});
  }
}

TEST_CASE("a missing idx file or a folder in its place is an error") {
  test::TemporaryFolder folder("data");
  const std::string path = folder.file("none");
  CHECK(error_of([&] { read_idx(path); }) ==
        cat("idx: cannot open ", path, ": No such file or directory"));
  CHECK(error_of([&] { read_idx(folder.path()); }) ==
        cat("idx: ", folder.path(), " is a folder, not a file"));
}

TEST_CASE("an idx file of another length than its header says names both sizes") {
  test::TemporaryFolder folder("data");
  const std::string path = folder.file("a");
  write_plain(path, idx_bytes({2, 3}, 5));
  CHECK(error_of([&] { read_idx(path); }) ==
        cat("idx: ", path, " is damaged: expected 6 bytes of data for 2x3, found 5"));
  write_plain(path, idx_bytes({2, 3}, 7));
  CHECK(error_of([&] { read_idx(path); }) ==
        cat("idx: ", path, " is damaged: expected 6 bytes of data for 2x3, found more"));
  write_plain(path, {0, 0, 8, 2, 0, 0});
  CHECK(error_of([&] { read_idx(path); }) ==
        cat("idx: ", path, " is damaged: expected 8 more bytes of header, found 2"));
}

TEST_CASE("an idx header of absurd sizes is an error that costs no memory") {
  test::TemporaryFolder folder("data");
  const std::string path = folder.file("a");
  write_plain(path, idx_bytes({0xffffffff, 0x7fffffff}, 3));
  CHECK(error_of([&] { read_idx(path); }) ==
        cat("idx: ", path, " claims the sizes 4294967295x2147483647, 9223372030412324865 bytes: ",
            "more than the 4294967296 that are read"));
  write_plain(path, idx_bytes({0xffffffff, 0xffffffff, 2}, 3));
  CHECK(error_of([&] { read_idx(path); }) ==
        cat("idx: ", path, " claims the sizes 4294967295x4294967295x2, whose product exceeds ",
            "64 bits"));
}

TEST_CASE("a file that is not idx shows how it begins") {
  test::TemporaryFolder folder("data");
  const std::string path = folder.file("a");
  write_plain(path, {'<', 'h', 't', 'm', 'l'});
  CHECK(error_of([&] { read_idx(path); }) ==
        cat("idx: ", path, " is no idx file of unsigned bytes: expected it to begin 0 0 8 n, ",
            "found 60 104 116 109"));
}

TEST_CASE("a truncated or altered gzip file is an error") {
  test::TemporaryFolder folder("data");
  const std::string path = folder.file("a.gz");
  write_gzip(path, idx_bytes({100, 100}, 10000));
  const Bytes whole = read_plain(path);
  for (size_t length = 10; length < whole.size(); length++) {
    write_plain(path, {whole.begin(), whole.begin() + static_cast<int64_t>(length)});
    CHECK(error_of([&] { read_idx(path); }).starts_with(cat("idx: ", path, " is damaged")));
  }
  Bytes altered = whole;
  altered[altered.size() - 6] ^= 1;  // the checksum
  write_plain(path, altered);
  const std::string message = error_of([&] { read_idx(path); });
  CHECK(message.starts_with(cat("idx: ", path, " is damaged")));
  CHECK(message.find("incorrect data check") != std::string::npos);
}

TEST_CASE("the four MNIST files are found with and without .gz") {
  test::TemporaryFolder folder("data");
  write_digits(folder, "train", 20);
  write_digits(folder, "t10k", 10);
  const MnistData data = load_mnist(folder.path());
  CHECK(data.train.size() == 20);
  CHECK(data.train.images.size() == 20 * kDigitPixels);
  CHECK(data.test.size() == 10);
  CHECK(data.test.labels[3] == 3);
  CHECK(data.note == cat("MNIST from ", folder.path()));
}

TEST_CASE("the t10k pair alone is split, and the note says so") {
  test::TemporaryFolder folder("data");
  write_digits(folder, "t10k", 40);
  const MnistData data = load_mnist(folder.path());
  CHECK(data.train.size() == 34);
  CHECK(data.test.size() == 6);
  CHECK(data.test.images.size() == 6 * kDigitPixels);
  CHECK(data.test.labels[0] == 4);
  CHECK(data.note == cat("MNIST from ", folder.path(), ", where only the t10k pair is: its first ",
                         "34 digits are for training, the last 6 for testing"));
}

TEST_CASE("a folder without MNIST files says which file is missing") {
  test::TemporaryFolder folder("data");
  CHECK(error_of([&] { load_mnist(folder.path()); }) ==
        cat("MNIST: no t10k-images-idx3-ubyte (or with .gz) in ", folder.path(),
            "; expected the images and labels of train and t10k, or of t10k alone"));
  write_digits(folder, "train", 2);
  CHECK(error_of([&] { load_mnist(folder.path()); }).starts_with("MNIST: no t10k-images"));
  fs::remove(folder.file("train-labels-idx1-ubyte"));
  CHECK(error_of([&] { load_mnist(folder.path()); }).starts_with("MNIST: no train-labels"));
  CHECK(error_of([&] { load_mnist(folder.file("none")); }) ==
        cat("MNIST: no folder ", folder.file("none")));
}

TEST_CASE("MNIST files that do not fit each other are an error") {
  test::TemporaryFolder folder("data");
  write_digits(folder, "t10k", 10);
  const std::string images = folder.file("t10k-images-idx3-ubyte.gz");
  const std::string labels = folder.file("t10k-labels-idx1-ubyte");
  write_plain(labels, idx_bytes({9}, 9));
  CHECK(error_of([&] { load_mnist(folder.path()); }) ==
        cat("MNIST: ", labels, " holds 9, expected 10, one label for each of ", images));
  Bytes wrong = idx_bytes({10}, 10);
  wrong.back() = 11;
  write_plain(labels, wrong);
  CHECK(error_of([&] { load_mnist(folder.path()); }) ==
        cat("MNIST: ", labels, " has the label 11, expected 0 to 9"));
  write_gzip(images, idx_bytes({10, 28, 27}, 7560));
  CHECK(error_of([&] { load_mnist(folder.path()); }) ==
        cat("MNIST: ", images, " holds 10x28x27, expected nx28x28"));
}

TEST_CASE("drawn digits depend on the seed alone") {
  const MnistData a = draw_digits(50, 20, 7), b = draw_digits(80, 20, 7),
                  c = draw_digits(50, 20, 8);
  CHECK(std::equal(a.train.images.begin(), a.train.images.end(), b.train.images.begin()));
  CHECK(std::equal(a.train.labels.begin(), a.train.labels.end(), b.train.labels.begin()));
  CHECK(a.test.images == b.test.images);
  CHECK(a.train.images != c.train.images);
  CHECK_FALSE(std::equal(a.test.images.begin(), a.test.images.end(), a.train.images.begin()));
  CHECK(a.note == "digits drawn by the program (seed 7): 50 for training, 20 for testing");
}

TEST_CASE("drawn digits are of all classes, with ink in the middle and a dark border") {
  const DigitSet set = draw_digits(2000, 0, 1).train;
  std::array<int, 10> seen{};
  int64_t middle = 0, border = 0, empty = 0;
  for (int64_t i = 0; i < set.size(); i++) {
    REQUIRE(set.labels[i] < 10);
    seen[set.labels[i]]++;
    const uint8_t* image = &set.images[i * kDigitPixels];
    empty += *std::max_element(image, image + kDigitPixels) < 128;
    for (int y = 7; y < 21; y++)
      for (int x = 7; x < 21; x++) middle += image[y * kDigitSide + x];
    for (int x = 0; x < kDigitSide; x++) border += image[x] + image[27 * kDigitSide + x];
  }
  CHECK(*std::min_element(seen.begin(), seen.end()) > 140);
  CHECK(empty == 0);
  CHECK(middle / (14 * 14) > 5 * (border / (2 * kDigitSide)));
}

TEST_CASE("a negative number of drawn digits is an error") {
  CHECK(error_of([] { draw_digits(-1, 5, 0); }) == "draw_digits: cannot draw -1 and 5 digits");
}

TEST_CASE(
    "a pipe in the place of an idx file, or one of holes, is an error that waits for nothing") {
  test::TemporaryFolder folder("data");
  const std::string path = folder.file("a");
  REQUIRE(mkfifo(path.c_str(), 0600) == 0);
  CHECK(error_of([&] { read_idx(path); }) == cat("idx: ", path, " is a pipe, not a file"));
  fs::remove(path);
  write_plain(path, idx_bytes({1 << 20, 1 << 20}, 0));
  fs::resize_file(path, 12 + (uintmax_t{1} << 40));
  CHECK(error_of([&] { read_idx(path); }) ==
        cat("idx: ", path, " claims the sizes 1048576x1048576, 1099511627776 bytes: more than the ",
            "4294967296 that are read"));
}
