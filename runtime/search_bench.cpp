#include "runtime/search_bench.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <sstream>

#include "tiny/error.h"
#include "tiny/splitmix.h"

namespace tiny {

const char* name_of(Outcome outcome) {
  constexpr const char* names[] = {"good",    "slow", "wrong",   "failed",
                                   "crashed", "hung", "rejected"};
  return names[static_cast<int>(outcome)];
}

namespace {

using Bytes = std::vector<std::byte>;

// Eighths between -1 and 1 without zero: every dtype has them, and sums of their products are exact
// up to a quarter of a million terms, so that orders of addition agree to the bit where a kernel
// does no more than that.
float eighths(uint64_t bits) {
  const auto magnitude = static_cast<float>(bits % 8 + 1) / 8;
  return bits & 8 ? -magnitude : magnitude;
}

void write_number(std::byte* to, DType t, float v) {
  const auto put = [&](auto x) { std::memcpy(to, &x, sizeof x); };
  switch (t.scalar) {
    case Scalar::F64: return put(static_cast<double>(v));
    case Scalar::F32: return put(v);
    case Scalar::F16: return put(f32_to_f16(v));
    default: return put(f32_to_bf16(v));
  }
}

double read_number(const std::byte* from, DType t) {
  const auto get = [&]<class T>(T x) {
    std::memcpy(&x, from, sizeof x);
    return x;
  };
  switch (t.scalar) {
    case Scalar::F64: return get(double{});
    case Scalar::F32: return get(float{});
    case Scalar::F16: return f16_to_f32(get(uint16_t{}));
    default: return bf16_to_f32(get(uint16_t{}));
  }
}

// `poison`: of outputs; `timed`: of lengths.
Bytes contents(const Filling& f, int slot, int poison, bool timed = false) {
  const auto bytes = static_cast<size_t>(f.size) * static_cast<size_t>(f.dtype.size());
  Bytes out(bytes, static_cast<std::byte>(poison));
  if (f.kind == Filling::Kind::Poison) return out;
  SplitMix64 random(static_cast<uint64_t>(slot) + 1);
  const auto width = static_cast<size_t>(f.dtype.size());
  // An odd step visits every number of a power of two; what is beyond the top is left out.
  const uint64_t span = std::bit_ceil(static_cast<uint64_t>(f.top) + 1);
  uint64_t next = 0;
  for (int64_t i = 0; i < f.size; ++i) {
    std::byte* to = out.data() + static_cast<size_t>(i) * width;
    if (f.dtype.is_float()) {
      write_number(to, f.dtype, eighths(random.bits()));
      continue;
    }
    int64_t v = static_cast<int64_t>(random.bits() % (f.dtype.is_bool() ? 2 : 8));
    if (f.kind == Filling::Kind::Length) {
      v = timed ? f.top : f.low;
    } else if (f.kind == Filling::Kind::Indices && f.distinct) {
      do next = (next + (span / 3 | 1)) % span;
      while (next > static_cast<uint64_t>(f.top));
      v = static_cast<int64_t>(next);
    } else if (f.kind == Filling::Kind::Indices) {
      v = static_cast<int64_t>(random.bits() % (static_cast<uint64_t>(f.top) + 1));
    }
    v = std::min(v, int_max(f.dtype));
    std::memcpy(to, &v, width);  // little endian, as all devices are
  }
  return out;
}

// How one buffer's content differs from another's where `known`.
struct Difference {
  double most = 0;      // of finite numbers, in units of `scale`
  int64_t at = -1;      // the element of `most`, or one that is no number in one of them only
  bool broken = false;  // at such an element, or integers differ
};

class LocalBench : public Bench {
 public:
  ~LocalBench() override { drop(); }

  void prepare(const KernelCase& kernel) override {
    drop();
    case_ = kernel;
    device_ = &find_device(kernel.device);
    for (size_t i = 0; i < kernel.buffers.size(); ++i) {
      const Filling& f = kernel.buffers[i];
      void* memory = device_->alloc(bytes_of(f));
      memory_.push_back({memory, bytes_of(f)});
    }
    for (size_t i = 0; i < memory_.size(); ++i) fill(i, kPoison[0], true);
    for (const Memory& m : memory_) args_.push_back(m.data);
  }

  Measured run(const BenchJob& job) override {
    try {
      const auto program = device_->load(job.binary, job.entry);
      Measured out;
      if (job.role == Role::Flush)
        set_flush(job);
      else if (job.role == Role::Reference)
        set_reference(*program, job.size);
      else
        out = measure(*program, job);
      device_->synchronize();
      return out;
    } catch (const std::exception& e) {
      return {Outcome::Failed, 0, 0, 0, e.what()};
    }
  }

