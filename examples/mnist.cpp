// Trains a convolutional network on handwritten digits: the one that tinygrad's "beautiful MNIST"
// shows. Without the MNIST files it draws digits of its own. `mnist --help` lists the options.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cxxopts.hpp>
#include <filesystem>
#include <iostream>
#include <string>

#include "tiny/tiny.h"

namespace {

using namespace tiny;

constexpr int kDrawnTrain = 8500, kDrawnTest = 1500;
constexpr int64_t kTestBatch = 500;
constexpr int kReadEvery = 10;  // steps; reading a value back waits for the device

struct Options {
  std::string data, device, save, load, checkpoint;
  std::vector<std::string> devices;  // each works on a part of every batch
  bool tf32;
  int64_t steps, batch, seed, every;
  double lr;
};

double seconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

// --- Options -------------------------------------------------------------------------------------

cxxopts::Options describe_options() {
  cxxopts::Options options("mnist", "Trains a convolutional network on handwritten digits.");
  const auto text = [] { return cxxopts::value<std::string>(); };
  auto add = options.add_options();
  add("data", "folder of the MNIST files; without it digits are drawn", text(), "FOLDER");
  add("steps", "training steps; 0 only tests", text()->default_value("200"), "N");
  add("batch", "samples of a step, on all devices together", text()->default_value("128"), "N");
  add("seed", "of weights, batches and drawn digits", text()->default_value("0"), "N");
  add("lr", "highest learning rate", text()->default_value("0.002"), "X");
  add("device", "such as CPU or NULL", text(), "NAME");
  add("gpus", "devices of that kind, each of which gets a part of every batch",
      text()->default_value("1"), "N");
  add("ranks", "one device of each process that torchrun, mpirun or srun started");
  add("precision",
      "of products and convolutions: tf32 (operands rounded to 11 bits) or f32 [GPU: tf32]", text(),
      "NAME");
  add("checkpoint", "goes on from this file where it exists, and writes it", text(), "FILE");
  add("every", "steps from one checkpoint to the next", text()->default_value("50"), "N");
  add("save", "writes the network to this safetensors file", text(), "FILE");
  add("load", "reads the network from it first", text(), "FILE");
  add("help", "prints this");
  return options;
}

Options read_options(const cxxopts::ParseResult& parsed) {
  const Arguments given(parsed);
  Options o;
  o.data = given.text("data", env_text("MNIST_DIR"));
  check(!given.given("data") || !o.data.empty(), "--data: the name of the folder is empty");
  o.device = given.text("device");
  const EnvOverride kind("DEVICE", o.device.empty() ? env_text("DEVICE") : o.device);
  o.devices = devices_from(o.device, given.whole("gpus", 1, 1024));
  if (given.given("ranks")) o.devices = rank_devices();
  // On GPUs as PyTorch does with convolutions unless it is told otherwise.
  o.tf32 = given.choice("precision", {"f32", "tf32"}, runtime_seam::is_gpu(o.devices[0])) == 1;
  o.checkpoint = given.new_file("checkpoint");
  o.every = given.whole("every", 1, INT64_MAX);
  o.save = given.new_file("save");
  o.load = given.text("load");
  o.steps = given.whole("steps", 0, 1'000'000);
  o.batch = given.whole("batch", 2, 1 << 16);
  o.seed = given.whole("seed", 0, INT64_MAX);
  o.lr = given.number("lr", 0, 10);
  return o;
}

// --- Data ----------------------------------------------------------------------------------------

// A set of digits, as bytes, on each of the devices. What is picked is spread over them.
struct Digits {
  Digits(const DigitSet& set, const std::vector<std::string>& devices)
      : images(Tensor::from(set.images, {set.size(), 1, kDigitSide, kDigitSide}).shard(devices)),
        labels(Tensor::from(set.labels).shard(devices)),
        devices(devices) {
    Tensor* const both[] = {&images, &labels};
    Tensor::realize(both);
  }

