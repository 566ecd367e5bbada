#include <algorithm>
#include <cctype>

#include "test/programs/check.h"
#include "tiny/base/error.h"

namespace tiny::programs {

namespace {

// Greedy: each change that leaves a failing program stays, until none does.
class Shrinker {
 public:
  Shrinker(Program program, const std::function<bool(const Program&)>& fails)
      : best_(std::move(program)), fails_(fails) {}

  Program run() {
    bool any = true;
    while (any && tries_ < kTries) {
      any = drop_unused();
      any |= drop_outputs();
      any |= replace_steps();
      any |= simplify();
      any |= shrink_sizes();
    }
    return std::move(best_);
  }

 private:
  static constexpr int kTries = 3000;

  bool take(const Program& p) {
    if (++tries_ > kTries || !fails_(p)) return false;
    best_ = p;
    return true;
  }

  // Steps that no output needs go, save those that the failure needs all the same.
  static Program without_unused(const Program& p) {
    std::vector<bool> needed(p.steps.size(), false);
    for (int i : p.outputs) needed[static_cast<size_t>(i)] = true;
    const int realize = row_named("realize");
    for (size_t n = p.steps.size(); n-- > 0;)
      if (needed[n])
        for (int i : p.steps[n].in) needed[static_cast<size_t>(i)] = true;
    Program out = p;
    out.steps.clear();
    std::vector<int> at(p.steps.size(), -1);
    for (size_t n = 0; n < p.steps.size(); ++n) {
      Step s = p.steps[n];
      if (s.row == realize)
        std::erase_if(s.in, [&](int i) { return at[static_cast<size_t>(i)] < 0; });
      if (s.row == realize ? s.in.empty() : !needed[n]) continue;
      for (int& i : s.in) i = at[static_cast<size_t>(i)];
      at[n] = static_cast<int>(out.steps.size());
      out.steps.push_back(std::move(s));
    }
    for (int& i : out.outputs) i = at[static_cast<size_t>(i)];
    return out;
  }

  bool drop_unused() {
    const Program p = without_unused(best_);
    return p.steps.size() < best_.steps.size() && take(p);
  }

  bool drop_outputs() {
    bool any = false;
    for (size_t i = best_.outputs.size(); i-- > 0 && best_.outputs.size() > 1;) {
      Program p = best_;
      p.outputs.erase(p.outputs.begin() + static_cast<int64_t>(i));
      any |= take(without_unused(p));
      i = std::min(i, best_.outputs.size());
    }
    return any;
  }

  // Users of step n read its input, or a leaf in its place.
  bool replace_steps() {
    bool any = false;
    for (size_t n = best_.steps.size(); n-- > 0;) {
      if (n >= best_.steps.size()) continue;
      const Step s = best_.steps[n];
      if (has(row_of(s), 'l')) continue;
      if (s.row == row_named("realize")) {
        Program p = best_;
        p.steps[n].in.clear();
        any |= take(without_unused(p));
        continue;
      }
      bool gone = false;
      for (size_t i = 0; i < s.in.size() && !gone; ++i)
        if (s.in[i] >= 0) gone = take(without_unused(redirected(n, s.in[i])));
      if (!gone) gone = take(without_unused(with_leaf(n)));
      any |= gone;
    }
    return any;
  }

  Program redirected(size_t from, int to) const {
    Program p = best_;
    for (Step& s : p.steps)
      for (int& i : s.in)
        if (i == static_cast<int>(from)) i = to;
    for (int& i : p.outputs)
      if (i == static_cast<int>(from)) i = to;
    return p;
  }

  // The step's values as a leaf of random ones in that shape.
  Program with_leaf(size_t n) const {
    Program p = best_;
    try {
      const EnvOverride device("DEVICE", "CPU");
      const Tensor value = build(best_, {.realizes = false}).values[n];
      if (!value.dtype().is_float()) return p;
      Step s;
      s.row = row_named("leaf");
      s.a = to_shape(value.shape());
      s.t = value.dtype();
      s.seed = n + 1;
      p.steps[n] = s;
    } catch (const std::exception&) {
    }
    return p;
  }

  bool simplify() {
    bool any = false;
    Program p = best_;
    p.gradient = false;
    any |= best_.gradient && take(p);
    p = best_;
    p.grouping = 0;
    any |= best_.grouping && take(p);
    p = best_;
    p.in_memory = false;
    any |= best_.in_memory && take(p);
    for (size_t n = 0; n < best_.steps.size(); ++n) {
      p = best_;
      if (!p.steps[n].t.is_float() || p.steps[n].t == kF64) continue;
      for (Step& s : p.steps)
        if (s.t.is_float()) s.t = kF64;
      any |= take(p);
      break;
    }
    return any;
  }

  // A size is the same number wherever it stands: all of them at once, and each alone.
  bool shrink_sizes() {
    bool any = false;
    std::vector<int64_t> sizes;
    for (const Step& s : best_.steps)
      for (int64_t v : s.a)
        if (v > 1 && std::find(sizes.begin(), sizes.end(), v) == sizes.end()) sizes.push_back(v);
    for (int64_t size : sizes)
      for (int64_t smaller : {int64_t{1}, int64_t{2}, size / 2, size - 1}) {
        if (smaller < 1 || smaller >= size) continue;
        Program p = best_;
        for (Step& s : p.steps)
          for (Shape* list : {&s.a, &s.b}) std::replace(list->begin(), list->end(), size, smaller);
        bool smaller_too = take(p);
        if (!smaller_too) {  // where a size stands beside the shapes as well
          for (Step& s : p.steps)
            if (s.i == size) s.i = smaller;
          smaller_too = take(p);
        }
        if (smaller_too) {
          any = true;
          break;
        }
      }
    for (size_t n = 0; n < best_.steps.size(); ++n) {
      const Step s = best_.steps[n];
      if (s.row == row_named("leaf") && s.a.size() > 1) {
        for (size_t d = 0; d < s.a.size(); ++d) {
          Program p = best_;
          if (d >= p.steps[n].a.size()) break;
          p.steps[n].a.erase(p.steps[n].a.begin() + static_cast<int64_t>(d));
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

// What two failures of one cause have in common: the words without numbers.
std::string kind_of(const std::string& difference) {
  if (!difference.starts_with("throws: ")) return difference.substr(0, difference.find(' '));
  std::string out;
  for (char c : difference.substr(0, 60))
    if (!std::isdigit(static_cast<unsigned char>(c))) out += c;
  return out.substr(0, 36);
}

std::string difference_of(const Program& program, const std::string& setting) {
  return Checker(program).difference(setting);
}

}  // namespace

bool is_sound(const Program& program) {
  try {
    const EnvOverride device("DEVICE", "CPU");
    std::vector<Node> roots;
    const Built built = build(program, {.realizes = false});
    for (const Tensor& t : built.results) roots.push_back(t.node());
    evaluate(roots);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

std::string report(const Program& program, const std::string& setting, const std::string& text) {
  const std::string kind = kind_of(text);
  const Program small = shrink(program, [&](const Program& p) {
    return is_sound(p) && kind_of(difference_of(p, setting)) == kind;
  });
  return cat("program ", program.seed, " with ", name_of(setting), ": ", text,
             "\nsmaller: ", difference_of(small, setting), '\n', to_cpp(small, setting));
}

Program shrink(Program program, const std::function<bool(const Program&)>& fails) {
  return Shrinker(std::move(program), fails).run();
}

}  // namespace tiny::programs
