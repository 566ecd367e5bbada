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
  uint64_t all, loops;

  explicit Uniform(Node sink)
      : all(mask_of(sink, {RangeKind::Reduce, RangeKind::Block, RangeKind::Loop})),
        loops(mask_of(sink, {RangeKind::Reduce})) {}
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

// w of (w & bit) != 0, with `bit` a power of two; nullptr for any other condition.
Node word_of_test(Node n) {
  if (n->op != Op::Ne || !n->src(1)->is_const(0) || n->src(0)->op != Op::And) return nullptr;
  Node bit = n->src(0)->src(1);
  return bit->op == Op::Shl && bit->src(0)->is_const(1) ? n->src(0)->src(0) : nullptr;
}

bool varies_less(Node n, Node word) { return !(n->ranges & ~word->ranges); }

// The conditions together; those that are alike for all bits of a word that one of them tests say
// what the word is, which many elements share.
Node all_together(const std::vector<Node>& conditions) {
  Node test = nullptr, other = nullptr;
  for (Node c : conditions) {
    if (word_of_test(c)) test = c;
    for (int i : {0, 1})
      if (c->op == Op::Or && word_of_test(c->src(i)) &&
          varies_less(c->src(1 - i), word_of_test(c->src(i)))) {
        test = c;
        other = c->src(1 - i);
      }
  }
  Node out = nullptr;
  if (!test) {
    for (Node c : conditions) out = both(out, c);
    return out;
  }
  Node bit_test = other ? test->src(test->src(0) == other ? 1 : 0) : test;
  Node word = word_of_test(bit_test), bit = bit_test->src(0)->src(1), now = word;
  const auto selected = [&](Node c, Node a, Node b) {
    return make(Op::Where, word->dtype, {c, a, b});
  };
  if (other) now = selected(other, constant(word->dtype, -1), now);
  for (Node c : conditions) {
    if (c == test) continue;
    if (varies_less(c, word))
      now = selected(c, now, constant(word->dtype, 0));
    else
      out = both(out, c);
  }
  Node bits = make(Op::And, word->dtype, {now, bit});
  return both(out, make(Op::Ne, kBool, {bits, constant(word->dtype, 0)}));
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
  return rebuild(sink, [&](Node n, Node now) {
    if (n->op != Op::Where) return now;
    std::vector<Node> own, known, rest;
    add_conditions(n->src(0), own);
    for (Node c : own) (contains(conditions, c) ? known : rest).push_back(c);
    if (known.empty()) return now;
    Node gate = make(Op::Or, kBool, {whole, all_together(known)});
    for (Node c : rest) gate = both(gate, c);
    return make(Op::Where, n->dtype, {gate, now->src(1), now->src(2)});
  });
}

}  // namespace tiny
