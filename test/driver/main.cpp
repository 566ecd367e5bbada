// make fuzz: random programs in child processes. Arguments are NAME=value:
//   N=1000        programs             SECONDS=60     ends after that time
//   SEED=5        of the first one     DEVICE=CPU     or an emulated route; else the environment's
//   SETTING=...   words as in check.h  JOBS=2         processes at once
//   BATCH=50      programs a process   SILENCE=60     seconds until a program counts as hanging
//   FOLDER=...    where the C++ of failures goes
//   ROWS=expand,max,sub   operators that steps are drawn from
//   LINE=...      runs one program, as text, in this process
//   PRINT=1       prints the program of SEED as C++
#include <chrono>
#include <iostream>
#include <map>
#include <sstream>
#include <thread>

#include "test/driver/driver.h"
#include "test/driver/worker.h"
#include "test/programs/check.h"
#include "tiny/base/env.h"
#include "tiny/run/version.h"

using namespace tiny;

namespace {

uint64_t seed_of_the_day() {
  return static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch().count()) %
         1000000007 * 1000;
}

}  // namespace

int main(int count, char** arguments) {
  if (print_version("fuzz", count, arguments)) return 0;
  std::map<std::string, std::string> given;
  for (int i = 1; i < count; ++i) {
    const std::string word = arguments[i];
    const size_t at = word.find('=');
    if (at == word.npos) {
      std::cerr << word << " is no NAME=value\n";
      return 2;
    }
    if (at + 1 < word.size()) given[word.substr(0, at)] = word.substr(at + 1);
  }
  const auto number = [&](const char* name, double standard) {
    return given.contains(name) ? std::stod(given[name]) : standard;
  };
  if (given.contains("LINE")) return programs::run_line(given["LINE"], given["SETTING"]);
  programs::Campaign c;
  c.first = given.contains("SEED") ? std::stoull(given["SEED"]) : seed_of_the_day();
  c.seconds = number("SECONDS", 0);
  c.count = static_cast<int64_t>(number("N", c.seconds > 0 ? 1e9 : 1000));
  c.jobs = static_cast<int64_t>(number("JOBS", std::max(1u, std::thread::hardware_concurrency())));
  c.batch = static_cast<int64_t>(number("BATCH", 50));
  c.silence = number("SILENCE", 60);
  c.most_failures = static_cast<int64_t>(number("FAILURES", 20));
  c.folder = given["FOLDER"];
  if (!given.contains("DEVICE")) given["DEVICE"] = env_text("DEVICE");
  if (!given["DEVICE"].empty()) c.device = given["DEVICE"];
  c.settings = programs::usual_settings(c.device);
  if (given.contains("SETTING")) {
    c.settings = {given["SETTING"]};
    if (c.settings[0] == "none") c.settings = {""};
    if (c.device != "CPU") c.settings[0] = "DEVICE=" + c.device + " " + c.settings[0];
  }
  std::istringstream names(given["ROWS"]);
  for (std::string name; std::getline(names, name, ',');)
    c.rows.push_back(programs::row_named(name));
  if (given.contains("PRINT")) {
    std::cout << programs::to_cpp(programs::random_program(c.first, c.rows), c.settings[0]);
    return 0;
  }
  std::cout << "random programs from SEED=" << c.first << " on " << c.device << std::endl;
  const programs::Tally tally = programs::run(c);
  std::cout << to_text(tally) << std::endl;
  return tally.failures || tally.wrong ? 1 : 0;
}
