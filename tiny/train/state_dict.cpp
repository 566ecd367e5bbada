#include "tiny/train/state_dict.h"

#include <charconv>
#include <filesystem>
#include <set>

#include "tiny/run/ranks.h"
#include "tiny/tensor/pieces.h"
#include "tiny/tensor/random.h"
#include "tiny/train/safetensors.h"

namespace tiny {

namespace {

std::string bytes_of(const Tensor& t) {
  std::string bytes(static_cast<size_t>(t.numel()) * t.dtype().size(), ' ');
  t.to_bytes(bytes.data());
  return bytes;
}

std::vector<Tensor*> tensors_of(const StateDict& state) {
  std::vector<Tensor*> tensors;
  for (const NamedTensor& named : state) tensors.push_back(named.tensor);
  return tensors;
}

// A line for every tensor of the state that the file does not fit, and every entry left over.
std::string differences(const SafetensorsHeader& file, const StateDict& state) {
  std::map<std::string, const SafetensorsEntry*> found;
  for (const SafetensorsEntry& e : file.entries) found[e.name] = &e;
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
    else if (at->second->type->dtype == kVoid)
      text += cat("\n  dtype: ", named.name, " is ", at->second->type->name, " in the file");
  }
  for (const SafetensorsEntry& e : file.entries)
    if (!expected.contains(e.name) && !is_batch_count(e.name))
      text += cat("\n  unexpected: ", e.name, " ", to_text(e.shape));
  return text;
}

// What does not fit is found before the first tensor changes.
std::map<std::string, std::string> load_from(
    const std::string& path, const StateDict& state,
    const std::function<void(const SafetensorsHeader&)>& notes_fit = {}) {
  const MappedFile file("safetensors", path);
  const SafetensorsHeader header = read_safetensors_header(file);
  if (notes_fit) notes_fit(header);
  const std::string wrong = differences(header, state);
  check(wrong.empty(), "load: ", path, " does not fit:", wrong);
  std::map<std::string, const SafetensorsEntry*> found;
  for (const SafetensorsEntry& e : header.entries) {
    if (e.type->dtype == kBool) check_bools(file, e.name, e.begin, e.bytes);
    found[e.name] = &e;
  }
  assign_in_turn(state, [&](size_t i) {
    const SafetensorsEntry& e = *found[state[i].name];
    return from_file(file, e.begin, e.type->dtype, e.shape, state[i].tensor->device());
  });
  return header.metadata;
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

bool is_batch_count(const std::string& name) { return name.ends_with("num_batches_tracked"); }

void assign_in_turn(const StateDict& state, const std::function<Tensor(size_t)>& value_of) {
  const NoGrad no_grad;
  for (const NamedTensor& named : state) {
    Tensor like = *named.tensor;  // assigning to it changes nothing that is computed
    like.assign(Tensor::zeros(to_shape(like.shape()), like.dtype()));
  }
  // In pieces: they do not depend on one another, and an order of all costs their number's square.
  constexpr size_t kMaxTensors = 256;
  constexpr int64_t kMaxBytes = int64_t{32} << 20;  // that wait for being copied
  std::vector<Tensor*> waiting;
  int64_t bytes = 0;
  for (size_t i = 0; i < state.size(); ++i) {
    {
      const Tensor value = value_of(i);
      state[i].tensor->assign(value);
      bytes += value.numel() * value.dtype().size();
    }
    waiting.push_back(state[i].tensor);
    if (waiting.size() < kMaxTensors && bytes < kMaxBytes && i + 1 < state.size()) continue;
    Tensor::realize(waiting);
    waiting.clear();
    bytes = 0;
  }
}

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
  std::vector<SafetensorsOutput> tensors;
  // Where several processes read values together, none of them can wait for a tensor's turn.
  const bool all_at_once = rank_count() > 1;
  for (const NamedTensor& named : state) {
    const Tensor& t = *named.tensor;
    tensors.push_back({named.name, safetensors_name(t.dtype()), to_shape(t.shape()),
                       [&t, all_at_once, held = all_at_once ? bytes_of(t) : std::string()](
                           const ByteSink& sink) { sink(all_at_once ? held : bytes_of(t)); }});
  }
  if (rank() == 0) stream_safetensors(path, tensors, metadata);
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
  load_from(path, state, [&](const SafetensorsHeader& header) {
    check_settings(header.metadata, path, settings);
    random = {number_of(header.metadata, path, "key"), number_of(header.metadata, path, "counter")};
  });
  set_random_state(random);
  return true;
}

}  // namespace tiny
