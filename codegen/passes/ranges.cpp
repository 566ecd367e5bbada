#include "codegen/passes/passes.h"

#include <map>
#include <unordered_map>
#include <utility>

#include "codegen/kernel/access.h"
#include "codegen/kernel/linear.h"
#include "tiny/base/error.h"
#include "tiny/rewrite/algebra.h"

namespace tiny {

namespace {

using Indices = std::vector<Node>;

struct Key {
  Node node;
  Node gate;
  Indices at;
  bool operator==(const Key&) const = default;
};
struct HashKey {
  size_t operator()(const Key& k) const {
    auto h = reinterpret_cast<uintptr_t>(k.node) * 31 + reinterpret_cast<uintptr_t>(k.gate);
    for (Node n : k.at) h = (h ^ (reinterpret_cast<uintptr_t>(n) >> 4)) * 0x9E3779B97F4A7C15ull;
    return h;
  }
};

Node flat(Node param) {
  const int64_t arg[] = {param->ints()[0], numel(param->shape())};
  return make(Op::Param, param->dtype, {}, Ints(arg));
}

Node linear(const Indices& at, Ints shape) {
  Node sum = index(0);
  const Shape strides = strides_of(shape);
  for (size_t i = 0; i < at.size(); ++i) sum = index_add(sum, index_mul(at[i], strides[i]));
  return sum;
}

// Axes are matched from the left in groups of equal size, so that indices of axes that stay are
// passed on as they are.
Indices reshaped(const Indices& at, Ints from, Ints to) {
  Indices out(to.size(), index(0));
  size_t i = 0, j = 0;
  while (j < to.size()) {
    int64_t have = 1, want = to[j];
    const size_t first = i, begin = j++;
    while (have != want) {
      if (have < want && i < from.size())
        have *= from[i++];
      else
        want *= to[j++];
    }
    Node sum =
        linear({at.begin() + static_cast<ptrdiff_t>(first), at.begin() + static_cast<ptrdiff_t>(i)},
               from.subspan(first, i - first));
    int64_t step = want;
    for (size_t k = begin; k < j; ++k) {
      step /= to[k];
      Node q = index_div(sum, step);
      out[k] = k == begin ? q : index_mod(q, to[k]);
    }
  }
  return out;
}

// A gate of 0 <= at < size, nullptr where it always holds.
Node inside(Node at, int64_t size) {
  Node gate = nullptr;
  if (at->vmin < 0) gate = both(gate, less(index(-1), at));
  if (at->vmax >= size) gate = both(gate, less(at, index(size)));
  return gate;
}

Indices affine_indices(Ints map, const Indices& at, size_t axes) {
  Indices from;
  for (size_t d = 0; d < axes; ++d) {
    const Ints row = map.subspan(d * (at.size() + 1), at.size() + 1);
    Node sum = index(row[0]);
    for (size_t i = 0; i < at.size(); ++i) sum = index_add(sum, index_mul(at[i], row[i + 1]));
    from.push_back(sum);
  }
  return from;
}

bool is_inside(const Indices& at, Ints shape) {
  for (size_t i = 0; i < at.size(); ++i)
    if (at[i]->vmin < 0 || at[i]->vmax >= shape[i]) return false;
  return true;
}

// Whether loops at these indices have as many iterations as there are elements. Fewer read a part
// of a value, or one element for all.
bool visits_all(const Indices& at, Ints shape) {
  NodeMap<char> seen;
  int64_t count = 1;
  for (Node i : at)
    for (Node r : all_of(i, Op::Range))
      if (!std::exchange(seen[r], 1)) count *= extent(r);
  return count == numel(shape);
}

class Puller {
 public:
  // All stores of the kernel. Where one has loops of its own, none may be left in a reduction
  // beside them: each iteration of those loops would repeat it.
  std::vector<Node> stores(Node kernel) {
    std::vector<Node> out;
    uint64_t loops = 0;
    for (Node s : kernel->srcs()) {
      out.push_back(store(s, true));
      loops |= mask_of(out.back()->src(1), {RangeKind::Loop});
    }
    const auto is_in_reduction = [&](size_t i) {
      return kernel->src(static_cast<int>(i))->src(1)->op != Op::Scatter &&
             mask_of(out[i]->src(1), {RangeKind::Reduce});
    };
    bool repeats = false;
    for (size_t i = 0; i < out.size(); ++i)
      repeats |= is_in_reduction(i) && (loops & ~out[i]->src(1)->ranges);
    for (size_t i = 0; i < out.size(); ++i)  // all of them: each that moves brings loops along
      if (repeats && is_in_reduction(i)) out[i] = store(kernel->src(static_cast<int>(i)), false);
    return out;
  }

