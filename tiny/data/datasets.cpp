#include "tiny/data/datasets.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "tiny/base/error.h"
#include "tiny/base/file.h"
#include "tiny/base/splitmix.h"
#include "tiny/base/text.h"

#if __has_include(<zlib.h>)
#include <zlib.h>
#endif

namespace tiny {
namespace {

namespace fs = std::filesystem;

// Of a file's data. A file may be small and claim any size, by its holes or when it is unpacked.
constexpr int64_t kMaxIdxBytes = int64_t{1} << 32;

#if __has_include(<zlib.h>)
// A file read through zlib, which passes a plain file on as it is.
class Stream {
 public:
  explicit Stream(const std::string& path) : file_(gzdopen(InputFile("idx", path).take(), "rb")) {
    check(file_ != nullptr, "idx: ", path, ": zlib has no memory to read it");
  }

  // Up to `count` bytes; fewer only at the end, or where something is wrong.
  int64_t read(void* to, int64_t count) {
    return gzread(file_.get(), to, static_cast<unsigned>(count));
  }
  // The fault of a read that came up short: empty for a plain end of file.
  std::string complaint() const {
    int code = Z_OK;
    const char* text = gzerror(file_.get(), &code);
    return code == Z_OK || code == Z_STREAM_END ? "" : cat(" (zlib: ", text, ")");
  }

 private:
  struct Close {
    void operator()(gzFile_s* file) const { gzclose(file); }
  };
  std::unique_ptr<gzFile_s, Close> file_;
};
#else
// A plain file, in a build without zlib.
class Stream {
 public:
  explicit Stream(const std::string& path) : file_("idx", path) {
    uint8_t magic[2] = {};
    const bool packed =
        read_some(file_.descriptor(), 0, magic, 2) == 2 && magic[0] == 0x1f && magic[1] == 0x8b;
    check(!packed, "idx: ", path, " is compressed with gzip, and this build has no zlib: unpack ",
          "it, or build where zlib's header is (package zlib1g-dev)");
  }

  int64_t read(void* to, int64_t count) {
    const int64_t found = read_some(file_.descriptor(), at_, to, count);
    at_ += found;
    return found;
  }
  std::string complaint() const { return ""; }

 private:
  const InputFile file_;
  int64_t at_ = 0;
};
#endif

// A file with or without gzip.
class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path), stream_(path) {}

  // Appends up to `count` bytes to `out` and says how many there were. Grows `out` only as bytes
  // arrive, so that a header with absurd sizes costs no memory.
  int64_t read(int64_t count, std::vector<uint8_t>& out) {
    constexpr int64_t kChunk = 1 << 20;
    const auto before = static_cast<int64_t>(out.size());
    for (int64_t left = count; left > 0;) {
      const int64_t wanted = std::min(left, kChunk);
      out.resize(out.size() + static_cast<size_t>(wanted));
      const int64_t got = stream_.read(out.data() + out.size() - wanted, wanted);
      out.resize(out.size() - static_cast<size_t>(wanted - std::max<int64_t>(got, 0)));
      if (got <= 0) break;
      left -= got;
    }
    return static_cast<int64_t>(out.size()) - before;
  }

  std::string complaint() const { return stream_.complaint(); }
  const std::string& path() const { return path_; }

 private:
  const std::string path_;
  Stream stream_;
};

std::vector<uint8_t> read_header(Reader& file, int64_t count) {
  std::vector<uint8_t> bytes;
  const int64_t found = file.read(count, bytes);
  check(found == count, "idx: ", file.path(), " is damaged: expected ", count,
        " more bytes of header, found ", found, file.complaint());
  return bytes;
}

int64_t big_endian(const uint8_t* bytes) {
  return int64_t{bytes[0]} << 24 | bytes[1] << 16 | bytes[2] << 8 | bytes[3];
}

std::vector<int64_t> read_dims(Reader& file) {
  constexpr int kUnsignedByte = 8;
  const std::vector<uint8_t> magic = read_header(file, 4);
  check(magic[0] == 0 && magic[1] == 0 && magic[2] == kUnsignedByte && magic[3] > 0,
        "idx: ", file.path(),
        " is no idx file of unsigned bytes: expected it to begin 0 0 8 n, found ", int{magic[0]},
        " ", int{magic[1]}, " ", int{magic[2]}, " ", int{magic[3]});
  const std::vector<uint8_t> sizes = read_header(file, 4 * magic[3]);
  std::vector<int64_t> dims;
  for (size_t at = 0; at < sizes.size(); at += 4) dims.push_back(big_endian(&sizes[at]));
  return dims;
}

