#include "runtime/search/bench.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>

#include "runtime/device/trace.h"
#include "tiny/base/error.h"
#include "tiny/base/splitmix.h"
#include "tiny/base/text.h"

namespace tiny {

namespace {

std::atomic<double> counted_step{0};  // 0: budgets are of the machine's time
std::atomic<double> least_limit{0};
std::atomic<int64_t> looks{0};

}  // namespace

double budget_seconds() {
  const double step = counted_step;
  return step > 0 ? step * static_cast<double>(++looks) : steady_seconds();
}

CountedBudgets::CountedBudgets(double step, double least)
    : outer_step_(counted_step.exchange(step)), outer_least_(least_limit.exchange(least)) {}
CountedBudgets::~CountedBudgets() {
  counted_step = outer_step_;
  least_limit = outer_least_;
}

double process_limit(double seconds) { return std::max<double>(seconds, least_limit); }

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
    case Scalar::F8E4M3:
    case Scalar::F8E5M2: return put(f32_to_f8(v, t.scalar));
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
    case Scalar::F8E4M3:
    case Scalar::F8E5M2: return f8_to_f32(get(uint8_t{}), t.scalar);
    case Scalar::F16: return f16_to_f32(get(uint16_t{}));
    default: return bf16_to_f32(get(uint16_t{}));
  }
}

// The values that a buffer repeats: a prime number of them, which no size of a kernel divides, so
// that large buffers are filled in no time. `timed`: of lengths.
Bytes pattern(const Filling& f, int slot, bool timed) {
  constexpr int64_t kPeriod = 65537;
  const auto width = static_cast<size_t>(f.dtype.size());
  Bytes out(static_cast<size_t>(f.distinct ? f.size : std::min(f.size, kPeriod)) * width);
  SplitMix64 random(static_cast<uint64_t>(slot) + 1);
  // An odd step visits every number of a power of two; numbers beyond the top are skipped.
  const uint64_t top = static_cast<uint64_t>(f.top), span = std::bit_ceil(top + 1);
  uint64_t next = 0;
  const auto integer = [&]() -> int64_t {
    if (f.kind == Filling::Kind::Length) return timed ? f.top : f.low;
    if (f.kind != Filling::Kind::Indices)
      return static_cast<int64_t>(random.bits() % (f.dtype.is_bool() ? 2 : 8));
    if (!f.distinct) return static_cast<int64_t>(random.bits() % (top + 1));
    do next = (next + (span / 3 | 1)) % span;
    while (next > top);
    return static_cast<int64_t>(next);
  };
  for (size_t at = 0; at < out.size(); at += width) {
    if (f.dtype.is_float()) {
      write_number(&out[at], f.dtype, eighths(random.bits()));
    } else {
      const int64_t v = std::min(integer(), int_max(f.dtype));
      std::memcpy(&out[at], &v, width);  // little endian, as all devices are
    }
  }
  return out;
}

// The compared elements of a buffer, from `begin`; all of small ones.
struct Window {
  size_t begin, count;
};
std::vector<Window> windows_of(const Filling& f) {
  constexpr size_t kWhole = 1 << 21, kCount = 64, kWidth = 1 << 14;
  const auto size = static_cast<size_t>(f.size);
  if (size <= kWhole) return {{0, size}};
  std::vector<Window> out;
  for (size_t i = 0; i < kCount; ++i) out.push_back({i * (size - kWidth) / (kCount - 1), kWidth});
  return out;
}

constexpr int kPoison[3] = {0xFF, 0x5A, 0xA5};

// The buffers of a kernel on its device.
class CaseMemory {
 public:
  CaseMemory() = default;
  CaseMemory(const CaseMemory&) = delete;
  CaseMemory& operator=(const CaseMemory&) = delete;
  ~CaseMemory() { drop(); }

  // In place of the last one's.
  void hold(const KernelCase& kernel) {
    drop();
    case_ = kernel;
    device_ = &find_device(kernel.device);
    for (size_t i = 0; i < kernel.buffers.size(); ++i) {
      const Filling& f = kernel.buffers[i];
      const size_t bytes = static_cast<size_t>(f.size) * width(i);
      pieces_.push_back({static_cast<std::byte*>(device_->alloc(bytes)), bytes, windows_of(f)});
      args_.push_back(pieces_.back().data);
      fill(i, kPoison[0], true);
    }
  }

  const KernelCase& kernel() const { return case_; }
  Device& device() const { return *device_; }
  const std::vector<void*>& args() const { return args_; }

