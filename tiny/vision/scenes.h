// Drawn pictures of several shapes with known boxes: what detectors learn where no files are at
// hand.
#pragma once
#include <cstdint>

#include "tiny/vision/detection.h"

namespace tiny {

inline constexpr int64_t kSceneShapes = 6;  // at most, in a picture

// Scenes of one to six discs, squares, triangles, rings and crosses of random colours, sizes (an
// eighth to almost half of the picture), places and turns, on backgrounds of two colours with
// noise. Later ones may cover up to a quarter of earlier ones. Picture i is a function of the seed
// and i, and is drawn when it is asked for. Error for sides outside of 32 to 4096 and negative
// sizes.
DetectionSet draw_scenes(int64_t size, int64_t side, uint64_t seed);

}  // namespace tiny
