// The environment variables of the library: one table, and the functions that read it. A value
// comes from an EnvOverride in force, else from the process environment, else from the table; it
// is looked up at every call, and an empty value counts as unset.
#pragma once
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tiny {

// The value of a variable of kind int. Throws Error when the text is not a 64-bit integer, Bug
// when the table has no such variable or it is of the other kind.
int64_t env_int(std::string_view name);

// The value of a variable of kind text. Throws Bug as above.
std::string env_text(std::string_view name);

// A condition on variables that is asked for too often to look them up each time, as at every
// launch of a kernel: `now` is called when it is first asked for, and again after each change of an
// EnvOverride. Changes of the process environment in between are not seen. Any thread; constinit
// where it is a global variable, since worker processes do their work before main().
class EnvCondition {
 public:
  constexpr explicit EnvCondition(bool (*now)()) : now_(now) {}
  operator bool() const;

 private:
  bool (*const now_)();
  mutable std::atomic<uint64_t> known_{0};  // twice the age of the overrides, and the answer
};

// Gives a variable another value while the object lives, in all threads. Overrides of one
// variable must end in the reverse order of their beginning, as scopes of one thread do. Throws
// Error for a variable that is not in the table.
class EnvOverride {
 public:
  EnvOverride(std::string_view name, std::string_view value);
  ~EnvOverride();
  EnvOverride(const EnvOverride&) = delete;
  EnvOverride& operator=(const EnvOverride&) = delete;

 private:
  std::string name_;
  std::optional<std::string> outer_;  // the override that this one hides
};

// All variables that change generated kernels with their present values, "OPT=1 FUSE=1": a part
// of every key of a kernel cache.
std::string env_kernel_key();

// All variables that are set, with their values: what another process needs to see the same.
std::vector<std::pair<std::string, std::string>> env_settings();

// The table for people: as Markdown for docs/environment.md, as aligned lines for --help.
std::string env_table_markdown();
std::string env_help();

}  // namespace tiny