 private:
  struct Memory {
    void* data;
    size_t bytes;
  };
  struct Expected {  // of a written buffer
    Bytes bytes;
    std::vector<bool> known;  // by element: the reference has computed it
    double scale = 1;         // of its numbers
    double noise = 0;         // allowed, in units of scale
  };
  static constexpr int kPoison[3] = {0xFF, 0x5A, 0xA5};

  static size_t bytes_of(const Filling& f) {
    return static_cast<size_t>(f.size) * static_cast<size_t>(f.dtype.size());
  }

  void drop() {
    if (!device_) return;
    for (const Memory& m : memory_) device_->free(m.data, m.bytes);
    for (const Memory& m : flush_memory_) device_->free(m.data, m.bytes);
    memory_.clear();
    flush_memory_.clear();
    args_.clear();
    flush_.reset();
    expected_.clear();
  }

  // --- what is computed --------------------------------------------------------------------------

  void fill(size_t i, int poison, bool timed) {
    const Bytes bytes = contents(case_.buffers[i], static_cast<int>(i), poison, timed);
    device_->upload(memory_[i].data, bytes.data(), bytes.size());
  }
  void refill(int poison) {
    for (size_t i = 0; i < memory_.size(); ++i)
      if (case_.buffers[i].written) fill(i, poison, false);
  }
  void set_lengths(bool timed) {
    for (size_t i = 0; i < memory_.size(); ++i)
      if (case_.buffers[i].kind == Filling::Kind::Length) fill(i, 0, timed);
  }

  Bytes content(size_t i) {
    Bytes out(memory_[i].bytes);
    device_->download(out.data(), memory_[i].data, out.size());
    return out;
  }

  // Runs with two poisons: what differs then was not computed.
  void set_reference(Program& program, const LaunchSize& size) {
    set_lengths(false);
    std::vector<Bytes> first(memory_.size());
    for (int run : {0, 1}) {
      refill(kPoison[run]);
      device_->launch(program, size, args_);
      device_->synchronize();
      for (size_t i = 0; i < memory_.size(); ++i)
        if (case_.buffers[i].written && run == 0) first[i] = content(i);
    }
    for (size_t i = 0; i < memory_.size(); ++i)
      if (case_.buffers[i].written)
        expected_[i] = expect_of(case_.buffers[i], first[i], content(i));
    set_lengths(true);
  }

  static Expected expect_of(const Filling& f, const Bytes& a, Bytes b) {
    Expected out;
    const auto width = static_cast<size_t>(f.dtype.size());
    double most = 0;
    for (size_t i = 0; i < static_cast<size_t>(f.size); ++i) {
      out.known.push_back(std::memcmp(&a[i * width], &b[i * width], width) == 0);
      if (!out.known.back() || !f.dtype.is_float()) continue;
      const double v = std::abs(read_number(&b[i * width], f.dtype));
      if (std::isfinite(v)) most = std::max(most, v);
    }
    out.scale = std::max(most, 1e-3);
    out.bytes = std::move(b);
    return out;
  }

  // Errors of one rounding to the dtype are no difference.
  static Difference compare(const Filling& f, const Expected& e, const Bytes& got) {
    Difference out;
    const auto width = static_cast<size_t>(f.dtype.size());
    const double rounding = f.dtype == kF16 ? 0x1p-10 : f.dtype == kBF16 ? 0x1p-7 : 0;
    for (size_t i = 0; i < e.known.size(); ++i) {
      const std::byte *a = &e.bytes[i * width], *b = &got[i * width];
      if (!e.known[i] || std::memcmp(a, b, width) == 0) continue;
      const double x = f.dtype.is_float() ? read_number(a, f.dtype) : 0,
                   y = f.dtype.is_float() ? read_number(b, f.dtype) : 1;
      if (std::isnan(x) && std::isnan(y)) continue;
      const double d =
          std::max(0.0, std::abs(x - y) - rounding * std::max(std::abs(x), std::abs(y))) / e.scale;
      if (!f.dtype.is_float() || !std::isfinite(d)) return {d, static_cast<int64_t>(i), true};
      if (d > out.most) out = {d, static_cast<int64_t>(i), false};
    }
    return out;
  }

  // Roundings of a sum in another order, in proportion to the root of its length, and what other
  // functions make of them.
  double most_noise(DType t) const {
    const double unit = t == kF64 ? 0x1p-52 : 0x1p-23;
    return unit * (512 + 64 * std::sqrt(case_.longest_sum));
  }

