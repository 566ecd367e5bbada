// Schedules GPU kernels. Three classes: streams (element-wise work, moved data), rows (a group of
// threads reads the reduced axis coalesced and holds the row in registers) and columns (each thread
// reduces on its own; GEMMs get a tile of results per thread).
#include <map>
#include <set>

#include "codegen/heuristics/gpu.h"
#include "codegen/kernel/facts.h"
#include "codegen/options/fragments.h"
#include "codegen/options/mma.h"
#include "codegen/wgmma/tile.h"
#include "tiny/ir/sizes.h"
#include "tiny/rewrite/algebra.h"

namespace tiny {

namespace {

constexpr int64_t kMaxInRow = 1024;      // threads that share a row
constexpr int64_t kHeldByThread = 64;    // elements of a row that a thread keeps in registers
constexpr int64_t kHeldByBlock = 16384;  // and of those of a block: two must fit
constexpr int64_t kVectorsOfThread = 4;  // wanted per thread of a long row: loads in flight
constexpr int64_t kWantedOfHeld = 16;    // elements, where it keeps them
constexpr int64_t kVeryLong = 2048;      // vectors of a row that is read by full blocks

class RowTuner : GpuTuner {
 public:
  using GpuTuner::GpuTuner;

  Choice run() {
    if (auto options = matrix_options(sink_, target_); !options.empty()) return {options, true};
    if (auto choice = choose_chain_options(sink_, target_)) return std::move(*choice);
    if (auto choice = choose_mma_options(sink_, target_)) return std::move(*choice);
    if (auto choice = choose_product_options(sink_, target_)) return std::move(*choice);
    lanes_ = 4;
    if (const auto scans = all_of(sink_, Op::Prefix); !scans.empty()) {
      scan(range_id(scans[0]->src(1)));
      order_kinds(last_);
      return std::move(choice_);
    }
    const bool reduces = has_reductions();
    const int column = reduces ? best_column() : -1;
    const bool columns = column >= 0 && is_shared(column) && is_reduced_under(column);
    if (!reduces && shared_loops().size() == loops().size()) {
      stream();
    } else if (is_windows()) {
      windows();
    } else {
      if (columns)
        if (auto choice = choose_column_options(sink_, target_, column, is_narrow()))
          return std::move(*choice);
      rows();
    }
    order_kinds(last_);
    return std::move(choice_);
  }

 private:
  // --- streams -----------------------------------------------------------------------------------

  void stream() {
    Ids rest = loops();
    if (rest.empty()) return;
    int v = best_column();
    if (v >= 0)
      if (const int stored = crossing_store(v); stored >= 0) v = stored;
    lanes_ = v < 0 ? 1 : aligned_lanes(v);
    if (lanes_ < 2)
      if (const int short_one = short_range(); short_one >= 0) v = short_one;
    const int sparse = lanes_ < 2 ? sparse_along() : -1;
    if (sparse >= 0) {
      v = sparse;
    } else if (lanes_ < 2) {
      const int moved = only_moved_along();
      if (moved >= 0) return transpose(moved, crossing_range(moved));
      lanes_ = 1;
    }
    if (v < 0) return spread(merge(rest), kBlock);
    if (lanes_ >= 4 && sparse < 0) {
      const int across = crossing_range(v);
      if (across >= 0) return transpose(v, across);
    }
    make_last(rest, v);
    while (stores_wide(v)) lanes_ /= 2;
    if (gathers() && !scatters() && gathered_rows(rest, v)) return;
    if (scatters() && sparse_rows(rest, v)) return;
    for (int id : sparse >= 0 ? taps() : Ids())
      if (iterations(without(rest, id)) >= 8 * kBlock * lanes_ * target_.cores)
        rest = without(rest, id);
    if (lanes_ == 8 && reads_wide(v)) lanes_ = 4;
    // Below one full warp, vector lanes only serialise the work.
    if (iterations(rest) < lanes_ * target_.warp) lanes_ = 1;
    if (const int id = serving(rest, v); id >= 0) {
      const int part = split(id, kServed);
      bind(part, RangeKind::Unroll);
      if (part == id) rest = without(rest, id);
    }
    const int64_t threads = iterations(rest) / lanes_;
    vector(v, rest);
    // Small work on more multiprocessors rather than full blocks.
    const int64_t block = threads >= kBlock * target_.cores ? kBlock : 128;
    const int flat = merge(rest);
    if (flat < 0) return;  // a vector is all of it
    const int thread = split(flat, block);
    bind(thread, RangeKind::Thread);
    if (thread == flat) return;
    // Several loads whose addresses are loaded too are in flight at once: latency hiding.
    constexpr int64_t together = 4;
    if (gathers() && extent(range(flat)) % together == 0 &&
        extent(range(flat)) >= 8 * together * target_.cores)
      bind(split(flat, together), RangeKind::Unroll);
    bind(flat, RangeKind::Block);
  }

