#include "codegen/proof/prove.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>

#include "codegen/kernel/access.h"
#include "codegen/kernel/facts.h"
#include "codegen/options/thread_group.h"
#include "codegen/proof/access_order.h"
#include "codegen/proof/claims/bounds.h"
#include "codegen/proof/mixed_radix.h"
#include "codegen/proof/solver/smt.h"
#include "codegen/proof/stages.h"
#include "codegen/proof/writes.h"
#include "codegen/wgmma/pipeline.h"
#include "tiny/base/error.h"
#include "tiny/ir/print.h"
#include "tiny/rewrite/algebra.h"

namespace tiny {

namespace {

using Clock = std::chrono::steady_clock;

int lane_id(const Claim& c) { return c.lane->arg<RangeArg>().id; }

SmtText question_of(const Claim& c) {
  SmtText text;
  const std::string at = text.term(c.index);
  if (c.gate) text.assert_that(text.term(c.gate));
  text.assert_that(cat("(not (and (<= 0 ", at, ") (< ", at, " ", c.size, ")))"));
  return text;
}

Point point_of(const SmtText& question, const std::vector<int64_t>& values) {
  Point p;
  for (size_t i = 0; i < values.size(); ++i) {
    Node leaf = question.variables()[i].leaf;
    if (leaf->is(Op::Range))
      p.ranges[leaf->arg<RangeArg>().id] = values[i];
    else
      p.opaque.emplace_back(leaf, values[i]);
  }
  return p;
}

std::string label_of(Node access) {
  if (*access->label) return access->label;
  return access->num_src > 2 && *access->src(2)->label ? access->src(2)->label : "";
}

// The node whose value an opaque leaf stands for: of a Variable, what is loaded.
Node source_of(Node leaf) {
  Node n = leaf->src(0);
  return n->is(Op::Bound) ? n->src(0) : n;
}

// "r0=3, r1=0, lane 2": the ranges that the claim depends on.
std::string place(const Claim& c, const Point& p) {
  uint64_t used = c.index->ranges | (c.gate ? c.gate->ranges : 0);
  std::string text;
  const auto item = [&](const std::string& t) { text += (text.empty() ? "" : ", ") + t; };
  if (c.lane) used &= ~(uint64_t{1} << lane_id(c));
  for (size_t id = 0; id < 64; ++id)
    if (used >> id & 1) item(cat('r', id, '=', p.ranges[id]));
  if (c.lane) item(cat("lane ", p.ranges[lane_id(c)]));
  for (const auto& [leaf, value] : p.opaque)
    if (source_of(leaf)->is(Op::Load))
      item(cat("buffer ", source_of(leaf)->src(0)->ints()[0], " holding ", value));
  return text.empty() ? "always" : text;
}

// Whether memory can hold what the point says: of loads alone, for what is computed from memory in
// ways that are not followed may have no such value. A load whose gate is false gives zero, and two
// loads of one element give the same.
bool is_possible(const Point& p) {
  std::map<std::pair<int64_t, int64_t>, int64_t> memory;
  for (const auto& [leaf, value] : p.opaque) {
    Node load = source_of(leaf);
    if (!load->is(Op::Load)) return false;
    const auto lane = evaluate(leaf->src(1), 0, p);
    if (!lane) return false;
    const int at = static_cast<int>(*lane);
    if (load->num_src > 2) {
      const auto gate = evaluate(load->src(2), at, p);
      if (gate == 0 && value != 0) return false;
      if (gate == 0) continue;
    }
    auto element = evaluate(load->src(1), at, p);
    if (!element) continue;
    if (load->src(1)->dtype.lanes == 1) *element += at;
    const auto [known, fresh] = memory.try_emplace({slot_of(load->src(0)), *element}, value);
    if (!fresh && known->second != value) return false;
  }
  return true;
}

// The faulty access at the point, in words; empty where it stays inside the buffer or the point
// does not say enough.
std::string violation(const Claim& c, const Point& p) {
  if (!is_possible(p)) return "";
  Node n = c.access;
  const int lane = c.lane ? static_cast<int>(p.ranges[lane_id(c)]) : 0;
  const uint32_t slot = c.is_store() ? 3 : 2;
  if (n->num_src > slot && evaluate(n->src(static_cast<int>(slot)), lane, p) != 1) return "";
  auto at = evaluate(n->src(1), lane, p);
  if (!at) return "";
  if (n->src(1)->dtype.lanes == 1) *at += lane;
  if (*at >= 0 && *at < c.size) return "";
  const std::string label = label_of(n);
  return cat(place(c, p), c.is_store() ? ": writes element " : ": reads element ", *at, " of ",
             c.size, " of buffer ", c.slot(), label.empty() ? "" : cat(", from ", label));
}

Finding wrong(Method method, std::string text) { return {Verdict::Wrong, method, std::move(text)}; }
Finding unproved(const Claim& c, const char* why) {
  return {Verdict::Unproved, Method::None,
          cat(c.is_store() ? "store to" : "load from", " buffer ", c.slot(), " of ", c.size,
              ": element ", to_expression(c.index), c.gate ? " where " + to_expression(c.gate) : "",
              ": ", why)};
}

void collect_leaves(Node n, NodeMap<char>& seen, std::vector<Node>& leaves) {
  if (seen.contains(n)) return;
  seen[n] = 1;
  if (n->is(Op::Range) || is_opaque(n)) return leaves.push_back(n);
  for (Node s : n->srcs()) collect_leaves(s, seen, leaves);
}

// The leaves that index and gate are computed from.
std::vector<Node> leaves_of(const Claim& c) {
  NodeMap<char> seen;
  std::vector<Node> leaves;
  collect_leaves(c.index, seen, leaves);
  if (c.gate) collect_leaves(c.gate, seen, leaves);
  return leaves;
}

// Corners of the space: most defects show where every range is at an end of its own.
std::string wrong_corner(const Claim& c) {
  const std::vector<Node> leaves = leaves_of(c);
  for (Node leaf : leaves)
    if (!leaf->dtype.is_int() && !leaf->dtype.is_bool()) return "";
  constexpr uint32_t kCorners = 32;
  for (uint32_t corner = 0; corner < kCorners && corner < 1u << leaves.size(); ++corner) {
    Point p;
    for (size_t i = 0; i < leaves.size(); ++i) {
      Node leaf = leaves[i];
      const int64_t value = corner >> (i % 5) & 1 ? leaf->vmax : leaf->vmin;
      if (leaf->is(Op::Range))
        p.ranges[leaf->arg<RangeArg>().id] = value;
      else
        p.opaque.emplace_back(leaf, value);
    }
    if (std::string text = violation(c, p); !text.empty()) return text;
  }
  return "";
}

// With every Variable at its upper bound: a store that is gated to the elements before a length
// then writes all elements of its buffer, and with a smaller value some of the same.
Node at_bounds(Node n) {
  if (!n || n->is(Op::Range) || n->is_const()) return n;
  if (n->is(Op::Bound)) return index(n->vmax);
  if (is_opaque(n)) return n;
  std::vector<Node> srcs;
  for (Node s : n->srcs()) srcs.push_back(at_bounds(s));
  return with_sources(n, srcs);
}

class Prover {
 public:
  Prover(Node sink, const ProofSettings& settings)
      : sink_(sink),
        settings_(settings),
        begin_(Clock::now()),
        steps_left_(settings.steps),
        claims_(claims_of(sink)) {}

