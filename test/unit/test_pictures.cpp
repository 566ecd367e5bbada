#include "tiny/vision/pictures.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>

#include "test/error_of.h"
#include "test/temporary_folder.h"

using namespace tiny;

namespace {

Picture gradient(int64_t height, int64_t width) {
  Picture p{height, width, {}};
  for (int64_t y = 0; y < height; ++y)
    for (int64_t x = 0; x < width; ++x)
      for (const int64_t v : {255 * y / height, 255 * x / width, 255 - 255 * x / width})
        p.rgb.push_back(static_cast<uint8_t>(v));
  return p;
}

void write(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

}  // namespace

TEST_CASE("a PNG file has the pixels that were written") {
  const test::TemporaryFolder folder("png");
  const Picture p = gradient(17, 31);
  write_png(folder.file("a.png"), p);
  const Picture back = read_picture(folder.file("a.png"));
  CHECK(back.height == 17);
  CHECK(back.width == 31);
  CHECK(back.rgb == p.rgb);
}

TEST_CASE("a JPEG file has nearly the pixels that were compressed") {
  const test::TemporaryFolder folder("jpeg");
  const Picture p = gradient(40, 56);
  write(folder.file("a.jpg"), encode_jpeg(p, 95));
  const Picture back = read_picture(folder.file("a.jpg"));
  REQUIRE(back.rgb.size() == p.rgb.size());
  CHECK(back.width == 56);
  for (size_t i = 0; i < p.rgb.size(); ++i) CHECK(std::abs(back.rgb[i] - p.rgb[i]) < 16);
  CHECK(error_of([&] { encode_jpeg(p, 0); }) == "encode_jpeg: a quality of 0: it is from 1 to 100");
}

TEST_CASE("files that are no pictures, or cut off, are errors with their names") {
  const test::TemporaryFolder folder("no_picture");
  const std::string text = folder.file("a.txt"), cut = folder.file("b.jpg"),
                    half = folder.file("c.png");
  write(text, "GIF89a");
  CHECK(error_of([&] { read_picture(text); }) ==
        text + ": neither a JPEG nor a PNG file, by its first bytes");
  const std::string jpeg = encode_jpeg(gradient(64, 64));
  write(cut, jpeg.substr(0, jpeg.size() / 2));
  CHECK(has(error_of([&] { read_picture(cut); }), cut + ": "));
  write_png(half, gradient(64, 64));
  std::ifstream in(half, std::ios::binary);
  const std::string png((std::istreambuf_iterator<char>(in)), {});
  write(half, png.substr(0, png.size() / 2));
  CHECK(has(error_of([&] { read_picture(half); }), half + ": "));
  CHECK(has(error_of([&] { read_picture(folder.file("none.png")); }), "none.png"));
}

TEST_CASE("edges of a box are drawn inwards, and what lies outside is left out") {
  Picture p{6, 8, std::vector<uint8_t>(6 * 8 * 3)};
  draw_box(p, {2, 1, 20, 5}, {9, 8, 7}, 1);
  int drawn = 0;
  for (size_t i = 0; i < p.rgb.size(); i += 3) drawn += p.rgb[i] == 9;
  CHECK(drawn == 6 + 6 + 2 * 2);  // the right edge is that of the picture
  CHECK(p.rgb[(1 * 8 + 2) * 3 + 2] == 7);
  CHECK(p.rgb[(2 * 8 + 3) * 3] == 0);
  const std::vector<uint8_t> before = p.rgb;
  draw_box(p, {5, 5, 2, 2}, {1, 1, 1}, 3);  // nothing to draw
  CHECK(p.rgb == before);
}

TEST_CASE("a picture in a square keeps its proportions, grey fills the rest") {
  const SquarePicture s = fit_square(gradient(20, 40), 20);
  CHECK(s.scale == 0.5);
  CHECK(s.planes[9 * 20] == (229 + 242 + 1) / 2);  // between the red of rows 18 and 19
  CHECK(s.planes[10 * 20] == kPaddingGrey);        // below the picture
  CHECK(std::abs(s.planes[400 + 10] - 127) <= 4);  // the green one to the right
  const Picture p = gradient(5, 7);
  const SquarePicture same = fit_square(p, 7);
  const Picture back = from_planes(same.planes.data(), 7, 7);
  CHECK(std::vector<uint8_t>(back.rgb.begin(), back.rgb.begin() + 5 * 7 * 3) == p.rgb);
  CHECK(error_of([&] { fit_square(p, 0); }) == "fit_square: a side of 0");
  CHECK(error_of([&] {
          fit_square(Picture{2, 2, {1}}, 4);
        }) == "fit_square: 1 bytes for 2 x 2 pixels");
}