std::string dims_text(const std::vector<int64_t>& dims) {
  std::string text;
  for (int64_t dim : dims) text += cat(text.empty() ? "" : "x", dim);
  return text;
}

int64_t count_elements(const std::vector<int64_t>& dims, const std::string& path) {
  int64_t count = 1;
  for (int64_t dim : dims)
    check(!__builtin_mul_overflow(count, dim, &count), "idx: ", path, " claims the sizes ",
          dims_text(dims), ", whose product exceeds 64 bits");
  check(count <= kMaxIdxBytes, "idx: ", path, " claims the sizes ", dims_text(dims), ", ", count,
        " bytes: more than the ", kMaxIdxBytes, " that are read");
  return count;
}

}  // namespace

IdxFile read_idx(const std::string& path) {
  Reader file(path);
  IdxFile result;
  result.dims = read_dims(file);
  const int64_t expected = count_elements(result.dims, path);
  const int64_t found = file.read(expected, result.data);
  check(found == expected, "idx: ", path, " is damaged: expected ", expected, " bytes of data for ",
        dims_text(result.dims), ", found ", found, file.complaint());
  // The read at the end also makes zlib compare the checksum.
  std::vector<uint8_t> rest;
  const int64_t extra = file.read(1, rest);
  check(extra == 0, "idx: ", path, " is damaged: expected ", expected, " bytes of data for ",
        dims_text(result.dims), ", found more");
  check(file.complaint().empty(), "idx: ", path, " is damaged", file.complaint());
  return result;
}

namespace {

// The file of that name or that name with .gz; empty where there is neither.
std::string find_file(const std::string& folder, const std::string& name) {
  for (const char* ending : {"", ".gz"}) {
    const fs::path path = fs::path(folder) / (name + ending);
    std::error_code ignored;
    if (fs::exists(path, ignored)) return path.string();
  }
  return "";
}

DigitSet read_pair(const std::string& image_path, const std::string& label_path) {
  IdxFile images = read_idx(image_path), labels = read_idx(label_path);
  check(images.dims.size() == 3 && images.dims[1] == kDigitSide && images.dims[2] == kDigitSide,
        "MNIST: ", image_path, " holds ", dims_text(images.dims), ", expected nx28x28");
  check(labels.dims.size() == 1 && labels.dims[0] == images.dims[0], "MNIST: ", label_path,
        " holds ", dims_text(labels.dims), ", expected ", images.dims[0],
        ", one label for each of ", image_path);
  const auto bad = std::ranges::find_if(labels.data, [](int l) { return l > 9; });
  check(bad == labels.data.end(), "MNIST: ", label_path, " has the label ",
        bad == labels.data.end() ? 0 : int{*bad}, ", expected 0 to 9");
  return {std::move(images.data), std::move(labels.data)};
}

DigitSet slice(const DigitSet& set, int64_t begin, int64_t end) {
  return {{set.images.begin() + begin * kDigitPixels, set.images.begin() + end * kDigitPixels},
          {set.labels.begin() + begin, set.labels.begin() + end}};
}

}  // namespace

MnistData load_mnist(const std::string& folder) {
  std::error_code ignored;
  check(fs::is_directory(folder, ignored), "MNIST: no folder ", folder);
  const std::array<std::string, 4> names = {"train-images-idx3-ubyte", "train-labels-idx1-ubyte",
                                            "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"};
  std::array<std::string, 4> paths;
  for (size_t i = 0; i < names.size(); i++) paths[i] = find_file(folder, names[i]);
  const bool test_pair_alone = paths[0].empty() && paths[1].empty();
  for (size_t i = test_pair_alone ? 2 : 0; i < names.size(); i++)
    check(!paths[i].empty(), "MNIST: no ", names[i], " (or with .gz) in ", folder,
          "; expected the images and labels of train and t10k, or of t10k alone");
  DigitSet test = read_pair(paths[2], paths[3]);
  if (!test_pair_alone)
    return {read_pair(paths[0], paths[1]), std::move(test), cat("MNIST from ", folder)};
  const int64_t cut = test.size() * 85 / 100;
  MnistData data{slice(test, 0, cut), slice(test, cut, test.size()), ""};
  data.note =
      cat("MNIST from ", folder, ", where only the t10k pair is: its first ", data.train.size(),
          " digits are for training, the last ", data.test.size(), " for testing");
  return data;
}

