// The one node type of every graph, from a user's tensor to a statement of a kernel: immutable and
// interned, so that structural equality is pointer equality. Facts that every pass asks for (shape,
// bounds, ranges) are computed once, when a node is made.
//
// Nodes live in an arena. The global arena holds tensor graphs; a node stays while another node or
// a NodeRef uses it, and `collect` frees the rest. Lowering a kernel works in an arena of its own,
// which takes no lock and is dropped as a whole.
#pragma once
#include <algorithm>
#include <atomic>
#include <bit>
#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "tiny/ir/dtype.h"
#include "tiny/ir/op.h"
#include "tiny/ir/shape.h"

namespace tiny {

class Buffer;  // runtime/device/buffer.h
struct NodeData;
using Node = const NodeData*;

// The kind of loop that a range becomes in the kernel.
enum class RangeKind : uint8_t { Loop, Reduce, Core, Vector, Unroll, Block, Thread, Device };

struct RangeArg {
  int id = 0;  // unique in a kernel, below 64
  RangeKind kind = RangeKind::Loop;
  bool operator==(const RangeArg&) const = default;
};
struct ReduceArg {
  Op op = Op::Add;
  uint32_t axes = 0;  // bit i: axis i
  bool operator==(const ReduceArg&) const = default;
};
struct OpArg {
  Op op = Op::Add;
  bool operator==(const OpArg&) const = default;
};
struct ScatterArg {
  Op op = Op::Add;      // Add, Mul, Max, Min combine; Assign overwrites
  bool unique = false;  // no element is written twice
  bool operator==(const ScatterArg&) const = default;
};
struct BufferArg {
  std::shared_ptr<Buffer> buffer;
  int64_t size = 0;  // elements
  int device = 0;    // device_id
  bool operator==(const BufferArg& o) const { return buffer == o.buffer; }
};

using Payload = std::variant<std::monostate, int64_t, double, Ints, RangeArg, ReduceArg, OpArg,
                             ScatterArg, BufferArg>;

struct NodeData {
  Op op;
  DType dtype;
  uint32_t num_src = 0;
  uint8_t rank = 0;
  bool needs_grad = false;                     // a Leaf is reached without passing a Detach
  mutable bool listed = false;                 // waits in the arena's list of unused nodes
  mutable bool held = false;                   // is in the arena's list of held nodes
  uint16_t device = 0;                         // tensor graphs: device_id, 0 where none is implied
  mutable std::atomic<uint16_t> followers{0};  // HandleLogs that ask which NodeRefs hold it
  uint32_t hash = 0;
  uint32_t id = 0;                           // order of creation in the arena
  mutable std::atomic<uint32_t> refs{0};     // nodes above, and NodeRefs
  mutable std::atomic<uint32_t> handles{0};  // NodeRefs alone
  mutable uint32_t watchers = 0;             // of refs, those that only watch
  mutable uint32_t pins = 0;      // by threads that made or found it since they collected
  mutable uint32_t held_at = 0;   // place in the arena's list of held nodes
  const char* label = "";         // the user's operation that made it
  const Node* sources = nullptr;  // num_src
  const int64_t* dims = nullptr;  // rank
  const Node* lengths = nullptr;  // per axis: how many elements count; nullptr: all
  int64_t vmin = 0, vmax = 0;     // bounds of an integer or bool value
  uint64_t ranges = 0;            // bit i: depends on the range with id i
  Payload payload = {};
  mutable NodeData* next = nullptr;              // hash chain
  mutable std::atomic<Node> realized = nullptr;  // a Buffer view that holds this node's values

  Node src(int i) const { return sources[i]; }
  std::span<const Node> srcs() const { return {sources, num_src}; }
  Ints shape() const { return {dims, rank}; }
  // The i64 scalar that says how many of an axis's elements count, nullptr where all do (facts.h).
  Node length(int axis) const { return lengths ? lengths[axis] : nullptr; }
  template <class T> const T& arg() const {
    if (const T* found = std::get_if<T>(&payload)) [[likely]]
      return *found;
    wrong_payload();
  }
  bool is(Op o) const { return op == o; }
  bool is_const() const { return op == Op::Const; }
  bool is_const(double v) const;  // a Const with that value
  int64_t int_value() const { return arg<int64_t>(); }
  double float_value() const { return arg<double>(); }
  double number() const;  // either kind of Const, as a double
  Ints ints() const { return arg<Ints>(); }
  [[noreturn]] void wrong_payload() const;
};

class Arena {
 public:
  explicit Arena(bool counted = false);  // counted: the global one, with locks and references
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  Node make(Op op, DType dtype, std::span<const Node> srcs, const Payload& payload);
  size_t size() const { return live_; }  // nodes
  // Frees unreferenced nodes (counted arenas), but for those that another thread made or found
  // since it collected: it may be about to use them. This thread must have no such nodes in hand.
  void collect();
  void retain(Node n);
  void release(Node n);
  void watch(Node n);  // keeps the node without counting as a use of it
  void unwatch(Node n);
  std::vector<Node> held();                     // nodes that a NodeRef holds
  void set_realized(Node n, Node buffer_view);  // n's values are there (nullptr: no longer)

