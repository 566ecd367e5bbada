// Trains a convolutional network on CIFAR-10, or on pictures that the program draws itself, by the
// recipe of the record runs. The pictures lie on the device as bytes; every step gathers, moves and
// mirrors its batch there, and is one capture. `cifar --help` lists the options.
//
// Network and recipe: K. Jordan, "94% on CIFAR-10 in 3.29 seconds on a single GPU", arXiv
// 2404.00498 (2024), with the optimizer of K. Jordan, "Muon: An optimizer for hidden layers in
// neural networks", kellerjordan.github.io/posts/muon (2024). The recipe "plain" is the paper's
// first one, which has SGD for all parameters.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cxxopts.hpp>
#include <filesystem>
#include <functional>
#include <iostream>
#include <map>
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
  double target;
  DType dtype = kF32;
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
  add("recipe", "record (Muon and SGD) or plain (SGD alone)", text()->default_value("record"), "R");
  add("epochs", "passes through the training pictures; 0 only tests [8; plain: 10; drawn: 6]",
      text(), "N");
  add("batch", "pictures of a step, on all devices together [2000; plain: 1000; drawn: 250]",
      text(), "N");
  add("width", "channels of the first group, the others have 4 times as many [GPU: 64; CPU: 16]",
      text(), "N");
  add("dtype", "of what flows between the layers, f16, bf16 or f32; parameters are f32 [GPU: f16]",
      text(), "T");
  add("target-accuracy", "stops after an epoch with this test accuracy, in percent", text(), "X");
  add("runs", "trainings, with one seed after the other, for means", text()->default_value("1"),
      "N");
  add("seed", "of weights, order, moves and drawn pictures", text()->default_value("0"), "N");
  add("device", "such as CPU or CUDA", text(), "NAME");
  add("gpus", "devices of that kind, each of which gets a part of every batch",
      text()->default_value("1"), "N");
  add("curve", "draws the losses of the (last) run into this SVG file", text(), "FILE");
  add("save", "writes the network to this safetensors file", text(), "FILE");
  add("load", "reads the network from it, to test it or to train it further", text(), "FILE");
  add("resume", "goes on from this file where it exists, and writes it after each epoch", text(),
      "FILE");
  add("help", "prints this");
  return options;
}

void check_folder(const char* option, const std::string& path) {
  const auto folder = std::filesystem::path(path).parent_path();
  check(folder.empty() || std::filesystem::is_directory(folder), "--", option,
        ": there is no folder ", folder.string());
}

