// The parts of an export for browsers besides the program itself: model.js and a page.
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "runtime/program/folder.h"
#include "runtime/program/web_files.h"
#include "tiny/base/error.h"
#include "tiny/base/file.h"
#include "tiny/base/text.h"
#include "tiny/program/program.h"

namespace tiny {

namespace {

// A script with the comment that it begins with, and behind that neither comments nor indentation.
std::string without_notes(const std::string& script) {
  std::string out;
  TextReader lines(script);
  bool begins = true;
  for (std::string line; std::getline(lines, line);) {
    const size_t at = line.find_first_not_of(' ');
    const bool is_comment = at != line.npos && line.compare(at, 2, "//") == 0;
    begins &= is_comment;
    if (begins) out += line + "\n";
    if (!begins && at != line.npos && !is_comment) out += line.substr(at) + "\n";
  }
  return out;
}

}  // namespace

void make_folder(const std::string& path) {
  check(mkdir(path.c_str(), 0777) == 0 || errno == EEXIST, "save_program: cannot make the folder ",
        path, ": ", std::strerror(errno));
  struct stat found {};
  check(stat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode), "save_program: ", path,
        " is there, and is no folder");
}

void write_file(const std::string& path, std::string_view bytes) {
  FileAside file("save_program", path);
  file.write(bytes);
  file.commit();
}

void export_webgpu_function(const TensorFunction& function, const std::vector<Tensor>& examples,
                            const std::string& folder, const ProgramOptions& options) {
  ProgramOptions given = options;
  given.device = "WEBGPU";
  save_function(function, examples, folder, given);
  write_file(folder + "/model.js", without_notes(std::string(model_script())));
  write_file(folder + "/index.html",
             options.page.empty() ? std::string(model_page()) : options.page);
}

}  // namespace tiny
