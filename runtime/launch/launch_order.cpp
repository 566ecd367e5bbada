#include "runtime/launch/launch_order.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <utility>

namespace tiny {

namespace {

// The launches that used each byte of a piece of memory last: the last one that wrote it, and those
// that have read it since. Earlier ones are waited for through these.
class History {
 public:
  // Appends those that a launch waits for.
  void add_conflicts(const Touched& t, std::vector<int>& out) const {
    auto at = pieces_.upper_bound(t.begin);
    if (at != pieces_.begin() && std::prev(at)->second.end > t.begin) --at;
    for (; at != pieces_.end() && at->first < t.end; ++at) {
      const Piece& p = at->second;
      if (p.writer >= 0) out.push_back(p.writer);
      if (t.written) out.insert(out.end(), p.readers.begin(), p.readers.end());
    }
  }

  void add(const Touched& t, int launch) {
    cut(t.begin);
    cut(t.end);
    auto at = pieces_.lower_bound(t.begin);
    if (t.written) {
      while (at != pieces_.end() && at->first < t.end) at = pieces_.erase(at);
      pieces_.emplace_hint(at, t.begin, Piece{t.end, launch});
      return;
    }
    for (int64_t begin = t.begin; begin < t.end;) {
      if (at == pieces_.end() || at->first > begin) {
        const int64_t end = at == pieces_.end() ? t.end : std::min(at->first, t.end);
        at = pieces_.emplace_hint(at, begin, Piece{end});
      }
      at->second.readers.push_back(launch);
      begin = at->second.end;
      ++at;
    }
  }

 private:
  struct Piece {
    int64_t end = 0;
    int writer = -1;
    std::vector<int> readers = {};
  };

  // So that no piece has the byte inside of it.
  void cut(int64_t byte) {
    const auto next = pieces_.lower_bound(byte);
    if (next == pieces_.begin()) return;
    Piece& before = std::prev(next)->second;
    if (before.end <= byte) return;
    Piece rest = before;
    before.end = byte;
    pieces_.emplace_hint(next, byte, std::move(rest));
  }

  std::map<int64_t, Piece> pieces_;  // by where they begin
};

// Sets of launches before one, a bit for each.
using Bits = std::vector<uint64_t>;

bool has(const Bits& bits, int i) { return bits[static_cast<size_t>(i) / 64] >> (i % 64) & 1; }

}  // namespace

bool fills(const LaunchSize& size, const Target& target) {
  return size.grid[0] * size.grid[1] * size.grid[2] >= target.cores;
}

std::vector<std::vector<int>> order_launches(const std::vector<LaunchUses>& launches) {
  const size_t n = launches.size();
  std::vector<std::vector<int>> out(n);
  std::vector<Bits> follows(n);  // directly or not
  std::map<int, History> memory;
  std::vector<int> open;  // launches that one may have to wait for
  int filler = -1;        // the last launch that fills the device
  for (size_t i = 0; i < n; ++i) {
    const LaunchUses& launch = launches[i];
    open.clear();
    if (launch.fills && filler >= 0) open.push_back(filler);
    if (launch.fills) filler = static_cast<int>(i);
    for (const Touched& t : launch.uses)
      if (t.begin < t.end) memory[t.memory].add_conflicts(t, open);
    for (const bool written : {false, true})
      for (const Touched& t : launch.uses)
        if (t.begin < t.end && t.written == written) memory[t.memory].add(t, static_cast<int>(i));
    // Backwards, so that what one waits for through another one is known before it is met.
    std::ranges::sort(open, std::greater());
    follows[i].resize(i / 64 + 1);
    for (const int j : open) {
      if (has(follows[i], j)) continue;
      out[i].push_back(j);
      follows[i][static_cast<size_t>(j) / 64] |= uint64_t{1} << (j % 64);
      for (size_t k = 0; k < follows[j].size(); ++k) follows[i][k] |= follows[j][k];
    }
    std::reverse(out[i].begin(), out[i].end());
  }
  return out;
}

}  // namespace tiny
