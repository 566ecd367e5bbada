// Trains RetinaNet, a detector of objects, on a data set in COCO's format, or on scenes of shapes
// that the program draws itself. Pictures are read by threads; scaling, moving and mirroring them,
// matching anchors to boxes, losses and the optimizer's step are one capture on the device, and so
// are detections with their suppression. `retinanet --help` lists the options.
//
// T.-Y. Lin et al., "Focal loss for dense object detection", arXiv 1708.02002, 2017.
#include <algorithm>
#include <cxxopts.hpp>
#include <fstream>
#include <functional>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "examples/common/peer_files.h"
#include "tiny/models.h"
#include "tiny/tiny.h"

namespace {

using namespace tiny;
using namespace tiny::examples;

// --- Options -------------------------------------------------------------------------------------

// A network, and how it is trained where nothing else is said.
struct Setting {
  const char* name;
  std::vector<int64_t> depths;
  int64_t width, channels, head_depth, anchor_size;
  int64_t side, pictures, tests, batch, steps;
  double lr;
};

const std::vector<Setting> kSettings{
    {"small", {1, 1, 1, 1}, 16, 64, 2, 16, 128, 2000, 200, 8, 1200, 2e-3},
    {"resnet50", {3, 4, 6, 3}, 64, 256, 4, 32, 256, 8000, 500, 32, 3000, 5e-4},
};

struct Options : TrainingOptions {
  Setting setting;
  std::string backbone, checkpoint, curve, show;
  PeerFiles peer;
  int64_t warmup, every, evaluate, stop, dumped;
  double decay, clip, box_beta;
  nn::PictureNorm norm;
  DType dtype;
  bool jitters, bench;
};

const std::vector<OptionText> kOptions{
    {"data", "FOLDER",
     "in COCO's format: annotations/instances_train*.json, instances_val*.json and the folders of "
     "pictures; without it scenes are drawn [COCO_DIR]"},
    {"model", "NAME", "small or resnet50 [GPU: resnet50; CPU: small]"},
    {"side", "N", "pixels of a picture's longer side, a multiple of 32 [small: 128; 256]"},
    {"pictures", "N", "drawn ones for training [small: 2000; 8000]"},
    {"tests", "N", "pictures that are tested [small: 200; 500]"},
    {"batch", "N", "pictures of a step, on all devices together [small: 8; 32]"},
    {"steps", "N", "of training; 0 only tests [small: 1200; 3000]"},
    {"lr", "X", "highest learning rate, of AdamW [small: 2e-3; 5e-4]"},
    {"warmup", "N", "steps until it is reached [a twentieth of all]"},
    {"decay", "X", "weight decay of filters [0.05]"},
    {"clip", "X", "highest norm of all gradients; 0: none [10]"},
    {"jitter", "CHOICE", "on or off: pictures are scaled, moved and mirrored at random [on]"},
    {"norm", "NAME", "batch or frozen: statistics of batch norm [batch]"},
    {"box-loss", "NAME", "smooth-l1 (below a distance of 1/9) or l1 [smooth-l1]"},
    {"dtype", "T", "of products, f32 or bf16; parameters are f32 [GPU: bf16; CPU: f32]"},
    {"backbone", "FILE", "a ResNet's weights with torchvision's names, as safetensors"},
    {"checkpoint", "FILE", "goes on from this file where it exists, and writes it"},
    {"every", "N", "steps from one checkpoint to the next [200]"},
    {"evaluate", "N", "steps from one test to the next [a quarter of all]"},
    {"stop", "N", "ends after this step, as if something had stopped it [none]"},
    {"curve", "FILE", "draws the losses into this SVG file"},
    {"show", "FILE", "writes test pictures with the boxes that were found to this PNG file"},
    {"bench", "", "only measures steps and detections, of pictures of noise"},
};

template <class Given> Options read_options(const Given& given) {
  Options o;
  read_training_options(given, "COCO_DIR", o);
  const bool gpu = runtime_seam::is_gpu(o.devices[0]);
  Setting& s = o.setting = kSettings[given.choice("model", {"small", "resnet50"}, gpu)];
  s.side = given.whole("side", 32, 4096, s.side);
  check(s.side % 32 == 0, "--side: ", s.side, " is no multiple of 32");
  s.pictures = given.whole("pictures", 1, 1 << 24, s.pictures);
  s.tests = given.whole("tests", 1, 1 << 24, s.tests);
  s.batch = given.whole("batch", 1, 1 << 16, s.batch);
  s.steps = given.whole("steps", 0, 100'000'000, s.steps);
  s.lr = given.number("lr", 0, 10, s.lr);
  o.warmup = given.whole("warmup", 0, INT32_MAX, s.steps / 20);
  o.decay = given.number("decay", 0, 10, 0.05);
  o.clip = given.number("clip", 0, 1e9, 10);
  o.jitters = given.choice("jitter", {"on", "off"}) == 0;
  o.norm =
      given.choice("norm", {"batch", "frozen"}) ? nn::PictureNorm::Frozen : nn::PictureNorm::Batch;
  o.box_beta = given.choice("box-loss", {"smooth-l1", "l1"}) ? 0 : 1.0 / 9;
  o.dtype = given.choice("dtype", {"f32", "bf16"}, gpu) ? kBF16 : kF32;
  o.backbone = given.text("backbone");
  o.checkpoint = given.new_file("checkpoint");
  o.every = given.whole("every", 1, INT64_MAX, 200);
  o.evaluate = given.whole("evaluate", 1, INT64_MAX, std::max<int64_t>(1, s.steps / 4));
  o.stop = std::min(s.steps, given.whole("stop", 1, INT64_MAX, INT64_MAX));
  o.curve = given.new_file("curve");
  o.show = given.new_file("show");
  o.peer.read(given);
  o.bench = given.given("bench");
  check(o.peer.batches.empty() || !o.jitters,
        "--dump-batches: needs --jitter off: what is drawn at "
        "random on the device is no part of a batch");
  return o;
}

// What a checkpoint's training has to go on with.
Settings settings_of(const Options& o) {
  const Setting& s = o.setting;
  return {{"--model", s.name},       {"--side", cat(s.side)},
          {"--batch", cat(s.batch)}, {"--steps", cat(s.steps)},
          {"--lr", cat(s.lr)},       {"--warmup", cat(o.warmup)},
          {"--decay", cat(o.decay)}, {"--clip", cat(o.clip)},
          {"--dtype", cat(o.dtype)}, {"--jitter", cat(o.jitters)},
          {"--seed", cat(o.seed)},   {"--box-loss", cat(o.box_beta)},
          {"--data", o.data},        {"--pictures", cat(s.pictures)}};
}

// --- Data and network ----------------------------------------------------------------------------

DetectionData find_data(const Options& o) {
  const Setting& s = o.setting;
  if (!o.data.empty()) {
    DetectionData data = load_coco(o.data, s.side);
    data.test.size = std::min(data.test.size, s.tests);
    return data;
  }
  std::cout << "no folder in COCO's format was given (--data, COCO_DIR): drawing scenes\n";
  const auto seed = static_cast<uint64_t>(o.seed);
  return {draw_scenes(s.pictures, s.side, 2 * seed), draw_scenes(s.tests, s.side, 2 * seed + 1),
          cat("scenes drawn by the program (seed ", o.seed, "): ", s.pictures, " of ", s.side,
              " x ", s.side, " pixels for training, ", s.tests, " for testing")};
}

nn::RetinaNet make_network(const Options& o, int64_t classes) {
  const Setting& s = o.setting;
  return nn::RetinaNet({.classes = classes,
                        .backbone = {s.depths, s.width, o.norm},
                        .channels = s.channels,
                        .head_depth = s.head_depth,
                        .anchor_size = s.anchor_size,
                        .box_beta = o.box_beta});
}

void load_backbone(nn::RetinaNet& network, const std::string& path) {
  const std::string prefix = "backbone.body.";
  StateDict body;
  for (const NamedTensor& t : network.state_dict())
    if (t.name.starts_with(prefix)) body.push_back({t.name.substr(prefix.size()), t.tensor});
  const StateLoadReport report = load_state(path, body);
  check(report.missing.empty() && report.other_shape.empty(), "--backbone: ", path,
        " is not of this network:\n", report.text());
}

// --- Training and testing ------------------------------------------------------------------------

class Detector {
 public:
  Detector(const Options& o, const DetectionData& data)
      : o_(o),
        data_(data),
        network_(make_network(o, static_cast<int64_t>(data.train.classes.size()))),
        detect_([this](const Tensor& bytes) {
          const NoGrad no_grad;
          const Autocast mixed(o_.dtype);
          const nn::Detections d =
              network_.detect(network_.outputs(nn::RetinaNet::normalized(bytes)));
          return std::vector<Tensor>{d.boxes, d.scores, d.labels};
        }) {
    for (Tensor* t : network_.tensors()) t->shard_(o.devices);
  }

