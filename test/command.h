// Programs as child processes.
#pragma once
#include <sys/wait.h>

#include <cstdio>
#include <string>

#include "tiny/base/error.h"

namespace tiny::test {

struct CommandResult {
  int status = -1;     // -1: it has not run to its end
  std::string output;  // both streams
};

// Of the shell.
inline CommandResult run_command(const std::string& command) {
  FILE* pipe = ::popen(("(" + command + ") 2>&1").c_str(), "r");
  if (!pipe) return {-1, "popen"};
  CommandResult out;
  char part[4096];
  while (const size_t n = std::fread(part, 1, sizeof part, pipe)) out.output.append(part, n);
  const int status = ::pclose(pipe);
  if (WIFEXITED(status)) out.status = WEXITSTATUS(status);
  return out;
}

// An example of the build, on the CPU.
inline CommandResult run_example(const std::string& program, const std::string& arguments) {
  return run_command(cat("DEVICE=CPU '", TINY_BUILD, "/examples/", program, "' ", arguments));
}

}  // namespace tiny::test
