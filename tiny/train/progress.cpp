#include "tiny/train/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iostream>
#include <utility>

#include "tiny/base/error.h"
#include "tiny/base/text.h"

namespace tiny {
namespace {

constexpr int kBarCells = 24;
constexpr double kRedrawSeconds = 0.1;
constexpr double kReadSeconds = 0.3;

// "0:07", "12:34", "1:02:03"
std::string duration_text(double seconds) {
  const auto all = static_cast<int64_t>(std::clamp(seconds, 0.0, 3.6e8) + 0.5);
  if (all < 3600) return formatted("%d:%02d", int(all / 60), int(all % 60));
  return formatted("%d:%02d:%02d", int(all / 3600), int(all / 60 % 60), int(all % 60));
}

}  // namespace

ProgressSink standard_sink() {
  winsize size{};
  const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return {&std::cout, isatty(STDOUT_FILENO) == 1, known ? size.ws_col : 80, [] {
            const auto now = std::chrono::steady_clock::now().time_since_epoch();
            return std::chrono::duration<double>(now).count();
          }};
}

Progress::Progress(int64_t total, std::string unit, int64_t begun, ProgressSink sink)
    : total_(total), unit_(std::move(unit)), sink_(std::move(sink)) {
  start_.seconds = sink_.seconds();
  start_.done = begun;
  now_ = start_;
  check(total > 0, "Progress: cannot count to ", total, " ", unit_);
}

Progress::~Progress() {
  try {
    finish();
  } catch (...) {  // a bar is not worth ending the program
  }
}

void Progress::update(int64_t done, std::string_view fields, double left) {
  if (finished_) return;
  now_ = {sink_.seconds(), std::clamp<int64_t>(done, 0, total_), std::string(fields), left >= 0};
  if (!first_) first_ = now_;
  const int64_t tenth = now_.done * 10 / total_;
  const bool due = sink_.terminal ? !drawn_.any || now_.seconds - drawn_.seconds >= kRedrawSeconds
                                  : tenth > drawn_.tenth && now_.done < total_;
  if (!due) return;
  drawn_.tenth = tenth;
  if (!now_.by_clock && rate() > 0) left = (total_ - now_.done) / rate();
  draw(cat(line(), "  ", left >= 0 ? duration_text(left) : "?", " left"));
}

bool Progress::is_due() const { return sink_.seconds() - now_.seconds >= kReadSeconds; }

void Progress::finish() {
  if (finished_) return;
  finished_ = true;
  now_.seconds = sink_.seconds();
  if (!first_) return;  // nothing was ever done
  draw(cat(line(), "  in ", formatted("%.1f", now_.seconds - start_.seconds), " s"));
  if (sink_.terminal) *sink_.out << std::endl;
}

// Units per second since the first update, or since the start where that was the only one.
double Progress::rate() const {
  const bool only = now_.done <= first_->done || now_.seconds <= first_->seconds;
  const State& from = only ? start_ : *first_;
  const double seconds = now_.seconds - from.seconds;
  return seconds > 0 ? (now_.done - from.done) / seconds : 0;
}

std::string Progress::line() const {
  const double fraction = static_cast<double>(now_.done) / total_;
  const int cells = static_cast<int>(fraction * kBarCells);
  const std::string bar = std::string(cells, '#') + std::string(kBarCells - cells, '.');
  const std::string shown = cat("[", bar, "] ", formatted("%3.0f", std::floor(fraction * 100)), "%",
                                now_.fields.empty() ? "" : "  ", now_.fields);
  if (now_.by_clock) return shown;
  return cat(shown, "  ", formatted(rate() < 10 ? "%.1f" : "%.0f", rate()), " ", unit_, "/s");
}

void Progress::draw(const std::string& text) {
  drawn_.any = true;
  drawn_.seconds = now_.seconds;
  if (!sink_.terminal) {
    *sink_.out << text << std::endl;
    return;
  }
  // One column stays free: some terminals wrap when the last one is written.
  std::string shown = text.substr(0, static_cast<size_t>(std::max(sink_.width - 1, 0)));
  const size_t length = shown.size();
  if (length < drawn_.length) shown.append(drawn_.length - length, ' ');
  drawn_.length = length;
  *sink_.out << '\r' << shown << std::flush;
}

}  // namespace tiny