// Drawn digits. A style is a list of strokes in a box of 1 x 1, y downwards; a digit is a style
// bent, placed and inked at random.
namespace {

struct Point {
  float x, y;
};

enum class Line { Straight, Smooth };  // Smooth: a Catmull-Rom spline through the points

struct Stroke {
  Line line;
  std::vector<Point> points;
};

using Style = std::vector<Stroke>;

struct StyleRow {
  int digit;
  const char* strokes;  // of each the line, then its points in hundredths of the box
};

constexpr StyleRow kStyles[] = {
    {0, "smooth 50 5 80 20 86 50 80 80 50 95 20 80 14 50 20 20 50 5"},
    {0, "smooth 60 4 30 15 20 55 35 92 62 90 80 50 72 12 45 10"},
    {1, "straight 50 4 50 96"},
    {1, "straight 28 30 54 4 54 96"},
    {1,
     "straight 30 22 50 5 50 95 "
     "straight 26 95 76 95"},
    {2,
     "smooth 16 28 30 8 60 6 80 25 70 50 40 74 15 95 "
     "straight 15 95 86 95"},
    {2, "smooth 18 22 45 5 76 20 70 50 42 82 20 93 16 78 34 74 58 90 88 90"},
    {3,
     "smooth 20 15 50 5 78 20 66 42 40 48 "
     "smooth 40 48 72 55 82 75 55 95 16 85"},
    {3,
     "straight 20 7 78 7 44 42 "
     "smooth 44 42 75 50 82 72 55 95 15 86"},
    {4, "straight 66 96 66 5 12 66 90 66"},
    {4,
     "straight 24 6 18 54 84 52 "
     "straight 72 10 66 96"},
    {5,
     "straight 80 7 28 7 24 45 "
     "smooth 24 45 56 38 82 62 66 90 18 90"},
    {5, "smooth 82 5 40 10 25 38 56 46 76 68 56 94 18 86"},
    {6, "smooth 72 6 40 25 20 62 35 93 68 90 78 68 55 50 24 68"},
    {6, "smooth 32 4 20 40 20 76 46 95 78 78 62 54 22 68"},
    {7, "straight 14 7 86 7 40 96"},
    {7,
     "straight 14 7 86 7 42 96 "
     "straight 34 50 78 50"},
    {7, "smooth 14 20 26 8 82 10 60 46 46 96"},
    {8, "smooth 50 48 25 27 50 5 75 27 50 48 20 72 50 95 80 72 50 48"},
    {8, "smooth 80 16 50 4 25 24 55 50 80 76 50 95 22 78 42 54 72 30 80 16"},
    {9, "smooth 76 34 45 50 22 32 32 10 65 7 80 40 62 75 28 94"},
    {9,
     "smooth 76 24 50 5 22 25 44 50 76 24 "
     "straight 77 14 70 96"},
};

std::vector<Stroke> read_strokes(const char* text) {
  std::vector<Stroke> strokes;
  TextReader words(text);
  for (std::string word; words >> word;) {
    if (word == "smooth" || word == "straight") {
      strokes.push_back({word == "smooth" ? Line::Smooth : Line::Straight, {}});
      continue;
    }
    Point p{};
    TextReader(word) >> p.x;
    words >> p.y;
    strokes.back().points.push_back({p.x / 100, p.y / 100});
  }
  return strokes;
}

// The styles of each digit.
const std::array<std::vector<Style>, 10>& styles() {
  static const auto& all = *[] {
    auto* read = new std::array<std::vector<Style>, 10>;
    for (const StyleRow& row : kStyles) (*read)[row.digit].push_back(read_strokes(row.strokes));
    return read;
  }();
  return all;
}

// Maps the unit box of a style to pixels: slant, size, rotation about the centre, shift.
struct Placement {
  float xx, xy, yx, yy, x, y;