Options read_options(const cxxopts::ParseResult& parsed) {
  check(parsed.unmatched().empty(), "'", parsed.unmatched().empty() ? "" : parsed.unmatched()[0],
        "' is no option; --help lists them");
  const auto text = [&](const char* name, const std::string& standard = "") {
    const bool given = parsed.count(name) || parsed[name].has_default();
    return given ? parsed[name].as<std::string>() : standard;
  };
  const auto whole = [&](const char* name, int64_t low, int64_t high, int64_t standard) {
    return parse_number<int64_t>(name, text(name, std::to_string(standard)), low, high);
  };
  const auto choice = [&](const char* name, const std::vector<std::string>& all,
                          const std::string& standard) {
    const std::string given = text(name, standard);
    std::string list;
    for (const std::string& one : all) list += (list.empty() ? "" : ", ") + one;
    check(std::find(all.begin(), all.end(), given) != all.end(), "--", name, ": '", given,
          "' is none of ", list);
    return given;
  };
  Options o;
  o.data = parsed.count("data") ? text("data") : env_text("CIFAR_DIR");
  check(!parsed.count("data") || !o.data.empty(), "--data: the name of the folder is empty");
  o.device = text("device");
  o.devices = devices_from(o.device, whole("gpus", 1, 1024, 1));
  const bool drawn = o.data.empty();
  const bool gpu = o.devices[0].starts_with("CUDA") || o.devices[0].starts_with("HIP");
  o.muon = choice("recipe", {"record", "plain"}, "record") == "record";
  o.epochs = whole("epochs", 0, 10'000, drawn ? 6 : o.muon ? 8 : 10);
  o.batch = whole("batch", 2, 1 << 16, drawn ? 250 : o.muon ? 2000 : 1000);
  o.width = whole("width", 1, 1024, gpu ? 64 : 16);
  o.seed = whole("seed", 0, INT64_MAX, 0);
  o.runs = whole("runs", 1, 10'000, 1);
  const std::map<std::string, DType> dtypes{{"f16", kF16}, {"bf16", kBF16}, {"f32", kF32}};
  o.dtype = dtypes.at(choice("dtype", {"f16", "bf16", "f32"}, gpu ? "f16" : "f32"));
  o.target = parse_number<double>("target-accuracy", text("target-accuracy", "1000"), 0, 1000);
  o.curve = text("curve");
  o.save = text("save");
  o.load = text("load");
  o.resume = text("resume");
  for (const char* name : {"curve", "save", "resume"}) check_folder(name, text(name));
  check(o.runs == 1 || (o.load.empty() && o.resume.empty()),
        "--runs: each of several runs starts anew, without --load and --resume");
  return o;
}

// --- Data ----------------------------------------------------------------------------------------

// A set of pictures, as bytes, on each of the devices.
struct Pictures {
  Pictures(const PictureSet& set, const std::vector<std::string>& devices)
      : images(
            Tensor::from(set.images, {set.size(), 3, kPictureSide, kPictureSide}).shard(devices)),
        labels(Tensor::from(set.labels).shard(devices)) {
    Tensor* const both[] = {&images, &labels};
    Tensor::realize(both);
  }
  int64_t size() const { return images.size(0); }

  Tensor images, labels;  // u8 (n, 3, 32, 32), u8 (n)
};

// Makes bytes to numbers of mean 0 and variance 1 in each channel of the training pictures.
struct Scaling {
  explicit Scaling(const Pictures& training) {
    const Tensor x = training.images.to(kF32);
    mean = x.mean({0, 2, 3}, true);
    scale = x.var({0, 2, 3}, true).rsqrt();
    Tensor* const both[] = {&mean, &scale};
    Tensor::realize(both);
  }
  Tensor operator()(const Tensor& bytes) const { return (bytes.to(kF32) - mean) * scale; }

  Tensor mean, scale;  // (1, 3, 1, 1)
};

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

// Two convolutions, the maximum of 2 x 2 pixels after the first.
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
    head_.weight = Tensor::uniform(to_shape(head_.weight.shape()), -reach, reach).requires_grad_();
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

  // Parameters by how they are trained; running statistics belong to the filters' optimizer.
  std::vector<Tensor*> whitening_bias() { return {&whiten_.bias}; }
  std::vector<Tensor*> head() { return {&head_.weight}; }
  std::vector<Tensor*> norm_biases() {
    return those([](const Tensor& t) { return t.requires_grad() && t.rank() == 1; });
  }
  std::vector<Tensor*> filters() {
    return those([](const Tensor& t) { return t.rank() == 4 || !t.requires_grad(); });
  }

 private:
  template <class F> std::vector<Tensor*> those(F wanted) {
    std::vector<Tensor*> out = groups_.tensors();
    std::erase_if(out, [&](Tensor* t) { return !wanted(*t); });
    return out;
  }

  nn::Conv2d whiten_;
  nn::Sequential groups_;
  nn::Linear head_;
};

// --- Training and testing ------------------------------------------------------------------------

// Learning rates at the start, for the sum of a batch's losses.
struct Rates {
  double bias, head, filters;
  double decay;  // of weights in a step, at that rate; Muon has none
};

Rates rates_of(const Options& o) {
  if (o.muon) return {0.053, 0.67, 0.24, 2e-6 * static_cast<double>(o.batch)};
  const double unit = 1 / (1024 * (1 + 1 / (1 - 0.85)));  // steps have that weight for a sample
  return {64 * 11.5 * unit, 768 * 11.5 * unit, 11.5 * unit,
          0.0153 * static_cast<double>(o.batch) * unit};
}

SgdOptions sgd_options(double lr, const Rates& rates) {
  return {.momentum = 0.85, .nesterov = true, .weight_decay = rates.decay / lr};
}

std::unique_ptr<Optimizer> make_filter_optimizer(const std::vector<Tensor*>& filters,
                                                 const Rates& rates, bool muon) {
  if (!muon)
    return std::make_unique<SGD>(filters, rates.filters, sgd_options(rates.filters, rates));
  const MuonOptions options{.momentum = 0.6, .steps = 3, .dtype = kBF16, .unit_rows = true};
  return std::make_unique<Muon>(filters, rates.filters, options);
}

// How test pictures are seen, and with which weight: mirrored with half of it, moved with half.
struct View {
  float dy, dx, mirrored, weight;
};
const std::vector<View> kPlainView{{0, 0, 0, 1}};
const std::vector<View> kManyViews{{0, 0, 0, 0.25},    {0, 0, 1, 0.25},  {-1, -1, 0, 0.125},
                                   {-1, -1, 1, 0.125}, {1, 1, 0, 0.125}, {1, 1, 1, 0.125}};

struct EpochRow {
  double loss, training, testing, seconds;  // training: accuracy on its own pictures
};

class Trainer {
 public:
  Trainer(const PictureData& data, const Options& o)
      : o_(o),
        training_(data.train, o.devices),
        testing_(data.test, o.devices),
        scaling_(training_),
        network_(o.width),
        order_(training_.size(), o.batch),
        steps_(o.epochs * order_.count()),
        test_batch_(std::min(testing_.size(), kTestBatch)),
        step_([this] { step(); }),
        see_([this](const Tensor& view) { see(view); }) {
    for (Tensor* t : network_.tensors()) t->shard_(o.devices);
    const Rates r = rates_of(o);
    const auto sgd = [&](const std::vector<Tensor*>& tensors, double lr) {
      return std::make_unique<SGD>(tensors, lr, SgdOptions{0.85, true, r.decay / lr});
    };
    whitening_ = {sgd(network_.whitening_bias(), r.bias), r.bias};
    others_.push_back({sgd(network_.norm_biases(), r.bias), r.bias});
    others_.push_back({sgd(network_.head(), r.head), r.head});
    const MuonOptions muon{.momentum = 0.6, .steps = 3, .dtype = kBF16, .unit_rows = true};
    if (o.muon)
      others_.push_back({std::make_unique<Muon>(network_.filters(), r.filters, muon), r.filters});
    else
      others_.push_back({sgd(network_.filters(), r.filters), r.filters});
    mirrored_ = stored<int32_t>({training_.size()});
    done_ = stored<float>({1});
    epoch_ = stored<int32_t>({1});
    curve_ = stored<float>({2, std::max<int64_t>(steps_, 1)});
    correct_ = stored<int64_t>({1});
    logits_ = Tensor::from(std::vector<float>(test_batch_ * kPictureClasses),
                           {test_batch_, kPictureClasses})
                  .shard(o.devices, 0)
                  .realize();
  }

  StateDict network_state() { return network_.state_dict(); }

  // Everything as at the start of a training with this seed, in the memory that it has: the steps
  // that are captured serve all trainings.
  void restart(int64_t seed) {
    manual_seed(static_cast<uint64_t>(seed));
    Network fresh(o_.width);
    const StateDict to = network_.state_dict(), from = fresh.state_dict();
    std::vector<Tensor*> all{&mirrored_, &done_, &epoch_};
    for (size_t i = 0; i < to.size(); ++i)
      all.push_back(&to[i].tensor->assign(from[i].tensor->detach().shard(o_.devices)));
    const Tensor coins = Tensor::randint(0, 2, {training_.size()}, kI32).contiguous();
    mirrored_.assign(coins.shard(o_.devices));
    done_.assign(done_.zeros_like());
    epoch_.assign(epoch_.zeros_like());
    Tensor::realize(all);
    whitening_.optimizer->reset();
    for (Part& part : others_) part.optimizer->reset();
    const int64_t some = std::min<int64_t>(5000, training_.size());
    network_.whiten(scaling_(training_.images.narrow(0, 0, some)), o_.devices);
  }

  // Trains on, up to the last epoch or the wanted accuracy. The time of tests but for the last does
  // not count. Where it tells nothing, only the last epoch is tested.
  std::vector<EpochRow> train(double start, bool tells) {
    std::vector<EpochRow> rows;
    std::optional<Progress> progress;
    if (tells) progress.emplace(steps_ * o_.batch, "pictures");
    double shown = seconds();
    for (int64_t epoch = epoch_.item<int32_t>(); epoch < o_.epochs; ++epoch) {
      order_.restart();
      for (int64_t i = 1; i <= order_.count(); ++i) {
        step_();
        if (!tells || i == order_.count() || seconds() < shown + kReadEvery) continue;
        show(*progress, epoch * order_.count() + i, i, rows);
        shown = seconds();
      }
      epoch_.assign(epoch_ + 1).realize();
      const bool last = epoch + 1 == o_.epochs;
      if (!last && !tells && o_.target > 100) continue;
      rows.push_back(finished_epoch(epoch, last, start));
      if (tells) show(*progress, (epoch + 1) * order_.count(), order_.count(), rows);
      write_checkpoint();
      if (rows.back().testing * 100 >= o_.target) break;
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
        const float is_first = &v == &views.front(), is_last = &v == &views.back();
        see_(Tensor::from({begin, static_cast<float>(done), v.dy, v.dx, v.mirrored, v.weight,
                           is_first, is_last})
                 .shard(o_.devices));
      }
    return static_cast<double>(correct_.item<int64_t>()) / static_cast<double>(n);
  }

  // The epoch to begin with is part of the state.
  void read_checkpoint() {
    if (o_.resume.empty() || !std::filesystem::exists(o_.resume)) return;
    const auto notes = load(o_.resume, checkpoint_state());
    set_random_state({std::stoull(notes.at("key")), std::stoull(notes.at("counter"))});
    std::cout << "going on after epoch " << epoch_.item<int32_t>() << " from " << o_.resume
              << std::endl;
  }

  void draw_curve() {
    if (o_.curve.empty()) return;
    const std::vector<float> y = curve_.to_vector<float>();
    ChartLine line{"training loss", {}};
    for (int64_t i = 0; i < static_cast<int64_t>(done_.item<float>()); ++i)
      line.points.push_back({static_cast<double>(i + 1), y[i]});
    save_svg(o_.curve, {"CIFAR-10", "step", "loss", {line}});
    std::cout << "drew " << o_.curve << std::endl;
  }

 private:
  struct Part {
    std::unique_ptr<Optimizer> optimizer;
    double lr;
  };

  template <class T> Tensor stored(const Shape& shape) const {
    const std::vector<T> zeros(static_cast<size_t>(numel(shape)));
    return Tensor::from(zeros, shape).shard(o_.devices).realize();
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
    Optimizer::step_all({whitening_.optimizer.get(), others_[0].optimizer.get(),
                         others_[1].optimizer.get(), others_[2].optimizer.get()},
                        {order_.state(), &curve_, &done_});
  }

  // Down to 0 in a straight line, in three epochs for the bias of the first layer. The plain recipe
  // rises from 0.2 during the first 23 % and ends at 0.07.
  void set_rates() {
    const Tensor at = done_ * (1.0 / static_cast<double>(steps_));
    const Tensor rising = at * (0.8 / 0.23) + 0.2, falling = (at - 0.23) * (-0.93 / 0.77) + 1;
    const Tensor rate = o_.muon ? 1 - at : minimum(rising, falling);
    const Tensor soon = (1 - done_ * (1.0 / (3.0 * order_.count()))).relu();
    whitening_.optimizer->set_lr(soon * whitening_.lr);
    for (Part& part : others_) part.optimizer->set_lr(rate * part.lr);
  }

  Tensor classify(const Tensor& bytes) {
    const Autocast mixed(o_.dtype);
    return network_(scaling_(bytes).to(o_.dtype).contiguous());
  }

  // Adds what the network says of one batch, seen one way; after the last way counts.
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
    const Tensor counts = logical_and(hit, logical_and(at.to(kF32) >= value(1), value(7) > 0.5));
    correct_.assign(correct_ + counts.sum());
    Tensor* const both[] = {&logits_, &correct_};
    Tensor::realize(both);
  }

  // Mean loss and accuracy of an epoch's steps [begin, end).
  std::pair<double, double> means(int64_t begin, int64_t end) const {
    const std::vector<float> curve = curve_.to_vector<float>();
    const auto mean = [&](int64_t row) {
      const auto first = curve.begin() + row * curve_.size(1);
      return std::accumulate(first + begin, first + end, 0.0) / static_cast<double>(end - begin);
    };
    check(std::isfinite(mean(0)), "the loss is not finite any more after ", end, " steps");
    return {mean(0), mean(1)};
  }

  EpochRow finished_epoch(int64_t epoch, bool last, double& start) {
    const auto [loss, training] = means(epoch * order_.count(), (epoch + 1) * order_.count());
    const double before = seconds();
    const double testing = test(last || o_.target <= 100 ? kManyViews : kPlainView);
    if (!last) start += seconds() - before;
    return {loss, training, testing, seconds() - start};
  }

  void show(Progress& progress, int64_t done, int64_t in_epoch, const std::vector<EpochRow>& rows) {
    const auto [loss, training] = means(done - in_epoch, done);
    char text[96];
    const int length =
        std::snprintf(text, sizeof text, "loss %.3f  accuracy %5.1f %%", loss, training * 100);
    if (!rows.empty())
      std::snprintf(text + length, sizeof text - length, "  test %.2f %%",
                    rows.back().testing * 100);
    progress.update(done * o_.batch, text);
  }

  StateDict checkpoint_state() {
    StateDict all = network_.state_dict("network.");
    const auto add = [&](const StateDict& more) {
      all.insert(all.end(), more.begin(), more.end());
    };
    add(whitening_.optimizer->state_dict("whitening."));
    for (size_t i = 0; i < others_.size(); ++i)
      add(others_[i].optimizer->state_dict(cat("optimizer", i, ".")));
    add({{"mirrored", &mirrored_}, {"done", &done_}, {"epoch", &epoch_}, {"curve", &curve_}});
    return all;
  }

  void write_checkpoint() {
    if (o_.resume.empty()) return;
    const RandomState random = random_state();
    save(o_.resume, checkpoint_state(),
         {{"key", std::to_string(random.key)}, {"counter", std::to_string(random.counter)}});
  }

  const Options& o_;
  Pictures training_, testing_;
  Scaling scaling_;
  Network network_;
  ShuffledBatches order_;
  const int64_t steps_, test_batch_;
  Part whitening_;
  std::vector<Part> others_;  // biases of norms, head, filters
  Tensor mirrored_;           // i32 (n): which pictures are mirrored in even epochs
  Tensor done_, epoch_;       // (1): steps, epochs
  Tensor curve_;              // (2, steps): losses, accuracies
  Tensor logits_, correct_;   // of a batch of tests, of all of them
  Jit<std::function<void()>> step_;
  Jit<std::function<void(const Tensor&)>> see_;
};