  // Elements of all loops, as streams are, not as what there is for each channel.
  bool is_stream(const Access& a) const {
    return iterations(loops()) <= elements_of(a.node->src(0));
  }

  // Whether most loads along the range are f32 of each column: eight of those are two loads of
  // every second 16 bytes, which touch twice as many L1 lines as four.
  bool reads_wide(int v) const {
    int wide = 0, streams = 0;
    for (const Access& a : accesses_)
      if (element_size(a) == 4 && stride(a.node, v) == 1) ++(is_stream(a) ? streams : wide);
    return wide > streams;
  }

  // Whether a thread's vector of the stored dtype takes more than 16 bytes: each store instruction
  // then writes every second 16 bytes of the warp's span (measurements.md: stores_wide).
  bool stores_wide(int v) const {
    return lanes_ > 1 && std::any_of(accesses_.begin(), accesses_.end(), [&](const Access& a) {
             return a.node->op == Op::Store && stride(a.node, v) == 1 &&
                    element_size(a) * lanes_ > 16;
           });
  }

  // The range along which a thread gets kServed elements that share loads: at least a third of the
  // bytes do not depend on it. -1: none, or too few threads (measurements.md: serving).
  static constexpr int64_t kServed = 2;
  int serving(const Ids& rest, int v) const {
    int best = -1;
    int64_t most = 0;
    if (iterations(rest) / lanes_ / kServed < 8 * kBlock * target_.cores) return -1;
    for (int id : rest) {
      if (id == v || extent(range(id)) % kServed) continue;
      int64_t same = 0, own = 0;
      for (const Access& a : accesses_) {
        const int64_t bytes = element_size(a) * (stride(a.node, v) == 0 ? 1 : lanes_);
        (a.node->op == Op::Load && stride(a.node, id) == 0 ? same : own) += bytes;
      }
      const bool longer = best < 0 || extent(range(id)) >= extent(range(best));
      if (same == 0 || 2 * same < own || same < most || (same == most && !longer)) continue;
      best = id;
      most = same;
    }
    return best;
  }

  // A range no longer than a vector, as the padded channels of a pixel: one vector store, loads
  // element by element. A thread that stores two bytes waits as long for its loads
  // (measurements.md: short_range). -1: none; sets lanes_.
  int short_range() {
    for (int id : loops()) {
      const int64_t all = extent(range(id));
      if (all != 4 && all != 8) continue;
      int stores = 0;
      const bool fits = std::all_of(accesses_.begin(), accesses_.end(), [&](const Access& a) {
        if (element_size(a) > 2 || stride(a.node, id) == kIrregular) return false;
        if (a.node->op != Op::Store) return true;
        ++stores;
        return stride(a.node, id) == 1 && is_aligned(a, range(id), static_cast<int>(all));
      });
      if (!fits || stores == 0) continue;
      lanes_ = static_cast<int>(all);
      return id;
    }
    return -1;
  }

  // A range along which all is stored in vectors and some is loaded that lies along another range:
  // worth vectors both ways, since each thread transposes what it loads. -1: none; sets lanes_.
  int only_moved_along() {
    for (const Access& a : accesses_) {
      if (a.node->op != Op::Store || element_size(a) > 4) continue;
      for (int id : loops())
        for (lanes_ = 16 / std::max(element_size(a), 2); lanes_ >= 4; lanes_ /= 2)
          if (stride(a.node, id) == 1 && is_aligned(a, range(id), lanes_) &&
              crossing_range(id) >= 0)
            return id;
    }
    return -1;
  }

