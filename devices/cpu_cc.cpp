#include "devices/cpu_cc.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <sstream>
#include <vector>

#include "devices/cpu.h"
#include "tiny/env.h"
#include "tiny/error.h"

extern char** environ;

namespace tiny {
namespace {

using Words = std::vector<std::string>;

// No -ffast-math: NaN and infinity keep their meaning. Products may be fused with sums, as the
// LLVM kernels do. Integers wrap as tensors' do. The C library's functions are found in this
// process when the kernel is loaded, so nothing is linked in.
const Words kFlags = {
#if defined(__x86_64__)
    "-march=native",
    "-mprefer-vector-width=512",
#elif defined(__aarch64__)
    "-mcpu=native",
#endif
    "-O2",
    "-fPIC",
    "-shared",
    "-nostdlib",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=fast",
    "-fwrapv",
    "-fno-strict-aliasing",
    "-w"};

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write_file(const std::string& path, const std::string& bytes) {
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
int run_process(const Words& words, const std::string& out, const std::string& err) {
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  Redirections redirections(out, err);
  pid_t child = 0;
  const int failure =
      posix_spawnp(&child, arguments[0], redirections.get(), nullptr, arguments.data(), environ);
  if (failure != 0)
    throw DeviceError(cat("cannot run the C compiler ", words[0], ": ", std::strerror(failure),
                          "; install one (apt install clang) or set CC to one"));
  int status = 0;
  while (waitpid(child, &status, 0) < 0)
    if (errno != EINTR)
      throw DeviceError(cat("waiting for the C compiler ", words[0], ": ", std::strerror(errno)));
  return status;
}

bool succeeded(int status) { return WIFEXITED(status) && WEXITSTATUS(status) == 0; }

bool is_in_path(const std::string& program) {
  const char* path = std::getenv("PATH");
  std::istringstream folders(path ? path : "/usr/bin:/bin");
  for (std::string folder; std::getline(folders, folder, ':');)
    if (access((folder + "/" + program).c_str(), X_OK) == 0) return true;
  return false;
}

// The compiler as the first words of a command: CC may hold a wrapper and flags, "ccache gcc".
Words compiler_command() {
  std::istringstream text(env_text("CC"));
  Words words;
  for (std::string word; text >> word;) words.push_back(word);
  if (!words.empty()) return words;
  for (const char* name : {"clang", "gcc", "cc"})
    if (is_in_path(name)) return {name};
  throw DeviceError(
      "no C compiler was found: searched PATH for clang, gcc, cc; install one (apt install "
      "clang), set CC to one, or use CPU_COMPILER=llvm");
}

std::string join(const Words& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

std::string ask_version(Words command) {
  TemporaryFolder folder;
  const std::string out = folder.file("out");
  command.push_back("--version");
  if (!succeeded(run_process(command, out, "/dev/null"))) return "unknown version";
  const std::string text = read_file(out);
  return text.substr(0, text.find('\n'));
}

// The version of each command that was asked for, kept because asking costs a process.
std::string compiler_version(const Words& command) {
  static std::mutex mutex;
  static std::map<std::string, std::string> versions;
  std::lock_guard lock(mutex);
  auto [entry, is_new] = versions.try_emplace(join(command));
  if (is_new) entry->second = ask_version(command);
  return entry->second;
}

class CcProgram : public CpuProgram {
 public:
  CcProgram(CpuKernel kernel, void* library) : CpuProgram(kernel), library_(library) {}
  ~CcProgram() override { dlclose(library_); }

 private:
  void* library_;
};

}  // namespace

std::string cc_id() {
  const Words command = compiler_command();
  return cat("cc ", join(command), " ", compiler_version(command), " ", join(kFlags), " ",
             host_cpu_id());
}

std::string compile_cc(const Source& source) {
  expect(source.language == Source::Language::C, "compile_cc: kernel ", source.entry, " is not C");
  Words command = compiler_command();
  const std::string compiler = join(command);
  TemporaryFolder folder;
  const std::string text = folder.file("kernel.c"), binary = folder.file("kernel.so");
  const std::string messages = folder.file("messages");
  write_file(text, source.text);
  command.insert(command.end(), kFlags.begin(), kFlags.end());
  command.insert(command.end(), {"-o", binary, text});
  if (!succeeded(run_process(command, "/dev/null", messages)))
    throw DeviceError(
        cat(compiler, " cannot compile kernel ", source.entry, ":\n", read_file(messages)));
  return read_file(binary);
}

// The file has a name of its own and not that of a memory descriptor: dlopen takes two files of
// the same name for one library, and a descriptor's number comes back after it is closed.
std::unique_ptr<Program> load_cc(const std::string& binary, const std::string& entry) {
  TemporaryFolder folder;
  const std::string path = folder.file("kernel.so");
  write_file(path, binary);
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw DeviceError(cat("cannot load kernel ", entry, ": ", dlerror()));
  void* kernel = dlsym(library, entry.c_str());
  if (kernel == nullptr) {
    dlclose(library);
    throw DeviceError(cat("cannot load kernel ", entry, ": its binary has no such function"));
  }
  return std::make_unique<CcProgram>(reinterpret_cast<CpuKernel>(kernel), library);
}

}  // namespace tiny
