// This program again, as another process, where it runs one of the test cases that do nothing
// otherwise.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "tiny/base/error.h"

namespace tiny::test {

struct Ended {
  int status = 0;
  std::string said;    // what it told
  std::string output;  // all that it printed
};

// `settings`: of its environment, "A=1 B=2"; `before`: commands of the shell, "ulimit -s 128;".
inline Ended run_child(const std::string& test_case, const std::string& settings,
                       const std::string& before = "") {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  const std::string command =
      cat(before, " IS_WORKER=1 ", settings, " '", self, "' -tc='", test_case, "' 2>&1");
  Ended out;
  FILE* pipe = ::popen(command.c_str(), "r");
  if (!pipe) return {-1, "popen", ""};
  char line[4096];
  while (std::fgets(line, sizeof line, pipe)) {
    const std::string text = line;
    if (text.starts_with("told: ")) out.said += text.substr(6);
    out.output += text;
  }
  out.status = ::pclose(pipe);
  return out;
}

inline bool is_child() { return std::getenv("IS_WORKER") != nullptr; }

inline void tell(const std::string& text) {
  std::printf("told: %s\n", text.c_str());
  std::fflush(stdout);
}

}  // namespace tiny::test
