#include "runtime/realize/realize.h"

#include <algorithm>
#include <iostream>
#include <map>
#include <set>
#include <utility>

#include "codegen/kernel/facts.h"
#include "codegen/options/mma.h"
#include "runtime/device/trace.h"
#include "runtime/distributed/rank_watch.h"
#include "runtime/fusion/fuse.h"
#include "runtime/kernels/kernel.h"
#include "runtime/launch/capture.h"
#include "runtime/launch/check_nan.h"
#include "runtime/launch/launch.h"
#include "runtime/launch/profile.h"
#include "runtime/partition/shard.h"
#include "runtime/search/program.h"
#include "tiny/base/env.h"
#include "tiny/base/error.h"
#include "tiny/ir/build.h"
#include "tiny/rewrite/rebuild.h"
#include "tiny/tensor/pieces.h"

namespace tiny {

namespace {

using Buffers = std::vector<std::shared_ptr<Buffer>>;

// One run of a schedule: the memory of its values.
class Run {
 public:
  Run(const Schedule& s, std::span<const std::shared_ptr<Buffer>> inputs, Watch watch)
      : s_(s), steps_(s, watch), buffers_(inputs.begin(), inputs.end()) {
    buffers_.resize(s.values.size());
    addresses_.resize(s.values.size());
    for (const auto& [device, bytes] : s.memory.arenas)
      arenas_[device] = Buffer::arena(device_name(device), bytes);
  }

  void step(const Step& step, Kernel* kernel) {
    args_.clear();
    for (size_t k = 0; k < step.values.size(); ++k)
      args_.push_back(step.argument(k, address(step.values[k], step.operations)));
    steps_.run(step, kernel, args_);
  }

  void finish() { steps_.finish(); }

  std::shared_ptr<Buffer> buffer(int v) {
    const Value& value = s_.values[v];
    const int64_t offset = s_.memory.offset[v];
    if (offset < 0) return own_buffer(v, "");
    return std::make_shared<Buffer>(arenas_[value.device], offset, value.dtype, value.size);
  }

 private:
  // Of a value with memory of its own: made when a step first writes it, and labelled with that
  // step.
  const std::shared_ptr<Buffer>& own_buffer(int v, const std::string& label) {
    std::shared_ptr<Buffer>& out = buffers_[v];
    if (out) return out;
    const Value& value = s_.values[v];
    const int old = value.in_place;
    if (old >= s_.inputs && buffers_[old]) {
      out = std::move(buffers_[old]);  // nobody else has it
      out->label = label;
    } else if (old >= 0) {
      out = (s_.memory.offset[old] < 0 ? own_buffer(old, label) : buffer(old))->move_memory();
      addresses_[old] = nullptr;  // who still asks for it is told
    } else {
      out = std::make_shared<Buffer>(device_name(value.device), value.dtype, value.size);
      out->label = label;
    }
    return out;
  }

  // Most values are asked for by several steps, and what finds one takes as long as the rest of a
  // step on the host.
  void* address(int v, const std::string& label) {
    void*& known = addresses_[v];
    if (known) return known;
    const int64_t offset = s_.memory.offset[v];
    if (offset < 0) return known = own_buffer(v, label)->data();
    return known = static_cast<std::byte*>(arenas_[s_.values[v].device]->data()) + offset;
  }

