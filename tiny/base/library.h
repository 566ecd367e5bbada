// Shared libraries of vendors (drivers, compilers, z3), opened at run time: nothing of them is
// needed to build.
#pragma once
#include <dlfcn.h>

#include <string>
#include <vector>

#include "tiny/base/error.h"

namespace tiny {

// The functions of an open library, bound to pointers one by one.
class LibraryFunctions {
 public:
  explicit LibraryFunctions(void* library) : library_(library) {}

  // False where the library has no such function.
  template <class F> bool find(const std::string& symbol, F& function) {
    function = reinterpret_cast<F>(dlsym(library_, symbol.c_str()));
    return function != nullptr;
  }
  template <class F> void need(const std::string& symbol, F& function) {
    if (!find(symbol, function) && missing_.empty()) missing_ = symbol;
  }
  const std::string& missing() const { return missing_; }  // the first that was needed

 private:
  void* library_;
  std::string missing_;
};

// Either a handle and its file, or why there is none: "searched for a.so, b.so (a.so: cannot ...)".
struct OpenedLibrary {
  void* handle = nullptr;
  std::string file, failure;
};

// Opens the first of these files that is there and fit: `fault(handle, file)` says why one is not,
// and nothing of one that is. The failure has the faults of all files that are there; where none
// is, the linker's reason for the first. `binding`: RTLD_LAZY for large libraries.
template <class Fault>
OpenedLibrary open_library(const std::vector<std::string>& files, int binding, Fault fault) {
  std::string absent, unfit, names;
  for (const std::string& file : files) {
    void* handle = dlopen(file.c_str(), binding | RTLD_LOCAL);
    std::string reason = handle ? fault(handle, file) : dlerror();
    if (reason.empty()) return {handle, file, ""};
    if (handle) {
      dlclose(handle);
      reason = cat(file, ": ", reason);
    }
    const bool is_there = handle || reason.find("No such file") == std::string::npos;
    if (is_there) unfit += (unfit.empty() ? "" : "; ") + reason;
    if (absent.empty()) absent = reason;
    names += (names.empty() ? "" : ", ") + file;
  }
  return {nullptr, "", cat("searched for ", names, " (", unfit.empty() ? absent : unfit, ")")};
}

inline OpenedLibrary open_library(const std::vector<std::string>& files) {
  return open_library(files, RTLD_NOW, [](void*, const std::string&) { return std::string(); });
}

}  // namespace tiny
