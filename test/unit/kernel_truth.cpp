#include "test/unit/kernel_truth.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>

#include "tiny/rewrite/algebra.h"
#include "tiny/rewrite/rewrite.h"

namespace tiny::test {

namespace {

using Values = std::map<int, int64_t>;  // of ranges, by id

int64_t wrapped(DType t, __int128 v) {
  if (t.is_bool()) return v != 0;
  const int bits = t.bits();
  auto u = static_cast<unsigned __int128>(v) & ((static_cast<unsigned __int128>(1) << bits) - 1);
  if (t.is_signed() && u >> (bits - 1)) u -= static_cast<unsigned __int128>(1) << bits;
  return static_cast<int64_t>(u);
}

// One lane of a machine integer; nothing where memory or floats come in.
std::optional<int64_t> machine_value(Node n, int lane, const Values& values) {
  if (n->dtype.is_float() || n->is(Op::Load) || n->is(Op::Reduce)) return {};
  if (n->is_const()) return n->int_value();
  if (n->is(Op::Range)) return values.at(n->arg<RangeArg>().id);
  if (n->is(Op::Ramp)) return lane;
  if (n->is(Op::Broadcast)) return machine_value(n->src(0), 0, values);
  if (n->is(Op::Reverse)) return machine_value(n->src(0), n->dtype.lanes - 1 - lane, values);
  __int128 s[3] = {};
  for (int i = 0; i < static_cast<int>(n->num_src); ++i) {
    const auto v = machine_value(n->src(i), lane, values);
    if (!v) return {};
    s[i] = *v;
  }
  const auto a = s[0], b = s[1];
  if (n->op >= Op::FloorDiv && n->op <= Op::TruncMod && b == 0) return {};
  const bool down = b != 0 && a % b != 0 && (a < 0) != (b < 0);
  switch (n->op) {
    case Op::Cast: return wrapped(n->dtype, a);
    case Op::Neg: return wrapped(n->dtype, -a);
    case Op::Add: return wrapped(n->dtype, a + b);
    case Op::Sub: return wrapped(n->dtype, a - b);
    case Op::Mul: return wrapped(n->dtype, a * b);
    case Op::FloorDiv: return wrapped(n->dtype, a / b - down);
    case Op::FloorMod: return wrapped(n->dtype, a % b + (down ? b : 0));
    case Op::TruncDiv: return wrapped(n->dtype, a / b);
    case Op::TruncMod: return wrapped(n->dtype, a % b);
    case Op::Shl: return wrapped(n->dtype, a << static_cast<int>(b));
    case Op::Shr: return wrapped(n->dtype, a >> static_cast<int>(b));
    case Op::And: return wrapped(n->dtype, a & b);
    case Op::Or: return wrapped(n->dtype, a | b);
    case Op::Xor: return wrapped(n->dtype, a ^ b);
    case Op::Max: return wrapped(n->dtype, std::max(a, b));
    case Op::Min: return wrapped(n->dtype, std::min(a, b));
    case Op::Lt: return a < b;
    case Op::Le: return a <= b;
    case Op::Eq: return a == b;
    case Op::Ne: return a != b;
    case Op::Where: return wrapped(n->dtype, a ? b : s[2]);
    default: return {};
  }
}

int lanes_of(Node access) {
  return access->is(Op::Load) ? access->dtype.lanes : access->src(2)->dtype.lanes;
}

// The element that a lane touches; -1 << 40 where the gate is false.
constexpr int64_t kGated = -(int64_t{1} << 40);
std::optional<int64_t> touched(Node access, int lane, const Values& values) {
  const int gate = access->is(Op::Load) ? 2 : 3;
  if (static_cast<int>(access->num_src) > gate) {
    const auto open = machine_value(access->src(gate), lane, values);
    if (!open) return {};
    if (!*open) return kGated;
  }
  auto at = machine_value(access->src(1), lane, values);
  if (at && access->src(1)->dtype.lanes == 1) *at += lane;
  return at;
}

std::vector<Node> ranges_around(Node kernel, uint64_t used) {
  std::vector<Node> out;
  for (Node n : topological(kernel))
    if (n->is(Op::Range) && used >> n->arg<RangeArg>().id & 1) out.push_back(n);
  return out;
}

double count_of(const std::vector<Node>& ranges) {
  double count = 1;
  for (Node r : ranges) count *= static_cast<double>(r->src(0)->vmax);
  return count;
}

void for_all(const std::vector<Node>& ranges, const std::function<void(const Values&)>& f) {
  Values v;
  for (Node r : ranges) v[r->arg<RangeArg>().id] = 0;
  for (;;) {
    f(v);
    size_t i = 0;
    for (; i < ranges.size(); ++i) {
      int64_t& x = v[ranges[i]->arg<RangeArg>().id];
      if (++x < ranges[i]->src(0)->vmax) break;
      x = 0;
    }
    if (i == ranges.size()) return;
  }
}

}  // namespace

std::vector<Node> accesses_of(Node kernel) {
  std::vector<Node> out;
  for (Node n : topological(kernel))
    if (n->is(Op::Load) || n->is(Op::Store)) out.push_back(n);
  return out;
}

std::optional<Truth> truth_of(Node kernel) {
  Truth truth;
  std::map<int64_t, std::map<int64_t, int>> written;
  double total = 0;
  for (Node n : accesses_of(kernel)) {
    const auto ranges = ranges_around(
        kernel, n->is(Op::Store) ? n->ranges
                                 : n->src(1)->ranges | (n->num_src > 2 ? n->src(2)->ranges : 0));
    total += count_of(ranges) * lanes_of(n);
    if (total > 1500) return {};
    const int64_t slot = n->src(0)->ints()[0], size = n->src(0)->ints()[1];
    bool known = true;
    for_all(ranges, [&](const Values& v) {
      for (int lane = 0; known && lane < lanes_of(n); ++lane) {
        const auto at = touched(n, lane, v);
        known = at.has_value();
        if (!known || *at == kGated) continue;
        truth.inside &= *at >= 0 && *at < size;
        if (n->is(Op::Store)) ++written[slot][*at];
      }
    });
    if (!known) return {};
    if (n->is(Op::Store) && !written.count(slot)) written[slot];
  }
  for (Node n : accesses_of(kernel))
    if (n->is(Op::Store))
      for (int64_t i = 0; i < n->src(0)->ints()[1]; ++i)
        truth.once &= written[n->src(0)->ints()[0]][i] == 1;
  return truth;
}

std::optional<bool> reads_before_writing(Node kernel, int slot) {
  std::vector<Node> loads, stores;
  for (Node n : accesses_of(kernel))
    if (n->src(0)->ints()[0] == slot) (n->is(Op::Load) ? loads : stores).push_back(n);
  double total = 0;
  std::map<int64_t, std::vector<Values>> writers;
  bool known = true;
  for (Node s : stores) {
    for (Node l : loads) {
      const std::vector<Node> below = topological(s->src(2));
      if (std::find(below.begin(), below.end(), l) == below.end()) return {};
    }
    const auto ranges = ranges_around(kernel, s->ranges);
    total += count_of(ranges) * lanes_of(s);
    if (total > 1500) return {};
    for_all(ranges, [&](const Values& v) {
      for (int lane = 0; lane < lanes_of(s); ++lane) {
        const auto at = touched(s, lane, v);
        known &= at.has_value();
        if (at && *at != kGated) writers[*at].push_back(v);
      }
    });
  }
  bool holds = true;
  for (Node l : loads) {
    uint64_t used = 0;
    for (Node s : stores) used |= s->ranges;
    for (Node s : l->srcs()) used |= s->ranges;
    const auto ranges = ranges_around(kernel, used);
    total += count_of(ranges) * lanes_of(l);
    if (total > 3000) return {};
    for_all(ranges, [&](const Values& v) {
      for (int lane = 0; lane < lanes_of(l); ++lane) {
        const auto at = touched(l, lane, v);
        known &= at.has_value();
        if (!at || *at == kGated) continue;
        for (const Values& writer : writers[*at])
          for (const auto& [id, value] : writer) holds &= v.at(id) == value;
      }
    });
  }
  return known ? std::optional(holds) : std::nullopt;
}

bool is_example(const std::string& text, Node kernel) {
  const size_t reads = text.find(": reads element "), writes = text.find(": writes element ");
  const bool is_load = reads != std::string::npos;
  const size_t colon = is_load ? reads : writes;
  if (colon == std::string::npos) return false;
  Values values;
  for (Node r : ranges_around(kernel, ~uint64_t{0})) values[r->arg<RangeArg>().id] = 0;
  int lane = 0;
  const size_t begin = text.rfind("wrong: ", colon);
  for (size_t at = begin + 7; at < colon;) {
    const size_t end = std::min(text.find(", ", at), colon);
    int id = 0;
    long long value = 0;
    if (std::sscanf(text.c_str() + at, "r%d=%lld", &id, &value) == 2) values[id] = value;
    if (std::sscanf(text.c_str() + at, "lane %lld", &value) == 1) lane = static_cast<int>(value);
    at = end + 2;
  }
  long long element = 0, size = 0, slot = 0;
  const char* form = is_load ? ": reads element %lld of %lld of buffer %lld"
                             : ": writes element %lld of %lld of buffer %lld";
  if (std::sscanf(text.c_str() + colon, form, &element, &size, &slot) != 3) return false;
  if (element >= 0 && element < size) return false;
  for (Node n : accesses_of(kernel)) {
    if (n->is(Op::Load) != is_load || n->src(0)->ints()[0] != slot || lane >= lanes_of(n)) continue;
    if (n->src(0)->ints()[1] == size && touched(n, lane, values) == element) return true;
  }
  return false;
}

Node with_fault(Node kernel, Node access, Fault fault) {
  std::vector<Node> srcs(access->srcs().begin(), access->srcs().end());
  const size_t gate = access->is(Op::Load) ? 2 : 3;
  Node at = srcs[1];
  if (fault == Fault::PlusOne) srcs[1] = add(at, constant(at->dtype, 1));
  if (fault == Fault::MinusOne) srcs[1] = add(at, constant(at->dtype, -1));
  if (fault == Fault::NoGate || fault == Fault::LooserGate) {
    if (srcs.size() <= gate) return nullptr;
    if (fault == Fault::NoGate) {
      srcs.pop_back();
    } else {
      Node limit = nullptr;
      for (Node n : topological(srcs[gate]))
        if (n->is(Op::Lt) && n->src(1)->is_const() && n->src(1)->dtype.is_int()) limit = n;
      if (!limit) return nullptr;
      Node more = constant(limit->src(1)->dtype, limit->src(1)->int_value() + 1);
      srcs[gate] = substitute(srcs[gate], limit, op(Op::Lt, limit->src(0), more));
    }
  }
  if (fault == Fault::SwappedStrides) {
    std::vector<Node> products;
    for (Node n : topological(at))
      if (n->is(Op::Mul) && n->src(1)->is_const() && n->src(0)->is(Op::Range))
        products.push_back(n);
    if (products.size() < 2 || products[0]->src(1) == products[1]->src(1)) return nullptr;
    NodeMap<Node> map;
    map[products[0]] = op(Op::Mul, products[0]->src(0), products[1]->src(1));
    map[products[1]] = op(Op::Mul, products[1]->src(0), products[0]->src(1));
    srcs[1] = substitute(at, map);
  }
  return substitute(kernel, access, make(access->op, access->dtype, srcs, access->payload));
}

Target small_target() {
  Target t;
  t.language = Target::Language::C;
  t.vector_bytes = 16;
  t.cores = 2;
  return t;
}

}  // namespace tiny::test
