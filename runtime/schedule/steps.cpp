#include "runtime/schedule/passes.h"

#include <algorithm>

#include "codegen/kernel/facts.h"
#include "runtime/analysis/after.h"
#include "runtime/distributed/collective.h"
#include "tiny/base/error.h"
#include "tiny/base/text.h"
#include "tiny/ir/build.h"
#include "tiny/ir/print.h"
#include "tiny/rewrite/rebuild.h"

namespace tiny {

namespace {

// The labels of the nodes that a kernel holds, in order of execution.
std::vector<std::string> labels_of(const std::vector<Node>& nodes) {
  std::vector<std::string> labels;
  for (Node n : nodes) {
    if (is_movement(n->op) || n->op == Op::Param || n->is_const()) continue;
    const std::string label = operation_of(n);
    if (std::find(labels.begin(), labels.end(), label) == labels.end()) labels.push_back(label);
  }
  return labels;
}

std::string listed(const std::vector<std::string>& labels) {
  std::string out;
  for (const std::string& l : labels) out += (out.empty() ? "" : ", ") + l;
  return out;
}

// A C identifier from the labels, as far as they fit, and the shape of the first output.
std::string kernel_name(const std::vector<std::string>& labels, Ints shape) {
  std::string name = "k";
  for (std::string l : labels) {
    std::replace_if(
        l.begin(), l.end(), [](char c) { return !is_letter(c) && !is_digit(c); }, '_');
    if (name.size() + l.size() < 56) name += '_' + l;
  }
  for (size_t i = 0; i < shape.size(); ++i) name += (i ? "x" : "_") + std::to_string(shape[i]);
  return name;
}

void name(Step& step, const std::vector<std::string>& labels, Ints shape) {
  step.operations = listed(labels);
  step.name = kernel_name(labels, shape);
}

// The argument that a value is to a kernel.
Node param(const Schedule& schedule, Step& step, int value, DType dtype, Ints shape) {
  // What is written over an input has that input's slot.
  const int place = schedule.values[value].in_place;
  int slot = -1;
  for (size_t i = 0; i < step.values.size(); ++i) {
    const int v = step.values[i];
    const bool same_memory =
        v == value || (place >= 0 && v == place) ||
        (schedule.values[v].in_place >= 0 && schedule.values[v].in_place == value);
    if (!same_memory) continue;
    slot = static_cast<int>(i);
    if (place == v) step.values[i] = value;  // the slot is known by what is written to it
  }
  if (slot < 0) {
    slot = static_cast<int>(step.values.size());
    step.values.push_back(value);
  }
  Shape arg{slot};
  arg.insert(arg.end(), shape.begin(), shape.end());
  return make(Op::Param, dtype, {}, Ints(arg));
}

Node with_base(Node scatter, const NodeMap<Node>& done, Node to) {
  std::vector<Node> srcs{to};
  for (Node s : scatter->srcs().subspan(1)) srcs.push_back(*done.find(s));
  return with_sources(scatter, srcs);
}

// Where in memory a part of a value begins, in elements; -1 where it does not lie in one piece.
int64_t begin_of(Node shrink) {
  const Ints shape = shrink->src(0)->shape(), range = shrink->ints();
  int64_t begin = 0, stride = 1;
  bool is_whole = true;  // the axes so far
  for (size_t i = shape.size(); i-- > 0; stride *= shape[i]) {
    const int64_t length = range[2 * i + 1] - range[2 * i];
    if (!is_whole && length != 1) return -1;
    is_whole &= length == shape[i];
    begin += range[2 * i] * stride;
  }
  return begin;
}

// Whether a kernel may get an address so many bytes into a value's memory: vectors and bulk copies
// need aligned ones, and WebGPU has no others.
bool is_argument_offset(int64_t bytes, int64_t elements, int device) {
  if (bytes < 0) return false;
  if (bytes % kBlockAlignment == 0) return true;
  return elements == 1 &&
         find_device(device_name(device)).target().language != Target::Language::Wgsl;
}

// The argument of a kernel that a node takes a part of at which it may begin; nullptr for others.
Node argument_of_part(Node n, int device) {
  if (n->op != Op::Shrink) return nullptr;
  Node x = n->src(0);
  while (x->op == Op::Reshape) x = x->src(0);
  const int64_t bytes = begin_of(n) * n->dtype.size();
  return x->op == Op::Param && is_argument_offset(bytes, numel(n->shape()), device) ? x : nullptr;
}

// Whether a kernel's node made from one of these is such a part.
bool has_parts(const std::vector<Node>& nodes, const NodeMap<Node>& made, int device) {
  return std::ranges::any_of(nodes, [&](Node n) {
    return n->op == Op::Shrink && argument_of_part(*made.find(n), device);
  });
}

// An argument of which the kernel reads one part in one piece, and nothing else, begins there:
// kernels that differ only in where that is are the same node.
void begin_at_parts(Step& step) {
  const std::vector<Node> nodes = topological(step.kernel.get());
  NodeMap<Node> readers, done;                  // nullptr: several
  std::vector<int> shapes(step.values.size());  // of each slot's arguments
  for (Node n : nodes) {
    if (n->op == Op::Param) ++shapes[slot_of(n)];
    for (Node s : n->srcs()) readers[s] = readers.contains(s) ? nullptr : n;
  }
  for (Node n : nodes) {
    Node x = argument_of_part(n, step.device), top = x;
    if (!x || shapes[slot_of(x)] != 1) continue;
    while (top && top != n) top = readers[top];
    if (!top) continue;
    Shape arg{slot_of(x)};
    arg.insert(arg.end(), n->shape().begin(), n->shape().end());
    done[n] = make(Op::Param, n->dtype, {}, Ints(arg));
    step.offsets.resize(step.values.size());
    step.offsets[slot_of(x)] = begin_of(n) * n->dtype.size();
  }
  if (step.offsets.empty()) return;
  for (Node n : nodes) {
    if (!done.contains(n)) done[n] = on_new_sources(n, done);
  }
  step.kernel = NodeRef(*done.find(step.kernel.get()));
}

// A value of the schedule, and whether it is made of constants alone.
struct Made {
  int value = -1;
  bool is_constant = false;
};

class Steps {
 public:
  Steps(Schedule& out, std::span<const Node> roots, const OrderedGroups& ordered,
        const NodeMap<Node>& needed, int fallback)
      : out_(out), roots_(roots), ordered_(ordered), needed_(needed), fallback_(fallback) {}

