#include "devices/compilers/system_compiler.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "devices/compilers/llvm_library.h"
#include "devices/hip/llvm.h"
#include "tiny/base/env.h"
#include "tiny/base/error.h"

using namespace tiny;
namespace fs = std::filesystem;

namespace {

// A folder of programs that only say their version, which is all that PATH has while it lives.
class Programs {
 public:
  Programs() : before_(std::getenv("PATH")) {
    REQUIRE(mkdtemp(folder_.data()) != nullptr);
    setenv("PATH", folder_.c_str(), 1);
  }
  ~Programs() {
    setenv("PATH", before_.c_str(), 1);
    fs::remove_all(folder_);
  }
  void add(const std::string& name, const std::string& version) const {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path) << "#!/bin/sh\necho '" << version << "'\n";
    chmod(path.c_str(), 0700);
  }
  std::string file(const std::string& name) const { return folder_ + "/" + name; }

 private:
  std::string folder_ = "/tmp/tiny-test-path-XXXXXX";
  const std::string before_;
};

std::string error_of(const SystemCompiler& compiler) {
  try {
    return system_compiler_id(compiler);
  } catch (const DeviceError& error) {
    return error.what();
  }
}

}  // namespace

TEST_CASE("a linker that is too old is passed over for one that is new enough") {
  const Programs programs;
  programs.add("ld.old", "Debian LLD 14.0.6 (compatible with GNU linkers)");
  const SystemCompiler lld{"AMD", "AMD_LINKER", {"ld.new", "ld.old"}, ".o", {}, "install one", 19};
  CHECK(error_of(lld) ==
        "no AMD compiler was found: searched PATH for ld.new, ld.old (ld.old is Debian LLD 14.0.6 "
        "(compatible with GNU linkers), version 19 or later is needed); install one");
  programs.add("ld.new", "LLD 19.1.7");
  CHECK(error_of(lld) == "ld.new LLD 19.1.7 ");
}

TEST_CASE("a linker whose name has no version is taken where it is new enough") {
  const Programs programs;
  const SystemCompiler lld{"AMD", "AMD_LINKER", {"ld.new", "ld"}, ".o", {}, "install one", 19};
  programs.add("ld", "Ubuntu LLD 20.1.0 (compatible with GNU linkers)");
  CHECK(error_of(lld) == "ld Ubuntu LLD 20.1.0 (compatible with GNU linkers) ");
}

TEST_CASE("a linker that a variable names and that is too old is an error with both versions") {
  const Programs programs;
  programs.add("ld", "LLD 17.0.0 (roc-6.1)");
  const EnvOverride named("AMD_LINKER", programs.file("ld"));
  const SystemCompiler lld{"AMD", "AMD_LINKER", {}, ".o", {}, "install one", 19};
  CHECK(error_of(lld) == cat("AMD_LINKER: ", programs.file("ld"),
                             " is LLD 17.0.0 (roc-6.1), version 19 or later is needed; install "
                             "one"));
}

TEST_CASE("AMD: beside LLVM's library an older lld alone is none, and the reason says so") {
  if (!llvm_available()) return;
  const EnvOverride none("AMD_LINKER", "");
  const Programs programs;
  programs.add("ld.lld", "Debian LLD 14.0.6 (compatible with GNU linkers)");
  const std::string reason = amd_llvm_missing_reason();
  const std::string wanted = cat("version ", llvm_c::library().major, " or later is needed");
  if (reason.find("was built without AMD's GPUs") != std::string::npos) return;
  CHECK(reason.find("ld.lld is Debian LLD 14.0.6") != std::string::npos);
  CHECK(reason.find(wanted) != std::string::npos);
}
