// Files that the library reads and writes: only plain ones are read, opening one never waits, a
// file is replaced as a whole, and a limit on file sizes or a full disk is no end of the program.
#pragma once
#include <signal.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace tiny {

// Closes itself.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  int get() const { return fd_; }
  bool ok() const { return fd_ >= 0; }
  int take() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

// While it lives, a write of this thread beyond the limit on file sizes (ulimit -f) fails with
// EFBIG, where SIGXFSZ would end the process. Leaves errno alone.
class FileLimitGuard {
 public:
  FileLimitGuard();
  ~FileLimitGuard();
  FileLimitGuard(const FileLimitGuard&) = delete;
  FileLimitGuard& operator=(const FileLimitGuard&) = delete;

 private:
  sigset_t before_, pending_;
};

// False, with errno set, where not all bytes could be written.
bool write_all(int fd, std::string_view bytes);

// Reads up to `size` bytes at the offset; fewer at the end of the file or where it cannot be read.
int64_t read_some(int fd, int64_t offset, void* data, int64_t size);

// A plain file to read. Throws Error, which begins with `who`, for one that cannot be opened, and
// for folders, pipes and devices.
class InputFile {
 public:
  InputFile(std::string who, std::string path);

  int64_t size() const { return size_; }
  int descriptor() const { return file_.get(); }
  int take() { return file_.take(); }  // gives the descriptor away
  // Throws Error where the file is shorter.
  void read_at(int64_t offset, void* data, int64_t size) const;
  std::string read_all() const;

 private:
  const std::string who_, path_;
  Descriptor file_;
  int64_t size_ = 0;
};

// A plain file as memory, read-only: what is not looked at is not read. Throws Error as InputFile.
class MappedFile {
 public:
  MappedFile(std::string who, std::string path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;
  ~MappedFile();

  const std::string& path() const { return path_; }
  int64_t size() const { return file_.size(); }
  // Bytes [begin, begin + count). Throws Error unless they lie in the file, which may have become
  // shorter since it was opened.
  std::span<const std::byte> bytes(int64_t begin, int64_t count) const;
  // These bytes no longer count as memory of the process; looking at them reads them again.
  void release(int64_t begin, int64_t count) const;

 private:
  const std::string who_, path_;
  InputFile file_;
  std::byte* memory_ = nullptr;
};

// A new file next to its final place, removed again unless it is committed. Those that processes of
// this machine left behind when they were killed are removed when the same place is written again.
// Throws Error, which begins with `who`, where the file cannot be written.
class FileAside {
 public:
  FileAside(std::string who, std::string path, mode_t mode = 0666);
  ~FileAside();
  FileAside(const FileAside&) = delete;
  FileAside& operator=(const FileAside&) = delete;

  const std::string& path() const { return path_; }
  void write(std::string_view bytes);
  void commit();

 private:
  void require(bool ok, const char* action) const;

  const std::string who_, path_;
  std::string aside_;  // empty once there is nothing to remove
  Descriptor file_;
};

}  // namespace tiny
