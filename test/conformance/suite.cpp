#include "test/conformance/suite.h"

#include <filesystem>
#include <fstream>
#include <utility>

#include "tiny/base/error.h"

namespace tiny::conformance {

namespace {

constexpr int kFormatVersion = 1;

Step read_step(const Json& json) {
  Step step{json.at("op"), {}, json.at("out"), json.at("args")};
  for (const Json& id : json.at("in"))
    step.in.push_back(id.is_null() ? std::string() : id.get<std::string>());
  return step;
}

std::vector<Stored> read_stored(const Json& list) {
  std::vector<Stored> out;
  for (const Json& s : list) out.push_back({s.at("id"), s.at("key")});
  return out;
}

Case read_case(const Json& json) {
  Case c;
  c.name = json.at("name");
  c.tags = json.at("tags");
  for (const Json& i : json.at("inputs"))
    c.inputs.push_back({i.at("id"), i.at("key"), i.at("grad")});
  for (const Json& s : json.at("steps")) c.steps.push_back(read_step(s));
  c.outputs = read_stored(json.at("outputs"));
  c.cotangents = read_stored(json.at("cotangents"));
  c.grads = read_stored(json.at("grads"));
  c.rtol = json.at("rtol");
  c.atol = json.at("atol");
  return c;
}

}  // namespace

const StateEntry& Suite::tensor(const std::string& key) const {
  const auto found = tensors.find(key);
  check(found != tensors.end(), "the suite stores no tensor ", key);
  return found->second;
}

Suite read_suite(const std::string& prefix) {
  const std::string path = prefix + ".json";
  std::ifstream in(path);
  check(in.good(), "conformance: cannot read ", path);
  Suite suite;
  try {
    const Json json = Json::parse(in);
    check(json.at("format_version") == kFormatVersion, path, ": format version ",
          json.at("format_version").dump(), ", this program reads ", kFormatVersion);
    for (const Json& c : json.at("cases")) suite.cases.push_back(read_case(c));
    const std::string file = json.at("tensors");
    const auto tensors = std::filesystem::path(path).replace_filename(file);
    for (StateEntry& e : read_safetensors(tensors).entries)
      suite.tensors.emplace(e.name, std::move(e));
  } catch (const Json::exception& e) {
    throw Error(cat(path, ": ", e.what()));
  }
  return suite;
}

}  // namespace tiny::conformance