  static Arena& current();  // this thread's: the innermost scope's, else the global one
  static Arena& global();

 private:
  friend class ArenaScope;
  friend class NodeMark;
  Node find(uint32_t hash, Op op, DType dtype, std::span<const Node> srcs, const Payload& p) const;
  NodeData* build(uint32_t hash, Op op, DType dtype, std::span<const Node> srcs, const Payload& p);
  Node add(uint32_t hash, NodeData* n);
  void settle_held(Node n);
  void* allocate(size_t bytes);
  void grow();
  void unlink(NodeData* n);
  void unuse(Node n);
  void drop_ref(Node n);
  void unpin(std::vector<Node>& pinned);

  struct Pins;  // of a thread
  static Pins& pins();

  const bool counted_;
  mutable std::mutex mutex_;
  std::vector<NodeData*> table_;
  size_t live_ = 0;
  uint32_t next_id_ = 0;
  std::vector<Node> unused_;
  std::vector<Node> held_;
  std::vector<std::unique_ptr<std::byte[]>> blocks_;
  std::byte *cursor_ = nullptr, *end_ = nullptr;
};

// Makes `arena` current on this thread while in scope.
class ArenaScope {
 public:
  explicit ArenaScope(Arena& arena);
  ~ArenaScope();
  ArenaScope(const ArenaScope&) = delete;
  ArenaScope& operator=(const ArenaScope&) = delete;

 private:
  Arena* before_;
};

// A moment in the making of nodes, which tells those made since from those before. Ids wrap around:
// it holds for the next 2^31 nodes.
class NodeMark {
 public:
  explicit NodeMark(const Arena& arena);       // now
  explicit NodeMark(Node n) : next_(n->id) {}  // just before n
  bool precedes(Node n) const { return n->id - next_ < uint32_t{1} << 31; }

 private:
  uint32_t next_;  // id
};

// While it lives, on this thread, nodes that were made before `mark` and are computed are not found
// again: what a capture of a Jit makes of tensors from outside is computed by each replay, since
// they may change, whoever else has the values that it had before.
class ComputedAnew {
 public:
  explicit ComputedAnew(NodeMark mark);
  ~ComputedAnew();
  ComputedAnew(const ComputedAnew&) = delete;
  ComputedAnew& operator=(const ComputedAnew&) = delete;

 private:
  const NodeMark mark_;
  const NodeMark* before_;
};

// How many nodes and NodeRefs refer to a node, apart from those that only watch it.
inline uint32_t uses_of(Node n) { return n->refs.load(std::memory_order_relaxed) - n->watchers; }

// Keeps a node of the global arena alive.
class NodeRef {
 public:
  NodeRef() = default;
  explicit NodeRef(Node n);
  NodeRef(const NodeRef& o) : NodeRef(o.node_) {}
  NodeRef(NodeRef&& o) noexcept : node_(std::exchange(o.node_, nullptr)) {
    if (is_followed(node_)) log_exchange(o);
  }
  NodeRef& operator=(NodeRef o) noexcept {
    std::swap(node_, o.node_);
    if (is_followed(node_) || is_followed(o.node_)) log_exchange(o);
    return *this;
  }
  ~NodeRef() {
    if (node_) release();
  }
  Node get() const { return node_; }
  Node operator->() const { return node_; }
  explicit operator bool() const { return node_ != nullptr; }
  void become(Node n);  // another node of the same values

 private:
  static bool is_followed(Node n) { return n && n->followers.load(std::memory_order_relaxed) != 0; }
  void log_exchange(const NodeRef& with) noexcept;  // this and that have changed places
  void release();
  Node node_ = nullptr;
};

// Follows the NodeRefs that hold some nodes when it is made, wherever those go: counts of handles
// do not tell two that changed places, nor a new one that took the place of one let go. It keeps no
// node.
class HandleLog {
 public:
  explicit HandleLog(const std::vector<Node>& nodes);  // of the global arena
  ~HandleLog();
  HandleLog(const HandleLog&) = delete;
  HandleLog& operator=(const HandleLog&) = delete;

  struct Change {
    Node then, now;
    bool is_freed = false;     // `then` is, and no more than a name
    bool is_assigned = false;  // `now` comes from Op::Assign, and not from another NodeRef
  };
  // Of the NodeRefs that do not hold what they held; `now` is nullptr for one that is gone or
  // empty, or took a node that nobody follows when it was empty.
  std::vector<Change> changes() const;

 private:
  friend class Arena;
  friend class NodeRef;
  struct Logs;  // all that there are
  void note(const NodeRef* ref, Node before, Node now, bool same_values);
  void drop(Node freed);

  std::set<Node> nodes_, others_;  // followed: those given, and what their NodeRefs took later
  std::map<const NodeRef*, Change> changed_;
  std::set<const NodeRef*> later_;  // that hold one of the nodes since
};

// Names the user's operation for the nodes made in this scope; the outermost label wins.
class LabelScope {
 public:
  explicit LabelScope(const char* label);
  ~LabelScope();
  LabelScope(const LabelScope&) = delete;
  LabelScope& operator=(const LabelScope&) = delete;

