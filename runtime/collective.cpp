#include "runtime/collective.h"

#include <algorithm>
#include <map>

#include "runtime/device.h"
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

Node sum_on(int device, const Pieces& pieces, SumBy by) {
  const int64_t arg[] = {device, static_cast<int64_t>(by)};
  return make(Op::Copy, pieces[0]->dtype, pieces, Ints(arg));
}

SumBy sum_by(Node sum) { return static_cast<SumBy>(sum->ints()[1]); }

bool is_sum_of_all(Node n) {
  return n->op == Op::Copy && n->num_src > 1 && sum_by(n) != SumBy::Kernel;
}

namespace {

Device& device_of(int id) { return find_device(device_name(id)); }

// Whether kernels of each device read all of the pieces where they are.
bool reach_all(const Pieces& pieces, std::span<const int> devices) {
  for (Node p : pieces)
    for (int d : devices)
      if (p->device == 0 || !device_of(d).reads(device_of(p->device))) return false;
  return true;
}

bool are_gpus(std::span<const int> devices) {
  return std::all_of(devices.begin(), devices.end(),
                     [](int d) { return device_of(d).target().kind == Target::Kind::Gpu; });
}

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

// Bytes up to which starting something takes longer than moving all of it to everybody.
constexpr int64_t kSmall = 256 << 10, kSmallDirect = 1 << 20;
constexpr size_t kMostTogether = 8;  // devices

struct Algorithm {
  enum Way { Naive, TwoShot, Ring, Flags, Library } way = Naive;
  bool direct = false;  // sums read the pieces where they are
};

Algorithm algorithm(Op op, const Pieces& pieces, std::span<const int> devices) {
  static const std::map<std::string, Algorithm> known{
      {"naive", {Algorithm::Naive, false}},
      {"two_shot", {Algorithm::TwoShot, false}},
      {"ring", {Algorithm::Ring, false}},
      {"one_shot", {Algorithm::Naive, true}},
      {"two_shot_direct", {Algorithm::TwoShot, true}}};
  const bool can = op == Op::Add && reach_all(pieces, devices);
  const std::string wanted = env_text("COLLECTIVE");
  const auto missing = [&](SumBy by) {
    for (int d : devices)
      if (std::string why = device_of(d).missing_for_sums(by, pieces[0]->dtype); !why.empty())
        return why;
    return std::string(pieces.size() > kMostTogether ? "there are too many devices" : "");
  };
  if (wanted == "nccl" || wanted == "flags") {
    if (op != Op::Add) return {};
    const bool flags = wanted == "flags";
    const std::string why = missing(flags ? SumBy::Flags : SumBy::Library);
    check(why.empty(), "COLLECTIVE=", wanted, ": ", why);
    return {!can ? Algorithm::Naive : flags ? Algorithm::Flags : Algorithm::Library, can};
  }
  if (wanted.empty()) {
    const bool direct = can && are_gpus(devices);
    const int64_t bytes = numel(pieces[0]->shape()) * static_cast<int64_t>(pieces[0]->dtype.size());
    if (direct && bytes <= kSmallDirect && missing(SumBy::Flags).empty())
      return {Algorithm::Flags, true};
    const int64_t small = direct ? kSmallDirect : kSmall;
    return {pieces.size() == 2 || bytes <= small ? Algorithm::Naive : Algorithm::TwoShot, direct};
  }
  const auto at = known.find(wanted);
  check(at != known.end(), "COLLECTIVE=", wanted,
        ": it is one of naive, two_shot, ring, one_shot, two_shot_direct, flags, nccl");
  return {at->second.way, at->second.direct && can};
}

// The sum of the same part of all pieces, on one device.
Node sum_parts(Op op, const Pieces& parts, int device, bool direct) {
  return direct ? sum_on(device, parts, SumBy::Kernel) : reduce_to(op, parts, device);
}

}  // namespace

Pieces reduce_scatter(Op op, const Pieces& pieces, std::span<const int> devices, int axis,
                      const Shape& cuts) {
  const LabelScope label("reduce_scatter");
  const bool direct = algorithm(op, pieces, devices).direct;
  Pieces out;
  for (size_t i = 0; i < devices.size(); ++i) {
    Pieces parts;
    for (Node p : stored(pieces)) parts.push_back(slice(p, axis, cuts[i], cuts[i + 1]));
    out.push_back(sum_parts(op, parts, devices[i], direct && cuts[i] < cuts[i + 1]));
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
  const Algorithm how = algorithm(op, pieces, devices);
  const Pieces from = stored(pieces);
  Pieces out;
  if (how.way == Algorithm::Flags || how.way == Algorithm::Library) {
    const SumBy by = how.way == Algorithm::Flags ? SumBy::Flags : SumBy::Library;
    for (int device : devices) out.push_back(sum_on(device, from, by));
    return out;
  }
  if (how.way == Algorithm::Naive) {
    for (int device : devices) out.push_back(sum_parts(op, from, device, how.direct));
    return out;
  }
  const int64_t size = numel(pieces[0]->shape());
  Pieces flat;
  for (Node p : from) flat.push_back(build::reshape(p, {{size}}));
  if (how.way == Algorithm::Ring)
    flat = ring(op, flat, devices);
  else
    flat = all_gather(stored(reduce_scatter(op, flat, devices, 0, even_cuts(size, devices.size()))),
                      devices, 0);
  for (Node p : flat) out.push_back(build::reshape(p, pieces[0]->shape()));
  return out;
}

}  // namespace tiny
