// Schedules GPU kernels. Three classes: streams (element-wise work, moved data), rows (a group of
// threads reads the reduced axis coalesced and holds the row in registers) and columns (each thread
// reduces on its own; GEMMs get a tile of results per thread).
#include <map>
#include <set>

#include "codegen/heuristics/tuner.h"
#include "codegen/kernel/facts.h"
#include "codegen/options/fragments.h"
#include "codegen/options/launchable.h"
#include "codegen/options/mma.h"
#include "codegen/options/stage.h"
#include "codegen/wgmma/tile.h"
#include "tiny/ir/sizes.h"
#include "tiny/rewrite/algebra.h"

namespace tiny {

namespace {

constexpr int64_t kMaxInRow = 1024;        // threads that share a row
constexpr int64_t kHeldByThread = 64;      // elements of a row that a thread keeps in registers
constexpr int64_t kHeldByBlock = 16384;    // and of those of a block: two must fit
constexpr int64_t kVectorsOfThread = 4;    // wanted per thread of a long row: loads in flight
constexpr int64_t kElementsOfThread = 12;  // and without vectors
constexpr int64_t kFewVectors = 16;        // of which each has a thread
constexpr int64_t kWantedOfHeld = 16;      // elements, where it keeps them
constexpr int64_t kVeryLong = 2048;        // vectors of a row that is read by full blocks

// As many of a large block's threads as leave none idle in the last iteration (measurements.md:
// dividing).
int64_t dividing(int64_t vectors, int64_t threads, int64_t warp) {
  if (vectors % threads)
    for (int64_t fewer = threads - warp; 2 * fewer >= threads; fewer -= warp)
      if (vectors % fewer == 0) return fewer;
  return threads;
}

// Pooling: a thread has the windows of several contiguous channels.
class PoolingTuner : GpuTuner {
 public:
  using GpuTuner::GpuTuner;

  std::optional<Choice> run() {
    if (!is_windows()) return {};
    lanes_ = 4;
    windows();
    return finished();
  }

 private:
  // Many results of a small number of elements each, which are not contiguous.
  bool is_windows() const {
    constexpr int64_t kSide = 8, kMax = 64;
    const Ids shared = shared_loops(), reduced = unshared_loops();
    for (int id : reduced)
      if (size(id) >= kSide || !is_reduced(id)) return false;
    const int64_t elements = size(reduced);
    return elements > 1 && elements <= kMax && size(shared) >= kBlock * target_.cores;
  }
  bool is_reduced(int id) const {
    return std::ranges::all_of(items(), [&](Node item) {
      return !contains(item, id) || (item->op == Op::Reduce && (reduced_ranges(item) >> id & 1));
    });
  }

  // A thread has the pooling windows of several contiguous channels.
  void windows() {
    constexpr int64_t kElements = 72, kBlocks = 2;  // of a thread; that a multiprocessor is to have
    Ids rest = shared_loops();
    const int v = thread_range(rest), down = overlapping(without(rest, v));
    const Ids unrolled = unshared_loops();
    const int64_t reduced = size(unrolled);
    for (int id : unrolled) bind(id, RangeKind::Unroll);
    make_last(rest, v);
    const int64_t blocks = size(rest) / (kBlock * target_.cores);
    for (lanes_ = lanes_along(range(v)); lanes_ > 1; lanes_ /= 2)
      if (reduced * lanes_ <= kElements && blocks >= kBlocks * lanes_) break;
    vector(v, rest);
    if (down >= 0 && lanes_ == 1) several_windows(down, rest);
    spread(merged(rest), kBlock);
  }

  // The range along which most accesses are contiguous, of those that go to memory: not of a few
  // values that stay in L1, as what a convolution adds to each channel (measurements.md:
  // thread_range).
  int thread_range(const Ids& set) const {
    constexpr double kOften = 256;  // that each value is read
    const int best = range_of_most(set, [&](int id, const Access& a) {
      return is_contiguous(a, id) &&
             a.count < kOften * static_cast<double>(elements_of(a.node->src(0)));
    });
    return best < 0 ? set.back() : best;
  }

  // The range along which windows that follow one another share elements; -1 for none.
  int overlapping(const Ids& shared) const {
    const Ids windows = unshared_loops();
    for (int id : shared)
      if (overlaps(id, windows, [](const Access&) { return true; })) return id;
    return -1;
  }

  // Each thread has some windows, one below the other: shared elements are loaded once
  // (measurements.md: several_windows).
  void several_windows(int id, Ids& rest) {
    for (int64_t n : {4, 2, 3}) {
      if (size(id) % n || size(rest) < n * kBlock * target_.cores) continue;
      take(id, n, RangeKind::Unroll, rest);
      return;
    }
  }
};

// Running sums along a range, and their like.
class ScanTuner : GpuTuner {
 public:
  using GpuTuner::GpuTuner;

