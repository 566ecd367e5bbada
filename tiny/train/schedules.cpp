#include "tiny/train/schedules.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numbers>
#include <numeric>

#include "tiny/base/error.h"
#include "tiny/base/text.h"
#include "tiny/run/memory.h"

namespace tiny {

double seconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

std::string to_table(const std::vector<std::string>& head,
                     const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::vector<std::string>> lines{head};
  lines.insert(lines.end(), rows.begin(), rows.end());
  std::vector<size_t> widths(head.size());
  for (const auto& line : lines) {
    check(line.size() == head.size(), "to_table: a row of ", line.size(), " entries under ",
          head.size());
    for (size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  }
  std::string out;
  for (const auto& line : lines) {
    for (size_t i = 0; i < line.size(); ++i)
      out += std::string((i ? 2 : 0) + widths[i] - line[i].size(), ' ') + line[i];
    out += '\n';
  }
  return out;
}

std::string peak_memory_text() {
  std::string out;
  for (const DeviceMemory& m : memory_report(0).devices)
    out += formatted("%sat most %.0f MB on %s", out.empty() ? "" : ", ",
                     static_cast<double>(m.peak_bytes) / 1e6, m.device.c_str());
  return out;
}

MeanAndDeviation mean_and_deviation(const std::vector<double>& values) {
  if (values.empty()) return {};
  const auto n = static_cast<double>(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / n;
  double squares = 0;
  for (double v : values) squares += (v - mean) * (v - mean);
  return {mean, n > 1 ? std::sqrt(squares / (n - 1)) : 0};
}

Tensor interpolated(const Tensor& x, const Points& points) {
  check(!points.empty(), "interpolated: there are no points");
  Tensor y = x.zeros_like() + points[0].second;
  for (size_t i = 1; i < points.size(); ++i) {
    const auto [from, before] = points[i - 1];
    const auto [to, after] = points[i];
    check(from < to, "interpolated: a point at ", to, " after one at ", from);
    y = y + (x - from).clamp(0, to - from) * ((after - before) / (to - from));
  }
  return y;
}

double warmup_cosine(double step, double warmup, double steps, double lowest) {
  if (step < warmup) return step / warmup;
  const double at = std::min((step - warmup) / std::max(steps - warmup, 1e-9), 1.0);
  return lowest + (1 - lowest) * 0.5 * (1 + std::cos(std::numbers::pi * at));
}

void ScheduledOptimizers::add(std::unique_ptr<Optimizer> optimizer, double lr, Points schedule) {
  parts_.push_back({std::move(optimizer), lr, std::move(schedule)});
}

void ScheduledOptimizers::step(const Tensor& x, std::initializer_list<Tensor*> also) {
  std::vector<Optimizer*> all;
  for (Part& p : parts_) {
    p.optimizer->set_lr(interpolated(x, p.schedule) * p.lr);
    all.push_back(p.optimizer.get());
  }
  Optimizer::step_all(all, also);
}

void ScheduledOptimizers::reset() {
  for (Part& p : parts_) p.optimizer->reset();
}

StateDict ScheduledOptimizers::state_dict(const std::string& prefix) {
  StateDict out;
  for (size_t i = 0; i < parts_.size(); ++i)
    for (const NamedTensor& t : parts_[i].optimizer->state_dict(cat(prefix, i, ".")))
      out.push_back(t);
  return out;
}

namespace {

Tensor zeros(const Shape& shape, DType dtype, const std::vector<std::string>& devices,
             std::optional<int64_t> axis = {}) {
  const Tensor x = Tensor::zeros(shape, dtype).contiguous().realize();
  return devices.empty() ? x : x.shard(devices, axis).realize();
}

}  // namespace

// --- Curves --------------------------------------------------------------------------------------

StepCurves::StepCurves(size_t curves, int64_t steps, const std::vector<std::string>& devices)
    : values(zeros({static_cast<int64_t>(curves), std::max<int64_t>(steps, 1)}, kF32, devices)),
      done(zeros({1}, kF32, devices)) {}

void StepCurves::add(const std::vector<Tensor>& numbers) {
  check(static_cast<int64_t>(numbers.size()) == values.size(0), "StepCurves: ", numbers.size(),
        " numbers for ", values.size(0), " curves");
  std::vector<Tensor> flat;
  for (const Tensor& n : numbers) flat.push_back(n.detach().to(kF32).reshape({1}));
  const Tensor now = Tensor::stack(flat), at = Tensor::arange(0, steps(), 1, kF32) == done;
  values.assign(where(at, now, values));
  done.assign(done + 1);
}

void StepCurves::restart() { done.assign(done.zeros_like()).realize(); }

std::vector<double> StepCurves::means(int64_t begin, int64_t end) const {
  check(0 <= begin && begin < end && end <= steps(), "StepCurves: the steps from ", begin, " to ",
        end, " of ", steps());
  const std::vector<float> all = values.to_vector<float>();
  std::vector<double> out;
  for (auto curve = all.begin(); curve < all.end(); curve += steps()) {
    out.push_back(std::accumulate(curve + begin, curve + end, 0.0) /
                  static_cast<double>(end - begin));
    check(std::isfinite(out.back()), "a number of the training is not finite any more after ", end,
          " steps: try a lower learning rate");
  }
  return out;
}

ChartLine StepCurves::line(size_t curve, const std::string& name) const {
  const std::vector<float> all = values.to_vector<float>();
  ChartLine out{name, {}};
  for (int64_t i = 0; i < static_cast<int64_t>(done.item<float>()); ++i)
    out.points.emplace_back(i + 1, all.at(static_cast<int64_t>(curve) * steps() + i));
  return out;
}

// --- Tests ---------------------------------------------------------------------------------------

ClassifierTest::ClassifierTest(const Tensor& labels, int64_t batch, int64_t classes,
                               const std::vector<std::string>& devices, Classify classify)
    : labels_(labels),
      batch_(std::min(batch, labels.size(0))),
      devices_(devices),
      classify_(std::move(classify)),
      sums_(zeros({batch_, classes}, kF32, devices, 0)),
      correct_(zeros({1}, kI64, devices)),
      see_([this](const Tensor& plan) { see(plan); }) {}

int64_t ClassifierTest::count(const std::vector<TestView>& views) {
  const int64_t n = labels_.size(0);
  correct_.assign(correct_.zeros_like()).realize();
  for (int64_t done = 0; done < n; done += batch_)
    for (const TestView& v : views) {
      const float begin = static_cast<float>(std::min(done, n - batch_));
      const float is_first = &v == &views.front(), is_last = &v == &views.back();
      std::vector<float> plan{begin, static_cast<float>(done), is_first, is_last, v.weight};
      plan.insert(plan.end(), v.numbers.begin(), v.numbers.end());
      const Tensor at_hand = Tensor::from(plan);
      see_(devices_.empty() ? at_hand : at_hand.shard(devices_));
    }
  return correct_.item<int64_t>();
}

// A batch in one view: where it begins and where what is new begins, whether the view is the first
// and the last one, its weight and its numbers.
void ClassifierTest::see(const Tensor& plan) {
  const NoGrad no_grad;
  const auto value = [&](int i) { return plan.narrow(0, i, 1); };
  Tensor at = Tensor::arange(0, batch_, 1, kI32) + value(0).to(kI32);
  if (!devices_.empty()) at = at.shard(devices_, 0);
  const Tensor said = classify_(at, plan.narrow(0, 5, plan.size(0) - 5)).to(kF32);
  sums_.assign(where(value(2) > 0.5, 0, sums_) + said * value(4));
  const Tensor hit = sums_.argmax(1) == labels_.index_select(0, at).to(kI64);
  const Tensor counts = logical_and(at.to(kF32) >= value(1), value(3) > 0.5);
  correct_.assign(correct_ + logical_and(hit, counts).sum());
  Tensor* const both[] = {&sums_, &correct_};
  Tensor::realize(both);
}

}  // namespace tiny
