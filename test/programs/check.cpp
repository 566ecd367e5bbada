#include "test/programs/check.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <sstream>

#include "tiny/error.h"

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

void realize_all(std::vector<Tensor>& tensors, bool together) {
  std::vector<Tensor*> all;
  for (Tensor& t : tensors) all.push_back(&t);
  if (together) return Tensor::realize(all);
  for (Tensor* t : all) t->realize();
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

}  // namespace

const std::vector<HostTensor>& Checker::wanted() {
  if (!wanted_) {
    const EnvOverride device("DEVICE", "CPU");
    wanted_ = reference(build(program_, {.realizes = false}).results);
  }
  return *wanted_;
}

// The value, off by a few units of itself and of what it is made from. Values that are only moved
// keep the disturbance of what they come from, so that a value stays equal to its copies.
Tensor Checker::disturbed(size_t n, const Tensor& v, std::vector<double>& largest,
                          std::mt19937_64& random) const {
  const Step& s = program_.steps[n];
  if (!v.dtype().is_float() || v.numel() == 0) return v;
  const HostTensor value = evaluate(v.detach().node());
  largest[n] = magnitude(value);
  if (has(row_of(s), 'm') || (has(row_of(s), 'e') && is_integral(value))) return v;
  double scale = largest[n];
  for (int i : s.in) scale = std::max(scale, largest[static_cast<size_t>(i)]);
  std::vector<double> factors, terms;
  const auto units = [&] { return unit_of(v.dtype()) * (static_cast<double>(random() % 17) - 8); };
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
  constexpr int kTries = 6;
  if (disturbed_.empty()) {
    const EnvOverride device("DEVICE", "CPU");
    for (int turn = 0; turn < kTries; ++turn) {
      std::mt19937_64 random(static_cast<uint64_t>(turn) + program_.seed);
      std::vector<double> largest(program_.steps.size(), 0);
      const auto disturb = [&](size_t n, const Tensor& v) {
        return disturbed(n, v, largest, random);
      };
      disturbed_.push_back(
          reference(build(program_, {.realizes = false, .made = disturb}).results));
    }
  }
  double most = 0;
  for (const auto& other : disturbed_)
    most = std::max(most, distance(other[result], wanted()[result]).worst);
  return most;
}

std::string Checker::compare_all(const std::string& setting) {
  const InForce in_force(setting);
  for (const Step& s : program_.steps)  // random numbers come from one device
    if (!in_force.devices.empty() && has(row_of(s), 'r')) return "";
  Built built = build(program_, {.devices = in_force.devices, .made = fault_});
  realize_all(built.results, program_.together);
  const double unit = unit_of(built.values);
  for (size_t i = 0; i < built.results.size(); ++i) {
    const HostTensor got =
        on_host(in_force.devices.empty() ? built.results[i] : built.results[i].to("CPU"));
    const HostTensor& want = wanted()[i];
    if (got.dtype != want.dtype || got.shape != want.shape)
      return cat("result ", i, " has another shape or dtype than the reference");
    const Distance off = distance(got, want);
    const double base = unit * 1e5 * std::max(1.0, magnitude(want));
    if (off.worst <= std::min(base, 0.3 * std::max(1.0, magnitude(want)))) continue;
    if (off.worst <= base + 32 * spread(i)) {
      tie_ = true;
      continue;
    }
    return cat(i < program_.outputs.size() ? "output " : "gradient ",
               i < program_.outputs.size() ? i : i - program_.outputs.size(), " [", off.at,
               "]: ", got.numbers()[off.at], " and not ", want.numbers()[off.at],
               ", rounding moves it by ", spread(i));
  }
  return "";
}

// A function of the leaves that a Jit records and replays.
std::string Checker::compare_replays() {
  for (const Step& s : program_.steps) {
    if (has(row_of(s), 'l') && numel(s.a) == 0) return "";  // no argument of a Jit
    if (has(row_of(s), 'r')) return "";                     // manual_seed has no place in a Jit
  }
  const auto leaves_of = [&](uint64_t round) {
    std::vector<Tensor> out;
    for (const Step& s : program_.steps)
      if (has(row_of(s), 'l')) out.push_back(leaf(s.a, s.t, s.seed + round * 7919, s.i, s.j));
    return out;
  };
  const auto body = [&](const std::vector<Tensor>& leaves) {
    size_t next = 0;
    const auto given = [&](const Step&) { return leaves[next++]; };
    return build(program_, {.realizes = false, .leaf = given}).results;
  };
  Jit step(body);
  for (uint64_t round = 0; round < 4; ++round) {
    const std::vector<Tensor> leaves = leaves_of(round);
    const std::vector<Tensor> got = step(leaves);
    std::vector<Tensor> plain = body(leaves);
    realize_all(plain, true);
    for (size_t i = 0; i < plain.size(); ++i) {
      const HostTensor a = on_host(got[i]), b = on_host(plain[i]);
      if (a.data == b.data) continue;
      const Distance off = distance(a, b);
      if (off.worst > 0)
        return cat("call ", round, " of a Jit: result ", i, " is off by ", off.worst);
    }
  }
  return "";
}

// The gradient along a direction, and the quotient of differences, both by the reference.
std::string Checker::compare_slopes() {
  if (!program_.gradient) return "";
  for (const Step& s : program_.steps)
    if (has(row_of(s), 's') || (has(row_of(s), 'l') && s.t != kF64 && s.t.is_float())) return "";
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
  tie_ = false;
  try {
    if (has_word(setting, "SLOPE")) return compare_slopes();
    if (has_word(setting, "JIT")) {
      const InForce in_force(setting);
      return compare_replays();
    }
    return compare_all(setting);
  } catch (const std::exception& e) {
    return cat("throws: ", e.what());
  }
}

}  // namespace tiny::programs
