// Results of beam searches on disk: one file of JSON lines, one for each kernel, candidate and
// result, that processes share and that may be copied to another machine. Lines are only ever
// added; one that is damaged counts as absent.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "codegen/lower.h"
#include "runtime/device/device.h"

namespace tiny {

// How a candidate fared.
enum class Outcome : uint8_t { Waiting, Good, Slow, Wrong, Failed, Crashed, Hung, Rejected };
const char* name_of(Outcome outcome);

struct Measured {
  Outcome outcome = Outcome::Waiting;
  double least = 0, median = 0;  // seconds
  std::string text;              // the fault

  auto fields() { return std::tie(outcome, least, median, text); }
};

// A candidate that was tried. `source`: hash of its text and compiler, so that a record of another
// version of the code generator counts for nothing.
struct TryRecord : Measured {
  std::string source;
  std::string choice;  // as to_text(Choice) writes it
};

struct DoneRecord {
  int width = 0;
  double budget = 0;               // seconds that the program had for all kernels
  bool exhausted = false;          // a longer search of that width would find nothing new
  double heuristic = 0, best = 0;  // seconds; 0: there was no time for the kernel
  std::string choice;              // empty: the heuristic's
  std::string source;              // of that choice
};

struct KernelRecord {
  std::string key, family, name, device;
  std::map<std::string, TryRecord> tries;  // by choice
  std::optional<DoneRecord> done;          // the latest
};

// The key of a kernel: its loops, the device with its compiler, and every setting that the code
// generator reads. Its family: the same without sizes.
struct KernelKey {
  std::string key, family, device;
};
KernelKey key_of_kernel(Node loops, Device& device, const std::string& device_name);
std::string source_key(const Source& source, Device& device);

class SearchCache {
 public:
  // The file of BEAM_CACHE, else beam.jsonl in the cache's folder; without either, or in a build
  // without nlohmann/json.hpp, only memory.
  static SearchCache& current();
  explicit SearchCache(std::string path) : path_(std::move(path)) {}
  const std::string& path() const { return path_; }

  std::optional<KernelRecord> find(const std::string& key);
  std::vector<KernelRecord> all();  // in the order of their first lines
  // The best choices of other kernels of the family, latest first.
  std::vector<std::string> family_choices(const KernelKey& key);

  void add(const KernelKey& key, const std::string& name);
  void add(const std::string& key, const TryRecord& record);
  void add(const std::string& key, const DoneRecord& record);

  // Adds the lines of another file that are not here; gives their number. Throws Error where it
  // cannot be read.
  size_t import(const std::string& path);
  // Forgets kernels whose name or key contains the text (all for ""); gives their number.
  size_t drop(const std::string& text);

 private:
  void refresh();
  bool take(const std::string& line);
  void append(const std::string& line);

  const std::string path_;
  int64_t read_ = 0;  // bytes of the file that are known
  std::vector<std::string> order_;
  std::map<std::string, KernelRecord> kernels_;
};

// Candidates are lowered under one name, so that structurally equal kernels have equal texts.
inline constexpr const char* kCandidateEntry = "k_candidate";

// The best options that a search found for a kernel, if there was one and the code generator still
// makes the same source of them.
struct Known {
  DoneRecord done;
  std::optional<Choice> choice;  // where it is better than the heuristic's
};
std::optional<Known> find_known(Node kernel, const std::string& device);

}  // namespace tiny
