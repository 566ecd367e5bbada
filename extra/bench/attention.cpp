// The variants of attention in attention_variants.h: times beside the plain one's, for each tile of
// scores that a mask lets something through of.
//
//   attention [TEXT]... [--gradients] [--dtype bf16|f16] [--batch N] [--heads N] [--length N]
//             [--width N] [--tile N] [--device NAME] [--seconds N]
//
// TEXT: variants with that in their name; without, all. --seconds: none is begun later. Times are
// those of gpu.cpp. "tiles": how many of --tile x --tile scores have one that is seen, of all those
// of the plain one. "a tile": the time over that of the plain one, over tiles and what the variant
// multiplies for one. --gradients: forward and gradients of all floats that are read.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "extra/bench/attention_variants.h"
#include "extra/bench/gpu_rows.h"
#include "extra/bench/record.h"
#include "runtime/analysis/views.h"
#include "runtime/schedule/schedule.h"
#include "tiny/tiny.h"

using namespace tiny;
using namespace tiny::bench;

namespace {

constexpr double kWanted = 1.3;  // of the plain one's time for a tile

struct Options {
  std::string device;
  std::vector<std::string> texts;
  AttentionSizes sizes;
  DType dtype = kBF16;
  int64_t tile = 128;
  bool gradients = false;
  double seconds = INFINITY;
};

// Tiles of scores with one that is seen, each head's, over those of the plain variant.
double share_of_tiles(const AttentionVariant& v, const Options& o) {
  if (!v.mask) return 1;
  AttentionInputs in(normal, o.dtype);
  const Tensor mask = v.mask(in, o.sizes);
  const int64_t length = o.sizes.length, rows = std::max<int64_t>(mask.size(-2), o.tile);
  Shape all = to_shape(mask.shape());
  while (all.size() < 4) all.insert(all.begin(), 1);
  const int64_t masks = all[0] * all[1];
  const Tensor whole = mask.expand({all[0], all[1], rows, length});
  const Tensor tiles = whole.reshape({masks, rows / o.tile, o.tile, length / o.tile, o.tile});
  const double seen = tiles.any({2, 4}).to(kF32).mean().item<float>();
  return seen * (mask.size(-2) == 1 ? 1 : static_cast<double>(rows) / static_cast<double>(length));
}

int64_t arena_of(const Outputs& outputs, const std::string& device) {
  std::vector<Node> roots;
  for (const Tensor& t : outputs) roots.push_back(resolved(t.node()));
  const Normalized graph = normalize(roots);
  const std::vector<int> devices(graph.buffers.size(), device_id(device));
  int64_t bytes = 0;
  for (const auto& [id, arena] : schedule(graph, devices, device_id(device))->memory.arenas)
    bytes += arena;
  return bytes;
}

struct Result {
  double seconds = 0;
  int kernels = 0;
  int64_t arena = 0;
};

Result result_of(const AttentionVariant& v, const Options& o) {
  AttentionInputs in(normal, o.dtype);
  const auto work = [&]() -> Outputs {
    const Tensor out = v(in, o.sizes);
    if (!o.gradients) return {out};
    std::vector<Tensor> wanted;
    for (Tensor* t : in.learned()) wanted.push_back(*t);
    Outputs all = Tensor::gradient(out.to(kF32).square().sum(), wanted);
    all.push_back(out);
    return all;
  };
  v(in, o.sizes);  // makes the inputs
  for (Tensor* t : in.learned()) t->requires_grad_(o.gradients);
  Result r;
  r.arena = arena_of(work(), o.device);
  const Measured m = measure(work, find_device(o.device));
  r.seconds = m.seconds;
  r.kernels = m.kernels;
  return r;
}

// How many failed.
int run(const Options& o) {
  const double begin = bench::seconds();
  const auto is_wanted = [&](const AttentionVariant& v) {
    return o.texts.empty() || v.name == "plain" ||
           std::ranges::any_of(o.texts, [&](const auto& t) { return v.name.find(t) != t.npos; });
  };
  const AttentionSizes& s = o.sizes;
  std::printf("%s, %lld x %lld x %lld x %lld%s\n", o.device.c_str(),
              static_cast<long long>(s.batch), static_cast<long long>(s.heads),
              static_cast<long long>(s.length), static_cast<long long>(s.width),
              o.gradients ? ", with gradients" : "");
  double plain = 0;
  int failures = 0, slow = 0;
  for (const AttentionVariant& v : attention_variants()) {
    if (!is_wanted(v) || bench::seconds() - begin > o.seconds) continue;
    try {
      const Result r = result_of(v, o);
      if (v.name == "plain") plain = r.seconds;
      const double share = share_of_tiles(v, o), each = r.seconds / (plain * share * v.work);
      slow += each > kWanted;
      std::printf("%-22s %9.4f ms  tiles %5.3f  a tile %6.3f%s  %2d kernels  arena %9.3f MB\n",
                  v.name.c_str(), r.seconds * 1e3, share, each, each > kWanted ? " slow" : "     ",
                  r.kernels, static_cast<double>(r.arena) * 1e-6);
    } catch (const std::exception& e) {
      ++failures;
      std::printf("%-22s failed: %s\n", v.name.c_str(), e.what());
    }
    Arena::global().collect();
  }
  std::printf("%d take more than %.1f of the plain one's time for a tile\n", slow, kWanted);
  return failures;
}

Options read_options(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    const auto value = [&] {
      check(i + 1 < argc, name, ": a value is missing");
      return std::string(argv[++i]);
    };
    const auto number = [&] { return std::atoll(value().c_str()); };
    if (name == "--device")
      o.device = value();
    else if (name == "--gradients")
      o.gradients = true;
    else if (name == "--dtype")
      o.dtype = value() == "f16" ? kF16 : kBF16;
    else if (name == "--batch")
      o.sizes.batch = number();
    else if (name == "--heads")
      o.sizes.heads = number();
    else if (name == "--length")
      o.sizes.length = number();
    else if (name == "--width")
      o.sizes.width = number();
    else if (name == "--tile")
      o.tile = number();
    else if (name == "--seconds")
      o.seconds = std::atof(value().c_str());
    else if (name[0] != '-')
      o.texts.push_back(name);
    else
      throw Error(cat(name, " is no option: known are --gradients, --dtype, --batch, --heads, ",
                      "--length, --width, --tile, --device, --seconds"));
  }
  o.device = canonical_device(o.device.empty() ? runtime_seam::default_device() : o.device);
  check(o.tile > 0 && o.sizes.length % (4 * o.tile) == 0, "--length: ", o.sizes.length,
        " is no multiple of four tiles of ", o.tile);
  return o;
}

}  // namespace

int main(int argc, char** argv) {
  if (print_version("attention", argc, argv)) return 0;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  try {
    const Options o = read_options(argc, argv);
    const EnvOverride device("DEVICE", o.device);
    return run(o) ? 1 : 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "attention: %s\n", e.what());
    return 1;
  }
}
