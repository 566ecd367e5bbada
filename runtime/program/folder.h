// The files of a saved program.
#pragma once
#include <string>
#include <string_view>

namespace tiny {

// Throw Error, with the path, where the system refuses.
void make_folder(const std::string& path);  // may be there already
void write_file(const std::string& path, std::string_view bytes);

}  // namespace tiny
