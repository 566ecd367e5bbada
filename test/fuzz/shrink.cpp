// Smaller programs that still fail, and programs as C++.
#include <algorithm>
#include <sstream>

#include "test/fuzz/random_graph.h"
#include "tiny/base/error.h"

namespace tiny::fuzz {

namespace {

// Without the steps that no output needs.
Program without_dead_steps(const Program& p) {
  std::vector<char> used(p.steps.size());
  for (int o : p.outputs) used[static_cast<size_t>(o)] = 1;
  for (size_t i = p.steps.size(); i-- > 0;)
    if (used[i])
      for (int s : p.steps[i].in) used[static_cast<size_t>(s)] = 1;
  std::vector<int> place(p.steps.size(), -1);
  Program out = p;
  out.steps.clear();
  for (size_t i = 0; i < p.steps.size(); ++i) {
    if (!used[i]) continue;
    place[i] = static_cast<int>(out.steps.size());
    out.steps.push_back(p.steps[i]);
    for (int& s : out.steps.back().in) s = place[static_cast<size_t>(s)];
  }
  for (int& o : out.outputs) o = place[static_cast<size_t>(o)];
  return out;
}

// Shape and dtype of each step's value, empty where the program cannot be built.
std::vector<Tensor> values_of(const Program& p) {
  std::vector<Tensor> values;
  for (const Step& s : p.steps) {
    std::vector<Node> in;
    for (int i : s.in) in.push_back(values[static_cast<size_t>(i)].node());
    values.emplace_back(make_step(s, in, ""));
  }
  return values;
}

class Shrinker {
 public:
  Shrinker(Program p, const std::function<bool(const Program&)>& fails)
      : best_(without_dead_steps(p)), fails_(fails) {}

  Program run() {
    for (bool better = true; better && tries_ < kMaxTries;)
      better = fewer_outputs() | fewer_steps() | smaller_sizes() | plainer_steps();
    return best_;
  }

 private:
  static constexpr int kMaxTries = 1500;

  bool take(Program candidate) {
    if (++tries_ > kMaxTries) return false;
    candidate = without_dead_steps(candidate);
    try {
      values_of(candidate);
    } catch (const std::exception&) {
      return false;
    }
    if (!fails_(candidate)) return false;
    best_ = std::move(candidate);
    return true;
  }

  bool fewer_outputs() {
    bool any = false;
    for (size_t i = 0; best_.outputs.size() > 1 && i < best_.outputs.size();) {
      Program p = best_;
      p.outputs.erase(p.outputs.begin() + static_cast<ptrdiff_t>(i));
      if (take(p))
        any = true;
      else
        ++i;
    }
    if (best_.gradient) {
      Program p = best_;
      p.gradient = false;
      any |= take(p);
    }
    return any;
  }

  // A step becomes one of its sources, an earlier output, or a leaf of the same shape.
  bool fewer_steps() {
    bool any = false;
    for (size_t i = best_.steps.size(); i-- > 0;) {
      if (i >= best_.steps.size()) continue;
      if (best_.steps[i].kind == Kind::Leaf) continue;
      any |= bypass(i) || to_leaf(i) || output_below(i);
    }
    return any;
  }

  bool bypass(size_t i) {
    for (int source : best_.steps[i].in) {
      Program p = best_;
      for (size_t k = i + 1; k < p.steps.size(); ++k)
        std::replace(p.steps[k].in.begin(), p.steps[k].in.end(), static_cast<int>(i), source);
      std::replace(p.outputs.begin(), p.outputs.end(), static_cast<int>(i), source);
      if (take(p)) return true;
    }
    return false;
  }

  bool to_leaf(size_t i) {
    Program p = best_;
    const std::vector<Tensor> values = values_of(p);
    Step s;
    s.arg = to_shape(values[i].shape());
    s.dtype = values[i].dtype();
    s.seed = i + 1;
    p.steps[i] = s;
    return take(p);
  }

  bool output_below(size_t i) {
    const auto at = std::find(best_.outputs.begin(), best_.outputs.end(), static_cast<int>(i));
    if (at == best_.outputs.end()) return false;
    for (int source : best_.steps[i].in) {
      Program p = best_;
      p.outputs[static_cast<size_t>(at - best_.outputs.begin())] = source;
      if (take(p)) return true;
    }
    return false;
  }

  // Sizes of one kind shrink together, so that shapes that have to agree still do.
  bool smaller_sizes() {
    bool any = false;
    std::vector<int64_t> sizes;
    for (const Step& s : best_.steps)
      for (int64_t n : s.arg)
        if (n > 1 && std::find(sizes.begin(), sizes.end(), n) == sizes.end()) sizes.push_back(n);
    std::sort(sizes.rbegin(), sizes.rend());
    for (int64_t n : sizes)
      for (int64_t to : {int64_t{1}, int64_t{2}, n / 2, n - 1}) {
        if (to < 1 || to >= n) continue;
        if (resize(n, to)) {
          any = true;
          break;
        }
      }
    return any;
  }

