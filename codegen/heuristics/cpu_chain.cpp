// Schedules chains of products (runtime/fusion/chain.h) on a CPU: the lanes of a vector are rows of
// the scores, so that nothing that is made of them goes from one lane to another. Columns come in
// tiles that reductions roll along; rows of the first product's operand stand transposed in a stage
// on the stack, elements of the other operands are single ones for all lanes.
#include <algorithm>

#include "codegen/heuristics/tuner.h"
#include "codegen/kernel/lengths.h"
#include "codegen/options/fragments.h"
#include "tiny/ir/sizes.h"
#include "tiny/rewrite/algebra.h"

namespace tiny {

namespace {

class CpuChainTuner : Tuner {
 public:
  CpuChainTuner(Node sink, const Target& target) : Tuner(sink, target) {}

  std::optional<Choice> run() {
    join_alike();
    auto chain = find_chain(sink_, target_);
    if (!chain && split_groups()) chain = find_chain(sink_, target_);
    if (!chain || !is_supported(*chain) || !is_worth_it(*chain) || !lay_out(*chain)) return {};
    return std::move(choice_);
  }

 private:
  // Rows of several heads that share keys: a loop of each group and one of its rows, where both are
  // one and operands depend on the quotient. False where there are none.
  bool split_groups() {
    for (Node n : topological(sink_)) {
      if (n->op != Op::FloorDiv || !n->src(1)->is_const()) continue;
      Node r = n->src(0);
      const int64_t each = n->src(1)->int_value();
      if (r->op != Op::Range || kind(r) != RangeKind::Loop || each < 2 || extent(r) % each)
        continue;
      split(range_id(r), each);
      return true;
    }
    return false;
  }

  int64_t lanes() const { return target_.vector_bytes / 4; }

  static int64_t results_of(const ProductChain& chain) {
    int64_t columns = 0;
    for (const auto& p : chain.outer) columns += extent(p.across);
    return columns;
  }

  // Terms of a score, of several matrices together.
  static int64_t terms_of(const ProductChain& chain) {
    int64_t terms = 0;
    for (const auto& p : chain.inner) terms += extent(p.summed);
    return terms;
  }

  // Of 16-bit floats pairs alone are multiplied as fast as by kernels of their own; f16 has none.
  // Rows of a Variable's number end with it in those.
  bool is_supported(const ProductChain& chain) const {
    if (has_length(sink_, chain.m)) return false;
    if (chain.unit) return chain.unit->rows == 1;
    const auto is_f32 = [](const ProductChain::Product& p) {
      return p.a->dtype == kF32 && p.b->dtype == kF32;
    };
    return std::ranges::all_of(chain.inner, is_f32) && std::ranges::all_of(chain.outer, is_f32);
  }

  // What a chain saves are scores that go to memory and back. What it costs are results that go to
  // L1 and back for each tile of columns, which are fewer the wider results are, and in gradients
  // scores that are computed again: more than it saves unless results are narrow, and worth it for
  // the memory of many scores alone (measurements.md: CpuChainTuner).
  bool is_worth_it(const ProductChain& chain) const {
    constexpr int64_t kNarrow = 64, kWide = 128, kMuch = 32 << 20;
    if (extent(chain.m) < lanes() || extent(chain.n) <= columns_of(chain)) return false;
    int64_t scores = extent(chain.n), blocks = 1;
    for (Node r : ranges_) {
      if (kind(r) != RangeKind::Loop || !(chain.inner[0].reduce->ranges & r->ranges)) continue;
      scores *= extent(r);
      blocks *= r == chain.m ? ceil_div(extent(r), lanes()) : extent(r);
    }
    const int64_t most = scores * int64_t{sizeof(float)} > kMuch ? kWide : kNarrow;
    if (blocks < target_.cores) return false;
    if (chain.outer.empty()) return true;  // nothing is computed twice (sizes.h)
    return results_of(chain) <= most && terms_of(chain) <= most;
  }

