#include "test/programs/driver.h"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <map>
#include <optional>
#include <sstream>

#include "runtime/kernel.h"
#include "runtime/proof.h"
#include "runtime/schedule.h"
#include "test/programs/check.h"
#include "tiny/env.h"
#include "tiny/error.h"

namespace tiny::programs {

namespace {

double now() {
  using namespace std::chrono;
  return duration<double>(steady_clock::now().time_since_epoch()).count();
}

// Read when a device opens: such a setting holds for all that a child does.
bool is_of_process(const std::string& setting) {
  for (const char* name : {"THREADS=", "CPU_COMPILER=", "Z3_PATH=", "DEVICE=EMU", "DEVICE=CUDA"})
    if (setting.find(name) != setting.npos) return true;
  return false;
}

// --- In a child ----------------------------------------------------------------------------------

// Messages are lines: a letter and what belongs to it, ends of lines as \1.
void send(int to, char kind, std::string text) {
  std::replace(text.begin(), text.end(), '\n', '\1');
  text = cat(kind, ' ', text, '\n');
  for (size_t at = 0; at < text.size();) {
    const ssize_t n = write(to, text.data() + at, text.size() - at);
    if (n <= 0) _exit(3);
    at += static_cast<size_t>(n);
  }
}

struct Batch {
  uint64_t first = 0;
  int64_t count = 0;
  std::string setting;
  std::string line = {};  // one program, not drawn
};

void run_batch(const Batch& batch, const Campaign& campaign, int to) {
  const bool of_process = is_of_process(batch.setting);
  std::istringstream words(batch.setting);
  for (std::string word; of_process && words >> word;)
    if (const size_t at = word.find('='); at != word.npos)
      setenv(word.substr(0, at).c_str(), word.substr(at + 1).c_str(), 1);
  setenv("CACHE", "0", 1);
  std::vector<std::string> settings = {of_process ? batch.setting : ""};
  if (!of_process && !batch.setting.empty()) settings.push_back(batch.setting);
  for (int64_t i = 0; i < batch.count; ++i) {
    const uint64_t seed = batch.first + static_cast<uint64_t>(i);
    send(to, 'S', cat(seed));
    try {
      const Program program = batch.line.empty() ? random_program(seed) : from_line(batch.line);
      if (!batch.line.empty() || std::getenv("FUZZ_TRACE")) send(to, 'L', to_line(program));
      Checker checker(program);
      for (const std::string& setting : settings) {
        const std::string text = checker.difference(setting);
        if (!checker.was_left_out()) send(to, 'R', cat(setting.empty() ? "default" : setting));
        if (checker.was_tie()) send(to, 'T', "");
        if (text.empty()) continue;
        send(to, 'B', cat("program ", seed, " with ", setting, ": ", text));  // before it is shrunk
        send(to, 'F', report(program, setting, text));
        break;
      }
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
  static_cast<void>(campaign);
}

// --- In the parent -------------------------------------------------------------------------------

struct Child {
  Batch batch;
  pid_t id = 0;
  int from = -1;
  std::string unread = {};
  uint64_t seed = 0;     // of the program that it is at
  bool shrinks = false;  // a failure that was found is being made smaller
  bool ended = false;
  double heard = 0, silence = 0;
  std::string found = {};
};

class Driver {
 public:
  explicit Driver(const Campaign& campaign) : campaign_(campaign) {}

  Tally run() {
    const double begin = now();
    double told = begin;
    signal(SIGPIPE, SIG_IGN);
    while (true) {
      const bool goes_on = next_ < campaign_.count &&
                           (campaign_.seconds == 0 || now() - begin < campaign_.seconds) &&
                           tally_.failures < campaign_.most_failures;
      if (goes_on && children_.size() < static_cast<size_t>(campaign_.jobs)) {
        start(next_batch(), campaign_.silence);
        continue;
      }
      if (children_.empty()) break;
      listen();
      if (now() > told + 60) {
        told = now();
        std::cout << tally_.programs << " programs, " << tally_.failures << " failures"
                  << std::endl;
      }
    }
    tally_.seconds = now() - begin;
    for (const auto& [setting, runs] : runs_) tally_.by_setting.emplace_back(setting, runs);
    return std::move(tally_);
  }

 private:
  Batch next_batch() {
    Batch batch;
    batch.first = campaign_.first + static_cast<uint64_t>(next_);
    batch.count = std::min(campaign_.batch, campaign_.count - next_);
    if (!campaign_.settings.empty())
      batch.setting = campaign_.settings[turn_++ % campaign_.settings.size()];
    next_ += batch.count;
    return batch;
  }

  void start(const Batch& batch, double silence) {
    int ends[2];
    check(pipe(ends) == 0, "no pipe: ", std::strerror(errno));
    Child child{batch};
    child.id = fork();
    check(child.id >= 0, "no process: ", std::strerror(errno));
    if (child.id == 0) {
      close(ends[0]);
      for (const Child& other : children_) close(other.from);
      run_batch(batch, campaign_, ends[1]);
      _exit(0);  // without destructors: threads may still be at work
    }
    close(ends[1]);
    child.from = ends[0];
    child.seed = batch.first;
    child.heard = now();
    child.silence = silence;
    children_.push_back(std::move(child));
  }

  void listen() {
    std::vector<pollfd> all;
    for (const Child& child : children_) all.push_back({child.from, POLLIN, 0});
    poll(all.data(), all.size(), 500);
    for (size_t i = children_.size(); i-- > 0;) {
      Child& child = children_[i];
      bool over = false;
      if (all[i].revents) over = !hear(child);
      const double patience = child.shrinks ? child.silence * 20 : child.silence;
      const bool silent = !over && now() - child.heard > patience;
      if (!over && !silent) continue;
      Child ended = std::move(child);
      children_.erase(children_.begin() + static_cast<int64_t>(i));
      bury(ended, silent);
    }
  }

  bool hear(Child& child) {
    char text[65536];
    const ssize_t n = read(child.from, text, sizeof text);
    if (n <= 0) return false;
    child.heard = now();
    child.unread.append(text, static_cast<size_t>(n));
    for (size_t end; (end = child.unread.find('\n')) != std::string::npos;) {
      std::string line = child.unread.substr(0, end);
      child.unread.erase(0, end + 1);
      std::replace(line.begin(), line.end(), '\1', '\n');
      take(child, line[0], line.substr(2));
    }
    return true;
  }

  void take(Child& child, char kind, const std::string& text) {
    switch (kind) {
      case 'S':
        child.seed = std::stoull(text);
        ++tally_.programs;
        break;
      case 'R':
        ++tally_.runs;
        ++runs_[text];
        break;
      case 'T': ++tally_.ties; break;
      case 'B':
        child.shrinks = true;
        child.found = text;
        break;
      case 'F':
        child.shrinks = false;
        fail(text);
        break;
      case 'P': {
        int64_t kernels = 0, unproved = 0, wrong = 0;
        std::istringstream(text) >> kernels >> unproved >> wrong;
        tally_.kernels += kernels;
        tally_.unproved += unproved;
        tally_.wrong += wrong;
        child.ended = true;
        break;
      }
      default: break;
    }
  }

  // A child that is done, has crashed or is silent. What it did not get to goes on in another one.
  void bury(Child& child, bool silent) {
    if (silent) kill(child.id, SIGKILL);
    int status = 0;
    waitpid(child.id, &status, 0);
    close(child.from);
    if (child.ended) return;
    const uint64_t end = child.batch.first + static_cast<uint64_t>(child.batch.count);
    const std::string how =
        silent                ? cat("no end after ", child.silence, " s")
        : WIFSIGNALED(status) ? cat("signal ", WTERMSIG(status), ", ", strsignal(WTERMSIG(status)))
                              : cat("exit status ", WEXITSTATUS(status));
    if (child.shrinks) {
      fail(cat(child.found, "\n(", how, " while it was made smaller)"));
    } else if (silent && child.silence <= campaign_.silence) {
      Batch alone{child.seed, 1, child.batch.setting};
      start(alone, campaign_.silence * 10);
      --tally_.programs;
    } else {
      fail(cat("program ", child.seed, " with ", child.batch.setting, ": ", how));
    }
    if (child.seed + 1 < end) {
      Batch rest = child.batch;
      rest.first = child.seed + 1;
      rest.count = static_cast<int64_t>(end - rest.first);
      start(rest, campaign_.silence);
    }
  }

  void fail(const std::string& text) {
    ++tally_.failures;
    std::cout << "FAILURE " << text << std::endl;
    tally_.reports.push_back(text);
    if (campaign_.folder.empty()) return;
    std::istringstream in(text);
    std::string word, seed;
    in >> word >> seed;
    std::ofstream out(campaign_.folder + "/program_" + seed.substr(0, seed.find(':')) + ".cpp");
    const size_t code = text.find("// Random program");
    std::istringstream head(text.substr(0, code));
    for (std::string line; std::getline(head, line);) out << "// " << line << '\n';
    if (code != text.npos) out << text.substr(code);
  }

  const Campaign& campaign_;
  Tally tally_;
  std::vector<Child> children_;
  std::map<std::string, int64_t> runs_;
  int64_t next_ = 0;
  size_t turn_ = 0;
};

}  // namespace

std::vector<std::string> usual_settings(const std::string& device) {
  if (device != "CPU") return {cat("DEVICE=", device)};
  return {"FUSE=0",      "OPT=0",           "JIT",
          "SLOPE",       "LENGTHS",         "FUSE=0 OPT=0",
          "THREADS=1",   "CPU_UNITS=none",  "DEVICE=CPU,CPU:1",
          "CHECK_OOB=0", "CPU_COMPILER=cc", "Z3_PATH=none"};
}

std::string to_text(const Tally& t) {
  std::ostringstream out;
  out << t.programs << " programs in " << t.seconds << " s, "
      << static_cast<double>(t.programs) / std::max(t.seconds, 1e-9) << " a second; " << t.failures
      << " failures, " << t.ties << " ties of rounding; " << t.kernels << " kernels, " << t.unproved
      << " unproved ("
      << 100.0 * static_cast<double>(t.unproved) /
             std::max<double>(1, static_cast<double>(t.kernels))
      << " %), " << t.wrong << " wrong; runs:";
  for (const auto& [setting, runs] : t.by_setting) out << ' ' << runs << " x " << setting << ';';
  return out.str();
}

Tally run(const Campaign& campaign) { return Driver(campaign).run(); }

}  // namespace tiny::programs
