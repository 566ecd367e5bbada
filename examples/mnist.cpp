// Trains a convolutional network on handwritten digits: the one that tinygrad's "beautiful MNIST"
// shows. Without the MNIST files it draws digits of its own. `mnist --help` lists the options.
#include <algorithm>
#include <cmath>
#include <cxxopts.hpp>
#include <iostream>
#include <string>

#include "tiny/tiny.h"

namespace {

using namespace tiny;

constexpr int kDrawnTrain = 8500, kDrawnTest = 1500;
constexpr int64_t kTestBatch = 500;
constexpr int kReadEvery = 10;  // steps; reading a value back waits for the device

// --- Options -------------------------------------------------------------------------------------

struct Options : TrainingOptions {
  std::string checkpoint, page;
  bool tf32;
  int64_t steps, batch, every;
  double lr;
};

const std::vector<OptionText> kOptions{
    {"data", "FOLDER", "of the MNIST files; without it digits are drawn [MNIST_DIR]"},
    {"steps", "N", "training steps; 0 only tests [200]"},
    {"batch", "N", "samples of a step, on all devices together [128]"},
    {"lr", "X", "highest learning rate [0.002]"},
    {"precision", "NAME",
     "of products and convolutions: tf32 (operands rounded to 11 bits) or f32 [GPU: tf32]"},
    {"checkpoint", "FILE", "goes on from this file where it exists, and writes it"},
    {"every", "N", "steps from one checkpoint to the next [50]"},
    {"page", "FOLDER", "writes a page there that reads digits in a browser, by WebGPU"},
};

template <class Given> Options read_options(const Given& given) {
  Options o;
  read_training_options(given, "MNIST_DIR", o);
  // On GPUs as PyTorch does with convolutions unless it is told otherwise.
  o.tf32 = given.choice("precision", {"f32", "tf32"}, runtime_seam::is_gpu(o.devices[0])) == 1;
  o.checkpoint = given.new_file("checkpoint");
  o.page = given.new_file("page");
  o.every = given.whole("every", 1, INT64_MAX, 50);
  o.steps = given.whole("steps", 0, 1'000'000, 200);
  o.batch = given.whole("batch", 2, 1 << 16, 128);
  o.lr = given.number("lr", 0, 10, 0.002);
  return o;
}

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

Tensor classify(nn::Module& network, const DevicePictures& digits, const Tensor& at) {
  return network(digits.images.index_select(0, at).to(kF32) / 255);
}

// One step on random digits; everything that it computes is realized together. Loss and accuracy.
std::pair<Tensor, Tensor> train_step(nn::Module& network, Optimizer& optimizer,
                                     const DevicePictures& digits, const Options& o) {
  const Tensor at = Tensor::randint(0, digits.size(), {o.batch}, kI32).shard(o.devices, 0);
  const Tensor labels = digits.labels.index_select(0, at).to(kI32);
  const Tensor logits = classify(network, digits, at);
  Tensor loss = cross_entropy(logits, labels);
  loss.backward();
  Tensor accuracy = (logits.detach().argmax(1) == labels).to(kF32).mean();
  optimizer.step({&loss, &accuracy});
  return {loss, accuracy};
}

void train(nn::Module& network, const DevicePictures& digits, const Options& o) {
  const double begin = seconds();
  const nn::Training training;
  Adam optimizer(network.tensors(), o.lr);
  Tensor next = Tensor::zeros({1}, kI64).contiguous().realize();  // step
  StateDict state = network.state_dict("network.");
  for (const NamedTensor& t : optimizer.state_dict("optimizer.")) state.push_back(t);
  state.push_back({"step", &next});
  if (load_checkpoint(o.checkpoint, state))
    std::cout << "going on with step " << next.item<int64_t>() << " from " << o.checkpoint
              << std::endl;
  const int64_t begin_step = next.item<int64_t>();
  Jit step_once([&] { return train_step(network, optimizer, digits, o); });
  double first = 0;
  {
    Progress progress(o.steps * o.batch, "samples", begin_step * o.batch);
    std::string fields;
    for (int64_t step = begin_step; step < o.steps; ++step) {
      const auto steps = static_cast<double>(o.steps);
      optimizer.set_lr(o.lr * warmup_cosine(static_cast<double>(step) + 0.5, 0.05 * steps, steps));
      const auto [loss_now, accuracy_now] = step_once();
      if (step % kReadEvery == 0 || step == o.steps - 1) {
        const float loss = loss_now.item<float>(), accuracy = accuracy_now.item<float>();
        check(std::isfinite(loss), "the loss is not finite after ", step,
              " steps: try a lower --lr");
        fields = formatted("loss %.4f  accuracy %5.1f %%", loss, accuracy * 100);
      }
      if (step == begin_step) first = seconds() - begin;
      progress.update((step + 1) * o.batch, fields);
      if (o.checkpoint.empty() || (step + 1) % o.every != 0) continue;
      next = Tensor::from(std::vector<int64_t>{step + 1});
      save_checkpoint(o.checkpoint, state);
    }
  }
  std::cout << "trained " << std::max<int64_t>(o.steps - begin_step, 0) << " steps of " << o.batch
            << formatted(" samples in %.1f s, the first in %.2f s\n", seconds() - begin, first);
}

void test(nn::Module& network, const DevicePictures& digits, const Options& o) {
  const double begin = seconds();
  ClassifierTest test(
      digits.labels, kTestBatch, kPictureClasses, o.devices,
      [&](const Tensor& at, const Tensor&) { return classify(network, digits, at); });
  const int64_t correct = test.count();
  std::cout << formatted("test accuracy %.2f %%", 100.0 * correct / digits.size()) << " ("
            << correct << " of " << digits.size()
            << formatted(" digits) in %.2f s\n", seconds() - begin);
}

constexpr std::string_view kPage =
#include <embedded/examples/pages/mnist.html.inc>
    ;

// A page on which digits are drawn with the mouse, and read by the network.
void write_page(nn::Module& network, const std::string& folder) {
  Jit read([&](const Tensor& image) { return network(image).softmax(1); });
  read(Tensor::zeros({1, 1, 28, 28}));
  export_webgpu(read, folder,
                {.inputs = {"image"},
                 .outputs = {"digits"},
                 .weights = network.state_dict(),
                 .page = std::string(kPage.substr(1))});
  std::cout << "wrote " << folder << ": serve it (python3 -m http.server -d " << folder
            << ") and open http://127.0.0.1:8000" << std::endl;
}

void run(const Options& o) {
  const EnvOverride device("DEVICE", o.device.empty() ? env_text("DEVICE") : o.device);
  const EnvOverride precision("ALLOW_TF32", o.tf32 ? "1" : "0");
  mute_other_ranks();
  manual_seed(static_cast<uint64_t>(o.seed));
  nn::Sequential network = make_network();
  for (Tensor* t : network.tensors()) t->shard_(o.devices);
  if (!o.load.empty()) load(o.load, network.state_dict());
  const MnistData data = find_data(o);
  std::cout << data.note << std::endl;
  if (o.tf32 && runtime_seam::is_gpu(o.devices[0]))
    std::cout << "products and convolutions round f32 to TF32 (--precision)" << std::endl;
  const DevicePictures training(data.train, o.devices), testing(data.test, o.devices);

  if (o.steps > 0) train(network, training, o);
  test(network, testing, o);
  if (!o.page.empty()) write_page(network, o.page);
  if (o.save.empty()) return;
  save(o.save, network.state_dict());
  std::cout << "saved " << o.save << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  return run_program(
      "mnist", cxxopts::Options("mnist", "Trains a convolutional network on handwritten digits."),
      cxxopts::value<std::string>(), {kOptions, kTrainingOptions}, argc, argv,
      [](const auto& given) { run(read_options(given)); });
}
