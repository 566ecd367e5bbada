// Options for GPUs. Three classes of kernels: streams (element-wise work, moved data), rows (what
// is reduced is what a group of threads reads side by side; the row stays in their registers) and
// columns (each thread reduces on its own; products get a tile of results per thread).
#include <map>
#include <set>

#include "codegen/heuristic_product.h"
#include "codegen/matrix.h"
#include "codegen/mma.h"
#include "codegen/tuner.h"
#include "tiny/algebra.h"

namespace tiny {

namespace {

constexpr int64_t kBlock = 256;          // threads of a block where nothing asks for more or less
constexpr int64_t kMostInRow = 1024;     // threads that share a row
constexpr int64_t kHeldByThread = 64;    // elements of a row that a thread keeps in registers
constexpr int64_t kHeldByBlock = 16384;  // and of those of a block: two must fit
constexpr int64_t kVectorsOfThread = 4;  // wanted per thread of a long row: loads in flight

class GpuTuner : Tuner {
 public:
  GpuTuner(Node sink, const Target& target) : Tuner(sink, target) {}

  Choice run() {
    if (auto options = matrix_options(sink_, target_); !options.empty()) return {options, true};
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
    if (!reduces && shared_loops().size() == loops().size())
      stream();
    else if (is_windows())
      windows();
    else if (column >= 0 && is_shared(column) && is_reduced_under(column) && !is_narrow())
      columns(range(column));
    else
      rows();
    order_kinds(last_);
    return std::move(choice_);
  }

 private:
  using Ids = std::vector<int>;

  // --- what there is -----------------------------------------------------------------------------

  bool has_reductions() const { return !all_of(sink_, Op::Reduce).empty(); }

  // Ranges that all items run in and none reduces along. What runs in none is done once.
  uint64_t shared_mask() const {
    uint64_t mask = ~uint64_t{0};
    for (Node item : items()) {
      if (around(item) == 0) continue;
      mask &= around(item);
      if (item->op == Op::Reduce)
        for (Node r : item->srcs().subspan(1)) mask &= ~r->ranges;
    }
    return mask;
  }
  bool is_shared(int id) const { return shared_mask() >> id & 1; }

  // A range of kind Reduce that no reduction closes belongs to a store that goes on in order; one
  // that combines with what is there may as well run in parallel: it is atomic.
  bool is_sequential(Node r) const {
    if (kind(r) != RangeKind::Reduce) return false;
    for (Node s : sink_->srcs())
      if ((s->ranges & r->ranges) && !std::holds_alternative<OpArg>(s->payload)) return true;
    return false;
  }

  Ids loops() const {
    Ids out;
    for (Node r : ranges_)
      if (!is_sequential(r) && (kind(r) == RangeKind::Loop || kind(r) == RangeKind::Reduce))
        out.push_back(range_id(r));
    return out;
  }
  Ids shared_loops() const {
    Ids out;
    const uint64_t mask = shared_mask();
    for (int id : loops())
      if (mask >> id & 1) out.push_back(id);
    return out;
  }

  int64_t iterations(const Ids& ids) const {
    int64_t n = 1;
    for (int id : ids) n *= extent(range(id));
    return n;
  }

  // --- options in groups -------------------------------------------------------------------------

  // Cuts `amount` iterations off: the id of the inner range, which is `id` itself where the range
  // has no more than that.
  int split(int id, int64_t amount) {
    if (amount < 2 || extent(range(id)) <= amount) return id;
    const int inner = next_range_id(sink_);
    apply({OptKind::Split, id, amount, {}});
    return inner;
  }

  // One range for all of them, the last one fastest; -1 for none.
  int merge(const Ids& ids) {
    if (ids.empty()) return -1;
    for (size_t i = 1; i < ids.size(); ++i) apply({OptKind::Merge, ids[0], ids[i], {}});
    return ids[0];
  }

  // The range over threads and blocks: `threads` at a time side by side.
  void spread(int id, int64_t threads) {
    if (id < 0) return;
    const int inner = split(id, threads);
    bind(inner, RangeKind::Thread);
    if (inner != id) bind(id, RangeKind::Block);
  }

  // --- vectors -----------------------------------------------------------------------------------

  static int element_size(const Access& a) {
    return (a.node->op == Op::Load ? a.node->dtype : a.node->src(2)->dtype).size();
  }

  bool is_aligned(const Access& a, Node v, int lanes) const {
    const Sum sum = to_sum(a.node->src(1));
    if (sum.constant % lanes) return false;
    return std::all_of(sum.terms.begin(), sum.terms.end(),
                       [&](const auto& t) { return t.atom == v || t.factor % lanes == 0; });
  }

