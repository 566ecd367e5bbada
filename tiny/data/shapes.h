// What drawn pictures are made of: shapes as distances from their edges, colours, places.
#pragma once
#include <algorithm>
#include <array>
#include <cmath>

#include "tiny/base/splitmix.h"

namespace tiny::drawing {

struct Corner {
  float x, y;
};

using Colour = std::array<float, 3>;

// Signed distances from a point to the edge of a shape of radius 1, negative inside; outside near
// corners only a bound, which is enough for an edge of one pixel.
inline float disc(Corner p) { return std::hypot(p.x, p.y) - 1; }
inline float square(Corner p) { return std::max(std::abs(p.x), std::abs(p.y)) - 0.8f; }
inline float triangle(Corner p) {
  const float slope = 0.866f * std::abs(p.x) - 0.5f * p.y;
  return std::max(slope, p.y) - 0.55f;
}
inline float ring(Corner p) { return std::abs(std::hypot(p.x, p.y) - 0.75f) - 0.25f; }
inline float cross(Corner p) {
  const float x = std::abs(p.x), y = std::abs(p.y);
  return std::max(std::max(x, y) - 1, std::min(x, y) - 0.32f);
}

inline Colour any_colour(SplitMix64& random) {
  return {random.between(0, 255), random.between(0, 255), random.between(0, 255)};
}

// Another colour, at least `contrast` away in one of the channels.
inline Colour other_colour(const Colour& from, float contrast, SplitMix64& random) {
  Colour to = any_colour(random);
  const int channel = random.below(3);
  const float shift = random.between(contrast, 127);
  to[channel] = from[channel] < 127.5f ? from[channel] + shift : from[channel] - shift;
  return to;
}

inline Colour blend(const Colour& a, const Colour& b, float share) {
  Colour c;
  for (int i = 0; i < 3; i++) c[i] = a[i] + (b[i] - a[i]) * share;
  return c;
}

// 0 below -1/2, 1 above 1/2.
inline float edge(float v) { return std::clamp(v + 0.5f, 0.0f, 1.0f); }

// A turn and a scale about a centre.
struct Frame {
  Corner centre;
  float c, s;

  Frame(Corner at, float angle, float unit)
      : centre(at), c(std::cos(angle) / unit), s(std::sin(angle) / unit) {}
  Corner operator()(Corner p) const {
    const float x = p.x - centre.x, y = p.y - centre.y;
    return {c * x + s * y, c * y - s * x};
  }
};

}  // namespace tiny::drawing
