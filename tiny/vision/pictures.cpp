#include "tiny/vision/pictures.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tiny/base/error.h"
#include "tiny/base/file.h"
#include "tiny/base/library.h"

namespace tiny {

namespace {

constexpr int64_t kMaxPixels = int64_t{1} << 28;

void require_size(const std::string& name, int64_t height, int64_t width) {
  check(height >= 1 && width >= 1 && height <= kMaxPixels / width, name, ": a picture of ", width,
        " x ", height, " pixels, more than the ", kMaxPixels, " that are read or none");
}

// --- libturbojpeg (the TurboJPEG API 2, turbojpeg.h) ---------------------------------------------

struct TurboJpeg {
  std::string failure;  // empty where all of it is there
  void* (*init_decompress)() = nullptr;
  void* (*init_compress)() = nullptr;
  int (*read_header)(void*, const unsigned char*, unsigned long, int*, int*, int*, int*) = nullptr;
  int (*decompress)(void*, const unsigned char*, unsigned long, unsigned char*, int, int, int, int,
                    int) = nullptr;
  int (*compress)(void*, const unsigned char*, int, int, int, int, unsigned char**, unsigned long*,
                  int, int, int) = nullptr;
  void (*release)(unsigned char*) = nullptr;
  int (*destroy)(void*) = nullptr;
  char* (*error_text)(void*) = nullptr;
};

constexpr int kTurboRgb = 0, kTurbo444 = 0;  // TJPF_RGB, TJSAMP_444

const TurboJpeg& turbo_jpeg() {
  static const TurboJpeg api = [] {
    TurboJpeg a;
    const OpenedLibrary library = open_library({"libturbojpeg.so.0"});
    if (!library.handle) {
      a.failure = cat("JPEG needs libturbojpeg (apt install libturbojpeg0): ", library.failure);
      return a;
    }
    LibraryFunctions f(library.handle);
    f.need("tjInitDecompress", a.init_decompress);
    f.need("tjInitCompress", a.init_compress);
    f.need("tjDecompressHeader3", a.read_header);
    f.need("tjDecompress2", a.decompress);
    f.need("tjCompress2", a.compress);
    f.need("tjFree", a.release);
    f.need("tjDestroy", a.destroy);
    f.need("tjGetErrorStr2", a.error_text);
    if (!f.missing().empty()) a.failure = cat(library.file, " has no function ", f.missing());
    return a;
  }();
  check(api.failure.empty(), api.failure);
  return api;
}

// A handle of the library.
class JpegWorker {
 public:
  JpegWorker(const TurboJpeg& api, void* handle) : api_(api), handle_(handle) {
    check(handle != nullptr, "libturbojpeg: no memory");
  }
  ~JpegWorker() { api_.destroy(handle_); }
  JpegWorker(const JpegWorker&) = delete;
  JpegWorker& operator=(const JpegWorker&) = delete;

  void* get() const { return handle_; }
  void require(int status, const std::string& name) const {
    check(status == 0, name, ": ", status == 0 ? "" : api_.error_text(handle_));
  }

