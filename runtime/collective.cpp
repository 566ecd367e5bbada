#include "runtime/collective.h"

#include <algorithm>

#include "tiny/build.h"
#include "tiny/env.h"
#include "tiny/error.h"
#include "tiny/tensor.h"

namespace tiny {

Shape even_cuts(int64_t size, size_t parts) {
  const auto count = static_cast<int64_t>(parts);
  Shape cuts;
  for (int64_t i = 0; i <= count; ++i)
    cuts.push_back(i * (size / count) + std::min(i, size % count));
  return cuts;
}

Node slice(Node x, int axis, int64_t begin, int64_t end) {
  if (begin == 0 && end == x->shape()[axis]) return x;
  Shape shape = to_shape(x->shape()), bounds;
  shape[axis] = end - begin;
  if (begin == end) return build::full(shape, x->dtype, int64_t{0});
  // Below what repeats or reorders elements: products find their operands there.
  if (x->op == Op::Expand) {
    Node from = x->src(0);
    return build::expand(from->shape()[axis] == 1 ? from : slice(from, axis, begin, end), shape);
  }
  if (x->op == Op::Permute) {
    const auto from = static_cast<int>(x->ints()[axis]);
    return build::permute(slice(x->src(0), from, begin, end), x->ints());
  }
  for (int i = 0; i < x->rank; ++i)
    bounds.insert(bounds.end(), {i == axis ? begin : 0, i == axis ? end : x->shape()[i]});
  return build::shrink(x, bounds);
}

Node join(const Pieces& pieces, int axis) {
  std::vector<Tensor> parts(pieces.begin(), pieces.end());
  return Tensor::cat(parts, axis).node();
}

Node bring(Node x, int device) { return x->device ? build::copy_to(x, device) : x; }

Node reduce_to(Op op, const Pieces& pieces, int device) {
  Node sum = nullptr;  // in one order everywhere
  for (Node p : pieces) {
    Node x = bring(p, device);
    sum = sum ? build::binary(op, sum, x) : x;
  }
  return sum;
}

namespace {

// In memory, once for all who read them.
Pieces stored(const Pieces& pieces) {
  Pieces out;
  for (Node p : pieces) out.push_back(p->device ? build::contiguous(p) : p);
  return out;
}

// The parts of one axis pass around the ring and grow; then they pass around once more as they are.
Pieces ring(Op op, const Pieces& pieces, std::span<const int> devices) {
  const size_t count = pieces.size();
  const Shape cuts = even_cuts(pieces[0]->shape()[0], count);
  std::vector<Pieces> all(count, Pieces(count));
  for (size_t part = 0; part < count; ++part) {
    const auto own = [&](size_t i) { return slice(pieces[i], 0, cuts[part], cuts[part + 1]); };
    size_t at = (part + 1) % count;
    Node sum = own(at);
    for (size_t hop = 1; hop < count; ++hop) {
      at = (at + 1) % count;
      sum = build::binary(op, bring(sum, devices[at]), own(at));
    }
    all[at][part] = sum = build::contiguous(sum);
    for (size_t hop = 1; hop < count; ++hop) {
      at = (at + 1) % count;
      all[at][part] = sum = bring(sum, devices[at]);
    }
  }
  Pieces out;
  for (const Pieces& parts : all) out.push_back(join(parts, 0));
  return out;
}

std::string algorithm(const Pieces& pieces) {
  const std::string wanted = env_text("COLLECTIVE");
  check(wanted.empty() || wanted == "naive" || wanted == "two_shot" || wanted == "ring",
        "COLLECTIVE=", wanted, ": it is one of naive, two_shot, ring");
  if (!wanted.empty()) return wanted;
  constexpr int64_t kSmall = 256 << 10;
  const int64_t bytes = numel(pieces[0]->shape()) * static_cast<int64_t>(pieces[0]->dtype.size());
  return pieces.size() == 2 || bytes <= kSmall ? "naive" : "two_shot";
}

}  // namespace

Pieces reduce_scatter(Op op, const Pieces& pieces, std::span<const int> devices, int axis,
                      const Shape& cuts) {
  const LabelScope label("reduce_scatter");
  Pieces out;
  for (size_t i = 0; i < devices.size(); ++i) {
    Pieces parts;
    for (Node p : stored(pieces)) parts.push_back(slice(p, axis, cuts[i], cuts[i + 1]));
    out.push_back(reduce_to(op, parts, devices[i]));
  }
  return out;
}

Pieces all_gather(const Pieces& pieces, std::span<const int> devices, int axis) {
  const LabelScope label("all_gather");
  Pieces out;
  for (int device : devices) {
    Pieces parts;
    for (Node p : pieces) parts.push_back(bring(p, device));
    out.push_back(join(parts, axis));
  }
  return out;
}

Pieces all_reduce(Op op, const Pieces& pieces, std::span<const int> devices) {
  const LabelScope label("all_reduce");
  const std::string how = algorithm(pieces);
  const Pieces from = stored(pieces);
  Pieces out;
  if (how == "naive") {
    for (int device : devices) out.push_back(reduce_to(op, from, device));
    return out;
  }
  const int64_t size = numel(pieces[0]->shape());
  Pieces flat;
  for (Node p : from) flat.push_back(build::reshape(p, {{size}}));
  if (how == "ring")
    flat = ring(op, flat, devices);
  else
    flat = all_gather(stored(reduce_scatter(op, flat, devices, 0, even_cuts(size, devices.size()))),
                      devices, 0);
  for (Node p : flat) out.push_back(build::reshape(p, pieces[0]->shape()));
  return out;
}

}  // namespace tiny
