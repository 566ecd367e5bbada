#include "runtime/program/plan.h"

#include <algorithm>

#include "tiny/base/error.h"

#if __has_include(<nlohmann/json.hpp>)
#include <nlohmann/json.hpp>

namespace tiny {

namespace {

using json = nlohmann::ordered_json;

constexpr const char* kFormat = "tiny program 1";
constexpr const char* kKinds[] = {"arena", "input", "output", "weight", "own", "zero"};

DType dtype_named(const std::string& name) {
  for (const DType t : {kBool, kI8, kI16, kI32, kI64, kU8, kU16, kU32, kU64, kF8E4M3, kF8E5M2, kF16,
                        kBF16, kF32, kF64})
    if (t.name() == name) return t;
  throw Error(cat("no dtype ", name));
}

json of(const PlanLength& length) {
  if (length.op == "number") return length.number;
  if (length.op == "input") return {{"input", length.input}};
  json out = {{"op", length.op}, {"of", json::array()}};
  for (const PlanLength& l : length.of) out["of"].push_back(of(l));
  return out;
}

PlanLength length_of(const json& j) {
  if (j.is_number()) return {"number", j.get<int64_t>()};
  if (j.contains("input")) return {"input", 0, j.at("input").get<int>()};
  PlanLength out{j.at("op").get<std::string>()};
  for (const json& l : j.at("of")) out.of.push_back(length_of(l));
  return out;
}

json of(const ProgramPort& port) {
  json out = {{"name", port.name}, {"dtype", port.dtype.name()}, {"shape", port.shape}};
  if (!port.bounds.empty()) out["bounds"] = port.bounds;
  return out;
}

ProgramPort port_of(const json& j) {
  ProgramPort out{j.at("name").get<std::string>(), dtype_named(j.at("dtype").get<std::string>()),
                  j.at("shape").get<Shape>()};
  if (j.contains("bounds")) out.bounds = j.at("bounds").get<Shape>();
  return out;
}

json of(const TensorMap& map) {
  return {{"slot", map.slot},          {"offset", map.offset}, {"element_bytes", map.element_bytes},
          {"dtype", map.dtype.name()}, {"rank", map.rank},     {"sizes", map.sizes},
          {"strides", map.strides},    {"box", map.box},       {"windows", map.windows},
          {"lower", map.lower},        {"upper", map.upper},   {"steps", map.steps},
          {"once", map.once}};
}

template <class T, size_t n> void read(const json& j, T (&to)[n]) {
  const auto values = j.get<std::vector<T>>();
  check(values.size() == n, values.size(), " values for ", n);
  std::ranges::copy(values, to);
}

TensorMap map_of(const json& j) {
  TensorMap out;
  out.slot = j.at("slot");
  out.offset = j.at("offset");
  out.element_bytes = j.at("element_bytes");
  out.dtype = dtype_named(j.at("dtype").get<std::string>());
  out.rank = j.at("rank");
  read(j.at("sizes"), out.sizes);
  read(j.at("strides"), out.strides);
  read(j.at("box"), out.box);
  out.windows = j.at("windows");
  read(j.at("lower"), out.lower);
  read(j.at("upper"), out.upper);
  read(j.at("steps"), out.steps);
  out.once = j.at("once");
  return out;
}

json of(const PlanKernel& k, bool wgsl) {
  json out = {{"entry", k.entry}};
  if (wgsl) {
    out["groups"] = k.dispatch.groups;
    out["code"] = k.code;
    return out;
  }
  out["file"] = k.file;
  out["grid"] = k.size.grid;
  out["block"] = k.size.block;
  out["shared_bytes"] = k.size.shared_bytes;
  out["chunk"] = k.size.chunk;
  out["cluster"] = k.size.cluster;
  out["waits"] = k.size.waits;
  out["maps"] = json::array();
  for (const TensorMap& m : k.size.maps) out["maps"].push_back(of(m));
  return out;
}

PlanKernel kernel_of(const json& j) {
  PlanKernel out;
  out.entry = j.at("entry").get<std::string>();
  if (j.contains("code")) {
    out.code = j.at("code").get<std::string>();
    read(j.at("groups"), out.size.grid);
    return out;
  }
  out.file = j.at("file").get<std::string>();
  read(j.at("grid"), out.size.grid);
  read(j.at("block"), out.size.block);
  out.size.shared_bytes = j.at("shared_bytes");
  out.size.chunk = j.at("chunk");
  out.size.cluster = j.at("cluster");
  out.size.waits = j.at("waits");
  for (const json& m : j.at("maps")) out.size.maps.push_back(map_of(m));
  return out;
}

json of(const PlanBuffer& b) {
  json out = {{"kind", kKinds[static_cast<int>(b.kind)]}, {"bytes", b.bytes}};
  if (b.port >= 0) out["port"] = b.port;
  if (!b.weight.empty()) out["weight"] = b.weight;
  return out;
}

PlanBuffer buffer_of(const json& j) {
  PlanBuffer out;
  const auto kind = j.at("kind").get<std::string>();
  const auto at = std::find(std::begin(kKinds), std::end(kKinds), kind);
  check(at != std::end(kKinds), "no kind of buffers is called ", kind);
  out.kind = static_cast<PlanBuffer::Kind>(at - std::begin(kKinds));
  out.port = j.value("port", -1);
  out.weight = j.value("weight", "");
  out.bytes = j.at("bytes");
  return out;
}

// Numbers of buffers and kernels, and offsets, are what they may be.
void check_plan(const Plan& plan) {
  const auto within = [](int at, size_t count) {
    return at >= 0 && static_cast<size_t>(at) < count;
  };
  for (const PlanBuffer& b : plan.buffers) {
    check(b.bytes >= 0, "a buffer of ", b.bytes, " bytes");
    const bool input = b.kind == PlanBuffer::Kind::Input;
    if (input || b.kind == PlanBuffer::Kind::Output)
      check(within(b.port, input ? plan.inputs.size() : plan.outputs.size()), "no port ", b.port);
  }
  for (const PlanStep& s : plan.steps) {
    check(s.kernel < 0 ? s.parts.size() == 2 : within(s.kernel, plan.kernels.size()),
          "a step without a kernel or with kernel ", s.kernel);
    for (const PlanStep::Part& p : s.parts) {
      if (p.buffer < 0 && s.kernel >= 0) continue;  // a slot that is not used
      check(within(p.buffer, plan.buffers.size()) && p.offset >= 0 &&
                p.offset + std::max<int64_t>(s.bytes, 0) <= plan.buffers[p.buffer].bytes,
            "a part of buffer ", p.buffer, " from byte ", p.offset);
    }
  }
  for (const PlanOutput& o : plan.outputs)
    check(within(o.buffer, plan.buffers.size()), "output ", o.port.name, " has no buffer");
}

}  // namespace

std::string to_json(const Plan& plan) {
  const bool wgsl = plan.language == "wgsl";
  json out = {{"format", kFormat},        {"device", plan.device},   {"language", plan.language},
              {"arch", plan.arch},        {"inputs", json::array()}, {"outputs", json::array()},
              {"buffers", json::array()}, {"steps", json::array()},  {"kernels", json::array()}};
  if (plan.vector_bytes) out["vector_bytes"] = plan.vector_bytes;
  for (const ProgramPort& p : plan.inputs) out["inputs"].push_back(of(p));
  for (const PlanOutput& o : plan.outputs) {
    json port = of(o.port);
    port["buffer"] = o.buffer;
    for (const auto& [axis, length] : o.lengths)
      port["lengths"].push_back({{"axis", axis}, {"length", of(length)}});
    out["outputs"].push_back(port);
  }
  for (const PlanBuffer& b : plan.buffers) out["buffers"].push_back(of(b));
  for (const PlanStep& s : plan.steps) {
    json step = {{"kernel", s.kernel}, {"parts", json::array()}};
    for (const PlanStep::Part& p : s.parts) step["parts"].push_back({p.buffer, p.offset});
    if (s.kernel < 0) step["bytes"] = s.bytes;
    if (s.once) step["once"] = true;
    out["steps"].push_back(step);
  }
  for (const PlanKernel& k : plan.kernels) out["kernels"].push_back(of(k, wgsl));
  return out.dump() + "\n";
}

Plan plan_of_json(const std::string& text, const std::string& path) {
  try {
    const json j = json::parse(text);
    check(j.at("format") == kFormat, "the format is not \"", kFormat, "\"");
    Plan out;
    out.device = j.at("device").get<std::string>();
    out.language = j.at("language").get<std::string>();
    out.arch = j.at("arch").get<std::string>();
    out.vector_bytes = j.value("vector_bytes", 0);
    for (const json& p : j.at("inputs")) out.inputs.push_back(port_of(p));
    for (const json& o : j.at("outputs")) {
      PlanOutput output{port_of(o), o.at("buffer").get<int>()};
      for (const json& l : o.value("lengths", json::array()))
        output.lengths.emplace_back(l.at("axis").get<int>(), length_of(l.at("length")));
      out.outputs.push_back(std::move(output));
    }
    for (const json& b : j.at("buffers")) out.buffers.push_back(buffer_of(b));
    for (const json& k : j.at("kernels")) out.kernels.push_back(kernel_of(k));
    for (const json& s : j.at("steps")) {
      PlanStep step{s.at("kernel").get<int>()};
      for (const json& p : s.at("parts"))
        step.parts.push_back({p.at(0).get<int>(), p.at(1).get<int64_t>()});
      step.bytes = s.value("bytes", int64_t{0});
      step.once = s.value("once", false);
      out.steps.push_back(std::move(step));
    }
    check_plan(out);
    return out;
  } catch (const json::exception& e) {
    throw Error(cat("load_program: ", path, ": ", e.what()));
  } catch (const Error& e) {
    throw Error(cat("load_program: ", path, ": ", e.what()));
  }
}

}  // namespace tiny

#else

namespace tiny {

std::string to_json(const Plan&) {
  throw Error("save_program: built without nlohmann/json.hpp, cannot write JSON");
}
Plan plan_of_json(const std::string&, const std::string& path) {
  throw Error(cat("load_program: ", path, ": built without nlohmann/json.hpp, cannot read JSON"));
}

}  // namespace tiny

#endif