  // A range with vector stores and strided loads, as convolution windows have. A warp's load takes
  // L1 as many cycles as it touches lines: with four lanes half as many as with eight, and more
  // threads count indices. -1: none; sets lanes_.
  int sparse_along() {
    constexpr int64_t kApart = 8;
    for (int id : loops()) {
      int lanes = 4;
      bool sparse = false, fits = true;
      for (const Access& a : accesses_) {
        const int64_t s = stride(a.node, id);
        if (a.node->op == Op::Load) {
          fits = fits && s != kIrregular && std::abs(s) <= kApart;
          sparse |= std::abs(s) > 1;
          continue;
        }
        for (lanes = std::min(lanes, 16 / element_size(a)); lanes > 1; lanes /= 2)
          if (extent(range(id)) % lanes == 0 && is_aligned(a, range(id), lanes)) break;
        fits = fits && s == 1 && lanes >= 4;
      }
      if (!fits || !sparse) continue;
      lanes_ = lanes;
      return id;
    }
    return -1;
  }

  // Short ranges along which iterations of others read the same elements again, as the taps of
  // im2col. A thread that walks them hits L1 (measurements.md: taps).
  Ids taps() const {
    constexpr int64_t kMax = 8;
    const Ids all = loops();
    Ids out;
    for (int id : all)
      for (const Access& a : accesses_) {
        const int64_t own = std::abs(stride(a.node, id));
        if (a.node->op != Op::Load || own == 0 || own == kIrregular || extent(range(id)) > kMax)
          continue;
        const bool again = std::any_of(all.begin(), all.end(), [&](int other) {
          const int64_t step = std::abs(stride(a.node, other));
          return other != id && step > 0 && step < extent(range(id)) * own && step % own == 0;
        });
        if (again && (out.empty() || out.back() != id)) out.push_back(id);
      }
    return out;
  }

  // The range that a store lies along while all is read along the vector range: lines that are
  // written whole are worth more than those that are read whole. -1 where there is none.
  int crossing_store(int v) const {
    for (const Access& a : accesses_) {
      if (a.node->op != Op::Store || std::abs(stride(a.node, v)) == 1) continue;
      for (int id : loops())
        if (stride(a.node, id) == 1 && extent(range(id)) % 4 == 0 && extent(range(v)) % 4 == 0)
          return id;
    }
    return -1;
  }

  // Gathered rows: a thread has up to four vectors of one row, so that it loads the row's index
  // once and then has several loads in flight. False where rows cannot be cut so.
  bool gathered_rows(Ids rest, int v) {
    constexpr int64_t kMax = 4;
    const int64_t vectors = extent(range(v)) / lanes_, rows = iterations(rest) / extent(range(v));
    int64_t threads = 1;
    while (vectors % (2 * threads) == 0 && vectors / threads > kMax) threads *= 2;
    if (vectors % threads || vectors / threads > kMax || vectors / threads < 2 ||
        threads > kBlock || rows * threads < 8 * kBlock * target_.cores || looked_up_along(v))
      return false;
    vector(v, rest);
    if (const int inner = split(v, threads); inner != v) {
      bind(inner, RangeKind::Thread);
      last_ = inner;
    }
    bind(v, RangeKind::Unroll);
    spread(merge(without(rest, v)), kBlock / threads);
    return true;
  }

  // Scatter-add of rows under a mask on their index, which reads index -1 for the first row. Each
  // row has a warp, which waits for its indices and then for up to eight loads together: a warp
  // with several rows would wait for one after the other.
  bool sparse_rows(Ids rest, int v) {
    constexpr int64_t kMax = 8;  // vectors of a thread
    const auto leaves_out = [](Node n) { return n->src(2)->vmax < 0; };
    const bool reads_rows = std::any_of(accesses_.begin(), accesses_.end(), [&](const Access& a) {
      const auto choices = all_of(a.node->src(1), Op::Where);
      return a.node->op == Op::Load && is_looked_up(a) && stride(a.node, v) == 1 &&
             std::any_of(choices.begin(), choices.end(), leaves_out);
    });
    const Ids rows = without(rest, v);
    if (!reads_rows || rows.empty() || looked_up_along(v) ||
        extent(range(v)) < target_.warp * lanes_ || iterations(rows) < 8 * target_.cores)
      return false;
    vector(v, rest);
    last_ = split(v, target_.warp);
    bind(last_, RangeKind::Thread);
    for (int64_t n = kMax; n > 1 && last_ != v; --n)
      if (extent(range(v)) % n == 0) {
        bind(split(v, n), RangeKind::Unroll);
        break;
      }
    spread(merge(rows), kBlock / target_.warp);
    return true;
  }