  std::string mismatch(size_t i, const Difference& d, const Bytes& got) const {
    const Filling& f = case_.buffers[i];
    const auto at = static_cast<size_t>(d.at) * static_cast<size_t>(f.dtype.size());
    const auto shown = [&](const Bytes& bytes) {
      if (f.dtype.is_float()) {
        std::ostringstream text;
        text.precision(9);
        text << read_number(&bytes[at], f.dtype);
        return text.str();
      }
      int64_t v = 0;
      std::memcpy(&v, &bytes[at], static_cast<size_t>(f.dtype.size()));
      return cat(v);
    };
    return cat("element ", d.at, " of buffer ", i, " is ", shown(got), ", not ",
               shown(expected_.at(i).bytes));
  }

  // Runs once on poisoned outputs and compares them: nearly to the bit where no order of sums can
  // make a difference and the baseline shows none.
  void verify(Program& program, const BenchJob& job, Measured& out) {
    refill(kPoison[2]);
    set_lengths(false);
    device_->launch(program, job.size, args_);
    device_->synchronize();
    for (auto& [i, e] : expected_) {
      const Filling& f = case_.buffers[i];
      const Bytes got = content(i);
      const Difference d = compare(f, e, got);
      const bool baseline = job.role == Role::Baseline;
      if (baseline) {
        const double unit = f.dtype == kF64 ? 0x1p-52 : 0x1p-23;
        e.noise = case_.exact && d.most == 0 ? 4 * unit : most_noise(f.dtype);
      }
      if (!d.broken && d.most <= e.noise) continue;
      out.outcome = Outcome::Wrong;
      out.text = mismatch(i, d, got);
    }
    if (expected_.empty()) expect_from_here();
    set_lengths(true);
  }

  // Without a reference the baseline is one.
  void expect_from_here() {
    for (size_t i = 0; i < memory_.size(); ++i) {
      const Filling& f = case_.buffers[i];
      if (!f.written) continue;
      const Bytes got = content(i);
      expected_[i] = expect_of(f, got, got);
      expected_[i].noise = most_noise(f.dtype);
    }
  }

  // --- time --------------------------------------------------------------------------------------

  void set_flush(const BenchJob& job) {
    flush_ = device_->load(job.binary, job.entry);
    flush_size_ = job.size;
    const size_t bytes = static_cast<size_t>(job.elements) * sizeof(float);
    for (int i = 0; i < 2; ++i) flush_memory_.push_back({device_->alloc(bytes), bytes});
    const Bytes zeros(bytes);
    for (const Memory& m : flush_memory_) device_->upload(m.data, zeros.data(), bytes);
  }

  double timed(Program& program, const LaunchSize& size) {
    if (flush_)
      device_->launch(*flush_, flush_size_, {flush_memory_[0].data, flush_memory_[1].data});
    return device_->launch_timed(program, size, args_);
  }

  Measured measure(Program& program, const BenchJob& job) {
    constexpr double kHopeless = 3, kWorse = 1.2;
    constexpr int kFewest = 4, kMost = 25;
    Measured out;
    std::vector<double> times = {device_->launch_timed(program, job.size, args_)};  // code is warm
    const bool hopeless = job.best > 0 && times[0] > kHopeless * job.best + 1e-4;
    if (!hopeless) times.clear();
    double sum = 0;
    while (!hopeless && static_cast<int>(times.size()) < kMost) {
      times.push_back(timed(program, job.size));
      sum += times.back();
      const auto runs = static_cast<int>(times.size());
      // Short ones often enough to have met a quiet moment.
      if (sum < 1 && (runs < kFewest || (runs < 2 * kFewest && sum < 1e-3))) continue;
      const double least = *std::min_element(times.begin(), times.end());
      if (sum > job.enough || (job.best > 0 && least > kWorse * job.best)) break;
    }
    std::sort(times.begin(), times.end());
    out.least = times.front();
    out.median = times[times.size() / 2];
    out.runs = static_cast<int>(times.size());
    if (job.role == Role::Baseline || out.least <= job.verify)
      verify(program, job, out);
    else
      out.outcome = Outcome::Slow;
    return out;
  }

  KernelCase case_;
  Device* device_ = nullptr;
  std::vector<Memory> memory_, flush_memory_;
  std::vector<void*> args_;
  std::unique_ptr<Program> flush_;
  LaunchSize flush_size_;
  std::map<size_t, Expected> expected_;  // by slot
};

}  // namespace

std::unique_ptr<Bench> local_bench() { return std::make_unique<LocalBench>(); }

}  // namespace tiny
