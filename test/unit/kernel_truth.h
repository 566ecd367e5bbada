// Machine-stage graphs written by hand or taken from kernels, and what they do found by trying all
// iterations: another evaluator than that of the proofs that it judges.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "codegen/proof/prove.h"
#include "codegen/target/target.h"
#include "tiny/ir/node.h"

namespace tiny::test {

constexpr int64_t kPatient = 50 * kSolverSteps;

inline Node range(int id, int64_t extent, RangeKind kind = RangeKind::Loop) {
  return make(Op::Range, kI64, {constant(kI64, extent)}, RangeArg{id, kind});
}
inline Node num(int64_t v) { return constant(kI64, v); }
inline Node op(Op o, Node a, Node b) {
  return make(o, is_comparison(o) ? kBool.vec(a->dtype.lanes) : a->dtype, {a, b});
}
inline Node add(Node a, Node b) { return op(Op::Add, a, b); }
inline Node mul(Node a, int64_t f) { return op(Op::Mul, a, constant(a->dtype, f)); }
inline Node lt(Node a, int64_t limit) { return op(Op::Lt, a, constant(a->dtype, limit)); }
inline Node above(int64_t limit, Node a) { return op(Op::Lt, constant(a->dtype, limit), a); }
inline Node both_of(Node a, Node b) { return op(Op::And, a, b); }
inline Node splat(Node x, int lanes) { return make(Op::Broadcast, x->dtype.vec(lanes), {x}); }
inline Node ramp(int lanes) { return make(Op::Ramp, kI64.vec(lanes)); }

inline Node param(int slot, int64_t size, DType t = kF32) {
  const int64_t arg[] = {slot, size};
  return make(Op::Param, t, {}, Ints(arg));
}
inline Node load(Node from, Node at, Node gate = nullptr, int lanes = 1) {
  std::vector<Node> srcs{from, at};
  if (gate) srcs.push_back(gate);
  return make(Op::Load, from->dtype.vec(lanes), srcs);
}
inline Node store(Node to, Node at, Node value, Node gate = nullptr) {
  std::vector<Node> srcs{to, at, value};
  if (gate) srcs.push_back(gate);
  return make(Op::Store, kVoid, srcs);
}
inline Node sink(std::vector<Node> stores) { return make(Op::Sink, kVoid, stores); }

inline ProofSettings patient() {
  ProofSettings s;
  s.steps = kPatient;
  s.iterations = 1 << 20;
  return s;
}

inline Proof proof_of(std::vector<Node> stores) {
  return prove(sink(std::move(stores)), patient());
}

// Each element of an output of `size` is stored once by a plain loop: what is under test is read.
inline Proof reading(Node value, Node r) {
  return proof_of({store(param(0, r->src(0)->vmax), r, value)});
}

std::vector<Node> accesses_of(Node kernel);

struct Truth {
  bool inside = true, once = true;  // every access inside its buffer, every element written once
};
// Nothing where there are too many iterations or memory decides.
std::optional<Truth> truth_of(Node kernel);

// Whether no iteration reads an element of the buffer that another one writes. Nothing where there
// are too many iterations, memory decides, or a store does not depend on all loads.
std::optional<bool> reads_before_writing(Node kernel, int slot);

// Whether an example of a proof, in its words, is one: "r0=3, lane 1: reads element 8 of 8 of
// buffer 1".
bool is_example(const std::string& text, Node kernel);

enum class Fault { PlusOne, MinusOne, NoGate, LooserGate, SwappedStrides };

// The kernel with the fault in one of its accesses; nullptr where it does not apply there.
Node with_fault(Node kernel, Node access, Fault fault);

// A CPU of two cores with vectors of 16 bytes, for which C is printed.
Target small_target();

}  // namespace tiny::test
