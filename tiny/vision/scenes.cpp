#include "tiny/vision/scenes.h"

#include <algorithm>
#include <cmath>

#include "tiny/base/error.h"
#include "tiny/data/shapes.h"

namespace tiny {

namespace {

using namespace drawing;

struct Kind {
  const char* name;
  float (*distance)(Corner);
};

constexpr Kind kKinds[] = {{"disc", drawing::disc},
                           {"square", drawing::square},
                           {"triangle", drawing::triangle},
                           {"ring", drawing::ring},
                           {"cross", drawing::cross}};
constexpr int kKindCount = 5, kTries = 12;

// A square in which a shape lies.
struct Spot {
  Corner middle;
  float radius;
};

// The share of `old` that a shape in `fresh` may cover.
float covered(const Spot& old, const Spot& fresh) {
  const float reach = old.radius + fresh.radius;
  const auto side = [&](float a, float b) {
    return std::clamp(reach - std::abs(a - b), 0.0f, 2 * std::min(old.radius, fresh.radius));
  };
  const float smaller = std::min(old.radius, fresh.radius);
  return side(old.middle.x, fresh.middle.x) * side(old.middle.y, fresh.middle.y) /
         (4 * smaller * smaller);
}

// A place where it covers little of what is there; a radius of 0 where none was found.
Spot find_spot(const std::vector<Spot>& taken, float side, SplitMix64& random) {
  for (int i = 0; i < kTries; ++i) {
    Spot spot{{0, 0}, side * random.between(0.07f, 0.22f)};
    spot.middle.x = random.between(spot.radius, side - spot.radius);
    spot.middle.y = random.between(spot.radius, side - spot.radius);
    const bool is_free =
        std::ranges::all_of(taken, [&](const Spot& t) { return covered(t, spot) < 0.25f; });
    if (is_free) return spot;
  }
  return {{0, 0}, 0};
}

// A picture on which one draws.
struct Canvas {
  int64_t side;
  std::vector<float> values;  // (side, side, 3)

  float* pixel(int64_t x, int64_t y) { return &values[(y * side + x) * 3]; }
};

// The box of the pixels at least half of which it covers.
BoxCorners draw_shape(Canvas& canvas, const Kind& kind, const Spot& spot, SplitMix64& random) {
  const Frame frame(spot.middle, random.between(0, 6.2832f), spot.radius);
  const Colour middle = [&] {
    const float* p =
        canvas.pixel(static_cast<int64_t>(spot.middle.x), static_cast<int64_t>(spot.middle.y));
    return Colour{p[0], p[1], p[2]};
  }();
  const Colour colour = other_colour(middle, 70, random);
  const auto side = static_cast<float>(canvas.side);
  const auto pixels = [&](float from) {
    return static_cast<int64_t>(std::clamp(from, 0.0f, side));
  };
  const float reach = spot.radius * 1.15f + 1;  // a square's corners lie beyond the radius
  BoxCorners box{side, side, 0, 0};
  for (int64_t y = pixels(spot.middle.y - reach); y < pixels(spot.middle.y + reach + 1); ++y)
    for (int64_t x = pixels(spot.middle.x - reach); x < pixels(spot.middle.x + reach + 1); ++x) {
      const Corner at{static_cast<float>(x) + 0.5f, static_cast<float>(y) + 0.5f};
      const float share = edge(-kind.distance(frame(at)) * spot.radius);
      if (share <= 0) continue;
      float* p = canvas.pixel(x, y);
      for (int c = 0; c < 3; ++c) p[c] += (colour[c] - p[c]) * share;
      if (share < 0.5f) continue;
      box = {std::min(box[0], at.x - 0.5f), std::min(box[1], at.y - 0.5f),
             std::max(box[2], at.x + 0.5f), std::max(box[3], at.y + 0.5f)};
    }
  return box;
}

DetectionSample draw_scene(int64_t side, SplitMix64 random) {
  Canvas canvas{side, std::vector<float>(static_cast<size_t>(side * side * 3))};
  const Colour back = any_colour(random), other = other_colour(back, 0, random);
  const Corner middle{static_cast<float>(side) / 2, static_cast<float>(side) / 2};
  const Frame sky(middle, random.between(0, 6.2832f), static_cast<float>(side));
  for (int64_t y = 0; y < side; ++y)
    for (int64_t x = 0; x < side; ++x) {
      const Colour c =
          blend(back, other, edge(sky({static_cast<float>(x), static_cast<float>(y)}).x));
      std::ranges::copy(c, canvas.pixel(x, y));
    }
  DetectionSample out;
  std::vector<Spot> taken;
  const int count = 1 + random.below(static_cast<int>(kSceneShapes));
  for (int i = 0; i < count; ++i) {
    const Spot spot = find_spot(taken, static_cast<float>(side), random);
    const int kind = random.below(kKindCount);
    if (spot.radius == 0) continue;
    taken.push_back(spot);
    out.boxes.push_back({draw_shape(canvas, kKinds[kind], spot, random), kind});
  }
  const float noise = random.between(0, 10);
  const int64_t pixels = side * side;
  out.planes.resize(static_cast<size_t>(3 * pixels));
  for (int64_t i = 0; i < pixels; ++i)
    for (int64_t c = 0; c < 3; ++c) {
      const float v = canvas.values[i * 3 + c] + noise * random.bell();
      out.planes[c * pixels + i] = static_cast<uint8_t>(std::clamp(v, 0.0f, 255.0f));
    }
  return out;
}

}  // namespace

DetectionSet draw_scenes(int64_t size, int64_t side, uint64_t seed) {
  check(size >= 0 && side >= 32 && side <= 4096, "draw_scenes: ", size, " pictures of ", side,
        " x ", side, " pixels: sides are from 32 to 4096");
  DetectionSet set{{}, side, size, kSceneShapes, {}};
  for (const Kind& kind : kKinds) set.classes.push_back(kind.name);
  set.sample = [size, side, seed](int64_t i) {
    check(i >= 0 && i < size, "draw_scenes: picture ", i, " of ", size);
    SplitMix64 start(seed * 0x9e3779b97f4a7c15u + static_cast<uint64_t>(i));
    return draw_scene(side, SplitMix64(start.bits()));
  };
  return set;
}

}  // namespace tiny