  nn::RetinaNet& network() { return network_; }

  // The loss of a batch as the loader gives it, with both parts of it.
  nn::RetinaNetLoss loss(const std::vector<Tensor>& given) {
    const std::vector<Tensor> batch =
        o_.jitters ? jitter_pictures(given, {.devices = o_.devices}) : given;
    const Tensor images = nn::RetinaNet::normalized(batch[0]).contiguous();
    return network_.loss(network_.outputs(images), {batch[1], batch[2]});
  }

  // Of test picture i.
  PictureResult found_in(int64_t i) { return find({i})[0]; }

  AveragePrecision test() {
    const nn::Training testing(false);
    std::vector<PictureResult> all;
    for (int64_t begin = 0; begin < data_.test.size; begin += o_.setting.batch) {
      std::vector<int64_t> at;
      for (int64_t i = begin; i < std::min(begin + o_.setting.batch, data_.test.size); ++i)
        at.push_back(i);
      for (PictureResult& r : find(at)) all.push_back(std::move(r));
    }
    return average_precision(all, static_cast<int64_t>(data_.test.classes.size()));
  }

  // Detections of pictures that lie on the device.
  std::vector<Tensor> detect(const Tensor& bytes) { return detect_(bytes); }

 private:
  // In batches of one size, the last picture repeated, so that one capture serves all.
  std::vector<PictureResult> find(std::vector<int64_t> at) {
    const size_t count = at.size();
    at.resize(static_cast<size_t>(o_.setting.batch), at.back());
    Tensor bytes = detection_batch(data_.test, at)[0];
    bytes = o_.devices.size() > 1 ? bytes.shard(o_.devices, 0) : bytes.to(o_.devices[0]);
    const std::vector<Tensor> found = detect_(bytes);
    const auto boxes = found[0].to_vector<float>(), scores = found[1].to_vector<float>();
    const auto labels = found[2].to_vector<int64_t>();
    const int64_t most = found[1].size(1);
    std::vector<PictureResult> out(count);
    for (size_t i = 0; i < count; ++i) {
      out[i].truth = data_.test.sample(at[i]).boxes;
      for (int64_t j = static_cast<int64_t>(i) * most; scores[j] > 0; ++j) {
        out[i].found.push_back(
            {{boxes[4 * j], boxes[4 * j + 1], boxes[4 * j + 2], boxes[4 * j + 3]},
             labels[j],
             scores[j]});
        if (j + 1 == static_cast<int64_t>(i + 1) * most) break;
      }
    }
    return out;
  }

