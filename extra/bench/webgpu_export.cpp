// Writes a residual network twice, for browsers and as ONNX, to be timed in one browser:
//   build/release/bench/webgpu_export FOLDER [f32|f16 [IMAGES [PIXELS]]]
// so many square images with so many pixels a side, by default 1 of 32, computed in that dtype.
//   node extra/webgpu/compare.mjs FOLDER/page FOLDER/model.onnx .../onnxruntime-web/dist
#include <sys/stat.h>

#include <array>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "tiny/onnx.h"
#include "tiny/tiny.h"

namespace {

using namespace tiny;

// Two convolutions beside a way around them, which has one where their shape differs.
class Block {
 public:
  Block(int64_t in, int64_t out, int64_t stride)
      : first_(in, out, 3, {.stride = stride, .padding = 1}),
        second_(out, out, 3, {.padding = 1}),
        norm_(out),
        last_norm_(out) {
    if (in != out)
      around_ = std::make_shared<nn::Conv2d>(in, out, 1, ConvOptions{.stride = stride});
  }
  Tensor operator()(const Tensor& x) {
    const Tensor y = last_norm_(second_(norm_(first_(x)).relu()));
    return (y + (around_ ? (*around_)(x) : x)).relu();
  }
  std::vector<nn::Module*> layers() {
    std::vector<nn::Module*> out{&first_, &second_, &norm_, &last_norm_};
    if (around_) out.push_back(around_.get());
    return out;
  }

 private:
  nn::Conv2d first_, second_;
  nn::BatchNorm2d norm_, last_norm_;
  std::shared_ptr<nn::Conv2d> around_;
};

struct Wanted {
  std::string folder;
  DType dtype = kF32;
  int64_t images = 1, pixels = 32;
};

void write(const Wanted& wanted) {
  manual_seed(1);
  const NoGrad no_grad;
  nn::Conv2d stem(3, 32, 3, {.padding = 1});
  nn::BatchNorm2d norm(32);
  std::vector<Block> blocks;
  constexpr std::array<int64_t, 3> kBlocks[] = {{32, 32, 1},  {32, 64, 2},   {64, 64, 1},
                                                {64, 128, 2}, {128, 128, 1}, {128, 256, 2}};
  for (const auto& [in, out, stride] : kBlocks) blocks.emplace_back(in, out, stride);
  nn::Linear head(256, 10);
  std::vector<nn::Module*> layers{&stem, &norm, &head};
  for (Block& block : blocks)
    for (nn::Module* m : block.layers()) layers.push_back(m);
  for (nn::Module* m : layers) {
    m->to(wanted.dtype);
    for (Tensor* t : m->tensors()) t->realize();
  }
  Jit step([&](const Tensor& x) {
    Tensor y = norm(stem(x.to(wanted.dtype))).relu();
    for (Block& block : blocks) y = block(y);
    return head(y.mean({2, 3})).softmax(1).to(kF32);
  });
  step(Tensor::zeros({wanted.images, 3, wanted.pixels, wanted.pixels}));
  mkdir(wanted.folder.c_str(), 0777);
  export_webgpu(step, wanted.folder + "/page", {.inputs = {"x"}, .outputs = {"y"}});
  onnx::export_onnx(step, wanted.folder + "/model.onnx", {.inputs = {"x"}, .outputs = {"y"}});
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || argc > 5) {
    std::cerr << "webgpu_export FOLDER [f32|f16 [IMAGES [PIXELS]]]\n";
    return 2;
  }
  try {
    Wanted wanted{argv[1]};
    if (argc > 2) wanted.dtype = std::string(argv[2]) == "f16" ? kF16 : kF32;
    if (argc > 3) wanted.images = std::stoll(argv[3]);
    if (argc > 4) wanted.pixels = std::stoll(argv[4]);
    write(wanted);
  } catch (const std::exception& e) {
    std::cerr << "webgpu_export: " << e.what() << '\n';
    return 1;
  }
}
