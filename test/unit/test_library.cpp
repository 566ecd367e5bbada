// Opening libraries at run time: which file of several, and what the error says where none is fit.
#include <doctest/doctest.h>

#include "tiny/base/library.h"

using namespace tiny;

namespace {

// Fit is what has the function.
OpenedLibrary open_with(const std::vector<std::string>& files, const std::string& symbol) {
  return open_library(files, RTLD_LAZY, [&](void* library, const std::string&) {
    void (*function)() = nullptr;
    LibraryFunctions functions(library);
    functions.need(symbol, function);
    return functions.missing().empty() ? "" : "has no function " + functions.missing();
  });
}

}  // namespace

TEST_CASE("the first library that is there and fit is opened") {
  const OpenedLibrary found =
      open_with({"libNoSuch.so.1", "libz.so.1", "libm.so.6", "libc.so.6"}, "cosf");
  REQUIRE(found.handle);
  CHECK(found.file == "libm.so.6");
  CHECK(found.failure == "");
  double (*cosine)(double) = nullptr;
  REQUIRE(LibraryFunctions(found.handle).find("cos", cosine));
  CHECK(cosine(0) == 1);
  dlclose(found.handle);
}

TEST_CASE("where no library is fit the failure names all files and the faults of those there") {
  const OpenedLibrary none = open_with({"libNoSuch.so.1", "libm.so.6", "libc.so.6"}, "no_such");
  CHECK(!none.handle);
  CHECK(none.failure ==
        "searched for libNoSuch.so.1, libm.so.6, libc.so.6 (libm.so.6: has no function no_such; "
        "libc.so.6: has no function no_such)");
}

TEST_CASE("where no library is there the failure has the linker's reason for the first") {
  const OpenedLibrary none = open_library({"libNoSuch.so.1", "/nowhere/libNoSuch.so.2"});
  CHECK(!none.handle);
  CHECK(none.failure ==
        "searched for libNoSuch.so.1, /nowhere/libNoSuch.so.2 (libNoSuch.so.1: cannot open shared "
        "object file: No such file or directory)");
}

TEST_CASE("the first function that a library lacks is kept") {
  const OpenedLibrary math = open_library({"libm.so.6"});
  REQUIRE(math.handle);
  LibraryFunctions functions(math.handle);
  void (*f)() = nullptr;
  functions.need("sinf", f);
  CHECK(functions.missing() == "");
  CHECK(!functions.find("optional", f));
  functions.need("first", f);
  functions.need("second", f);
  CHECK(functions.missing() == "first");
  dlclose(math.handle);
}
