#include "tiny/train/chart.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <tuple>

#include "tiny/base/error.h"
#include "tiny/base/file.h"
#include "tiny/base/text.h"

namespace tiny {

namespace {

constexpr double kWidth = 720, kHeight = 420;                       // of the document
constexpr double kLeft = 64, kRight = 16, kTop = 40, kBottom = 52;  // around the axes
constexpr const char* kColours[] = {"#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#8c564b"};

std::string escaped(const std::string& text) {
  std::string out;
  for (char c : text) {
    if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '&')
      out += "&amp;";
    else
      out += c;
  }
  return out;
}

std::string number(double v) { return formatted("%.6g", v); }

// What one axis shows: from a round number to a round number in round steps.
struct Axis {
  double low = 0, high = 1, step = 0.2;

  double part(double v) const { return (v - low) / (high - low); }
};

Axis axis_of(double low, double high) {
  if (!(low < high)) {
    low -= 0.5;
    high = low + 1;
  }
  const double rough = (high - low) / 5, power = std::pow(10, std::floor(std::log10(rough)));
  const double lead = rough / power;
  const double step = (lead <= 1 ? 1 : lead <= 2 ? 2 : lead <= 5 ? 5 : 10) * power;
  return {std::floor(low / step) * step, std::ceil(high / step) * step, step};
}

bool is_finite(const std::pair<double, double>& p) {
  return std::isfinite(p.first) && std::isfinite(p.second);
}

std::pair<Axis, Axis> axes_of(const Chart& chart) {
  std::vector<double> x, y;
  for (const ChartLine& line : chart.lines)
    for (const auto& p : line.points)
      if (is_finite(p)) {
        x.push_back(p.first);
        y.push_back(p.second);
      }
  if (x.empty()) return {};
  const auto [x0, x1] = std::minmax_element(x.begin(), x.end());
  const auto [y0, y1] = std::minmax_element(y.begin(), y.end());
  return {axis_of(*x0, *x1), axis_of(*y0, *y1)};
}

class Drawing {
 public:
  explicit Drawing(const Chart& chart) : chart_(chart) {
    std::tie(x_, y_) = axes_of(chart);
    out_ << "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" << kWidth << "\" height=\""
         << kHeight << "\" font-family=\"sans-serif\" font-size=\"12\">\n"
         << "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n";
    text(kWidth / 2, 22, "middle", chart.title);
    text((kLeft + kWidth - kRight) / 2, kHeight - 12, "middle", chart.x_label);
    text(kLeft, kTop - 8, "end", chart.y_label);
    draw_grid();
    for (size_t i = 0; i < chart.lines.size(); ++i) draw_line(i);
    out_ << "</svg>\n";
  }
  std::string result() const { return out_.str(); }

 private:
  double x_at(double v) const { return kLeft + x_.part(v) * (kWidth - kLeft - kRight); }
  double y_at(double v) const {
    return kHeight - kBottom - y_.part(v) * (kHeight - kTop - kBottom);
  }
  void text(double x, double y, const char* anchor, const std::string& words) {
    out_ << "<text x=\"" << number(x) << "\" y=\"" << number(y) << "\" text-anchor=\"" << anchor
         << "\">" << escaped(words) << "</text>\n";
  }
  void rule(double x0, double y0, double x1, double y1) {
    out_ << "<path d=\"M" << number(x0) << ' ' << number(y0) << 'L' << number(x1) << ' '
         << number(y1) << "\" stroke=\"#cccccc\"/>\n";
  }
  void draw_grid() {
    const auto each = [](const Axis& a, auto draw) {
      const int count = static_cast<int>(std::lround((a.high - a.low) / a.step));
      for (int i = 0; i <= count; ++i) draw(a.low + i * a.step);
    };
    each(x_, [&](double v) {
      rule(x_at(v), kTop, x_at(v), kHeight - kBottom);
      text(x_at(v), kHeight - kBottom + 16, "middle", number(v));
    });
    each(y_, [&](double v) {
      rule(kLeft, y_at(v), kWidth - kRight, y_at(v));
      text(kLeft - 6, y_at(v) + 4, "end", number(v));
    });
  }
  void draw_line(size_t i) {
    const ChartLine& line = chart_.lines[i];
    const char* colour = kColours[i % std::size(kColours)];
    out_ << "<polyline fill=\"none\" stroke=\"" << colour << "\" stroke-width=\"1.5\" points=\"";
    for (const auto& p : line.points)
      if (is_finite(p)) out_ << number(x_at(p.first)) << ',' << number(y_at(p.second)) << ' ';
    const double y = kTop + 16 + 16 * static_cast<double>(i);
    out_ << "\"/>\n<text x=\"" << number(kWidth - kRight - 8) << "\" y=\"" << number(y)
         << "\" text-anchor=\"end\" fill=\"" << colour << "\">" << escaped(line.name)
         << "</text>\n";
  }

  const Chart& chart_;
  Axis x_, y_;
  TextStream out_;
};

}  // namespace

std::string to_svg(const Chart& chart) { return Drawing(chart).result(); }

void save_svg(const std::string& path, const Chart& chart) {
  const FileLimitGuard guard;
  std::ofstream file(path);
  file << to_svg(chart);
  file.close();
  check(static_cast<bool>(file), path, ": the chart cannot be written there");
}

}  // namespace tiny