  // Whether another place is looked up for each element of the range.
  bool looked_up_along(int id) const {
    return std::any_of(accesses_.begin(), accesses_.end(), [&](const Access& a) {
      const Node index = a.node->src(1);
      const auto loads = all_of(index, Op::Load);
      return std::any_of(loads.begin(), loads.end(),
                         [&](Node load) { return load->ranges >> id & 1; });
    });
  }

  // Whether a place depends on what is loaded.
  static bool is_looked_up(const Access& a) {
    const Node index = a.node->src(1);
    return !all_of(index, Op::Load).empty();
  }
  bool gathers() const { return std::any_of(accesses_.begin(), accesses_.end(), is_looked_up); }
  bool scatters() const {
    return std::any_of(accesses_.begin(), accesses_.end(),
                       [](const Access& a) { return a.node->op == Op::Store && is_looked_up(a); });
  }

  // Each thread transposes a square of 4 x 4 in registers; a block has a line of memory along the
  // vectors and many squares across, so that it is coalesced both ways (measurements.md:
  // transpose).
  void transpose(int v, int across) {
    Ids rest = loops();
    vector(v, rest);
    const int part = split(across, lanes_);
    bind(part, RangeKind::Unroll);
    if (part == across) rest = without(rest, across);
    const auto thread = [&](int id, int64_t most) {
      if (std::find(rest.begin(), rest.end(), id) == rest.end()) return -1;
      const int inner = split(id, most);
      bind(inner, RangeKind::Thread);
      if (inner == id) rest = without(rest, id);
      return inner;
    };
    const bool large = iterations(rest) >= int64_t{16 * 1024} * target_.cores;
    const int y = thread(across, large ? 128 : 16), x = thread(v, large ? 8 : 16);
    last_ = x >= 0 ? x : y;
    const int block = merge(rest);
    if (block < 0) return;
    int64_t threads = 1;
    for (Node r : ranges_)
      if (kind(r) == RangeKind::Thread) threads *= extent(r);
    const int64_t most = kBlock / threads;
    int64_t times = most;  // whole warps, where that leaves half of the threads
    while (2 * times >= most && times * threads % target_.warp) --times;
    if (2 * times < most) times = most;
    const int more = times > 1 ? split(block, times) : block;
    bind(more, more == block ? RangeKind::Block : RangeKind::Thread);
    if (more != block) bind(block, RangeKind::Block);
  }

  // --- windows -----------------------------------------------------------------------------------

  // Many results of a small number of elements each, which are not contiguous.
  bool is_windows() const {
    constexpr int64_t kSide = 8, kMax = 64;
    const Ids shared = shared_loops();
    int64_t reduced = 1;
    for (int id : loops()) {
      if (std::find(shared.begin(), shared.end(), id) != shared.end()) continue;
      if (extent(range(id)) >= kSide || !is_reduced(id)) return false;
      reduced *= extent(range(id));
    }
    return reduced > 1 && reduced <= kMax && iterations(shared) >= int64_t{kBlock} * target_.cores;
  }
  bool is_reduced(int id) const {
    for (Node item : items()) {
      const auto reduced =
          item->op == Op::Reduce ? item->srcs().subspan(1) : std::span<const Node>();
      if ((enclosing(item) >> id & 1) &&
          std::none_of(reduced.begin(), reduced.end(), [&](Node r) { return range_id(r) == id; }))
        return false;
    }
    return true;
  }

  // A thread has the pooling windows of several contiguous channels.
  void windows() {
    constexpr int64_t kElements = 72, kBlocks = 2;  // of a thread; that a multiprocessor is to have
    Ids rest = shared_loops();
    const int v = vector_range(rest), down = overlapping(without(rest, v));
    int64_t reduced = 1;
    for (int id : loops()) {
      if (std::find(rest.begin(), rest.end(), id) != rest.end()) continue;
      reduced *= extent(range(id));
      bind(id, RangeKind::Unroll);
    }
    make_last(rest, v);
    const int64_t blocks = iterations(rest) / (kBlock * target_.cores);
    for (lanes_ = lanes_along(range(v)); lanes_ > 1; lanes_ /= 2)
      if (reduced * lanes_ <= kElements && blocks >= kBlocks * lanes_) break;
    vector(v, rest);
    if (down >= 0 && lanes_ == 1) several_windows(down, rest);
    spread(merge(rest), kBlock);
  }

