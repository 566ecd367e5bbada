#include "tiny/vision/coco.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <system_error>

#include "tiny/base/error.h"
#include "tiny/base/file.h"

#if __has_include(<nlohmann/json.hpp>)
#include <nlohmann/json.hpp>
#define TINY_HAS_JSON 1
#endif

namespace tiny {

namespace fs = std::filesystem;

#ifdef TINY_HAS_JSON
namespace {

using Json = nlohmann::json;

// Reads the fields of an annotation file's entries, and says which one is wrong.
class CocoReader {
 public:
  CocoReader(const std::string& path, const std::string& folder) : path_(path), folder_(folder) {}

  CocoAnnotations read() {
    const std::string text = InputFile("COCO", path_).read_all();
    // Outlines are most of a file and nobody's business here.
    const auto wanted = [](int, Json::parse_event_t event, const Json& value) {
      return event != Json::parse_event_t::key || value != "segmentation";
    };
    const Json root = Json::parse(text, wanted, /*allow_exceptions=*/false);
    check(root.is_object(), "COCO: ", path_, " is no JSON object: damaged or cut off");
    read_categories(list(root, "categories"));
    read_images(list(root, "images"));
    read_boxes(list(root, "annotations"));
    return std::move(out_);
  }

 private:
  const Json& list(const Json& root, const char* name) const {
    const auto found = root.find(name);
    check(found != root.end() && found->is_array(), "COCO: ", path_, " has no list \"", name, "\"");
    return *found;
  }

  std::string place(const char* list, size_t i) const {
    return cat(path_, ", ", list, "[", i, "]");
  }

  const Json& field(const Json& entry, const char* name, const std::string& where) const {
    check(entry.is_object() && entry.contains(name), "COCO: ", where, " has no \"", name, "\"");
    return entry[name];
  }
  int64_t whole(const Json& entry, const char* name, const std::string& where) const {
    const Json& value = field(entry, name, where);
    check(value.is_number_integer(), "COCO: ", where, ": \"", name, "\" is ", value.dump(),
          " and no whole number");
    return value.get<int64_t>();
  }
  std::string text(const Json& entry, const char* name, const std::string& where) const {
    const Json& value = field(entry, name, where);
    check(value.is_string(), "COCO: ", where, ": \"", name, "\" is ", value.dump(), " and no text");
    return value.get<std::string>();
  }

  void read_categories(const Json& entries) {
    std::map<int64_t, std::string> names;
    for (size_t i = 0; i < entries.size(); ++i) {
      const std::string where = place("categories", i);
      const int64_t id = whole(entries[i], "id", where);
      check(names.emplace(id, text(entries[i], "name", where)).second, "COCO: ", where, ": the id ",
            id, " occurs twice");
    }
    check(!names.empty(), "COCO: ", path_, " has no categories");
    for (const auto& [id, name] : names) {
      labels_[id] = static_cast<int64_t>(out_.categories.size());
      out_.categories.push_back(name);
      out_.category_ids.push_back(id);
    }
  }

  void read_images(const Json& entries) {
    for (size_t i = 0; i < entries.size(); ++i) {
      const std::string where = place("images", i);
      CocoPicture p;
      p.id = whole(entries[i], "id", where);
      const std::string file = text(entries[i], "file_name", where);
      const fs::path relative(file);
      const bool leaves = contains(relative, "..");
      check(!file.empty() && !relative.is_absolute() && !leaves, "COCO: ", where,
            ": the file_name \"", file, "\" does not lie in the folder of pictures");
      p.file = (fs::path(folder_) / relative).string();
      p.height = whole(entries[i], "height", where);
      p.width = whole(entries[i], "width", where);
      check(p.height >= 1 && p.width >= 1, "COCO: ", where, ": a picture of ", p.width, " x ",
            p.height, " pixels");
      check(pictures_.emplace(p.id, out_.pictures.size()).second, "COCO: ", where, ": the id ",
            p.id, " occurs twice");
      out_.pictures.push_back(std::move(p));
    }
  }

  void read_boxes(const Json& entries) {
    for (size_t i = 0; i < entries.size(); ++i) {
      const std::string where = place("annotations", i);
      const int64_t image = whole(entries[i], "image_id", where);
      const auto picture = pictures_.find(image);
      check(picture != pictures_.end(), "COCO: ", where, ": there is no image ", image);
      const int64_t category = whole(entries[i], "category_id", where);
      const auto label = labels_.find(category);
      check(label != labels_.end(), "COCO: ", where, ": there is no category ", category);
      const bool crowd = entries[i].contains("iscrowd") && whole(entries[i], "iscrowd", where) != 0;
      add_box(out_.pictures[picture->second], field(entries[i], "bbox", where), where,
              {{}, label->second, crowd});
    }
  }

