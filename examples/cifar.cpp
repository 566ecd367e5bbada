// Trains a convolutional network on CIFAR-10, or on pictures that the program draws itself, by the
// recipe of the record runs. The pictures lie on the device as bytes; every step gathers, moves and
// mirrors its batch there, and is one capture. `cifar --help` lists the options.
//
// Network and recipe: K. Jordan, "94% on CIFAR-10 in 3.29 seconds on a single GPU", arXiv
// 2404.00498, 2024, with the optimizer of K. Jordan, "Muon: An optimizer for hidden layers in
// neural networks", kellerjordan.github.io/posts/muon, 2024. The recipe "plain" has the paper's
// SGD for all parameters.
#include <algorithm>
#include <cmath>
#include <cxxopts.hpp>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tiny/tiny.h"

namespace {

using namespace tiny;

constexpr int kDrawnTrain = 4000, kDrawnTest = 1000;
constexpr int64_t kTestBatch = 2000;
constexpr int64_t kReadEvery = 50;  // steps, where there are several processes

// --- Options -------------------------------------------------------------------------------------

struct Options : TrainingOptions {
  std::string resume, curve, page;
  int64_t epochs, batch, groups, width, runs;
  double target;  // a share
  DType dtype;
  bool muon;
};

const std::vector<OptionText> kOptions{
    {"data", "FOLDER", "of CIFAR-10's binary files; without it pictures are drawn [CIFAR_DIR]"},
    {"recipe", "NAME", "record (Muon and SGD) or plain (SGD alone) [record]"},
    {"epochs", "N", "through the training pictures; 0 only tests [8; plain: 10; drawn: 6]"},
    {"batch", "N", "pictures of a step, on all devices [2000; plain: 1000; drawn: 250]"},
    {"norm-groups", "N",
     "parts of a batch with statistics of their own in batch norm, as many as devices to exchange "
     "none [1]"},
    {"width", "N", "channels of the first group, others have 4 times as many [GPU: 64; CPU: 16]"},
    {"dtype", "T", "of what flows between layers: f16, bf16, f32 [GPU: f16; CPU: f32]"},
    {"target-accuracy", "X", "stops after an epoch with this test accuracy, in percent"},
    {"runs", "N", "trainings with one seed after the other, for their mean [1]"},
    {"curve", "FILE", "draws the losses of the last run into this SVG file"},
    {"resume", "FILE", "goes on from it where it exists, and writes it after each epoch"},
    {"page", "FOLDER", "writes a page there that says what pictures show, by WebGPU"},
};

template <class Given> Options read_options(const Given& given) {
  Options o;
  read_training_options(given, "CIFAR_DIR", o);
  const bool drawn = o.data.empty(), gpu = runtime_seam::is_gpu(o.devices[0]);
  const std::vector<DType> dtypes{kF16, kBF16, kF32};
  o.muon = given.choice("recipe", {"record", "plain"}) == 0;
  o.epochs = given.whole("epochs", 0, 10'000, drawn ? 6 : o.muon ? 8 : 10);
  o.batch = given.whole("batch", 2, 1 << 16, drawn ? 250 : o.muon ? 2000 : 1000);
  o.groups = given.whole("norm-groups", 1, o.batch, 1);
  o.width = given.whole("width", 1, 1024, gpu ? 64 : 16);
  o.dtype = dtypes[given.choice("dtype", {"f16", "bf16", "f32"}, gpu ? 0 : 2)];
  o.target = given.number("target-accuracy", 0, 100, 1000) / 100;
  o.runs = given.whole("runs", 1, 10'000, 1);
  o.curve = given.new_file("curve");
  o.resume = given.new_file("resume");
  o.page = given.new_file("page");
  check(o.runs == 1 || (o.load.empty() && o.resume.empty()),
        "--runs: each of several runs begins anew, without --load and --resume");
  return o;
}

// --- The network ---------------------------------------------------------------------------------

Tensor gelu(const Tensor& x) { return x.gelu(); }

nn::Sequential make_group(int64_t in, int64_t out, int64_t parts) {
  const auto pool = [](const Tensor& x) { return max_pool2d(x, 2); };
  const auto conv = [&](int64_t channels) {
    nn::Conv2d conv(channels, out, 3, {.padding = 1}, /*has_bias=*/false);
    nn::dirac_(conv.weight, std::min(channels, out));
    return conv;
  };
  const auto norm = [&] {
    nn::BatchNorm2d norm(out, 1e-12, 0.4);
    norm.weight = Tensor();  // it has no scale
    norm.groups = parts;
    return norm;
  };
  return nn::Sequential(conv(in), pool, norm(), gelu, conv(out), norm(), gelu);
}

// "0": the first layer, whose filters are not trained; "2" to "4": the groups; "6": the head.
nn::Sequential make_network(const Options& o) {
  const int64_t width = o.width;
  nn::Conv2d whiten(3, 24, 2);
  whiten.weight.requires_grad_(false);
  nn::Linear head(4 * width, kPictureClasses, /*has_bias=*/false);
  const double reach = std::sqrt(3.0);  // of variance 1
  head.weight = Tensor::uniform({kPictureClasses, 4 * width}, -reach, reach).requires_grad_();
  const auto pool = [](const Tensor& x) { return max_pool2d(x, 3).flatten(1); };
  const auto scale = [width](const Tensor& x) { return x.to(kF32) * (0.25 / width); };
  nn::Sequential network(std::move(whiten), gelu, make_group(24, width, o.groups),
                         make_group(width, 4 * width, o.groups),
                         make_group(4 * width, 4 * width, o.groups), pool, std::move(head), scale);
  for (Tensor* t : network.tensors()) t->shard_(o.devices);
  return network;
}

// How its parts are trained, by the share of the training that is done. Rates are for sums of
// losses.
ScheduledOptimizers make_optimizers(nn::Module& network, const Options& o) {
  std::vector<Tensor*> first, head, biases, filters;  // filters: with running statistics
  for (const auto& [name, t] : network.state_dict()) {
    if (name == "0.weight") continue;
    const bool is_bias = t->rank() == 1 && t->requires_grad();
    (name == "0.bias"     ? first
     : name == "6.weight" ? head
     : is_bias            ? biases
                          : filters)
        .push_back(t);
  }
  const auto batch = static_cast<double>(o.batch);
  const double unit = 1 / (1024 * (1 + 1 / (1 - 0.85)));  // for the plain recipe's numbers
  const double bias = o.muon ? 0.053 : 64 * 11.5 * unit, top = o.muon ? 0.67 : 768 * 11.5 * unit;
  const double decay = o.muon ? 2e-6 * batch : 0.0153 * batch * unit;  // of a step at full rate
  const Points all = o.muon ? Points{{0, 1}, {1, 0}} : Points{{0, 0.2}, {0.23, 1}, {1, 0.07}};
  const double three_epochs = 3 / static_cast<double>(std::max<int64_t>(o.epochs, 1));
  ScheduledOptimizers out;
  const auto add_sgd = [&](const std::vector<Tensor*>& tensors, double lr, const Points& schedule) {
    out.add(std::make_unique<SGD>(tensors, lr, SgdOptions{0.85, true, decay / lr}), lr, schedule);
  };
  add_sgd(first, bias, {{0, 1}, {three_epochs, 0}});
  add_sgd(biases, bias, all);
  add_sgd(head, top, all);
  const MuonOptions muon{.momentum = 0.6, .steps = 3, .dtype = kBF16, .unit_rows = true};
  if (o.muon)
    out.add(std::make_unique<Muon>(filters, 0.24, muon), 0.24, all);
  else
    add_sgd(filters, 11.5 * unit, all);
  return out;
}

// --- Training and testing ------------------------------------------------------------------------

// Test pictures moved by (dy, dx) and mirrored or not: mirrored with half of the weight, moved with
// half of it.
const std::vector<TestView> kPlainView{{1, {0, 0, 0}}};
const std::vector<TestView> kManyViews{{0.25, {0, 0, 0}},    {0.25, {0, 0, 1}},
                                       {0.125, {-1, -1, 0}}, {0.125, {-1, -1, 1}},
                                       {0.125, {1, 1, 0}},   {0.125, {1, 1, 1}}};

struct Epoch {
  int64_t number;
  double loss, training, testing, seconds;  // training: accuracy on its own pictures
};

class Trainer {
 public:
  Trainer(const PictureData& data, const Options& o)
      : o_(o),
        training_(data.train, o.devices),
        testing_(data.test, o.devices),
        scaling_(training_.images),
        network_(make_network(o)),
        order_(training_.size(), o.batch),
        optimizers_(make_optimizers(network_, o)),
        mirrored_(Tensor::zeros({training_.size()}, kI32).shard(o.devices).contiguous().realize()),
        epoch_(Tensor::zeros({1}, kI32).shard(o.devices).contiguous().realize()),
        curves_(2, o.epochs * order_.count(), o.devices),
        step_([this] { step(); }),
        test_(testing_.labels, kTestBatch, kPictureClasses, o.devices,
              [this](const Tensor& at, const Tensor& view) { return see(at, view); }) {}

  // All that a training goes on from.
  StateDict state() {
    StateDict all = network_.state_dict("network.");
    for (const NamedTensor& t : optimizers_.state_dict("optimizer")) all.push_back(t);
    all.insert(all.end(), {{"mirrored", &mirrored_},
                           {"epoch", &epoch_},
                           {"done", &curves_.done},
                           {"curve", &curves_.values}});
    return all;
  }

  // Schedules are made for so many steps, and tensors for such a network.
  Settings settings() const {
    return {{"--epochs", std::to_string(o_.epochs)},
            {"--batch", std::to_string(o_.batch)},
            {"--width", std::to_string(o_.width)},
            {"--recipe", o_.muon ? "record" : "plain"}};
  }

  StateDict network_state() { return network_.state_dict(); }
  double test(const std::vector<TestView>& views) { return test_.accuracy(views); }
  // Probabilities (n, 10) of pictures (n, 3, 32, 32), 0 to 255, in f32.
  Tensor read(const Tensor& pictures) {
    const nn::Training testing(false);
    return network_(scaling_(pictures)).softmax(1);
  }
  ChartLine losses() const { return curves_.line(0, "training loss"); }

  // Everything as at the start of a training with this seed, in the memory that it has: the steps
  // that are captured serve all trainings.
  void restart(int64_t seed) {
    manual_seed(static_cast<uint64_t>(seed));
    nn::Sequential fresh = make_network(o_);
    copy_state(network_.state_dict(), fresh.state_dict());
    const Tensor coins = Tensor::randint(0, 2, {training_.size()}, kI32).contiguous();
    mirrored_.assign(coins.shard(o_.devices)).realize();
    epoch_.assign(epoch_.zeros_like()).realize();
    curves_.restart();
    optimizers_.reset();
    const int64_t some = std::min<int64_t>(5000, training_.size());
    const Tensor pictures = scaling_(training_.images.narrow(0, 0, some));
    Tensor& whitening = *network_.state_dict()[0].tensor;
    whitening.assign(whitening_filters(pictures, 2, 5e-4).shard(o_.devices)).realize();
  }

  // Trains on, up to the last epoch or the wanted accuracy. Times count from `start` without the
  // tests before the last one. Where it tells nothing, only the last epoch is tested.
  std::vector<Epoch> train(double start, bool tells) {
    std::vector<Epoch> epochs;
    std::optional<Progress> progress;
    if (tells) progress.emplace(curves_.steps() * o_.batch, "pictures");
    for (int64_t epoch = epoch_.item<int32_t>(); epoch < o_.epochs; ++epoch) {
      order_.restart();
      const int64_t before = epoch * order_.count(), end = before + order_.count();
      for (int64_t done = before + 1; done <= end; ++done) {
        step_();
        // What is read is read by all ranks, whose clocks differ.
        const bool due = rank_count() > 1 ? done % kReadEvery == 0 : progress && progress->is_due();
        if (tells && done < end && due) show(*progress, before, done, epochs);
      }
      epoch_.assign(epoch_ + 1).realize();
      const bool last = epoch + 1 == o_.epochs, aims = o_.target <= 1;
      if (!last && !tells && !aims) continue;
      const double trained = seconds(), testing = test(last || aims ? kManyViews : kPlainView);
      const std::vector<double> means = curves_.means(before, end);
      epochs.push_back({epoch + 1, means[0], means[1], testing, seconds() - start});
      if (!last && testing < o_.target) start += seconds() - trained;
      if (tells) show(*progress, before, end, epochs);
      if (!o_.resume.empty()) save_checkpoint(o_.resume, state(), settings());
      if (testing >= o_.target) break;
    }
    return epochs;
  }

 private:
  // One step; everything that it computes is realized together.
  void step() {
    const nn::Training mode;
    const Tensor at = order_.next().shard(o_.devices, 0);
    PictureMoves moves = random_moves(o_.batch, 2, o_.devices);
    moves.mirrored = ((mirrored_.index_select(0, at) + epoch_) & 1) == 1;
    const Tensor labels = training_.labels.index_select(0, at).to(kI32);
    const Tensor logits = classify(pick_pictures(training_.images, at, moves));
    const Tensor loss =
        cross_entropy(logits, labels, {.reduction = Reduction::Sum, .label_smoothing = 0.2});
    loss.backward();
    const Tensor hits = (logits.detach().argmax(1) == labels).to(kF32).sum();
    const Tensor done = curves_.done * (1.0 / static_cast<double>(curves_.steps()));
    curves_.add({loss * (1.0 / o_.batch), hits * (1.0 / o_.batch)});
    optimizers_.step(done, {order_.state(), &curves_.values, &curves_.done});
  }

  Tensor classify(const Tensor& bytes) {
    const Autocast mixed(o_.dtype);
    return network_(scaling_(bytes).to(o_.dtype).contiguous());
  }

  Tensor see(const Tensor& at, const Tensor& view) {
    const nn::Training testing(false);
    const PictureMoves moves{view.narrow(0, 0, 1).to(kI32), view.narrow(0, 1, 1).to(kI32),
                             view.narrow(0, 2, 1) > 0.5};
    return classify(pick_pictures(testing_.images, at, moves));
  }

  void show(Progress& progress, int64_t begin, int64_t end, const std::vector<Epoch>& epochs) {
    const std::vector<double> means = curves_.means(begin, end);
    std::string text = formatted("loss %.3f  accuracy %5.1f %%", means[0], means[1] * 100);
    if (!epochs.empty()) text += formatted("  test %.2f %%", epochs.back().testing * 100);
    progress.update(end * o_.batch, text);
  }

  const Options& o_;
  const DevicePictures training_, testing_;
  const ChannelScaling scaling_;
  nn::Sequential network_;
  ShuffledBatches order_;
  ScheduledOptimizers optimizers_;
  Tensor mirrored_, epoch_;  // (n): which pictures are so in even epochs; (1)
  StepCurves curves_;        // losses, accuracies
  Jit<std::function<void()>> step_;
  ClassifierTest test_;
};

void train_often(Trainer& trainer, const Options& o) {
  std::vector<double> accuracies, times;
  for (int64_t run = 0; run < o.runs; ++run) {
    const double start = seconds();
    trainer.restart(o.seed + run);
    const Epoch last = trainer.train(start, /*tells=*/false).back();
    std::cout << "seed " << o.seed + run
              << formatted(": test accuracy %.2f %% in %.3f s", last.testing * 100, last.seconds)
              << std::endl;
    accuracies.push_back(last.testing * 100);
    if (run > 0) times.push_back(last.seconds);  // the first one compiles
  }
  const auto [mean, deviation] = mean_and_deviation(accuracies);
  std::cout << "mean of " << o.runs
            << formatted(": %.2f %% (standard deviation %.2f), %.3f s without the first\n", mean,
                         deviation, mean_and_deviation(times).mean);
}

void train_once(Trainer& trainer, double start) {
  std::vector<std::vector<std::string>> rows;
  for (const Epoch& e : trainer.train(start, /*tells=*/true))
    rows.push_back({std::to_string(e.number), formatted("%.3f", e.loss),
                    formatted("%.2f %%", e.training * 100), formatted("%.2f %%", e.testing * 100),
                    formatted("%.2f s", e.seconds)});
  std::cout << '\n' << to_table({"epoch", "loss", "training", "test", "time"}, rows);
}

PictureData find_data(const Options& o) {
  if (!o.data.empty()) return load_cifar(o.data);
  std::cout << "no folder of CIFAR-10 was given (--data, CIFAR_DIR): drawing pictures\n";
  return draw_pictures(kDrawnTrain, kDrawnTest, static_cast<uint64_t>(o.seed));
}

// --- The page ------------------------------------------------------------------------------------

constexpr std::string_view kPage =
#include <embedded/examples/pages/cifar.html.inc>
    ;
constexpr const char* kClasses = R"(["airplane", "automobile", "bird", "cat", "deer", "dog",
  "frog", "horse", "ship", "truck"])";
constexpr const char* kDrawnClasses = R"(["striped disc", "checked disc", "striped square",
  "checked square", "striped triangle", "checked triangle", "striped ring", "checked ring",
  "striped cross", "checked cross"])";

