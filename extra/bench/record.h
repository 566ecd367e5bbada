// What the lines of extra/bench/results say besides figures: date, commit, machine.
#pragma once
#include <cstdio>
#include <ctime>
#include <string>

#include "runtime/device/device.h"

namespace tiny::bench {

// What a command prints, without the end of its last line.
inline std::string output_of(const std::string& command) {
  std::FILE* pipe = popen((command + " 2>/dev/null").c_str(), "r");
  if (!pipe) return "";
  std::string text;
  for (int c; (c = std::fgetc(pipe)) != EOF;) text += static_cast<char>(c);
  pclose(pipe);
  return text.substr(0, text.find_last_not_of(" \n") + 1);
}

inline std::string cpu_name() {
  return output_of("sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1");
}

// Of the machine that has the device of that name.
inline std::string machine_name(const std::string& device) {
  if (find_device(device).target().kind != Target::Kind::Gpu) return cpu_name();
  return output_of("nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1");
}

// The beginning of a JSON line. No commit: that of the folder that the program runs in.
inline std::string record(const std::string& machine, std::string commit = "") {
  if (commit.empty()) commit = output_of("git rev-parse --short HEAD");
  if (commit.empty()) commit = "unknown";
  const std::time_t now = std::time(nullptr);
  char date[16];
  std::strftime(date, sizeof date, "%Y-%m-%d", std::gmtime(&now));
  return std::string("{\"date\": \"") + date + "\", \"commit\": \"" + commit +
         "\", \"machine\": \"" + machine + "\"";
}

}  // namespace tiny::bench
