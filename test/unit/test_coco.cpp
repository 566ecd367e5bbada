#include "tiny/vision/coco.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include "test/error_of.h"
#include "test/temporary_folder.h"

using namespace tiny;

namespace {

void write(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

const std::string kImages = R"("images": [
 {"id": 7, "file_name": "a.png", "height": 32, "width": 64},
 {"id": 9, "file_name": "b.png", "height": 64, "width": 64}])";
const std::string kCategories =
    R"("categories": [{"id": 18, "name": "dog"}, {"id": 3, "name": "car"}])";

std::string annotations(const std::string& list) {
  return "{" + kImages + ", " + kCategories + R"(, "annotations": [)" + list + "]}";
}

std::string box(const std::string& bbox, int image = 7, int category = 18,
                const std::string& more = "") {
  return cat(R"({"id": 1, "image_id": )", image, R"(, "category_id": )", category, R"(, "bbox": )",
             bbox, R"(, "segmentation": [[1, 2, 3, 4, 5, 6]])", more, "}");
}

// The error of reading this text.
std::string fault(const std::string& text) {
  const test::TemporaryFolder folder("coco_fault");
  write(folder.file("x.json"), text);
  return error_of([&] { read_coco(folder.file("x.json"), "pictures"); });
}

Picture plain(int64_t height, int64_t width) {
  return {height, width, std::vector<uint8_t>(static_cast<size_t>(3 * height * width), 200)};
}

// A folder as COCO's archives unpack.
void make_data(const test::TemporaryFolder& folder, const std::string& list) {
  for (const char* name : {"annotations", "train2017", "val2017"})
    std::filesystem::create_directory(folder.file(name));
  for (const char* part : {"train2017", "val2017"}) {
    write(folder.file(cat("annotations/instances_", part, ".json")), annotations(list));
    write_png(folder.file(cat(part, "/a.png")), plain(32, 64));
    write_png(folder.file(cat(part, "/b.png")), plain(64, 64));
  }
}

}  // namespace

TEST_CASE("annotations are read with labels in the order of the categories' ids") {
  const test::TemporaryFolder folder("coco");
  const std::string path = folder.file("instances.json");
  write(path, annotations(box("[1, 2, 10, 20]") + ", " +
                          box("[60, -5.5, 10, 20]", 7, 3, R"(, "iscrowd": 1)") + ", " +
                          box("[3, 3, 0, 9]")));
  const CocoAnnotations a = read_coco(path, "pictures");
  CHECK(a.categories == std::vector<std::string>{"car", "dog"});
  CHECK(a.category_ids == std::vector<int64_t>{3, 18});
  REQUIRE(a.pictures.size() == 2);
  CHECK(a.pictures[0].file == "pictures/a.png");
  REQUIRE(a.pictures[0].boxes.size() == 2);  // one has no area
  CHECK(a.pictures[0].boxes[0].corners == BoxCorners{1, 2, 11, 22});
  CHECK(a.pictures[0].boxes[0].label == 1);
  CHECK(!a.pictures[0].boxes[0].is_crowd);
  CHECK(a.pictures[0].boxes[1].corners == BoxCorners{60, 0, 64, 14.5});  // cut off at the edges
  CHECK(a.pictures[0].boxes[1].is_crowd);
  CHECK(a.pictures[1].boxes.empty());
}

TEST_CASE("annotations that are wrong are errors that name the entry and its value") {
  CHECK(has(fault("{\"images\": ["), "is no JSON object: damaged or cut off"));
  CHECK(has(fault("[]"), "is no JSON object"));
  CHECK(has(fault("{}"), "has no list \"categories\""));
  CHECK(has(fault(annotations(box("[1, 2, 3]"))),
            "annotations[0]: the bbox [1,2,3] is no list of four numbers"));
  CHECK(has(fault(annotations(box("[1, 2, 3, \"4\"]"))), "the bbox [1,2,3,\"4\"] is no list"));
  CHECK(has(fault(annotations(box("[1, 2, -3, 4]"))), "the bbox [1,2,-3,4] has a negative size"));
  CHECK(has(fault(annotations(box("[1, 2, 3, 4]", 8))), "annotations[0]: there is no image 8"));
  CHECK(
      has(fault(annotations(box("[1, 2, 3, 4]", 7, 4))), "annotations[0]: there is no category 4"));
  CHECK(has(fault(annotations("5")), "annotations[0] has no \"image_id\""));
  CHECK(has(fault(annotations(R"({"image_id": 7.5})")),
            "annotations[0]: \"image_id\" is 7.5 and no whole number"));
  CHECK(has(fault(R"({"categories": [{"id": 1, "name": "a"}, {"id": 1, "name": "b"}]})"),
            "categories[1]: the id 1 occurs twice"));
  CHECK(has(fault(R"({"categories": [{"id": 1, "name": 5}]})"), "\"name\" is 5 and no text"));
  const auto image = [](const std::string& file, int id) {
    return "{" + kCategories +
           cat(R"(, "images": [{"id": 7, "file_name": ")", file,
               R"(", "height": 3, "width": 3}, {"id": )", id,
               R"(, "file_name": "x.png", "height": 3, "width": 0}]})");
  };
  CHECK(has(fault(image("../a.png", 8)),
            "images[0]: the file_name \"../a.png\" does not lie in the folder of pictures"));
  CHECK(has(fault(image("a.png", 8)), "images[1]: a picture of 0 x 3 pixels"));
  CHECK(has(error_of([] { read_coco("/nowhere/x.json", ""); }), "/nowhere/x.json"));
}

TEST_CASE("a folder in COCO's format is two sets of pictures that fit a square") {
  const test::TemporaryFolder folder("coco_folder");
  make_data(folder, box("[4, 8, 20, 16]"));
  const DetectionData data = load_coco(folder.path(), 32);
  CHECK(data.train.size == 1);  // without the picture that shows nothing
  CHECK(data.test.size == 2);
  CHECK(data.train.most_boxes == 1);
  const DetectionSample sample = data.train.sample(0);
  CHECK(sample.boxes[0].corners == BoxCorners{2, 4, 12, 12});  // 64 pixels became 32
  CHECK(sample.planes[0] == 200);
  CHECK(sample.planes[16 * 32] == kPaddingGrey);
  const std::vector<Tensor> batch = detection_batch(data.test, {0, 1});
  CHECK(batch[2].to_vector<int32_t>() == std::vector<int32_t>{1, -1});
}

TEST_CASE("a folder that lacks something, and a picture of another size, are errors") {
  const test::TemporaryFolder folder("coco_lacks");
  CHECK(error_of([&] { load_coco(folder.path(), 32); }) ==
        cat("COCO: ", folder.path(), " has 0 files annotations/instances_train*.json and not one"));
  make_data(folder, box("[4, 8, 20, 16]"));
  write_png(folder.file("train2017/a.png"), plain(32, 63));
  const DetectionData data = load_coco(folder.path(), 32);
  CHECK(has(error_of([&] { detection_batch(data.train, {0}); }),
            "train2017/a.png has 63 x 32 pixels, its entry says 64 x 32"));
  std::filesystem::remove_all(folder.file("val2017"));
  CHECK(has(error_of([&] { load_coco(folder.path(), 32); }), "COCO: no folder "));
}
