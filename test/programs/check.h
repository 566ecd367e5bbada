// Runs a program under a setting and compares its results with the reference evaluator's.
#pragma once
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "test/programs/program.h"

namespace tiny::programs {

// A setting is words: VARIABLE=value of the environment, or
//   JIT      replayed by a Jit on other data, against plain calls, to the bit; on GPUs
//            with DETERMINISTIC=1
//   LENGTHS  leaves cut to a length that varies while a Jit replays
//   LITTLE_MEMORY  all at once, in less memory than the plan takes
//   SLOPE    gradients against difference quotients of the reference evaluator
// DEVICE=CPU,CPU:1 cuts the leaves over several devices.

// "" where all is well, else what is wrong, "throws: ..." for an exception.
// Differences that rounding explains are none: where some disturbance of each rounded value by a
// few units moves a result as far, as it does where a comparison is decided by its last bit.
class Checker {
 public:
  // `fault`, where a test gives one, changes the values that are compared with the reference.
  using Fault = std::function<Tensor(size_t step, const Tensor& value)>;
  explicit Checker(const Program& program, Fault fault = {})
      : program_(program), fault_(std::move(fault)) {}
  std::string difference(const std::string& setting);
  bool was_left_out() const { return left_out_; }  // the setting does not fit the program
  bool was_tie() const { return tie_; }            // the last difference was explained by rounding

 private:
  std::string compare_all(const std::vector<std::string>& devices, bool little_memory);
  std::string compare(size_t result, const HostTensor& got, double unit);
  std::string compare_lengths();
  const Step* longest_leaf() const;
  std::string left_out() {
    left_out_ = true;
    return "";
  }
  std::string compare_replays();
  std::string compare_slopes();
  const std::vector<HostTensor>& wanted();
  double spread(size_t result);
  Tensor disturbed(size_t n, const Tensor& v, std::vector<double>& largest, std::mt19937_64* random,
                   bool again) const;

  const Program& program_;
  const Fault fault_;
  std::function<Tensor(const Step&)> leaf_ = {};  // of what is compared with
  std::optional<std::vector<HostTensor>> wanted_;
  std::vector<std::vector<HostTensor>> disturbed_;
  bool tie_ = false, left_out_ = false;
};

// The settings for a device that need not be named.
std::vector<std::string> usual_settings(const std::string& device);

// For people: "no setting" where there is none.
inline std::string name_of(const std::string& setting) {
  return setting.empty() ? "no setting" : setting;
}

// Whether the reference evaluator can run the program: sizes fit, which they may not while it is
// made smaller.
bool is_sound(const Program& program);

// What is wrong, beside the program and a smaller one, as C++, that fails in the same way.
std::string report(const Program& program, const std::string& setting, const std::string& text);

}  // namespace tiny::programs
