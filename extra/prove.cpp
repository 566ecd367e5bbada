// Reads kernels as DEBUG=5 prints them (the stage index_width; others are skipped), proves each and
// prints the questions for a solver as SMT-LIB text. For bug reports:
//   DEBUG=5 DEBUG_PASS=index_width program 2>kernels.txt; build/release/prove kernels.txt
// Status 0 where all are proved, 1 where one is unproved, 2 where one is wrong or cannot be read.
#include "codegen/prove.h"

#include <algorithm>
#include <fstream>
#include <iostream>
#include <sstream>

#include "tiny/error.h"
#include "tiny/print.h"

using namespace tiny;

namespace {

DType dtype_named(const std::string& name) {
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

Op op_named(const std::string& name) {
  for (int i = 0; i < kOps; ++i)
    if (name == kOpTable[i].name) return static_cast<Op>(i);
  throw Error(cat("prove: no operation is called ", name));
}

RangeKind kind_named(const std::string& name) {
  for (int i = 0; i <= static_cast<int>(RangeKind::Device); ++i)
    if (name == name_of(static_cast<RangeKind>(i))) return static_cast<RangeKind>(i);
  throw Error(cat("prove: no kind of range is called ", name));
}

std::vector<int64_t> numbers(std::string list) {  // "[0,512]"
  std::replace_if(
      list.begin(), list.end(), [](char c) { return c == ',' || c == '[' || c == ']'; }, ' ');
  std::istringstream in(list);
  std::vector<int64_t> out;
  for (int64_t v; in >> v;) out.push_back(v);
  return out;
}

// Lines "%3 Add index %1 %2" until one that is none; the last node.
class Reader {
 public:
  bool add(const std::string& line) {
    std::istringstream in(line);
    std::string name, op_name, word;
    if (!(in >> name >> op_name) || name[0] != '%') return false;
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

int report(Node kernel) {
  ProofSettings settings;
  settings.seconds = 60;
  settings.iterations = int64_t{1} << 24;
  const Proof p = prove(kernel, settings);
  std::cout << to_smt(kernel) << "; " << name_of(p.verdict) << ": " << p.claims << " claims, "
            << p.settled[0] << " by intervals, " << p.settled[1] << " by walks, " << p.settled[2]
            << " by z3, " << p.settled[3] << " open\n";
  std::istringstream lines(p.text);
  for (std::string line; std::getline(lines, line);) std::cout << "; " << line << '\n';
  return static_cast<int>(p.verdict);
}

int prove_all(std::istream& in) {
  int worst = 0;
  bool wanted = true;  // text without headings is one kernel
  std::string line;
  bool more = static_cast<bool>(std::getline(in, line));
  while (more) {
    if (line.starts_with("--- ")) wanted = line == "--- index_width";
    Arena arena;
    ArenaScope scope(arena);
    Reader reader;
    if (!wanted || !line.starts_with('%')) {
      more = static_cast<bool>(std::getline(in, line));
      continue;
    }
    while (more && reader.add(line)) more = static_cast<bool>(std::getline(in, line));
    worst = std::max(worst, report(reader.last()));
  }
  return worst;
}

}  // namespace

int main(int count, char** arguments) {
  try {
    if (count < 2) return prove_all(std::cin);
    std::ifstream file(arguments[1]);
    check(file.good(), "prove: cannot read ", arguments[1]);
    return prove_all(file);
  } catch (const std::exception& e) {
    std::cerr << e.what() << '\n';
    return 2;
  }
}
