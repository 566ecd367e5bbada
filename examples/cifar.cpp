// Trains a convolutional network on CIFAR-10, or on pictures that the program draws itself, by the
// recipe of the record runs. The pictures lie on the device as bytes; every step gathers, moves and
// mirrors its batch there, and is one capture. `cifar --help` lists the options.
//
// Network and recipe: K. Jordan, "94% on CIFAR-10 in 3.29 seconds on a single GPU", arXiv
// 2404.00498, 2024, with the optimizer of K. Jordan, "Muon: An optimizer for hidden layers in
// neural networks", kellerjordan.github.io/posts/muon, 2024. The recipe "plain" has the paper's
// SGD for all parameters.
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cxxopts.hpp>
#include <functional>
#include <iostream>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "tiny/tiny.h"

namespace {

using namespace tiny;

constexpr int kDrawnTrain = 4000, kDrawnTest = 1000;
constexpr int64_t kTestBatch = 2000;
constexpr double kReadEvery = 0.3;  // seconds; reading a value back waits for the device

struct Options {
  std::string data, device, save, load, resume, curve;
  std::vector<std::string> devices;  // each works on a part of every batch
  int64_t epochs, batch, width, seed, runs;
  double target;  // a share
  DType dtype;
  bool muon;
};

double seconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

// --- Options -------------------------------------------------------------------------------------

cxxopts::Options describe_options() {
  cxxopts::Options options("cifar", "Trains a convolutional network on CIFAR-10.");
  const auto text = [] { return cxxopts::value<std::string>(); };
  auto add = options.add_options();
  add("data", "folder of CIFAR-10's binary files; without it pictures are drawn", text(), "FOLDER");
  add("recipe", "record (Muon and SGD) or plain (SGD alone)", text(), "NAME");
  add("epochs", "passes through the training pictures; 0 only tests [8; plain: 10; drawn: 6]",
      text(), "N");
  add("batch", "pictures of a step, on all devices together [2000; plain: 1000; drawn: 250]",
      text(), "N");
  add("width", "channels of the first group, the others have 4 times as many [GPU: 64; CPU: 16]",
      text(), "N");
  add("dtype", "of what flows between layers: f16, bf16, f32; parameters are f32 [GPU: f16]",
      text(), "T");
  add("target-accuracy", "stops after an epoch with this test accuracy, in percent", text(), "X");
  add("runs", "trainings with one seed after the other, for their mean", text(), "N");
  add("seed", "of weights, order, moves and drawn pictures", text(), "N");
  add("device", "such as CPU or CUDA", text(), "NAME");
  add("gpus", "devices of that kind, each of which gets a part of every batch", text(), "N");
  add("curve", "draws the losses of the last run into this SVG file", text(), "FILE");
  add("save", "writes the network to this safetensors file", text(), "FILE");
  add("load", "reads the network from it first", text(), "FILE");
  add("resume", "goes on from this file where it exists, and writes it after each epoch", text(),
      "FILE");
  add("help", "prints this");
  return options;
}

Options read_options(const cxxopts::ParseResult& parsed) {
  const Arguments given(parsed);
  Options o;
  o.data = given.text("data", env_text("CIFAR_DIR"));
  check(!given.given("data") || !o.data.empty(), "--data: the name of the folder is empty");
  o.device = given.text("device");
  o.devices = devices_from(o.device, given.whole("gpus", 1, 1024, 1));
  const bool drawn = o.data.empty();
  const bool gpu = o.devices[0].starts_with("CUDA") || o.devices[0].starts_with("HIP");
  o.muon = given.choice("recipe", {"record", "plain"}) == 0;
  o.epochs = given.whole("epochs", 0, 10'000, drawn ? 6 : o.muon ? 8 : 10);
  o.batch = given.whole("batch", 2, 1 << 16, drawn ? 250 : o.muon ? 2000 : 1000);
  o.width = given.whole("width", 1, 1024, gpu ? 64 : 16);
  o.dtype =
      std::array{kF16, kBF16, kF32}[given.choice("dtype", {"f16", "bf16", "f32"}, gpu ? 0 : 2)];
  o.target = given.number("target-accuracy", 0, 100, 1000) / 100;
  o.seed = given.whole("seed", 0, INT64_MAX);
  o.runs = given.whole("runs", 1, 10'000, 1);
  o.curve = given.new_file("curve");
  o.save = given.new_file("save");
  o.load = given.text("load");
  o.resume = given.new_file("resume");
  check(o.runs == 1 || (o.load.empty() && o.resume.empty()),
        "--runs: each of several runs begins anew, without --load and --resume");
  return o;
}

// --- The network ---------------------------------------------------------------------------------

// Batch norm without a scale, then GELU.
class NormGelu : public nn::Module {
 public:
  explicit NormGelu(int64_t channels) : norm_(channels, 1e-12, 0.4) { norm_.weight = Tensor(); }
  Tensor forward(const Tensor& x) override { return norm_(x).gelu(); }
  void state(StateDict& out, const std::string& prefix) override { norm_.state(out, prefix); }

 private:
  nn::BatchNorm2d norm_;
};

nn::Conv2d make_conv(int64_t in, int64_t out) {
  nn::Conv2d conv(in, out, 3, {.padding = 1}, /*has_bias=*/false);
  nn::dirac_(conv.weight, std::min(in, out));
  return conv;
}

nn::Sequential make_group(int64_t in, int64_t out) {
  const auto pool = [](const Tensor& x) { return max_pool2d(x, 2); };
  return nn::Sequential(make_conv(in, out), pool, NormGelu(out), make_conv(out, out),
                        NormGelu(out));
}

class Network : public nn::Module {
 public:
  explicit Network(int64_t width)
      : whiten_(3, 24, 2),
        groups_(make_group(24, width), make_group(width, 4 * width),
                make_group(4 * width, 4 * width)),
        head_(4 * width, kPictureClasses, false) {
    whiten_.weight.requires_grad_(false);
    const double reach = std::sqrt(3.0);  // of variance 1
    head_.weight = Tensor::uniform({kPictureClasses, 4 * width}, -reach, reach).requires_grad_();
  }
  Tensor forward(const Tensor& x) override {
    const Tensor y = max_pool2d(groups_(whiten_(x).gelu()), 3).flatten(1);
    return head_(y).to(kF32) * (1 / static_cast<double>(y.size(1)));
  }
  void state(StateDict& out, const std::string& prefix) override {
    whiten_.state(out, prefix + "whiten.");
    groups_.state(out, prefix + "groups.");
    head_.state(out, prefix + "head.");
  }
  // The first layer's filters, which are not trained, from some of the training pictures.
  void whiten(const Tensor& images, const std::vector<std::string>& devices) {
    whiten_.weight.assign(whitening_filters(images, 2, 5e-4).shard(devices)).realize();
  }

  // Parameters by how they are trained; running statistics come with the filters.
  std::vector<Tensor*> whitening_bias() { return {&whiten_.bias}; }
  std::vector<Tensor*> head() { return {&head_.weight}; }
  std::vector<Tensor*> norm_biases() { return in_groups(true); }
  std::vector<Tensor*> filters() { return in_groups(false); }

 private:
  std::vector<Tensor*> in_groups(bool biases) {
    std::vector<Tensor*> out = groups_.tensors();
    std::erase_if(out, [&](Tensor* t) { return biases != (t->requires_grad() && t->rank() == 1); });
    return out;
  }

  nn::Conv2d whiten_;
  nn::Sequential groups_;
  nn::Linear head_;
};

// --- Training and testing ------------------------------------------------------------------------

// What is trained in one way, with the learning rate that its schedule begins at.
struct Part {
  std::unique_ptr<Optimizer> optimizer;
  double lr;
};

// The network's parts, that of the first layer's bias first. Rates are for sums of losses.
std::vector<Part> make_parts(Network& network, const Options& o) {
  const auto batch = static_cast<double>(o.batch);
  const double unit = 1 / (1024 * (1 + 1 / (1 - 0.85)));  // for the plain recipe's numbers
  const double bias = o.muon ? 0.053 : 64 * 11.5 * unit, head = o.muon ? 0.67 : 768 * 11.5 * unit;
  const double decay = o.muon ? 2e-6 * batch : 0.0153 * batch * unit;  // of a step at full rate
  std::vector<Part> parts;
  const auto add_sgd = [&](const std::vector<Tensor*>& tensors, double lr) {
    parts.push_back({std::make_unique<SGD>(tensors, lr, SgdOptions{0.85, true, decay / lr}), lr});
  };
  add_sgd(network.whitening_bias(), bias);
  add_sgd(network.norm_biases(), bias);
  add_sgd(network.head(), head);
  const MuonOptions options{.momentum = 0.6, .steps = 3, .dtype = kBF16, .unit_rows = true};
  if (o.muon)
    parts.push_back({std::make_unique<Muon>(network.filters(), 0.24, options), 0.24});
  else
    add_sgd(network.filters(), 11.5 * unit);
  return parts;
}

// How test pictures are seen, and with which weight: mirrored with half of it, moved with half.
struct View {
  float dy, dx, mirrored, weight;
};
const std::vector<View> kPlainView{{0, 0, 0, 1}};
const std::vector<View> kManyViews{{0, 0, 0, 0.25},    {0, 0, 1, 0.25},  {-1, -1, 0, 0.125},
                                   {-1, -1, 1, 0.125}, {1, 1, 0, 0.125}, {1, 1, 1, 0.125}};

struct EpochRow {
  int64_t epoch;
  double loss, training, testing, seconds;  // training: accuracy on its own pictures
};

class Trainer {
 public:
  Trainer(const PictureData& data, const Options& o)
      : o_(o),
        training_(data.train, o.devices),
        testing_(data.test, o.devices),
        scaling_(training_.images),
        network_(placed(o)),
        order_(training_.size(), o.batch),
        parts_(make_parts(network_, o)),
        steps_(o.epochs * order_.count()),
        test_batch_(std::min(testing_.size(), kTestBatch)),
        mirrored_(zeros({training_.size()}, kI32)),
        done_(zeros({1}, kF32)),
        epoch_(zeros({1}, kI32)),
        curve_(zeros({2, std::max<int64_t>(steps_, 1)}, kF32)),
        logits_(zeros({test_batch_, kPictureClasses}, kF32, 0)),
        correct_(zeros({1}, kI64)),
        step_([this] { step(); }),
        see_([this](const Tensor& view) { see(view); }) {}

  // All that a training goes on from.
  StateDict state() {
    StateDict all = network_.state_dict("network.");
    for (size_t i = 0; i < parts_.size(); ++i)
      for (const NamedTensor& t : parts_[i].optimizer->state_dict(cat("optimizer", i, ".")))
        all.push_back(t);
    for (const NamedTensor& t : StateDict{
             {"mirrored", &mirrored_}, {"done", &done_}, {"epoch", &epoch_}, {"curve", &curve_}})
      all.push_back(t);
    return all;
  }
  StateDict network_state() { return network_.state_dict(); }

  // Everything as at the start of a training with this seed, in the memory that it has: the steps
  // that are captured serve all trainings.
  void restart(int64_t seed) {
    manual_seed(static_cast<uint64_t>(seed));
    Network fresh = placed(o_);
    const StateDict to = network_.state_dict(), from = fresh.state_dict();
    std::vector<Tensor*> all;
    for (size_t i = 0; i < to.size(); ++i)
      all.push_back(&to[i].tensor->assign(from[i].tensor->detach()));
    const Tensor coins = Tensor::randint(0, 2, {training_.size()}, kI32).contiguous();
    all.push_back(&mirrored_.assign(coins.shard(o_.devices)));
    for (Tensor* t : {&done_, &epoch_}) all.push_back(&t->assign(t->zeros_like()));
    Tensor::realize(all);
    for (Part& part : parts_) part.optimizer->reset();
    const int64_t some = std::min<int64_t>(5000, training_.size());
    network_.whiten(scaling_(training_.images.narrow(0, 0, some)), o_.devices);
  }

  // Trains on, up to the last epoch or the wanted accuracy. Times count from `start` without the
  // tests before the last one. Where it tells nothing, only the last epoch is tested.
  std::vector<EpochRow> train(double start, bool tells) {
    std::vector<EpochRow> rows;
    std::optional<Progress> progress;
    if (tells) progress.emplace(steps_ * o_.batch, "pictures");
    double shown = seconds();
    for (int64_t epoch = epoch_.item<int32_t>(); epoch < o_.epochs; ++epoch) {
      order_.restart();
      const int64_t before = epoch * order_.count();
      for (int64_t i = 1; i <= order_.count(); ++i) {
        step_();
        if (!tells || i == order_.count() || seconds() < shown + kReadEvery) continue;
        show(*progress, before, before + i, rows);
        shown = seconds();
      }
      epoch_.assign(epoch_ + 1).realize();
      const bool last = epoch + 1 == o_.epochs, aims = o_.target <= 1;
      if (!last && !tells && !aims) continue;
      const double trained = seconds(), testing = test(last || aims ? kManyViews : kPlainView);
      const auto [loss, training] = means(before, before + order_.count());
      rows.push_back({epoch + 1, loss, training, testing, seconds() - start});
      if (!last && testing < o_.target) start += seconds() - trained;
      if (tells) show(*progress, before, before + order_.count(), rows);
      if (!o_.resume.empty()) save_checkpoint(o_.resume, state());
      if (testing >= o_.target) break;
    }
    return rows;
  }

  // The share of the test pictures that the network knows. All batches have one size, so that they
  // run the same kernels: the last one begins early and counts only what is new.
  double test(const std::vector<View>& views) {
    const int64_t n = testing_.size();
    correct_.assign(correct_.zeros_like()).realize();
    for (int64_t done = 0; done < n; done += test_batch_)
      for (const View& v : views) {
        const auto begin = static_cast<float>(std::min(done, n - test_batch_));
        const float first = &v == &views.front(), last = &v == &views.back();
        see_(Tensor::from(
                 {begin, static_cast<float>(done), v.dy, v.dx, v.mirrored, v.weight, first, last})
                 .shard(o_.devices));
      }
    return static_cast<double>(correct_.item<int64_t>()) / static_cast<double>(n);
  }

  void draw_curve() {
    const std::vector<float> losses = curve_.to_vector<float>();
    ChartLine line{"training loss", {}};
    for (int i = 0; i < static_cast<int>(done_.item<float>()); ++i)
      line.points.emplace_back(i + 1, losses[i]);
    save_svg(o_.curve, {"CIFAR-10", "step", "loss", {line}});
  }

 private:
  static Network placed(const Options& o) {
    Network network(o.width);
    for (Tensor* t : network.tensors()) t->shard_(o.devices);
    return network;
  }
  Tensor zeros(const Shape& shape, DType dtype, std::optional<int64_t> axis = {}) const {
    return Tensor::zeros(shape, dtype).contiguous().realize().shard(o_.devices, axis).realize();
  }

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
    const Tensor now = Tensor::stack({loss.detach(), hits}).unsqueeze(1) * (1.0 / o_.batch);
    curve_.assign(where(Tensor::arange(0, curve_.size(1), 1, kF32) == done_, now, curve_));
    set_rates();
    done_.assign(done_ + 1);
    std::vector<Optimizer*> optimizers;
    for (Part& part : parts_) optimizers.push_back(part.optimizer.get());
    Optimizer::step_all(optimizers, {order_.state(), &curve_, &done_});
  }

  // Down to 0 in a straight line, in three epochs for the bias of the first layer. The plain recipe
  // rises from 0.2 during the first 23 % and ends at 0.07.
  void set_rates() {
    const Tensor at = done_ * (1.0 / static_cast<double>(steps_));
    const Tensor rising = at * (0.8 / 0.23) + 0.2, falling = (at - 0.23) * (-0.93 / 0.77) + 1;
    const Tensor rate = o_.muon ? 1 - at : minimum(rising, falling);
    const Tensor first = (1 - done_ * (1 / (3.0 * static_cast<double>(order_.count())))).relu();
    for (Part& part : parts_)
      part.optimizer->set_lr((&part == &parts_[0] ? first : rate) * part.lr);
  }

  Tensor classify(const Tensor& bytes) {
    const Autocast mixed(o_.dtype);
    return network_(scaling_(bytes).to(o_.dtype).contiguous());
  }

  // Adds what the network says of a batch, seen in one way; after the last way counts.
  void see(const Tensor& view) {
    const NoGrad no_grad;
    const nn::Training testing(false);
    const auto value = [&](int i) { return view.narrow(0, i, 1); };
    const Tensor at =
        (Tensor::arange(0, test_batch_, 1, kI32) + value(0).to(kI32)).shard(o_.devices, 0);
    const PictureMoves moves{value(2).to(kI32), value(3).to(kI32), value(4) > 0.5};
    const Tensor logits = classify(pick_pictures(testing_.images, at, moves)) * value(5);
    logits_.assign(where(value(6) > 0.5, 0, logits_) + logits);
    const Tensor hit = logits_.argmax(1) == testing_.labels.index_select(0, at).to(kI64);
    const Tensor counts = logical_and(at.to(kF32) >= value(1), value(7) > 0.5);
    correct_.assign(correct_ + logical_and(hit, counts).sum());
    Tensor* const both[] = {&logits_, &correct_};
    Tensor::realize(both);
  }

  // Mean loss and accuracy of these steps.
  std::pair<double, double> means(int64_t begin, int64_t end) const {
    const std::vector<float> curve = curve_.to_vector<float>();
    const auto mean = [&](auto first) {
      return std::accumulate(first + begin, first + end, 0.0) / static_cast<double>(end - begin);
    };
    const double loss = mean(curve.begin());
    check(std::isfinite(loss), "the loss is not finite any more after ", end, " steps");
    return {loss, mean(curve.begin() + curve_.size(1))};
  }

  void show(Progress& progress, int64_t begin, int64_t end, const std::vector<EpochRow>& rows) {
    const auto [loss, training] = means(begin, end);
    char text[96];
    const int length =
        std::snprintf(text, sizeof text, "loss %.3f  accuracy %5.1f %%", loss, training * 100);
    if (!rows.empty())
      std::snprintf(text + length, sizeof text - length, "  test %.2f %%",
                    rows.back().testing * 100);
    progress.update(end * o_.batch, text);
  }

  const Options& o_;
  const DevicePictures training_, testing_;
  const ChannelScaling scaling_;
  Network network_;
  ShuffledBatches order_;
  std::vector<Part> parts_;
  const int64_t steps_, test_batch_;
  Tensor mirrored_;          // (n): which pictures are so in even epochs
  Tensor done_, epoch_;      // (1): steps, epochs
  Tensor curve_;             // (2, steps): losses, accuracies
  Tensor logits_, correct_;  // of a batch of tests, of all of them
  Jit<std::function<void()>> step_;
  Jit<std::function<void(const Tensor&)>> see_;
};

void train_often(Trainer& trainer, const Options& o) {
  double accuracies = 0, squares = 0, times = 0;
  for (int64_t run = 0; run < o.runs; ++run) {
    const double start = seconds();
    trainer.restart(o.seed + run);
    const EpochRow last = trainer.train(start, /*tells=*/false).back();
    std::printf("seed %lld: test accuracy %.2f %% in %.3f s\n",
                static_cast<long long>(o.seed + run), last.testing * 100, last.seconds);
    std::fflush(stdout);
    accuracies += last.testing * 100;
    squares += last.testing * last.testing * 1e4;
    if (run > 0) times += last.seconds;  // the first one compiles
  }
  const auto n = static_cast<double>(o.runs);
  const double mean = accuracies / n, variance = (squares - n * mean * mean) / (n - 1);
  std::printf("mean of %.0f: %.2f %% (standard deviation %.2f), %.3f s without the first\n", n,
              mean, std::sqrt(std::max(variance, 0.0)), times / (n - 1));
}

void train_once(Trainer& trainer, double start) {
  const std::vector<EpochRow> rows = trainer.train(start, /*tells=*/true);
  std::printf("\nepoch    loss  training      test     time\n");
  for (const EpochRow& row : rows)
    std::printf("%5lld  %6.3f  %6.2f %%  %6.2f %%  %5.2f s\n", static_cast<long long>(row.epoch),
                row.loss, row.training * 100, row.testing * 100, row.seconds);
}

PictureData find_data(const Options& o) {
  if (!o.data.empty()) return load_cifar(o.data);
  std::cout << "no folder of CIFAR-10 was given (--data, CIFAR_DIR): drawing pictures\n";
  return draw_pictures(kDrawnTrain, kDrawnTest, static_cast<uint64_t>(o.seed));
}

void run(const Options& o) {
  const double start = seconds();
  const EnvOverride device("DEVICE", o.device.empty() ? env_text("DEVICE") : o.device);
  const PictureData data = find_data(o);
  std::cout << data.note << std::endl;
  Trainer trainer(data, o);
  if (o.runs > 1) {
    train_often(trainer, o);
  } else {
    const double prepared = seconds();
    trainer.restart(o.seed);
    if (!o.load.empty()) load(o.load, trainer.network_state());
    if (load_checkpoint(o.resume, trainer.state()))
      std::cout << "going on from " << o.resume << '\n';
    if (o.epochs > 0)
      train_once(trainer, prepared);
    else
      std::printf("test accuracy %.2f %%\n", 100 * trainer.test(kManyViews));
  }
  std::printf("%.2f s in all", seconds() - start);
  for (const DeviceMemory& m : memory_report(0).devices)
    std::printf(", at most %.0f MB on %s", static_cast<double>(m.peak_bytes) / 1e6,
                m.device.c_str());
  std::cout << std::endl;
  if (!o.curve.empty()) trainer.draw_curve();
  if (!o.save.empty()) save(o.save, trainer.network_state());
}

}  // namespace

int main(int argc, char** argv) {
  try {
    cxxopts::Options options = describe_options();
    const auto parsed = options.parse(argc, argv);
    if (parsed.count("help"))
      std::cout << options.help() << '\n' << env_help();
    else
      run(read_options(parsed));
    return 0;
  } catch (const std::exception& e) {
    std::cout << std::flush;
    std::cerr << "cifar: " << e.what() << std::endl;
    return 1;
  }
}