  // The range along which windows that follow one another share elements; -1 for none.
  int overlapping(const Ids& shared) const {
    for (int id : shared)
      for (const Access& a : accesses_) {
        if (a.node->op != Op::Load) continue;
        const int64_t step = std::abs(stride(a.node, id));
        for (int window : loops())
          if (step > 0 && !is_shared(window) && std::abs(stride(a.node, window)) > 0 &&
              step < extent(range(window)) * std::abs(stride(a.node, window)) &&
              step % std::abs(stride(a.node, window)) == 0)
            return id;
      }
    return -1;
  }

  // Each thread has some windows, one below the other: shared elements are loaded once
  // (measurements.md: several_windows).
  void several_windows(int id, Ids& rest) {
    for (int64_t n : {4, 2}) {
      if (extent(range(id)) % n || iterations(rest) < n * kBlock * target_.cores) continue;
      const int part = split(id, n);
      bind(part, RangeKind::Unroll);
      if (part == id) rest = without(rest, id);
      return;
    }
  }

  // --- rows --------------------------------------------------------------------------------------

  // Ranges of an item that not all items share.
  Ids own(Node item) const {
    Ids out;
    const uint64_t mask = enclosing(item) & ~shared_mask();
    for (int id : loops())
      if (mask >> id & 1) out.push_back(id);
    return out;
  }

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
      const Opt opt{OptKind::Join, a[i], b[i], {}};
      if (!is_legal(sink_, opt, target_)) continue;
      apply(opt);
      joined = true;
    }
    return joined;
  }

  // Rows that a warp can hold, and enough of them: its threads combine by shuffles, without
  // barriers (measurements.md: is_warps).
  bool is_warps(int64_t vectors, int64_t rows) const {
    return vectors * lanes_ <= target_.warp * kHeldByThread && rows >= 32 * target_.cores;
  }

  int64_t row_threads(int64_t vectors, int64_t rows, bool held) const {
    if (vectors <= 32) return pow2(vectors);
    if (held && is_warps(vectors, rows)) return target_.warp;
    // Held rows take fewer threads than sums that are read once (measurements.md: row_threads).
    const int64_t each = held                   ? kWantedOfHeld / lanes_
                         : vectors >= kVeryLong ? 2
                                                : kVectorsOfThread;
    int64_t threads =
        std::clamp<int64_t>(pow2(vectors) / std::max<int64_t>(each, 1), 32, kMaxInRow);
    // A chip that is not full is filled with threads; a row that is held, spread over more of them.
    while (threads < kMaxInRow && threads * 2 <= pow2(vectors) &&
           (rows * threads < 1024 * target_.cores ||
            (held && vectors * lanes_ > threads * kHeldByThread)))
      threads *= 2;
    return dividing(vectors, threads);
  }

  // As many of a block's threads as leave none idle in the last iteration (measurements.md:
  // dividing).
  int64_t dividing(int64_t vectors, int64_t threads) const {
    if (threads >= kBlock && vectors % threads)
      for (int64_t fewer = threads - target_.warp; 2 * fewer >= threads; fewer -= target_.warp)
        if (vectors % fewer == 0) return fewer;
    return threads;
  }

  // Ranges that the same items run in, and the same reductions close; `items` by their numbers.
  struct Class {
    Ids ids;
    std::set<size_t> items;
    int64_t iterations = 1;

    bool meets(const Class& other) const {
      return std::any_of(items.begin(), items.end(),
                         [&](size_t i) { return other.items.count(i) != 0; });
    }
  };

  std::vector<Class> classes() const {
    std::map<std::pair<std::set<size_t>, std::set<size_t>>, Ids> found;
    const auto all = items();
    for (int id : loops()) {
      std::set<size_t> in, reduced;
      for (size_t i = 0; i < all.size(); ++i) {
        const Ids own_ids = own(all[i]);
        if (std::find(own_ids.begin(), own_ids.end(), id) == own_ids.end()) continue;
        in.insert(i);
        if (!(all[i]->ranges >> id & 1)) reduced.insert(i);
      }
      if (!in.empty()) found[{in, reduced}].push_back(id);
    }
    std::vector<Class> out;
    for (const auto& [key, ids] : found) out.push_back({ids, key.first, iterations(ids)});
    std::stable_sort(out.begin(), out.end(),
                     [](const Class& a, const Class& b) { return a.iterations > b.iterations; });
    return out;
  }

