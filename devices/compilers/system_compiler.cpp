#include "devices/compilers/system_compiler.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>

#include "tiny/base/env.h"
#include "tiny/base/error.h"
#include "tiny/base/file.h"
#include "tiny/base/text.h"

extern char** environ;

namespace tiny {
namespace {

using Words = std::vector<std::string>;

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write_file(const std::string& path, const std::string& bytes) {
  const FileLimitGuard guard;
  std::ofstream file(path, std::ios::binary);
  file << bytes;
  file.close();
  if (!file) throw DeviceError(cat("cannot write ", path, ": ", std::strerror(errno)));
}

// A folder of our own under TMPDIR, removed with the files named in it.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    const char* parent = std::getenv("TMPDIR");
    path_ = cat(parent && *parent ? parent : "/tmp", "/tiny-XXXXXX");
    if (mkdtemp(path_.data()) == nullptr)
      throw DeviceError(cat("cannot make the folder ", path_, ": ", std::strerror(errno)));
  }
  ~TemporaryFolder() {
    for (const std::string& file : files_) unlink(file.c_str());
    rmdir(path_.c_str());
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::string file(const std::string& name) {
    files_.push_back(path_ + "/" + name);
    return files_.back();
  }

 private:
  std::string path_;
  Words files_;
};

// Where the outputs of a child process go.
class Redirections {
 public:
  Redirections(const std::string& out, const std::string& err) {
    posix_spawn_file_actions_init(&actions_);
    add(STDIN_FILENO, "/dev/null", O_RDONLY);
    add(STDOUT_FILENO, out, O_WRONLY | O_CREAT | O_TRUNC);
    add(STDERR_FILENO, err, O_WRONLY | O_CREAT | O_TRUNC);
  }
  ~Redirections() { posix_spawn_file_actions_destroy(&actions_); }
  const posix_spawn_file_actions_t* get() const { return &actions_; }

