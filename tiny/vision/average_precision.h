// How good detections are: average precision as COCO defines it.
#pragma once
#include <cstdint>
#include <vector>

#include "tiny/vision/pictures.h"

namespace tiny {

struct FoundBox {
  BoxCorners corners;
  int64_t label;
  float score;
};

// What a picture shows, and what was found in it.
struct PictureResult {
  std::vector<PictureBox> truth;
  std::vector<FoundBox> found;
};

struct AveragePrecision {
  double mean = 0;               // over overlaps of 0.5, 0.55, ..., 0.95: mAP@[.5:.95]
  double at_50 = 0, at_75 = 0;   // of overlaps of at least so much
  std::vector<double> by_class;  // over the overlaps; -1 for a class that no picture shows
};

// The mean over the classes that are shown of the area under the curve of precision over recall,
// with precision at the recalls 0, 0.01, ..., 1 (0 where one is not reached) and made to fall
// (T.-Y. Lin et al., "Microsoft COCO", arXiv 1405.0312, and its pycocotools: all sizes, of each
// class at most `most` detections of a picture). In a picture a detection, the best score first, is
// a hit if it overlaps a box of its class that no other has hit by at least the threshold, the one
// that it overlaps most; crowds can be hit often, by the share of the detection that they cover,
// and count neither as hits nor as misses. All 0 where nothing is shown. Error for labels that are
// no class.
AveragePrecision average_precision(const std::vector<PictureResult>& pictures, int64_t classes,
                                   int64_t most = 100);

}  // namespace tiny
