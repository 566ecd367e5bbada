// Saving what a function computes: its graph is scheduled for the device, each kernel compiled for
// it, and the places of all values written down.
#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <set>

#include "codegen/lower.h"
#include "runtime/device/buffer.h"
#include "runtime/device/disk_cache.h"
#include "runtime/fusion/fuse.h"
#include "runtime/kernels/proof.h"
#include "runtime/launch/launch.h"
#include "runtime/program/folder.h"
#include "runtime/program/plan.h"
#include "runtime/realize/realize.h"
#include "runtime/schedule/schedule.h"
#include "tiny/base/parallel.h"
#include "tiny/base/text.h"
#include "tiny/ir/build.h"
#include "tiny/train/safetensors.h"

namespace tiny {

namespace {

const char* language_name(Target::Language language) {
  switch (language) {
    case Target::Language::LlvmIr: return "llvm";
    case Target::Language::C: return "c";
    case Target::Language::Cuda: return "cuda";
    case Target::Language::Hip: return "hip";
    case Target::Language::Wgsl: return "wgsl";
  }
  throw Bug("a language without a name");
}

using Buffers = std::vector<std::shared_ptr<Buffer>>;

struct Given {
  const Traced& traced;
  const ProgramOptions& options;
  const std::string& folder;
};

struct Weights {
  std::vector<std::pair<std::string, std::shared_ptr<Buffer>>> all;
  std::map<std::string, Shape> shapes;  // of those that have names
};

struct Places {             // of values
  std::vector<int> buffer;  // that have memory of their own, -1: none yet
  std::vector<bool> once;   // made of weights alone, before the first run
  int arena = -1;
};

class Saver {
 public:
  explicit Saver(const Given& given) : given_(given) {}

  void save();

 private:
  void compute_constants();
  std::vector<Node> roots() const;
  void add_ports();
  void add_buffers(const Normalized& graph);
  int add_buffer(PlanBuffer buffer);
  int input_of(const Buffer* buffer) const;
  PlanLength length_of(Node n) const;
  PlanStep::Part part_of(int value);
  void find_once();
  void add_steps();
  void add_copies();
  void add_kernels();
  void write_weights() const;
  int root_of(int value) const;

