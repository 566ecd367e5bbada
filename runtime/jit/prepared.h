// Steps of a replay that read tensors from outside alone, which the step never assigns to: weights
// that are packed. They run when one of these has changed, and their results stay in between.
#pragma once
#include <map>
#include <memory>
#include <vector>

#include "runtime/device/buffer.h"
#include "runtime/schedule/schedule.h"

namespace tiny {

class PreparedSteps {
 public:
  // By value: memory from outside that only others write.
  using Outside = std::map<int, std::shared_ptr<Memory>>;

  // Takes such steps of the CPU, where memory is plenty, out of the schedule, unless they make more
  // of what they read: `fixed` gets the addresses of their values.
  void take_from(Schedule& schedule, const Outside& outside, std::vector<void*>& fixed);

  // Runs them where what they read is not what it was.
  void refresh();

 private:
  bool is_prepared(const Step& step, const Schedule& s) const;
  void give_memory(const Step& step, Schedule& s, std::vector<void*>& fixed);

  Schedule schedule_;  // of these steps
  std::map<int, void*> addresses_;
  std::vector<std::shared_ptr<Buffer>> buffers_;
  std::map<std::shared_ptr<Memory>, uint64_t> seen_;  // how often each had changed
  Outside outside_;
};

}  // namespace tiny
