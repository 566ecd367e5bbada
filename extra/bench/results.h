// What lines of extra/bench/results say, as record.h and the benchmarks write them.
#pragma once
#include <cstdlib>
#include <fstream>
#include <regex>
#include <string>
#include <vector>

namespace tiny::bench {

// The text behind a key of a line of JSON, without quotes; empty where there is none.
inline std::string field(const std::string& line, const std::string& key) {
  std::smatch m;
  const std::regex form("\"" + key + "\": \"?([^\",}]*)");
  return std::regex_search(line, m, form) ? m[1].str() : "";
}

// 0 where there is none.
inline double number_field(const std::string& line, const std::string& key) {
  return std::atof(field(line, key).c_str());
}

// The lines of a file that are results; none where it cannot be read.
inline std::vector<std::string> result_lines(const std::string& path) {
  std::vector<std::string> out;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);)
    if (line.starts_with("{")) out.push_back(line);
  return out;
}

}  // namespace tiny::bench
