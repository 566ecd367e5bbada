#include "tiny/ir/node.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <map>
#include <new>

#include "tiny/base/error.h"
#include "tiny/base/thread.h"
#include "tiny/ir/facts.h"

namespace tiny {

namespace {

thread_local Arena* current_arena = nullptr;
thread_local const char* current_label = "";
thread_local const NodeMark* anew_since = nullptr;

uint64_t mix(uint64_t h, uint64_t v) {
  h = (h ^ v) * 0x9E3779B97F4A7C15ull;
  return h ^ (h >> 29);
}

struct HashPayload {
  uint64_t operator()(std::monostate) const { return 1; }
  uint64_t operator()(int64_t v) const { return mix(2, static_cast<uint64_t>(v)); }
  uint64_t operator()(double v) const { return mix(3, std::bit_cast<uint64_t>(v)); }
  uint64_t operator()(Ints v) const {
    uint64_t h = mix(4, v.size());
    for (int64_t x : v) h = mix(h, static_cast<uint64_t>(x));
    return h;
  }
  uint64_t operator()(RangeArg a) const { return mix(5, a.id * 16 + static_cast<int>(a.kind)); }
  uint64_t operator()(ReduceArg a) const { return mix(6 + static_cast<int>(a.op), a.axes); }
  uint64_t operator()(OpArg a) const { return mix(7, static_cast<int>(a.op)); }
  uint64_t operator()(ScatterArg a) const { return mix(8 + a.unique, static_cast<int>(a.op)); }
  uint64_t operator()(const BufferArg& a) const {
    return mix(9, reinterpret_cast<uintptr_t>(a.buffer.get()));
  }
};

uint32_t hash_of(Op op, DType t, std::span<const Node> srcs, const Payload& payload) {
  uint64_t h = static_cast<uint64_t>(op) << 32 | static_cast<uint64_t>(t.scalar) << 16 | t.lanes;
  for (Node s : srcs) h = mix(h, reinterpret_cast<uintptr_t>(s) >> 4);
  h = mix(h, std::visit(HashPayload{}, payload));
  return static_cast<uint32_t>(h ^ h >> 32);
}

bool same_payload(const Payload& a, const Payload& b) {
  if (a.index() != b.index()) return false;
  if (auto x = std::get_if<Ints>(&a)) return same(*x, std::get<Ints>(b));
  if (auto x = std::get_if<double>(&a))  // NaN equals itself, 0 differs from -0
    return std::bit_cast<uint64_t>(*x) == std::bit_cast<uint64_t>(std::get<double>(b));
  return std::visit(
      [&](const auto& x) {
        using T = std::decay_t<decltype(x)>;
        if constexpr (std::is_same_v<T, Ints>)
          return false;
        else
          return x == std::get<T>(b);
      },
      a);
}

// Copies what a node refers to behind it, so that one allocation holds all of it.
template <class T> const T* place(std::byte*& cursor, std::span<const T> values) {
  T* to = reinterpret_cast<T*>(cursor);
  std::ranges::copy(values, to);
  cursor += values.size_bytes();
  return to;
}

}  // namespace

void NodeData::wrong_payload() const {
  throw Bug(cat("node ", id, ", ", op, ", was asked for a payload of another type than its own"));
}

bool NodeData::is_const(double v) const { return op == Op::Const && number() == v; }

double NodeData::number() const {
  if (auto i = std::get_if<int64_t>(&payload)) {
    const bool big = dtype.scalar == Scalar::U64 && *i < 0;
    return big ? static_cast<double>(static_cast<uint64_t>(*i)) : static_cast<double>(*i);
  }
  return float_value();
}

Arena::Arena(bool counted) : counted_(counted), table_(counted ? 1 << 12 : 1 << 9) {}

Arena::~Arena() {
  if (counted_) return;  // the global arena lives as long as the process
  for (NodeData* chain : table_)
    for (NodeData* n = chain; n;) std::exchange(n, n->next)->~NodeData();
}

Arena& Arena::global() {
  static Arena* arena = new Arena(true);
  return *arena;
}

Arena& Arena::current() { return current_arena ? *current_arena : global(); }

ArenaScope::ArenaScope(Arena& arena) : before_(std::exchange(current_arena, &arena)) {}
ArenaScope::~ArenaScope() { current_arena = before_; }

LabelScope::LabelScope(const char* label) : outermost_(!*current_label) {
  if (outermost_) current_label = label;
}
LabelScope::~LabelScope() {
  if (outermost_) current_label = "";
}

void* Arena::allocate(size_t bytes) {
  if (counted_) return ::operator new(bytes);
  bytes = (bytes + 15) & ~size_t{15};
  if (cursor_ + bytes > end_ || !cursor_) {
    const size_t block = std::max<size_t>(bytes, 256 << 10);
    blocks_.push_back(std::make_unique_for_overwrite<std::byte[]>(block));
    cursor_ = blocks_.back().get();
    end_ = cursor_ + block;
  }
  return std::exchange(cursor_, cursor_ + bytes);
}

Node Arena::find(uint32_t hash, Op op, DType dtype, std::span<const Node> srcs,
                 const Payload& payload) const {
  for (NodeData* n = table_[hash & (table_.size() - 1)]; n; n = n->next)
    if (n->hash == hash && n->op == op && n->dtype == dtype && n->num_src == srcs.size() &&
        std::equal(srcs.begin(), srcs.end(), n->sources) && same_payload(n->payload, payload))
      if (!anew_since || !n->realized || anew_since->precedes(n)) return n;
  return nullptr;
}

NodeData* Arena::build(uint32_t hash, Op op, DType dtype, std::span<const Node> srcs,
                       const Payload& payload) {
  if (is_comparison(op))
    expect(dtype.lanes == srcs[0]->dtype.lanes, info(op).name, " has a result for each of ",
           srcs[0]->dtype.lanes, " lanes, not ", dtype.lanes);
  NodeData facts{.op = op, .dtype = dtype};
  facts.num_src = static_cast<uint32_t>(srcs.size());
  facts.sources = srcs.data();
  facts.payload = payload;
  facts.label = current_label;
  facts.device = static_cast<uint16_t>(infer_device(facts));
  const Shape shape = infer_shape(facts);
  check(shape.size() <= kMaxRank, *current_label ? current_label : info(op).name, ": ",
        shape.size(), " axes; there may be ", kMaxRank);
  numel(shape);  // Error for more elements than there may be
  const std::vector<Node> lengths = infer_lengths(facts, shape);
  const Ints* ints = std::get_if<Ints>(&payload);
  const size_t extra =
      srcs.size_bytes() + (shape.size() + lengths.size() + (ints ? ints->size() : 0)) * 8;
  auto* memory = static_cast<std::byte*>(allocate(sizeof(NodeData) + extra));
  auto* n = new (memory) NodeData{.op = op, .dtype = dtype};
  std::byte* cursor = memory + sizeof(NodeData);
  n->num_src = facts.num_src;
  n->sources = place(cursor, srcs);
  n->rank = static_cast<uint8_t>(shape.size());
  n->dims = place(cursor, Ints(shape));
  if (!lengths.empty()) n->lengths = place(cursor, std::span<const Node>(lengths));
  if (ints)
    n->payload = Ints(place(cursor, *ints), ints->size());
  else
    n->payload = payload;
  n->label = facts.label;
  n->device = facts.device;
  n->hash = hash;
  n->id = next_id_++;
  const Bounds bounds = infer_bounds(*n);
  n->vmin = bounds.min;
  n->vmax = bounds.max;
  n->ranges = infer_ranges(*n);
  n->needs_grad = op == Op::Leaf;
  if (dtype.is_float() && op != Op::Detach)
    for (Node s : srcs) n->needs_grad |= s->needs_grad;
  return n;
}

NodeMark::NodeMark(const Arena& arena) {
  std::lock_guard lock(arena.mutex_);
  next_ = arena.next_id_;
}

ComputedAnew::ComputedAnew(NodeMark mark)
    : mark_(mark), before_(std::exchange(anew_since, &mark_)) {}
ComputedAnew::~ComputedAnew() { anew_since = before_; }

// Nodes that a thread has in its hands: given back when it collects, and when it ends.
struct Arena::Pins {
  ~Pins() {
    std::lock_guard lock(global().mutex_);
    global().unpin(nodes);
  }
  std::vector<Node> nodes;
};

Arena::Pins& Arena::pins() { return of_thread<Pins>(); }

void Arena::unpin(std::vector<Node>& pinned) {
  for (Node n : pinned)
    if (--n->pins == 0 && n->refs.load(std::memory_order_acquire) == 0) unuse(n);
  pinned.clear();
}

Node Arena::make(Op op, DType dtype, std::span<const Node> srcs, const Payload& payload) {
  const uint32_t hash = hash_of(op, dtype, srcs, payload);
  if (!counted_) {
    if (Node n = find(hash, op, dtype, srcs, payload)) return n;
    return add(hash, build(hash, op, dtype, srcs, payload));
  }
  std::vector<Node>& pinned = pins().nodes;
  std::lock_guard lock(mutex_);
  Node n = find(hash, op, dtype, srcs, payload);
  if (!n) {
    n = add(hash, build(hash, op, dtype, srcs, payload));
    for (Node s : srcs) s->refs.fetch_add(1, std::memory_order_relaxed);
  }
  ++n->pins;
  pinned.push_back(n);
  return n;
}

Node Arena::add(uint32_t hash, NodeData* n) {
  if (++live_ > table_.size()) grow();
  NodeData*& chain = table_[hash & (table_.size() - 1)];
  n->next = std::exchange(chain, n);
  return n;
}

void Arena::grow() {
  std::vector<NodeData*> old(table_.size() * 2);
  old.swap(table_);
  for (NodeData* chain : old)
    while (chain) {
      NodeData* n = std::exchange(chain, chain->next);
      NodeData*& to = table_[n->hash & (table_.size() - 1)];
      n->next = std::exchange(to, n);
    }
}

// Whether a node is in the list of held nodes is settled under the lock, by the count as it is
// then: two threads may take the first handle and drop the last one at once.
void Arena::retain(Node n) {
  n->refs.fetch_add(1, std::memory_order_relaxed);
  if (n->handles.fetch_add(1, std::memory_order_acq_rel) != 0) return;
  std::lock_guard lock(mutex_);
  settle_held(n);
}

void Arena::release(Node n) {
  std::unique_lock lock(mutex_, std::defer_lock);
  if (n->handles.fetch_sub(1, std::memory_order_acq_rel) == 1) {
    lock.lock();
    settle_held(n);
  }
  // The last reference goes under the lock, or another thread might free the node before it is
  // listed.
  uint32_t refs = n->refs.load(std::memory_order_relaxed);
  while (refs > 1 && !n->refs.compare_exchange_weak(refs, refs - 1, std::memory_order_acq_rel)) {
  }
  if (refs > 1) return;
  if (!lock) lock.lock();
  drop_ref(n);
}

void Arena::settle_held(Node n) {
  const bool wanted = n->handles.load(std::memory_order_acquire) != 0;
  if (std::exchange(n->held, wanted) == wanted) return;
  if (wanted) {
    n->held_at = static_cast<uint32_t>(held_.size());
    held_.push_back(n);
  } else {
    held_[n->held_at] = held_.back();
    held_[n->held_at]->held_at = n->held_at;
    held_.pop_back();
  }
}

void Arena::drop_ref(Node n) {
  if (n->refs.fetch_sub(1, std::memory_order_acq_rel) == 1) unuse(n);
}

void Arena::watch(Node n) {
  std::lock_guard lock(mutex_);
  n->refs.fetch_add(1, std::memory_order_relaxed);
  ++n->watchers;
}

void Arena::unwatch(Node n) {
  std::lock_guard lock(mutex_);
  --n->watchers;
  drop_ref(n);
}

std::vector<Node> Arena::held() {
  std::lock_guard lock(mutex_);
  return held_;
}

void Arena::set_realized(Node n, Node buffer_view) {
  if (n == buffer_view) return;  // it is its own memory
  std::lock_guard lock(mutex_);
  if (buffer_view) buffer_view->refs.fetch_add(1, std::memory_order_relaxed);
  if (Node old = n->realized.exchange(buffer_view)) drop_ref(old);
}

void Arena::unuse(Node n) {
  if (std::exchange(n->listed, true)) return;
  unused_.push_back(n);
}

void Arena::unlink(NodeData* n) {
  NodeData** at = &table_[n->hash & (table_.size() - 1)];
  while (*at != n) at = &(*at)->next;
  *at = n->next;
  --live_;
}

struct HandleLog::Logs {
  std::mutex mutex;
  std::vector<HandleLog*> all;

