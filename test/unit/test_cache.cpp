#include "runtime/device/disk_cache.h"

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>
#include <thread>

#include "tiny/base/env.h"
#include "tiny/base/error.h"
#include "tiny/tensor/tensor.h"

namespace fs = std::filesystem;
using namespace tiny;

namespace {

struct Folder {
  std::string path = "/tmp/tiny-test-cache-XXXXXX";
  Folder() { REQUIRE(mkdtemp(path.data()) != nullptr); }
  ~Folder() { fs::remove_all(path); }

  size_t count() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(path), {}));
  }
  fs::path only_file() const { return fs::directory_iterator(path)->path(); }
};

const std::string kKey(64, 'a'), kOther(64, 'b');

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write_file(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

std::string hexadecimal(const std::string& bytes) {
  std::string text;
  for (unsigned char byte : bytes) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

void set_age(const fs::path& path, std::chrono::minutes age) {
  fs::last_write_time(path, fs::file_time_type::clock::now() - age);
}

// A device that only compiles, and counts how often.
class CompileOnly : public Device {
 public:
  int compiled = 0;
  std::string id = "test compiler 1";

  const Target& target() const override { return target_; }
  void* alloc(size_t) override { return nullptr; }
  void free(void*, size_t) override {}
  void upload(void*, const void*, size_t) override {}
  void download(void*, const void*, size_t) override {}
  void copy(void*, const void*, size_t) override {}
  std::string compiler_id() const override { return id; }
  std::string compile(const Source& source) override {
    if (source.text == "wrong") throw DeviceError("no");
    compiled++;
    return "binary of " + source.text;
  }
  std::unique_ptr<Program> load(const std::string&, const std::string&) override { return {}; }
  void launch(Program&, const LaunchSize&, const std::vector<void*>&) override {}
  void synchronize() override {}

 private:
  Target target_;
};

Source source_of(const std::string& text) { return {"kernel", text}; }

}  // namespace

TEST_CASE("sha256 gives the digests of the standard's examples") {
  CHECK(hexadecimal(sha256("")) ==
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(hexadecimal(sha256("abc")) ==
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(hexadecimal(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")) ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK(hexadecimal(sha256(std::string(1000000, 'a'))) ==
        "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST_CASE("a cache key depends on every part of the source and on the compiler") {
  const Source base{"entry", "text", Source::Language::C, false};
  Source entry = base, text = base, language = base, is_gemm = base, moved = base;
  entry.entry = "entry2";
  text.text = "text2";
  language.language = Source::Language::LlvmIr;
  is_gemm.is_gemm = true;
  moved.entry = "entryt", moved.text = "ext";
  const std::string key = cache_key(base, "compiler");
  CHECK(key.size() == 64);
  CHECK(key == cache_key(base, "compiler"));
  for (const Source& source : {entry, text, language, is_gemm, moved})
    CHECK(key != cache_key(source, "compiler"));
  CHECK(key != cache_key(base, "compiler 2"));
}

TEST_CASE("a cache gives back what was put, empty and binary content too") {
  Folder folder;
  CHECK_FALSE(cache_get(folder.path, kKey));
  for (const std::string& binary :
       {std::string("abc"), std::string(), std::string("a\0b\xff", 4), std::string(100000, 'x')}) {
    cache_put(folder.path, kKey, binary);
    CHECK(cache_get(folder.path, kKey) == binary);
  }
  CHECK(folder.count() == 1);
  CHECK_FALSE(cache_get(folder.path, kOther));
}

TEST_CASE("a cache makes its folder") {
  Folder folder;
  const std::string inner = folder.path + "/a/b";
  cache_put(inner, kKey, "abc");
  CHECK(cache_get(inner, kKey) == "abc");
}

TEST_CASE("a cache entry that is cut short anywhere counts as absent") {
  Folder folder;
  cache_put(folder.path, kKey, "some binary");
  const fs::path file = folder.only_file();
  const std::string whole = read_file(file);
  for (size_t size = 0; size < whole.size(); size++) {
    write_file(file, whole.substr(0, size));
    CHECK_FALSE(cache_get(folder.path, kKey));
  }
  write_file(file, whole + "x");
  CHECK_FALSE(cache_get(folder.path, kKey));
  write_file(file, whole);
  CHECK(cache_get(folder.path, kKey) == "some binary");
}

TEST_CASE("a cache entry with one changed byte counts as absent") {
  Folder folder;
  cache_put(folder.path, kKey, "some binary");
  const fs::path file = folder.only_file();
  const std::string whole = read_file(file);
  for (size_t at = 0; at < whole.size(); at++) {
    std::string damaged = whole;
    damaged[at] ^= 1;
    write_file(file, damaged);
    CHECK_FALSE(cache_get(folder.path, kKey));
  }
}

TEST_CASE("a cache entry under another key's name counts as absent") {
  Folder folder;
  cache_put(folder.path, kKey, "abc");
  const std::string name = folder.only_file().filename();
  fs::rename(folder.path + "/" + name, folder.path + "/" + kOther + name.substr(kKey.size()));
  CHECK_FALSE(cache_get(folder.path, kOther));
}

TEST_CASE("a cache folder that cannot be written is no error") {
  Folder folder;
  const std::string file = folder.path + "/file";
  write_file(file, "");
  cache_put(file, kKey, "abc");  // a file where the folder should be
  CHECK_FALSE(cache_get(file, kKey));
  cache_put("/proc/tiny", kKey, "abc");
  CHECK_FALSE(cache_get("/proc/tiny", kKey));
  cache_trim("/proc/tiny", 0);
}

TEST_CASE("trimming a cache removes the entries used longest ago") {
  Folder folder;
  for (char c = 'a'; c < 'a' + 8; c++)
    cache_put(folder.path, std::string(64, c), std::string(952, c));
  for (const auto& file : fs::directory_iterator(folder.path)) {
    CHECK(file.file_size() == 1000);
    set_age(file.path(), std::chrono::minutes('z' - file.path().filename().string()[0]));
  }
  cache_trim(folder.path, 8000);
  CHECK(folder.count() == 8);
  REQUIRE(cache_get(folder.path, std::string(64, 'a')));  // now the one used last
  cache_trim(folder.path, 4000);
  CHECK(folder.count() == 3);
  for (char c : {'a', 'g', 'h'}) CHECK(cache_get(folder.path, std::string(64, c)));
}

TEST_CASE("trimming a cache removes old unfinished files and leaves new and foreign ones") {
  Folder folder;
  for (const char* name : {"/old.part", "/new.part", "/foreign"})
    write_file(folder.path + name, "");
  set_age(folder.path + "/old.part", std::chrono::minutes(120));
  set_age(folder.path + "/foreign", std::chrono::minutes(120));
  cache_trim(folder.path, 0);
  CHECK_FALSE(fs::exists(folder.path + "/old.part"));
  CHECK(fs::exists(folder.path + "/new.part"));
  CHECK(fs::exists(folder.path + "/foreign"));
}

TEST_CASE("two threads may write and read one cache entry at once") {
  Folder folder;
  const std::string first(5000, '1'), second(9000, '2');
  cache_put(folder.path, kKey, first);
  auto work = [&](const std::string& binary) {
    for (int i = 0; i < 300; i++) {
      cache_put(folder.path, kKey, binary);
      auto got = cache_get(folder.path, kKey);
      if (!got || (*got != first && *got != second)) return false;
    }
    return true;
  };
  bool ok = false;
  std::thread other([&] { ok = work(second); });
  CHECK(work(first));
  other.join();
  CHECK(ok);
  CHECK(folder.count() == 1);
}

TEST_CASE("cached_compile compiles a source once, and again for another compiler") {
  Folder folder;
  EnvOverride cache("CACHE", "1"), where("CACHE_DIR", folder.path);
  CompileOnly device;
  CHECK(cached_compile(device, source_of("a")) == "binary of a");
  CHECK(cached_compile(device, source_of("a")) == "binary of a");
  CHECK(device.compiled == 1);
  device.id = "test compiler 2";
  CHECK(cached_compile(device, source_of("a")) == "binary of a");
  CHECK(device.compiled == 2);
}

TEST_CASE("cached_compile recompiles and rewrites a damaged entry") {
  Folder folder;
  EnvOverride cache("CACHE", "1"), where("CACHE_DIR", folder.path);
  CompileOnly device;
  cached_compile(device, source_of("a"));
  write_file(folder.only_file(), "damaged");
  CHECK(cached_compile(device, source_of("a")) == "binary of a");
  CHECK(cached_compile(device, source_of("a")) == "binary of a");
  CHECK(device.compiled == 2);
  CHECK(folder.count() == 1);
}

TEST_CASE("cached_compile keeps nothing of a failed compilation") {
  Folder folder;
  EnvOverride cache("CACHE", "1"), where("CACHE_DIR", folder.path);
  CompileOnly device;
  CHECK_THROWS_AS(cached_compile(device, source_of("wrong")), DeviceError);
  CHECK(folder.count() == 0);
}

TEST_CASE("CACHE=0 neither reads nor writes the cache") {
  Folder folder;
  EnvOverride cache("CACHE", "0"), where("CACHE_DIR", folder.path);
  CompileOnly device;
  CHECK(cache_folder().empty());
  cached_compile(device, source_of("a"));
  cached_compile(device, source_of("a"));
  CHECK(device.compiled == 2);
  CHECK(folder.count() == 0);
}

TEST_CASE("cached_compile keeps the cache near CACHE_MB") {
  Folder folder;
  EnvOverride cache("CACHE", "1"), where("CACHE_DIR", folder.path), size("CACHE_MB", "0");
  CompileOnly device;
  for (int i = 0; i < 1000; i++) cached_compile(device, source_of(std::to_string(i)));
  CHECK(folder.count() < 500);
}

namespace {

// What is written to std::cerr while it lives.
class Complaints {
 public:
  Complaints() : before_(std::cerr.rdbuf(text_.rdbuf())) {}
  ~Complaints() { std::cerr.rdbuf(before_); }
  std::string text() const { return text_.str(); }

 private:
  std::ostringstream text_;
  std::streambuf* before_;
};

}  // namespace

TEST_CASE("a cache folder that others may write to is not used, which is said once") {
  for (const mode_t mode : {0770, 0707}) {
    Folder folder;
    cache_put(folder.path, kKey, "abc");
    REQUIRE(chmod(folder.path.c_str(), mode) == 0);
    EnvOverride cache("CACHE", "1"), where("CACHE_DIR", folder.path);
    const Complaints complaints;
    CHECK(cache_folder().empty());
    CHECK(cache_folder().empty());
    CHECK_FALSE(cache_get(folder.path, kKey));
    cache_put(folder.path, kOther, "abc");
    CHECK(folder.count() == 1);
    CHECK(complaints.text() ==
          cat("the cache ", folder.path, " is not used: others may write to it: chmod 700\n"));
    REQUIRE(chmod(folder.path.c_str(), 0755) == 0);
    CHECK(cache_folder() == folder.path);
    CHECK(cache_get(folder.path, kKey) == "abc");
  }
}

TEST_CASE("a cache folder of another user is not used") {
  if (geteuid() != 0) return;  // only root can give a folder away
  Folder folder;
  REQUIRE(chown(folder.path.c_str(), 65534, 65534) == 0);
  EnvOverride cache("CACHE", "1"), where("CACHE_DIR", folder.path);
  const Complaints complaints;
  CHECK(cache_folder().empty());
  cache_put(folder.path, kKey, "abc");
  CHECK(folder.count() == 0);
  CHECK(complaints.text() ==
        cat("the cache ", folder.path, " is not used: it belongs to user 65534, not to user 0\n"));
}

TEST_CASE("a cache makes its folders and files for its user alone") {
  Folder folder;
  const std::string inner = folder.path + "/a/b";
  const mode_t before = umask(0);
  cache_put(inner, kKey, "abc");
  umask(before);
  const auto mode = [](const std::string& path) {
    struct stat info {};
    REQUIRE(stat(path.c_str(), &info) == 0);
    return info.st_mode & 0777;
  };
  CHECK(mode(folder.path + "/a") == 0700);
  CHECK(mode(inner) == 0700);
  CHECK(mode(fs::directory_iterator(inner)->path().string()) == 0600);
}

TEST_CASE("a cache entry that is no plain file of this user counts as absent, and is replaced") {
  Folder folder;
  cache_put(folder.path, kKey, "abc");
  const std::string file = folder.only_file();
  const auto is_replaced = [&] {
    CHECK_FALSE(cache_get(folder.path, kKey));
    cache_put(folder.path, kKey, "abc");
    CHECK(cache_get(folder.path, kKey) == "abc");
  };
  REQUIRE(chmod(file.c_str(), 0660) == 0);
  is_replaced();
  fs::resize_file(file, uintmax_t{1} << 42);  // of holes
  is_replaced();
  const std::string elsewhere = folder.path + "/elsewhere";
  fs::rename(file, elsewhere);
  fs::create_symlink(elsewhere, file);
  is_replaced();
  fs::remove(file);
  REQUIRE(mkfifo(file.c_str(), 0600) == 0);
  is_replaced();
  if (geteuid() == 0) {
    REQUIRE(chown(file.c_str(), 65534, 65534) == 0);
    is_replaced();
  }
}

TEST_CASE("an entry that is larger than any is trimmed instead of those that are used") {
  Folder folder;
  cache_put(folder.path, kOther, "huge");
  fs::resize_file(folder.only_file(), uintmax_t{1} << 42);
  cache_put(folder.path, kKey, "abc");
  cache_trim(folder.path, 1000);
  CHECK(cache_get(folder.path, kKey) == "abc");
  CHECK(folder.count() == 1);
}

TEST_CASE("a cache entry beyond the limit on file sizes is not kept, and no end of the program") {
  Folder folder;
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit less{4096, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &less);
  cache_put(folder.path, kKey, std::string(10000, 'x'));
  setrlimit(RLIMIT_FSIZE, &before);
  CHECK_FALSE(cache_get(folder.path, kKey));
  CHECK(folder.count() == 0);
}

TEST_CASE("DEBUG=1 says what new kernels took to compile, and nothing of known ones") {
  const Folder folder;
  const EnvOverride cache("CACHE_DIR", folder.path), debug("DEBUG", "1");
  const Tensor x = Tensor::from(std::vector<float>(977, 1.5f));
  const auto said = [&] {
    const Complaints complaints;
    (x * 3.25f).sin().realize();
    return complaints.text();
  };
  const std::string first = said(), again = said();
  CHECK(first.find("compiled 1 kernels in ") != std::string::npos);
  CHECK(first.find("; longest k_mul_sin_977 ") != std::string::npos);
  CHECK(again.find("running 1 kernels") != std::string::npos);
  CHECK(again.find("compiled") == std::string::npos);
}
