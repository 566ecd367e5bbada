#include "runtime/distributed/rank_secret.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "tiny/base/env.h"
#include "tiny/base/error.h"

using namespace tiny;

namespace {

constexpr uint16_t kPort = 1;  // no run meets there

}  // namespace

TEST_CASE("the secret of a run is there while rank 0 waits, for its user alone") {
  const std::string path = cat(secret_folder(), "/ranks-", kPort);
  CHECK(find_secret(kPort, true) == "");
  std::ofstream(path) << std::string(32, 'x');  // of a run that was killed
  std::string before;
  for (int i = 0; i < 2; ++i) {
    const OwnSecret own(kPort);
    CHECK(own.text().size() == 32);
    CHECK(own.text() != before);
    CHECK(own.text() != std::string(32, 'x'));
    CHECK(find_secret(kPort, true) == own.text());
    struct stat info {};
    REQUIRE(::stat(path.c_str(), &info) == 0);
    CHECK((info.st_mode & 0777) == 0600);
    before = own.text();
  }
  CHECK(find_secret(kPort, true) == "");
  CHECK(!std::filesystem::exists(path));
}

TEST_CASE("what is no file of a secret is none") {
  const std::string path = cat(secret_folder(), "/ranks-", kPort);
  REQUIRE(::mkfifo(path.c_str(), 0600) == 0);  // nobody waits for who would write into it
  CHECK(find_secret(kPort, true) == "");
  std::filesystem::remove(path);
  std::filesystem::create_symlink("/proc/self/environ", path);
  CHECK(find_secret(kPort, true) == "");
  std::filesystem::remove(path);
}

TEST_CASE("a secret that is given needs no file") {
  const EnvOverride given("TINY_SECRET", "given");
  const OwnSecret own(kPort);
  CHECK(own.text() == "given");
  CHECK(find_secret(kPort, false) == "given");
  CHECK(!std::filesystem::exists(cat(secret_folder(), "/ranks-", kPort)));
}

TEST_CASE("without a secret that is given rank 0 is to be on this machine") {
  const EnvOverride host("MASTER_ADDR", "192.0.2.1");
  CHECK_THROWS_WITH_AS(find_secret(kPort, false),
                       "ranks: MASTER_ADDR=192.0.2.1 is another machine: set TINY_SECRET to the "
                       "same text for all processes, such as that of openssl rand -hex 32",
                       Error);
}
