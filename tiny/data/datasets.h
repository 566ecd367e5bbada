// Data sets as plain host arrays: MNIST from its idx files and CIFAR-10 from its binary files, and
// drawn digits and pictures and written stories for where no files are at hand.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace tiny {

// One array of bytes, row-major.
struct IdxFile {
  std::vector<int64_t> dims;
  std::vector<uint8_t> data;
};

// Reads an idx file of unsigned bytes, plain or gzip-compressed (the format is described at the
// end of the MNIST page of Y. LeCun, C. Cortes, C. Burges). Throws Error for a file that is
// missing, of another type, damaged, shorter or longer than its header says.
IdxFile read_idx(const std::string& path);

inline constexpr int kDigitSide = 28;
inline constexpr int kDigitPixels = kDigitSide * kDigitSide;

// Grey images of digits, white (255) on black, and what they show.
struct DigitSet {
  std::vector<uint8_t> images;  // size() x 28 x 28
  std::vector<uint8_t> labels;  // size(), each 0 to 9
  int64_t size() const { return static_cast<int64_t>(labels.size()); }
};

struct MnistData {
  DigitSet train, test;
  std::string note;  // where the data comes from and how it was split, for people
};

// Reads train-images-idx3-ubyte, train-labels-idx1-ubyte and the same of t10k from a folder, each
// plain or with .gz. Where there is only the t10k pair, its first 85 % become the training set and
// the rest the test set, and the note says so. Throws Error for missing or damaged files.
MnistData load_mnist(const std::string& folder);

// Draws digits with strokes: several styles, random position, size, slant, rotation, pen and
// noise. The same seed gives the same digits, whatever the number of the others.
MnistData draw_digits(int train, int test, uint64_t seed);

inline constexpr int kPictureSide = 32;
inline constexpr int kPicturePixels = kPictureSide * kPictureSide;
inline constexpr int kPictureClasses = 10;

// Coloured pictures and what they show.
struct PictureSet {
  std::vector<uint8_t> images;  // size() x 3 x 32 x 32: the red plane, then green, then blue
  std::vector<uint8_t> labels;  // size(), each 0 to 9
  int64_t size() const { return static_cast<int64_t>(labels.size()); }
};

struct PictureData {
  PictureSet train, test;
  std::string note;  // where the data comes from, for people
};

// Reads CIFAR-10's binary version (A. Krizhevsky's CIFAR page describes it): data_batch_1.bin to
// data_batch_5.bin and test_batch.bin, in the folder or in cifar-10-batches-bin below it. The files
// may hold any number of records. Throws Error for missing or damaged files.
PictureData load_cifar(const std::string& folder);

// Draws pictures of five shapes with two textures each: random colours, position, size, rotation
// and background. The same seed gives the same pictures, whatever the number of the others.
PictureData draw_pictures(int train, int test, uint64_t seed);

inline constexpr int kStoryTopics = 4;

// A few English sentences, ASCII, about one person and one thing.
struct Story {
  std::string text;
  int topic;  // 0 to 3: the sea, the kitchen, the mountains, the workshop
};

// Writes stories by a grammar: who is "he" or "she", and what is dealt with, stays so to the end.
// The same seed gives the same stories, whatever the number of the others.
std::vector<Story> write_stories(int count, uint64_t seed);

}  // namespace tiny