  Proof run() {
    for (const Claim& c : claims_) add(inside(c));
    for (Node n : topological(sink_)) other(n);
    for (const Finding& f : prove_groups(sink_, settings_.warp)) add(f);
    for (const Finding& f : prove_stages(sink_)) add(f);
    for (const Finding& f : prove_order(sink_, claims_, steps_left_)) add(f);
    std::map<int, std::vector<Claim>> stores;
    for (Claim c : claims_) {
      if (!c.is_store() || is_stage(c.access->src(0))) continue;
      const int slot = c.slot();
      const bool scattered = slot >= 0 && slot < 64 && (settings_.scattered >> slot & 1);
      if (!scattered) c.gate = at_bounds(c.gate);
      if (c.gate && c.gate->vmin == 1) c.gate = nullptr;
      stores[c.slot()].push_back(c);
    }
    for (const auto& [slot, to] : stores) {
      if (slot >= 0 && slot < 64 && (settings_.declared >> slot & 1)) {
        ++proof_.declared;
        continue;
      }
      add(prove_writes(to, sink_, settings_, steps_left_));
    }
    proof_.seconds = std::chrono::duration<double>(Clock::now() - begin_).count();
    return proof_;
  }

 private:
  Assumptions& under(Node gate) {
    for (auto& [of, assumptions] : assumptions_)
      if (of == gate) return assumptions;
    assumptions_.emplace_back(gate, Assumptions());
    assumptions_.back().second.assume(gate);
    return assumptions_.back().second;
  }

