#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "test/temporary_folder.h"
#include "tiny/base/error.h"
#include "tiny/data/datasets.h"

using namespace tiny;
namespace fs = std::filesystem;

namespace {

constexpr int kPlanes = 3 * kPicturePixels;

// Records with the labels first, first + 1, ...; byte j of a picture's planes is label + j.
void write_records(const std::string& path, int count, int first, int extra_bytes = 0) {
  std::ofstream file(path, std::ios::binary);
  for (int label = first; label < first + count; label++) {
    file.put(static_cast<char>(label));
    for (int j = 0; j < kPlanes; j++) file.put(static_cast<char>(label + j));
  }
  for (int i = 0; i < extra_bytes; i++) file.put(0);
}

void write_set(const std::string& folder) {
  fs::create_directories(folder);
  for (int i = 1; i <= 5; i++) write_records(cat(folder, "/data_batch_", i, ".bin"), 2, i);
  write_records(cat(folder, "/test_batch.bin"), 1, 7);
}

}  // namespace

TEST_CASE("CIFAR-10's binary files are read in order, labels and planes") {
  const test::TemporaryFolder folder("pictures");
  write_set(folder.path());
  const PictureData data = load_cifar(folder.path());
  CHECK(data.train.labels == std::vector<uint8_t>{1, 2, 2, 3, 3, 4, 4, 5, 5, 6});
  CHECK(data.train.images.size() == 10 * kPlanes);
  CHECK(data.train.images[9 * kPlanes + 1030] == static_cast<uint8_t>(6 + 1030));
  CHECK(data.test.labels == std::vector<uint8_t>{7});
  CHECK(data.test.size() == 1);
  CHECK(data.note.find("10 pictures for training, 1 for testing") != std::string::npos);
}

TEST_CASE("CIFAR-10's files may lie in the folder that its archive unpacks to") {
  const test::TemporaryFolder folder("pictures");
  write_set(folder.file("cifar-10-batches-bin"));
  CHECK(load_cifar(folder.path()).train.size() == 10);
}

TEST_CASE("missing and damaged CIFAR-10 files are errors that name the file") {
  const test::TemporaryFolder folder("pictures");
  const auto fails = [&](const std::string& text) {
    CHECK_THROWS_WITH_AS(load_cifar(folder.path()), doctest::Contains(text.c_str()), Error);
  };
  CHECK_THROWS_WITH_AS(load_cifar(folder.file("none")),
                       cat("CIFAR: no folder ", folder.file("none")).c_str(), Error);
  fails("no data_batch_1.bin in " + folder.path());
  write_set(folder.path());
  fs::remove(folder.file("data_batch_3.bin"));
  fails("no data_batch_3.bin");
  write_records(folder.file("data_batch_3.bin"), 1, 0, 5);
  fails("data_batch_3.bin has 3078 bytes: expected a multiple of 3073");
  write_records(folder.file("data_batch_3.bin"), 0, 0);
  fails("data_batch_3.bin has 0 bytes");
  write_records(folder.file("data_batch_3.bin"), 3, 8);
  fails("data_batch_3.bin: record 2 has the label 10, expected 0 to 9");
  fs::remove(folder.file("data_batch_3.bin"));
  fs::create_directory(folder.file("data_batch_3.bin"));
  fails("data_batch_3.bin is a folder");
  fs::remove(folder.file("data_batch_3.bin"));
  REQUIRE(mkfifo((folder.file("data_batch_3.bin")).c_str(), 0600) == 0);
  fails("data_batch_3.bin is a pipe, not a file");
  fs::remove(folder.file("data_batch_3.bin"));
  write_records(folder.file("data_batch_3.bin"), 1, 0);
  fs::resize_file(folder.file("data_batch_3.bin"), 3073 * (uintmax_t{1} << 30));
  fails("data_batch_3.bin has 3299608625152 bytes: more than the 4294967296 that are read");
}

TEST_CASE("drawn pictures depend on the seed and not on how many there are") {
  const PictureData few = draw_pictures(10, 5, 3), many = draw_pictures(40, 5, 3);
  CHECK(std::equal(few.train.images.begin(), few.train.images.end(), many.train.images.begin()));
  CHECK(few.test.images == many.test.images);
  CHECK(few.train.images != draw_pictures(10, 5, 4).train.images);
  CHECK_THROWS_WITH_AS(draw_pictures(-1, 2, 0), "draw_pictures: cannot draw -1 and 2 pictures",
                       Error);
}

TEST_CASE("drawn pictures show all classes, and each picture has colours") {
  const PictureData data = draw_pictures(300, 0, 1);
  for (int c = 0; c < kPictureClasses; c++)
    CHECK(std::count(data.train.labels.begin(), data.train.labels.end(), c) > 10);
  for (int64_t i = 0; i < data.train.size(); i++) {
    const auto begin = data.train.images.begin() + i * kPlanes;
    const auto [low, high] = std::minmax_element(begin, begin + kPlanes);
    CHECK(*high - *low > 60);
  }
}