 private:
  void add(int descriptor, const std::string& path, int flags) {
    posix_spawn_file_actions_addopen(&actions_, descriptor, path.c_str(), flags, 0600);
  }
  posix_spawn_file_actions_t actions_;
};

// Runs a program found by PATH and gives its wait status. Throws DeviceError if it cannot start.
int run_process(const SystemCompiler& compiler, const Words& words, const std::string& out,
                const std::string& err) {
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  Redirections redirections(out, err);
  pid_t child = 0;
  const int failure =
      posix_spawnp(&child, arguments[0], redirections.get(), nullptr, arguments.data(), environ);
  if (failure != 0)
    throw DeviceError(cat("cannot run the ", compiler.language, " compiler ", words[0], ": ",
                          std::strerror(failure), "; ", compiler.advice));
  int status = 0;
  while (waitpid(child, &status, 0) < 0)
    if (errno != EINTR)
      throw DeviceError(cat("waiting for the compiler ", words[0], ": ", std::strerror(errno)));
  return status;
}

bool succeeded(int status) { return WIFEXITED(status) && WEXITSTATUS(status) == 0; }

// Where PATH has a program; empty where it has none.
std::string find_in_path(const std::string& program) {
  const char* path = std::getenv("PATH");
  TextReader folders(path ? path : "/usr/bin:/bin");
  for (std::string folder; std::getline(folders, folder, ':');)
    if (const std::string file = folder + "/" + program; access(file.c_str(), X_OK) == 0)
      return file;
  return "";
}

std::string join(const Words& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

std::string ask_version(const SystemCompiler& compiler, Words command) {
  TemporaryFolder folder;
  const std::string out = folder.file("out");
  command.push_back("--version");
  if (!succeeded(run_process(compiler, command, out, "/dev/null"))) return "unknown version";
  const std::string text = read_file(out);
  return text.substr(0, text.find('\n'));
}

// The version of each command that was asked for, kept because asking costs a process.
std::string compiler_version(const SystemCompiler& compiler, const Words& command) {
  static std::mutex mutex;
  static auto& versions = *new std::map<std::string, std::string>;
  std::lock_guard lock(mutex);
  const std::string name = find_in_path(command[0]) + " " + join(command);
  const auto known = versions.find(name);
  if (known != versions.end()) return known->second;
  return versions[name] = ask_version(compiler, command);
}

// The first number of "Debian LLD 14.0.6 (compatible with GNU linkers)"; 0 where there is none.
int major_of(const std::string& version) {
  const size_t digit = std::min(version.find_first_of("0123456789"), version.size());
  int major = 0;
  std::from_chars(version.data() + digit, version.data() + version.size(), major);
  return major;
}

// Why the command will not do; empty where it will.
std::string why_unfit(const SystemCompiler& compiler, const Words& command) {
  if (compiler.least_version == 0) return "";
  const std::string version = compiler_version(compiler, command);
  if (major_of(version) >= compiler.least_version) return "";
  return cat(join(command), " is ", version, ", version ", compiler.least_version,
             " or later is needed");
}

// The compiler as the first words of a command: CC may hold a wrapper and flags, "ccache gcc".
Words command_of(const SystemCompiler& compiler) {
  TextReader text(env_text(compiler.variable));
  Words words;
  for (std::string word; text >> word;) words.push_back(word);
  if (!words.empty()) {
    const std::string unfit = why_unfit(compiler, words);
    if (!unfit.empty())
      throw DeviceError(cat(compiler.variable, ": ", unfit, "; ", compiler.advice));
    return words;
  }
  std::string searched, reasons;
  for (const std::string& name : compiler.candidates) {
    searched += (searched.empty() ? "" : ", ") + name;
    if (find_in_path(name).empty()) continue;
    const std::string unfit = why_unfit(compiler, {name});
    if (unfit.empty()) return {name};
    reasons += (reasons.empty() ? "" : "; ") + unfit;
  }
  throw DeviceError(cat("no ", compiler.language, " compiler was found: searched PATH for ",
                        searched, reasons.empty() ? "" : " (" + reasons + ")", "; ",
                        compiler.advice));
}

}  // namespace

std::string system_compiler_id(const SystemCompiler& compiler) {
  const Words command = command_of(compiler);
  return cat(join(command), " ", compiler_version(compiler, command), " ", join(compiler.flags));
}

std::string compile_shared_object(const SystemCompiler& compiler, const std::string& entry,
                                  const std::string& text) {
  return compile_shared_object(compiler, entry, std::vector<std::string>{text});
}

std::string compile_shared_object(const SystemCompiler& compiler, const std::string& entry,
                                  const std::vector<std::string>& texts) {
  Words command = command_of(compiler);
  const std::string name = join(command);
  TemporaryFolder folder;
  const std::string binary = folder.file("kernel.so"), messages = folder.file("messages");
  command.insert(command.end(), compiler.flags.begin(), compiler.flags.end());
  command.insert(command.end(), {"-o", binary});
  for (size_t i = 0; i < texts.size(); ++i) {
    command.push_back(folder.file(cat("kernel", i ? cat(i) : "", compiler.ending)));
    write_file(command.back(), texts[i]);
  }
  if (!succeeded(run_process(compiler, command, "/dev/null", messages)))
    throw DeviceError(cat(name, " cannot compile kernel ", entry, ":\n", read_file(messages)));
  return read_file(binary);
}

std::vector<int> lines_of_code(const std::string& binary, uint64_t offset) {
  TemporaryFolder folder;
  const std::string file = folder.file("kernel.so"), out = folder.file("lines");
  write_file(file, binary);
  const std::string address = formatted("0x%llx", static_cast<unsigned long long>(offset));
  std::vector<int> lines;
  try {
    const SystemCompiler tool = {"lines", "", {}, "", {}, "install binutils"};
    if (!succeeded(run_process(tool, {"addr2line", "-i", "-e", file, address}, out, "/dev/null")))
      return {};
  } catch (const DeviceError&) {
    return {};
  }
  TextReader text(read_file(out));
  for (std::string line; std::getline(text, line);)
    if (const size_t colon = line.rfind(':'); colon != line.npos)
      if (const int number = std::atoi(line.c_str() + colon + 1)) lines.push_back(number);
  return lines;
}

// The file has a name of its own and not that of a memory descriptor: dlopen takes two files of
// the same name for one library, and a descriptor's number comes back after it is closed.
SharedObject::SharedObject(const std::string& binary, const std::string& entry) : entry_(entry) {
  TemporaryFolder folder;
  const std::string path = folder.file("kernel.so");
  write_file(path, binary);
  library_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library_ == nullptr) throw DeviceError(cat("cannot load kernel ", entry, ": ", dlerror()));
}

SharedObject::~SharedObject() { dlclose(library_); }

void* SharedObject::symbol(const std::string& name) const {
  void* address = dlsym(library_, name.c_str());
  if (address == nullptr)
    throw DeviceError(cat("cannot load kernel ", entry_, ": its binary has no ", name));
  return address;
}

}  // namespace tiny
