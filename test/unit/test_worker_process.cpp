#include "tiny/base/worker_process.h"

#include <doctest/doctest.h>
#include <sys/wait.h>

#include <cstdio>
#include <fstream>

#include "tiny/base/error.h"

using namespace tiny;

namespace {

// Counts the bytes of a request, and says whether the variable is still set.
__attribute__((constructor)) void serve_test() {
  serve_if_worker("test", [](const std::string& request) {
    return cat(request.size(), std::getenv("TINY_WORKER") ? " set" : "");
  });
}

struct Run {
  int status = -1;
  std::string output;
};

// This program with a command line's words before and after it.
Run run(const std::string& before, const std::string& after) {
  const std::string command = cat(before, " /proc/", getpid(), "/exe ", after, " 2>&1");
  std::FILE* pipe = popen(command.c_str(), "r");
  Run out;
  REQUIRE(pipe != nullptr);
  char text[256];
  while (std::fgets(text, sizeof text, pipe)) out.output += text;
  out.status = pclose(pipe);
  return out;
}

}  // namespace

TEST_CASE("a worker answers requests, and its environment does not make its children workers") {
  WorkerProcess worker("test", {});
  REQUIRE(worker.alive());
  std::string answer;
  CHECK(worker.ask("hello", 60, answer) == WorkerProcess::Answer::Good);
  CHECK(answer == "5");
}

TEST_CASE("a program that a user starts with TINY_WORKER set runs as without it") {
  const std::string list = "--list-test-cases -tc='a worker answers*'";
  const Run plain = run("", list);
  REQUIRE(plain.status == 0);
  REQUIRE(plain.output.find("a worker answers") != std::string::npos);
  for (const char* set : {"TINY_WORKER=test", "TINY_WORKER=nvrtc", "TINY_WORKER='test 1'",
                          "TINY_WORKER='test '", "TINY_WORKER="}) {
    INFO(set);
    const Run other = run(set, list);
    CHECK(other.status == 0);
    CHECK(other.output == plain.output);
  }
}