PictureData find_data(const Options& o) {
  if (!o.data.empty()) return load_cifar(o.data);
  std::cout << "no folder of CIFAR-10 was given (--data, CIFAR_DIR): drawing pictures\n";
  return draw_pictures(kDrawnTrain, kDrawnTest, static_cast<uint64_t>(o.seed));
}

void print_table(const std::vector<EpochRow>& rows, int64_t first) {
  std::printf("\nepoch    loss  training      test    time\n");
  for (size_t i = 0; i < rows.size(); ++i)
    std::printf("%5lld  %6.3f  %6.2f %%  %6.2f %%  %5.2f s\n",
                static_cast<long long>(first + static_cast<int64_t>(i)), rows[i].loss,
                rows[i].training * 100, rows[i].testing * 100, rows[i].seconds);
}

// Mean and standard deviation of a sample.
std::pair<double, double> mean_and_deviation(const std::vector<double>& x) {
  const double n = static_cast<double>(x.size());
  const double mean = std::accumulate(x.begin(), x.end(), 0.0) / n;
  double square = 0;
  for (double v : x) square += (v - mean) * (v - mean);
  return {mean, x.size() > 1 ? std::sqrt(square / (n - 1)) : 0};
}

void train_often(Trainer& trainer, const Options& o) {
  std::vector<double> accuracies, times;
  for (int64_t run = 0; run < o.runs; ++run) {
    const double start = seconds();
    trainer.restart(o.seed + run);
    const EpochRow last = trainer.train(start, /*tells=*/false).back();
    accuracies.push_back(last.testing * 100);
    if (run > 0) times.push_back(last.seconds);  // the first one compiles
    std::printf("seed %lld: test accuracy %.2f %% in %.3f s\n",
                static_cast<long long>(o.seed + run), accuracies.back(), last.seconds);
    std::fflush(stdout);
  }
  const auto [mean, deviation] = mean_and_deviation(accuracies);
  std::printf(
      "%lld runs: test accuracy %.2f %% (standard deviation %.2f), %.3f s without the first\n",
      static_cast<long long>(o.runs), mean, deviation, mean_and_deviation(times).first);
}

