#include "test/driver/worker.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <sstream>

#include "runtime/kernels/kernel.h"
#include "runtime/kernels/proof.h"
#include "runtime/schedule/schedule.h"
#include "test/programs/check.h"
#include "tiny/base/env.h"
#include "tiny/base/error.h"

namespace tiny::programs {

namespace {

// Read when a device opens: such a setting holds for all that a process does.
bool is_of_process(const std::string& setting) {
  for (const char* name : {"THREADS=", "CPU_COMPILER=", "Z3_PATH=", "DEVICE=EMU", "DEVICE=CUDA"})
    if (setting.find(name) != setting.npos) return true;
  return false;
}

void set_environment(const std::string& setting) {
  setenv("CACHE", "0", 1);  // thousands of kernels that nobody needs again
  if (setting.find("DEVICE=") == setting.npos) setenv("DEVICE", "CPU", 1);
  if (!is_of_process(setting)) return;
  std::istringstream words(setting);
  for (std::string word; words >> word;)
    if (const size_t at = word.find('='); at != word.npos)
      setenv(word.substr(0, at).c_str(), word.substr(at + 1).c_str(), 1);
}

void send(int to, char kind, std::string text) {
  std::replace(text.begin(), text.end(), '\n', '\1');
  text = cat(kind, ' ', text, '\n');
  for (size_t at = 0; at < text.size();) {
    const ssize_t n = write(to, text.data() + at, text.size() - at);
    if (n <= 0) _exit(3);
    at += static_cast<size_t>(n);
  }
}

void run_program(const Program& program, const std::string& setting, int to) {
  Checker checker(program);
  std::vector<std::string> settings = {setting};
  if (!is_of_process(setting) && !setting.empty()) settings = {"", setting};
  for (const std::string& s : settings) {
    const std::string text = checker.difference(s);
    if (!checker.was_left_out()) send(to, 'R', s.empty() ? "default" : s);
    if (checker.was_tie()) send(to, 'T', "");
    if (text.empty()) continue;
    send(to, 'B', cat("program ", program.seed, " with ", name_of(s), ": ", text));
    return send(to, 'F', report(program, s, text));
  }
}

// How a process of its own that runs the program ends: the status of waitpid. One that only
// executes another program may be forked beside threads.
int end_of(const Program& program, const std::string& setting) {
  const std::string line = "LINE=" + to_line(program), words = "SETTING=" + setting;
  const pid_t id = fork();
  if (id == 0) {
    alarm(60);
    execl("/proc/self/exe", "fuzz", line.c_str(), words.c_str(), nullptr);
    _exit(0);
  }
  int status = 0;
  return id > 0 && waitpid(id, &status, 0) == id ? status : 0;
}

// Of a program that ended its process, or one that it was made smaller to.
std::string crash_report(const Batch& batch, const Program& program) {
  for (const std::string& setting : {std::string(), batch.setting}) {
    const int end = end_of(program, setting);
    if (end == 0) continue;
    const Program small = shrink(program, [&](const Program& p) {
      const int now = end_of(p, setting);
      return now == end || WIFSIGNALED(now);
    });
    return cat(batch.crash, "\nsmaller, with ", name_of(setting), ":\n", to_cpp(small, setting));
  }
  return cat(batch.crash, ", but not alone\n", to_cpp(program, batch.setting));
}

}  // namespace

void work(const Batch& batch, const std::vector<int>& rows, int to) {
  set_environment(batch.setting);
  for (int64_t i = 0; i < batch.count; ++i) {
    const uint64_t seed = batch.first + static_cast<uint64_t>(i);
    if (batch.crash.empty()) send(to, 'S', cat(seed));
    try {
      const Program program = random_program(seed, rows);
      if (!batch.crash.empty())
        send(to, 'F', crash_report(batch, program));
      else
        run_program(program, batch.setting, to);
    } catch (const std::exception& e) {
      send(to, 'F', cat("program ", seed, ": the generator throws: ", e.what()));
    }
    if (i % 32 == 31) {
      clear_kernel_cache();
      clear_schedule_cache();
    }
  }
  const ProofCounts proofs = proof_counts();
  send(to, 'P', cat(proofs.kernels, ' ', proofs.verdicts[1], ' ', proofs.verdicts[2]));
}

int run_line(const std::string& line, const std::string& setting) {
  set_environment(setting);
  const Program program = from_line(line);
  if (!is_sound(program)) return 2;
  const std::string text = Checker(program).difference(setting);
  std::cout << (text.empty() ? "no difference" : text) << std::endl;
  return text.empty() ? 0 : 1;
}

}  // namespace tiny::programs