  void run() {
    for (size_t t = 0; t < ordered_.groups.size(); ++t) {
      std::vector<Node> deaths = ordered_.deaths[t];
      plan(ordered_.groups[t], deaths);
    }
    for (Node r : roots_) add_result(r);
  }

 private:
  void plan(const Group& g, std::vector<Node>& deaths) {
    const int device = device_of(g);
    const bool is_constant = bring_constants(g, device);
    GroupReads reads(g);
    for (Node n : g.outputs) {
      const int place = place_for(g, n, deaths, reads);
      const bool again = made_.contains(n);
      made_[n] = {static_cast<int>(out_.values.size()), is_constant};
      const int* replaces = ordered_.replaces.find(n);
      out_.values.push_back(
          {n->dtype, numel(n->shape()), device, place, again, replaces ? *replaces : -1});
    }
    if (out_.values.back().size == 0) return;
    Node first = g.outputs[0];
    if (is_sum_by_kernel(first)) return add_sum(g, first, device);
    if (first->op == Op::Copy) return add_copy(first);
    if (first->op == Op::Scatter && !ordered_.in_place.contains(first))
      add_kernel(g, {first}, first->src(0), device);
    add_kernel(g, g.outputs, nullptr, device);
  }

  // The value whose memory an output may take over: it dies here, and each element is read only
  // where it is replaced. Outputs of several shapes are written in loops one after the other.
  int place_for(const Group& g, Node out, std::vector<Node>& deaths, GroupReads& reads) {
    if (const int* place = ordered_.in_place.find(out)) return *place;
    if (out->op == Op::Scatter || out->op == Op::Copy || out->op == Op::Assign) return -1;
    for (Node n : g.outputs)
      if (!same(n->shape(), out->shape())) return -1;
    for (size_t i = 0; i < deaths.size(); ++i) {
      Node n = deaths[i];
      if (n->dtype != out->dtype || !same(n->shape(), out->shape())) continue;
      if (std::find(g.elsewhere.begin(), g.elsewhere.end(), n) != g.elsewhere.end()) continue;
      if (reads.is_read_later(out, n)) continue;
      deaths.erase(deaths.begin() + static_cast<std::ptrdiff_t>(i));
      return value_of(n);
    }
    return -1;
  }