 private:
  // `may_share`: what was computed on the way to an earlier store is kept where that one used it.
  Node store(Node s, bool may_share) {
    Node value = s->src(1);
    if (value->op == Op::Scatter) return scatter(s->src(0), value);
    Indices at;
    const Indices* seen = may_share ? seen_.find(value) : nullptr;
    if (seen && visits_all(*seen, value->shape())) {
      at = *seen;
    } else {
      for (int i = 0; i < value->rank; ++i)
        at.push_back(range(RangeKind::Loop, i, value->shape()[i], 0));
    }
    Node v = pull(value, at, nullptr), place = linear(at, value->shape());
    if (s->num_src == 2) return make(Op::Store, kVoid, {flat(s->src(0)), place, v});
    return make(Op::Store, kVoid, {flat(s->src(0)), place, v, pull(s->src(2), at, nullptr)});
  }

  // The range of this kind for an axis of this size, the same one for all who ask; `taken` are
  // ranges that it must differ from.
  Node range(RangeKind kind, int axis, int64_t size, uint64_t taken) {
    if (size == 1) return index(0);
    for (int turn = 0;; ++turn) {
      const auto [at, fresh] = ranges_.try_emplace({kind, axis, size, turn});
      if (fresh) {
        expect(next_id_ < 64, "a kernel with more than 64 ranges");
        at->second = make(Op::Range, kIndex, {index(size)}, RangeArg{next_id_++, kind});
      }
      if (!(at->second->ranges & taken)) return at->second;
    }
  }

  Node pull(Node n, const Indices& at, Node gate) {
    if (n->is_const()) return make(Op::Const, n->dtype, {}, n->payload);
    if (numel(n->shape()) == 0) return constant(n->dtype, 0);  // read under a gate that is false
    auto [slot, fresh] = done_.try_emplace({n, gate, at}, nullptr);
    if (!fresh) return slot->second;
    LabelScope label(n->label);
    if (!gate && !seen_.contains(n)) seen_[n] = at;
    Node r = is_movement(n->op) ? moved(n, at, gate) : value(n, at, gate);
    return done_[{n, gate, at}] = r;
  }

  Node value(Node n, const Indices& at, Node gate) {
    switch (n->op) {
      case Op::Param: {
        Node i = linear(at, n->shape());
        // What is read beside the gate is dropped above; a load of its own condition is dear.
        return gate && !is_inside(at, n->shape()) ? make(Op::Load, n->dtype, {flat(n), i, gate})
                                                  : make(Op::Load, n->dtype, {flat(n), i});
      }
      case Op::Iota: return simplify(make(Op::Cast, n->dtype, {at[0]}));
      case Op::ReduceAxis: return reduced(n, at, gate);
      case Op::Gather: return gathered(n, at, gate);
      case Op::Contiguous:
      case Op::Detach:
      case Op::RoundGradient:
      case Op::Leaf:
      case Op::Copy: return pull(n->src(0), at, gate);
      case Op::Assign: return pull(n->src(1), at, gate);
      default: break;
    }
    expect(is_elementwise(n->op), "no kernel can hold ", n->op);
    std::vector<Node> srcs;
    for (Node s : n->srcs()) srcs.push_back(pull(s, at, gate));
    return make(n->op, n->dtype, srcs, n->payload);
  }

  Node moved(Node n, const Indices& at, Node gate) {
    Node valid = nullptr;
    const Indices from = source_indices(n, at, valid);
    return gated(valid, pull(n->src(0), from, both(gate, valid)));
  }

  Node gated(Node gate, Node value) {
    if (!gate) return value;
    return make(Op::Where, value->dtype, {gate, value, constant(value->dtype, 0)});
  }

  // Without a gate where the indices need none: its loops then do not depend on what the gate does.
  Node reduced(Node n, const Indices& at, Node gate) {
    if (gate && is_inside(at, n->shape())) return pull(n, at, nullptr);
    const auto [op, axes] = n->arg<ReduceArg>();
    uint64_t taken = gate ? gate->ranges : 0;
    for (Node i : at) taken |= i->ranges;
    Indices from = at;
    std::vector<Node> srcs{nullptr};
    for (int i = 0; i < n->rank; ++i) {
      const int64_t size = n->src(0)->shape()[i];
      if (!(axes >> i & 1) || size == 1) continue;
      if (size == 0) return identity(op, n->dtype);
      from[i] = range_of(n, i, taken);
      taken |= from[i]->ranges;
      srcs.push_back(from[i]);
    }
    srcs[0] = pull(n->src(0), from, gate);
    return srcs.size() == 1 ? srcs[0] : make(Op::Reduce, n->dtype, srcs, OpArg{op});
  }