  int64_t size() const { return images.size(0); }
  Tensor positions(const Tensor& at) const { return at.shard(devices, 0); }
  Tensor pick_images(const Tensor& at) const { return images.index_select(0, at).to(kF32) / 255; }
  Tensor pick_labels(const Tensor& at) const { return labels.index_select(0, at); }

  Tensor images, labels;  // u8 (n, 1, 28, 28), u8 (n)
  std::vector<std::string> devices;
};

MnistData find_data(const Options& o) {
  if (!o.data.empty()) return load_mnist(o.data);
  std::cout << "no folder of MNIST files was given (--data, MNIST_DIR): drawing digits\n";
  return draw_digits(kDrawnTrain, kDrawnTest, static_cast<uint64_t>(o.seed));
}

// --- Training ------------------------------------------------------------------------------------

nn::Sequential make_network() {
  const auto pool = [](const Tensor& x) { return max_pool2d(x, 2); };
  const auto flatten = [](const Tensor& x) { return x.flatten(1); };
  return nn::Sequential(nn::Conv2d(1, 32, 5), &Tensor::relu,                              //
                        nn::Conv2d(32, 32, 5), &Tensor::relu, nn::BatchNorm2d(32), pool,  //
                        nn::Conv2d(32, 64, 3), &Tensor::relu,                             //
                        nn::Conv2d(64, 64, 3), &Tensor::relu, nn::BatchNorm2d(64), pool,  //
                        flatten, nn::Linear(576, 10));
}

// Rises for a twentieth of the steps, then falls to zero along half a cosine.
double learning_rate(double highest, int64_t step, int64_t steps) {
  const double at = (step + 0.5) / static_cast<double>(steps), rise = 0.05;
  if (at < rise) return highest * at / rise;
  return highest * 0.5 * (1 + std::cos(M_PI * (at - rise) / (1 - rise)));
}

// One step on random digits; everything that it computes is realized together. Loss and accuracy.
std::pair<Tensor, Tensor> train_step(nn::Module& network, Optimizer& optimizer,
                                     const Digits& digits, int64_t batch) {
  const Tensor at = digits.positions(Tensor::randint(0, digits.size(), {batch}, kI32));
  const Tensor labels = digits.pick_labels(at).to(kI32);
  const Tensor logits = network(digits.pick_images(at));
  Tensor loss = cross_entropy(logits, labels);
  loss.backward();
  Tensor accuracy = (logits.detach().argmax(1) == labels).to(kF32).mean();
  optimizer.step({&loss, &accuracy});
  return {loss, accuracy};
}

// Everything that training goes on from, in one file: parameters, what the optimizer keeps, the
// random numbers to come and the next step.
class Checkpoint {
 public:
  Checkpoint(nn::Module& network, Optimizer& optimizer, const Options& o)
      : path_(o.checkpoint), every_(o.every), state_(network.state_dict("network.")) {
    for (const NamedTensor& t : optimizer.state_dict("optimizer.")) state_.push_back(t);
  }

  // The step to begin with.
  int64_t read() {
    if (path_.empty() || !std::filesystem::exists(path_)) return 0;
    const auto notes = load(path_, state_);
    set_random_state({std::stoull(notes.at("key")), std::stoull(notes.at("counter"))});
    std::cout << "going on with step " << notes.at("step") << " from " << path_ << std::endl;
    return std::stoll(notes.at("step"));
  }

  void write(int64_t next_step) {
    if (path_.empty() || next_step % every_ != 0) return;
    const RandomState random = random_state();
    save(path_, state_,
         {{"step", std::to_string(next_step)},
          {"key", std::to_string(random.key)},
          {"counter", std::to_string(random.counter)}});
  }

