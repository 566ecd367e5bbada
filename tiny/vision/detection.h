// Sets of pictures with boxes, batches of them as tensors, and changes of batches on the device.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tiny/tensor/tensor.h"
#include "tiny/vision/pictures.h"

namespace tiny {

// A picture as planes of red, green and blue (3, side, side), and what it shows.
struct DetectionSample {
  std::vector<uint8_t> planes;
  std::vector<PictureBox> boxes;
};

struct DetectionSet {
  std::vector<std::string> classes;
  int64_t side = 0, size = 0;
  int64_t most_boxes = 1;                          // of a picture
  std::function<DetectionSample(int64_t)> sample;  // may be called by several threads at once
};

// The same set with all its pictures in memory, which several threads make now.
DetectionSet keep_in_memory(const DetectionSet& set);

// What a DataLoader fetches: the pictures u8 (n, 3, side, side), their boxes f32 (n, most_boxes, 4)
// and labels i32 (n, most_boxes), -1 behind the last box and for crowds, which nobody is to find.
// Several threads read pictures at once.
std::vector<Tensor> detection_batch(const DetectionSet& set, const std::vector<int64_t>& positions);

struct JitterOptions {
  double smallest = 0.8, largest = 1.25;  // scales
  bool mirrors = true;                    // every second picture, at random
  double least_visible = 0.3;             // share of a box's area; with less it is none
  std::vector<std::string> devices = {};  // over which the batch is cut, where there are several
};

// A batch as above with each picture scaled, moved within the room that this leaves, and mirrored
// at random, in the same shapes: pixels are those nearest, what lies outside is grey. Boxes follow,
// cut off at the edges; the label of one of which too little is left becomes -1. Error for scales
// that are out of order or not in [1/16, 16]. No gradient.
std::vector<Tensor> jitter_pictures(const std::vector<Tensor>& batch,
                                    const JitterOptions& options = {});

}  // namespace tiny