  // A row is read once: several vectors in each thread.
  std::optional<Choice> run() {
    const auto scans = all_of(sink_, Op::Prefix);
    if (scans.empty()) return {};
    const int along = range_id(scans[0]->src(1));
    constexpr int64_t kTiles = 4, kMaxThreads = 512, kMaxTiles = 64, kLanes = 4;
    Ids outer = without(shared_loops(), along);
    lanes_ = lanes_along(range(along));
    // Fewer steps of the scan are worth loads of single elements, as of a row from its end.
    if (lanes_ == 1 && size(along) % kLanes == 0) lanes_ = kLanes;
    vector(along, outer);
    const int64_t threads = std::clamp<int64_t>(
        pow2(size(along)) / kTiles, 32, std::min<int64_t>(kMaxThreads, target_.most_threads));
    const int inner = split(along, threads);
    bind(inner, RangeKind::Thread);
    last_ = {inner};
    if (inner != along && range(along) && size(along) <= kMaxTiles) bind(along, RangeKind::Unroll);
    blocks_of(outer, threads);
    return finished();
  }
};

// A group of threads for each row that is reduced.
class RowTuner : GpuTuner {
 public:
  using GpuTuner::GpuTuner;

  Choice run() {
    lanes_ = 4;
    const int column = has_reductions() ? best_column() : -1;
    if (column >= 0 && is_shared(column) && is_reduced_under(column))
      if (auto choice = choose_column_options(sink_, target_, column, is_narrow()))
        return std::move(*choice);
    rows();
    return finished();
  }

 private:
  // Ranges of an item that not all items share.
  Ids own(Node item) const { return loops(enclosing(item) & ~shared_mask()); }

  // A loop over what another item reduces along becomes the same range, where both read the same.
  void join() {
    for (bool again = true; again;) {
      again = false;
      std::vector<Ids> sets;
      for (Node item : items()) sets.push_back(own(item));
      for (const Ids& a : sets)
        for (const Ids& b : sets)
          if (!again && a.size() == b.size() && a != b) again = join(a, b);
    }
  }
  bool join(const Ids& a, const Ids& b) {
    bool joined = false;
    for (size_t i = 0; i < a.size(); ++i) {
      Node to = range(a[i]), from = range(b[i]);
      if (!to || !from || kind(to) != RangeKind::Loop || to == from) continue;
      joined |= applied({OptKind::Join, a[i], b[i], {}});
    }
    return joined;
  }

  // Rows that a warp can hold, and enough of them: its threads combine by shuffles, without
  // barriers (measurements.md: is_warps).
  bool is_warps(int64_t vectors, int64_t rows) const {
    return vectors * lanes_ <= target_.warp * kHeldByThread && rows >= 32 * target_.cores;
  }

  // Each thread has a number of loads in flight, and rows that are read element by element share a
  // warp: combining what 32 threads have costs as much as loading it (measurements.md:
  // row_threads).
  int64_t row_threads(int64_t vectors, int64_t rows, bool held) const {
    if (held && is_warps(vectors, rows))
      return std::min<int64_t>(target_.warp, pow2(ceil_div(vectors, held_of_thread())));
    if (held ? vectors <= target_.warp : lanes_ >= 4 && vectors < kFewVectors) return pow2(vectors);
    // Held rows take fewer threads than sums that are read once.
    const int64_t each = held                   ? kWantedOfHeld / lanes_
                         : vectors >= kVeryLong ? 2
                         : lanes_ >= 4          ? kVectorsOfThread
                                                : kElementsOfThread / lanes_;
    int64_t threads = std::clamp<int64_t>(pow2(ceil_div(vectors, std::max<int64_t>(each, 1))),
                                          held ? 32 : 1, most_in_row());
    // A chip that is not full is filled with threads; a row that is held, spread over more of them.
    while (threads < most_in_row() && threads * 2 <= pow2(vectors) &&
           (rows * threads < 1024 * target_.cores ||
            (held && vectors * lanes_ > threads * kHeldByThread)))
      threads *= 2;
    return threads < kBlock ? threads : dividing(vectors, threads, target_.warp);
  }

  // Vectors of a held row for each thread of a warp or a part of one.
  int64_t held_of_thread() const { return lanes_ < 4 ? 6 / lanes_ : lanes_ / 4; }

  // Threads that have enough of so many vectors each.
  int64_t most_sharing(int64_t vectors) const {
    return pow2(std::max<int64_t>(vectors * lanes_ / target_.least_of_thread, 1));
  }

  int64_t most_in_row() const { return std::min<int64_t>(kMaxInRow, target_.most_threads); }

  // Ranges that the same items run in, and the same reductions close; `items` by their numbers.
  struct Class {
    Ids ids;
    std::set<size_t> items;
    int64_t iterations = 1;

    bool meets(const Class& other) const {
      return std::ranges::any_of(items, [&](size_t i) { return other.items.count(i) != 0; });
    }
  };

