#include "codegen/proof/claims/claim.h"

#include <algorithm>
#include <bit>
#include <map>

#include "codegen/kernel/facts.h"
#include "tiny/base/error.h"
#include "tiny/ir/facts.h"
#include "tiny/rewrite/algebra.h"

namespace tiny {

namespace {

Node binary(Op op, Node a, Node b) { return make(op, is_comparison(op) ? kBool : kIndex, {a, b}); }
Node plus(Node a, Node b) { return a->is_const(0) ? b : binary(Op::Add, a, b); }
Node minus(Node a, Node b) { return binary(Op::Sub, a, b); }
Node times(Node a, int64_t f) { return f == 1 ? a : binary(Op::Mul, a, index(f)); }
Node where(Node condition, Node a, Node b) { return make(Op::Where, a->dtype, {condition, a, b}); }

// a & mask as sums of quotients and remainders, which hold for negative numbers too: two's
// complement has as many ones on the left as anyone asks for.
Node masked(Node a, int64_t mask) {
  if (mask < 0) return minus(a, masked(a, ~mask));
  Node sum = index(0);
  for (auto rest = static_cast<uint64_t>(mask); rest;) {
    const int low = std::countr_zero(rest), ones = std::countr_one(rest >> low);
    rest &= ~(((uint64_t{1} << ones) - 1) << low);
    Node part = low ? binary(Op::FloorDiv, a, index(int64_t{1} << low)) : a;
    part = binary(Op::FloorMod, part, index(int64_t{1} << ones));
    sum = plus(sum, times(part, int64_t{1} << low));
  }
  return sum;
}

// Machine integers as Index, bools as they are; `lane` is the lane of a vector that is meant.
class Scalarizer {
 public:
  Node operator()(Node n, Node lane) {
    if (n->dtype.lanes == 1) lane = nullptr;
    if (Node* done = memo(lane).find(n)) return *done;
    Node r = n->dtype.is_int() || n->dtype.is_bool() ? exact(n, lane) : nullptr;
    if (!r) r = opaque(n, lane);
    memo(lane)[n] = r;
    return r;
  }

 private:
  NodeMap<Node>& memo(Node lane) {
    for (auto& [of, map] : memos_)
      if (of == lane) return map;
    return memos_.emplace_back(lane, NodeMap<Node>()).second;
  }

  static Node opaque(Node n, Node lane) {
    Node leaf = make(Op::Load, n->dtype.one(), {n, lane ? lane : index(0)});
    return n->dtype.is_int() ? make(Op::Cast, kIndex, {leaf}) : leaf;
  }

  // An exact value as the machine wraps it.
  static Node wrap(Node value, DType t) {
    if (t.scalar == Scalar::Index || fits(value->vmin, value->vmax, t)) return value;
    return make(Op::Cast, kIndex, {make(Op::Cast, t.one(), {value})});
  }

  Node exact(Node n, Node lane) {
    switch (n->op) {
      case Op::Const:
        if (n->dtype.is_bool()) return constant(kBool, n->int_value());
        return n->dtype.scalar == Scalar::U64 && n->vmin < 0 ? nullptr : index(n->int_value());
      case Op::Range: return make(Op::Range, kIndex, {index(n->src(0)->vmax)}, n->payload);
      case Op::Bound: return make(Op::Bound, kIndex, {n, lane ? lane : index(0)}, n->payload);
      case Op::Ramp: return lane;
      case Op::Broadcast: return (*this)(n->src(0), nullptr);
      case Op::Reverse: return (*this)(n->src(0), minus(index(n->dtype.lanes - 1), lane));
      case Op::Cast: return cast(n, lane);
      case Op::Where:
        return where((*this)(n->src(0), lane), (*this)(n->src(1), lane), (*this)(n->src(2), lane));
      default: break;
    }
    if (n->op == Op::Neg) return wrap(minus(index(0), (*this)(n->src(0), lane)), n->dtype);
    if (info(n->op).cls != OpClass::Binary || n->src(0)->dtype.is_float()) return nullptr;
    Node a = (*this)(n->src(0), lane), b = (*this)(n->src(1), lane);
    if (is_comparison(n->op)) return compared(n->op, a, b);
    return n->dtype.is_bool() ? logic(n->op, a, b) : arithmetic(n, a, b);
  }