  // Lanes of a vector along the range: 16 bytes of the narrowest elements that are contiguous in
  // it, less where they are not aligned or the extent does not divide. 1: no vector.
  int lanes_along(Node v) const {
    int lanes = 1;
    for (const Access& a : accesses_)
      if ((a.around & v->ranges) && stride_in_block(a.node, v, 4) == 1)
        lanes = std::max(lanes, std::min(8, 16 / element_size(a)));
    for (; lanes > 1; lanes /= 2) {
      if (extent(v) % lanes) continue;
      double good = 0, all = 0;
      for (const Access& a : accesses_) {
        if (!(a.around & v->ranges)) continue;
        const int64_t s = stride_in_block(a.node, v, lanes);
        if (s == 0) continue;
        all += a.count;
        if (s == 1 && is_aligned(a, v, lanes)) good += a.count;
      }
      if (good * 2 > all) break;
    }
    return lanes;
  }

  // The same for rows that begin anywhere, by way of the aligned element before them.
  int aligned_lanes(int id) {
    constexpr int64_t kLong = 512;  // the ends are dear
    const int lanes = lanes_along(range(id));
    if (lanes > 1 || extent(range(id)) < kLong) return lanes;
    for (const Access& a : accesses_) {
      if (!(a.around >> id & 1) || stride(a.node, id) != 1) continue;
      const Opt opt{OptKind::Align, id, 16 / element_size(a), {}};
      if (!is_legal(sink_, opt, target_)) continue;
      apply(opt);
      return lanes_along(range(id));
    }
    return lanes;
  }

  // --- streams -----------------------------------------------------------------------------------

  void stream() {
    Ids rest = loops();
    if (rest.empty()) return;
    int v = best_column();
    if (v < 0) return spread(merge(rest), kBlock);
    if (const int stored = crossing_store(v); stored >= 0) v = stored;
    lanes_ = aligned_lanes(v);
    if (lanes_ == 4) {
      const int across = crossing_range(v);
      if (across >= 0) return transpose(v, across);
    }
    make_last(rest, v);
    const int64_t threads = iterations(rest) / lanes_;
    vector(v, rest);
    // Small work on more multiprocessors rather than full blocks.
    const int64_t block = threads >= kBlock * target_.cores ? kBlock : 128;
    const int flat = merge(rest);
    if (flat < 0) return;  // a vector is all of it
    const int thread = split(flat, block);
    bind(thread, RangeKind::Thread);
    if (thread == flat) return;
    // What waits for an index waits for several at once.
    constexpr int64_t together = 4;
    if (gathers() && extent(range(flat)) % together == 0 &&
        extent(range(flat)) >= 8 * together * target_.cores)
      bind(split(flat, together), RangeKind::Unroll);
    bind(flat, RangeKind::Block);
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

  // Whether a place depends on what is loaded.
  bool gathers() const {
    return std::any_of(accesses_.begin(), accesses_.end(), [](const Access& a) {
      const Node index = a.node->src(1);
      return !all_of(index, Op::Load).empty();
    });
  }

  static void make_last(Ids& ids, int id) {
    if (std::find(ids.begin(), ids.end(), id) == ids.end()) return;
    ids = without(ids, id);
    ids.push_back(id);
  }

  // Binds a vector off the range; where it was no more than that it is gone from `rest`.
  void vector(int v, Ids& rest) {
    if (lanes_ < 2) return;
    const int inner = split(v, lanes_);
    bind(inner, RangeKind::Vector);
    if (inner == v) rest = without(rest, v);
  }

  // Each thread a square of 4 x 4 that it transposes in registers; a block 16 of them along the
  // vectors and many across, so that both ways it touches lines of memory next to each other.
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
    const int y = thread(across, large ? 64 : 16), x = thread(v, 16);
    last_ = x >= 0 ? x : y;
    const int block = merge(rest);
    if (block < 0) return;
    int64_t threads = 1;
    for (Node r : ranges_)
      if (kind(r) == RangeKind::Thread) threads *= extent(r);
    const int more = threads * 2 <= kBlock ? split(block, kBlock / threads) : block;
    bind(more, more == block ? RangeKind::Block : RangeKind::Thread);
    if (more != block) bind(block, RangeKind::Block);
  }

  // --- windows -----------------------------------------------------------------------------------

  // Many results of a few elements each, which do not lie side by side.
  bool is_windows() const {
    constexpr int64_t kSide = 8, kMost = 64;
    const Ids shared = shared_loops();
    int64_t reduced = 1;
    for (int id : loops()) {
      if (std::find(shared.begin(), shared.end(), id) != shared.end()) continue;
      if (extent(range(id)) >= kSide || !is_reduced(id)) return false;
      reduced *= extent(range(id));
    }
    return reduced > 1 && reduced <= kMost && iterations(shared) >= int64_t{kBlock} * target_.cores;
  }
  bool is_reduced(int id) const {
    for (Node item : items()) {
      const auto closed =
          item->op == Op::Reduce ? item->srcs().subspan(1) : std::span<const Node>();
      if ((around(item) >> id & 1) &&
          std::none_of(closed.begin(), closed.end(), [&](Node r) { return range_id(r) == id; }))
        return false;
    }
    return true;
  }