  const Options& o_;
  const DetectionData& data_;
  nn::RetinaNet network_;
  Jit<std::function<std::vector<Tensor>(const Tensor&)>> detect_;
};

std::string text_of(const AveragePrecision& p) {
  return formatted("mAP@50 %.3f  mAP@[.5:.95] %.3f", p.at_50, p.mean);
}

// From where the checkpoint left it, if there is one, to the last step.
class Training {
 public:
  Training(Detector& detector, const DetectionData& data, const Options& o)
      : o_(o),
        detector_(detector),
        optimizer_(decay_matrices(detector.network().tensors(), o.decay), o.setting.lr),
        trainer_(detector.network().state_dict("network."), optimizer_,
                 [&detector](const Trainer::Batch& batch) { return detector.loss(batch).total(); },
                 {.steps = o.setting.steps,
                  .lr = o.setting.lr,
                  .warmup = o.warmup,
                  .clip = o.clip,
                  .dtype = o.dtype,
                  .devices = o.devices}),
        loader_(data.train.size,
                [&data](const std::vector<int64_t>& at) { return detection_batch(data.train, at); },
                {.batch_size = o.setting.batch,
                 .shuffle = true,
                 .drop_last = true,
                 .seed = static_cast<uint64_t>(o.seed)}),
        record_(o.peer, {"images", "boxes", "labels"}) {
    check(loader_.batches() > 0, "--batch: ", data.train.size, " pictures make no batch of ",
          o.setting.batch);
  }

