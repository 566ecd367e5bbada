// A folder that is removed at the end of the test.
#pragma once
#include <unistd.h>

#include <filesystem>
#include <string>

#include "tiny/base/error.h"

namespace tiny::test {

class TemporaryFolder {
 public:
  // `name`: of the test, which makes one at a time.
  explicit TemporaryFolder(const std::string& name)
      : path_(std::filesystem::temp_directory_path() / cat("tiny_test_", name, "_", ::getpid())) {
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::string file(const std::string& name) const { return (path_ / name).string(); }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

}  // namespace tiny::test
