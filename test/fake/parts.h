// Sums between processes: each leaves its part as a file in a folder, and adds up those of all.
#pragma once
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace tiny::test {

class Parts {
 public:
  Parts(std::string folder, int rank, int count)
      : folder_(std::move(folder)), rank_(rank), count_(count) {}

  void leave(int64_t sum, const void* data, size_t bytes) {
    const std::string name = file(sum, rank_), part = name + ".part";
    std::ofstream(part, std::ios::binary)
        .write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
    std::filesystem::rename(part, name);
    left_[sum] = name;
  }

  bool has_all(int64_t sum) const {
    for (int r = 0; r < count_; ++r)
      if (!std::filesystem::exists(file(sum, r))) return false;
    return true;
  }

  template <class T> void add_up(int64_t sum, T* to, size_t count) {
    std::vector<T> total(count), one(count);
    for (int r = 0; r < count_; ++r) {
      std::ifstream(file(sum, r), std::ios::binary)
          .read(reinterpret_cast<char*>(one.data()),
                static_cast<std::streamsize>(count * sizeof(T)));
      for (size_t i = 0; i < count; ++i) total[i] += one[i];
    }
    std::copy(total.begin(), total.end(), to);
    // Who has left its part of this sum has read those of the ones before.
    for (; !left_.empty() && left_.begin()->first < sum; left_.erase(left_.begin()))
      std::filesystem::remove(left_.begin()->second);
  }

 private:
  std::string file(int64_t sum, int rank) const {
    return folder_ + '/' + std::to_string(sum) + '.' + std::to_string(rank);
  }

  const std::string folder_;
  const int rank_, count_;
  std::map<int64_t, std::string> left_;  // files of this process that others may still read
};

}  // namespace tiny::test
