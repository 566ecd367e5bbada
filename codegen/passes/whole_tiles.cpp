#include "codegen/kernel/access.h"
#include "codegen/kernel/lengths.h"
#include "codegen/options/fragments.h"
#include "codegen/passes/passes.h"
#include "tiny/rewrite/algebra.h"
#include "tiny/rewrite/rebuild.h"
#include "tiny/rewrite/rewrite.h"

namespace tiny {

namespace {

// Ranges of which all threads have the same value, and those among them that are loops.
struct Uniform {
  uint64_t all = 0, loops = 0;

  explicit Uniform(Node sink) {
    for (Node r : all_of(sink, Op::Range)) {
      const bool is_loop = kind(r) == RangeKind::Reduce;
      if (is_loop || kind(r) == RangeKind::Block || kind(r) == RangeKind::Loop) all |= r->ranges;
      if (is_loop) loops |= r->ranges;
    }
  }
};

// Whether the condition holds for all threads and all elements of a thread, as arithmetic on what
// is the same for all of them; nullptr where that is not known, or nothing of it is to be known.
// What is read from memory for a tile is such a condition itself.
Node for_all(Node condition, const Uniform& uniform) {
  if (condition->op == Op::Or || condition->op == Op::And) {
    Node a = for_all(condition->src(0), uniform), b = for_all(condition->src(1), uniform);
    if (condition->op == Op::And) return a && b ? both(a, b) : nullptr;
    return a && b ? make(Op::Or, kBool, {a, b}) : a ? a : b;
  }
  const bool is_of_tile = !(condition->ranges & ~uniform.all) && condition->ranges & uniform.loops;
  if (is_of_tile && !all_of(condition, Op::Load).empty()) return condition;
  if (condition->op != Op::Lt && condition->op != Op::Le) return nullptr;
  if (!condition->src(0)->dtype.is_int() && condition->src(0)->dtype != kIndex) return nullptr;
  const Sum sum = difference(condition->src(0), condition->src(1));
  Node most = index(sum.constant);
  bool by_loop = false, by_thread = false;
  for (const Sum::Term& t : sum.terms) {
    if (!(t.atom->ranges & ~uniform.all)) {
      by_loop |= (t.atom->ranges & uniform.loops) != 0;
      most = index_add(most, index_mul(t.atom, t.factor));
    } else if (t.atom->op == Op::Range) {
      by_thread = true;
      most = index_add(most, index(t.factor > 0 ? t.factor * (extent(t.atom) - 1) : 0));
    } else {
      return nullptr;
    }
  }
  if (!by_loop || !by_thread) return nullptr;
  return less(most, index(condition->op == Op::Le ? 1 : 0));
}

}  // namespace

Node whole_tiles(Node sink, const Target& target) {
  if (target.kind != Target::Kind::Gpu || target.language == Target::Language::LlvmIr ||
      !is_chain(sink, target))
    return sink;
  const Uniform uniform(sink);
  std::vector<Node> conditions;
  for (Node n : topological(sink)) {
    if (n->op != Op::Where) continue;
    std::vector<Node> own;
    add_conditions(n->src(0), own);
    for (Node c : own)
      if (!contains(conditions, c) && for_all(c, uniform)) conditions.push_back(c);
  }
  Node whole = nullptr;
  for (Node c : conditions) whole = both(whole, for_all(c, uniform));
  if (!whole || whole->is_const()) return sink;
  NodeMap<Node> map;
  for (Node c : conditions) map[c] = make(Op::Or, kBool, {whole, c});
  return rebuild(sink, [&](Node n, Node now) {
    if (n->op != Op::Where) return now;
    Node gate = substitute(n->src(0), map);
    return gate == n->src(0) ? now : make(Op::Where, n->dtype, {gate, now->src(1), now->src(2)});
  });
}

}  // namespace tiny
