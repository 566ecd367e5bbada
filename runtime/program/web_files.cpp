#include "runtime/program/web_files.h"

namespace tiny {

namespace {

constexpr std::string_view kModel =
#include <embedded/runtime/program/model.js.inc>
    ;
constexpr std::string_view kPage =
#include <embedded/runtime/program/index.html.inc>
    ;

}  // namespace

// Without the end of a line in front, which the raw string has.
std::string_view model_script() { return kModel.substr(1); }
std::string_view model_page() { return kPage.substr(1); }

}  // namespace tiny
