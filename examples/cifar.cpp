// Trains a small residual network on CIFAR-10, or on pictures that the program draws itself. The
// pictures lie on the device as bytes; every step gathers, shifts and mirrors its batch there.
// `cifar --help` lists the options.
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cxxopts.hpp>
#include <filesystem>
#include <iostream>
#include <string>
#include <system_error>
#include <type_traits>
#include <vector>

#include "tiny/tiny.h"

namespace {

using namespace tiny;

constexpr int kDrawnTrain = 4000, kDrawnTest = 1000;
constexpr int kMaxShift = 4;  // pixels
constexpr int64_t kTestBatch = 500;
constexpr int kReadEvery = 10;  // steps; reading a value back waits for the device

struct Options {
  std::string data, device, save, load;
  std::vector<std::string> devices;  // each works on a part of every batch
  int64_t epochs, batch, width, seed;
  double lr;
  DType dtype = kF32;
};

double seconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

// --- Options -------------------------------------------------------------------------------------

cxxopts::Options describe_options() {
  cxxopts::Options options("cifar", "Trains a small residual network on CIFAR-10.");
  const auto text = [] { return cxxopts::value<std::string>(); };
  auto add = options.add_options();
  add("data", "folder of CIFAR-10's binary files; without it pictures are drawn", text(), "FOLDER");
  add("epochs", "passes through the training pictures; 0 only tests [10; drawn: 4]", text(), "N");
  add("batch", "pictures of a step, on all devices together [512; drawn: 100]", text(), "N");
  add("width", "channels of the first layer, the last has 8 times as many [32; drawn: 8]", text(),
      "N");
  add("lr", "highest learning rate, for batches of 512 and in proportion for others",
      text()->default_value("0.4"), "X");
  add("dtype", "of what flows between the layers: f32 or bf16; parameters are f32",
      text()->default_value("f32"), "T");
  add("seed", "of weights, order, crops and drawn pictures", text()->default_value("0"), "N");
  add("device", "such as CPU or CUDA", text(), "NAME");
  add("gpus", "devices of that kind, each of which gets a part of every batch",
      text()->default_value("1"), "N");
  add("save", "writes the network to this safetensors file", text(), "FILE");
  add("load", "reads the network from it first", text(), "FILE");
  add("help", "prints this");
  return options;
}

// The value of an option as a number from `low` to `high`; `standard` where it was not given.
template <class T>
T number(const cxxopts::ParseResult& parsed, const char* name, T low, T high, T standard = {}) {
  if (!parsed.count(name) && !parsed[name].has_default()) return standard;
  const std::string text = parsed[name].as<std::string>();
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  check(error == std::errc() && end == text.data() + text.size() && value >= low && value <= high,
        "--", name, ": '", text, "' is no ", std::is_integral_v<T> ? "whole " : "", "number from ",
        low, " to ", high);
  return value;
}

Options read_options(const cxxopts::ParseResult& parsed) {
  check(parsed.unmatched().empty(), "'", parsed.unmatched().empty() ? "" : parsed.unmatched()[0],
        "' is no option; --help lists them");
  const auto text = [&](const char* name) {
    return parsed.count(name) ? parsed[name].as<std::string>() : "";
  };
  Options o;
  o.data = parsed.count("data") ? text("data") : env_text("CIFAR_DIR");
  o.device = text("device");
  o.devices = devices_from(o.device, number<int64_t>(parsed, "gpus", 1, 1024));
  o.save = text("save");
  o.load = text("load");
  const bool drawn = o.data.empty();
  o.epochs = number<int64_t>(parsed, "epochs", 0, 10'000, drawn ? 4 : 10);
  o.batch = number<int64_t>(parsed, "batch", 2, 1 << 16, drawn ? 100 : 512);
  o.width = number<int64_t>(parsed, "width", 1, 1024, drawn ? 8 : 32);
  o.seed = number<int64_t>(parsed, "seed", 0, INT64_MAX);
  o.lr = number<double>(parsed, "lr", 0, 100);
  const std::string dtype = parsed["dtype"].as<std::string>();
  check(dtype == "f32" || dtype == "bf16", "--dtype: '", dtype, "' is neither f32 nor bf16");
  if (dtype == "bf16") o.dtype = kBF16;
  check(!parsed.count("data") || !drawn, "--data: the name of the folder is empty");
  const auto folder = std::filesystem::path(o.save).parent_path();
  check(folder.empty() || std::filesystem::is_directory(folder), "--save: there is no folder ",
        folder.string());
  return o;
}

// --- Data ----------------------------------------------------------------------------------------

// A set of pictures, as bytes, on each of the devices.
struct Pictures {
  Pictures(const PictureSet& set, const std::vector<std::string>& devices)
      : images(
            Tensor::from(set.images, {set.size(), 3, kPictureSide, kPictureSide}).shard(devices)),
        labels(Tensor::from(set.labels).shard(devices)),
        devices(devices) {
    Tensor* const both[] = {&images, &labels};
    Tensor::realize(both);
  }
  int64_t size() const { return images.size(0); }

  Tensor images, labels;  // u8 (n, 3, 32, 32), u8 (n)
  std::vector<std::string> devices;
};

// Makes bytes to numbers of mean 0 and variance 1 in each channel of the training pictures.
struct Scaling {
  Scaling(const Pictures& training, DType dtype) : dtype(dtype) {
    const Tensor x = training.images.to(kF32);
    mean = x.mean({0, 2, 3}, true);
    scale = x.var({0, 2, 3}, true).rsqrt();
    Tensor* const both[] = {&mean, &scale};
    Tensor::realize(both);
  }
  Tensor operator()(const Tensor& bytes) const {
    return ((bytes.to(kF32) - mean) * scale).to(dtype).contiguous();
  }

  DType dtype;
  Tensor mean, scale;  // (1, 3, 1, 1)
};

// Integers from -reach to reach, by numbers from [0, 1).
Tensor spread(const Tensor& dice, int reach) {
  return (dice * (2 * reach + 1)).floor().to(kI32) - reach;
}

// Positions outside of the picture are seen in the mirror of its first or last pixel.
Tensor reflected(const Tensor& position) {
  constexpr int kLast = kPictureSide - 1;
  return kLast - (kLast - position.abs()).abs();
}

// The pictures at these positions, each shifted and, every second one, mirrored: one gather.
Tensor augmented(const Pictures& pictures, const Tensor& at) {
  const int64_t n = at.size(0);
  const Tensor dice = Tensor::rand({3, n, 1}).contiguous().shard(pictures.devices, 1);
  const Tensor line = Tensor::arange(0, kPictureSide, 1, kI32);
  const Tensor y = reflected(line + spread(dice.select(0, 0), kMaxShift));
  const Tensor mirrored = where(dice.select(0, 2) < 0.5, kPictureSide - 1 - line, line);
  const Tensor x = reflected(mirrored + spread(dice.select(0, 1), kMaxShift));
  return pictures.images.index(
      {at.reshape({n, 1, 1, 1}), Tensor::arange(0, 3, 1, kI32).reshape({3, 1, 1}),
       y.reshape({n, 1, kPictureSide, 1}), x.reshape({n, 1, 1, kPictureSide})});
}

// All pictures in random order, batch after batch. Where a batch begins is a number on the device,
// so that all steps run the same kernels.
class Shuffled {
 public:
  explicit Shuffled(int64_t size) : size_(size) { restart(); }

  void restart() {
    order_ = Tensor::randperm(size_).to(kI32).realize();
    begin_ = Tensor::from({0});
  }
  Tensor next(int64_t batch) {
    const Tensor at = order_.index_select(0, Tensor::arange(0, batch, 1, kI32) + begin_);
    begin_.assign(begin_ + static_cast<int32_t>(batch));
    return at.contiguous();
  }
  Tensor* position() { return &begin_; }  // to be realized with a step

 private:
  int64_t size_;
  Tensor order_, begin_;
};

// --- The network ---------------------------------------------------------------------------------

// Convolution, maximum of 2 x 2 pixels where wanted, batch norm, ReLU: in the dtype of its input.
class Block : public nn::Module {
 public:
  Block(int64_t in, int64_t out, bool pooled = false)
      : conv_(in, out, 3, {.padding = 1}, false), norm_(out), pooled_(pooled) {}
  Tensor forward(const Tensor& x) override {
    const Tensor y = conv2d(x, conv_.weight.to(x.dtype()), Tensor(), conv_.options);
    const Tensor z = norm_(y).relu();
    return pooled_ ? max_pool2d(z, 2) : z;
  }
  void state(StateDict& out, const std::string& prefix) override {
    conv_.state(out, prefix + "conv.");
    norm_.state(out, prefix + "norm.");
  }

 private:
  nn::Conv2d conv_;
  nn::BatchNorm2d norm_;
  bool pooled_;
};

// x + f(x) with two blocks.
class Residual : public nn::Module {
 public:
  explicit Residual(int64_t channels) : first_(channels, channels), second_(channels, channels) {}
  Tensor forward(const Tensor& x) override { return x + second_(first_(x)); }
  void state(StateDict& out, const std::string& prefix) override {
    first_.state(out, prefix + "first.");
    second_.state(out, prefix + "second.");
  }

 private:
  Block first_, second_;
};

// The nine layers of D. Page, "How to train your ResNet", myrtle.ai, 2018: there 64 channels wide.
nn::Sequential make_network(int64_t width) {
  const auto strongest = [](const Tensor& x) { return x.max({2, 3}).to(kF32); };
  const auto scaled = [](const Tensor& x) { return x * 0.125; };
  return nn::Sequential(Block(3, width),                                         //
                        Block(width, 2 * width, true), Residual(2 * width),      //
                        Block(2 * width, 4 * width, true),                       //
                        Block(4 * width, 8 * width, true), Residual(8 * width),  //
                        strongest, nn::Linear(8 * width, kPictureClasses, false), scaled);
}

// --- Training and testing ------------------------------------------------------------------------

// Rises during the first fifth of the training, then falls to zero, both in straight lines.
double learning_rate(double highest, int64_t step, int64_t steps) {
  const double at = (step + 0.5) / static_cast<double>(steps), rise = 0.2;
  return highest * (at < rise ? at / rise : (1 - at) / (1 - rise));
}

// How many of the pictures the network knows. All batches have one size, so that they run the same
// kernels: the last one begins early and counts only what is new.
int64_t count_correct(nn::Module& network, const Pictures& pictures, const Scaling& scaling) {
  const NoGrad no_grad;
  const nn::Training testing(false);
  const int64_t n = pictures.size(), batch = std::min(n, kTestBatch);
  Tensor correct = Tensor::from({int64_t{0}}).shard(pictures.devices);
  for (int64_t done = 0; done < n; done += batch) {
    const auto begin = static_cast<int32_t>(std::min(done, n - batch));
    const Tensor first = Tensor::from({begin, static_cast<int32_t>(done)}).shard(pictures.devices);
    const Tensor at =
        (Tensor::arange(0, batch, 1, kI32) + first.narrow(0, 0, 1)).shard(pictures.devices, 0);
    const Tensor is_new = at >= first.narrow(0, 1, 1);
    const Tensor logits = network(scaling(pictures.images.index_select(0, at)));
    const Tensor hit = logits.argmax(1) == pictures.labels.index_select(0, at).to(kI64);
    correct.assign(correct + logical_and(hit, is_new).sum()).realize();
  }
  return correct.item<int64_t>();
}

struct EpochRow {
  double loss, training, testing, seconds;  // training: the share of the last batches read
};

class Trainer {
 public:
  Trainer(nn::Module& network, const Pictures& training, const Pictures& testing, const Options& o)
      : o_(o),
        network_(network),
        training_(training),
        testing_(testing),
        scaling_(training, o.dtype),
        order_(training.size()),
        optimizer_(network.tensors(), o.lr,
                   {.momentum = 0.9, .nesterov = true, .weight_decay = 5e-4}) {}

  double test() {
    const auto n = static_cast<double>(testing_.size());
    return static_cast<double>(count_correct(network_, testing_, scaling_)) / n;
  }

  std::vector<EpochRow> train() {
    const nn::Training mode;
    const double start = seconds();
    const int64_t steps = training_.size() / o_.batch;
    std::vector<EpochRow> rows;
    Progress progress(o_.epochs * steps * o_.batch, "pictures");
    for (int64_t epoch = 0; epoch < o_.epochs; ++epoch) {
      if (epoch) order_.restart();
      sums_ = Tensor::from({0.f, 0.f}).shard(o_.devices);
      for (int64_t i = 0; i < steps; ++i) {
        step(epoch * steps + i, o_.epochs * steps);
        // Not after the last one: the test's result is shown with it.
        if (i % kReadEvery == 0 && i + 1 < steps)
          show(progress, epoch * steps + i + 1, i + 1, rows);
      }
      const std::vector<float> sums = read_sums(steps);
      rows.push_back({sums[0], sums[1], test(), seconds() - start});
      show(progress, (epoch + 1) * steps, steps, rows);
    }
    return rows;
  }

 private:
  // One step; everything that it computes is realized together.
  void step(int64_t index, int64_t steps) {
    optimizer_.set_lr(learning_rate(o_.lr * static_cast<double>(o_.batch) / 512, index, steps));
    const Tensor at = order_.next(o_.batch).shard(o_.devices, 0);
    const Tensor labels = training_.labels.index_select(0, at).to(kI32);
    const Tensor logits = network_(scaling_(augmented(training_, at)));
    const Tensor loss = cross_entropy(logits, labels, {.label_smoothing = 0.1});
    loss.backward();
    const Tensor accuracy = (logits.detach().argmax(1) == labels).to(kF32).mean();
    sums_.assign(sums_ + Tensor::stack({loss.detach(), accuracy}));
    optimizer_.step({&sums_, order_.position()});
  }

  // Mean loss and accuracy of the epoch's steps so far.
  std::vector<float> read_sums(int64_t steps) const {
    std::vector<float> sums = sums_.to_vector<float>();
    for (float& sum : sums) sum /= static_cast<float>(steps);
    check(std::isfinite(sums[0]), "the loss is not finite any more: try a lower --lr than ", o_.lr);
    return sums;
  }

  void show(Progress& progress, int64_t done, int64_t in_epoch, const std::vector<EpochRow>& rows) {
    const std::vector<float> sums = read_sums(in_epoch);
    char text[96];
    int length =
        std::snprintf(text, sizeof text, "loss %.3f  accuracy %5.1f %%", sums[0], sums[1] * 100);
    if (!rows.empty())
      std::snprintf(text + length, sizeof text - length, "  epoch %zu: test %.1f %%", rows.size(),
                    rows.back().testing * 100);
    progress.update(done * o_.batch, text);
  }

  const Options& o_;
  nn::Module& network_;
  const Pictures &training_, &testing_;
  Scaling scaling_;
  Shuffled order_;
  SGD optimizer_;
  Tensor sums_;  // (2): of the losses and of the accuracies of an epoch's steps
};

PictureData find_data(const Options& o) {
  if (!o.data.empty()) return load_cifar(o.data);
  std::cout << "no folder of CIFAR-10 was given (--data, CIFAR_DIR): drawing pictures\n";
  return draw_pictures(kDrawnTrain, kDrawnTest, static_cast<uint64_t>(o.seed));
}

void print_table(const std::vector<EpochRow>& rows) {
  std::printf("\nepoch    loss  training      test    time\n");
  for (size_t i = 0; i < rows.size(); ++i)
    std::printf("%5zu  %6.3f  %6.2f %%  %6.2f %%  %4.1f s\n", i + 1, rows[i].loss,
                rows[i].training * 100, rows[i].testing * 100, rows[i].seconds);
}

void run(const Options& o) {
  const EnvOverride device("DEVICE", o.device.empty() ? env_text("DEVICE") : o.device);
  manual_seed(static_cast<uint64_t>(o.seed));
  nn::Sequential network = make_network(o.width);
  for (Tensor* t : network.tensors()) t->shard_(o.devices);
  if (!o.load.empty()) load(o.load, network.state_dict());
  const PictureData data = find_data(o);
  std::cout << data.note << std::endl;
  check(o.epochs == 0 || o.batch <= data.train.size(), "--batch: ", o.batch, " is more than the ",
        data.train.size(), " training pictures");
  const Pictures training(data.train, o.devices), testing(data.test, o.devices);
  Trainer trainer(network, training, testing, o);

  if (o.epochs > 0)
    print_table(trainer.train());
  else
    std::printf("test accuracy %.2f %%\n", 100 * trainer.test());
  if (o.save.empty()) return;
  save(o.save, network.state_dict());
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