  // What is written, as it is before a run.
  void refill(int poison) {
    for (size_t i = 0; i < pieces_.size(); ++i)
      if (case_.buffers[i].written) fill(i, poison, false);
  }
  void set_lengths(bool timed) {
    for (size_t i = 0; i < pieces_.size(); ++i)
      if (case_.buffers[i].kind == Filling::Kind::Length) fill(i, 0, timed);
  }

  // The compared windows of a buffer, one after the other.
  Bytes content(size_t i) const {
    Bytes out;
    for (const Window& w : pieces_[i].windows) {
      const size_t at = out.size(), bytes = w.count * width(i);
      out.resize(at + bytes);
      device_->download(&out[at], pieces_[i].data + w.begin * width(i), bytes);
    }
    return out;
  }
  // The buffer's element that stands at that place of its content.
  size_t element(size_t i, size_t place) const {
    const Window* w = pieces_[i].windows.data();
    for (; place >= w->count; ++w) place -= w->count;
    return w->begin + place;
  }

 private:
  struct Piece {
    std::byte* data;
    size_t bytes;
    std::vector<Window> windows;
  };

  size_t width(size_t i) const { return static_cast<size_t>(case_.buffers[i].dtype.size()); }

  void drop() {
    for (const Piece& p : pieces_) device_->free(p.data, p.bytes);
    pieces_.clear();
    args_.clear();
  }

  void fill(size_t i, int poison, bool timed) {
    const Filling& f = case_.buffers[i];
    const Piece& p = pieces_[i];
    if (f.kind == Filling::Kind::Poison) {
      for (const Window& w : p.windows) {
        const Bytes bytes(w.count * width(i), static_cast<std::byte>(poison));
        device_->upload(p.data + w.begin * width(i), bytes.data(), bytes.size());
      }
      return;
    }
    const Bytes first = pattern(f, static_cast<int>(i), timed);
    device_->upload(p.data, first.data(), first.size());
    for (size_t done = first.size(); done < p.bytes; done *= 2)
      device_->copy(p.data + done, p.data, std::min(done, p.bytes - done));
  }

  KernelCase case_;
  Device* device_ = nullptr;
  std::vector<Piece> pieces_;  // by slot
  std::vector<void*> args_;
};

// How one buffer's content differs from another's where `known`.
struct Difference {
  double most = 0;      // of finite numbers, in units of `scale`
  int64_t at = -1;      // the element of `most`, or one that is no number in one of them only
  bool broken = false;  // at such an element, or integers differ
};

// What a buffer's windows have to be.
struct Expected {
  Bytes bytes;
  std::vector<bool> known;  // by element: the reference has computed it
  double scale = 1;         // of its numbers
  double noise = 0;         // allowed, in units of scale
};

// `known`: elements of `a` and `b` that are the same, or that differ.
Expected expect_of(const Filling& f, const Bytes& a, Bytes b, bool same = true) {
  Expected out;
  const auto width = static_cast<size_t>(f.dtype.size());
  double most = 0;
  for (size_t i = 0; i < b.size() / width; ++i) {
    const bool known = (std::memcmp(&a[i * width], &b[i * width], width) == 0) == same;
    out.known.push_back(known);
    if (!known || !f.dtype.is_float()) continue;
    const double v = std::abs(read_number(&b[i * width], f.dtype));
    if (std::isfinite(v)) most = std::max(most, v);
  }
  out.scale = std::max(most, 1e-3);
  out.bytes = std::move(b);
  return out;
}

