// Running a saved program: kernels are loaded, never compiled.
#include <algorithm>
#include <map>

#include "runtime/device/buffer.h"
#include "runtime/device/kept_memory.h"
#include "runtime/program/plan.h"
#include "runtime/realize/realize.h"
#include "tiny/base/file.h"
#include "tiny/base/text.h"
#include "tiny/ir/build.h"
#include "tiny/train/safetensors.h"

namespace tiny {

struct SavedProgram::State {
  explicit State(const std::string& folder);

  std::vector<Tensor> run(const std::vector<Tensor>& inputs);

  Plan plan;
  std::vector<ProgramPort> outputs;

 private:
  void require_target() const;
  void load_weights(const std::string& folder);
  void launch(const std::vector<std::shared_ptr<Buffer>>& buffers, bool once);
  std::shared_ptr<Buffer> buffer_of(const Tensor& input, size_t i) const;
  Tensor result(const PlanOutput& output, const std::shared_ptr<Buffer>& buffer,
                const std::vector<int64_t>& lengths) const;

  Device* device_ = nullptr;
  std::vector<std::unique_ptr<Program>> programs_;
  std::vector<std::shared_ptr<Buffer>> buffers_;  // of weights and intermediate values
};

namespace {

std::string read_all(const std::string& path) { return InputFile("load_program", path).read_all(); }

int64_t evaluate(const PlanLength& l, const std::vector<int64_t>& inputs) {
  if (l.op == "number") return l.number;
  if (l.op == "input") return inputs.at(static_cast<size_t>(l.input));
  check(l.of.size() == 2, "load_program: a length by ", l.op, " of ", l.of.size(), " numbers");
  const int64_t a = evaluate(l.of[0], inputs), b = evaluate(l.of[1], inputs);
  if (l.op == "Add") return a + b;
  if (l.op == "Sub") return a - b;
  if (l.op == "Mul") return a * b;
  if (l.op == "Max") return std::max(a, b);
  if (l.op == "Min") return std::min(a, b);
  throw Error(cat("load_program: a length by ", l.op));
}

}  // namespace

SavedProgram::State::State(const std::string& folder)
    : plan(plan_of_json(read_all(folder + "/plan.json"), folder + "/plan.json")) {
  device_ = &find_device(plan.device);
  require_target();
  for (const PlanOutput& o : plan.outputs) outputs.push_back(o.port);
  for (const PlanKernel& k : plan.kernels) {
    const std::string code = k.file.empty() ? k.code : read_all(folder + "/" + k.file);
    programs_.push_back(with_kept_memory_freed([&] { return device_->load(code, k.entry); }));
  }
  for (const PlanBuffer& b : plan.buffers) {
    const bool own = b.kind != PlanBuffer::Kind::Input && b.kind != PlanBuffer::Kind::Output;
    buffers_.push_back(own ? std::make_shared<Buffer>(plan.device, kU8, b.bytes) : nullptr);
  }
  load_weights(folder);
  launch(buffers_, /*once=*/true);
}

void SavedProgram::State::require_target() const {
  const Target& target = device_->target();
  if (target.kind == Target::Kind::Gpu)
    return check(target.arch == plan.arch, "load_program: the code is for ", plan.device, " with ",
                 plan.arch, ", and this one is ", target.arch);
  check(target.vector_bytes >= plan.vector_bytes, "load_program: the code is for vectors of ",
        plan.vector_bytes, " bytes, and this processor has ", target.vector_bytes);
  TextReader units(plan.arch);
  for (std::string unit; units >> unit;)
    check(target.arch.find(unit) != std::string::npos, "load_program: the code uses ", unit,
          ", which ", plan.device, " has not");
}

void SavedProgram::State::load_weights(const std::string& folder) {
  const std::string path = folder + "/weights.safetensors";
  const MappedFile file("safetensors", path);
  std::map<std::string, SafetensorsEntry> entries;
  for (const SafetensorsEntry& e : read_safetensors_header(file).entries)
    entries.emplace(e.name, e);
  for (size_t i = 0; i < plan.buffers.size(); ++i) {
    const PlanBuffer& b = plan.buffers[i];
    if (b.kind == PlanBuffer::Kind::Zero)
      buffers_[i]->upload(std::string(static_cast<size_t>(b.bytes), '\0').data());
    if (b.kind != PlanBuffer::Kind::Weight) continue;
    const auto at = entries.find(b.weight);
    check(at != entries.end(), "load_program: ", path, " has no tensor ", b.weight);
    const SafetensorsEntry& e = at->second;
    check(e.bytes <= b.bytes && b.bytes < e.bytes + 4, "load_program: ", path, ": ", b.weight,
          " has ", e.bytes, " bytes, and the plan ", b.bytes);
    Buffer part(buffers_[i], 0, kU8, e.bytes);
    part.upload(file.bytes(e.begin, e.bytes).data());
    file.release(e.begin, e.bytes);
  }
}

std::shared_ptr<Buffer> SavedProgram::State::buffer_of(const Tensor& input, size_t i) const {
  const ProgramPort& port = plan.inputs[i];
  check(input.defined() && input.dtype() == port.dtype && to_shape(input.shape()) == port.shape,
        "the program's input ", port.name, " is ", port.dtype, ' ', to_text(port.shape), ", given ",
        input.defined() ? cat(input.dtype(), ' ', to_text(to_shape(input.shape()))) : "no tensor");
  Node bare = input.detach().node();
  while (bare->op == Op::Bound) bare = bare->src(0);
  Tensor there = Tensor(bare).to(plan.device).contiguous().realize();
  const std::shared_ptr<Buffer> b = whole_buffer(there.node());
  expect(b != nullptr, "load_program: an input without memory");
  return b;
}

Tensor SavedProgram::State::result(const PlanOutput& output, const std::shared_ptr<Buffer>& buffer,
                                   const std::vector<int64_t>& lengths) const {
  Tensor out(build::reshape(buffer_node(buffer), output.port.shape));
  for (const auto& [axis, length] : output.lengths)
    out = out.narrow(axis, 0, evaluate(length, lengths));
  return out;
}

void SavedProgram::State::launch(const std::vector<std::shared_ptr<Buffer>>& buffers, bool once) {
  for (const PlanStep& step : plan.steps) {
    if (step.once != once) continue;
    std::vector<void*> args;
    for (const PlanStep::Part& p : step.parts)
      args.push_back(p.buffer < 0 ? nullptr
                                  : static_cast<std::byte*>(buffers[p.buffer]->data()) + p.offset);
    if (step.kernel < 0) {
      device_->copy(args[0], args[1], static_cast<size_t>(step.bytes));
      continue;
    }
    const auto kernel = static_cast<size_t>(step.kernel);
    device_->launch(*programs_[kernel], plan.kernels[kernel].size, args);
  }
}

std::vector<Tensor> SavedProgram::State::run(const std::vector<Tensor>& inputs) {
  const std::lock_guard lock(runtime_mutex());
  check(inputs.size() == plan.inputs.size(), "the program has ", plan.inputs.size(),
        " inputs, given ", inputs.size());
  std::vector<std::shared_ptr<Buffer>> given, buffers = buffers_;
  std::vector<int64_t> lengths(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    given.push_back(buffer_of(inputs[i], i));
    const ProgramPort& port = plan.inputs[i];
    if (port.bounds.empty()) continue;
    lengths[i] = Tensor(inputs[i].detach().node()).item<int64_t>();
    check(port.bounds[0] <= lengths[i] && lengths[i] <= port.bounds[1], "the program's input ",
          port.name, " lies in [", port.bounds[0], ", ", port.bounds[1], "], given ", lengths[i]);
  }
  for (size_t i = 0; i < buffers.size(); ++i) {
    const PlanBuffer& b = plan.buffers[i];
    const auto port = static_cast<size_t>(b.port);
    if (b.kind == PlanBuffer::Kind::Input) buffers[i] = given[port];
    if (b.kind != PlanBuffer::Kind::Output) continue;
    const ProgramPort& out = plan.outputs[port].port;
    buffers[i] = std::make_shared<Buffer>(plan.device, out.dtype, numel(out.shape));
  }
  launch(buffers, /*once=*/false);
  std::vector<Tensor> out;
  for (const PlanOutput& o : plan.outputs) out.push_back(result(o, buffers[o.buffer], lengths));
  return out;
}

const std::vector<ProgramPort>& SavedProgram::inputs() const { return state_->plan.inputs; }
const std::vector<ProgramPort>& SavedProgram::outputs() const { return state_->outputs; }
const std::string& SavedProgram::device() const { return state_->plan.device; }
std::vector<Tensor> SavedProgram::operator()(const std::vector<Tensor>& inputs) const {
  return state_->run(inputs);
}

SavedProgram load_program(const std::string& folder) {
  SavedProgram out;
  out.state_ = std::make_shared<SavedProgram::State>(folder);
  return out;
}

}  // namespace tiny
