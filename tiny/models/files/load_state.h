// Loading a model's tensors from a file whose names, dtypes or extent are not exactly theirs, with
// a report of what fitted.
//
//   const StateLoadReport report = load_state("llama", model.state_dict(),
//                                        {.renames = {rename_prefix("model.", "")}});
//   if (!report.complete()) std::cerr << report.text();
#pragma once
#include <string>
#include <vector>

#include "tiny/models/files/tensor_file.h"
#include "tiny/train/state_dict.h"

namespace tiny {

// How the file's names become those of the state.
struct Rename {
  std::string from, to;
  bool is_pattern;  // a regular expression that is replaced wherever it matches; else a prefix
};
Rename rename_prefix(const std::string& from, const std::string& to);
// ECMAScript, with $1 in `to` for what the first group matched. Names of more than 1024 bytes are
// an Error. Throws Error for what is no regular expression.
Rename rename_pattern(const std::string& from, const std::string& to);

struct StateLoadOptions {
  std::vector<Rename> renames;  // one after the other, each on what the one before gave
};

struct StateLoadReport {
  std::vector<std::string> loaded;      // names of the state, as `missing`
  std::vector<std::string> missing;     // in the file
  std::vector<std::string> unexpected;  // names of the file that no tensor of the state has
  struct OtherShape {
    std::string name;
    Shape in_file, here;
  };
  std::vector<OtherShape> other_shape;

  bool complete() const { return missing.empty() && unexpected.empty() && other_shape.empty(); }
  std::string text() const;  // a line for each that did not fit; empty: all did
};

// Gives the tensors of the state that the file has in their shape its values, cast to their dtypes,
// one at a time; the others stay as they are. Counts of batches ("num_batches_tracked") are not
// reported. Throws Error where two names of the file become one, a tensor's type cannot be decoded,
// and, before anything has changed, where a tensor cannot be assigned to.
StateLoadReport load_state(const TensorFile& file, const StateDict& state,
                           const StateLoadOptions& options = {});
StateLoadReport load_state(const std::string& path, const StateDict& state,
                           const StateLoadOptions& options = {});

}  // namespace tiny