void train_once(Trainer& trainer, const Options& o) {
  const double start = seconds();
  trainer.restart(o.seed);
  if (!o.load.empty()) load(o.load, trainer.network_state());
  trainer.read_checkpoint();
  const std::vector<EpochRow> rows = trainer.train(start, /*tells=*/true);
  print_table(rows, o.epochs - static_cast<int64_t>(rows.size()) + 1);
}

void run(const Options& o) {
  const double start = seconds();
  const EnvOverride device("DEVICE", o.device.empty() ? env_text("DEVICE") : o.device);
  const PictureData data = find_data(o);
  std::cout << data.note << std::endl;
  check(o.batch <= data.train.size(), "--batch: ", o.batch, " is more than the ", data.train.size(),
        " training pictures");
  Trainer trainer(data, o);
  if (o.epochs == 0) {
    trainer.restart(o.seed);
    if (!o.load.empty()) load(o.load, trainer.network_state());
    std::printf("test accuracy %.2f %%\n", 100 * trainer.test(kManyViews));
  } else if (o.runs > 1) {
    train_often(trainer, o);
  } else {
    train_once(trainer, o);
  }
  std::printf("%.2f s in all", seconds() - start);
  for (const DeviceMemory& m : memory_report(0).devices)
    std::printf(", at most %.0f MB on %s", static_cast<double>(m.peak_bytes) / 1e6,
                m.device.c_str());
  std::printf("\n");
  trainer.draw_curve();
  if (o.save.empty()) return;
  save(o.save, trainer.network_state());
  std::cout << "saved " << o.save << std::endl;
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