  Node cast(Node n, Node lane) {
    if (n->src(0)->dtype.is_float()) return nullptr;
    Node x = (*this)(n->src(0), lane);
    if (n->dtype.is_bool()) return x->dtype.is_bool() ? x : binary(Op::Ne, x, index(0));
    if (x->dtype.is_bool()) return make(Op::Cast, kIndex, {x});
    return n->src(0)->dtype.scalar == n->dtype.scalar ? x : wrap(x, n->dtype);
  }

  static Node compared(Op op, Node a, Node b) {
    if (a->dtype.is_bool()) a = make(Op::Cast, kIndex, {a});
    if (b->dtype.is_bool()) b = make(Op::Cast, kIndex, {b});
    return binary(op, a, b);
  }

  static Node logic(Op op, Node a, Node b) {
    if (op == Op::Max) op = Op::Or;
    if (op == Op::Min || op == Op::Mul) op = Op::And;
    return op == Op::And || op == Op::Or || op == Op::Xor ? make(op, kBool, {a, b}) : nullptr;
  }

  static Node arithmetic(Node n, Node a, Node b) {
    const bool by_constant = b->is_const() && b->vmin >= 0;
    switch (n->op) {
      case Op::Add:
      case Op::Sub:
      case Op::Mul: return wrap(binary(n->op, a, b), n->dtype);
      case Op::Shl:
        if (!by_constant || b->vmin > 61) return nullptr;
        return wrap(times(a, int64_t{1} << b->vmin), n->dtype);
      case Op::Shr:
        if (!by_constant || b->vmin > 61) return nullptr;
        return binary(Op::FloorDiv, a, index(int64_t{1} << b->vmin));
      case Op::FloorDiv:
      case Op::FloorMod:
      case Op::TruncDiv:
      case Op::TruncMod: return division(n, a, b);
      case Op::Max:
      case Op::Min: return binary(n->op, a, b);
      case Op::And:
      case Op::Or:
      case Op::Xor: return bits(n->op, a, b);
      default: return nullptr;
    }
  }

  static Node division(Node n, Node a, Node b) {
    const bool turned = b->is_const() && b->vmin < 0 && b->vmin > kIntMin;
    if (b->vmin <= 0 && !turned) return nullptr;
    if (turned) b = index(-b->vmin);
    const auto turn = [&](Node x) { return turned ? minus(index(0), x) : x; };
    // Truncating, the remainder has the sign of a whatever that of b.
    if (n->is(Op::TruncMod)) return remainder(a, b);
    if (n->is(Op::FloorMod)) return turn(binary(Op::FloorMod, turn(a), b));
    return wrap(n->is(Op::FloorDiv) ? binary(Op::FloorDiv, turn(a), b) : turn(quotient(a, b)),
                n->dtype);
  }

  static Node quotient(Node a, Node b) {  // towards zero, b > 0
    Node floor = binary(Op::FloorDiv, a, b);
    if (a->vmin >= 0) return floor;
    Node ceiling = minus(index(0), binary(Op::FloorDiv, minus(index(0), a), b));
    return where(binary(Op::Lt, a, index(0)), ceiling, floor);
  }
  static Node remainder(Node a, Node b) {
    if (a->vmin >= 0) return binary(Op::FloorMod, a, b);
    return minus(a, binary(Op::Mul, quotient(a, b), b));
  }

  // a | m = a + m - (a & m), a ^ m = a + m - 2 (a & m)
  static Node bits(Op op, Node a, Node b) {
    if (a->is_const()) std::swap(a, b);
    if (!b->is_const()) return binary(op, a, b);  // bounds alone are known of it
    Node common = masked(a, b->int_value());
    if (op == Op::And) return common;
    return minus(binary(Op::Add, a, b), times(common, op == Op::Or ? 1 : 2));
  }