 private:
  const TurboJpeg& api_;
  void* handle_;
};

Picture decode_jpeg(std::string_view bytes, const std::string& name) {
  const TurboJpeg& api = turbo_jpeg();
  const JpegWorker worker(api, api.init_decompress());
  const auto* data = reinterpret_cast<const unsigned char*>(bytes.data());
  int width = 0, height = 0, subsampling = 0, colours = 0;
  worker.require(
      api.read_header(worker.get(), data, bytes.size(), &width, &height, &subsampling, &colours),
      name);
  require_size(name, height, width);
  Picture out{height, width, std::vector<uint8_t>(static_cast<size_t>(width) * height * 3)};
  worker.require(api.decompress(worker.get(), data, bytes.size(), out.rgb.data(), width, 3 * width,
                                height, kTurboRgb, 0),
                 name);
  return out;
}

// --- libpng's simplified API (libpng-manual.txt, section V; png.h) -------------------------------

struct PngImage {  // png_image, version 1
  void* opaque = nullptr;
  uint32_t version = 1, width = 0, height = 0, format = 0, flags = 0, colours = 0, warning = 0;
  char message[64] = {};
};

constexpr uint32_t kPngRgb = 2;  // PNG_FORMAT_RGB

struct Png {
  std::string failure;
  int (*begin_read)(PngImage*, const void*, size_t) = nullptr;
  int (*finish_read)(PngImage*, const Rgb*, void*, int32_t, void*) = nullptr;
  int (*write)(PngImage*, void*, size_t*, int, const void*, int32_t, const void*) = nullptr;
  void (*release)(PngImage*) = nullptr;
};

const Png& png() {
  static const Png api = [] {
    Png a;
    const OpenedLibrary library = open_library({"libpng16.so.16"});
    if (!library.handle) {
      a.failure = cat("PNG needs libpng (apt install libpng16-16): ", library.failure);
      return a;
    }
    LibraryFunctions f(library.handle);
    f.need("png_image_begin_read_from_memory", a.begin_read);
    f.need("png_image_finish_read", a.finish_read);
    f.need("png_image_write_to_memory", a.write);
    f.need("png_image_free", a.release);
    if (!f.missing().empty()) a.failure = cat(library.file, " has no function ", f.missing());
    return a;
  }();
  check(api.failure.empty(), api.failure);
  return api;
}

Picture decode_png(std::string_view bytes, const std::string& name) {
  const Png& api = png();
  PngImage image;
  const bool opened = api.begin_read(&image, bytes.data(), bytes.size()) != 0;
  check(opened, name, ": ", image.message);
  Picture out{image.height, image.width, {}};
  if (int64_t{image.height} * image.width > kMaxPixels) api.release(&image);
  require_size(name, out.height, out.width);
  out.rgb.resize(static_cast<size_t>(out.height) * out.width * 3);
  image.format = kPngRgb;
  const Rgb white{255, 255, 255};
  const int status = api.finish_read(&image, &white, out.rgb.data(), 0, nullptr);
  check(status != 0, name, ": ", image.message);
  return out;
}

std::string encode_png(const Picture& picture, const std::string& name) {
  const Png& api = png();
  PngImage image;
  image.width = static_cast<uint32_t>(picture.width);
  image.height = static_cast<uint32_t>(picture.height);
  image.format = kPngRgb;
  // More than it takes: the rows, the byte before each, and what deflate adds to them.
  size_t bytes = picture.rgb.size() + picture.rgb.size() / 100 +
                 static_cast<size_t>(picture.height) * 2 + 4096;
  std::string out(bytes, '\0');
  const int status = api.write(&image, out.data(), &bytes, 0, picture.rgb.data(), 0, nullptr);
  check(status != 0, name, ": ", image.message);
  out.resize(bytes);
  return out;
}

void require_filled(const char* what, const Picture& p) {
  require_size(what, p.height, p.width);
  check(static_cast<int64_t>(p.rgb.size()) == 3 * p.height * p.width, what, ": ", p.rgb.size(),
        " bytes for ", p.width, " x ", p.height, " pixels");
}

}  // namespace

// --- Files ---------------------------------------------------------------------------------------

Picture decode_picture(std::string_view bytes, const std::string& name) {
  if (bytes.starts_with("\xff\xd8\xff")) return decode_jpeg(bytes, name);
  if (bytes.starts_with("\x89PNG\r\n\x1a\n")) return decode_png(bytes, name);
  throw Error(cat(name, ": neither a JPEG nor a PNG file, by its first bytes"));
}

Picture read_picture(const std::string& path) {
  return decode_picture(InputFile("picture", path).read_all(), path);
}

void write_png(const std::string& path, const Picture& picture) {
  require_filled("write_png", picture);
  FileAside file("write_png", path);
  file.write(encode_png(picture, path));
  file.commit();
}

std::string encode_jpeg(const Picture& picture, int quality) {
  require_filled("encode_jpeg", picture);
  check(quality >= 1 && quality <= 100, "encode_jpeg: a quality of ", quality,
        ": it is from 1 to 100");
  const TurboJpeg& api = turbo_jpeg();
  const JpegWorker worker(api, api.init_compress());
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  const auto width = static_cast<int>(picture.width), height = static_cast<int>(picture.height);
  const int status = api.compress(worker.get(), picture.rgb.data(), width, 3 * width, height,
                                  kTurboRgb, &bytes, &size, kTurbo444, quality, 0);
  const std::string out(reinterpret_cast<const char*>(bytes), status == 0 ? size : 0);
  api.release(bytes);
  worker.require(status, "encode_jpeg");
  return out;
}

// --- Pixels --------------------------------------------------------------------------------------

void draw_box(Picture& picture, const BoxCorners& box, const Rgb& colour, int64_t thickness) {
  require_filled("draw_box", picture);
  const auto whole = [](float v, int64_t most) {
    return std::clamp<int64_t>(std::isfinite(v) ? std::lround(v) : 0, 0, most);
  };
  const int64_t x1 = whole(box[0], picture.width), y1 = whole(box[1], picture.height);
  const int64_t x2 = whole(box[2], picture.width), y2 = whole(box[3], picture.height);
  for (int64_t y = y1; y < y2; ++y)
    for (int64_t x = x1; x < x2; ++x) {
      const int64_t from_edge = std::min({x - x1, x2 - 1 - x, y - y1, y2 - 1 - y});
      if (from_edge < thickness)
        std::ranges::copy(colour, &picture.rgb[(y * picture.width + x) * 3]);
    }
}

SquarePicture fit_square(const Picture& picture, int64_t side) {
  require_filled("fit_square", picture);
  check(side >= 1 && side <= (1 << 14), "fit_square: a side of ", side);
  const int64_t h = picture.height, w = picture.width;
  const double scale = static_cast<double>(side) / static_cast<double>(std::max(h, w));
  const auto size = [&](int64_t n) {
    return std::clamp<int64_t>(std::llround(static_cast<double>(n) * scale), 1, side);
  };
  const int64_t rows = size(h), columns = size(w);
  SquarePicture out{std::vector<uint8_t>(static_cast<size_t>(3 * side * side), kPaddingGrey),
                    scale};
  // Pixel i of n covers the middle (i + 1/2) / scale - 1/2 of the picture's.
  const auto position = [&](int64_t i, int64_t n) {
    const double at = (static_cast<double>(i) + 0.5) / scale - 0.5;
    return std::clamp(at, 0.0, static_cast<double>(n - 1));
  };
  for (int64_t y = 0; y < rows; ++y) {
    const double sy = position(y, h);
    const auto y0 = static_cast<int64_t>(sy), y1 = std::min(y0 + 1, h - 1);
    const double fy = sy - static_cast<double>(y0);
    for (int64_t x = 0; x < columns; ++x) {
      const double sx = position(x, w);
      const auto x0 = static_cast<int64_t>(sx), x1 = std::min(x0 + 1, w - 1);
      const double fx = sx - static_cast<double>(x0);
      for (int64_t c = 0; c < 3; ++c) {
        const auto at = [&](int64_t row, int64_t column) {
          return static_cast<double>(picture.rgb[(row * w + column) * 3 + c]);
        };
        const double upper = at(y0, x0) + (at(y0, x1) - at(y0, x0)) * fx;
        const double lower = at(y1, x0) + (at(y1, x1) - at(y1, x0)) * fx;
        out.planes[(c * side + y) * side + x] =
            static_cast<uint8_t>(std::lround(upper + (lower - upper) * fy));
      }
    }
  }
  return out;
}

Picture from_planes(const uint8_t* planes, int64_t height, int64_t width) {
  require_size("from_planes", height, width);
  Picture out{height, width, std::vector<uint8_t>(static_cast<size_t>(3 * height * width))};
  const int64_t pixels = height * width;
  for (int64_t i = 0; i < pixels; ++i)
    for (int64_t c = 0; c < 3; ++c) out.rgb[i * 3 + c] = planes[c * pixels + i];
  return out;
}

}  // namespace tiny