// Errors of one rounding to the dtype are no difference.
Difference compare(const Filling& f, const Expected& e, const Bytes& got) {
  constexpr size_t kBlock = 4096;  // elements that are mostly the same
  Difference out;
  const auto width = static_cast<size_t>(f.dtype.size());
  const double rounding = f.dtype == kF16 ? 0x1p-10 : f.dtype == kBF16 ? 0x1p-7 : 0;
  for (size_t i = 0; i < e.known.size(); ++i) {
    const std::byte *a = &e.bytes[i * width], *b = &got[i * width];
    if (i % kBlock == 0 && i + kBlock < e.known.size() && std::memcmp(a, b, kBlock * width) == 0) {
      i += kBlock - 1;
      continue;
    }
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

// Elements that the reference skips are taken from the baseline.
void learn(const Filling& f, Expected& e, const Bytes& got) {
  const auto width = static_cast<size_t>(f.dtype.size());
  for (size_t i = 0; i < e.known.size(); ++i) {
    if (e.known[i]) continue;
    std::memcpy(&e.bytes[i * width], &got[i * width], width);
    e.known[i] = true;
    const double v = f.dtype.is_float() ? std::abs(read_number(&got[i * width], f.dtype)) : 0;
    if (std::isfinite(v)) e.scale = std::max(e.scale, v);
  }
}

// What a kernel's buffers are to hold after a run, by what its reference and its baseline left
// there.
class Verifier {
 public:
  explicit Verifier(CaseMemory& memory) : memory_(memory) {}

  void forget() { expected_.clear(); }

  // Runs with two poisons: what differs then was not computed. Nor was, of what is partly written
  // or read too, what a part of the kernel leaves as it was.
  void set_reference(const std::function<void()>& run, bool part) {
    const std::vector<Filling>& buffers = memory_.kernel().buffers;
    memory_.set_lengths(false);
    std::map<size_t, Bytes> first;
    for (int turn : {0, 1}) {
      memory_.refill(kPoison[turn]);
      for (auto& [i, e] : first)
        if (part && buffers[i].kind != Filling::Kind::Poison) first[i] = memory_.content(i);
      run();
      for (size_t i = 0; i < buffers.size(); ++i)
        if (buffers[i].written && turn == 0) first[i] = memory_.content(i);
    }
    for (const auto& [i, bytes] : first) {
      const bool changes = part && buffers[i].kind != Filling::Kind::Poison;
      expected_[i] = expect_of(buffers[i], bytes, memory_.content(i), !changes);
    }
    memory_.set_lengths(true);
  }

  // Runs once on poisoned outputs and compares them: nearly to the bit where no order of sums can
  // make a difference and the baseline shows none.
  void verify(const std::function<void()>& run, bool is_baseline, Measured& out) {
    const KernelCase& kernel = memory_.kernel();
    memory_.refill(kPoison[2]);
    memory_.set_lengths(false);
    run();
    for (auto& [i, e] : expected_) {
      const Filling& f = kernel.buffers[i];
      const Bytes got = memory_.content(i);
      const Difference d = compare(f, e, got);
      if (is_baseline) e.noise = kernel.exact && d.most == 0 ? 4 * kernel.fine : most_noise();
      if (!d.broken && d.most <= e.noise) {
        if (is_baseline) learn(f, e, got);
        continue;
      }
      out.outcome = Outcome::Wrong;
      out.text = mismatch(i, d, got);
    }
    if (expected_.empty()) expect_from_here();
    memory_.set_lengths(true);
  }

 private:
  // Roundings of a sum in another order, in proportion to the root of its length, and what other
  // functions make of them.
  double most_noise() const {
    const KernelCase& k = memory_.kernel();
    return k.fine * (512 + 64 * std::sqrt(k.longest_sum)) + 4 * k.coarse;
  }

  std::string mismatch(size_t i, const Difference& d, const Bytes& got) const {
    const Filling& f = memory_.kernel().buffers[i];
    const auto at = static_cast<size_t>(d.at) * static_cast<size_t>(f.dtype.size());
    const auto shown = [&](const Bytes& bytes) {
      if (f.dtype.is_float()) {
        TextStream text;
        text.precision(9);
        text << read_number(&bytes[at], f.dtype);
        return text.str();
      }
      int64_t v = 0;
      std::memcpy(&v, &bytes[at], static_cast<size_t>(f.dtype.size()));
      return cat(v);
    };
    return cat("element ", memory_.element(i, static_cast<size_t>(d.at)), " of buffer ", i, " is ",
               shown(got), ", not ", shown(expected_.at(i).bytes));
  }

  // Without a reference the baseline is one.
  void expect_from_here() {
    const std::vector<Filling>& buffers = memory_.kernel().buffers;
    for (size_t i = 0; i < buffers.size(); ++i) {
      const Filling& f = buffers[i];
      if (!f.written) continue;
      const Bytes got = memory_.content(i);
      expected_[i] = expect_of(f, got, got);
      expected_[i].noise = most_noise();
    }
  }

  CaseMemory& memory_;
  std::map<size_t, Expected> expected_;  // by slot
};

class LocalBench : public Bench {
 public:
  void prepare(const KernelCase& kernel) override {
    verifier_.forget();
    memory_.hold(kernel);
  }

  std::vector<Measured> run(const Race& race) override {
    std::vector<Measured> out(race.jobs.size());
    try {
      std::vector<Runner> runners;
      for (const BenchJob& job : race.jobs)
        runners.push_back({memory_.device().load(job.binary, job.entry), job.size, {}, 0, false});
      if (race.role == Race::Role::Reference) {
        verifier_.set_reference([&] { run_once(runners[0]); }, race.part);
      } else {
        take_turns(race, runners);
        for (size_t i = 0; i < runners.size(); ++i) out[i] = result(race, runners, i);
      }
      memory_.device().synchronize();
    } catch (const std::exception& e) {
      out.assign(out.size(), {is_usable() ? Outcome::Failed : Outcome::Crashed, 0, 0, e.what()});
    }
    return out;
  }

 private:
  // After some faults a GPU refuses whatever this process asks for.
  bool is_usable() {
    try {
      memory_.device().synchronize();
      return true;
    } catch (const std::exception&) {
      return false;
    }
  }

  struct Runner {
    std::unique_ptr<Program> program;
    LaunchSize size;
    std::vector<double> times;
    double least = 0;
    bool out = false;  // clearly slower than another
  };

  void run_once(const Runner& r) {
    memory_.device().launch(*r.program, r.size, memory_.args());
    memory_.device().synchronize();
  }

  // Cold caches for a CPU: as much is written as they hold, by this thread, since to wait for
  // others takes long on a machine with more to do. GPUs do it themselves.
  void cool() {
    const Target& target = memory_.device().target();
    if (target.kind != Target::Kind::Cpu) return;
    cold_.resize(static_cast<size_t>(2 * target.l2_bytes));
    std::memset(cold_.data(), ++turn_, cold_.size());
  }

  double time(const Runner& r) {
    cool();
    const LaunchItem item{r.program.get(), r.size, memory_.args()};
    return memory_.device().launch_timed({&item, 1});
  }

  // Until all but the fastest have given up, or each has been timed enough: at least eight times,
  // so that all have met a quiet moment, less often where a run takes long.
  void take_turns(const Race& race, std::vector<Runner>& runners) {
    constexpr double kLong = 0.005;
    constexpr size_t kMax = 60;
    const double hopeless = (race.known > kLong ? 1.5 : 3) * race.known + 1e-4;
    for (size_t i = runners.size(); i-- > 0;) {  // code is warm then, and what is hopeless is out
      Runner& r = runners[i];
      for (int run = 0; run < 2 && !(run && r.least < hopeless); ++run) r.least = time(r);
      r.out = i > 0 && race.known > 0 && !race.all && r.least > hopeless;
      if (r.out) return;
    }
    double sum = 0;
    for (size_t turn = 0; turn < kMax; ++turn) {
      double best = 1e300;
      for (Runner& r : runners) {
        if (r.out) continue;
        r.times.push_back(time(r));
        r.least = r.times.size() == 1 ? r.times[0] : std::min(r.least, r.times.back());
        best = std::min(best, r.least);
        sum += r.times.back();
      }
      const double margin = turn < 2 && best < kLong ? 2 : turn < 5 ? 1.3 : 1.1;
      size_t left = 0;
      for (size_t i = 0; i < runners.size(); ++i) {
        Runner& r = runners[i];
        r.out = r.out || (i > 0 && !race.all && r.least > margin * best);
        left += !r.out;
      }
      const size_t fewest = best > kLong ? 3 : 8;
      if (left < 2 && runners.size() > 1) break;
      // A candidate better here but not better than the best known has not met a quiet moment yet.
      const bool unlucky = runners.size() > 1 && runners[1].least < runners[0].least &&
                           runners[1].least > race.known;
      const double enough = static_cast<double>(runners.size() * (unlucky ? 3 : 1)) * race.enough;
      if (turn + 1 >= fewest && sum > enough) break;
    }
  }

  Measured result(const Race& race, std::vector<Runner>& runners, size_t i) {
    Runner& r = runners[i];
    std::ranges::sort(r.times);
    const double median = r.times.empty() ? r.least : r.times[r.times.size() / 2];
    Measured out{Outcome::Good, r.least, median, ""};
    const bool is_baseline = race.role == Race::Role::Baseline;
    if (is_baseline || (i > 0 && out.least <= race.verify && !r.times.empty()))
      verifier_.verify([&] { run_once(r); }, is_baseline, out);
    else if (i > 0)
      out.outcome = Outcome::Slow;
    return out;
  }

  CaseMemory memory_;
  Verifier verifier_{memory_};
  std::vector<char> cold_;
  unsigned char turn_ = 0;
};

}  // namespace

std::unique_ptr<Bench> local_bench() { return std::make_unique<LocalBench>(); }

}  // namespace tiny