  static Logs& get() {
    static Logs& logs = *new Logs;  // outlives tensors of static storage
    return logs;
  }
  static void note(const NodeRef* ref, Node before, Node now, bool same_values = false) {
    Logs& logs = get();
    const std::lock_guard lock(logs.mutex);
    for (HandleLog* log : logs.all) log->note(ref, before, now, same_values);
  }
  static void drop(Node freed) {
    Logs& logs = get();
    const std::lock_guard lock(logs.mutex);
    for (HandleLog* log : logs.all) log->drop(freed);
  }
};

void Arena::collect() {
  std::vector<Node>& pinned = pins().nodes;
  std::vector<Payload> dropped;  // buffers are freed after the walk
  std::lock_guard lock(mutex_);
  unpin(pinned);
  while (!unused_.empty()) {
    auto* n = const_cast<NodeData*>(unused_.back());
    unused_.pop_back();
    n->listed = false;
    if (n->refs.load(std::memory_order_acquire) || n->pins) continue;
    unlink(n);
    if (n->followers) HandleLog::Logs::drop(n);
    for (Node s : n->srcs()) drop_ref(s);
    if (Node view = n->realized) drop_ref(view);
    if (n->op == Op::Buffer) dropped.push_back(std::move(n->payload));
    n->~NodeData();
    ::operator delete(n);
  }
}

HandleLog::HandleLog(const std::vector<Node>& nodes) : nodes_(nodes.begin(), nodes.end()) {
  Logs& logs = Logs::get();
  const std::lock_guard lock(logs.mutex);
  for (Node n : nodes_) ++n->followers;
  logs.all.push_back(this);
}

HandleLog::~HandleLog() {
  Logs& logs = Logs::get();
  const std::lock_guard lock(logs.mutex);
  std::erase(logs.all, this);
  for (const auto* followed : {&nodes_, &others_})
    for (Node n : *followed) --n->followers;
}

void HandleLog::note(const NodeRef* ref, Node before, Node now, bool same_values) {
  const auto is_mine = [&](Node n) { return nodes_.contains(n); };
  auto at = changed_.find(ref);
  if (at == changed_.end()) {
    if (later_.contains(ref) || !is_mine(before)) {
      // One that came later: it counts among those as long as it holds one of the nodes.
      is_mine(now) ? void(later_.insert(ref)) : void(later_.erase(ref));
      return;
    }
    at = changed_.emplace(ref, Change{before, nullptr}).first;
  }
  Change& change = at->second;
  change.now = now;
  if (!same_values) {
    Node below = now;
    while (below && is_for_gradients(below->op)) below = below->src(0);
    change.is_assigned = below && below->op == Op::Assign;
  }
  if (now == change.then && !change.is_freed)
    changed_.erase(at);
  else if (now && others_.insert(now).second)
    ++now->followers;
}

void HandleLog::drop(Node freed) {
  others_.erase(freed);
  if (!nodes_.erase(freed)) return;
  for (auto& [ref, change] : changed_) change.is_freed |= change.then == freed;
}

std::vector<HandleLog::Change> HandleLog::changes() const {
  std::vector<Change> out;
  const std::lock_guard lock(Logs::get().mutex);
  for (const auto& [ref, change] : changed_) out.push_back(change);
  return out;
}

NodeRef::NodeRef(Node n) : node_(n) {
  if (!n) return;
  Arena::global().retain(n);
  if (is_followed(n)) HandleLog::Logs::note(this, nullptr, n);
}

void NodeRef::become(Node n) {
  Arena::global().retain(n);
  if (is_followed(node_) || is_followed(n)) HandleLog::Logs::note(this, node_, n, true);
  if (Node before = std::exchange(node_, n)) Arena::global().release(before);
}

void NodeRef::release() {
  if (is_followed(node_)) HandleLog::Logs::note(this, node_, nullptr);
  Arena::global().release(node_);
}

void NodeRef::log_exchange(const NodeRef& with) noexcept {
  HandleLog::Logs::note(&with, node_, with.node_);
  HandleLog::Logs::note(this, with.node_, node_);
}

Node make(Op op, DType dtype, std::span<const Node> srcs, const Payload& payload) {
  return Arena::current().make(op, dtype, srcs, payload);
}
Node make(Op op, DType dtype, std::span<const Node> srcs) { return make(op, dtype, srcs, {}); }

Node with_sources(Node n, std::span<const Node> srcs) {
  if (std::equal(srcs.begin(), srcs.end(), n->sources, n->sources + n->num_src)) return n;
  LabelScope scope(n->label);
  return make(n->op, n->dtype, srcs, n->payload);
}

namespace {

// `v` with only the bits of the dtype, sign-extended where it is signed.
int64_t wrap(DType t, int64_t v) {
  switch (t.scalar) {
    case Scalar::Bool: return v != 0;
    case Scalar::I8: return static_cast<int8_t>(v);
    case Scalar::I16: return static_cast<int16_t>(v);
    case Scalar::I32: return static_cast<int32_t>(v);
    case Scalar::U8: return static_cast<uint8_t>(v);
    case Scalar::U16: return static_cast<uint16_t>(v);
    case Scalar::U32: return static_cast<uint32_t>(v);
    default: return v;
  }
}

double round_to(DType t, double v) {
  switch (t.scalar) {
    case Scalar::F8E4M3:
    case Scalar::F8E5M2: return f8_to_f32(f32_to_f8(static_cast<float>(v), t.scalar), t.scalar);
    case Scalar::F16: return f16_to_f32(f32_to_f16(static_cast<float>(v)));
    case Scalar::BF16: return bf16_to_f32(f32_to_bf16(static_cast<float>(v)));
    case Scalar::F32: return static_cast<float>(v);
    default: return v;
  }
}

}  // namespace

Node constant(DType t, int64_t v) {
  if (t.is_float()) return constant(t, static_cast<double>(v));
  return make(Op::Const, t, {}, wrap(t, v));
}

Node constant(DType t, double v) {
  if (t.is_float()) return make(Op::Const, t, {}, round_to(t, v));
  if (t.is_bool()) return constant(t, static_cast<int64_t>(v != 0));
  check(std::isfinite(v), "the value ", v, " does not fit ", t);
  if (t.scalar == Scalar::U64 && v >= 9223372036854775808.0)
    return constant(t, static_cast<int64_t>(static_cast<uint64_t>(v)));
  return constant(t, static_cast<int64_t>(v));
}

namespace {
struct DeviceEntry {
  std::string name;
  std::vector<int> members = {};  // of a group
};
struct DeviceNames {
  std::mutex mutex;
  std::map<std::string, int> ids;
  std::deque<DeviceEntry> entries{{}};  // which stay where they are
  std::atomic<bool> has_groups = false;
};
DeviceNames& device_names() {
  static DeviceNames* table = new DeviceNames;
  return *table;
}

int add_device(DeviceNames& table, std::string name, std::vector<int> members = {}) {
  const auto [at, fresh] = table.ids.try_emplace(name, static_cast<int>(table.entries.size()));
  if (fresh) table.entries.push_back({std::move(name), std::move(members)});
  return at->second;
}

// The names between commas, in their short form.
std::vector<std::string> device_list(const std::string& text) {
  std::vector<std::string> out;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    std::string name = text.substr(begin, end - begin);
    if (name.ends_with(":0")) name.resize(name.size() - 2);
    check(!name.empty(), "device: a name is empty in '", text, "'");
    check(!contains(out, name), "device: ", name, " is named twice in '", text, "'");
    out.push_back(std::move(name));
    begin = end + 1;
  }
  return out;
}
}  // namespace

