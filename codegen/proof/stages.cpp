#include "codegen/proof/stages.h"

#include "codegen/kernel/access.h"
#include "codegen/proof/claims/claim.h"
#include "codegen/proof/write_layout.h"
#include "tiny/rewrite/algebra.h"

namespace tiny {

Finding prove_schedule(const StageSchedule& s) {
  const auto wrong = [&](const char* what) {
    return Finding{Verdict::Wrong, Method::Walk,
                   cat(s.depth, " stages, filled ", s.lead, " ahead: ", what)};
  };
  // The barrier of iteration i parts what is read and filled in i from what was in i - 1. A thread
  // is in one of the two while another is in the other, or both are in the same.
  if (s.lead == 0) return s.depth == 1 ? Finding{} : wrong("copies are never ahead");
  if (s.lead % s.depth == 0) return wrong("a tile is filled while it is read");
  if (s.lead > s.depth) return wrong("a tile is filled again before it was read");
  // The group of iteration i is number i + lead of those asked for when i has been: before the
  // barrier of i there are i + lead of them, and that of i is followed by lead - 1.
  if (s.pending > s.lead - 1) return wrong("a tile is read before it has arrived");
  return {};
}

namespace {

// Whether no two iterations write the same element, tried one after the other.
bool walked_apart(const Claim& c) {
  constexpr int64_t kMax = 1 << 15;
  std::vector<Node> ranges;
  int64_t count = 1;
  for (Node n : topological(c.index))
    if (n->op == Op::Range) ranges.push_back(n);
  for (Node r : ranges)
    if ((count *= extent(r)) > kMax) return false;
  std::vector<bool> written(static_cast<size_t>(c.size));
  for (int64_t i = 0; i < count; ++i) {
    Point p;
    int64_t rest = i;
    for (Node r : ranges) {
      p.ranges[range_id(r)] = rest % extent(r);
      rest /= extent(r);
    }
    const auto at = evaluate(c.index, 0, p);
    if (!at || *at < 0 || *at >= c.size || written[*at]) return false;
    written[*at] = true;
  }
  return true;
}

// A place without the terms that are the same for all elements of a copy, as the number of the
// tile, of several, and what a block reads from memory to know its first one: they move all of it
// alike.
Node within_tile(Node place, uint64_t own) {
  if (place->is_const()) return place;
  if (!(place->ranges & own)) return constant(place->dtype, 0);
  if (place->op != Op::Add) return place;
  return make(Op::Add, place->dtype,
              {within_tile(place->src(0), own), within_tile(place->src(1), own)});
}

}  // namespace

std::vector<Finding> prove_stages(Node sink) {
  std::vector<Finding> out;
  for (Node s : all_of(sink, Op::Stage)) {
    out.push_back(prove_schedule(stage_schedule(stage_depth(s))));
    std::vector<Node> threads;
    uint64_t own = 0;  // ranges of the copy
    for (Node r : s->srcs().subspan(3)) {
      own |= r->ranges;
      if (kind(r) == RangeKind::Thread) threads.push_back(exact_form(r));
    }
    Node at = simplify(within_tile(s->src(1), own));
    Node store = make(Op::Store, kVoid, {s, at, s->src(0)});
    std::vector<Claim> writes;
    for (const Claim& c : claims_of(make(Op::Sink, kVoid, {store})))
      if (c.access == store && writes.empty()) writes.push_back(c);
    if (!written_apart(writes, threads) && !walked_apart(writes[0]))
      out.push_back({Verdict::Unproved, Method::None,
                     cat("threads may write the same element of stage ", slot_of(s))});
  }
  return out;
}

}  // namespace tiny
