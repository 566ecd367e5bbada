// The variants of products in product_variants.h: times beside the plain product of the same sizes
// and dtype, beside a large copy, and beside PyTorch's of product_peers.py.
//
//   products [TEXT]... [--dtype bf16,f16,tf32,e4m3] [--side N] [--device NAME] [--peers FILE]...
//            [--seconds N] [--append [FILE]] [--commit X]
//
// TEXT: variants with that in their name; without, all. --seconds: none is begun later. Times are
// those of gpu.cpp. "of plain": the plain product's time, once for each product of the variant,
// over its own; a plain product of odd sizes stands beside the one of sizes rounded up to 8. "of
// copy": bytes of inputs and outputs per second, over those of the copy. What would take longer,
// the plain products or the copy, is the limit: a variant is "under" with less than 0.5 of the
// first or 0.85 of the second.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "codegen/lower.h"
#include "extra/bench/gpu_rows.h"
#include "extra/bench/product_variants.h"
#include "extra/bench/record.h"
#include "extra/bench/results.h"
#include "runtime/analysis/views.h"
#include "runtime/schedule/schedule.h"
#include "tiny/tiny.h"

using namespace tiny;
using namespace tiny::bench;

namespace {

constexpr double kOfPlain = 0.5, kOfCopy = 0.85, kMean = 0.8;

struct Type {
  const char* name;
  DType dtype;
};
constexpr Type kTypes[] = {{"bf16", kBF16}, {"f16", kF16}, {"tf32", kF32}, {"e4m3", kF8E4M3}};

struct Options {
  std::string device, append, commit;
  std::vector<std::string> texts, peers;
  std::vector<Type> types{kTypes[0]};
  int64_t side = 0;
  double seconds = INFINITY;
};

// Random numbers; integers below a limit that are all different where there are enough, far apart.
Tensor random(const Shape& shape, DType dtype, int64_t below) {
  if (dtype == kBool) return (Tensor::rand(shape) < 0.8).realize();
  if (below > 0) {
    constexpr int64_t kFar = 7919;
    std::vector<int64_t> values(static_cast<size_t>(numel(shape)));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int64_t>(i) * kFar % below;
    return Tensor::from(values, shape).to(dtype).realize();
  }
  if (dtype == kI8) return Tensor::randint(-100, 100, shape).to(kI8).realize();
  if (dtype == kU8) return Tensor::randint(0, 256, shape).to(kU8).realize();
  return normal(shape, dtype);
}

// The instruction of each kernel that multiplies matrices, or why it has none.
std::string units_of(const Outputs& outputs, const std::string& device) {
  std::vector<Node> roots;
  for (const Tensor& t : outputs) roots.push_back(resolved(t.node()));
  const Normalized graph = normalize(roots);
  const std::vector<int> devices(graph.buffers.size(), device_id(device));
  std::set<std::string> units;
  for (const Step& step : schedule(graph, devices, device_id(device))->steps) {
    if (!step.kernel) continue;
    const Lowered low = lower(step.kernel.get(), step.name, find_device(device).target());
    units.insert(to_text(low.unit));
  }
  std::string text;
  for (const std::string& unit : units)
    if (!unit.empty()) text += (text.empty() ? "" : ", ") + unit;
  return text.empty() ? "nothing multiplied" : text;
}

double bytes_of(const Outputs& outputs) {
  double sum = 0;
  for (const Tensor& t : outputs)
    sum += static_cast<double>(t.numel()) * static_cast<double>(t.dtype().size());
  return sum;
}

struct Result {
  double seconds = 0, of_plain = 0, of_copy = 0;
  bool by_copy = false;  // what limits it
  bool is_under() const { return by_copy ? of_copy < kOfCopy : of_plain < kOfPlain; }
  double share() const { return by_copy ? of_copy : of_plain; }
};

// Measures variants of a dtype and keeps what is measured more than once.
class Bench {
 public:
  Bench(const Options& o, Device& device)
      : o_(o), device_(device), copy_(copy_rate(device)), begin_(bench::seconds()) {
    for (const std::string& path : o.peers) {
      std::ifstream file(path);
      check(file.is_open(), "--peers: cannot open ", path);
      for (const std::string& line : result_lines(path)) add_peer(line);
    }
    if (!o.append.empty()) {
      file_.open(o.append, std::ios::app);
      check(file_.is_open(), "--append: cannot write ", o.append);
    }
    std::printf("%s, side %lld; a large copy moves %.1f GB/s\n", o.device.c_str(),
                static_cast<long long>(o.side), copy_ * 1e-9);
  }

