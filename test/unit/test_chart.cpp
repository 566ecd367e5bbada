#include "tiny/train/chart.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tiny/base/error.h"

using namespace tiny;

TEST_CASE("a chart puts points between the round numbers of its axes") {
  const std::string svg = to_svg({"a < b", "step", "loss", {{"first", {{0, 1}, {10, 3}}}}});
  CHECK(svg.starts_with("<svg "));
  CHECK(svg.ends_with("</svg>\n"));
  CHECK(svg.find("a &lt; b") != std::string::npos);
  // From the lower left to the upper right corner of the axes.
  CHECK(svg.find("points=\"64,368 704,40 \"") != std::string::npos);
  for (const char* number : {">0<", ">2<", ">10<", ">1<", ">1.5<", ">3<"})
    CHECK(svg.find(number) != std::string::npos);
}

TEST_CASE("a chart leaves out what is not finite, and may be empty") {
  const double nan = std::nan("");
  const std::string svg = to_svg({"", "", "", {{"", {{0, 0}, {1, nan}, {2, 1}}}, {"none", {}}}});
  CHECK(svg.find("points=\"64,368 704,40 \"") != std::string::npos);
  CHECK(svg.find("nan") == std::string::npos);
  CHECK(to_svg({}).find("<polyline") == std::string::npos);
}

TEST_CASE("a chart is written to a file or says that it cannot be") {
  const std::string path =
      (std::filesystem::temp_directory_path() / ("tiny_chart_" + std::to_string(::getpid())))
          .string();
  const Chart chart{"title", "x", "y", {{"line", {{0, 0}, {1, 2}}}}};
  save_svg(path, chart);
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  std::filesystem::remove(path);
  CHECK(text.str() == to_svg(chart));
  CHECK_THROWS_WITH_AS(save_svg("/no/such/folder/a.svg", chart),
                       "/no/such/folder/a.svg: the chart cannot be written there", Error);
}
