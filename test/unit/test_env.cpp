#include <doctest/doctest.h>

#include <cstdlib>

#include "tiny/base/env.h"
#include "tiny/base/error.h"

using namespace tiny;

namespace {

// Sets a variable of the process for the length of a test.
class ProcessVariable {
 public:
  ProcessVariable(const char* name, const char* value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    setenv(name, value, 1);
  }
  ~ProcessVariable() {
    if (before_)
      setenv(name_, before_->c_str(), 1);
    else
      unsetenv(name_);
  }

 private:
  const char* name_;
  std::optional<std::string> before_;
};

bool contains(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("an unset or empty variable has the default of the table") {
  ProcessVariable empty_int("CACHE_MB", ""), empty_text("CC", "");
  CHECK(env_int("CACHE_MB") == 1024);
  CHECK(env_text("CC") == "");
}

TEST_CASE("the process environment is read at every call") {
  ProcessVariable first("CACHE_MB", "7");
  CHECK(env_int("CACHE_MB") == 7);
  ProcessVariable second("CACHE_MB", "-8");
  CHECK(env_int("CACHE_MB") == -8);
}

TEST_CASE("a condition on variables follows overrides and looks at the process once") {
  static int looked;
  looked = 0;
  const ProcessVariable before("CHECK_NAN", "");
  const EnvCondition checks([] {
    ++looked;
    return env_int("CHECK_NAN") != 0;
  });
  for (int i = 0; i < 3; ++i) CHECK(!checks);
  CHECK(looked == 1);
  {
    const EnvOverride outer("CHECK_NAN", "1");
    CHECK(checks);
    const EnvOverride inner("CHECK_NAN", "0");
    CHECK(!checks);
  }
  CHECK(!checks);
  const ProcessVariable after("CHECK_NAN", "1");
  CHECK(!checks);
  const EnvOverride another("CHECK_OOB", "2");
  CHECK(checks);
}

TEST_CASE("an override hides the process environment until its scope ends") {
  ProcessVariable process("CACHE_DIR", "/outside");
  {
    EnvOverride outer("CACHE_DIR", "/outer");
    CHECK(env_text("CACHE_DIR") == "/outer");
    {
      EnvOverride inner("CACHE_DIR", "/inner");
      CHECK(env_text("CACHE_DIR") == "/inner");
    }
    CHECK(env_text("CACHE_DIR") == "/outer");
    EnvOverride empty("CACHE_DIR", "");
    CHECK(env_text("CACHE_DIR") == "");
  }
  CHECK(env_text("CACHE_DIR") == "/outside");
}

TEST_CASE("a malformed number names the variable, its value and what is expected") {
  for (const char* bad : {"many", "3x", " 3", "0x10", "1.5", "9223372036854775808"}) {
    EnvOverride scope("CACHE_MB", bad);
    CHECK_THROWS_WITH_AS(
        env_int("CACHE_MB"),
        cat("CACHE_MB=", bad, ": expected an integer of at most 64 bits, such as 1024").c_str(),
        Error);
  }
}

TEST_CASE("a name or kind that is not in the table of variables is a bug") {
  CHECK_THROWS_WITH_AS(env_int("NO_SUCH"),
                       "environment variable NO_SUCH is not in the table of tiny/base/env.cpp",
                       Bug);
  CHECK_THROWS_WITH_AS(env_text("DEBUG"), "environment variable DEBUG is of kind int", Bug);
  CHECK_THROWS_WITH_AS(env_int("CC"), "environment variable CC is of kind text", Bug);
}

TEST_CASE("an override of an unknown variable is an error that lists the known ones") {
  std::string message;
  try {
    EnvOverride scope("DEBIG", "1");
  } catch (const Error& error) {
    message = error.what();
  }
  CHECK(contains(message, "EnvOverride: no environment variable DEBIG is read."));
  CHECK(contains(message, "\n  DEBUG "));
}

TEST_CASE("the kernel key holds the variables that change kernels and no others") {
  EnvOverride opt("OPT", "1"), fuse("FUSE", "1");
  const std::string standard = env_kernel_key();
  CHECK(contains(standard, "OPT=1"));
  CHECK(contains(standard, "FUSE=1"));
  EnvOverride debug("DEBUG", "3"), same("OPT", "01");
  CHECK(env_kernel_key() == standard);
  EnvOverride off("OPT", "0");
  CHECK(env_kernel_key() != standard);
}

TEST_CASE("the printed tables have one line per variable") {
  const std::string markdown = env_table_markdown();
  CHECK(contains(markdown, "| variable | kind | default | meaning |\n|---|---|---|---|\n"));
  CHECK(contains(markdown, "| `CACHE_MB` | int | 1024 | "));
  CHECK(contains(env_help(), "\n  CACHE_MB "));
  CHECK(contains(env_help(), "[1024]\n"));
}
