#include "runtime/distributed/collective.h"

#include <algorithm>

#include "runtime/collective_search.h"
#include "runtime/device/device.h"
#include "tiny/base/env.h"
#include "tiny/base/error.h"
#include "tiny/ir/build.h"
#include "tiny/tensor/tensor.h"

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
  const int64_t arg[] = {device, static_cast<int64_t>(by), static_cast<int64_t>(Together::Sum)};
  return make(Op::Copy, pieces[0]->dtype, pieces, Ints(arg));
}

Node gather_on(int device, const Pieces& pieces) {
  const int64_t arg[] = {device, static_cast<int64_t>(SumBy::Flags),
                         static_cast<int64_t>(Together::Gather)};
  return make(Op::Copy, pieces[0]->dtype, pieces, Ints(arg));
}

bool is_gather(Node n) {
  return n->op == Op::Copy && n->num_src > 1 &&
         n->ints()[2] == static_cast<int64_t>(Together::Gather);
}

SumBy sum_by(Node sum) { return static_cast<SumBy>(sum->ints()[1]); }

bool is_sum_by_kernel(Node n) {
  return n->op == Op::Copy && n->num_src > 1 && sum_by(n) == SumBy::Kernel;
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

bool have_one_each(const Pieces& pieces, std::span<const int> devices) {
  return std::equal(pieces.begin(), pieces.end(), devices.begin(), devices.end(),
                    [](Node p, int device) { return p->device == device; });
}

bool are_of_ranks(const Pieces& pieces, std::span<const int> devices) {
  const auto is_rank = [](int d) { return device_of(d).rank >= 0; };
  return devices.size() > 1 && have_one_each(pieces, devices) &&
         std::ranges::all_of(devices, is_rank);
}

bool are_gpus(std::span<const int> devices) {
  return std::ranges::all_of(devices,
                             [](int d) { return device_of(d).target().kind == Target::Kind::Gpu; });
}

// Whether it is made of something without elements, as the sum over those of a device that has
// none: a constant then, which might be computed anywhere.
bool is_of_nothing(Node p) {
  while (p->num_src == 1 && numel(p->shape()) > 0) p = p->src(0);
  return numel(p->shape()) == 0;
}

// In memory, once for all who read them; on its own device.
Pieces stored(const Pieces& pieces) {
  Pieces out;
  for (Node p : pieces) {
    if (p->device && is_of_nothing(p))
      p = make(Op::Copy, p->dtype, {build::contiguous(p)}, int64_t{p->device});
    out.push_back(p->device ? build::contiguous(p) : p);
  }
  return out;
}

// Constants too where GPUs can add up together then: what has one of its parts alone, as a sum over
// the first few elements, would be copied otherwise.
Pieces on_their_devices(Op op, const Pieces& pieces, std::span<const int> devices) {
  const bool same_places = pieces.size() == devices.size() && op == Op::Add && are_gpus(devices);
  const auto is_somewhere = [](Node p) { return p->device != 0; };
  if (!same_places || std::ranges::none_of(pieces, is_somewhere)) return pieces;
  Pieces out;
  for (size_t i = 0; i < pieces.size(); ++i)
    out.push_back(pieces[i]->device ? pieces[i] : build::copy_to(pieces[i], devices[i]));
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
// From here on a library's rings are so much faster than kernels in which all GPUs reach for all
// that they need not run beside other kernels.
constexpr int64_t kLarge = 256 << 20;
constexpr size_t kMaxTogether = 8;  // devices

struct Algorithm {
  enum Way { Naive, TwoShot, Ring, Flags, Library } way = Naive;
  bool direct = false;  // sums read the pieces where they are
};

const std::vector<std::pair<std::string, Algorithm>>& algorithms() {
  static const auto& all = *new std::vector<std::pair<std::string, Algorithm>>{
      {"naive", {Algorithm::Naive, false}},
      {"two_shot", {Algorithm::TwoShot, false}},
      {"ring", {Algorithm::Ring, false}},
      {"one_shot", {Algorithm::Naive, true}},
      {"two_shot_direct", {Algorithm::TwoShot, true}},
      {"flags", {Algorithm::Flags, true}},
      {"nccl", {Algorithm::Library, true}}};
  return all;
}

// The algorithms of a collective that its devices support, and the choice of one.
class Ways {
 public:
  Ways(const char* collective, Op op, const Pieces& pieces, std::span<const int> devices)
      : name_(collective),
        op_(op),
        pieces_(pieces),
        devices_(devices),
        adds_(op == Op::Add),
        can_(adds_ && reach_all(pieces, devices)),
        of_ranks_(adds_ && are_of_ranks(pieces, devices)) {}

  Algorithm choose() const {
    std::string wanted = env_text("COLLECTIVE");
    if (wanted.empty()) wanted = search_or_default();
    for (const auto& [name, how] : algorithms()) {
      if (name != wanted) continue;
      if (!is_together(how)) return {how.way, how.direct && can_};
      if (!adds_) return {};
      const std::string why = missing(how);
      check(why.empty(), "COLLECTIVE=", wanted, ": ", why);
      return has(how) ? how : Algorithm();
    }
    throw Error(cat("COLLECTIVE=", wanted, ": it is one of naive, two_shot, ring, one_shot, ",
                    "two_shot_direct, flags, nccl"));
  }

 private:
  static bool is_together(Algorithm how) {
    return how.way == Algorithm::Flags || how.way == Algorithm::Library;
  }

  std::string missing(Algorithm how) const {
    const SumBy by = how.way == Algorithm::Flags ? SumBy::Flags : SumBy::Library;
    for (int d : devices_)
      if (std::string why = device_of(d).missing_for_all_reduce(by, pieces_[0]->dtype);
          !why.empty())
        return why;
    return pieces_.size() > kMaxTogether && !of_ranks_ ? "there are too many devices" : "";
  }

  bool has(Algorithm how) const {
    if (!is_together(how)) return !how.direct || can_;
    const bool reached = can_ || (of_ranks_ && how.way == Algorithm::Library);
    return reached && have_one_each(pieces_, devices_) && missing(how).empty();
  }

  std::string by_size() const {
    if (has({Algorithm::Library}) && of_ranks_) return "nccl";
    const bool direct = can_ && are_gpus(devices_), two = pieces_.size() == 2;
    const int64_t bytes =
        numel(pieces_[0]->shape()) * static_cast<int64_t>(pieces_[0]->dtype.size());
    const bool sums = name_ == "all_reduce";  // the library scatters nothing
    if (sums && direct && bytes > kLarge && !two && missing({Algorithm::Library}).empty())
      return "nccl";
    if (direct && missing({Algorithm::Flags}).empty()) return "flags";
    const bool at_once = two || bytes <= (direct ? kSmallDirect : kSmall);
    return direct ? at_once ? "one_shot" : "two_shot_direct" : at_once ? "naive" : "two_shot";
  }

  std::string search_or_default() const {
    const std::string otherwise = by_size();
    const bool stored = std::ranges::all_of(pieces_, [](Node p) { return p->device != 0; });
    if (env_int("COLLECTIVE_BEAM") == 0 || !stored || pieces_.size() < 2) return otherwise;
    const bool scatters = name_ == "reduce_scatter";  // that knows flags, and whether it is direct
    std::vector<std::string> ways;
    for (const auto& [name, how] : algorithms()) {
      const bool differs = !scatters || how.way == Algorithm::Naive || name == otherwise;
      if (has(how) && differs) ways.push_back(name);
    }
    const Collective c{name_,
                       op_,
                       pieces_[0]->dtype,
                       numel(pieces_[0]->shape()),
                       {devices_.begin(), devices_.end()}};
    return fastest_way(c, ways, otherwise, [&](const std::string& way, const Pieces& pieces) {
      const EnvOverride how("COLLECTIVE", way);
      return scatters ? reduce_scatter(op_, pieces, devices_, 0, even_cuts(c.size, devices_.size()))
                      : all_reduce(op_, pieces, devices_);
    });
  }

  const std::string name_;
  const Op op_;
  const Pieces& pieces_;
  const std::span<const int> devices_;
  const bool adds_, can_;  // can_: add up what they read where it is
  const bool of_ranks_;    // each has a piece, and is of a process of its own
};

// The sum of the same part of all pieces, on one device.
Node sum_parts(Op op, const Pieces& parts, int device, bool direct) {
  return direct ? sum_on(device, parts, SumBy::Kernel) : reduce_to(op, parts, device);
}

// Reduce-scatter: one slice of the sum on each device; by flags, or `how.direct`: read where the
// pieces are.
Pieces reduce_parts(Op op, const Pieces& pieces, std::span<const int> devices, int axis,
                    const Shape& cuts, Algorithm how) {
  const Pieces from = stored(pieces);
  Pieces out;
  for (size_t i = 0; i < devices.size(); ++i) {
    Pieces parts;
    for (Node p : from) parts.push_back(slice(p, axis, cuts[i], cuts[i + 1]));
    const bool any = cuts[i] < cuts[i + 1];
    out.push_back(how.way == Algorithm::Flags && any
                      ? sum_on(devices[i], stored(parts), SumBy::Flags)
                      : sum_parts(op, parts, devices[i], how.direct && any));
  }
  return out;
}

// Whether devices make it together by flags, where that is not chosen otherwise. Of a gather each
// has to find a packet of 16 bytes where its piece goes.
bool gathers_by_flags(const Pieces& pieces, std::span<const int> devices) {
  const std::string wanted = env_text("COLLECTIVE");
  if (wanted.empty() ? !are_gpus(devices) : wanted != "flags") return false;
  if (devices.size() < 2 || devices.size() > kMaxTogether) return false;
  if (!have_one_each(pieces, devices) || !reach_all(pieces, devices)) return false;
  return std::ranges::all_of(pieces, [](Node p) {
    const int64_t bytes = numel(p->shape()) * static_cast<int64_t>(p->dtype.size());
    return bytes > 0 && bytes % 16 == 0 &&
           device_of(p->device).missing_for_all_reduce(SumBy::Flags, kI32).empty();
  });
}

// Whether pieces along an axis lie in memory one behind the other when they are joined.
bool are_consecutive(const Pieces& pieces, int axis) {
  return numel(pieces[0]->shape().first(static_cast<size_t>(axis))) == 1;
}

// What a gather has put into memory, joined along an axis.
Node joined(Node gathered, const Pieces& pieces, int axis) {
  Shape whole = to_shape(pieces[0]->shape());
  whole[axis] = 0;
  for (Node p : pieces) whole[axis] += p->shape()[axis];
  if (are_consecutive(pieces, axis)) return build::reshape(gathered, whole);
  Pieces parts;
  int64_t at = 0;
  for (Node p : pieces) {
    const int64_t size = numel(p->shape());
    parts.push_back(build::reshape(slice(gathered, 0, at, at + size), p->shape()));
    at += size;
  }
  return join(parts, axis);
}

}  // namespace

Pieces reduce_scatter(Op op, const Pieces& pieces, std::span<const int> devices, int axis,
                      const Shape& cuts) {
  const LabelScope label("reduce_scatter");
  return reduce_parts(op, pieces, devices, axis, cuts,
                      Ways("reduce_scatter", op, pieces, devices).choose());
}

Pieces all_gather(const Pieces& pieces, std::span<const int> devices, int axis) {
  const LabelScope label("all_gather");
  Pieces out;
  if (gathers_by_flags(pieces, devices)) {
    // Rows stay rows, for those who read them as they lie.
    const bool rows = are_consecutive(pieces, axis);
    Pieces from;
    for (Node p : pieces)
      from.push_back(build::reshape(p, rows
                                           ? to_shape(p->shape().subspan(static_cast<size_t>(axis)))
                                           : Shape{numel(p->shape())}));
    from = stored(from);
    for (int device : devices) out.push_back(joined(gather_on(device, from), pieces, axis));
    return out;
  }
  for (int device : devices) {
    Pieces parts;
    for (Node p : pieces) parts.push_back(bring(p, device));
    out.push_back(join(parts, axis));
  }
  return out;
}

namespace {

// The pieces behind reshapes: one sum serves all shapes in which it is wanted.
Pieces behind_reshapes(const Pieces& pieces) {
  Pieces out;
  for (Node p : pieces) {
    while (p->op == Op::Reshape) p = p->src(0);
    out.push_back(p);
  }
  const auto is_alike = [&](Node p) { return same(p->shape(), out[0]->shape()); };
  return std::ranges::all_of(out, is_alike) ? out : pieces;
}

}  // namespace

Pieces all_reduce(Op op, const Pieces& wanted, std::span<const int> devices) {
  const LabelScope label("all_reduce");
  const Pieces given = behind_reshapes(wanted);
  if (given != wanted) {
    Pieces out;
    for (Node p : all_reduce(op, given, devices))
      out.push_back(build::reshape(p, wanted[0]->shape()));
    return out;
  }
  const Pieces pieces = on_their_devices(op, given, devices);
  const Algorithm how = Ways("all_reduce", op, pieces, devices).choose();
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
    flat =
        all_gather(stored(reduce_parts(op, flat, devices, 0, even_cuts(size, devices.size()), how)),
                   devices, 0);
  for (Node p : flat) out.push_back(build::reshape(p, pieces[0]->shape()));
  return out;
}

}  // namespace tiny
