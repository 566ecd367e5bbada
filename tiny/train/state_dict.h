// Named tensors of a model or an optimizer, and their files in the safetensors format.
#pragma once
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tiny/tensor/tensor.h"

namespace tiny {

// A tensor that belongs to someone else, who lives at least as long as this.
struct NamedTensor {
  std::string name;  // as in PyTorch: "0.weight", "layers.3.running_mean"
  Tensor* tensor;
};
using StateDict = std::vector<NamedTensor>;

// The tensors get the values of others of the same names and shapes, in the memory that they have.
void copy_state(const StateDict& to, const StateDict& from);

// Gives each tensor the value that `value_of` makes for it, cast to its dtype and in the memory
// that it has; the values are made a few at a time. The shapes are the tensors'. Where one of the
// tensors cannot be assigned to, that is an Error before any has changed; an Error of `value_of`
// leaves the tensors before that one changed.
void assign_in_turn(const StateDict& state, const std::function<Tensor(size_t)>& value_of);

// A count of batches, which PyTorch stores with a batch norm and nothing here wants.
bool is_batch_count(const std::string& name);

// Realizes the tensors together and writes them to a file, aside and renamed, so that a program
// that is ended meanwhile leaves the old one; the next save removes what it left. Throws Error for
// a name given twice and where the file cannot be written.
void save(const std::string& path, const StateDict& state,
          const std::map<std::string, std::string>& metadata = {});

// Reads the values of all tensors from a file and gives its metadata. A tensor keeps its dtype, its
// device and whether it wants a gradient. Counts of batches ("num_batches_tracked") are passed
// over. A part of a file, other names and other formats: tiny/models/files/load_state.h. Throws
// Error, before any tensor has changed, for a file that cannot be read or is damaged
// (tiny/train/safetensors.h), and with all names that are missing in the file, that nobody expects,
// and that have another shape.
std::map<std::string, std::string> load(const std::string& path, const StateDict& state);

// The same for all that a training goes on from: the tensors and where the random numbers are
// (tiny/tensor/random.h). `settings`: options that it has to go on with, by name, with their
// values.
using Settings = std::map<std::string, std::string>;
void save_checkpoint(const std::string& path, const StateDict& state,
                     const Settings& settings = {});
// Whether there was such a file; without one, or without a name, nothing changes. Throws Error,
// also before any tensor has changed, where the file was written with other settings, or does not
// say where the random numbers are.
bool load_checkpoint(const std::string& path, const StateDict& state,
                     const Settings& settings = {});

}  // namespace tiny
