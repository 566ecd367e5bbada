// The scripts of this folder, which the library holds as text.
#pragma once
#include <string_view>

namespace tiny {

std::string_view runner_script();  // runner.mjs
std::string_view page_script();    // page.js

}  // namespace tiny