  std::vector<Class> classes() const {
    std::map<std::pair<std::set<size_t>, std::set<size_t>>, Ids> found;
    const auto all = items();
    for (int id : loops()) {
      std::set<size_t> in, reduced;
      for (size_t i = 0; i < all.size(); ++i) {
        const Ids own_ids = own(all[i]);
        if (!tiny::contains(own_ids, id)) continue;
        in.insert(i);
        if (!(all[i]->ranges >> id & 1)) reduced.insert(i);
      }
      if (!in.empty()) found[{in, reduced}].push_back(id);
    }
    std::vector<Class> out;
    for (const auto& [key, ids] : found) out.push_back({ids, key.first, size(ids)});
    std::ranges::stable_sort(out, std::ranges::greater(), &Class::iterations);
    return out;
  }

  // Whether what is computed of a row goes to memory: more work than a sum has with an element.
  bool stores(const Class& c) const {
    return std::ranges::any_of(c.items, [&](size_t i) { return items()[i]->op == Op::Store; });
  }

  void rows() {
    join();
    const Ids outer = shared_loops();
    const int64_t rows = size(outer);
    int thread = -1;
    int64_t threads = 0;
    std::vector<Class> spread_out;
    for (const Class& c : classes()) {
      // An item has threads along one class of its ranges; the others are enclosing loops.
      if (std::ranges::any_of(spread_out, [&](const Class& other) { return other.meets(c); }))
        continue;
      row(c, rows, thread, threads);
      spread_out.push_back(c);
    }
    last_ = {thread};
    // Small blocks for warps that hold rows: of pieces of 2016 bf16 one of 64 threads is 1 % faster
    // than one of 128, and one of 256 6 % slower.
    blocks_of(outer, threads, threads == target_.warp && held_ ? kBlock / 4 : kBlock);
  }

  // Ranges that go together, over a group of threads: vectors, neighbouring threads, and the
  // remaining iterations of each thread.
  void row(const Class& c, int64_t rows, int& thread, int64_t& threads) {
    Ids set = c.ids;
    const int v = vector_range(set);
    lanes_ = aligned_lanes(v);
    while (stores_wide(v)) lanes_ /= 2;
    make_last(set, v);
    const bool held = c.items.size() > 1;
    const int64_t vectors = size(set) / lanes_;
    vector(v, set);
    if (threads == 0) {
      threads = row_threads(vectors, rows, held);
      if (!stores(c)) threads = std::min(threads, most_sharing(vectors));
    }
    const int flat = merged(set);
    if (flat < 0) return;  // a vector is all of it
    const int64_t each = ceil_div(size(flat), threads);
    held_ |= held && 2 * each * lanes_ >= kWantedOfHeld;
    const int inner = threads > 1 ? part_of(flat, threads) : flat;
    const bool is_thread = threads > 1 && size(inner) <= threads;
    if (is_thread) share(inner, thread, threads);
    if (inner == flat && is_thread) return;
    const bool fits = each * lanes_ * threads <= kHeldByBlock;
    if (held && fits && each * lanes_ <= kHeldByThread && each <= 64)
      bind(flat, RangeKind::Unroll);
    else
      unroll_split(flat, lanes_ > 1 ? 4 : 8);
  }

  // The range over the threads of the group; all sets have the same one where their sizes agree.
  void share(int inner, int& thread, int64_t threads) {
    if (size(inner) < threads) inner = split(inner, threads);
    if (thread < 0) {
      bind(inner, RangeKind::Thread);
      thread = inner;
      return;
    }
    applied({OptKind::Join, thread, inner, {}});
  }

  // Few results of long sums: too few threads with one for each.
  bool is_narrow() const {
    constexpr int64_t kFew = 2048, kLong = 128;
    const Ids shared = shared_loops();
    const int64_t results = size(shared);
    return results <= kFew && size(loops()) / results >= kLong;
  }

  bool held_ = false;  // a row is read more than once, from registers, of which that takes many
};

// Heuristics are made for blocks of 1,024 threads and 48 KiB of shared memory.
bool is_launchable(Node sink, const Choice& choice, const Target& target) {
  if (target.most_threads >= 1024) return true;
  Node chosen = apply(sink, choice.options, target);
  return launch_problem(sink, chosen, target).empty() &&
         all_stage_bytes(chosen) <= target.shared_bytes;
}

std::optional<Choice> matrix_choice(Node sink, const Target& target) {
  if (auto options = matrix_options(sink, target); !options.empty()) return Choice{options, true};
  return {};
}
template <class Tuner> std::optional<Choice> tuned(Node sink, const Target& target) {
  return Tuner(sink, target).run();
}

}  // namespace

Choice choose_gpu_options(Node sink, const Target& target) {
  using Heuristic = std::optional<Choice> (*)(Node, const Target&);
  constexpr Heuristic kInOrder[] = {
      matrix_choice,    choose_chain_options,  choose_mma_options,  choose_product_options,
      tuned<ScanTuner>, choose_stream_options, tuned<PoolingTuner>, tuned<RowTuner>};
  for (const Heuristic choose : kInOrder)
    if (auto choice = choose(sink, target); choice && is_launchable(sink, *choice, target))
      return std::move(*choice);
  return {};  // a thread does everything
}

}  // namespace tiny
