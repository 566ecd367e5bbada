// Pictures of 32 x 32 pixels in ten classes: CIFAR-10 from its files, and drawn ones.
#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <system_error>

#include "tiny/base/error.h"
#include "tiny/base/file.h"
#include "tiny/base/splitmix.h"
#include "tiny/data/datasets.h"
#include "tiny/data/shapes.h"

namespace tiny {

// --- CIFAR-10's binary files ---------------------------------------------------------------------

namespace {

namespace fs = std::filesystem;

constexpr int kImageBytes = 3 * kPicturePixels, kRecordBytes = 1 + kImageBytes;
constexpr int64_t kMaxCifarBytes = int64_t{1} << 32;  // of a file, which may have holes

// Appends the records of one file: a byte with the label, then the planes.
void read_records(const fs::path& path, PictureSet& set) {
  const InputFile file("CIFAR", path.string());
  const int64_t bytes = file.size(), records = bytes / kRecordBytes;
  check(bytes <= kMaxCifarBytes, "CIFAR: ", path.string(), " has ", bytes, " bytes: more than the ",
        kMaxCifarBytes, " that are read");
  check(bytes > 0 && bytes % kRecordBytes == 0, "CIFAR: ", path.string(), " has ", bytes,
        " bytes: expected a multiple of ", kRecordBytes, ", a label and 3x32x32 bytes of pixels");
  for (int64_t i = 0; i < records; i++) {
    std::array<char, kRecordBytes> record;
    file.read_at(i * kRecordBytes, record.data(), kRecordBytes);
    const auto label = static_cast<uint8_t>(record[0]);
    check(label < kPictureClasses, "CIFAR: ", path.string(), ": record ", i, " has the label ",
          int{label}, ", expected 0 to 9");
    set.labels.push_back(label);
    set.images.insert(set.images.end(), record.begin() + 1, record.end());
  }
}

}  // namespace

PictureData load_cifar(const std::string& folder) {
  std::error_code ignored;
  check(fs::is_directory(folder, ignored), "CIFAR: no folder ", folder);
  fs::path place = folder;
  const fs::path below = place / "cifar-10-batches-bin";  // what the archive unpacks to
  if (!fs::exists(place / "test_batch.bin", ignored) && fs::is_directory(below, ignored))
    place = below;
  std::vector<std::string> names;
  for (int i = 1; i <= 5; i++) names.push_back(cat("data_batch_", i, ".bin"));
  names.push_back("test_batch.bin");
  for (const std::string& name : names)
    check(fs::exists(place / name, ignored), "CIFAR: no ", name, " in ", place.string(),
          "; expected data_batch_1.bin to data_batch_5.bin and test_batch.bin, the binary version");
  PictureData data;
  for (const std::string& name : names)
    read_records(place / name, name == names.back() ? data.test : data.train);
  data.note = cat("CIFAR-10 from ", place.string(), ": ", data.train.size(),
                  " pictures for training, ", data.test.size(), " for testing");
  return data;
}

// --- Drawn pictures ------------------------------------------------------------------------------

namespace {

using namespace drawing;

// Waves between -1 and 1 of period 1.
float striped(Corner p) { return std::sin(6.2832f * p.x); }
float checked(Corner p) { return 2 * std::sin(6.2832f * p.x) * std::sin(6.2832f * p.y); }

struct Kind {
  float (*shape)(Corner);
  float (*texture)(Corner);
};

constexpr Kind kKinds[kPictureClasses] = {
    {disc, striped},     {disc, checked}, {square, striped}, {square, checked}, {triangle, striped},
    {triangle, checked}, {ring, striped}, {ring, checked},   {cross, striped},  {cross, checked},
};

// A place within a few pixels of the middle of the picture.
Corner near_middle(SplitMix64& random, float reach) {
  const float x = random.between(-reach, reach), y = random.between(-reach, reach);
  return {kPictureSide / 2.0f + x, kPictureSide / 2.0f + y};
}

void draw_picture(const Kind& kind, SplitMix64& random, uint8_t* image) {
  const Colour front = any_colour(random), pattern = other_colour(front, 90, random);
  const Colour back = any_colour(random), horizon = other_colour(back, 0, random);
  const float radius = random.between(8.5f, 13), turn = random.between(0, 6.2832f);
  const float noise = random.between(0, 12);
  const Corner middle = near_middle(random, 4);
  const Frame shape(middle, turn, radius);
  const Frame texture(near_middle(random, 4), turn, random.between(4, 6));
  const Frame sky({kPictureSide / 2.0f, kPictureSide / 2.0f}, random.between(0, 6.2832f),
                  kPictureSide);
  for (int pixel = 0; pixel < kPicturePixels; pixel++) {
    const Corner at{pixel % kPictureSide + 0.5f, pixel / kPictureSide + 0.5f};
    const Colour ground = blend(back, horizon, edge(sky(at).x));
    const Colour inside = blend(front, pattern, edge(kind.texture(texture(at))));
    const Colour c = blend(ground, inside, edge(-kind.shape(shape(at)) * radius));
    for (int i = 0; i < 3; i++) {
      const float value = c[i] + noise * random.bell();
      image[i * kPicturePixels + pixel] = static_cast<uint8_t>(std::clamp(value, 0.0f, 255.0f));
    }
  }
}

// Each picture has a generator of its own, so that it does not depend on how many there are.
PictureSet draw_picture_set(int count, uint64_t seed) {
  PictureSet set;
  set.images.resize(static_cast<size_t>(count) * kImageBytes);
  set.labels.resize(static_cast<size_t>(count));
  SplitMix64 start(seed);
  for (int i = 0; i < count; i++) {
    SplitMix64 random(start.bits());
    const int label = random.below(kPictureClasses);
    set.labels[i] = static_cast<uint8_t>(label);
    draw_picture(kKinds[label], random, &set.images[static_cast<size_t>(i) * kImageBytes]);
  }
  return set;
}

}  // namespace

PictureData draw_pictures(int train, int test, uint64_t seed) {
  check(train >= 0 && test >= 0, "draw_pictures: cannot draw ", train, " and ", test, " pictures");
  constexpr uint64_t kTestSeed = 0x7465737400000000u;  // sets the two sequences apart
  return {draw_picture_set(train, seed), draw_picture_set(test, seed ^ kTestSeed),
          cat("pictures drawn by the program (seed ", seed, "): ", train, " for training, ", test,
              " for testing")};
}

}  // namespace tiny
