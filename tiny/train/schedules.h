// Parts of training programs: schedules, numbers of each step that stay on the device, tests of
// classifiers, and text for people.
#pragma once
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tiny/base/text.h"
#include "tiny/run/jit.h"
#include "tiny/tensor/tensor.h"
#include "tiny/train/chart.h"
#include "tiny/train/optim.h"
#include "tiny/train/state_dict.h"

namespace tiny {

double seconds();  // since some fixed moment

// Lines of right-aligned columns, two spaces between them, each as wide as its longest entry. All
// rows have as many entries as the head.
std::string to_table(const std::vector<std::string>& head,
                     const std::vector<std::vector<std::string>>& rows);

// "at most 12 MB on CPU, at most 2210 MB on CUDA": of all devices that had memory.
std::string peak_memory_text();

struct MeanAndDeviation {
  double mean = 0, deviation = 0;  // of a sample (n - 1); 0 for one value
};
MeanAndDeviation mean_and_deviation(const std::vector<double>& values);

// Points (x, y) with growing x, and what lies on the straight lines between them, level before the
// first and after the last.
using Points = std::vector<std::pair<double, double>>;
Tensor interpolated(const Tensor& x, const Points& points);

// The learning rate at a step of `steps`, as a share of the highest: it rises evenly for `warmup`
// steps, and falls to `lowest` along half a cosine (I. Loshchilov, F. Hutter, arXiv 1608.03983).
double warmup_cosine(double step, double warmup, double steps, double lowest = 0);

// Optimizers of parts of one network, whose learning rates follow schedules on the device.
class ScheduledOptimizers {
 public:
  // Its rate is lr times what the schedule says.
  void add(std::unique_ptr<Optimizer> optimizer, double lr, Points schedule);
  // All of them at the place x (one element) of their schedules, as Optimizer::step_all.
  void step(const Tensor& x, std::initializer_list<Tensor*> also = {});
  void reset();  // as Optimizer::reset
  StateDict state_dict(const std::string& prefix = "");

 private:
  struct Part {
    std::unique_ptr<Optimizer> optimizer;
    double lr;
    Points schedule;
  };
  std::vector<Part> parts_;
};

// Numbers of each step of a training, its loss for one, in the memory of the devices: a step that
// notes them can be captured and waits for nothing.
class StepCurves {
 public:
  StepCurves(size_t curves, int64_t steps, const std::vector<std::string>& devices = {});
  // Notes the numbers, each of one element, and counts the step. `values` and `done` have to be
  // realized with it.
  void add(const std::vector<Tensor>& numbers);
  void restart();

  int64_t steps() const { return values.size(1); }
  // Of the steps from begin to end - 1. Error where a mean is not finite.
  std::vector<double> means(int64_t begin, int64_t end) const;
  ChartLine line(size_t curve, const std::string& name) const;  // of the steps so far, from 1 on

  Tensor values, done;  // f32 (curves, steps), f32 (1): steps so far
};

// A way to look at the samples of a test; the numbers mean what the caller wants.
struct TestView {
  float weight = 1;
  std::vector<float> numbers = {};
};

// How many samples a classifier knows, in batches of one size that are one capture: the last one
// begins early and counts only what is new.
class ClassifierTest {
 public:
  // What the classifier says, (batch, classes), of the samples at these positions, i32 (batch) over
  // the devices, seen in a way with these numbers, f32 (m).
  using Classify = std::function<Tensor(const Tensor& at, const Tensor& numbers)>;

  // labels: any integers (n), on each of the devices.
  ClassifierTest(const Tensor& labels, int64_t batch, int64_t classes,
                 const std::vector<std::string>& devices, Classify classify);
  ClassifierTest(const ClassifierTest&) = delete;
  ClassifierTest& operator=(const ClassifierTest&) = delete;

  // Where the sum of what it says in all views, times their weights, is largest at the label. All
  // views of all calls have as many numbers.
  int64_t count(const std::vector<TestView>& views = {TestView{}});
  double accuracy(const std::vector<TestView>& views = {TestView{}}) {
    return static_cast<double>(count(views)) / static_cast<double>(labels_.size(0));
  }

 private:
  void see(const Tensor& plan);

  const Tensor labels_;
  const int64_t batch_;
  const std::vector<std::string> devices_;
  const Classify classify_;
  Tensor sums_, correct_;  // f32 (batch, classes) of a batch, i64 (1) of all
  Jit<std::function<void(const Tensor&)>> see_;
};

}  // namespace tiny
