// RetinaNet, a detector of one stage (T.-Y. Lin et al., "Focal loss for dense object detection",
// arXiv 1708.02002): a ResNet, a pyramid of features, and on each of its levels two small networks
// that say for nine anchors of each position what they show and where exactly. Anchors, matching,
// losses and names of tensors are torchvision's, so that files of its models can be loaded.
//
//   nn::RetinaNet network({.classes = 5});
//   const Tensor loss = network.loss(network.outputs(images), {boxes, labels}).total();
//   const nn::Detections found = network.detect(network.outputs(images));
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tiny/vision/resnet.h"

namespace tiny::nn {

inline constexpr int64_t kAnchorsPerPlace = 9;  // 3 sizes in 3 shapes

// Anchors (a, 4) of a picture of this size, level after level, row after row, place after place of
// `grids` (height, width): heights 1/2, 1 and 2 times the width, of areas of squares whose sides
// are `size`, 2^(1/3) size and 2^(2/3) size, rounded down, where size doubles from level to level.
// As in torchvision corners of the first are rounded to whole pixels, and distances between places
// are whole numbers: the picture's size over the grid's, rounded down. Error for grids larger than
// the picture.
Tensor make_anchors(int64_t height, int64_t width,
                    const std::vector<std::pair<int64_t, int64_t>>& grids, int64_t size = 32);

struct RetinaNetOptions {
  int64_t classes = 80;
  ResNetOptions backbone = {};
  int64_t channels = 256;     // of the pyramid and the heads
  int64_t head_depth = 4;     // 3x3 convolutions before the last one
  int64_t anchor_size = 32;   // of P3, in pixels
  double box_beta = 1.0 / 9;  // of smooth L1; 0: L1, torchvision's
};

// What the heads say, for each level: logits (N, a, classes), and boxes relative to anchors
// (N, a, 4). `anchors`: of all levels, (a, 4).
struct RetinaNetOutputs {
  std::vector<Tensor> logits, deltas;
  Tensor anchors;
  int64_t height, width;  // of the pictures
};

// What a batch shows: boxes (N, m, 4) and labels (N, m), integers, -1 where there is no box.
struct TrueBoxes {
  Tensor boxes, labels;
};

struct RetinaNetLoss {
  Tensor classes, boxes;  // f32, 0-d
  Tensor total() const { return classes + boxes; }
};

struct DetectOptions {
  double score_threshold = 0.05;
  int64_t per_level = 1000;    // of the best pairs of anchor and class on each level,
  int64_t candidates = 1000;   // so many of all levels go on
  double iou_threshold = 0.5;  // of nms() among those of a class
  int64_t most = 100;          // detections of a picture
};

// The best first: boxes (N, most, 4) in pixels, scores (N, most), 0 where there is none, labels
// i64 (N, most).
struct Detections {
  Tensor boxes, scores, labels;
};

class RetinaNet : public Module {
 public:
  explicit RetinaNet(const RetinaNetOptions& options = {});

  // Bytes (N, 3, H, W) as numbers of about mean 0 and variance 1, f32, by ImageNet's statistics.
  static Tensor normalized(const Tensor& bytes);
  // Of such numbers, H and W of at least 32 pixels (Error). Products may be in any dtype
  // (Autocast).
  RetinaNetOutputs outputs(const Tensor& images);

  // Both losses of a picture are sums over anchors divided by the number of those that have a box,
  // or by 1; then the mean over the pictures. Matching runs on the device.
  RetinaNetLoss loss(const RetinaNetOutputs& outputs, const TrueBoxes& truth) const;
  // No gradient. Nothing is read on the host.
  Detections detect(const RetinaNetOutputs& outputs, const DetectOptions& options = {}) const;

  Children children() override;
  const RetinaNetOptions& options() const { return options_; }

 private:
  // 3x3 convolutions with relu between them; results (N, places 9, numbers).
  struct Head {
    Head(const std::string& name, const std::string& last, const RetinaNetOptions& o,
         int64_t numbers);
    Tensor operator()(const Tensor& x);

    std::string name, last;
    int64_t numbers;
    std::vector<Conv2d> convs;
  };

  const Tensor& anchors_for(const RetinaNetOutputs& outputs, const std::string& device,
                            const std::vector<std::pair<int64_t, int64_t>>& grids);

  const RetinaNetOptions options_;
  std::map<std::string, Tensor> anchors_;  // by the size of pictures and the device
  ResNet body_;
  FeaturePyramid pyramid_;
  Head classes_, boxes_;
};

}  // namespace tiny::nn