  const Schedule& s_;
  Steps steps_;
  Buffers buffers_;               // of values with memory of their own
  std::vector<void*> addresses_;  // null where it is not known yet
  std::vector<void*> args_;
  std::map<int, std::shared_ptr<Buffer>> arenas_;
};

template <class Work> double seconds_of(const Step& step, const Work& work) {
  Device& device = find_device(device_name(step.device));
  device.synchronize();
  const double start = steady_seconds();
  work();
  device.synchronize();
  return steady_seconds() - start;
}

}  // namespace

std::recursive_mutex& runtime_mutex() {
  static auto* mutex = new std::recursive_mutex;
  return *mutex;
}

Buffers run(const Schedule& s, std::span<const std::shared_ptr<Buffer>> inputs) {
  const int64_t debug = env_int("DEBUG");
  if (debug >= 1 && !s.steps.empty())
    std::cerr << cat("running ", s.steps.size(), " kernels, ", to_text(s.memory), "\n");
  agree_on_plan(s);
  const std::vector<Kernel*> kernels = compile_kernels(s);
  Run run(s, inputs, watch_now());
  std::vector<double> seconds;  // of each step, where they are searched
  const bool searched = wants_search(s);
  for (size_t i = 0; i < s.steps.size(); ++i) {
    const auto work = [&] { run.step(s.steps[i], kernels[i]); };
    if (searched)
      seconds.push_back(seconds_of(s.steps[i], work));
    else
      work();
  }
  run.finish();
  time_clocked_kernels();
  if (searched) search_schedule(s, seconds);
  Buffers out;
  for (const Result& r : s.results) out.push_back(r.value >= 0 ? run.buffer(r.value) : nullptr);
  return out;
}

namespace {

std::shared_ptr<Buffer> buffer_of(Node n) { return n->arg<BufferArg>().buffer; }

// The Buffer, Multi or computation that a view is of.
Node memory_below(Node n) {
  for (Node next; (next = base_of(resolved(n))) != n;) n = next;
  return n;
}

// Buffers that an Assign among the roots is going to overwrite: also those below a Shard, whose
// part for the buffer's own device is no copy.
std::set<Node> assigned_buffers(std::span<const Node> roots) {
  std::set<Node> out;
  for (Node n : topological(roots)) {
    if (n->op != Op::Assign || n->realized) continue;
    Node old = memory_below(n->src(0));
    while (old->op == Op::Shard) old = memory_below(old->src(0));
    if (old->op == Op::Buffer) out.insert(old);
    if (old->op != Op::Multi) continue;
    for (Node piece : old->srcs()) out.insert(memory_below(piece));
  }
  return out;
}

// Whether a value that has not been computed yet needs one of the buffers.
class Dependence {
 public:
  explicit Dependence(const std::set<Node>& buffers) : buffers_(buffers) {}

  bool operator()(Node root) {
    std::vector<Node> stack{root};
    while (!stack.empty()) {
      Node n = stack.back();
      if (known_.contains(n)) {
        stack.pop_back();
        continue;
      }
      const size_t before = stack.size();
      bool found = n->op == Op::Buffer && buffers_.count(n);
      for (Node s : sources(n)) {
        if (const char* k = known_.find(s))
          found |= *k != 0;
        else
          stack.push_back(s);
      }
      if (stack.size() != before) continue;
      stack.pop_back();
      known_[n] = found;
    }
    return *known_.find(root) != 0;
  }

 private:
  static std::vector<Node> sources(Node n) {
    if (n->device == 0) return {};                          // below it there is no memory
    if (Node read = resolved(n); read != n) return {read};  // not where its memory has moved
    return {n->srcs().begin(), n->srcs().end()};
  }

