#include "test/programs/check.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <random>
#include <sstream>

#include "test/little_memory.h"
#include "tiny/base/error.h"

namespace tiny::programs {

namespace {

// The words of a setting in force.
class InForce {
 public:
  explicit InForce(const std::string& setting) {
    std::istringstream in(setting);
    for (std::string word; in >> word;) {
      const size_t at = word.find('=');
      if (at == word.npos) continue;
      std::string value = word.substr(at + 1);
      if (word.starts_with("DEVICE=") && value.find(',') != value.npos) {
        std::istringstream names(value);
        for (std::string name; std::getline(names, name, ',');) devices.push_back(name);
        value = "CPU";
      }
      overrides_.push_back(std::make_unique<EnvOverride>(word.substr(0, at), value));
    }
  }
  ~InForce() {
    while (!overrides_.empty()) overrides_.pop_back();
  }
  std::vector<std::string> devices;

 private:
  std::vector<std::unique_ptr<EnvOverride>> overrides_;
};

bool has_word(const std::string& setting, const std::string& word) {
  return (" " + setting + " ").find(" " + word + " ") != std::string::npos;
}

HostTensor on_host(const Tensor& t) {
  HostTensor out(t.dtype(), t.shape());
  t.to_bytes(out.data.data());
  return out;
}

std::vector<HostTensor> reference(std::span<const Tensor> tensors) {
  std::vector<Node> roots;
  for (const Tensor& t : tensors) roots.push_back(t.node());
  return evaluate(roots);
}

// The rounding error of the coarsest float among the values.
double unit_of(std::span<const Tensor> values) {
  double unit = 0x1p-53;
  for (const Tensor& v : values) {
    if (!v.defined() || !v.dtype().is_float()) continue;
    const DType t = v.dtype();
    unit = std::max(unit, t == kF64 ? 0x1p-53 : t == kF32 ? 0x1p-24 : t == kF16 ? 0x1p-11 : 0x1p-8);
  }
  return unit;
}

double unit_of(DType t) {
  return t == kF64 ? 0x1p-53 : t == kF32 ? 0x1p-24 : t == kF16 ? 0x1p-11 : 0x1p-8;
}

double magnitude(const HostTensor& t) {
  double out = 0;
  for (double v : t.numbers())
    if (std::isfinite(v)) out = std::max(out, std::abs(v));
  return out;
}

// The largest distance, with its position; infinite for a NaN on one side, and for different
// values that are no floats.
struct Distance {
  double worst = 0;
  size_t at = 0;
};
Distance distance(const HostTensor& a, const HostTensor& b) {
  Distance out;
  const auto x = a.numbers(), y = b.numbers();
  for (size_t i = 0; i < x.size(); ++i) {
    if (x[i] == y[i] || (std::isnan(x[i]) && std::isnan(y[i]))) continue;
    double off = std::abs(x[i] - y[i]);
    if (!std::isfinite(off) || !a.dtype.is_float()) off = INFINITY;
    if (off > out.worst) out = {off, i};
  }
  return out;
}

bool is_integral(const HostTensor& t) {
  for (double v : t.numbers())
    if (v != std::floor(v) || std::abs(v) > 256) return false;
  return true;
}

// Whether a step asks for the values of what no leaf leads to, which would lie on one device.
bool realizes_constants(const Program& program) {
  std::vector<bool> from_leaf;
  for (const Step& s : program.steps) {
    bool any = has(row_of(s), 'l'), all = true;
    for (int i : s.in) {
      any |= from_leaf[static_cast<size_t>(i)];
      all &= from_leaf[static_cast<size_t>(i)];
    }
    if (s.row == row_named("realize") && !all) return true;
    from_leaf.push_back(any);
  }
  return false;
}

}  // namespace

const std::vector<HostTensor>& Checker::wanted() {
  if (!wanted_) {
    const EnvOverride device("DEVICE", "CPU");
    wanted_ = reference(build(program_, {.realizes = false, .leaf = leaf_}).results);
  }
  return *wanted_;
}

// The value, off by a few units of itself and of what it is made from. Values that are only moved
// keep the disturbance of what they come from, so that a value stays equal to its copies; they get
// one of their own where a value may be computed `again`, in another order of its sums. Without
// `random`, values that are a few units apart become one: they are rounded to a grid, of which
// `again` takes the places between.
Tensor Checker::disturbed(size_t n, const Tensor& v, std::vector<double>& largest,
                          std::mt19937_64* random, bool again) const {
  const Step& s = program_.steps[n];
  if (!v.dtype().is_float() || v.numel() == 0) return v;
  const HostTensor value = evaluate(v.detach().node());
  largest[n] = magnitude(value);
  if ((has(row_of(s), 'm') && !again) || (has(row_of(s), 'e') && is_integral(value))) return v;
  if (!random) {  // one grid for values of different steps that are to meet
    const double all = *std::max_element(largest.begin(), largest.end());
    if (!(all > 0) || !std::isfinite(all)) return v;
    const double grid = std::exp2(std::ceil(std::log2(all))) * unit_of(v.dtype()) * 16;
    const double shift = again ? 0.5 : 0;
    const Tensor places = (v.detach().to(kF64) / grid + shift).round() - shift;
    return v - v.detach() + (places * grid).to(v.dtype());
  }
  double scale = largest[n];
  for (int i : s.in) scale = std::max(scale, largest[static_cast<size_t>(i)]);
  std::vector<double> factors, terms;
  const auto units = [&] {
    return unit_of(v.dtype()) * (static_cast<double>((*random)() % 17) - 8);
  };
  for (int64_t i = 0; i < v.numel(); ++i) {
    factors.push_back(1 + units());
    terms.push_back(scale * units());
  }
  const auto like = [&](const std::vector<double>& values) {
    return Tensor::from(values, to_shape(v.shape())).to(v.dtype());
  };
  return v * like(factors) + like(terms);
}

// How far a result moves when each value that was rounded is disturbed by a few units: the most of
// several tries.
double Checker::spread(size_t result) {
  constexpr int kTries = 7;
  if (disturbed_.empty()) {
    const EnvOverride device("DEVICE", "CPU");
    const bool realizes = std::any_of(program_.steps.begin(), program_.steps.end(),
                                      [](const Step& s) { return s.row == row_named("realize"); });
    for (int turn = 0; turn < kTries; ++turn) {
      std::mt19937_64 random(static_cast<uint64_t>(turn) + program_.seed);
      std::vector<double> largest(program_.steps.size(), 0);
      const auto disturb = [&](size_t n, const Tensor& v) {
        const bool merges = turn < 2, again = (merges || realizes) && turn % 2;
        return disturbed(n, v, largest, merges ? nullptr : &random, again);
      };
      disturbed_.push_back(
          reference(build(program_, {.realizes = false, .leaf = leaf_, .made = disturb}).results));
    }
  }
  double most = 0;
  for (const auto& other : disturbed_)
    most = std::max(most, distance(other[result], wanted()[result]).worst);
  return most;
}

std::string Checker::compare_all(const std::vector<std::string>& devices, bool little_memory) {
  if (!devices.empty() && realizes_constants(program_)) return left_out();
  for (const Step& s : program_.steps)  // random numbers come from one device
    if (!devices.empty() && has(row_of(s), 'r')) return left_out();
  Built built = build(program_, {.realizes = !little_memory, .devices = devices, .made = fault_});
  if (little_memory) {
    std::vector<Tensor*> together;
    for (Tensor& t : built.results) together.push_back(&t);
    test::realize_in_little_memory(together);
  }
  realize_results(program_, built.results);
  if (built.results.size() != wanted().size())
    return cat(built.results.size(), " results and not ", wanted().size());
  const double unit = unit_of(built.values);
  for (size_t i = 0; i < built.results.size(); ++i) {
    const bool several = !devices.empty();
    const Tensor result = several ? built.results[i].to("CPU") : built.results[i];
    if (const std::string text = compare(i, on_host(result), unit); !text.empty()) return text;
  }
  return "";
}

// One result against the reference, in a program whose coarsest float rounds by `unit`.
std::string Checker::compare(size_t i, const HostTensor& got, double unit) {
  const HostTensor& want = wanted()[i];
  if (got.dtype != want.dtype || got.shape != want.shape)
    return cat("result ", i, " is ", got.dtype, ' ', to_text(got.shape), " and not ", want.dtype,
               ' ', to_text(want.shape));
  const Distance off = distance(got, want);
  const double share = std::min(unit * 1e5, std::max(32 * unit, 6e-4));
  const double base = share * std::max(1.0, magnitude(want));
  if (off.worst <= base) return "";
  const double moved = spread(i);
  if (off.worst <= base + 32 * moved) {
    tie_ = true;
    return "";
  }
  const size_t outputs = program_.outputs.size();
  return cat(i < outputs ? "output " : "gradient ", i < outputs ? i : i - outputs, " [", off.at,
             "]: ", got.numbers()[off.at], " and not ", want.numbers()[off.at],
             ", rounding moves it by ", moved);
}

// The leaves of one first size cut to a length that varies under a Jit, against leaves that are
// cut on the host. Programs that cannot have such an axis are left out.
std::string Checker::compare_lengths() {
  const Step* const longest = longest_leaf();
  if (!longest) return left_out();
  const int64_t most = longest->a[0];
  const auto varies = [&](const Step& s) { return !s.a.empty() && s.a[0] == most; };
  std::vector<Tensor> leaves;
  for (const Step& s : program_.steps)
    if (has(row_of(s), 'l')) leaves.push_back(leaf(s.a, s.t, s.seed, s.i, s.j));
  const auto body = [&](const std::vector<Tensor>& in, const Variable& n) {
    size_t next = 0;
    const auto given = [&](const Step& s) {
      const Tensor& whole = in[next++];
      return varies(s) ? whole.narrow(0, 0, n) : whole;
    };
    return build(program_, {.realizes = false, .leaf = given}).results;
  };
  Jit step(body);
  const Variable n("n", 1, most);
  for (int64_t length : {most, most / 2 + 1, int64_t{1}, most - 1}) {
    Checker cut(program_);
    cut.leaf_ = [&](const Step& s) {
      const Tensor whole = leaf(s.a, s.t, s.seed, s.i, s.j);
      return varies(s) ? whole.narrow(0, 0, length) : whole;
    };
    try {
      cut.wanted();
      body(leaves, n.bind(length));
    } catch (const Error&) {
      return left_out();  // a step that needs the size itself
    }
    const std::vector<Tensor> got = step(leaves, n.bind(length));
    const double unit = unit_of(got);
    for (size_t i = 0; i < got.size(); ++i) {
      if (length == 1 && got[i].current_shape().size() > cut.wanted()[i].shape.size())
        return left_out();  // squeeze() of an axis whose length may be 1
      HostTensor host(got[i].dtype(), got[i].current_shape());
      got[i].to_bytes(host.data.data());
      const std::string text = cut.compare(i, host, unit);
      if (!text.empty()) return cat("length ", length, " of ", most, ": ", text);
      tie_ |= cut.tie_;
    }
  }
  return "";
}

// The first leaf whose first axis can be cut; nullptr also for programs that no Jit takes.
const Step* Checker::longest_leaf() const {
  const Step* out = nullptr;
  for (const Step& s : program_.steps) {
    const bool is_leaf = has(row_of(s), 'l');
    if (has(row_of(s), 'r') || (is_leaf && numel(s.a) == 0)) return nullptr;
    if (is_leaf && !out && !s.a.empty() && s.a[0] > 2) out = &s;
  }
  return out;
}

// A function of the leaves that a Jit records and replays.
std::string Checker::compare_replays() {
  // Sums at indices take the order of a GPU's threads, which no two runs share.
  std::optional<EnvOverride> ordered;
  if (!runtime_seam::default_device().starts_with("CPU")) ordered.emplace("DETERMINISTIC", "1");
  for (const Step& s : program_.steps) {
    if (has(row_of(s), 'l') && numel(s.a) == 0) return left_out();  // no argument of a Jit
    if (has(row_of(s), 'r')) return left_out();  // manual_seed has no place in a Jit
  }
  // One leaf in three lies outside: the function assigns to copies of it, and it stays what it is.
  const auto lies_outside = [](const Step& s) { return s.seed % 3 == 0; };
  const auto leaves_of = [&](uint64_t round, bool outside) {
    std::vector<Tensor> out;
    for (const Step& s : program_.steps)
      if (has(row_of(s), 'l') && lies_outside(s) == outside)
        out.push_back(leaf(s.a, s.t, s.seed + round * 7919, s.i, s.j).realize());
    return out;
  };
  const std::vector<Tensor> outside = leaves_of(0, true);
  const auto body = [&](const std::vector<Tensor>& leaves) {
    size_t next = 0, next_outside = 0;
    const auto given = [&](const Step& s) {
      return lies_outside(s) ? outside[next_outside++] : leaves[next++];
    };
    return build(program_, {.realizes = false, .leaf = given}).results;
  };
  Jit step(body);
  for (uint64_t round = 0; round < 4; ++round) {
    const std::vector<Tensor> leaves = leaves_of(round, false);
    // Gone before the plain call: that one would find values of its own there, and compute others
    // from them.
    std::vector<HostTensor> got;
    for (const Tensor& t : step(leaves)) got.push_back(on_host(t));
    std::vector<Tensor> plain = body(leaves);
    std::vector<Tensor*> together;  // as a Jit does: other groups are other kernels
    for (Tensor& t : plain) together.push_back(&t);
    Tensor::realize(together);
    for (size_t i = 0; i < plain.size(); ++i) {
      const HostTensor b = on_host(plain[i]);
      if (got[i].data == b.data) continue;
      const Distance off = distance(got[i], b);
      if (off.worst > 0)
        return cat("call ", round, " of a Jit: result ", i, " is off by ", off.worst);
    }
  }
  return "";
}

// The gradient along a direction, and the quotient of differences, both by the reference.
std::string Checker::compare_slopes() {
  // Whole numbers meet in ties, where a maximum has a slope to each side.
  for (const Step& step : program_.steps)
    if (has(row_of(step), 'l') && (step.i || step.j)) return left_out();
  if (!program_.gradient) return left_out();
  for (const Step& s : program_.steps)
    if (has(row_of(s), 's') || (has(row_of(s), 'l') && s.t != kF64 && s.t.is_float()))
      return left_out();
  const EnvOverride device("DEVICE", "CPU");
  for (int turn = 0; turn < 4; ++turn) {
    std::vector<std::vector<double>> direction;
    std::mt19937_64 random(program_.seed + static_cast<uint64_t>(turn));
    const auto loss_at = [&](double h) {
      size_t next = 0;
      const Built built =
          build(program_, {.realizes = false, .made = [&](size_t n, const Tensor& v) {
                             if (!wants_gradient(program_, program_.steps[n])) return v;
                             if (next == direction.size()) {
                               auto& d = direction.emplace_back(static_cast<size_t>(v.numel()));
                               for (double& x : d)
                                 x = static_cast<double>(random() % 2001) * 1e-3 - 1;
                             }
                             std::vector<double> values = v.to_vector<double>();
                             for (size_t i = 0; i < values.size(); ++i)
                               values[i] += h * direction[next][i];
                             ++next;
                             return Tensor::from(values, to_shape(v.shape()), "CPU");
                           }});
      return built.loss.defined() ? evaluate(built.loss.node()).numbers()[0] : 0.0;
    };
    const double h = turn % 2 ? 1e-5 : 1e-6;
    const double quotient = (loss_at(h) - loss_at(-h)) / (2 * h);
    double slope = 0;
    const size_t first = program_.outputs.size();
    for (size_t i = first; i < wanted().size(); ++i) {
      const auto g = wanted()[i].numbers();
      for (size_t e = 0; e < g.size(); ++e) slope += g[e] * direction[i - first][e];
    }
    if (!std::isfinite(slope) || std::abs(slope - quotient) <= 1e-3 * (1 + std::abs(slope)))
      return "";
    double moved = 0;
    for (size_t i = first; i < wanted().size(); ++i) moved += spread(i);
    if (moved > 1e-6) return "";
    if (turn == 3) return cat("the gradient's slope is ", slope, ", the quotient ", quotient);
  }
  return "";
}

std::string Checker::difference(const std::string& setting) {
  tie_ = left_out_ = false;
  try {
    if (has_word(setting, "SLOPE")) return compare_slopes();
    const InForce in_force(setting);
    if (has_word(setting, "JIT")) return compare_replays();
    if (has_word(setting, "LENGTHS")) return compare_lengths();
    return compare_all(in_force.devices, has_word(setting, "LITTLE_MEMORY"));
  } catch (const std::exception& e) {
    return cat("throws: ", e.what());
  }
}

std::vector<std::string> usual_settings(const std::string& device) {
  if (device != "CPU") return {cat("DEVICE=", device)};
  return {"FUSE=0",
          "OPT=0",
          "JIT",
          "SLOPE",
          "LENGTHS",
          "FUSE=0 LITTLE_MEMORY",
          "FUSE=0 OPT=0",
          "THREADS=1",
          "CPU_UNITS=none",
          "DEVICE=CPU,CPU:1",
          "CHECK_OOB=0",
          "CPU_COMPILER=cc",
          "Z3_PATH=none",
          "BEAM=2 BEAM_ISOLATE=0",
          "DEVICE=CPU,CPU:1,CPU:2"};
}

}  // namespace tiny::programs
