#include "codegen/heuristics/stage_tuner.h"

#include <utility>

#include "codegen/kernel/facts.h"
#include "tiny/rewrite/algebra.h"

namespace tiny {

int64_t StagingTuner::size(const Ids& ids) const {
  int64_t n = 1;
  for (int id : ids) n *= size(id);
  return n;
}

int StagingTuner::cut(int& id, int64_t amount) {
  if (amount < 2) return -1;
  const int inner = next_range_id(sink_);
  if (size(id) == amount) return std::exchange(id, -1);
  const bool whole = size(id) < amount;
  apply({OptKind::Split, id, amount, {}});
  if (whole) id = -1;
  return inner;
}

int StagingTuner::merged(Ids ids) {
  std::erase_if(ids, [&](int id) { return id < 0 || !range(id); });
  for (size_t i = 1; i < ids.size(); ++i) apply({OptKind::Merge, ids[0], ids[i], {}});
  return ids.empty() ? -1 : ids[0];
}

namespace {

// Loads that a computed element depends on are vectors as well.
bool loads_vectors(Node load, Node lane, int64_t lanes) {
  if (stride(load, range_id(lane)) != 1) return false;
  if (load->num_src > 2 && (load->src(2)->ranges & lane->ranges)) return false;
  const Sum at = to_sum(load->src(1));
  const auto is_whole = [&](const Sum::Term& t) {
    return t.atom == lane || known_factor(t.atom) * t.factor % lanes == 0;
  };
  return at.constant % lanes == 0 && std::all_of(at.terms.begin(), at.terms.end(), is_whole);
}

}  // namespace

// Whether the elements of the stage that this option splits can be copied in such vectors.
bool StagingTuner::copies_vectors(const Opt& split, int lane) const {
  Node with = simplify(tiny::apply(sink_, split, target_));
  Node r = range_with_id(with, lane);
  for (Node stage : all_of(with, Op::Stage)) {
    if (!(stage->src(0)->ranges & r->ranges)) continue;
    int vectors = 0;
    for (Node load : topological(stage->src(0))) {
      if (load->op != Op::Load || !(load->ranges & r->ranges)) continue;
      if (!loads_vectors(load, r, split.amount)) return false;
      ++vectors;
    }
    return vectors > 0;
  }
  return false;
}

bool StagingTuner::copy_vectors(int column, int64_t lanes) {
  const int lane = next_range_id(sink_);
  const Opt split{OptKind::Split, column, lanes, {}};
  if (size(column) % lanes || !copies_vectors(split, lane)) return false;
  apply(split);
  bind(lane, RangeKind::Vector);
  return true;
}

void StagingTuner::share_out(int copies, const Ids& threads, int64_t unrolled) {
  for (int of : threads) {
    if (of < 0 || size(copies) % size(of)) continue;
    const int each = cut(copies, size(of));
    apply({OptKind::Join, of, each, {}});
  }
  if (size(copies) <= unrolled) bind_if(copies, RangeKind::Unroll);
}

}  // namespace tiny