  const std::set<Node>& buffers_;
  NodeMap<char> known_;
};

// Other expressions that still need an old value: they are computed together with the roots, so
// that they see it. Among these may be assignments, which have old values of their own. Where there
// are views of the old value itself, its memory stays theirs and the new value gets other memory:
// another thread may be about to use what it has found below such a view.
std::vector<Node> readers_of_old_values(std::span<const Node> roots) {
  std::vector<Node> work(roots.begin(), roots.end());
  std::set<Node> buffers = assigned_buffers(work);
  NodeMap<char> is_work;
  for (Node n : work) is_work[n] = 1;
  for (size_t before = 0; buffers.size() != before;) {
    Dependence depends(buffers);
    for (Node n : Arena::global().held())
      if (!is_work.contains(n) && depends(n)) {
        work.push_back(n);
        is_work[n] = 1;
      }
    before = buffers.size();
    buffers = assigned_buffers(work);
  }
  return {work.begin() + static_cast<ptrdiff_t>(roots.size()), work.end()};
}

// Whether a value is computed from constants alone. Equal ones of several threads are one node, and
// each of their tensors gets memory of its own, which it may assign to whatever the others do.
bool is_for_all(Node root) {
  bool found = false;  // memory, or what may become it
  visit_below({root}, [&](Node n) {
    found |= n->op == Op::Buffer || n->op == Op::Leaf;
    return !found;
  });
  return !found;
}

// A constant of a normalized graph, whose lengths are numbers of its slots.
Node without_lengths(Node constant) {
  if (!constant->lengths) return constant;
  return rebuild(constant, [](Node, Node now) { return now->op == Op::Limit ? now->src(0) : now; });
}

// `wanted`: how many of the roots are more than old values that somebody still needs.
std::vector<Node> realize_nodes(const std::vector<Node>& given, size_t wanted, int fallback) {
  const Unsharded flat = unshard(given);
  const std::vector<Node>& roots = flat.pieces;
  const size_t pieces = wanted < given.size() ? flat.roots[wanted].begin : roots.size();
  const Normalized graph = normalize(roots);
  std::vector<int> devices;
  Buffers inputs;
  for (Node b : graph.buffers) {
    devices.push_back(b->device);
    inputs.push_back(buffer_of(b));
    inputs.back()->data();  // Error for one that was overwritten, before anything has run
  }
  const auto s = schedule(graph, devices, fallback);
  Capture* capture = Capture::current();
  if (capture) capture->check_run(*s, inputs);
  const Buffers made = run(*s, inputs);
  if (capture) capture->add_run(given, {s, inputs, made, pieces});
  std::vector<Node> out;
  for (size_t i = 0; i < roots.size(); ++i) {
    const Result& r = s->results[i];
    Node base = r.base(), onto = nullptr;
    if (made[i])
      onto = build::reshape(buffer_node(made[i]), base->shape());
    else if (base->op == Op::Param)
      onto = graph.buffers[slot_of(base)];
    Node view = onto ? moved(r.root(), base, onto) : without_lengths(graph.roots[i]);
    out.push_back(build::with_lengths(view, roots[i]));
  }
  return regroup(flat, out);
}

// A buffer node of these values.
Node uploaded(const Pieces& pieces, DType dtype, int64_t count, const std::string& device) {
  forbid_in_capture("data from the host would be the same in every replay",
                    "make the tensor outside, and give it to the Jit if it changes");
  auto b = std::make_shared<Buffer>(device.empty() ? runtime_seam::default_device() : device, dtype,
                                    count);
  b->label = "upload";
  for (int64_t begin = 0; begin < count; begin += kPieceElements) {
    const int64_t size = std::min(kPieceElements, count - begin);
    Buffer piece(b, static_cast<size_t>(begin) * dtype.size(), dtype, size);
    piece.upload(pieces(begin, size));
  }
  return buffer_node(b);
}

// "": the default device; of a group the first member's.
const Target& target_of(const std::string& device) {
  const std::string name = device.empty() ? runtime_seam::default_device() : device;
  const auto members = device_members(device_id(name));
  return find_device(members.empty() ? name : device_name(members[0])).target();
}

// What somebody had before a capture, and is made of values that the step replaces, is no part of
// the step: what else it is made of may be gone when that is replayed. Not of views, whose memory
// stays theirs.
void realize_readers_before(std::span<const Node> roots) {
  const Capture* capture = Capture::current();
  if (!capture) return;
  std::vector<Node> readers = readers_of_old_values(roots);
  std::erase_if(readers, [&](Node n) {
    const Op below = memory_below(n)->op;
    return capture->is_new(n) || below == Op::Buffer || below == Op::Multi;
  });
  if (readers.empty()) return;
  const CapturePause pause;
  const std::vector<Node> done =
      realize_nodes(readers, readers.size(), device_id(runtime_seam::default_device()));
  for (size_t i = 0; i < readers.size(); ++i) Arena::global().set_realized(readers[i], done[i]);
}

}  // namespace

namespace runtime_seam {

void realize(std::span<Tensor* const> tensors) {
  const std::lock_guard lock(runtime_mutex());
  begin_profile_of_environment();
  const HostSpan span("realize");
  Arena::global().collect();
  std::vector<Node> roots;
  for (Tensor* t : tensors) roots.push_back(t->node());
  realize_readers_before(roots);
  std::vector<Node> work = roots;
  const std::vector<Node> others = readers_of_old_values(roots);
  work.insert(work.end(), others.begin(), others.end());
  const std::vector<Node> done = realize_nodes(work, roots.size(), device_id(default_device()));
  for (size_t i = 0; i < others.size(); ++i)
    Arena::global().set_realized(others[i], done[roots.size() + i]);
  for (size_t i = 0; i < tensors.size(); ++i) {
    Node n = roots[i], view = done[i];
    if (n->op == Op::Leaf)
      replace_node(*tensors[i], make(Op::Leaf, n->dtype, std::span(&view, 1), n->payload));
    else if (!n->needs_grad)  // backward() still needs the rest
      replace_node(*tensors[i], view);
  }
  // Copies of the tensors: an assignment cannot be computed a second time, its memory has changed.
  // A view of memory needs no such note: with one, replays take the memory for used elsewhere.
  for (size_t i = 0; i < tensors.size(); ++i) {
    Node n = roots[i], view = done[i];
    if (n == view || n->handles == 0 || is_for_all(n)) continue;
    if (memory_below(n) != memory_below(view)) Arena::global().set_realized(n, view);
  }
  throw_found_nan();
}

// Unreferenced memory is freed first, since loading a model is many uploads without a realize()
// between them; its blocks are of all sizes, so that few would be used again.
Node upload_pieces(const Pieces& pieces, DType dtype, int64_t count, const std::string& device) {
  constexpr int64_t kLargeBytes = int64_t{16} << 20;
  {
    const std::lock_guard lock(runtime_mutex());
    Arena::global().collect();
    if (count * dtype.size() >= kLargeBytes) free_kept_memory();
  }
  return uploaded(pieces, dtype, count, device);
}

Node upload(const void* data, DType dtype, int64_t count, const std::string& device) {
  const auto* bytes = static_cast<const std::byte*>(data);
  return uploaded([&](int64_t begin, int64_t) { return bytes + begin * dtype.size(); }, dtype,
                  count, device);
}

void download(Node realized, void* out) {
  const std::lock_guard lock(runtime_mutex());
  forbid_in_capture(
      "a value that is read on the host (item(), to_vector(), an index with a mask) "
      "would be the same in every replay",
      "return the tensor and read it afterwards");
  Node n = realized;
  const auto members = device_members(n->device);
  if (!members.empty()) {  // of a rank's device: all processes want it
    const bool is_ranks = find_device(device_name(members[0])).rank >= 0;
    n = realized = build::copy_to(n, is_ranks ? device_id(default_device()) : members[0]);
  }
  while (n->op == Op::Reshape || is_for_gradients(n->op))
    n = n->realized ? n->realized.load() : n->src(0);
  if (n->op != Op::Buffer || n->arg<BufferArg>().size != numel(realized->shape())) {
    // Views other than reshapes, and constants, are written out first.
    n = base_of(realize_nodes({build::contiguous(realized)}, 1, device_id(default_device()))[0]);
  }
  const auto b = buffer_of(n);
  b->device().synchronize();
  throw_failed_sum();
  b->download(out);
  throw_found_nan();
}

int shard_axis(Node n) {
  const std::lock_guard lock(runtime_mutex());
  return unshard({&n, 1}).roots[0].axis;
}

std::string default_device() {
  const std::string name = env_text("DEVICE");
  return canonical_device(name.empty() ? fastest_device() : name);
}

bool is_gpu(const std::string& device) { return target_of(device).kind == Target::Kind::Gpu; }

bool has_tiles_of_halves(const std::string& device) {
  const MmaUnit* unit = tile_unit(target_of(device), kBF16, kBF16);
  return unit && unit->rows > 1;
}

std::weak_ptr<const void> memory_of(Node n) {
  const std::lock_guard lock(runtime_mutex());
  while (n->op != Op::Buffer) {
    const bool is_same =
        is_movement(n->op) || is_for_gradients(n->op) || n->op == Op::Assign || n->op == Op::Multi;
    if (!n->realized && !is_same) return {};
    n = n->realized ? n->realized.load() : n->src(0);
  }
  const std::shared_ptr<Buffer>& buffer = n->arg<BufferArg>().buffer;
  if (buffer->is_part()) return buffer;
  return buffer->memory();
}

}  // namespace runtime_seam

Live live() {
  const std::lock_guard lock(runtime_mutex());
  Arena::global().collect();
  const MemoryUse use = memory_use();
  return {Arena::global().size(), use.buffers, use.bytes};
}

}  // namespace tiny