void write_file(const std::string& path, std::string_view bytes) {
  FileAside file("--page", path);
  file.write(bytes);
  file.commit();
}

// A page that says what a file's picture shows, or one of those of the test set that lie beside it,
// for each of which it knows what the network gives here.
void write_page(Trainer& trainer, const PictureSet& pictures, const Options& o) {
  const NoGrad no_grad;
  Jit read([&](const Tensor& picture) { return trainer.read(picture); });
  read(Tensor::zeros({1, 3, kPictureSide, kPictureSide}));
  export_webgpu(read, o.page,
                {.inputs = {"picture"},
                 .outputs = {"classes"},
                 .weights = trainer.network_state(),
                 .page = std::string(kPage.substr(1))});
  const int64_t count = std::min<int64_t>(16, pictures.size());
  const std::vector<uint8_t> some(pictures.images.begin(),
                                  pictures.images.begin() + count * 3 * kPicturePixels);
  const Shape shape{count, 3, kPictureSide, kPictureSide};
  const std::vector<float> given = trainer.read(Tensor::from(some, shape)).to_vector<float>();
  std::string labels, scores;
  for (int64_t i = 0; i < count; ++i)
    labels += cat(i ? ", " : "", int{pictures.labels[static_cast<size_t>(i)]});
  for (const float score : given) scores += formatted("%s%.7g", scores.empty() ? "" : ", ", score);
  write_file(o.page + "/pictures.bin", {reinterpret_cast<const char*>(some.data()), some.size()});
  write_file(o.page + "/pictures.json",
             cat("{\"classes\": ", o.data.empty() ? kDrawnClasses : kClasses, ",\n \"labels\": [",
                 labels, "],\n \"scores\": [", scores, "]}\n"));
  std::cout << "wrote " << o.page << ": serve it (python3 -m http.server -d " << o.page
            << ") and open http://127.0.0.1:8000" << std::endl;
}