  void run() {
    if (load_checkpoint(o_.checkpoint, trainer_.state(), settings_of(o_)))
      std::cout << "going on with step " << trainer_.done() << " from " << o_.checkpoint << '\n';
    loader_.go_to(trainer_.done() / loader_.batches(), trainer_.done() % loader_.batches());
    const int64_t begin = trainer_.done();
    const double start = seconds();
    if (begin < o_.stop) {
      steps();
      const auto count = static_cast<double>(trainer_.done() - begin);
      std::cout << formatted("trained %.0f steps of ", count) << o_.setting.batch
                << formatted(" pictures in %.1f s, tests included: ", seconds() - start)
                << formatted("%.0f pictures/s in steps\n",
                             count * static_cast<double>(o_.setting.batch) / stepping_);
    }
    if (rank() == 0) write_losses();
  }

 private:
  void steps() {
    const int64_t batch = o_.setting.batch;
    Progress progress(o_.setting.steps * batch, "pictures", trainer_.done() * batch);
    int64_t shown = trainer_.done();
    while (trainer_.done() < o_.stop) {
      const nn::Training training;
      const double begin = seconds();
      const Trainer::Batch& next = loader_.next();
      record_.keep(next);
      trainer_.step(next);
      const int64_t done = trainer_.done();
      const bool is_last = done == o_.stop, looks = done % o_.evaluate == 0 && !is_last;
      const bool saves = !o_.checkpoint.empty() && (done % o_.every == 0 || is_last);
      if (looks || saves || is_last || (rank_count() == 1 && progress.is_due())) {
        const double loss = trainer_.mean_loss(std::min(shown, done - 1), done);
        progress.update(done * batch, formatted("loss %.3f", loss) +
                                          formatted("  lr %.1e", trainer_.lr()) + looked_);
        shown = done;
      }
      stepping_ += seconds() - begin;
      if (looks) looked_ = formatted("  mAP@50 %.3f", detector_.test().at_50);
      if (saves) save_checkpoint(o_.checkpoint, trainer_.state(), settings_of(o_));
    }
    progress.finish();
  }

  void write_losses() {
    const ChartLine line = trainer_.losses("training");
    if (!o_.curve.empty()) save_svg(o_.curve, {"RetinaNet", "step", "loss", {line}});
    record_.write(trainer_);
  }