  explicit Placement(SplitMix64& random) {
    const float width = random.between(10, 20), height = random.between(14, 22);
    const float slant = random.between(-.35f, .35f), angle = random.between(-.35f, .35f);
    const float c = std::cos(angle), s = std::sin(angle);
    xx = c * width, xy = c * slant * height - s * height;
    yx = s * width, yy = s * slant * height + c * height;
    x = kDigitSide / 2.0f + random.between(-3, 3);
    y = kDigitSide / 2.0f + random.between(-3, 3);
  }
  Point operator()(Point p) const {
    const float u = p.x - .5f, v = p.y - .5f;
    return {x + xx * u + xy * v, y + yx * u + yy * v};
  }
};

// The point at `t` in [0, 1] between b and c of the spline through a, b, c, d (Catmull, Rom 1974).
Point spline(const std::array<Point, 4>& p, float t) {
  const auto blend = [t](float a, float b, float c, float d) {
    return b + .5f * t * (c - a + t * (2 * a - 5 * b + 4 * c - d + t * (3 * (b - c) + d - a)));
  };
  return {blend(p[0].x, p[1].x, p[2].x, p[3].x), blend(p[0].y, p[1].y, p[2].y, p[3].y)};
}

std::vector<Point> flatten(Line line, const std::vector<Point>& points) {
  if (line == Line::Straight) return points;
  constexpr int kPieces = 6;  // of about a pixel each
  const size_t last = points.size() - 1;
  std::vector<Point> path = {points[0]};
  for (size_t i = 0; i < last; i++)
    for (int piece = 1; piece <= kPieces; piece++)
      path.push_back(
          spline({points[i ? i - 1 : 0], points[i], points[i + 1], points[std::min(i + 2, last)]},
                 static_cast<float>(piece) / kPieces));
  return path;
}

float squared_distance(Point p, Point a, Point b) {
  const float dx = b.x - a.x, dy = b.y - a.y, px = p.x - a.x, py = p.y - a.y;
  const float length = std::max(dx * dx + dy * dy, 1e-12f);
  const float t = std::clamp((px * dx + py * dy) / length, 0.0f, 1.0f);
  const float x = px - t * dx, y = py - t * dy;
  return x * x + y * y;
}

// For each pixel the squared distance from its centre to the nearest stroke, as far as `reach`.
class DistanceField {
 public:
  explicit DistanceField(float reach) : reach_(reach) { field_.fill(reach * reach); }

  void add(Point a, Point b) {
    const auto [left, right] = pixels(std::min(a.x, b.x), std::max(a.x, b.x));
    const auto [top, bottom] = pixels(std::min(a.y, b.y), std::max(a.y, b.y));
    for (int y = top; y < bottom; y++)
      for (int x = left; x < right; x++) {
        float& pixel = field_[y * kDigitSide + x];
        pixel = std::min(pixel, squared_distance({x + .5f, y + .5f}, a, b));
      }
  }
  float distance(int pixel) const { return std::sqrt(field_[pixel]); }

 private:
  // The pixels of one axis whose centres may be within reach of [low, high].
  std::pair<int, int> pixels(float low, float high) const {
    const auto clip = [](float v) { return static_cast<int>(std::clamp(v, 0.0f, 28.0f)); };
    return {clip(std::floor(low - reach_)), clip(std::ceil(high + reach_))};
  }

  float reach_;
  std::array<float, kDigitPixels> field_;
};

const Style& pick_style(int digit, SplitMix64& random) {
  const std::vector<Style>& choice = styles()[digit];
  return choice[random.below(static_cast<int>(choice.size()))];
}

void draw_digit(int digit, SplitMix64& random, uint8_t* image) {
  const float radius = random.between(.7f, 1.9f), softness = random.between(.8f, 1.8f);
  const float ink = random.between(170, 255), noise = random.between(0, 22);
  const Placement place(random);
  DistanceField field(radius + softness);
  for (const Stroke& stroke : pick_style(digit, random)) {
    std::vector<Point> points = stroke.points;
    for (Point& p : points) p = place({p.x + .035f * random.bell(), p.y + .035f * random.bell()});
    const std::vector<Point> path = flatten(stroke.line, points);
    for (size_t i = 1; i < path.size(); i++) field.add(path[i - 1], path[i]);
  }
  for (int pixel = 0; pixel < kDigitPixels; pixel++) {
    // The edge of a line fades over `softness` pixels about its radius.
    const float cover = std::clamp((radius - field.distance(pixel)) / softness + .5f, 0.0f, 1.0f);
    const float value = ink * cover + noise * random.bell();
    image[pixel] = static_cast<uint8_t>(std::clamp(value, 0.0f, 255.0f));
  }
}

// Each digit has a generator of its own, so that it does not depend on how many there are.
DigitSet draw_digit_set(int count, uint64_t seed) {
  DigitSet set;
  set.images.resize(static_cast<size_t>(count) * kDigitPixels);
  set.labels.resize(count);
  SplitMix64 start(seed);
  for (int i = 0; i < count; i++) {
    SplitMix64 random(start.bits());
    set.labels[i] = static_cast<uint8_t>(random.below(10));
    draw_digit(set.labels[i], random, &set.images[static_cast<size_t>(i) * kDigitPixels]);
  }
  return set;
}

}  // namespace

MnistData draw_digits(int train, int test, uint64_t seed) {
  check(train >= 0 && test >= 0, "draw_digits: cannot draw ", train, " and ", test, " digits");
  constexpr uint64_t kTestSeed = 0x7465737400000000u;  // sets the two sequences apart
  return {draw_digit_set(train, seed), draw_digit_set(test, seed ^ kTestSeed),
          cat("digits drawn by the program (seed ", seed, "): ", train, " for training, ", test,
              " for testing")};
}

}  // namespace tiny
