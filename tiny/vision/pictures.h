// Pictures of files, in memory. JPEG is read by libjpeg-turbo's libturbojpeg and PNG by libpng;
// both are opened at run time, so that nothing of them is needed to build.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tiny {

// Red, green and blue of each pixel, row after row.
struct Picture {
  int64_t height = 0, width = 0;
  std::vector<uint8_t> rgb;  // height x width x 3
};

// Where a box lies, in pixels: x1, y1, x2, y2.
using BoxCorners = std::array<float, 4>;
using Rgb = std::array<uint8_t, 3>;

// A thing in a picture.
struct PictureBox {
  BoxCorners corners;
  int64_t label;          // of its class, from 0 on
  bool is_crowd = false;  // of many things that are not told apart (COCO's iscrowd)
};

// Reads a JPEG or PNG file, whichever its first bytes say: grey as three equal colours, 16 bits as
// 8, what is transparent on white. Throws Error, which names the file, for one that is neither, is
// damaged or cut off, or has more than 2^28 pixels, and where the library is missing (with what to
// install).
Picture read_picture(const std::string& path);
// The same from the bytes of a file; `name` stands in errors.
Picture decode_picture(std::string_view bytes, const std::string& name);

// Writes a PNG file, aside and renamed. Error where the library is missing, or no file can be made.
void write_png(const std::string& path, const Picture& picture);
// The bytes of a JPEG file, of a quality from 1 to 100 (Error) and without subsampling of colours.
std::string encode_jpeg(const Picture& picture, int quality = 95);

// The edges of a box, `thickness` pixels wide, inwards; what lies outside is left out.
void draw_box(Picture& picture, const BoxCorners& box, const Rgb& colour, int64_t thickness = 2);

// The picture as planes of red, green and blue (3, side, side), scaled so that its longer side is
// `side` (between four neighbours, bilinear) and followed by grey at the right or below. `scale`:
// what a coordinate of the picture is multiplied by.
struct SquarePicture {
  std::vector<uint8_t> planes;
  double scale;
};
inline constexpr uint8_t kPaddingGrey = 114;
SquarePicture fit_square(const Picture& picture, int64_t side);

// Planes (3, height, width) as a picture.
Picture from_planes(const uint8_t* planes, int64_t height, int64_t width);

}  // namespace tiny