  void windows() {
    Ids rest = shared_loops();
    for (int id : loops())
      if (std::find(rest.begin(), rest.end(), id) == rest.end()) bind(id, RangeKind::Unroll);
    const int v = vector_range(rest);
    make_last(rest, v);
    spread(merge(rest), kBlock);
  }

  // --- rows --------------------------------------------------------------------------------------

  // Ranges of an item that not all items share.
  Ids own(Node item) const {
    Ids out;
    const uint64_t mask = around(item) & ~shared_mask();
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

  int64_t row_threads(int64_t vectors, int64_t rows, bool held) const {
    const auto pow2 = [](int64_t n) {
      return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(n)));
    };
    if (vectors <= 32) return pow2(vectors);
    int64_t threads = std::clamp<int64_t>(pow2(vectors) / kVectorsOfThread, 32, kMostInRow);
    // A chip that is not full is filled with threads; a row that is held, spread over more of them.
    while (threads < kMostInRow && threads * 2 <= pow2(vectors) &&
           (rows * threads < 1024 * target_.cores ||
            (held && vectors * lanes_ > threads * kHeldByThread)))
      threads *= 2;
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
      std::set<size_t> in, closed;
      for (size_t i = 0; i < all.size(); ++i) {
        const Ids own_ids = own(all[i]);
        if (std::find(own_ids.begin(), own_ids.end(), id) == own_ids.end()) continue;
        in.insert(i);
        if (!(all[i]->ranges >> id & 1)) closed.insert(i);
      }
      if (!in.empty()) found[{in, closed}].push_back(id);
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
      // An item has threads along one class of its ranges; the others are loops around them.
      if (std::any_of(spread_out.begin(), spread_out.end(),
                      [&](const Class& other) { return other.meets(c); }))
        continue;
      row(c, rows, thread, threads);
      spread_out.push_back(c);
    }
    last_ = thread;
    blocks_of(outer, threads);
  }

  // What has so many threads already, over blocks.
  void blocks_of(const Ids& outer, int64_t threads) {
    if (outer.empty()) return;
    const int m = merge(outer);
    if (threads >= kBlock / 2) return bind(m, RangeKind::Block);
    spread(m, std::max<int64_t>(1, kBlock / std::max<int64_t>(threads, 1)));
  }

  // --- scans -------------------------------------------------------------------------------------

  // A row is read once: several vectors in each thread.
  void scan(int along) {
    constexpr int64_t kTiles = 4, kMostThreads = 512, kMostTiles = 64;
    Ids outer = without(shared_loops(), along);
    lanes_ = lanes_along(range(along));
    vector(along, outer);
    const auto vectors = static_cast<uint64_t>(extent(range(along)));
    const auto threads = std::clamp<int64_t>(static_cast<int64_t>(std::bit_ceil(vectors)) / kTiles,
                                             32, kMostThreads);
    const int inner = widened(along, threads);
    bind(inner, RangeKind::Thread);
    last_ = inner;
    if (inner != along && range(along) && extent(range(along)) <= kMostTiles)
      bind(along, RangeKind::Unroll);
    blocks_of(outer, threads);
  }

