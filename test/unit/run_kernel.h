// Small linear programs made by hand, and a way to run them with each of the CPU's compilers.
#pragma once
#include <cstring>
#include <string>
#include <vector>

#include "codegen/render/c/render.h"
#include "codegen/render/llvm/render.h"
#include "devices/cpu/cc.h"
#include "devices/cpu/cpu.h"
#include "devices/cpu/llvm.h"

namespace tiny::test {

inline Node param(int slot, DType dtype) {
  const int64_t dims[] = {slot, 1};
  return make(Op::Param, dtype, {}, Ints(dims));
}
inline Node range(int id, int64_t extent, RangeKind kind = RangeKind::Loop, DType dtype = kI64) {
  return make(Op::Range, dtype, {constant(dtype, extent)}, RangeArg{id, kind});
}
inline Node op(Op o, Node a, Node b) {
  const DType t = is_comparison(o) ? kBool.vec(a->dtype.lanes) : a->dtype;
  return make(o, t, {a, b});
}
inline Node splat(Node x, int lanes) { return make(Op::Broadcast, x->dtype.vec(lanes), {x}); }

// Statements in order; sources that were not defined yet come first.
class Statements {
 public:
  explicit Statements(std::string name) { linear_.name = std::move(name); }
  Statements& values(Node n) {
    for (Node s : topological(n)) {
      if (s->is(Op::Param)) use(s);
      if (info(s->op).cls == OpClass::Leaf || defined_.contains(s)) continue;
      defined_[s] = true;
      linear_.body.push_back(s);
      if (s->is(Op::Store)) linear_.written[static_cast<size_t>(s->src(0)->ints()[0])] = true;
    }
    return *this;
  }
  Statements& loop(Node range) { return statement(Op::Loop, range); }
  Statements& end(Node range) { return statement(Op::EndLoop, range); }
  Statements& accumulate(Node reduce) { return statement(Op::Acc, reduce); }
  Statements& update(Node reduce) {
    values(reduce->src(0));
    return statement(Op::Update, reduce);
  }
  Statements& group(Node reduce) { return statement(Op::Group, reduce); }
  Statements& result(Node reduce) {
    defined_[reduce] = true;
    linear_.body.push_back(reduce);
    return *this;
  }
  const Linear& linear() const { return linear_; }

 private:
  Statements& statement(Op o, Node of) {
    linear_.body.push_back(make(o, kVoid, {of}));
    return *this;
  }
  void use(Node p) {
    const auto slot = static_cast<size_t>(p->ints()[0]);
    if (linear_.params.size() <= slot) linear_.params.resize(slot + 1);
    linear_.written.resize(linear_.params.size());
    linear_.params[slot] = p;
  }
  Linear linear_;
  NodeMap<bool> defined_;
};

enum class Compiler { Llvm, Cc };

inline std::vector<Compiler> compilers() {
  if (!llvm_available()) return {Compiler::Cc};
  return {Compiler::Llvm, Compiler::Cc};
}

inline Target host_target(Compiler compiler) {
  Target target;
  target.language = compiler == Compiler::Llvm ? Target::Language::LlvmIr : Target::Language::C;
  return target;
}

// Compiles the program for `target`, whose language chooses the compiler, and runs begin .. end.
inline void run(const Linear& linear, const Target& target, std::vector<void*> args, int64_t begin,
                int64_t end) {
  const bool llvm = target.language == Target::Language::LlvmIr;
  const Source source = llvm ? render_llvm(linear, target) : render_c(linear, target);
  const std::string binary = llvm ? compile_llvm(source) : compile_cc(source);
  const auto program = llvm ? load_llvm(binary, source.entry) : load_cc(binary, source.entry);
  static_cast<CpuProgram&>(*program).kernel()(args.data(), begin, end);
}

}  // namespace tiny::test
