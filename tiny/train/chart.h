// Line charts as SVG files, for the curves of a training.
#pragma once
#include <string>
#include <utility>
#include <vector>

namespace tiny {

struct ChartLine {
  std::string name;
  std::vector<std::pair<double, double>> points;  // x and y; those that are not finite are left out
};

struct Chart {
  std::string title, x_label, y_label;
  std::vector<ChartLine> lines;
};

// The chart as an SVG document of 720 x 420: axes with round numbers, lines, names.
std::string to_svg(const Chart& chart);

// Writes it to a file. Error where no file can be made there.
void save_svg(const std::string& path, const Chart& chart);

}  // namespace tiny
