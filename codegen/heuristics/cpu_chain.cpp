// Schedules chains of products (runtime/fusion/chain.h) on a CPU: the lanes of a vector are rows of
// the scores, so that nothing that is made of them goes from one lane to another. Columns come in
// tiles that reductions roll along; rows of the first product's operand stand transposed in a stage
// on the stack, elements of the other operands are single ones for all lanes.
#include <algorithm>

#include "codegen/heuristics/tuner.h"
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
    const auto chain = find_chain(sink_, target_);
    if (getenv("DBG")) fprintf(stderr, "chain %d\n", chain.has_value());
    if (!chain || !is_worth_it(*chain)) return {};
    if (!lay_out(*chain)) return {};
    choice_.is_gemm = false;
    return std::move(choice_);
  }

 private:
  const int64_t kProducts = getenv("KP") ? atoi(getenv("KP")) : 1024;  // of a tile's columns and a result's, in one iteration

  int64_t lanes() const { return target_.vector_bytes / 4; }

  bool is_worth_it(const ProductChain& chain) const {
    if (chain.unit && chain.unit->rows > 1) return false;  // tiles are faster
    return extent(chain.m) >= lanes() && extent(chain.n) > columns_of(chain);
  }

  // Columns of a tile: a sum of scores for each stays in a register, with one for the operand.
  int64_t columns_of(const ProductChain& chain) const {
    int64_t results = 0;
    for (const auto& p : chain.outer) results += extent(p.across);
    const int64_t inner = static_cast<int64_t>(chain.inner.size());
    const int64_t most = target_.vector_registers / 2 / inner;
    int64_t columns = std::clamp<int64_t>(kProducts / std::max<int64_t>(results, 1), 2, most);
    return columns;
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
    if (reduces(n) && !applied({OptKind::Roll, n, 0, {}})) return false;
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
  int cut(int id, int64_t amount) {
    if (size(id) == amount) return id;
    const int inner = next_range_id(sink_);
    apply({OptKind::Split, id, amount, {}});
    return inner;
  }

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

  // Columns of results: as many as lanes together, so that stores can transpose them.
  void unroll(int id) {
    const int inner = size(id) > lanes() ? cut(id, best_unroll(size(id), lanes())) : id;
    for (int part : {id, inner})
      if (range(part) && size(part) > 1) bind(part, RangeKind::Unroll);
  }

  // Whether something besides the products is reduced along the columns.
  bool reduces(int) const { return true; }

  bool applied(const Opt& opt) {
    std::string why;
    if (!is_legal(sink_, opt, target_, &why)) {
      if (getenv("DBG")) fprintf(stderr, "%s: %s\n", to_text(opt).c_str(), why.c_str());
      return false;
    }
    apply(opt);
    return true;
  }

  // All loops around the chain are divided among the cores.
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
