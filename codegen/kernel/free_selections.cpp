#include "codegen/kernel/free_selections.h"

#include <cmath>

#include "codegen/kernel/access.h"
#include "tiny/rewrite/algebra.h"
#include "tiny/rewrite/rewrite.h"

namespace tiny {

namespace {

Node unbroadcast(Node n) { return n->op == Op::Broadcast ? n->src(0) : n; }

// The constant as an element of the load: an infinity, which every dtype has. (Zero is what a load
// gives without being told to.)
Node as_element(Node constant, Node load) {
  const bool infinite = constant->is_const() && constant->dtype.is_float() &&
                        std::isinf(constant->float_value()) && load->dtype.is_float();
  return infinite ? tiny::constant(load->dtype.one(), constant->float_value()) : nullptr;
}

}  // namespace

FreeSelections::FreeSelections(const Linear& program) {
  find_loads(program);
  find_exponentials(program);
  whole.find(program);
}

void FreeSelections::find_loads(const Linear& program) {
  NodeMap<char> other;  // loads that somebody reads as they are
  std::vector<Node> wheres;
  const auto visit = [&](Node user, Node s) {
    Node load = gated_load(s);
    if (!load || gated_load(user)) return;  // the users of a cast decide
    const bool selects = user->op == Op::Where && user->src(1) == s && user->src(2)->is_const() &&
                         unbroadcast(user->src(0)) == unbroadcast(load->src(2));
    Node c = selects ? as_element(user->src(2), load) : nullptr;
    const Node* before = constants_.find(load);
    if (!c || (before && *before != c)) {
      other[load] = 1;
      return;
    }
    constants_[load] = c;
    wheres.push_back(user);
  };
  for (Node n : program.body) {
    if (n->op == Op::Update)
      visit(n, updated_with(n->src(0)));
    else if (n->op == Op::Rescale)
      visit(n, n->src(0)->src(0)->src(1));
    else if (n->op == Op::Fetch)
      visit(n, n->src(0)->src(2));
    else if (n->op != Op::Reduce)
      for (Node s : n->srcs()) visit(n, s);
  }
  NodeMap<Node> kept;
  for (Node where : wheres) {
    Node load = gated_load(where->src(1));
    if (other.contains(load)) continue;
    done_[where] = 1;
    kept[load] = constants_[load];
  }
  constants_ = std::move(kept);
}

void FreeSelections::find_exponentials(const Linear& program) {
  NodeMap<int> users;
  std::vector<Node> parts;
  for (Node n : program.body) {
    if (n->op == Op::Update) ++users[updated_with(n->src(0))];
    if (n->op == Op::Rescale) ++users[n->src(0)->src(0)->src(1)];
    if (n->op == Op::Update || n->op == Op::Rescale || n->op == Op::Reduce) continue;
    for (Node s : n->srcs()) ++users[s];
    if (n->op != Op::Where || n->dtype.scalar != Scalar::F32) continue;
    Node small = n->src(0), power = n->src(2);
    if (small->op != Op::Lt || power->op != Op::Exp2 || !n->src(1)->is_const(0) ||
        small->src(0) != power->src(0) || !small->src(1)->is_const(kMinNormalExponent))
      continue;
    flushed_[n] = power->src(0);
    parts.insert(parts.end(), {small, power});
  }
  for (Node part : parts)
    if (users[part] == 1) hidden_[part] = 1;
}

void WholeTile::find(const Linear& program) {
  uint64_t threads = 0;
  std::vector<Node> open;  // loops
  NodeMap<Node> defined;   // the innermost loop of a value
  NodeMap<Node> tests;     // of each Or
  NodeMap<char> inner;     // sides of those: a mask that knows of whole tiles itself
  for (Node n : program.body) {
    if (n->is(Op::Loop) && is_of_grid(n->src(0))) {
      if (kind(n->src(0)) == RangeKind::Thread) threads |= n->src(0)->ranges;
    } else if (n->is(Op::Loop)) {
      open.push_back(n->src(0));
    } else if (n->is(Op::EndLoop) && !is_of_grid(n->src(0))) {
      open.pop_back();
    } else if (!open.empty()) {
      defined[n] = open.back();
    }
    if (!n->is(Op::Or) || n->dtype != kBool) continue;
    for (int i : {0, 1}) {
      Node side = n->src(i), other = n->src(1 - i);
      if ((side->ranges & threads) || !(other->ranges & threads) || !defined.contains(side))
        continue;
      tests[n] = side;
      inner[other] = 1;
    }
  }
  for (Node n : program.body) {
    const Node* side = inner.contains(n) ? nullptr : tests.find(n);
    if (!side || *side == test) continue;
    if (test) {
      test = nullptr;  // of several masks: all stay
      return;
    }
    test = *side;
    loop = *defined.find(test);
  }
}

}  // namespace tiny