  // How many variants failed.
  int run(const Type& type) {
    const EnvOverride rounds("ALLOW_TF32", type.dtype == kF32 ? "1" : "0");
    logs_ = 0;
    measured_ = 0;
    under_.clear();
    int failures = 0, left_out = 0;
    for (const ProductVariant& v : product_variants()) {
      if (!is_wanted(v) || (type.dtype.is_f8() && !v.takes_f8)) continue;
      if (bench::seconds() - begin_ > o_.seconds) {
        ++left_out;
        continue;
      }
      const std::string name = cat(type.name, '_', v.name);
      try {
        measure_variant(v, type, name);
      } catch (const std::exception& e) {
        ++failures;
        std::printf("%-34s failed: %s\n", name.c_str(), e.what());
      }
      Arena::global().collect();
    }
    if (measured_ > 0)
      std::printf(
          "%s: %d variants, geometric mean of what limits them %.3f (at least %.1f), %zu under\n",
          type.name, measured_, std::exp(logs_ / measured_), kMean, under_.size());
    for (const std::string& line : under_) std::printf("  under: %s\n", line.c_str());
    if (left_out > 0) std::printf("%s: %d left out, --seconds is over\n", type.name, left_out);
    return failures;
  }

 private:
  void add_peer(const std::string& line) {
    const double ms = number_field(line, "ms");
    double& best = peers_[field(line, "name")];
    if (ms > 0 && (best == 0 || ms < best)) best = ms;
  }

  bool is_wanted(const ProductVariant& v) const {
    const auto fits = [&](const std::string& text) { return v.name.find(text) != v.name.npos; };
    return o_.texts.empty() || std::ranges::any_of(o_.texts, fits);
  }

  // Seconds of a product with nothing in it.
  double plain(ProductSizes s, DType dtype) {
    double& found = plain_[{s, dtype.name()}];
    if (found > 0) return found;
    const auto shape = [&](int64_t rows) {
      return s.batch == 1 ? Shape{rows, s.k} : Shape{s.batch, rows, s.k};
    };
    const Tensor a = normal(shape(s.m), dtype), b = normal(shape(s.n), dtype);
    const DType result = dtype.is_f8() ? kBF16 : dtype;
    return found = measure([&] { return Outputs{a.matmul(b.transpose(-2, -1), result)}; }, device_)
                       .seconds;
  }

  void measure_variant(const ProductVariant& v, const Type& type, const std::string& name) {
    const ProductSizes s = v.at(o_.side);
    ProductInputs in(random, type.dtype);
    const auto work = [&] {
      in.begin();
      return v.make(in, s);
    };
    std::string units;
    double bytes = 0;
    {
      const Outputs outputs = work();  // none of which is kept while the same ones are timed
      units = units_of(outputs, o_.device);
      bytes = in.bytes() + bytes_of(outputs);
    }
    const Measured m = measure(work, device_);
    Result r{m.seconds};
    ProductSizes round = s;
    if (v.is_sized)
      for (int64_t* size : {&round.m, &round.n, &round.k})
        *size = std::max<int64_t>(*size + 7, 8) / 8 * 8;
    const double products = plain(round, type.dtype) * v.products, copied = bytes / copy_;
    r.by_copy = copied > products;
    r.of_plain = products / r.seconds;
    r.of_copy = copied / r.seconds;
    report(v, s, name, r, m.kernels, units);
  }

