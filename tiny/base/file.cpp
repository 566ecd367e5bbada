#include "tiny/base/file.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "tiny/base/error.h"
#include "tiny/base/text.h"

namespace tiny {

namespace fs = std::filesystem;

// --- Limits --------------------------------------------------------------------------------------

namespace {

sigset_t size_signal() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGXFSZ);
  return set;
}

}  // namespace

FileLimitGuard::FileLimitGuard() {
  const sigset_t set = size_signal();
  sigpending(&pending_);
  pthread_sigmask(SIG_BLOCK, &set, &before_);
}

// The signal of a failed write goes to the thread that wrote, where it waits to be taken.
FileLimitGuard::~FileLimitGuard() {
  const int error = errno;
  const sigset_t set = size_signal();
  const timespec at_once{};
  if (!sigismember(&pending_, SIGXFSZ)) sigtimedwait(&set, nullptr, &at_once);
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  errno = error;
}

bool write_all(int fd, std::string_view bytes) {
  const FileLimitGuard guard;
  while (!bytes.empty()) {
    const ssize_t done = ::write(fd, bytes.data(), bytes.size());
    if (done < 0 && errno != EINTR) return false;
    if (done > 0) bytes.remove_prefix(static_cast<size_t>(done));
  }
  return true;
}

// --- Reading -------------------------------------------------------------------------------------

namespace {

const char* name_of_kind(mode_t mode) {
  return S_ISDIR(mode) ? "folder" : S_ISFIFO(mode) ? "pipe" : S_ISSOCK(mode) ? "socket" : "device";
}

}  // namespace

int64_t read_some(int fd, int64_t offset, void* data, int64_t size) {
  int64_t done = 0;
  while (done < size) {
    const ssize_t n =
        pread(fd, static_cast<char*>(data) + done, static_cast<size_t>(size - done), offset + done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    done += n;
  }
  return done;
}

InputFile::InputFile(std::string who, std::string path)
    : who_(std::move(who)),
      path_(std::move(path)),
      file_(open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)) {
  struct stat info {};
  const bool is_open = file_.ok() && fstat(file_.get(), &info) == 0;
  check(is_open, who_, ": cannot open ", path_, ": ", std::strerror(errno));
  check(S_ISREG(info.st_mode), who_, ": ", path_, " is a ", name_of_kind(info.st_mode),
        ", not a file");
  size_ = info.st_size;
}

void InputFile::read_at(int64_t offset, void* data, int64_t size) const {
  const int64_t found = read_some(file_.get(), offset, data, size);
  check(found == size, who_, ": ", path_, ": expected ", size, " bytes at ", offset, ", found ",
        found);
}

std::string InputFile::read_all() const {
  std::string out(static_cast<size_t>(size_), '\0');
  read_at(0, out.data(), size_);
  return out;
}

MappedFile::MappedFile(std::string who, std::string path)
    : who_(std::move(who)), path_(std::move(path)), file_(who_, path_) {
  if (file_.size() == 0) return;  // which cannot be mapped
  void* memory = mmap(nullptr, static_cast<size_t>(file_.size()), PROT_READ, MAP_SHARED,
                      file_.descriptor(), 0);
  check(memory != MAP_FAILED, who_, ": cannot map the ", file_.size(), " bytes of ", path_, ": ",
        std::strerror(errno));
  memory_ = static_cast<std::byte*>(memory);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : who_(other.who_),
      path_(other.path_),
      file_(std::move(other.file_)),
      memory_(std::exchange(other.memory_, nullptr)) {}

MappedFile::~MappedFile() {
  if (memory_ != nullptr) munmap(memory_, static_cast<size_t>(file_.size()));
}

// Memory beyond the end of a file that has become shorter cannot be looked at: that would end the
// process.
std::span<const std::byte> MappedFile::bytes(int64_t begin, int64_t count) const {
  struct stat info {};
  const int64_t size = fstat(file_.descriptor(), &info) == 0 ? info.st_size : 0;
  check(size >= file_.size(), who_, ": ", path_, " had ", file_.size(),
        " bytes when it was opened and now has ", size);
  check(begin >= 0 && count >= 0 && begin <= size && count <= file_.size() - begin, who_, ": ",
        path_, ": expected ", count, " bytes at ", begin, ", found ", file_.size(),
        " bytes in all");
  return {memory_ + begin, static_cast<size_t>(count)};
}

void MappedFile::release(int64_t begin, int64_t count) const {
  const int64_t page = sysconf(_SC_PAGESIZE), from = begin / page * page;
  const int64_t to = std::min(begin + count, file_.size());
  if (from < to) madvise(memory_ + from, static_cast<size_t>(to - from), MADV_DONTNEED);
}

// --- Writing -------------------------------------------------------------------------------------

namespace {

// Between the name of a file and the process that writes it anew: ".part-host-".
std::string part_mark() {
  char host[65] = "";
  gethostname(host, sizeof host - 1);
  std::string mark = cat(".part-", host, "-");
  for (char& c : mark)
    if (c == '/') c = '_';
  return mark;
}

// Who writes a part file holds its lock, even if its process ends. Where the file system has
// no locks, the process is asked for.
void remove_if_abandoned(const std::string& path, std::string_view process) {
  const Descriptor file(open(path.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!file.ok()) return;
  if (flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    pid_t id = 0;
    std::from_chars(process.data(), process.data() + process.size(), id);
    if (errno == EWOULDBLOCK || id <= 0 || kill(id, 0) == 0 || errno != ESRCH) return;
  }
  unlink(path.c_str());  // with the lock: its writer would see that it is gone
}

void remove_abandoned(const fs::path& path) {
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  const std::string begin = path.filename().string() + part_mark();
  std::error_code status;
  for (fs::directory_iterator it(folder, status), end; !status && it != end; it.increment(status)) {
    const std::string name = it->path().filename().string();
    if (name.starts_with(begin))
      remove_if_abandoned(it->path().string(), std::string_view(name).substr(begin.size()));
  }
}

}  // namespace

FileAside::FileAside(std::string who, std::string path, mode_t mode)
    : who_(std::move(who)), path_(std::move(path)), file_(-1) {
  struct stat info {};
  const bool is_there = stat(path_.c_str(), &info) == 0;
  check(!is_there || S_ISREG(info.st_mode), who_, ": cannot write ", path_, ": it is a ",
        name_of_kind(info.st_mode), ", not a file");
  remove_abandoned(path_);
  static std::atomic<int> counter{0};
  do {  // once more where it was taken for an abandoned one before it had its lock
    aside_ = cat(path_, part_mark(), getpid(), "-", counter++);
    file_ = Descriptor(open(aside_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
    require(file_.ok(), "write");
    flock(file_.get(), LOCK_EX);
  } while (fstat(file_.get(), &info) == 0 && info.st_nlink == 0);
}

FileAside::~FileAside() {
  if (!aside_.empty()) unlink(aside_.c_str());
}

void FileAside::require(bool ok, const char* action) const {
  check(ok, who_, ": cannot ", action, " ", path_, ": ", std::strerror(errno));
}

void FileAside::write(std::string_view bytes) { require(write_all(file_.get(), bytes), "write"); }

// It is closed when it has its name, since that gives the lock up.
void FileAside::commit() {
  require(fsync(file_.get()) == 0, "write");
  require(rename(aside_.c_str(), path_.c_str()) == 0, "rename the finished file to");
  aside_.clear();
}

}  // namespace tiny
