#include "tiny/base/file.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <optional>

#include "test/error_of.h"
#include "tiny/base/error.h"

using namespace tiny;
namespace fs = std::filesystem;

namespace {

struct Folder {
  std::string path = "/tmp/tiny-test-file-XXXXXX";
  Folder() { REQUIRE(mkdtemp(path.data()) != nullptr); }
  ~Folder() { fs::remove_all(path); }
  std::string file(const std::string& name) const { return path + "/" + name; }
  int count() const {
    return static_cast<int>(std::distance(fs::directory_iterator(path), fs::directory_iterator{}));
  }
};

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void save(const std::string& path, const std::string& text) {
  FileAside file("test", path);
  file.write(text);
  file.commit();
}

// Files of this process may be of so many bytes while it lives (ulimit -f).
class FileLimit {
 public:
  explicit FileLimit(rlim_t bytes) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit less{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &less);
  }
  ~FileLimit() { setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_{};
};

// What a process does that is killed while it does so.
template <class Call> void run_and_kill(const Call& call) {
  const pid_t child = fork();
  if (child == 0) {
    call();
    kill(getpid(), SIGKILL);
  }
  int status = 0;
  waitpid(child, &status, 0);
  REQUIRE(WIFSIGNALED(status));
}

}  // namespace

TEST_CASE("a folder, a pipe and a device are no files to read or to write, and nobody waits") {
  const Folder folder;
  const std::string pipe = folder.file("pipe");
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  const auto read = [](const std::string& path) {
    return error_of([&] { InputFile("test", path); });
  };
  CHECK(read(folder.path) == cat("test: ", folder.path, " is a folder, not a file"));
  CHECK(read(pipe) == cat("test: ", pipe, " is a pipe, not a file"));
  CHECK(read("/dev/null") == "test: /dev/null is a device, not a file");
  CHECK(read(folder.file("none")) ==
        cat("test: cannot open ", folder.file("none"), ": No such file or directory"));
  CHECK(error_of([&] { save(pipe, "x"); }) ==
        cat("test: cannot write ", pipe, ": it is a pipe, not a file"));
  CHECK(error_of([] { save("/dev/null", "x"); }) ==
        "test: cannot write /dev/null: it is a device, not a file");
  CHECK(folder.count() == 1);
}

TEST_CASE("a file that is not committed leaves what was there, and nothing else") {
  const Folder folder;
  save(folder.file("a"), "old");
  { FileAside("test", folder.file("a")).write("new"); }
  CHECK(read_file(folder.file("a")) == "old");
  CHECK(folder.count() == 1);
  save(folder.file("a"), "new");
  CHECK(read_file(folder.file("a")) == "new");
}

TEST_CASE("what a killed process left behind is removed when the file is written again") {
  const Folder folder;
  const std::string path = folder.file("a");
  std::optional<FileAside> file;
  run_and_kill([&] { file.emplace("test", path).write("half"); });
  run_and_kill([&] { file.emplace("test", folder.file("b")).write("half"); });
  REQUIRE(folder.count() == 2);
  save(path, "whole");
  CHECK(read_file(path) == "whole");
  CHECK(folder.count() == 2);  // the other one is not asked for
  save(folder.file("b"), "whole");
  CHECK(folder.count() == 2);
}

TEST_CASE("a file that a process still writes is left alone, also where it is this process") {
  const Folder folder;
  const std::string path = folder.file("a");
  FileAside mine("test", path);
  mine.write("mine");
  int ready[2], go_on[2];
  REQUIRE(pipe(ready) == 0);
  REQUIRE(pipe(go_on) == 0);
  char byte = 0;
  const pid_t child = fork();
  if (child == 0) {
    FileAside other("test", path);
    other.write("other");
    const bool told = write(ready[1], "x", 1) == 1 && read(go_on[0], &byte, 1) == 1;
    other.commit();
    _exit(told ? 0 : 1);
  }
  REQUIRE(read(ready[0], &byte, 1) == 1);
  save(path, "third");
  CHECK(folder.count() == 3);
  REQUIRE(write(go_on[1], "x", 1) == 1);
  int status = -1;
  waitpid(child, &status, 0);
  CHECK(status == 0);
  CHECK(read_file(path) == "other");
  mine.commit();
  CHECK(read_file(path) == "mine");
  CHECK(folder.count() == 1);
  for (int end : {ready[0], ready[1], go_on[0], go_on[1]}) close(end);
}

TEST_CASE("a limit on file sizes is an error that leaves the old file, and no end of the program") {
  const Folder folder;
  const std::string path = folder.file("a");
  save(path, "old");
  std::string problem;
  {
    const FileLimit limit(4096);
    problem = error_of([&] { save(path, std::string(100000, 'x')); });
  }
  CHECK(problem == cat("test: cannot write ", path, ": File too large"));
  CHECK(read_file(path) == "old");
  CHECK(folder.count() == 1);
  sigset_t waiting;
  sigpending(&waiting);
  CHECK_FALSE(sigismember(&waiting, SIGXFSZ));
}

TEST_CASE("a full disk is an error") {
  const Descriptor full(open("/dev/full", O_WRONLY | O_CLOEXEC));
  if (!full.ok()) return;
  CHECK_FALSE(write_all(full.get(), "x"));
  CHECK(errno == ENOSPC);
}

TEST_CASE("a mapped file gives the bytes that lie in it, also after they were released") {
  const Folder folder;
  const std::string path = folder.file("a"), text(10000, 'x');
  save(path, text);
  MappedFile first("test", path);
  const MappedFile file(std::move(first));
  const auto bytes = [&](int64_t begin, int64_t count) {
    const auto found = file.bytes(begin, count);
    return std::string(reinterpret_cast<const char*>(found.data()), found.size());
  };
  CHECK(file.path() == path);
  CHECK(file.size() == 10000);
  CHECK(bytes(0, 10000) == text);
  file.release(0, 10000);
  file.release(9999, 1);
  CHECK(bytes(5000, 5000) == text.substr(5000));
  CHECK(bytes(10000, 0) == "");
  const int64_t most = std::numeric_limits<int64_t>::max();
  for (const auto& [begin, count] : {std::pair<int64_t, int64_t>{0, 10001},
                                     {10000, 1},
                                     {10001, 0},
                                     {-1, 1},
                                     {1, -1},
                                     {most, most}})
    CHECK(error_of([&, begin = begin, count = count] { bytes(begin, count); }) ==
          cat("test: ", path, ": expected ", count, " bytes at ", begin,
              ", found 10000 bytes in all"));
  fs::resize_file(path, 9000);
  CHECK(error_of([&] { bytes(0, 1); }) ==
        cat("test: ", path, " had 10000 bytes when it was opened and now has 9000"));
}

TEST_CASE("an empty file can be mapped, a folder and a file that is missing cannot") {
  const Folder folder;
  save(folder.file("a"), "");
  const MappedFile file("test", folder.file("a"));
  CHECK(file.bytes(0, 0).empty());
  file.release(0, 0);
  CHECK(error_of([&] { MappedFile("test", folder.path); }) ==
        cat("test: ", folder.path, " is a folder, not a file"));
  CHECK(error_of([&] { MappedFile("test", folder.file("b")); }) ==
        cat("test: cannot open ", folder.file("b"), ": No such file or directory"));
}