  // Ranges that go together, over a group of threads: vectors, the threads side by side, and what
  // is left for each of them.
  void row(const Class& c, int64_t rows, int& thread, int64_t& threads) {
    Ids set = c.ids;
    const int v = vector_range(set);
    lanes_ = aligned_lanes(v);
    make_last(set, v);
    const bool held = c.items.size() > 1;
    const int64_t vectors = iterations(set) / lanes_;
    vector(v, set);
    if (threads == 0) threads = row_threads(vectors, rows, held);
    const int flat = merge(set);
    if (flat < 0) return;  // a vector is all of it
    const int64_t each = (extent(range(flat)) + threads - 1) / threads;
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

  // The range with as many iterations as there are threads, those beyond its end gated off.
  int widened(int id, int64_t threads) {
    const int inner = next_range_id(sink_);
    apply({OptKind::Split, id, threads, {}});
    return inner;
  }

  // The range of the set along which most accesses are contiguous.
  int vector_range(const Ids& set) const {
    int best = set.back();
    double best_score = -1;
    for (int id : set) {
      double score = 0;
      for (const Access& a : accesses_)
        if ((a.around >> id & 1) && stride_in_block(a.node, range(id), 4) == 1) score += a.count;
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

  // --- columns -----------------------------------------------------------------------------------

  // Each thread a vector of columns, all threads side by side.
  void columns(Node column) {
    if (is_product()) return product();
    const int v = range_id(column);
    Ids rest = shared_loops();
    make_last(rest, v);
    const int64_t results = iterations(rest), wanted = target_.cores * int64_t{512};
    lanes_ = std::min(4, lanes_along(column));
    while (lanes_ > 1 && results / lanes_ < wanted) lanes_ /= 2;
    vector(v, rest);
    const bool full = results / lanes_ >= wanted;
    unroll_reductions(full ? 8 : 32);  // few threads: more loads in flight in each
    spread(merge(rest), full ? kBlock : 64);
  }

  void unroll_reductions(int64_t most) {
    for (Node reduce : all_of(sink_, Op::Reduce)) {
      const int id = range_id(reduce->srcs().back());
      if (range(id) && kind(range(id)) == RangeKind::Reduce) unroll_split(id, most);
    }
  }

  // Loads that a reduction reads, in its loops.
  std::vector<Access> operands() const {
    std::vector<Access> out;
    for (const Access& a : accesses_)
      if (a.item->op == Op::Reduce && a.node->op == Op::Load) out.push_back(a);
    return out;
  }
  bool depends(const Access& a, int id) const { return a.node->ranges >> id & 1; }

  // Reductions of factors that are each used by several results.
  bool is_product() const {
    for (int id : shared_loops())
      for (const Access& a : operands())
        if ((a.around >> id & 1) && !depends(a, id) && extent(range(id)) > 1) return true;
    return false;
  }

  // Each thread a tile of results: `v`, along which an operand is loaded in vectors, times `u`,
  // which that operand does not depend on. Threads lie along `x`, the direction in which the other
  // operand is contiguous: then it is read in whole lines, and the first one is the same for all.
  void product() {
    choice_.heavy = true;
    Ids rest = shared_loops();
    const int v = best_of(rest, [&](int id, const Access& a) {
      return extent(range(id)) % 4 == 0 && stride_in_block(a.node, range(id), 4) == 1 &&
             is_aligned(a, range(id), 4);
    });
    const Ids others = without(rest, v);
    const int x = best_of(others, [&](int id, const Access& a) {
      return stride_in_block(a.node, range(id), 4) == 1;
    });
    const auto serves_many = [&](int id, const Access& a) {
      return !depends(a, id) && (v < 0 || depends(a, v)) && best_unroll(extent(range(id)), 8) > 1;
    };
    int u = best_of(without(others, x), serves_many);
    if (u < 0) u = best_of(others, serves_many);
    const auto [across, down] = tile_of(v, u, iterations(rest));
    make_last(rest, x >= 0 ? x : v);
    if (down > 1) unrolled(u, down, rest);
    if (across > 1) {
      lanes_ = 4;
      const int vectors = v;
      vector(v, rest);
      if (across > 4) unrolled(vectors, across / 4, rest);
    }
    unroll_reductions(across * down >= 64 ? 4 : 8);
    spread(merge(rest), kBlock);
  }

  static Ids without(Ids ids, int id) {
    ids.erase(std::remove(ids.begin(), ids.end(), id), ids.end());
    return ids;
  }

  // The range with the most loads that qualify; -1 where there is none.
  template <class Qualifies> int best_of(const Ids& ids, Qualifies qualifies) const {
    int best = -1;
    double most = 0;
    for (int id : ids) {
      double score = 0;
      for (const Access& a : operands())
        if ((a.around >> id & 1) && qualifies(id, a)) score += a.count;
      if (score > 0 && score >= most) {
        best = id;
        most = score;
      }
    }
    return best;
  }

  // The largest tile that leaves enough threads.
  std::pair<int64_t, int64_t> tile_of(int v, int u, int64_t results) const {
    const int64_t wanted = target_.cores * kBlock;
    for (auto [across, down] : {std::pair<int64_t, int64_t>{8, 8},
                                {8, 4},
                                {4, 8},
                                {4, 4},
                                {4, 2},
                                {4, 1},
                                {1, 8},
                                {1, 4},
                                {1, 2}}) {
      if (across > 1 && (v < 0 || extent(range(v)) % across)) continue;
      down = u < 0 ? 1 : best_unroll(extent(range(u)), down);
      if (results / (across * down) >= wanted) return {across, down};
    }
    return {1, 1};
  }

  // A piece of the range goes to each thread.
  void unrolled(int id, int64_t amount, Ids& rest) {
    const int part = split(id, amount);
    bind(part, RangeKind::Unroll);
    if (part == id) rest = without(rest, id);
  }

  int last_ = -1;  // the thread range that is x
};

}  // namespace

Choice choose_gpu_options(Node sink, const Target& target) { return GpuTuner(sink, target).run(); }

}  // namespace tiny