  void rows() {
    join();
    const Ids outer = shared_loops();
    const int64_t rows = iterations(outer);
    int thread = -1;
    int64_t threads = 0;
    std::vector<Class> spread_out;
    for (const Class& c : classes()) {
      // An item has threads along one class of its ranges; the others are enclosing loops.
      if (std::any_of(spread_out.begin(), spread_out.end(),
                      [&](const Class& other) { return other.meets(c); }))
        continue;
      row(c, rows, thread, threads);
      spread_out.push_back(c);
    }
    last_ = thread;
    blocks_of(outer, threads);
  }

  // The outer ranges over blocks, where `threads` of each block are taken already.
  void blocks_of(const Ids& outer, int64_t threads) {
    if (outer.empty()) return;
    const int m = merge(outer);
    if (threads >= kBlock / 2) return bind(m, RangeKind::Block);
    // Small blocks for warps that hold rows: of pieces of 2016 bf16 one of 64 threads is 1 % faster
    // than one of 128, and one of 256 6 % slower.
    const int64_t block = threads == target_.warp && held_ ? kBlock / 4 : kBlock;
    spread(m, std::max<int64_t>(1, block / std::max<int64_t>(threads, 1)));
  }

  // --- scans -------------------------------------------------------------------------------------

  // A row is read once: several vectors in each thread.
  void scan(int along) {
    constexpr int64_t kTiles = 4, kMaxThreads = 512, kMaxTiles = 64;
    Ids outer = without(shared_loops(), along);
    lanes_ = lanes_along(range(along));
    vector(along, outer);
    const auto vectors = static_cast<uint64_t>(extent(range(along)));
    const auto threads =
        std::clamp<int64_t>(static_cast<int64_t>(std::bit_ceil(vectors)) / kTiles, 32, kMaxThreads);
    const int inner = widened(along, threads);
    bind(inner, RangeKind::Thread);
    last_ = inner;
    if (inner != along && range(along) && extent(range(along)) <= kMaxTiles)
      bind(along, RangeKind::Unroll);
    blocks_of(outer, threads);
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
    const int64_t vectors = iterations(set) / lanes_;
    vector(v, set);
    if (threads == 0) threads = row_threads(vectors, rows, held);
    const int flat = merge(set);
    if (flat < 0) return;  // a vector is all of it
    const int64_t each = ceil_div(extent(range(flat)), threads);
    held_ |= held && 2 * each * lanes_ >= kWantedOfHeld;
    const int inner = threads > 1 ? split(flat, threads) : flat;
    const bool is_thread = threads > 1 && extent(range(inner)) <= threads;
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
    if (extent(range(inner)) < threads) inner = widened(inner, threads);
    if (thread < 0) {
      bind(inner, RangeKind::Thread);
      thread = inner;
      return;
    }
    const Opt opt{OptKind::Join, thread, inner, {}};
    if (is_legal(sink_, opt, target_)) apply(opt);
  }

  // The range of the set along which most accesses are contiguous.
  int vector_range(const Ids& set) const {
    int best = set.back();
    double best_score = -1;
    for (int id : set) {
      double score = 0;
      for (const Access& a : accesses_)
        if ((a.enclosing >> id & 1) && stride_in_block(a.node, range(id), 4) == 1) score += a.count;
      if (score >= best_score) {
        best = id;
        best_score = score;
      }
    }
    return best;
  }

  // Few results of long sums: too few threads with one for each.
  bool is_narrow() const {
    constexpr int64_t kFew = 2048, kLong = 128;
    const Ids shared = shared_loops();
    const int64_t results = iterations(shared);
    return results <= kFew && iterations(loops()) / results >= kLong;
  }

  bool held_ = false;  // a row is read more than once, from registers, of which that takes many
};

}  // namespace

Choice choose_gpu_options(Node sink, const Target& target) { return RowTuner(sink, target).run(); }

}  // namespace tiny