  int value_of(Node n) const {
    if (n->op == Op::Param) return static_cast<int>(n->ints()[0]);
    return made_.find(n)->value;
  }

  int device_of(const Group& g) const {
    if (g.outputs[0]->op == Op::Copy) return g.outputs[0]->device;
    int device = 0;
    for (Node n : g.inputs) {
      if (is_constant(n)) continue;
      const int of = out_.values[value_of(n)].device;
      expect(!device || of == device, "schedule: a kernel reads from ", device_name(device),
             " and from ", device_name(of));
      device = of;
    }
    if (device) return device;
    if (g.outputs[0]->device) return g.outputs[0]->device;  // made of a device's own positions
    // Constants that are assigned to what is there.
    for (Node n : g.outputs)
      if (n->op == Op::Assign && base_of(n->src(0))->op == Op::Param)
        return out_.values[value_of(base_of(n->src(0)))].device;
    // Made of constants alone: a step of the work on one device, or a result of its own.
    if (!g.inputs.empty()) return out_.values[value_of(g.inputs[0])].device;
    const bool is_result = std::any_of(g.outputs.begin(), g.outputs.end(), [&](Node n) {
      return std::find(roots_.begin(), roots_.end(), n) != roots_.end();
    });
    return is_result ? fallback_ : inner_device();
  }

  bool is_constant(Node n) const {
    const Made* made = made_.find(n);
    return made && made->is_constant;
  }

  // Values made of constants alone are computed on one device; the others that read them get
  // copies. Whether the group's own values are such ones.
  bool bring_constants(const Group& g, int device) {
    const Node first = g.outputs[0];
    bool all = first->device == 0 && first->op != Op::Assign;
    for (Node n : g.inputs) {
      all &= is_constant(n);
      if (first->op == Op::Copy || !is_constant(n) || out_.values[value_of(n)].device == device)
        continue;
      const int from = value_of(n), to = static_cast<int>(out_.values.size());
      out_.values.push_back({n->dtype, numel(n->shape()), device, -1});
      out_.steps.push_back({NodeRef(), {to, from}, "copy", device, "to"});
      made_[n].value = to;
    }
    return all;
  }

  // Of values that have no device and stay inside: that of the inputs where it is one.
  int inner_device() const {
    for (int i = 0; i < out_.inputs; ++i)
      if (out_.values[i].device != out_.values[0].device) return fallback_;
    return out_.inputs ? out_.values[0].device : fallback_;
  }

  // A kernel with its own numbering of slots, so that two kernels that differ only in what they
  // work on are the same node. With `instead` the one output gets that value.
  void add_kernel(const Group& g, const std::vector<Node>& outputs, Node instead, int device) {
    Step step;
    step.device = device;
    NodeMap<Node> done;
    std::vector<Node> stores, nodes;
    for (Node n : outputs) {
      Node to = param(out_, step, value_of(n), n->dtype, n->shape());
      Node value = instead ? instead : n;
      rebuild(value, g, step, done, nodes);
      Node what = instead || n->op != Op::Scatter ? *done.find(value) : with_base(n, done, to);
      Node needed = needed_elements(n, step);
      stores.push_back(needed ? make(Op::Store, kVoid, {to, what, needed})
                              : make(Op::Store, kVoid, {to, what}));
    }
    step.kernel = NodeRef(make(Op::Sink, kVoid, stores));
    if (has_parts(nodes, done, device)) begin_at_parts(step);
    name(step, labels_of(nodes), outputs[0]->shape());
    out_.steps.push_back(std::move(step));
  }