  const Options& o_;
  Detector& detector_;
  AdamW optimizer_;
  Trainer trainer_;
  DataLoader loader_;
  PeerRecord record_;
  std::string looked_;
  double stepping_ = 0;  // seconds in steps
};

// --- Pictures ------------------------------------------------------------------------------------

constexpr int64_t kShown = 8, kColumns = 4;
constexpr double kShownScore = 0.4;

// One for each class, far from those of its neighbours.
struct NamedColour {
  const char* name;
  Rgb rgb;
};
constexpr NamedColour kColours[] = {{"red", {230, 60, 60}},     {"green", {60, 170, 60}},
                                    {"blue", {70, 110, 240}},   {"yellow", {240, 200, 30}},
                                    {"purple", {190, 70, 200}}, {"turquoise", {40, 190, 190}},
                                    {"orange", {250, 120, 30}}, {"grey", {140, 140, 140}}};

Rgb colour_of(int64_t label) {
  return kColours[static_cast<size_t>(label) % std::size(kColours)].rgb;
}

// The picture twice as large.
Picture doubled(const Picture& from) {
  Picture to{2 * from.height, 2 * from.width, {}};
  for (int64_t y = 0; y < to.height; ++y)
    for (int64_t x = 0; x < to.width; ++x) {
      const uint8_t* pixel = &from.rgb[(y / 2 * from.width + x / 2) * 3];
      to.rgb.insert(to.rgb.end(), pixel, pixel + 3);
    }
  return to;
}

// Test picture i with the boxes that are found in it.
Picture shown(Detector& detector, const DetectionData& data, int64_t i) {
  const DetectionSample sample = data.test.sample(i);
  Picture picture = from_planes(sample.planes.data(), data.test.side, data.test.side);
  const bool is_small = data.test.side < 200;
  if (is_small) picture = doubled(picture);
  for (const FoundBox& f : detector.found_in(i).found) {
    BoxCorners box = f.corners;
    for (float& v : box) v *= is_small ? 2 : 1;
    if (f.score >= kShownScore) draw_box(picture, box, colour_of(f.label));
  }
  return picture;
}

// The first test pictures, four in a row.
void show_pictures(Detector& detector, const DetectionData& data, const std::string& path) {
  const nn::Training testing(false);
  Picture sheet;
  const int64_t count = std::min(kShown, data.test.size), columns = std::min(kColumns, count);
  for (int64_t i = 0; i < count; ++i) {
    const Picture one = shown(detector, data, i);
    const int64_t side = one.height, left = i % columns * side, top = i / columns * side;
    if (i == 0) {
      sheet = {(count + columns - 1) / columns * side, columns * side, {}};
      sheet.rgb.resize(static_cast<size_t>(sheet.height * sheet.width * 3), 255);
    }
    for (int64_t y = 0; y < side; ++y)
      std::copy_n(&one.rgb[y * side * 3], side * 3,
                  &sheet.rgb[((top + y) * sheet.width + left) * 3]);
  }
  write_png(path, sheet);
  std::cout << "wrote test pictures with boxes to " << path << "; colours:";
  for (size_t label = 0; label < data.test.classes.size() && label < std::size(kColours); ++label)
    std::cout << (label ? ", " : " ") << data.test.classes[label] << ' ' << kColours[label].name;
  std::cout << '\n';
}

// --- Measuring -----------------------------------------------------------------------------------

constexpr int kBenchSteps = 20;

// Steps of one batch, which lies on the device, after those that compile.
void bench(Detector& detector, const DetectionData& data, const Options& o) {
  const Setting& s = o.setting;
  std::vector<int64_t> at;
  for (int64_t i = 0; i < s.batch; ++i) at.push_back(i % data.train.size);
  std::vector<Tensor> batch = detection_batch(data.train, at);
  for (Tensor& t : batch) t = t.to(o.devices[0]).realize();
  AdamW optimizer(decay_matrices(detector.network().tensors(), o.decay), s.lr);
  Trainer trainer(detector.network().state_dict(), optimizer,
                  [&](const Trainer::Batch& b) { return detector.loss(b).total(); },
                  {.steps = 1000, .lr = s.lr, .dtype = o.dtype, .devices = o.devices});
  const auto measure = [&](const char* what, const std::function<void()>& once,
                           const std::function<void()>& wait) {
    for (int i = 0; i < 3; ++i) once();
    wait();
    const double begin = seconds();
    for (int i = 0; i < kBenchSteps; ++i) once();
    wait();
    const double time = (seconds() - begin) / kBenchSteps;
    std::cout << what
              << formatted(": %.2f ms, %.1f pictures/s of ", time * 1e3,
                           static_cast<double>(s.batch) / time)
              << s.side << " x " << s.side << " pixels in batches of " << s.batch << ", " << o.dtype
              << std::endl;
  };
  {
    const nn::Training training;
    measure(
        "training step", [&] { trainer.step(batch); },
        [&] { trainer.mean_loss(trainer.done() - 1, trainer.done()); });
  }
  std::vector<Tensor> found;
  measure(
      "detection", [&] { found = detector.detect(batch[0]); },
      [&] { found[1].to_vector<float>(); });
  std::cout << peak_memory_text() << std::endl;
}

// --- The program ---------------------------------------------------------------------------------

void run(const Options& o) {
  const double start = seconds();
  const EnvOverride device("DEVICE", o.device.empty() ? env_text("DEVICE") : o.device);
  mute_other_ranks();
  manual_seed(static_cast<uint64_t>(o.seed));
  DetectionData data = find_data(o);
  std::cout << data.note << std::endl;
  if (o.data.empty() && !o.bench) {
    data.train = keep_in_memory(data.train);
    data.test = keep_in_memory(data.test);
  }
  Detector detector(o, data);
  if (!o.backbone.empty()) load_backbone(detector.network(), o.backbone);
  if (!o.load.empty()) load(o.load, detector.network().state_dict());
  if (!o.peer.initial.empty()) save(o.peer.initial, detector.network().state_dict());
  if (o.bench) return bench(detector, data, o);
  Training(detector, data, o).run();
  std::cout << text_of(detector.test()) << " of " << data.test.size << " test pictures\n";
  std::cout << formatted("%.1f s in all, ", seconds() - start) << peak_memory_text() << std::endl;
  if (!o.show.empty()) show_pictures(detector, data, o.show);
  if (o.devices.size() > 1) detector.network().to(o.devices[0]);  // gathers it
  if (!o.save.empty()) save(o.save, detector.network().state_dict());
}

}  // namespace

int main(int argc, char** argv) {
  return run_program("retinanet", cxxopts::Options("retinanet", "Trains a detector of objects."),
                     cxxopts::value<std::string>(), {kOptions, kPeerOptions, kTrainingOptions},
                     argc, argv, [](const auto& given) { run(read_options(given)); });
}