 private:
  std::string path_;
  int64_t every_;
  StateDict state_;
};

void train(nn::Module& network, const Digits& digits, const Options& o) {
  const double begin = seconds();
  const nn::Training training;
  Adam optimizer(network.tensors(), o.lr);
  Checkpoint checkpoint(network, optimizer, o);
  const int64_t begin_step = checkpoint.read();
  Jit step_once([&] { return train_step(network, optimizer, digits, o.batch); });
  double first = 0;
  {
    Progress progress(o.steps * o.batch, "samples");
    std::string fields;
    for (int64_t step = begin_step; step < o.steps; ++step) {
      optimizer.set_lr(learning_rate(o.lr, step, o.steps));
      const auto [loss_now, accuracy_now] = step_once();
      if (step % kReadEvery == 0 || step == o.steps - 1) {
        const float loss = loss_now.item<float>(), accuracy = accuracy_now.item<float>();
        check(std::isfinite(loss), "the loss is not finite after ", step,
              " steps: try a lower --lr");
        char text[64];
        std::snprintf(text, sizeof text, "loss %.4f  accuracy %5.1f %%", loss, accuracy * 100);
        fields = text;
      }
      if (step == begin_step) first = seconds() - begin;
      progress.update((step + 1) * o.batch, fields);
      checkpoint.write(step + 1);
    }
  }
  std::printf("trained %lld steps of %lld samples in %.1f s, the first in %.2f s\n",
              static_cast<long long>(o.steps), static_cast<long long>(o.batch), seconds() - begin,
              first);
}

// --- Testing -------------------------------------------------------------------------------------

// How many of the digits the network knows. All batches have one size, so that they run the same
// kernels: the last one begins early and counts only what is new.
int64_t count_correct(nn::Module& network, const Digits& digits) {
  const NoGrad no_grad;
  const int64_t n = digits.size(), batch = std::min(n, kTestBatch);
  int64_t correct = 0;
  for (int64_t done = 0; done < n; done += batch) {
    const int64_t begin = std::min(done, n - batch);
    std::vector<int32_t> positions(static_cast<size_t>(batch));
    for (int64_t i = 0; i < batch; ++i) positions[i] = static_cast<int32_t>(begin + i);
    const Tensor at = digits.positions(Tensor::from(positions));
    const Tensor hit = network(digits.pick_images(at)).argmax(1) == digits.pick_labels(at).to(kI64);
    const auto hits = hit.to_vector<uint8_t>();
    correct += std::count(hits.begin() + (done - begin), hits.end(), 1);
  }
  return correct;
}

void test(nn::Module& network, const Digits& digits) {
  const double begin = seconds();
  const int64_t correct = count_correct(network, digits);
  std::printf("test accuracy %.2f %% (%lld of %lld digits) in %.2f s\n",
              100.0 * static_cast<double>(correct) / static_cast<double>(digits.size()),
              static_cast<long long>(correct), static_cast<long long>(digits.size()),
              seconds() - begin);
}

void run(const Options& o) {
  const EnvOverride device("DEVICE", o.device.empty() ? env_text("DEVICE") : o.device);
  const EnvOverride precision("ALLOW_TF32", o.tf32 ? "1" : "0");
  // All processes do the same; one of them tells.
  if (rank() > 0 && !std::freopen("/dev/null", "w", stdout)) throw Error("no /dev/null");
  manual_seed(static_cast<uint64_t>(o.seed));
  nn::Sequential network = make_network();
  for (Tensor* t : network.tensors()) t->shard_(o.devices);
  if (!o.load.empty()) load(o.load, network.state_dict());
  const MnistData data = find_data(o);
  std::cout << data.note << std::endl;
  if (o.tf32 && runtime_seam::is_gpu(o.devices[0]))
    std::cout << "products and convolutions round f32 to TF32 (--precision)" << std::endl;
  const Digits training(data.train, o.devices), testing(data.test, o.devices);

  if (o.steps > 0) train(network, training, o);
  test(network, testing);
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
    std::cerr << "mnist: " << e.what() << std::endl;
    return 1;
  }
}
