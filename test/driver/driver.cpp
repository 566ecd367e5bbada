#include "test/driver/driver.h"

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

#include "test/driver/worker.h"
#include "test/programs/check.h"
#include "tiny/base/env.h"
#include "tiny/base/error.h"

namespace tiny::programs {

namespace {

double now() {
  using namespace std::chrono;
  return duration<double>(steady_clock::now().time_since_epoch()).count();
}

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
      work(batch, campaign_.rows, ends[1]);
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
    if (!child.batch.crash.empty()) return fail(child.batch.crash + " (but not when made smaller)");
    if (silent && !child.shrinks && child.silence <= campaign_.silence) {
      start({child.seed, 1, child.batch.setting}, campaign_.silence * 10);
      --tally_.programs;
    } else {
      const std::string text =
          child.shrinks
              ? cat(child.found, " (", how, " while it was made smaller)")
              : cat("program ", child.seed, " with ", name_of(child.batch.setting), ": ", how);
      start({child.seed, 1, child.batch.setting, text}, campaign_.silence * 20);
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
