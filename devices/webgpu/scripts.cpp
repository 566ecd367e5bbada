#include "devices/webgpu/scripts.h"

namespace tiny {

std::string_view runner_script() {
  return
#include <embedded/devices/webgpu/runner.mjs.inc>
      ;
}

std::string_view page_script() {
  return
#include <embedded/devices/webgpu/page.js.inc>
      ;
}

}  // namespace tiny