  // Columns of a tile: the sum of a score for each is in a register, and for each product of scores
  // and values an instruction in the loop's text.
  int64_t columns_of(const ProductChain& chain) const {
    constexpr int64_t kProducts = 1024;
    const auto inner = static_cast<int64_t>(chain.inner.size());
    const int64_t most = std::max<int64_t>(target_.vector_registers / 2 / inner, 2);
    return std::clamp<int64_t>(kProducts / std::max<int64_t>(results_of(chain), 1) / 2 * 2, 2,
                               most);
  }

  bool lay_out(const ProductChain& chain) {
    const int m = range_id(chain.m), n = range_id(chain.n);
    Ids across, sums;
    for (const auto& p : chain.outer) across.push_back(range_id(p.across));
    for (const auto& p : chain.inner) sums.push_back(range_id(p.summed));
    for (Ids* ids : {&across, &sums}) {
      std::sort(ids->begin(), ids->end());
      ids->erase(std::unique(ids->begin(), ids->end()), ids->end());
    }
    const int columns = cut(n, columns_of(chain));
    if (!applied({OptKind::Roll, n, 0, {}})) return false;
    const int rows = cut(m, lanes());
    if (chain.unit) {
      if (!pairs(rows, columns)) return false;
    } else {
      for (const auto& p : chain.inner)
        if (!stage(range_id(p.summed), rows)) return false;
    }
    if (range(columns)) bind(columns, RangeKind::Unroll);
    for (int id : across) unroll(id);
    bind(rows, RangeKind::Vector);
    return order();
  }

  // The inner range of so many iterations.
  int cut(int id, int64_t amount) { return size(id) == amount ? id : split(id, amount); }

  // The operand with the rows: copied along these.
  bool stage(int summed, int rows) {
    for (int factor : {0, 1}) {
      const int copies = next_range_id(sink_);
      const Opt opt{OptKind::Stage, summed, 1, {summed, rows}, {}, {factor}};
      if (!applied(opt)) continue;
      bind(copies + 1, RangeKind::Vector);
      return true;
    }
    return false;
  }

  // All products on the unit that adds pairs.
  bool pairs(int rows, int columns) {
    const int first = next_range_id(sink_);
    if (!applied({OptKind::Fragments, rows, 0, {columns}})) return false;
    const int end = next_range_id(sink_);
    bind(first, RangeKind::Unroll);
    for (int copy = first + 2; copy < end; copy += 2) copy_vectors(copy);
    return true;
  }

  // Vectors along a stage's contiguous range.
  void copy_vectors(int id) {
    for (int64_t n = lanes(); n > 1; n /= 2)
      if (size(id) % n == 0) return bind(cut(id, n), RangeKind::Vector);
  }

  // Columns of results: as many as lanes together, so that stores can transpose them; all of a
  // number that nothing divides.
  void unroll(int id) {
    const int64_t together = best_unroll(size(id), lanes());
    const int inner = size(id) > lanes() && together > 1 ? cut(id, together) : id;
    for (int part : {id, inner})
      if (range(part) && size(part) > 1) bind(part, RangeKind::Unroll);
  }

  // The loops that the whole chain runs in are divided among the cores.
  bool order() {
    Ids loops, ids;
    for (Node r : ranges_)
      if (kind(r) == RangeKind::Loop && (sink_->ranges & r->ranges)) loops.push_back(range_id(r));
    for (int id : loops)
      for (Node s : sink_->srcs())
        if (!(s->ranges >> id & 1)) return false;
    const int core = merged(loops);
    if (core >= 0) {
      bind(core, RangeKind::Core);
      ids.push_back(core);
    }
    for (RangeKind k : {RangeKind::Loop, RangeKind::Reduce, RangeKind::Unroll, RangeKind::Vector})
      for (Node r : ranges_)
        if (kind(r) == k) ids.push_back(range_id(r));
    apply({OptKind::Order, 0, 0, ids});
    return true;
  }
};

}  // namespace

std::optional<Choice> choose_cpu_chain_options(Node sink, const Target& target) {
  if (!all_of(sink, Op::Prefix).empty()) return {};
  return CpuChainTuner(sink, target).run();
}

}  // namespace tiny