  bool resize(int64_t from, int64_t to) {
    Program p = best_;
    for (Step& s : p.steps)
      if (s.kind == Kind::Leaf || s.kind == Kind::Iota || s.kind == Kind::Full ||
          s.kind == Kind::Expand)
        std::replace(s.arg.begin(), s.arg.end(), from, to);
    if (take(p)) return true;
    for (size_t i = 0; i < best_.steps.size(); ++i)  // one at a time, where they need not agree
      if (best_.steps[i].kind == Kind::Leaf) {
        p = best_;
        auto& arg = p.steps[i].arg;
        std::replace(arg.begin(), arg.end(), from, to);
        if (arg != best_.steps[i].arg && take(p)) return true;
      }
    return false;
  }

  bool plainer_steps() {
    bool any = false;
    for (size_t i = 0; i < best_.steps.size(); ++i) {
      const Kind kind = best_.steps[i].kind;
      Program p = best_;
      if (kind == Kind::Leaf && best_.steps[i].fill == Fill::Real) {
        p.steps[i].fill = Fill::Small;
        any |= take(p);
      } else if (kind == Kind::Pad || kind == Kind::Shrink) {
        for (size_t k = 0; k < best_.steps[i].arg.size(); ++k) {
          p = best_;
          if (p.steps[i].arg[k] == 0) continue;
          --p.steps[i].arg[k];
          any |= take(p);
        }
      }
    }
    return any;
  }

  Program best_;
  const std::function<bool(const Program&)>& fails_;
  int tries_ = 0;
};

// --- C++ -----------------------------------------------------------------------------------------

std::string list(Ints values) {
  std::string text = to_text(values);
  if (text.ends_with(",)")) text.erase(text.size() - 2, 1);
  return "Shape{" + text.substr(1, text.size() - 2) + "}";
}

std::string dtype_text(DType t) {
  std::string name = t.name();
  for (char& c : name) c = static_cast<char>(std::toupper(c));
  return t.is_bool() ? "kBool" : "k" + name;
}

struct PayloadText {
  std::string operator()(std::monostate) const { return ""; }
  std::string operator()(int64_t v) const { return cat(", int64_t{", v, "}"); }
  std::string operator()(double v) const { return cat(", double{", v, "}"); }
  std::string operator()(Ints v) const { return ", Ints(" + list(v) + ")"; }
  std::string operator()(RangeArg) const { return ""; }
  std::string operator()(ReduceArg a) const {
    return cat(", ReduceArg{Op::", a.op, ", ", a.axes, "}");
  }
  std::string operator()(OpArg a) const { return cat(", OpArg{Op::", a.op, "}"); }
  std::string operator()(ScatterArg a) const { return cat(", ScatterArg{Op::", a.op, "}"); }
  std::string operator()(const BufferArg& a) const { return cat(" /* buffer of ", a.size, " */"); }
};

// The nodes that are not named yet, one line each.
void write_nodes(std::ostringstream& out, Node root, NodeMap<std::string>& names) {
  for (Node n : topological(root)) {
    if (names.contains(n)) continue;
    const std::string name = cat("n", names.size());
    out << "Node " << name << " = make(Op::" << n->op << ", " << dtype_text(n->dtype) << ", {";
    for (uint32_t i = 0; i < n->num_src; ++i)
      out << (i ? ", " : "") << *names.find(n->src(static_cast<int>(i)));
    out << "}" << std::visit(PayloadText{}, n->payload) << ");  // " << to_text(n->shape()) << '\n';
    names[n] = name;
  }
}

}  // namespace

Program shrink(Program program, const std::function<bool(const Program&)>& fails) {
  return Shrinker(std::move(program), fails).run();
}

std::string to_cpp(const Program& program) {
  constexpr const char* kFills[] = {"Small", "Real", "Bits", "Index"};
  std::ostringstream out;
  out << "// seed " << program.seed << (program.gradient ? ", with gradients" : "") << '\n';
  NodeMap<std::string> names;
  std::vector<Tensor> values;
  for (const Step& s : program.steps) {
    std::vector<Node> in;
    for (int i : s.in) in.push_back(values[static_cast<size_t>(i)].node());
    values.emplace_back(make_step(s, in, ""));
    Node n = values.back().node();
    if (s.kind == Kind::Leaf) {
      const std::string name = cat("n", names.size());
      out << "Tensor t" << name << " = fuzz::leaf(" << dtype_text(s.dtype) << ", " << list(s.arg)
          << ", fuzz::Fill::" << kFills[static_cast<int>(s.fill)] << ", " << s.top << ", " << s.seed
          << "u, \"\");\nNode " << name << " = t" << name << ".node();\n";
      names[n] = name;
      if (n->num_src) names[n->src(0)] = name + "->src(0)";  // its Buffer
    } else {
      write_nodes(out, n, names);
    }
  }
  out << "std::vector<Tensor> outputs{";
  for (size_t i = 0; i < program.outputs.size(); ++i)
    out << (i ? ", " : "") << "Tensor("
        << *names.find(values[static_cast<size_t>(program.outputs[i])].node()) << ")";
  out << "};\n";
  return out.str();
}

}  // namespace tiny::fuzz