  // The range of a reduced axis: where it is free the one that it had before, so that elements of a
  // sum at several places are the same but for the place.
  Node range_of(Node reduce, int axis, uint64_t taken) {
    Node& before = reduced_[{reduce, axis}];
    if (!before || (before->ranges & taken))
      before = range(RangeKind::Reduce, axis, reduce->src(0)->shape()[axis], taken);
    return before;
  }

  Node as_index(Node i) { return simplify(make(Op::Cast, kIndex, {i})); }

  Node gathered(Node n, const Indices& at, Node gate) {
    Node data = n->src(0), valid = nullptr;
    Indices from;
    for (int i = 0; i < data->rank; ++i) {
      from.push_back(as_index(pull(n->src(i + 1), at, gate)));
      valid = both(valid, inside(from[i], data->shape()[i]));
    }
    return gated(valid, pull(data, from, both(gate, valid)));
  }

  // What a scatter adds or multiplies to one place along ranges that neither value nor place
  // depends on: no store would run over them.
  static Node repeated(Op op, Node value, const Indices& at, uint64_t seen) {
    if (op != Op::Add && op != Op::Mul) return value;
    std::vector<Node> srcs{value};
    for (Node i : at)
      if (i->op == Op::Range && !((seen | value->ranges) & i->ranges)) srcs.push_back(i);
    return srcs.size() == 1 ? value : make(Op::Reduce, value->dtype, srcs, OpArg{op});
  }

  // base, values, indices... : one store per value, in order. Only axes of the values that are an
  // index themselves (times a step, for slices) write different elements for different positions,
  // so only they may run in parallel; the others are ranges of kind Reduce, which are never bound
  // to cores or lanes.
  Node scatter(Node out, Node n) {
    Node values = n->src(1);
    const auto how = n->arg<ScatterArg>();
    uint32_t separate = how.unique ? ~0u : 0;
    Indices probe;
    for (int i = 0; i < values->rank; ++i)
      probe.push_back(range(RangeKind::Loop, i, values->shape()[i], 0));
    for (int a = 0; a < n->src(0)->rank; ++a) {
      Node i = as_index(pull(n->src(a + 2), probe, nullptr));
      const Sum sum = to_sum(i);
      for (int d = 0; d < values->rank; ++d)
        if (sum.terms.size() == 1 && sum.terms[0].atom == probe[d]) separate |= 1u << d;
    }
    Indices at = probe;
    for (int d = 0; d < values->rank; ++d)
      if (!(separate >> d & 1)) at[d] = range(RangeKind::Reduce, d, values->shape()[d], 0);
    Indices to;
    Node valid = nullptr;
    for (int a = 0; a < n->src(0)->rank; ++a) {
      to.push_back(as_index(pull(n->src(a + 2), at, nullptr)));
      valid = both(valid, inside(to[a], n->src(0)->shape()[a]));
    }
    Node place = linear(to, n->src(0)->shape()), value = pull(values, at, nullptr);
    value = repeated(how.op, value, at, place->ranges | (valid ? valid->ranges : 0));
    std::vector<Node> srcs{flat(out), place, value};
    if (valid) srcs.push_back(valid);
    if (how.op == Op::Assign) return make(Op::Store, kVoid, srcs);
    return make(Op::Store, kVoid, srcs, OpArg{how.op});
  }

  int next_id_ = 0;
  std::map<std::tuple<RangeKind, int, int64_t, int>, Node> ranges_;
  std::map<std::pair<Node, int>, Node> reduced_;  // ranges of axes
  std::unordered_map<Key, Node, HashKey> done_;
  NodeMap<Indices> seen_;  // where a node was first asked for without a gate
};

}  // namespace

std::vector<Node> source_indices(Node n, const std::vector<Node>& at, Node& gate) {
  Node x = n->src(0);
  const Ints arg = n->ints(), shape = x->shape();
  if (n->op == Op::Reshape) return reshaped(at, n->shape(), shape);
  if (n->op == Op::Affine) return affine_indices(arg.subspan(1 + at.size()), at, shape.size());
  Indices from(shape.size());
  for (size_t i = 0; i < at.size(); ++i) {
    switch (n->op) {
      case Op::Permute: from[arg[i]] = at[i]; break;
      case Op::Expand: from[i] = shape[i] == 1 ? index(0) : at[i]; break;
      case Op::Shrink: from[i] = index_add(at[i], index(arg[2 * i])); break;
      case Op::Stride: from[i] = index_mul(at[i], arg[i]); break;
      case Op::Flip:
        from[i] = arg[i] ? index_add(index(shape[i] - 1), index_mul(at[i], -1)) : at[i];
        break;
      default:  // Pad
        from[i] = index_add(at[i], index(-arg[2 * i]));
        gate = both(gate, inside(from[i], shape[i]));
    }
  }
  return from;
}

Node to_ranges(Node kernel) { return make(Op::Sink, kVoid, Puller().stores(kernel)); }

}  // namespace tiny