int device_id(const std::string& name) {
  if (name.empty()) return 0;
  DeviceNames& table = device_names();
  std::lock_guard lock(table.mutex);
  if (const auto known = table.ids.find(name); known != table.ids.end()) return known->second;
  std::vector<int> members;
  std::string joined;
  for (const std::string& n : device_list(name)) {
    members.push_back(add_device(table, n));
    joined += (joined.empty() ? "" : ",") + n;
  }
  if (members.size() > 1) table.has_groups = true;
  const int id = members.size() == 1 ? members[0] : add_device(table, joined, members);
  return table.ids[name] = id;
}

bool has_device_groups() { return device_names().has_groups.load(std::memory_order_relaxed); }

std::span<const int> device_members(int id) {
  DeviceNames& table = device_names();
  std::lock_guard lock(table.mutex);
  return table.entries.at(static_cast<size_t>(id)).members;
}

const std::string& device_name(int id) {
  DeviceNames& table = device_names();
  std::lock_guard lock(table.mutex);
  return table.entries.at(static_cast<size_t>(id)).name;
}

std::vector<Node> topological(std::span<const Node> roots) {
  struct Visit {
    Node node;
    bool is_open = false;  // waits for the sources above it on the stack
  };
  std::vector<Node> order;
  std::vector<Visit> stack;
  NodeMap<char> seen;
  for (size_t i = roots.size(); i-- > 0;) stack.push_back({roots[i]});
  while (!stack.empty()) {
    Node n = stack.back().node;
    if (stack.back().is_open) {
      stack.pop_back();
      order.push_back(n);
    } else if (std::exchange(seen[n], 1)) {
      stack.pop_back();
    } else {
      stack.back().is_open = true;
      for (int i = static_cast<int>(n->num_src); i-- > 0;)
        if (!seen.contains(n->src(i))) stack.push_back({n->src(i)});
    }
  }
  return order;
}

NodeMap<int> count_users(std::span<const Node> roots) {
  NodeMap<int> users;
  for (Node n : topological(roots))
    for (Node s : n->srcs()) ++users[s];
  return users;
}

}  // namespace tiny
