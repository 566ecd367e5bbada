// Files of an export for browsers, which the library holds as text.
#pragma once
#include <string_view>

namespace tiny {

std::string_view model_script();  // model.js
std::string_view model_page();    // index.html

}  // namespace tiny