  Finding inside(const Claim& c) {
    const Bounds b = under(c.gate).bounds(c.index);
    if (b.min > b.max || (b.min >= 0 && b.max < c.size)) return {};
    if (std::string text = wrong_corner(c); !text.empty()) return wrong(Method::Walk, text);
    if (is_inside_by_numbers(c)) return {};
    if (!has_solver()) return unproved(c, "there is no solver");
    if (steps_left_ <= 0) return unproved(c, "no steps left");
    const SmtText question = question_of(c);
    const SmtAnswer answer = solve(question, steps_left_);
    steps_left_ -= answer.steps;
    if (answer.decision == Decision::Never) return {Verdict::Proved, Method::Solver, ""};
    if (answer.decision == Decision::Unknown) return unproved(c, "the solver gave up");
    const std::string text = violation(c, point_of(question, answer.values));
    return text.empty() ? unproved(c, "the solver's example does not hold in the machine")
                        : wrong(Method::Solver, text);
  }

  // With the ranges that make up one number as one range.
  bool is_inside_by_numbers(const Claim& c) {
    std::vector<Node> leaves = leaves_of(c);
    std::erase_if(leaves, [](Node n) { return !n->is(Op::Range); });
    std::vector<Claim> claims{c};
    std::vector<std::vector<Node>> ranges{leaves};
    count_numbers(claims, ranges);
    const Bounds b = under(claims[0].gate).bounds(claims[0].index);
    return b.min >= 0 && b.max < c.size;
  }

  // Nodes that read memory without being a load.
  void other(Node n) {
    if (n->is(Op::Matrix)) {
      const MatrixTile tile(n);
      for (const MatrixOperand* o : {&tile.a, &tile.b}) add(inside(*o));
      add(prove_ring(ring_of(tile)));
      if (!all_of(sink_, Op::Reduce).empty())
        add({Verdict::Unproved, Method::None, "a reduction beside matrix units is not followed"});
    } else if (info(n->op).cls == OpClass::Statement) {
      add({Verdict::Unproved, Method::None, cat(info(n->op).name, " is not followed")});
    }
  }

  // TMA keeps to the map: all of it must lie inside the buffer.
  Finding inside(const MatrixOperand& o) const {
    const TensorMap& map = o.map;
    int64_t last = map.offset;
    for (int d = 0; d < map.rank; ++d) last += (map.sizes[d] - 1) * map.strides[d];
    last /= map.element_bytes;
    if (map.offset >= 0 && last < o.elements) return {};
    return wrong(Method::Bounds,
                 cat("TMA reads buffer ", map.slot, " of ", o.elements, " up to element ", last));
  }

  void add(const Finding& f) {
    ++proof_.claims;
    ++proof_.settled[static_cast<int>(f.method)];
    proof_.verdict = std::max(proof_.verdict, f.verdict);
    if (f.verdict != Verdict::Proved)
      proof_.text += cat(proof_.text.empty() ? "" : "\n", name_of(f.verdict), ": ", f.text);
  }