  const Given given_;
  Plan plan_;
  std::vector<Tensor> constants_;  // which keep what was computed
  Buffers inputs_;                 // that stand for the arguments
  std::shared_ptr<const Schedule> schedule_;
  Weights weights_;
  Places places_;
  std::vector<const Step*> compiled_;  // a step of each kernel
};

std::shared_ptr<Buffer> buffer_below(Node n) {
  while (n->op != Op::Buffer) n = n->realized ? n->realized.load() : n->src(0);
  return n->arg<BufferArg>().buffer;
}

std::string port_name(const std::vector<std::string>& names, size_t i, const char* standard) {
  return i < names.size() ? names[i] : cat(standard, '_', i);
}

void require_names(const ProgramOptions& options, size_t inputs, size_t outputs) {
  check(options.inputs.size() <= inputs && options.outputs.size() <= outputs,
        "save_program: ", options.inputs.size(), " names for ", inputs, " inputs, ",
        options.outputs.size(), " for ", outputs, " outputs");
  for (const auto* list : {&options.inputs, &options.outputs}) {
    std::set<std::string> all;
    for (const std::string& name : *list)
      check(!name.empty() && all.insert(name).second, "save_program: the name \"", name,
            "\" is empty or there twice");
  }
}

// --- What is computed ----------------------------------------------------------------------------

void Saver::compute_constants() {
  std::vector<Tensor> values;
  for (Node n : constants_of(given_.traced, /*small=*/true)) constants_.emplace_back(n);
  values = constants_;
  std::vector<Tensor*> pointers;
  for (Tensor& t : values) pointers.push_back(&t);
  Tensor::realize(pointers);
}

// Outputs in memory of their own, in order; and what is assigned.
std::vector<Node> Saver::roots() const {
  std::vector<Node> out;
  for (const Tensor& t : given_.traced.outputs) {
    Node n = t.node();
    while (n->op == Op::Limit) n = n->src(0);
    out.push_back(build::contiguous(n));
  }
  for (const Tensor& t : given_.traced.assigned) out.push_back(t.node());
  return out;
}

void Saver::add_ports() {
  require_names(given_.options, given_.traced.inputs.size(), given_.traced.outputs.size());
  for (size_t i = 0; i < given_.traced.inputs.size(); ++i) {
    const Tensor& t = given_.traced.inputs[i];
    ProgramPort port{port_name(given_.options.inputs, i, "input"), t.dtype(), to_shape(t.shape())};
    if (t.node()->op == Op::Bound) port.bounds = to_shape(t.node()->ints());
    plan_.inputs.push_back(std::move(port));
    inputs_.push_back(buffer_below(t.node()));
  }
  for (size_t i = 0; i < given_.traced.outputs.size(); ++i) {
    const Tensor& t = given_.traced.outputs[i];
    PlanOutput out{
        {port_name(given_.options.outputs, i, "output"), t.dtype(), to_shape(t.capacity())}};
    for (int axis = 0; t.node()->lengths && axis < t.node()->rank; ++axis)
      if (Node length = t.node()->length(axis)) out.lengths.emplace_back(axis, length_of(length));
    plan_.outputs.push_back(std::move(out));
  }
}

PlanLength Saver::length_of(Node n) const {
  if (n->is_const()) return {"number", n->int_value()};
  if (n->op == Op::Buffer) {
    const int input = input_of(n->arg<BufferArg>().buffer.get());
    check(input >= 0, "save_program: the length of an output is a Variable that is no argument");
    return {"input", 0, input};
  }
  PlanLength out{cat(n->op)};
  if (n->num_src == 1) return length_of(n->src(0));  // a view, a bound
  for (Node s : n->srcs()) out.of.push_back(length_of(s));
  return out;
}

int Saver::input_of(const Buffer* buffer) const {
  for (size_t i = 0; i < inputs_.size(); ++i)
    if (inputs_[i].get() == buffer) return static_cast<int>(i);
  return -1;
}

// --- Where values lie ----------------------------------------------------------------------------

int Saver::add_buffer(PlanBuffer buffer) {
  buffer.bytes = (buffer.bytes + 3) / 4 * 4;
  plan_.buffers.push_back(std::move(buffer));
  return static_cast<int>(plan_.buffers.size()) - 1;
}

int Saver::root_of(int value) const {
  while (schedule_->values[value].in_place >= 0) value = schedule_->values[value].in_place;
  return value;
}

std::string bytes_of(Buffer& buffer) {
  std::string bytes(buffer.bytes(), 0);
  buffer.device().synchronize();
  buffer.download(bytes.data());
  return bytes;
}

bool is_zero(Buffer& buffer) {
  const std::string bytes = bytes_of(buffer);
  return bytes.find_first_not_of('\0') == bytes.npos;
}

void Saver::add_buffers(const Normalized& graph) {
  using Kind = PlanBuffer::Kind;
  std::map<const Buffer*, std::string> names;
  for (const NamedTensor& t : given_.options.weights) {
    const std::shared_ptr<Buffer> b = whole_buffer(t.tensor->node());
    if (!b || !names.emplace(b.get(), t.name).second) continue;
    weights_.shapes[t.name] = to_shape(t.tensor->shape());
  }
  places_.buffer.assign(schedule_->values.size(), -1);
  for (const auto& [device, bytes] : schedule_->memory.arenas)
    if (bytes > 0) places_.arena = add_buffer({Kind::Arena, -1, "", bytes});
  for (size_t i = 0; i < graph.buffers.size(); ++i) {
    const std::shared_ptr<Buffer>& b = graph.buffers[i]->arg<BufferArg>().buffer;
    const auto bytes = static_cast<int64_t>(b->bytes());
    if (const int input = input_of(b.get()); input >= 0) {
      places_.buffer[i] = add_buffer({Kind::Input, input, "", bytes});
      continue;
    }
    const auto known = names.find(b.get());
    if (known == names.end() && is_zero(*b)) {
      places_.buffer[i] = add_buffer({Kind::Zero, -1, "", bytes});
      continue;
    }
    const std::string name =
        known != names.end() ? known->second : cat("weight_", weights_.all.size());
    places_.buffer[i] = add_buffer({Kind::Weight, -1, name, bytes});
    weights_.all.emplace_back(name, b);
  }
  for (size_t i = 0; i < plan_.outputs.size(); ++i) {
    const int value = root_of(schedule_->results[i].value);
    const Value& v = schedule_->values[value];
    int& buffer = places_.buffer[value];
    if (buffer < 0)
      buffer = add_buffer({Kind::Output, static_cast<int>(i), "", v.size * v.dtype.size()});
    plan_.outputs[i].buffer = buffer;
  }
}

// Weights that nothing assigns to, and what is made of such alone, like weights in another order
// for products: that is made once, and has memory of its own.
void Saver::find_once() {
  const std::vector<Value>& values = schedule_->values;
  places_.once.assign(values.size(), false);
  std::vector<bool> constant(values.size());
  for (size_t v = 0; v < values.size(); ++v) {
    if (places_.buffer[v] < 0) continue;
    const auto kind = plan_.buffers[places_.buffer[v]].kind;
    constant[v] = kind == PlanBuffer::Kind::Weight || kind == PlanBuffer::Kind::Zero;
  }
  for (const Value& v : values) {
    if (v.replaces >= 0) constant[root_of(v.replaces)] = false;
    if (v.in_place >= 0) constant[v.in_place] = false;
  }
  for (const Step& step : schedule_->steps) {
    const std::vector<bool> written = written_slots(step);
    bool all = true;
    for (size_t i = 0; i < written.size(); ++i) {
      const auto v = static_cast<size_t>(step.values[i]);
      all = all && (written[i] ? values[v].in_place < 0 && places_.buffer[v] < 0 && !values[v].again
                               : constant[v]);
    }
    for (size_t i = 0; all && i < written.size(); ++i)
      if (written[i]) places_.once[step.values[i]] = constant[step.values[i]] = true;
  }
}

PlanStep::Part Saver::part_of(int value) {
  const int64_t offset = schedule_->memory.offset[value];
  if (offset >= 0 && !places_.once[value]) return {places_.arena, offset};
  const int root = root_of(value);
  const Value& v = schedule_->values[root];
  int& buffer = places_.buffer[root];
  if (buffer < 0) buffer = add_buffer({PlanBuffer::Kind::Own, -1, "", v.size * v.dtype.size()});
  return {buffer, 0};
}

void Saver::add_steps() {
  std::map<Node, int> known;
  for (const Step& step : schedule_->steps) {
    check(step.kernel.get() && step.device == device_id(plan_.device),
          "save_program: ", step.operations,
          " moves values from one device to another, and a saved program is of one (", plan_.device,
          ")");
    const auto [at, fresh] = known.try_emplace(step.kernel.get(), compiled_.size());
    if (fresh) compiled_.push_back(&step);
    PlanStep out{at->second};
    const std::vector<bool> written = written_slots(step);
    for (size_t i = 0; i < written.size(); ++i) {
      out.parts.push_back(part_of(step.values[i]));
      out.parts.back().offset += step.offset(i);
      out.once |= written[i] && places_.once[step.values[i]];
    }
    plan_.steps.push_back(std::move(out));
  }
}

// What is assigned to memory from outside, and was not computed there.
void Saver::add_copies() {
  std::map<int, int> last;
  for (size_t v = 0; v < schedule_->values.size(); ++v)
    if (const int old = schedule_->values[v].replaces; old >= 0)
      last[root_of(old)] = static_cast<int>(v);
  for (const auto& [old, v] : last) {
    if (root_of(v) == old) continue;
    const Value& value = schedule_->values[v];
    plan_.steps.push_back({-1, {part_of(old), part_of(v)}, value.size * value.dtype.size()});
  }
}

// --- Code ----------------------------------------------------------------------------------------

bool is_word(char c) { return is_letter(c) || is_digit(c) || c == '_'; }

std::string without_spaces(const std::string& line) {
  std::string out;
  for (size_t i = line.find_first_not_of(' '); i < line.size(); ++i) {
    const bool between = i + 1 < line.size() && is_word(line[i - (i > 0)]) && is_word(line[i + 1]);
    if (line[i] != ' ' || between) out += line[i];
  }
  return out;
}

// WGSL without the white space that only readers want. Comments stay, and their lines: they say
// what a kernel's buffers are, and which devices a line is for.
std::string compact(const std::string& text) {
  std::string out;
  TextReader lines(text);
  for (std::string line; std::getline(lines, line);) {
    const size_t comment = line.find("//");
    if (comment == 0) continue;  // the name
    if (comment != line.npos && !out.empty() && out.back() != '\n') out += "\n";
    out += without_spaces(line.substr(0, comment));
    if (comment != line.npos) out += line.substr(comment) + "\n";
  }
  return out + "\n";
}

void Saver::add_kernels() {
  Device& device = find_device(plan_.device);
  Target target = device.target();
  const bool wgsl = target.language == Target::Language::Wgsl;
  target.most_buffer_bytes = std::max(target.most_buffer_bytes, given_.options.most_buffer_bytes);
  plan_.kernels.resize(compiled_.size());
  in_parallel(compiled_.size(), core_count(), [&](size_t i, size_t) {
    const Step& step = *compiled_[i];
    const Lowered low = lower(step.kernel.get(), step.name, target);
    PendingProof proof(low, step, target);
    PlanKernel& out = plan_.kernels[i];
    out.entry = low.source.entry;
    out.size = low.launch;
    out.dispatch = dispatch_size(low.launch, target);
    const std::string code = wgsl ? low.source.text : cached_compile(device, low.source);
    out.code = wgsl ? compact(code) : device.standalone(code, out.entry);
    proof.finish();
    if (!wgsl) out.file = cat("kernels/", i, ".bin");
  });
  if (!wgsl && !plan_.kernels.empty()) make_folder(given_.folder + "/kernels");
  for (const PlanKernel& k : plan_.kernels)
    if (!wgsl) write_file(given_.folder + "/" + k.file, k.code);
}

void Saver::write_weights() const {
  std::vector<SafetensorsOutput> tensors;
  for (const auto& [name, buffer] : weights_.all) {
    const auto shape = weights_.shapes.find(name);
    const auto write = [b = buffer](const ByteSink& sink) { sink(bytes_of(*b)); };
    tensors.push_back({name, safetensors_name(buffer->dtype()),
                       shape == weights_.shapes.end() ? Shape{buffer->size()} : shape->second,
                       write});
  }
  stream_safetensors(given_.folder + "/weights.safetensors", tensors);
}

void Saver::save() {
  plan_.device = given_.options.device;
  compute_constants();
  add_ports();
  const Normalized graph = normalize(roots());
  const int id = device_id(plan_.device);
  schedule_ = schedule(graph, std::vector<int>(graph.buffers.size(), id), id);
  add_buffers(graph);
  find_once();
  add_steps();
  add_copies();
  const Target& target = find_device(plan_.device).target();
  plan_.language = language_name(target.language);
  plan_.arch = target.arch;
  if (target.kind == Target::Kind::Cpu) plan_.vector_bytes = target.vector_bytes;
  make_folder(given_.folder);
  add_kernels();
  write_weights();
  write_file(given_.folder + "/plan.json", to_json(plan_));
}

// The function was called to be written down: what it has assigned to stays what it was.
class UndoAssignments {
 public:
  explicit UndoAssignments(const std::vector<Tensor>& assigned) : assigned_(assigned) {}
  ~UndoAssignments() {
    for (const Tensor& t : assigned_) {
      Node n = t.node();
      while (is_for_gradients(n->op) && !n->realized) n = n->src(0);
      if (n->op != Op::Assign || n->realized) continue;
      Node old = n->src(0);
      while (old->op == Op::Assign && !old->realized) old = old->src(0);
      Arena::global().set_realized(n, resolved(old));
    }
  }
  UndoAssignments(const UndoAssignments&) = delete;
  UndoAssignments& operator=(const UndoAssignments&) = delete;

 private:
  const std::vector<Tensor>& assigned_;
};

}  // namespace

void save_function(const TensorFunction& function, const std::vector<Tensor>& examples,
                   const std::string& folder, const ProgramOptions& options) {
  const NoGrad no_grad;
  const std::lock_guard lock(runtime_mutex());
  ProgramOptions named = options;
  named.device =
      options.device.empty() ? runtime_seam::default_device() : canonical_device(options.device);
  std::vector<Tensor*> weights;
  for (const NamedTensor& t : options.weights) weights.push_back(t.tensor);
  Tensor::realize(weights);
  const Traced traced = trace_function(function, examples, "save_program");
  const UndoAssignments undo(traced.assigned);
  Saver({traced, named, folder}).save();
}

}  // namespace tiny
