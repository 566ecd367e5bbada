// The version of the library. TINY_VERSION is the one place that says it: the Makefile reads it for
// the soname, tiny.pc and the CMake package.
#pragma once
#define TINY_VERSION "0.1.0"  // major.minor.patch: binaries run with every patch of their minor

namespace tiny {

// The version of the library that the program runs with; TINY_VERSION is the one of the headers
// that it was compiled with.
const char* version();

// Prints "name 0.1.0" where --version is among the words of the command line; whether it did.
bool print_version(const char* name, int argc, const char* const* argv);

}  // namespace tiny