 private:
  bool outermost_;
};

// The node with these parts, in the current arena.
Node make(Op op, DType dtype, std::span<const Node> srcs, const Payload& payload);
Node make(Op op, DType dtype, std::span<const Node> srcs);
inline Node make(Op op, DType dtype, std::initializer_list<Node> srcs, const Payload& payload) {
  return make(op, dtype, std::span<const Node>(srcs.begin(), srcs.size()), payload);
}
inline Node make(Op op, DType dtype, std::initializer_list<Node> srcs = {}) {
  return make(op, dtype, std::span<const Node>(srcs.begin(), srcs.size()));
}

// A copy of `n` with other sources (the same node where they are the same).
Node with_sources(Node n, std::span<const Node> srcs);

// Constants of a dtype: the value is converted to it (and to every lane of a vector).
Node constant(DType dtype, int64_t value);
Node constant(DType dtype, double value);
inline Node constant(DType dtype, int value) {
  return constant(dtype, static_cast<int64_t>(value));
}

// Names of devices as small numbers; 0 is "no device". "CPU:0" is "CPU". Several names with commas
// between them are a group: one more device, on which each of its members has all of a tensor or a
// part of it. Error for a group that names a device twice.
int device_id(const std::string& name);
const std::string& device_name(int id);
std::span<const int> device_members(int id);  // of a group; empty for a single device
bool has_device_groups();                     // whether any was named so far

// All nodes below and including `roots`, sources before users.
std::vector<Node> topological(std::span<const Node> roots);
inline std::vector<Node> topological(Node root) { return topological(std::span(&root, 1)); }

// An open-addressing map from nodes to small values: the memo of every walk. Nodes that were made
// one after the other lie beside each other, as walks come by them. Keys are alive as long as it is
// used.
template <class T> class NodeMap {
 public:
  NodeMap() = default;
  explicit NodeMap(size_t expected) { resize(std::bit_ceil(expected * 2)); }
  T* find(Node key) {
    if (slots_.empty()) return nullptr;
    for (size_t i = start(key);; i = (i + 1) & (slots_.size() - 1)) {
      if (slots_[i].first == key) return &slots_[i].second;
      if (!slots_[i].first) return nullptr;
    }
  }
  const T* find(Node key) const { return const_cast<NodeMap*>(this)->find(key); }
  bool contains(Node key) const { return find(key) != nullptr; }
  T& operator[](Node key) {
    if ((count_ + 1) * 2 > slots_.size()) grow();
    for (size_t i = start(key);; i = (i + 1) & (slots_.size() - 1)) {
      if (slots_[i].first == key) return slots_[i].second;
      if (!slots_[i].first) {
        slots_[i].first = key;
        ++count_;
        return slots_[i].second;
      }
    }
  }
  size_t size() const { return count_; }

 private:
  static constexpr int kRunBits = 3;  // so many nodes in order of creation keep together
  static constexpr size_t kMinSlots = 16;

  // Runs of them spread evenly over the slots (Knuth, The Art of Computer Programming, volume 3,
  // section 6.4, on multiplication by the golden ratio).
  size_t start(Node key) const {
    const size_t run = (key->id >> kRunBits) * 0x9E3779B97F4A7C15ull >> shift_;
    return run << kRunBits | (key->id & ((1 << kRunBits) - 1));
  }
  void resize(size_t slots) {
    slots_.resize(std::max(slots, kMinSlots));
    shift_ = 64 + kRunBits - std::countr_zero(slots_.size());
  }
  void grow() {
    std::vector<std::pair<Node, T>> old;
    old.swap(slots_);
    resize(old.size() * 2);
    count_ = 0;
    for (auto& [key, value] : old)
      if (key) (*this)[key] = std::move(value);
  }
  std::vector<std::pair<Node, T>> slots_;
  size_t count_ = 0;
  int shift_ = 0;
};

// Whether one of a few values, such as nodes or axes, is the one.
template <class Range, class T>
requires requires(const Range& all, const T& one) { *std::ranges::begin(all) == one; }
bool contains(const Range& all, const T& one) {
  return std::ranges::find(all, one) != std::ranges::end(all);
}

// How many sources of nodes below and including the roots each node is.
NodeMap<int> count_users(std::span<const Node> roots);

// Visits the roots and what lies below them, each node once, of sources the last one first.
// visit(n) says whether to go on to below(n), its sources where nothing else is given.
template <class Visit, class Below = std::span<const Node> (*)(Node)>
void visit_below(
    std::vector<Node> roots, Visit visit, Below below = [](Node n) { return n->srcs(); }) {
  NodeMap<char> seen;
  while (!roots.empty()) {
    const Node n = roots.back();
    roots.pop_back();
    if (std::exchange(seen[n], 1) || !visit(n)) continue;
    const auto sources = below(n);
    roots.insert(roots.end(), sources.begin(), sources.end());
  }
}

}  // namespace tiny