  Node sink_;
  const ProofSettings settings_;
  const Clock::time_point begin_;
  int64_t steps_left_;
  std::vector<Claim> claims_;
  std::vector<std::pair<Node, Assumptions>> assumptions_;  // by gate
  Proof proof_;
};

}  // namespace

const char* name_of(Verdict verdict) {
  constexpr const char* names[] = {"proved", "unproved", "wrong"};
  return names[static_cast<int>(verdict)];
}

Proof prove(Node sink, const ProofSettings& settings) {
  Arena arena;
  ArenaScope scope(arena);
  return Prover(sink, settings).run();
}

std::string to_smt(Node sink) {
  Arena arena;
  ArenaScope scope(arena);
  std::string out;
  for (const Claim& c : claims_of(sink))
    out +=
        cat("; ", c.is_store() ? "store to" : "load from", " buffer ", c.slot(), " of ", c.size,
            ": sat where it is outside\n(push)\n", question_of(c).text(), "(check-sat)\n(pop)\n");
  return out;
}

Finding prove_equal(Node before, Node after, int64_t steps) {
  constexpr int kLane = 63;
  Node lane = nullptr;
  const int lanes = before->dtype.lanes;
  if (lanes > 1) lane = make(Op::Range, kIndex, {index(lanes)}, RangeArg{kLane, RangeKind::Vector});
  const Node a = exact_form(before, lane), b = exact_form(after, lane);
  if (a == b) return {};
  const Finding open{Verdict::Unproved, Method::None,
                     cat(to_expression(before), " is ", to_expression(after), "?")};
  SmtText q;
  q.assert_that(cat("(distinct ", q.term(a), " ", q.term(b), ")"));
  const SmtAnswer answer = solve(q, steps);
  if (answer.decision == Decision::Never) return {Verdict::Proved, Method::Solver, ""};
  if (answer.decision == Decision::Unknown) return open;
  const Point p = point_of(q, answer.values);
  const int at = lane ? static_cast<int>(p.ranges[kLane]) : 0;
  const auto x = evaluate(before, at, p), y = evaluate(after, at, p);
  if (!x || !y || *x == *y || !is_possible(p)) return open;
  std::string where;
  for (size_t i = 0; i < answer.values.size(); ++i)
    where += cat(i ? ", " : "", q.variables()[i].name, '=', answer.values[i]);
  return wrong(Method::Solver, cat(to_expression(before), " became ", to_expression(after), ": at ",
                                   where, " ", *x, " and ", *y));
}

namespace {
std::mutex rewrites_mutex;
RewriteCounts& rewrites() {
  static auto& instance = *new RewriteCounts;
  return instance;
}
}  // namespace

RewriteCounts rewrite_counts() {
  std::lock_guard lock(rewrites_mutex);
  return rewrites();
}

void check_rewrite(const char* rule, Node before, Node after) {
  if (!before->dtype.is_int() && !before->dtype.is_bool()) return;
  Arena arena;
  ArenaScope scope(arena);
  const Finding f = prove_equal(before, after, 20 * kSolverSteps);
  expect(f.verdict != Verdict::Wrong, "rule '", rule, "': ", f.text);
  std::lock_guard lock(rewrites_mutex);
  ++(f.verdict == Verdict::Proved ? rewrites().proved : rewrites().open[rule]);
}

void read_kernel(Node kernel, const Target& target, ProofSettings& settings) {
  settings.atomic = target.kind == Target::Kind::Gpu;
  settings.warp = target.warp;
  for (Node n : topological(kernel))
    if (n->is(Op::Param)) settings.sizes[slot_of(n)] = numel(n->shape());
  for (Node s : kernel->srcs()) {
    const int64_t slot = slot_of(s->src(0));
    if (slot >= 64 || !s->src(1)->is(Op::Scatter)) continue;
    settings.scattered |= uint64_t{1} << slot;
    if (s->src(1)->arg<ScatterArg>().unique) settings.declared |= uint64_t{1} << slot;
  }
}

}  // namespace tiny
