// Data sets in COCO's format: a JSON file of annotations and a folder of pictures.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "tiny/vision/detection.h"

namespace tiny {

// A picture that has not been read.
struct CocoPicture {
  int64_t id = 0;
  std::string file;  // with its folder
  int64_t height = 0, width = 0;
  std::vector<PictureBox> boxes;  // labels are positions among the categories
};

struct CocoAnnotations {
  std::vector<std::string> categories;  // by their ids, the least first
  std::vector<int64_t> category_ids;
  std::vector<CocoPicture> pictures;  // in the file's order
};

// Reads "instances" annotations: the lists "images" (id, file_name, height, width), "annotations"
// (image_id, category_id, bbox as [x, y, width, height], iscrowd) and "categories" (id, name);
// outlines are passed over. Boxes are cut off at the picture's edges, and those without an area are
// left out. Throws Error, which names the file and the entry, for a file that is no JSON, entries
// that lack something or have another type, ids that occur twice or are unknown, and boxes that are
// no four finite numbers.
CocoAnnotations read_coco(const std::string& annotations, const std::string& folder);

// Those pictures, read and scaled to side x side when they are asked for (fit_square); with
// `needs_boxes` without those that show nothing. Errors of read_picture come then, and for a
// picture of another size than its entry says.
DetectionSet coco_set(CocoAnnotations annotations, int64_t side, bool needs_boxes);

// The two parts of a folder as COCO's archives unpack, such as annotations/instances_train2017.json
// with train2017 and annotations/instances_val2017.json with val2017. Error where there is not
// exactly one of each, and where they have different categories.
struct DetectionData {
  DetectionSet train, test;
  std::string note;  // for people
};
DetectionData load_coco(const std::string& folder, int64_t side);

}  // namespace tiny
