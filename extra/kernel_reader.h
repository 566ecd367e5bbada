// Reads kernels as DEBUG=5 prints them: lines such as "%3 Add index %1 %2", under headings
// "--- stage".
#pragma once
#include <algorithm>
#include <istream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "tiny/base/error.h"
#include "tiny/ir/node.h"
#include "tiny/ir/print.h"

namespace tiny {

inline DType dtype_named(const std::string& name) {
  const size_t x = name.rfind('x');
  for (auto s = static_cast<int>(Scalar::Bool); s <= static_cast<int>(Scalar::Index); ++s) {
    const DType t{static_cast<Scalar>(s)};
    if (t.name() == name) return t;
    const bool vector = x != std::string::npos && x > 0 && x + 1 < name.size() && name[x + 1] > '0';
    if (vector && t.name() == name.substr(0, x) && name[x + 1] <= '9')
      return t.vec(std::stoi(name.substr(x + 1)));
  }
  return kVoid;
}

inline Op op_named(const std::string& name) {
  for (int i = 0; i < kOps; ++i)
    if (name == kOpTable[i].name) return static_cast<Op>(i);
  throw Error(cat("no operation is called ", name));
}

inline RangeKind kind_named(const std::string& name) {
  for (int i = 0; i <= static_cast<int>(RangeKind::Device); ++i)
    if (name == name_of(static_cast<RangeKind>(i))) return static_cast<RangeKind>(i);
  throw Error(cat("no kind of range is called ", name));
}

inline std::vector<int64_t> numbers(std::string list) {  // "[0,512]"
  std::replace_if(
      list.begin(), list.end(), [](char c) { return c == ',' || c == '[' || c == ']'; }, ' ');
  std::istringstream in(list);
  std::vector<int64_t> out;
  for (int64_t v; in >> v;) out.push_back(v);
  return out;
}

// Lines "%3 Add index %1 %2" until one that is none, or one of another kernel: numbers begin anew.
// The last node.
class KernelReader {
 public:
  bool add(const std::string& line) {
    std::istringstream in(line);
    std::string name, op_name, word;
    if (!(in >> name >> op_name) || name[0] != '%') return false;
    if (name == "%0" && !nodes_.empty()) return false;
    const Op op = op_named(op_name);
    DType t = kVoid;
    Payload payload;
    std::vector<Node> srcs;
    while (in >> word) {
      if (word[0] == '%') {
        srcs.push_back(nodes_.at(std::stoul(word.substr(1))));
      } else if (t == kVoid && dtype_named(word) != kVoid) {
        t = dtype_named(word);
      } else if (word[0] == '[') {
        lists_.push_back(std::make_unique<std::vector<int64_t>>(numbers(word)));
        payload = Ints(*lists_.back());
      } else if (op == Op::Const) {
        if (t.is_float())
          payload = std::stod(word);
        else
          payload = static_cast<int64_t>(std::stoll(word));
      } else if (op == Op::Range) {
        const int id = std::stoi(word.substr(1));
        in >> word;
        payload = RangeArg{id, kind_named(word)};
      } else if (word[0] != '(') {
        payload = OpArg{op_named(word)};
      }
    }
    nodes_.push_back(make(op, t, srcs, payload));
    return true;
  }
  Node last() const { return nodes_.back(); }
  bool empty() const { return nodes_.empty(); }

 private:
  std::vector<Node> nodes_;
  std::vector<std::unique_ptr<std::vector<int64_t>>> lists_;
};

// Calls take(graph) for each graph of a stage (all where there are no headings), in an arena that
// lives as long as the call.
template <class Take> void read_kernels(std::istream& in, const std::string& stage, Take take) {
  bool wanted = true;  // text without headings is one kernel
  std::string line;
  bool more = static_cast<bool>(std::getline(in, line));
  while (more) {
    if (line.starts_with("--- ")) wanted = line == "--- " + stage;
    Arena arena;
    ArenaScope scope(arena);
    KernelReader reader;
    if (!wanted || !line.starts_with('%')) {
      more = static_cast<bool>(std::getline(in, line));
      continue;
    }
    while (more && reader.add(line)) more = static_cast<bool>(std::getline(in, line));
    take(reader.last());
  }
}

}  // namespace tiny
