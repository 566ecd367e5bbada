// A library that stands in for AMD's libamdhip64, libhiprtc and librccl: GPUs of host memory,
// whose streams do what they are given as late as the rules allow, so that a wait that is missing
// shows as wrong values. What kernels are is left to the test.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "codegen/target/source.h"

namespace tiny::test {

struct FakeHip {
  // The machine: to be set before anything asks.
  int devices = 2, version = 60042131;
  std::string arch = "gfx942:sramecc+:xnack-";
  int warp = 64;
  size_t memory = size_t{1} << 30;  // of each GPU, bytes
  bool pools = true, peers = true;

  // Kernels. compile: "" and a log where it fails; run may throw, which is a fault of the GPU.
  std::function<std::string(const std::string& text, const std::string& arch, std::string& log)>
      compile;
  std::function<std::shared_ptr<void>(int device, const std::string& binary,
                                      const std::string& entry)>
      load;
  std::function<void(int device, void* kernel, const LaunchSize&, const std::vector<void*>&)> run;
  std::function<void*(int device, size_t bytes)> alloc;
  std::function<void(int device, void* block, size_t bytes)> free;

  // The next call of a function gives this status instead.
  std::map<std::string, int> fail;

  // What was called, with what matters of the arguments; what the GPUs did, in order.
  std::vector<std::string> calls, done;
  std::string fault;                                                 // what `run` threw
  std::map<int, size_t> used;                                        // bytes by device
  int streams = 0, events = 0, modules = 0, graphs = 0, pinned = 0;  // that exist
};

}  // namespace tiny::test

// The library's one: dlsym(library, "fake_hip").
extern "C" tiny::test::FakeHip* fake_hip();