  void add_box(CocoPicture& picture, const Json& bbox, const std::string& where,
               PictureBox box) const {
    const auto is_number = [](const Json& v) {
      return v.is_number() && std::isfinite(v.get<double>());
    };
    const bool fits = bbox.is_array() && bbox.size() == 4 && std::ranges::all_of(bbox, is_number);
    check(fits, "COCO: ", where, ": the bbox ", bbox.dump(),
          " is no list of four numbers [x, y, width, height]");
    const auto number = [&](size_t i) { return bbox[i].get<double>(); };
    check(number(2) >= 0 && number(3) >= 0, "COCO: ", where, ": the bbox ", bbox.dump(),
          " has a negative size");
    const auto inside = [](double v, int64_t most) {
      return static_cast<float>(std::clamp(v, 0.0, static_cast<double>(most)));
    };
    box.corners = {inside(number(0), picture.width), inside(number(1), picture.height),
                   inside(number(0) + number(2), picture.width),
                   inside(number(1) + number(3), picture.height)};
    const bool has_area = box.corners[2] > box.corners[0] && box.corners[3] > box.corners[1];
    if (has_area) picture.boxes.push_back(box);
  }

  const std::string path_, folder_;
  CocoAnnotations out_;
  std::map<int64_t, int64_t> labels_;   // by category id
  std::map<int64_t, size_t> pictures_;  // by image id
};

}  // namespace

CocoAnnotations read_coco(const std::string& annotations, const std::string& folder) {
  return CocoReader(annotations, folder).read();
}
#else
CocoAnnotations read_coco(const std::string& annotations, const std::string&) {
  throw Error(cat("COCO: ", annotations, ": built without nlohmann/json.hpp"));
}
#endif

// --- Sets ----------------------------------------------------------------------------------------

namespace {

DetectionSample read_sample(const CocoPicture& entry, int64_t side) {
  const Picture picture = read_picture(entry.file);
  check(picture.height == entry.height && picture.width == entry.width, "COCO: ", entry.file,
        " has ", picture.width, " x ", picture.height, " pixels, its entry says ", entry.width,
        " x ", entry.height);
  SquarePicture fitted = fit_square(picture, side);
  DetectionSample out{std::move(fitted.planes), entry.boxes};
  for (PictureBox& box : out.boxes)
    for (float& v : box.corners) v = static_cast<float>(v * fitted.scale);
  return out;
}

// The one file annotations/instances_PART*.json, and the folder of pictures with the same end.
CocoAnnotations read_part(const fs::path& folder, const std::string& part) {
  std::vector<std::string> ends;
  std::error_code error;
  const std::string begin = "instances_" + part, ending = ".json";
  for (const auto& entry : fs::directory_iterator(folder / "annotations", error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(begin) && name.ends_with(ending))
      ends.push_back(name.substr(10, name.size() - 10 - ending.size()));
  }
  check(ends.size() == 1, "COCO: ", folder.string(), " has ", ends.size(),
        " files annotations/instances_", part, "*.json and not one");
  const fs::path pictures = folder / ends[0];
  check(fs::is_directory(pictures, error), "COCO: no folder ", pictures.string(),
        " of pictures for annotations/instances_", ends[0], ".json");
  return read_coco((folder / "annotations" / ("instances_" + ends[0] + ".json")).string(),
                   pictures.string());
}

}  // namespace

DetectionSet coco_set(CocoAnnotations annotations, int64_t side, bool needs_boxes) {
  check(side >= 32 && side <= 4096, "coco_set: a side of ", side, ": it is from 32 to 4096");
  std::vector<CocoPicture>& all = annotations.pictures;
  if (needs_boxes) std::erase_if(all, [](const CocoPicture& p) { return p.boxes.empty(); });
  DetectionSet set{annotations.categories, side, static_cast<int64_t>(all.size()), 1, {}};
  for (const CocoPicture& p : all)
    set.most_boxes = std::max(set.most_boxes, static_cast<int64_t>(p.boxes.size()));
  const auto pictures = std::make_shared<const std::vector<CocoPicture>>(std::move(all));
  set.sample = [pictures, side](int64_t i) { return read_sample(pictures->at(i), side); };
  return set;
}

DetectionData load_coco(const std::string& folder, int64_t side) {
  CocoAnnotations train = read_part(folder, "train"), test = read_part(folder, "val");
  check(train.category_ids == test.category_ids, "COCO: ", folder, ": ", train.categories.size(),
        " categories for training and ", test.categories.size(), " for testing, with other ids");
  DetectionData data{coco_set(std::move(train), side, true), coco_set(std::move(test), side, false),
                     ""};
  data.note = cat(folder, ": ", data.train.size, " pictures for training, ", data.test.size,
                  " for testing, of ", data.train.classes.size(), " classes");
  return data;
}

}  // namespace tiny
