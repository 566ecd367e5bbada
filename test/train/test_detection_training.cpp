// The program retinanet as a user runs it, on small pictures: it learns, a training that was
// stopped goes on bit for bit, and it reads COCO's format. `make test` builds it.
#include <doctest/doctest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "test/command.h"
#include "test/error_of.h"
#include "test/temporary_folder.h"
#include "tiny/base/error.h"
#include "tiny/vision/scenes.h"

using namespace tiny;
using namespace tiny::test;
namespace fs = std::filesystem;

namespace {

CommandResult run(const std::string& arguments) { return run_example("retinanet", arguments); }

// Without packages the examples are not built: make says so.
bool is_built() {
  const bool there = fs::exists(fs::path(TINY_BUILD) / "examples/retinanet");
  if (!there) MESSAGE("examples/retinanet is not built: it needs cxxopts");
  return there;
}

std::string text_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

std::vector<double> numbers_of(const std::string& path) {
  std::ifstream in(path);
  std::vector<double> out;
  for (double v = 0; in >> v;) out.push_back(v);
  return out;
}

double mean(const std::vector<double>& values, size_t begin, size_t end) {
  double sum = 0;
  for (size_t i = begin; i < end; ++i) sum += values[i];
  return sum / static_cast<double>(end - begin);
}

const std::string kSmall = "--side 64 --pictures 80 --tests 8 --batch 4 --lr 1e-3 ";

// A folder in COCO's format with drawn scenes as PNG files.
void write_coco(const test::TemporaryFolder& folder) {
  const DetectionSet set = draw_scenes(12, 64, 1);
  fs::create_directories(folder.file("annotations"));
  for (const char* part : {"train2017", "val2017"}) {
    fs::create_directories(folder.file(part));
    std::string images, boxes, categories;
    for (int64_t i = 0; i < set.size; ++i) {
      const DetectionSample s = set.sample(i);
      write_png(folder.file(cat(part, "/", i, ".png")), from_planes(s.planes.data(), 64, 64));
      images += cat(i ? ", " : "", R"({"id": )", i, R"(, "file_name": ")", i,
                    R"(.png", "height": 64, "width": 64})");
      for (const PictureBox& b : s.boxes)
        boxes += cat(boxes.empty() ? "" : ", ", R"({"image_id": )", i, R"(, "category_id": )",
                     b.label + 1, R"(, "bbox": [)", b.corners[0], ", ", b.corners[1], ", ",
                     b.corners[2] - b.corners[0], ", ", b.corners[3] - b.corners[1], "]}");
    }
    for (size_t c = 0; c < set.classes.size(); ++c)
      categories +=
          cat(c ? ", " : "", R"({"id": )", c + 1, R"(, "name": ")", set.classes[c], R"("})");
    std::ofstream(folder.file(cat("annotations/instances_", part, ".json")))
        << R"({"images": [)" << images << R"(], "annotations": [)" << boxes
        << R"(], "categories": [)" << categories << "]}";
  }
}

}  // namespace

TEST_CASE("retinanet learns drawn scenes, and goes on from a checkpoint bit for bit") {
  if (!is_built()) return;
  const test::TemporaryFolder folder("retinanet");
  const auto file = [&](const std::string& name) { return "'" + folder.file(name) + "'"; };
  const CommandResult whole = run(kSmall + "--steps 60 --losses " + file("whole") + " --save " +
                                  file("whole.safetensors") + " --show " + file("found.png"));
  REQUIRE_MESSAGE(whole.status == 0, whole.output);
  CHECK(has(whole.output, "scenes drawn by the program (seed 0): 80 of 64 x 64 pixels"));
  CHECK(has(whole.output, "of 8 test pictures"));
  const std::vector<double> losses = numbers_of(folder.file("whole"));
  REQUIRE(losses.size() == 60);
  CHECK(mean(losses, 50, 60) < 0.75 * mean(losses, 0, 10));
  const Picture sheet = read_picture(folder.file("found.png"));
  CHECK(sheet.width == 4 * 128);  // twice as large
  CHECK(sheet.height == 2 * 128);

  const std::string checkpoint = kSmall + "--steps 60 --checkpoint " + file("run") + " --save " +
                                 file("parts.safetensors") + " ";
  const CommandResult first = run(checkpoint + "--stop 25");
  REQUIRE_MESSAGE(first.status == 0, first.output);
  const CommandResult second = run(checkpoint + "--losses " + file("parts"));
  REQUIRE_MESSAGE(second.status == 0, second.output);
  CHECK(has(second.output, "going on with step 25"));
  CHECK(text_of(folder.file("parts")) == text_of(folder.file("whole")));
  CHECK(text_of(folder.file("parts.safetensors")) == text_of(folder.file("whole.safetensors")));
  const CommandResult other = run(kSmall + "--steps 61 --checkpoint " + file("run"));
  CHECK(other.status == 1);
  CHECK(has(other.output, "--steps"));
}

TEST_CASE("retinanet trains on a folder in COCO's format, and tells what is wrong with options") {
  if (!is_built()) return;
  const test::TemporaryFolder folder("retinanet_coco");
  write_coco(folder);
  const std::string data = "--data '" + folder.path() + "' ";
  const CommandResult ended = run(data + kSmall + "--steps 3");
  REQUIRE_MESSAGE(ended.status == 0, ended.output);
  CHECK(has(ended.output, "12 pictures for training, 12 for testing, of 5 classes"));
  const CommandResult side = run("--side 65");
  CHECK(side.status == 1);
  CHECK(has(side.output, "--side: 65 is no multiple of 32"));
  const CommandResult many = run(data + "--side 64 --batch 13 --steps 1");
  CHECK(many.status == 1);
  CHECK(has(many.output, "--batch: 12 pictures make no batch of 13"));
  const CommandResult dump = run("--dump-batches x");
  CHECK(has(dump.output, "--dump-batches: needs --jitter off"));
}
