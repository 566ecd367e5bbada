#include "tiny/train/state_dict.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <set>
#include <span>

#include "tiny/run/ranks.h"
#include "tiny/tensor/random.h"
#include "tiny/train/safetensors.h"

namespace tiny {

namespace {

StateEntry entry_of(const NamedTensor& named) {
  const Tensor& t = *named.tensor;
  StateEntry entry{named.name, t.dtype(), to_shape(t.shape()), {}};
  entry.data.resize(static_cast<size_t>(t.numel()) * t.dtype().size());
  t.to_bytes(entry.data.data());
  return entry;
}

std::vector<Tensor*> tensors_of(const StateDict& state) {
  std::vector<Tensor*> tensors;
  for (const NamedTensor& named : state) tensors.push_back(named.tensor);
  return tensors;
}

bool is_passed_over(const std::string& name) { return name.ends_with("num_batches_tracked"); }

// A line for every tensor of the state that the file does not fit, and every entry left over.
std::string differences(const SafetensorsFile& file, const StateDict& state) {
  std::map<std::string, const StateEntry*> found;
  for (const StateEntry& e : file.entries) found[e.name] = &e;
  std::string text;
  std::set<std::string> expected;
  for (const NamedTensor& named : state) {
    expected.insert(named.name);
    const auto at = found.find(named.name);
    if (at == found.end())
      text += cat("\n  missing: ", named.name, " ", to_text(named.tensor->shape()));
    else if (!same(at->second->shape, named.tensor->shape()))
      text += cat("\n  shape: ", named.name, " is ", to_text(at->second->shape),
                  " in the file and ", to_text(named.tensor->shape()), " here");
  }
  for (const StateEntry& e : file.entries)
    if (!expected.contains(e.name) && !is_passed_over(e.name))
      text += cat("\n  unexpected: ", e.name, " ", to_text(e.shape));
  return text;
}

// All values are in the devices' memory before the first tensor changes; where one of them cannot
// be assigned to, all are what they were.
std::map<std::string, std::string> load_from(const std::string& path, const StateDict& state,
                                             const HeaderCheck& notes_fit = {}) {
  const SafetensorsFile file = read_safetensors(path, [&](const SafetensorsFile& header) {
    if (notes_fit) notes_fit(header);
    const std::string wrong = differences(header, state);
    check(wrong.empty(), "load: ", path, " does not fit:", wrong);
  });
  std::map<std::string, const StateEntry*> found;
  for (const StateEntry& e : file.entries) found[e.name] = &e;
  std::vector<Tensor> values, before;
  for (const NamedTensor& named : state) {
    const StateEntry& e = *found[named.name];
    values.push_back(Tensor::from_bytes(e.data.data(), e.dtype, e.shape, named.tensor->device()));
    before.push_back(*named.tensor);
  }
  const NoGrad no_grad;
  try {
    for (size_t i = 0; i < state.size(); ++i) state[i].tensor->assign(values[i]);
  } catch (...) {
    for (size_t i = 0; i < state.size(); ++i) *state[i].tensor = before[i];
    throw;
  }
  before.clear();  // else the old values would be kept beside the new ones
  // In pieces: they do not depend on one another, and an order of all costs their number's square.
  constexpr size_t kPiece = 256;
  const std::vector<Tensor*> all = tensors_of(state);
  for (size_t i = 0; i < all.size(); i += kPiece)
    Tensor::realize(std::span(all).subspan(i, std::min(kPiece, all.size() - i)));
  return file.metadata;
}

// Settings that the file does not know, because it is older, are taken as they are.
void check_settings(const std::map<std::string, std::string>& notes, const std::string& path,
                    const Settings& settings) {
  std::string there, here;
  for (const auto& [name, value] : settings) {
    const auto at = notes.find(name);
    if (at == notes.end() || at->second == value) continue;
    there += cat(there.empty() ? "" : " ", name, ' ', at->second);
    here += cat(here.empty() ? "" : " ", name, ' ', value);
  }
  check(there.empty(), path, ": a training with ", there, " does not go on with ", here,
        ": give what it began with, or another file");
}

// A number of the notes that says where random numbers go on.
uint64_t number_of(const std::map<std::string, std::string>& notes, const std::string& path,
                   const std::string& name) {
  const auto at = notes.find(name);
  check(at != notes.end(), path, ": no checkpoint, it does not say where random numbers go on");
  const std::string& text = at->second;
  uint64_t value = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  check(status == std::errc() && end == text.data() + text.size(), path, ": ", name, " is '", text,
        "', expected an integer of 0 to 2^64 - 1");
  return value;
}

}  // namespace

void copy_state(const StateDict& to, const StateDict& from) {
  check(to.size() == from.size(), "copy_state: ", from.size(), " tensors for ", to.size());
  const NoGrad no_grad;
  for (size_t i = 0; i < to.size(); ++i) {
    check(to[i].name == from[i].name, "copy_state: ", from[i].name, " in the place of ",
          to[i].name);
    to[i].tensor->assign(from[i].tensor->detach());
  }
  Tensor::realize(tensors_of(to));
}

void save(const std::string& path, const StateDict& state,
          const std::map<std::string, std::string>& metadata) {
  Tensor::realize(tensors_of(state));
  std::vector<StateEntry> entries;
  for (const NamedTensor& named : state) entries.push_back(entry_of(named));
  if (rank() == 0) write_safetensors(path, entries, metadata);
}

std::map<std::string, std::string> load(const std::string& path, const StateDict& state) {
  return load_from(path, state);
}

void save_checkpoint(const std::string& path, const StateDict& state, const Settings& settings) {
  const RandomState random = random_state();
  Settings notes = settings;
  notes["key"] = std::to_string(random.key);
  notes["counter"] = std::to_string(random.counter);
  save(path, state, notes);
}

bool load_checkpoint(const std::string& path, const StateDict& state, const Settings& settings) {
  std::error_code status;  // of a path that cannot be looked at, opening it says more
  if (path.empty() || (!std::filesystem::exists(path, status) && !status)) return false;
  RandomState random;
  load_from(path, state, [&](const SafetensorsFile& header) {
    check_settings(header.metadata, path, settings);
    random = {number_of(header.metadata, path, "key"), number_of(header.metadata, path, "counter")};
  });
  set_random_state(random);
  return true;
}

}  // namespace tiny