  std::vector<std::pair<Node, NodeMap<Node>>> memos_;
};

int lanes_of(Node access) {
  return access->is(Op::Load) ? access->dtype.lanes : access->src(2)->dtype.lanes;
}

int free_id(Node sink) {
  uint64_t used = 0;
  for (Node n : topological(sink))
    if (n->is(Op::Range)) used |= uint64_t{1} << n->arg<RangeArg>().id;
  expect(~used != 0, "a kernel with more than 63 ranges has none left to stand for lanes");
  return 63 - std::countl_one(used);
}

}  // namespace

Node exact_form(Node n, Node lane) { return Scalarizer()(n, lane); }

std::vector<Claim> claims_of(Node sink) {
  const int lane_id = free_id(sink);
  Scalarizer scalar;
  std::vector<Claim> out;
  for (Node n : topological(sink)) {
    if (n->is(Op::Stage)) n = make(Op::Store, kVoid, {n, n->src(1), n->src(0)});
    if (!n->is(Op::Load) && !n->is(Op::Store)) continue;
    Claim c{n, nullptr};
    if (const int lanes = lanes_of(n); lanes > 1)
      c.lane = make(Op::Range, kIndex, {index(lanes)}, RangeArg{lane_id, RangeKind::Vector});
    c.index = scalar(n->src(1), c.lane);
    if (c.lane && n->src(1)->dtype.lanes == 1) c.index = plus(c.index, c.lane);
    const uint32_t gate = n->is(Op::Load) ? 2 : 3;
    if (n->num_src > gate) c.gate = scalar(n->src(static_cast<int>(gate)), c.lane);
    if (c.gate && c.gate->is_const(1)) c.gate = nullptr;
    c.size = elements_of(n->src(0));
    out.push_back(c);
  }
  return out;
}

Node wrapping_cast(Node n) {
  if (!n->is(Op::Cast) || n->dtype != kIndex || !n->src(0)->is(Op::Cast)) return nullptr;
  return n->src(0)->src(0)->dtype == kIndex ? n->src(0) : nullptr;
}

bool fits(int64_t vmin, int64_t vmax, DType t) {
  return vmin >= int_min(t) && vmax <= int_max(t) && vmin > kIntMin && vmax < kIntMax;
}

namespace {

class Evaluator {
 public:
  explicit Evaluator(const Point& point) : point_(point) {}

  // As a Const of one lane; nullptr: no value.
  Node operator()(Node n, int lane) {
    if (n->dtype.lanes == 1) lane = 0;
    if (Node* r = done_[lane].find(n)) return *r;
    Node r = value(n, lane);
    return done_[lane][n] = r;
  }

 private:
  Node value(Node n, int lane) {
    const DType t = n->dtype.one();
    if (!n->is_const() && !n->is(Op::Range))
      if (Node given = opaque(n, lane)) return given;
    switch (n->op) {
      case Op::Const: return make(Op::Const, t, {}, n->payload);
      case Op::Range: return constant(t, point_.ranges[n->arg<RangeArg>().id]);
      case Op::Ramp: return constant(t, lane);
      case Op::Broadcast: return (*this)(n->src(0), 0);
      case Op::Reverse: return (*this)(n->src(0), n->dtype.lanes - 1 - lane);
      default: break;
    }
    if (!is_elementwise(n->op) || n->op == Op::Bitcast) return nullptr;
    std::vector<Node> srcs;
    for (Node s : n->srcs()) {
      srcs.push_back((*this)(s, lane));
      if (!srcs.back()) return nullptr;
    }
    return fold_constants(make(n->op, t, srcs, n->payload));
  }

  Node opaque(Node n, int lane) {
    for (const auto& [leaf, value] : point_.opaque) {
      if (leaf->src(0) != n) continue;
      Node at = (*this)(leaf->src(1), 0);
      if (at && at->int_value() == lane) return constant(n->dtype.one(), value);
    }
    return nullptr;
  }

  const Point& point_;
  std::map<int, NodeMap<Node>> done_;  // by lane
};

}  // namespace

std::optional<int64_t> evaluate(Node n, int lane, const Point& point) {
  Node r = Evaluator(point)(n, lane);
  if (!r || r->dtype.is_float()) return {};
  return r->int_value();
}

}  // namespace tiny
