#include "tiny/run/jit.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "runtime/fusion/fuse.h"
#include "runtime/jit/arguments.h"
#include "runtime/jit/explain.h"
#include "runtime/jit/forms.h"
#include "runtime/jit/holders.h"
#include "runtime/jit/replay.h"
#include "runtime/launch/capture.h"
#include "runtime/launch/profile.h"
#include "runtime/realize/realize.h"
#include "tiny/base/env.h"
#include "tiny/ir/build.h"
#include "tiny/nn/layers.h"
#include "tiny/tensor/assignments.h"
#include "tiny/tensor/random.h"

namespace tiny {

namespace {

using Tensors = JitCore::Tensors;
using BufferRef = std::shared_ptr<Buffer>;

Arena& nodes() { return Arena::global(); }

void realize_all(Tensors& tensors) {
  std::vector<Tensor*> pointers;
  for (Tensor& t : tensors) pointers.push_back(&t);
  Tensor::realize(pointers);
}

void add_tensors(Tensors& to, const std::vector<Node>& of) {
  for (Node n : of) runtime_seam::replace_node(to.emplace_back(), n);
}

// The node below views that holds a tensor's elements or computes them.
Node stored(Node n) {
  while (n->realized || is_movement(n->op) || is_for_gradients(n->op))
    n = n->realized ? n->realized.load() : n->src(0);
  return n;
}

// Whether a computed tensor lies in buffers, or in pieces, for one of which this holds.
bool any_buffer(const Tensor& t, const std::function<bool(Node)>& holds) {
  const Node n = stored(t.node());
  const auto parts = n->op == Op::Multi ? n->srcs() : std::span<const Node>(&n, 1);
  return std::ranges::any_of(parts, [&](Node part) {
    const Node base = stored(part);
    return base->op == Op::Buffer && holds(base);
  });
}

// Those tensors for which this holds become copies.
void copy_if(Tensors& tensors, const std::function<bool(const Tensor&)>& holds) {
  Tensors copies;
  std::vector<size_t> which;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (numel(tensors[i].capacity()) == 0 || !holds(tensors[i])) continue;
    copies.push_back(Tensor(make(Op::Contiguous, tensors[i].dtype(), {tensors[i].node()})));
    which.push_back(i);
  }
  realize_all(copies);
  for (size_t i = 0; i < which.size(); ++i) tensors[which[i]] = copies[i];
}

// What every call gives: computed, and without gradients. What the function has assigned to tensors
// from outside is computed with it, whether a result depends on it or not. A tensor from outside is
// given back as a copy, as by a replay: else a result that is let go looks like that tensor let go.
Tensors run_plainly(const Tensors& arguments, const JitCore::Body& body) {
  const NodeMark begin(nodes());
  const AssignmentLog assigned;
  Tensors out = body(arguments);
  Tensors all = out;
  add_tensors(all, assigned.pending());
  realize_all(all);
  for (size_t i = 0; i < out.size(); ++i) out[i] = all[i].detach().realize();
  copy_if(out, [&](const Tensor& t) {
    return any_buffer(t, [&](Node buffer) { return !begin.precedes(buffer); });
  });
  return out;
}

// Assignments that wait are no part of a step.
void realize_assigned() {
  std::vector<Node> waiting;
  for (Node n : nodes().held()) {
    Node base = n;
    while (is_for_gradients(base->op) && !base->realized) base = base->src(0);
    if (base->op == Op::Assign && !base->realized) waiting.push_back(n);
  }
  Tensors all;
  add_tensors(all, waiting);
  realize_all(all);
}

// --- Watching what lies outside ------------------------------------------------------------------

// A tensor that the step only reads, held by somebody outside.
struct ReadWatch {
  Node node = nullptr;                  // watched
  uint32_t handles = 0;                 // at the capture; 0 after it was assigned to in place
  std::shared_ptr<Memory> memory = {};  // where the node is a view of a buffer
  const Buffer* buffer = nullptr;       // which owned the memory
};

// A node of a tensor that the step assigns to.
struct WriteWatch {
  Node node = nullptr;  // watched
  // By nodes and tensors together, and by tensors alone: one that becomes an expression of itself
  // changes the second only.
  uint32_t uses = 0, handles = 0;
  const Memory* memory = nullptr;  // the first piece's, where there are several
  // A computed assignment or a leaf that nothing but its tensor holds: when that is read it becomes
  // another node of the same memory, which changes nothing.
  bool is_tensor = false;
};

// What is watched of each memory, without which nodes these are.
std::vector<std::tuple<const Memory*, Op, uint32_t>> forms_of(
    const std::vector<WriteWatch>& writes) {
  std::vector<std::tuple<const Memory*, Op, uint32_t>> out;
  for (const WriteWatch& w : writes)
    if (!w.is_tensor) out.emplace_back(w.memory, w.node->op, w.uses);
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace

struct JitCore::State {
  ~State() { forget(); }

  Tensors call_recorded(Tensors arguments, const Body& body);
  void follow_holders(const Tensors& except);
  Tensors capture(Tensors arguments, const Body& body);
  Tensors replay(const std::vector<BufferRef>& buffers);
  Tensors call_function(const Tensors& arguments, const Body& body);
  Tensors checked_replay(Tensors& arguments, const std::vector<BufferRef>& buffers,
                         const Body& body);
  bool may_replay(const Tensors& arguments, const std::vector<BufferRef>& buffers);
  void watch_writes();
  void forget();

  JitStatistics statistics;
  int64_t calls = 0;
  std::unique_ptr<Replay> recorded;
  std::vector<Form> results;  // of the last call of the function

 private:
  void watch_reads(const Capture& capture);
  bool add_chain(Node n, std::set<Node>& chain) const;
  void unwatch_writes();
  bool is_assigned_elsewhere(const ReadWatch& w) const;
  void check_reads();
  bool may_have_lost() const;
  void check_nothing_left(const Capture& capture, const Tensors& out);
  bool is_untouched() const;
  bool is_untouched_elsewhere();

  std::vector<ArgumentSpec> specs_;
  bool training_ = false;
  int times_lost_ = 0;  // captures that this made anew
  std::vector<ReadWatch> reads_;
  std::vector<WriteWatch> writes_;
  std::optional<Holders> holders_;  // of the nodes of both
};

// --- Capture -------------------------------------------------------------------------------------

namespace {

// The results that a replay does not compute into memory of its own become copies.
void copy_what_is_shared(Tensors& out, const Capture& capture) {
  const std::set<const Buffer*> fresh = capture.fresh();
  copy_if(out, [&](const Tensor& t) {
    const Node base = base_of(t.node());
    return base->op != Op::Buffer || !fresh.count(base->arg<BufferArg>().buffer.get());
  });
}

}  // namespace

Tensors JitCore::State::capture(Tensors arguments, const Body& body) {
  forget();
  realize_assigned();
  const std::vector<BufferRef> buffers = buffers_of(arguments);
  check_aliases(arguments, buffers);
  Capture capture([&] {
    std::vector<BufferRef> stand_ins;
    for (const BufferRef& b : buffers)
      stand_ins.push_back(std::make_shared<Buffer>(b, 0, b->dtype(), b->size()));
    return stand_ins;
  }());
  ++statistics.captures;
  ++statistics.calls;
  Tensors out;
  {
    Tensors inner;
    for (size_t i = 0; i < buffers.size(); ++i) {
      if (buffers[i]->size() == 0) {
        inner.push_back(Tensor::zeros(to_shape(arguments[i].shape()), arguments[i].dtype()));
        continue;
      }
      Node n = build::reshape(buffer_node(capture.inputs[i]), arguments[i].shape());
      if (arguments[i].node()->op == Op::Bound) n = with_sources(arguments[i].node(), {&n, 1});
      inner.emplace_back(n);
    }
    const Holders holders(nodes().held());
    out = run_plainly(inner, body);
    for (const Holders::Replaced& r : holders.replaced())
      if (r.now && !capture.is_new(r.now) && memory_below(r.now))
        throw Error(explain_exchanged(r.now));
  }
  copy_what_is_shared(out, capture);
  if (capture.separates_copies()) return out;  // nothing to replay: the next call captures again
  specs_ = specs_of(arguments, buffers);
  training_ = nn::is_training();
  watch_reads(capture);
  nodes().collect();
  try {
    recorded = std::make_unique<Replay>(capture, out);
    check_nothing_left(capture, out);
  } catch (...) {
    forget();
    throw;
  }
  watch_writes();
  statistics.kernels = recorded->kernels();
  statistics.arena_bytes = recorded->arena_bytes();
  return out;
}

namespace {

using BufferSet = std::set<const Buffer*>;

bool reads_any(Node n, const BufferSet& a, const BufferSet& b) {
  for (Node m : topological({n}))
    if (m->op == Op::Buffer)
      if (const Buffer* read = m->arg<BufferArg>().buffer.get(); a.count(read) || b.count(read))
        return true;
  return false;
}

}  // namespace

// Tensors made inside that are still there, and will not be made by a replay.
void JitCore::State::check_nothing_left(const Capture& capture, const Tensors& out) {
  BufferSet made, saved;
  for (const BufferRef& b : capture.inputs) made.insert(b.get());
  for (const CapturedRun& r : capture.runs)
    for (size_t i = 0; i < r.results.size(); ++i)
      if (r.schedule->results[i].value >= 0)
        (i < r.wanted ? made : saved).insert(r.results[i].get());
  std::set<Node> results;
  for (const Tensor& t : out) results.insert(t.node());
  for (Node n : nodes().held()) {
    if (!capture.is_new(n) || results.count(n) || n->device == 0 || recorded->keeps(n)) continue;
    if (numel(n->shape()) == 0) continue;  // there is nothing to make
    const auto is_left = [&](Node part) {
      const Node base = stored(part);
      if (base->op != Op::Buffer) return reads_any(base, made, saved);  // else another thread's
      const Buffer& b = *base->arg<BufferArg>().buffer;
      return !recorded->writes(b) && !saved.count(&b) && made.count(&b);
    };
    Node below = below_views(n);
    const auto parts = below->op == Op::Multi ? below->srcs() : std::span<const Node>(&n, 1);
    if (std::none_of(parts.begin(), parts.end(), is_left)) continue;
    throw Error(explain_left(n));
  }
}

void JitCore::State::watch_reads(const Capture& capture) {
  for (Node n : capture.outside) {
    const uint32_t handles = n->handles.load();
    if (handles == 0 || numel(n->shape()) == 0) continue;  // assigned to, or not read
    nodes().watch(n);
    ReadWatch w{n, handles};
    Node below = below_views(n);
    if (const BufferRef b = whole_buffer(below->op == Op::Multi ? below->src(0) : n)) {
      w.memory = b->memory().lock();
      w.buffer = b.get();
    }
    reads_.push_back(std::move(w));
  }
}

// Adds the nodes from `n` down to memory that the step assigns to; whether there is any.
bool JitCore::State::add_chain(Node n, std::set<Node>& chain) const {
  bool found = false;
  if (n->op == Op::Buffer) found = recorded->writes(*n->arg<BufferArg>().buffer);
  if (n->op == Op::Multi)
    for (Node piece : n->srcs()) found |= add_chain(piece, chain);
  if (n->realized || is_movement(n->op) || is_for_gradients(n->op))
    found = add_chain(n->realized ? n->realized.load() : n->src(0), chain);
  if (found) chain.insert(n);
  return found;
}

void JitCore::State::watch_writes() {
  unwatch_writes();
  nodes().collect();
  std::set<Node> chain;
  for (Node n : nodes().held()) add_chain(n, chain);
  for (Node n : chain) {
    const bool is_tensor = (n->op == Op::Assign || n->op == Op::Leaf) && n->handles == 1;
    writes_.push_back(
        {n, uses_of(n), n->handles.load(), memory_below(n), is_tensor && uses_of(n) == 1});
    nodes().watch(n);
  }
}

void JitCore::State::unwatch_writes() {
  for (const WriteWatch& w : writes_) nodes().unwatch(w.node);
  writes_.clear();
}

// Where it has other nodes to follow. The nodes of arguments are held for a call only.
void JitCore::State::follow_holders(const Tensors& except) {
  if (!recorded || holders_) return;
  std::vector<Node> watched;
  for (const ReadWatch& w : reads_) watched.push_back(w.node);
  for (const WriteWatch& w : writes_) watched.push_back(w.node);
  std::erase_if(watched, [&](Node n) {
    return std::ranges::any_of(except, [&](const Tensor& t) { return t.node() == n; });
  });
  holders_.emplace(watched);
}

void JitCore::State::forget() {
  holders_.reset();
  unwatch_writes();
  for (const ReadWatch& w : reads_) nodes().unwatch(w.node);
  reads_.clear();
  recorded = nullptr;
}

// --- Replay --------------------------------------------------------------------------------------

namespace {

// Whether it was assigned to in place: another buffer has its memory.
bool has_moved(const ReadWatch& w) {
  return w.memory && w.memory->owner && w.memory->owner != w.buffer;
}

}  // namespace

// Whether the tensor that was read is still there, with a new value in other memory: it could not
// be assigned to in place.
bool JitCore::State::is_assigned_elsewhere(const ReadWatch& w) const {
  if (!holders_ || !w.memory) return false;
  return std::ranges::any_of(holders_->replaced(), [&](const Holders::Replaced& r) {
    const Memory* now = r.now ? memory_below(r.now) : nullptr;
    return r.is_assigned && r.then == w.memory.get() && now && now != r.then;
  });
}

// Tensors from outside are still the ones that were read, in the memory that they had.
void JitCore::State::check_reads() {
  std::optional<WaitingAssignments> waiting;  // one walk for all that were assigned to before
  for (ReadWatch& w : reads_) {
    if (!has_moved(w)) {
      const uint32_t handles = w.node->handles.load(std::memory_order_relaxed);
      if (w.handles == 0 && !waiting) waiting.emplace();
      const bool lost =
          w.handles == 0 ? uses_of(w.node) == 0 || waiting->has(w.node) : handles < w.handles;
      if (lost && !is_assigned_elsewhere(w)) throw Error(explain_lost(w.node));
      continue;
    }
    // Assigned to in place: it is the tensor of another buffer now, in whatever node.
    Node now = buffer_node(w.memory->owner->shared_from_this());
    nodes().watch(now);
    nodes().unwatch(w.node);
    w.node = now;
    w.handles = 0;
    w.buffer = w.memory->owner;
  }
}

// Whether fewer hold what was read, or others, which may be no loss: somebody else held it, too, as
// a result of the call before, or a number written in the step is the same node as a constant
// outside. What nobody holds is lost for certain, which check_reads says; a tensor that is an
// expression now, and one that is assigned to and a view now, get memory of their own in a call.
bool JitCore::State::may_have_lost() const {
  bool fewer = false;
  for (const ReadWatch& w : reads_) {
    if (has_moved(w)) continue;
    const uint32_t handles = w.node->handles.load();
    const bool is_constant = w.node->device == 0 && !w.memory;
    if (w.handles == 0 ? uses_of(w.node) == 0 : handles == 0 && w.handles && !is_constant)
      if (!is_assigned_elsewhere(w)) return false;
    fewer |= handles < w.handles;
  }
  if (fewer || !holders_) return true;
  const auto replaced = holders_->replaced();
  return !replaced.empty() && std::ranges::all_of(replaced, [&](const Holders::Replaced& r) {
    if (!r.now || !r.now->device) return true;
    return std::ranges::count(writes_, r.then, &WriteWatch::memory) ? bool(whole_buffer(r.now))
                                                                    : bool(memory_below(r.now));
  });
}

// Whether nobody outside holds an expression of, or a copy of, a tensor that is about to be
// overwritten.
bool JitCore::State::is_untouched() const {
  return std::all_of(writes_.begin(), writes_.end(), [](const WriteWatch& w) {
    return uses_of(w.node) == w.uses && w.node->handles.load() == w.handles;
  });
}

// The same where tensors have been assigned to outside, in place: they are other nodes then, and
// used as the ones before were after a call.
bool JitCore::State::is_untouched_elsewhere() {
  const auto before = forms_of(writes_);
  watch_writes();
  return forms_of(writes_) == before;
}

bool JitCore::State::may_replay(const Tensors& arguments, const std::vector<BufferRef>& buffers) {
  check(arguments.size() == specs_.size(), "Jit: ", arguments.size(), " tensors for a capture of ",
        specs_.size(), ": make another Jit for them");
  for (size_t i = 0; i < specs_.size(); ++i) {
    const ArgumentSpec& s = specs_[i];
    const ArgumentSpec now = spec_of(arguments[i], *buffers[i]);
    if (now == s) continue;
    throw Error(cat("Jit: argument ", i, " is ", to_text(now), " and was ", to_text(s),
                    " at the capture: make another Jit for it, or pad it to one size"));
  }
  check_aliases(arguments, buffers);
  for (size_t i = 0; i < buffers.size(); ++i)
    check(!recorded->writes(*buffers[i]), "Jit: argument ", i,
          " is a tensor that the step also assigns to: give x.contiguous()");
  check(nn::is_training() == training_, "Jit: captured in ", training_ ? "training" : "evaluation",
        " and called in ", training_ ? "evaluation" : "training",
        ": make one Jit for each of them");
  check_reads();
  if (is_untouched()) return true;
  nodes().collect();
  return is_untouched() || is_untouched_elsewhere();
}

Tensors JitCore::State::replay(const std::vector<BufferRef>& buffers) {
  ++statistics.replays;
  return recorded->run(buffers);
}

// A call between replays, after which tensors from outside are in other buffers.
Tensors JitCore::State::call_function(const Tensors& arguments, const Body& body) {
  ++statistics.calls;
  const auto before = recorded->owners();
  Tensors out = run_plainly(arguments, body);
  // A result that alone holds the memory of a tensor from outside: an old value of that one, which
  // has other memory now.
  const auto has_taken = [&](const Tensor& t) {
    std::set<Node> chain;
    const auto same = std::ranges::count(out, t.node(), &Tensor::node);
    return t.node()->handles.load() == static_cast<uint32_t>(same) && add_chain(t.node(), chain);
  };
  if (recorded->is_valid(before) && std::ranges::none_of(out, has_taken))
    watch_writes();
  else
    forget();
  return out;
}

namespace {

using Bytes = std::vector<std::byte>;

Bytes bytes_of(const Tensor& t) {
  Bytes out(static_cast<size_t>(numel(t.current_shape())) * t.dtype().size());
  t.to_bytes(out.data());
  return out;
}

template <class T> bool are_close(const Bytes& a, const Bytes& b) {
  for (size_t i = 0; i + sizeof(T) <= a.size(); i += sizeof(T)) {
    T x, y;
    std::memcpy(&x, &a[i], sizeof(T));
    std::memcpy(&y, &b[i], sizeof(T));
    if (std::isnan(x) && std::isnan(y)) continue;
    if (x != y && !(std::abs(x - y) <= T(1e-4) * std::max(std::abs(x), std::abs(y)))) return false;
  }
  return true;
}

// Equal, or as near as sums in another order are.
bool agree(DType t, const Bytes& a, const Bytes& b) {
  if (a == b) return true;
  if (t == kF32) return are_close<float>(a, b);
  if (t == kF64) return are_close<double>(a, b);
  return false;
}

}  // namespace

Tensors JitCore::State::checked_replay(Tensors& arguments, const std::vector<BufferRef>& buffers,
                                       const Body& body) {
  const RandomState random = random_state();
  const auto before = recorded->state();
  const Tensors got = replay(buffers);
  std::vector<Bytes> values;
  for (const Tensor& t : got) values.push_back(bytes_of(t));
  const auto after = recorded->state();
  recorded->set_state(before);
  set_random_state(random);
  Tensors wanted = call_function(arguments, body);
  const char* remedy =
      ": it depends on something besides its arguments and the tensors that it read at the "
      "capture; "
      "give that to the Jit as an argument";
  for (size_t i = 0; i < wanted.size(); ++i)
    check(agree(wanted[i].dtype(), values[i], bytes_of(wanted[i])), "JIT_CHECK: result ", i,
          " of a replay, ", describe(wanted[i].node()), ", is not what the step gives", remedy);
  if (!recorded) return wanted;  // tensors have moved
  const auto state = recorded->state();
  for (size_t i = 0; i < state.size(); ++i)
    check(agree(state[i].dtype, after[i].bytes, state[i].bytes),
          "JIT_CHECK: a replay assigned other values to a tensor of ", state[i].dtype,
          " than the step does", remedy);
  return wanted;
}

// --- The interface -------------------------------------------------------------------------------

JitCore::JitCore() : state_(std::make_unique<State>()) {}
JitCore::~JitCore() = default;
JitCore::JitCore(JitCore&&) noexcept = default;
JitCore& JitCore::operator=(JitCore&&) noexcept = default;

void JitCore::reset() {
  state_->forget();
  state_->calls = 0;
}

const JitStatistics& JitCore::statistics() const { return state_->statistics; }

Tensors JitCore::call(const Tensors& given, const Body& body) {
  const std::lock_guard lock(runtime_mutex());
  begin_profile_of_environment();
  State& s = *state_;
  if (Capture::current() || env_int("JIT") == 0 || ++s.calls == 1) {
    ++s.statistics.calls;
    return Capture::current() ? body(given) : run_plainly(given, body);
  }
  std::vector<Form> forms;
  Tensors arguments = split(given, forms);
  const Body on_pieces = [&](const Tensors& pieces) {
    return split(run_plainly(joined(pieces, forms), body), s.results);
  };
  const Tensors out = s.call_recorded(std::move(arguments), on_pieces);
  s.follow_holders(given);
  return joined(out, s.results);
}

Tensors JitCore::State::call_recorded(Tensors arguments, const Body& body) {
  if (!recorded) return capture(arguments, body);
  nodes().collect();
  const Tensors given = arguments;
  const std::vector<BufferRef> buffers = buffers_of(arguments);
  constexpr int kMaxLost = 8;  // more are no accident
  if (times_lost_ < kMaxLost && may_have_lost()) {
    ++times_lost_;
    return capture(given, body);
  }
  if (may_replay(arguments, buffers) && holders_ && holders_->replaced().empty())
    return env_int("JIT_CHECK") ? checked_replay(arguments, buffers, body) : replay(buffers);
  // Somebody has to keep old values, which the step itself takes care of, or the step reads others.
  return call_function(given, body);
}

}  // namespace tiny
