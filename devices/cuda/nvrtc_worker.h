// NVRTC compiles one kernel at a time in a process. While it does, others are compiled by worker
// processes: copies of this program that are started when a compilation would have to wait, serve
// requests from a socket before main() would run, and end with this process.
#pragma once
#include <string>

#include "devices/cuda/nvrtc.h"

namespace tiny {

// nvrtc_compile in this process where it is free, else in a worker. Obeys NVRTC_WORKERS. A worker
// that dies is none: its kernel is compiled in this process.
NvrtcResult compile_in_workers(const std::string& text, const std::string& arch);

}  // namespace tiny
