#include "tiny/vision/average_precision.h"

#include <algorithm>
#include <array>

#include "tiny/base/error.h"

namespace tiny {

namespace {

constexpr int kThresholds = 10, kRecalls = 101;

double threshold(int t) { return 0.5 + 0.05 * t; }

double area(const BoxCorners& b) {
  return (double{b[2]} - double{b[0]}) * (double{b[3]} - double{b[1]});
}

double overlap(const BoxCorners& found, const PictureBox& truth) {
  const BoxCorners& b = truth.corners;
  const double w = std::min<double>(found[2], b[2]) - std::max<double>(found[0], b[0]);
  const double h = std::min<double>(found[3], b[3]) - std::max<double>(found[1], b[1]);
  if (w <= 0 || h <= 0) return 0;
  const double common = w * h;
  return common / (truth.is_crowd ? area(found) : area(found) + area(b) - common);
}

enum class Outcome : uint8_t { Miss, Hit, Ignored };

struct Scored {
  float score;
  std::array<Outcome, kThresholds> outcome;
};

// A detection's box among `truth`, crowds last, of which `taken` are; -1: none.
int find_match(const FoundBox& found, const std::vector<PictureBox>& truth,
               const std::vector<bool>& taken, double least) {
  int match = -1;
  for (size_t i = 0; i < truth.size(); ++i) {
    if (taken[i] && !truth[i].is_crowd) continue;
    if (match >= 0 && truth[i].is_crowd && !truth[match].is_crowd) break;
    const double iou = overlap(found.corners, truth[i]);
    if (iou < least) continue;
    least = iou;
    match = static_cast<int>(i);
  }
  return match;
}

// Adds the detections of a picture, all of one class.
void judge(std::vector<PictureBox> truth, std::vector<FoundBox> found, int64_t most,
           std::vector<Scored>& out) {
  std::ranges::stable_sort(found,
                           [](const FoundBox& a, const FoundBox& b) { return a.score > b.score; });
  found.resize(std::min(found.size(), static_cast<size_t>(most)));
  std::ranges::stable_partition(truth, [](const PictureBox& b) { return !b.is_crowd; });
  const size_t first = out.size();
  for (const FoundBox& f : found) out.push_back({f.score, {}});
  for (int t = 0; t < kThresholds; ++t) {
    std::vector<bool> taken(truth.size());
    for (size_t i = 0; i < found.size(); ++i) {
      const int match = find_match(found[i], truth, taken, std::min(threshold(t), 1 - 1e-10));
      if (match >= 0) taken[match] = true;
      out[first + i].outcome[t] = match < 0               ? Outcome::Miss
                                  : truth[match].is_crowd ? Outcome::Ignored
                                                          : Outcome::Hit;
    }
  }
}

// The area under the curve of detections in order, of `positives` boxes.
double area_under_curve(const std::vector<Scored>& all, int t, int64_t positives) {
  std::vector<double> recall, precision;
  double hits = 0, misses = 0;
  for (const Scored& s : all) {
    if (s.outcome[t] == Outcome::Ignored) continue;
    (s.outcome[t] == Outcome::Hit ? hits : misses) += 1;
    recall.push_back(hits / static_cast<double>(positives));
    precision.push_back(hits / (hits + misses));
  }
  for (size_t i = precision.size(); i-- > 1;)
    precision[i - 1] = std::max(precision[i - 1], precision[i]);
  double sum = 0;
  for (int r = 0; r < kRecalls; ++r) {
    const auto at = std::lower_bound(recall.begin(), recall.end(), r / 100.0) - recall.begin();
    if (at < static_cast<int64_t>(recall.size())) sum += precision[at];
  }
  return sum / kRecalls;
}

// By threshold; all -1 for a class that no picture shows.
std::array<double, kThresholds> of_class(const std::vector<PictureResult>& pictures, int64_t label,
                                         int64_t most) {
  std::vector<Scored> all;
  int64_t positives = 0;
  for (const PictureResult& p : pictures) {
    std::vector<PictureBox> truth;
    std::vector<FoundBox> found;
    for (const PictureBox& b : p.truth)
      if (b.label == label) truth.push_back(b);
    for (const FoundBox& f : p.found)
      if (f.label == label) found.push_back(f);
    positives += std::ranges::count_if(truth, [](const PictureBox& b) { return !b.is_crowd; });
    judge(std::move(truth), std::move(found), most, all);
  }
  std::array<double, kThresholds> out;
  out.fill(-1);
  if (positives == 0) return out;
  std::ranges::stable_sort(all, [](const Scored& a, const Scored& b) { return a.score > b.score; });
  for (int t = 0; t < kThresholds; ++t) out[t] = area_under_curve(all, t, positives);
  return out;
}

}  // namespace

AveragePrecision average_precision(const std::vector<PictureResult>& pictures, int64_t classes,
                                   int64_t most) {
  check(classes >= 1 && most >= 1, "average_precision: ", classes, " classes, at most ", most,
        " detections");
  const auto require_class = [&](int64_t label) {
    check(label >= 0 && label < classes, "average_precision: a label ", label, " of ", classes,
          " classes");
  };
  for (const PictureResult& p : pictures) {
    for (const PictureBox& b : p.truth) require_class(b.label);
    for (const FoundBox& f : p.found) require_class(f.label);
  }
  AveragePrecision out;
  int64_t shown = 0;
  for (int64_t label = 0; label < classes; ++label) {
    const auto precision = of_class(pictures, label, most);
    out.by_class.push_back(-1);
    if (precision[0] < 0) continue;
    ++shown;
    double sum = 0;
    for (const double p : precision) sum += p;
    out.by_class.back() = sum / kThresholds;
    out.mean += out.by_class.back();
    out.at_50 += precision[0];
    out.at_75 += precision[5];
  }
  for (double* p : {&out.mean, &out.at_50, &out.at_75})
    if (shown > 0) *p /= static_cast<double>(shown);
  return out;
}

}  // namespace tiny