  void report(const ProductVariant& v, const ProductSizes& s, const std::string& name,
              const Result& r, int kernels, const std::string& units) {
    const double flops =
        2.0 * v.products * static_cast<double>(s.m * s.n) * static_cast<double>(s.k * s.batch);
    char text[256];
    std::snprintf(
        text, sizeof text,
        "%-34s %9.4f ms %8.1f TFLOP/s  %5.3f of plain  %5.3f of copy  %2d kernels  %s (%s)",
        name.c_str(), r.seconds * 1e3, flops / r.seconds * 1e-12, r.of_plain, r.of_copy, kernels,
        r.is_under() ? "under" : "ok   ", r.by_copy ? "copy" : "plain");
    std::string line = text;
    const double peer = peers_.count(name) ? peers_.at(name) : 0;
    if (peer > 0) {
      std::snprintf(text, sizeof text, "  PyTorch %.4f ms  time/peer %.3f", peer,
                    r.seconds * 1e3 / peer);
      line += text;
    }
    line += "  " + units;
    std::printf("%s\n", line.c_str());
    ++measured_;
    logs_ += std::log(r.share());
    if (r.is_under()) under_.push_back(line);
    if (!file_.is_open()) return;
    file_ << record(machine_name(o_.device), o_.commit) << ", \"device\": \"" << o_.device
          << "\", \"size\": " << o_.side << ", \"name\": \"" << name
          << "\", \"ms\": " << r.seconds * 1e3 << ", \"tflops\": " << flops / r.seconds * 1e-12
          << ", \"of_plain\": " << r.of_plain << ", \"of_copy\": " << r.of_copy << ", \"limit\": \""
          << (r.by_copy ? "copy" : "plain") << "\", \"kernels\": " << kernels << ", \"unit\": \""
          << units << '"';
    if (peer > 0)
      file_ << ", \"peer\": \"torch-compile\", \"peer_ms\": " << peer
            << ", \"ratio\": " << r.seconds * 1e3 / peer;
    file_ << "}" << std::endl;
  }

  const Options& o_;
  Device& device_;
  const double copy_, begin_;
  std::map<std::string, double> peers_;  // milliseconds
  std::map<std::pair<ProductSizes, std::string>, double> plain_;
  std::ofstream file_;
  double logs_ = 0;  // of a dtype's shares, added up
  int measured_ = 0;
  std::vector<std::string> under_;
};

std::vector<Type> types_from_text(const std::string& text) {
  std::vector<Type> out;
  std::istringstream in(text);
  for (std::string name; std::getline(in, name, ',');) {
    const auto* type = std::ranges::find_if(kTypes, [&](const Type& t) { return name == t.name; });
    check(type != std::end(kTypes), "--dtype: ", name, " is none of bf16, f16, tf32, e4m3");
    out.push_back(*type);
  }
  return out;
}

Options read_options(int argc, char** argv) {
  Options o;
  const auto value = [&](int& i) {
    check(i + 1 < argc, argv[i], ": a value is missing");
    return std::string(argv[++i]);
  };
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--device")
      o.device = value(i);
    else if (name == "--side")
      o.side = std::atoll(value(i).c_str());
    else if (name == "--dtype")
      o.types = types_from_text(value(i));
    else if (name == "--peers")
      o.peers.push_back(value(i));
    else if (name == "--seconds")
      o.seconds = std::atof(value(i).c_str());
    else if (name == "--commit")
      o.commit = value(i);
    else if (name == "--append")
      o.append =
          i + 1 < argc && argv[i + 1][0] != '-' ? argv[++i] : "extra/bench/results/products.jsonl";
    else if (name[0] != '-')
      o.texts.push_back(name);
    else
      throw Error(cat(name, " is no option: known are --dtype, --side, --device, --peers, ",
                      "--seconds, --append, --commit"));
  }
  o.device = canonical_device(o.device.empty() ? runtime_seam::default_device() : o.device);
  const bool gpu = find_device(o.device).target().kind == Target::Kind::Gpu;
  if (o.side == 0) o.side = gpu ? 4096 : 512;
  check(o.side >= 128 && o.side % 128 == 0, "--side: ", o.side, " is no multiple of 128");
  return o;
}

}  // namespace

int main(int argc, char** argv) {
  if (print_version("products", argc, argv)) return 0;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  try {
    const Options o = read_options(argc, argv);
    const EnvOverride device("DEVICE", o.device);
    Bench bench(o, find_device(o.device));
    int failures = 0;
    for (const Type& type : o.types) failures += bench.run(type);
    return failures ? 1 : 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "products: %s\n", e.what());
    return 1;
  }
}