  void add_copy(Node out) {
    const bool sum = out->num_src > 1, gathers = is_gather(out);
    const char* const what = gathers ? "gather" : sum ? "sum" : "copy";
    Step step{NodeRef(), {value_of(out)}, what, out->device, *out->label ? out->label : "to"};
    for (Node s : out->srcs()) step.values.push_back(value_of(behind(base_of(s))));
    if (sum) step.sum_by = sum_by(out);
    step.gathers = gathers;
    out_.steps.push_back(std::move(step));
  }

  // A kernel on one device that adds up what others have in memory, or parts of it.
  void add_sum(const Group& g, Node out, int device) {
    const LabelScope label(out->label);
    Step step;
    step.device = device;
    step.reads_peers = true;
    NodeMap<Node> done;
    std::vector<Node> nodes{out};
    Node to = param(out_, step, value_of(out), out->dtype, out->shape()), sum = nullptr;
    for (Node s : out->srcs()) {
      rebuild(s, g, step, done, nodes);
      sum = sum ? build::binary(Op::Add, sum, *done.find(s)) : *done.find(s);
    }
    step.kernel = NodeRef(make(Op::Sink, kVoid, {make(Op::Store, kVoid, {to, sum})}));
    name(step, {out->label}, out->shape());
    out_.steps.push_back(std::move(step));
  }

  // The mask of an output that is not needed as a whole, in terms of the kernel's arguments.
  Node needed_elements(Node n, Step& step) {
    const Node* mask = needed_.find(n);
    if (!mask || n->op == Op::Scatter) return nullptr;
    Group g;
    for (Node s : topological(*mask))
      if (s->op == Op::Param) g.inputs.push_back(s);
    NodeMap<Node> done;
    std::vector<Node> nodes;
    rebuild(*mask, g, step, done, nodes);
    return *done.find(*mask);
  }

  void rebuild(Node root, const Group& g, Step& step, NodeMap<Node>& done,
               std::vector<Node>& nodes) {
    std::vector<Node> stack{root};
    while (!stack.empty()) {
      Node n = stack.back();
      if (done.contains(n)) {
        stack.pop_back();
        continue;
      }
      const bool outside =
          n->op == Op::After || std::find(g.inputs.begin(), g.inputs.end(), n) != g.inputs.end();
      if (outside) {
        stack.pop_back();
        done[n] = param(out_, step, value_of(behind(n)), n->dtype, n->shape());
        continue;
      }
      // Old values of an Assign and the base of a Scatter are places, not values.
      const size_t first = n->op == Op::Assign || (n->op == Op::Scatter && n == root) ? 1 : 0;
      const size_t before = stack.size();
      for (Node s : n->srcs().subspan(first))
        if (!done.contains(s)) stack.push_back(s);
      if (stack.size() != before) continue;
      stack.pop_back();
      nodes.push_back(n);
      if (n->op == Op::Iota) done[n] = build::iota(n->ints()[0], n->dtype);
      if (n->op == Op::Scatter || n->op == Op::Iota) continue;
      std::vector<Node> srcs;
      for (Node s : n->srcs().subspan(first)) srcs.push_back(*done.find(s));
      done[n] = n->op == Op::Assign ? srcs[0] : with_sources(n, srcs);
    }
  }

  void add_result(Node root) {
    Result r;
    r.set_root(root);
    if (const Made* made = made_.find(r.base())) r.value = made->value;
    out_.results.push_back(std::move(r));
  }

  Schedule& out_;
  const std::span<const Node> roots_;
  const OrderedGroups& ordered_;
  const NodeMap<Node>& needed_;
  const int fallback_;
  NodeMap<Made> made_;
};

}  // namespace

void add_steps(Schedule& out, std::span<const Node> roots, const OrderedGroups& ordered,
               const NodeMap<Node>& needed, int fallback) {
  Steps(out, roots, ordered, needed, fallback).run();
}

}  // namespace tiny
