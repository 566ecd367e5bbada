// A progress bar of one line: fraction, the caller's fields, rate and time left. On a terminal the
// line is drawn again at most ten times a second, elsewhere a line is printed for every tenth.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>

namespace tiny {

// Where a bar is drawn and what time it is.
struct ProgressSink {
  std::ostream* out;
  bool terminal;                    // whether \r returns to the beginning of the line
  int width;                        // columns; longer lines are cut off on a terminal
  std::function<double()> seconds;  // since any fixed moment
};

// Standard output, as it is.
ProgressSink standard_sink();

class Progress {
 public:
  // Counts to `total` in units, such as "samples", from `begun` on, which are in no rate: where a
  // checkpoint left a run.
  Progress(int64_t total, std::string unit, int64_t begun = 0,
           ProgressSink sink = standard_sink());
  // Ends the line, at the fraction that was reached.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Says that `done` units are finished, with a text such as "loss 0.12". The rate counts from the
  // first call, so that what only the first step does (compiling) does not spoil it.
  void update(int64_t done, std::string_view fields = "") { update(done, fields, -1); }
  // The same with the seconds that are left, for what ends by the clock: they take the place of
  // those by the rate, which is not shown.
  void update(int64_t done, std::string_view fields, double left);
  // Whether the last update is old enough for another one: for what costs something to say, such as
  // a value that has to be read from a device.
  bool is_due() const;
  // Draws the last state with the time that it took, and ends the line. Later calls do nothing.
  void finish();

 private:
  double rate() const;
  std::string line() const;
  void draw(const std::string& text);

  struct State {
    double seconds = 0;  // when it was
    int64_t done = 0;
    std::string fields;
    bool by_clock = false;  // the seconds left are the caller's
  };
  struct Drawn {
    double seconds = 0;
    int64_t tenth = 0;
    size_t length = 0;
    bool any = false;
  };

  const int64_t total_;
  const std::string unit_;
  const ProgressSink sink_;
  State start_;
  std::optional<State> first_;
  State now_;
  Drawn drawn_;
  bool finished_ = false;
};

}  // namespace tiny