void run(const Options& o) {
  const double start = seconds();
  const EnvOverride device("DEVICE", o.device.empty() ? env_text("DEVICE") : o.device);
  mute_other_ranks();
  const PictureData data = find_data(o);
  std::cout << data.note << std::endl;
  Trainer trainer(data, o);
  if (o.runs > 1) {
    train_often(trainer, o);
  } else {
    const double prepared = seconds();
    trainer.restart(o.seed);
    if (!o.load.empty()) load(o.load, trainer.network_state());
    if (load_checkpoint(o.resume, trainer.state(), trainer.settings()))
      std::cout << "going on from " << o.resume << '\n';
    if (o.epochs > 0)
      train_once(trainer, prepared);
    else
      std::cout << formatted("test accuracy %.2f %%\n", 100 * trainer.test(kManyViews));
  }
  std::cout << formatted("%.2f s in all, ", seconds() - start) << peak_memory_text() << std::endl;
  if (!o.page.empty()) write_page(trainer, data.test, o);
  if (!o.curve.empty() && rank() == 0)
    save_svg(o.curve, {"CIFAR-10", "step", "loss", {trainer.losses()}});
  if (!o.save.empty()) save(o.save, trainer.network_state());
}

}  // namespace

int main(int argc, char** argv) {
  return run_program("cifar",
                     cxxopts::Options("cifar", "Trains a convolutional network on CIFAR-10."),
                     cxxopts::value<std::string>(), {kOptions, kTrainingOptions}, argc, argv,
                     [](const auto& given) { run(read_options(given)); });
}
