#include "tiny/ir/verify.h"

#include "tiny/base/error.h"
#include "tiny/ir/print.h"

namespace tiny {

namespace {

bool is_legal_op(Op op, Form form) {
  const OpClass cls = info(op).cls;
  if (op == Op::Sink || op == Op::Const || op == Op::Param || is_elementwise(op)) return true;
  if (form == Form::Tensor) return cls != OpClass::Kernel && cls != OpClass::Statement;
  if (op == Op::Range || op == Op::Load || op == Op::Store || op == Op::Reduce ||
      op == Op::Prefix || op == Op::Roll || op == Op::Matrix || op == Op::Mma || op == Op::Stage ||
      op == Op::Shuffle)
    return true;
  return form != Form::Kernel && cls == OpClass::Kernel;
}

bool is_expanded_before(RangeKind kind, Form form) {
  return kind == RangeKind::Vector && (form == Form::Vector || form == Form::Machine);
}

// The rule that `n` breaks, or nullptr.
const char* broken_rule(Node n, Form form) {
  if (!is_legal_op(n->op, form)) return "this operation has no place here";
  const int arity = info(n->op).arity;
  if (arity >= 0 && static_cast<uint32_t>(arity) != n->num_src) return "wrong number of sources";
  if (form == Form::Machine && n->dtype.scalar == Scalar::Index) return "an index without width";
  if (n->op == Op::Range && is_expanded_before(n->arg<RangeArg>().kind, form))
    return "a range that should have been expanded";
  if (!is_elementwise(n->op)) return nullptr;
  for (Node s : n->srcs()) {
    if (s->dtype.lanes != n->dtype.lanes) return "sources have other lanes than the result";
    if (form == Form::Tensor && !same(s->shape(), n->shape())) return "sources differ in shape";
  }
  const OpClass cls = info(n->op).cls;
  if (cls == OpClass::Binary && n->src(0)->dtype != n->src(1)->dtype)
    return "the two sources have different dtypes";
  if (cls == OpClass::Binary && !is_comparison(n->op) && n->dtype != n->src(0)->dtype)
    return "the result has another dtype than the sources";
  if (is_comparison(n->op) && !n->dtype.is_bool()) return "a comparison must be bool";
  if (n->op == Op::Where && (!n->src(0)->dtype.is_bool() || n->src(1)->dtype != n->src(2)->dtype ||
                             n->dtype != n->src(1)->dtype))
    return "the branches of where differ in dtype, or its condition is no bool";
  if (n->op == Op::MulAdd && (n->src(0)->dtype != n->dtype || n->src(1)->dtype != n->dtype ||
                              n->src(2)->dtype != n->dtype || !n->dtype.is_float()))
    return "a sum of a product that is no float, or of several dtypes";
  if (n->op == Op::ByteDot)
    for (Node s : n->srcs())
      if (s->dtype != n->dtype || n->dtype.scalar != Scalar::I32)
        return "a byte_dot of another dtype than i32";
  return nullptr;
}

}  // namespace

void verify(Node root, Form form, const char* pass) {
  for (Node n : topological(root))
    if (const char* rule = broken_rule(n, form))
      throw Bug(cat("after ", pass, ": ", rule, ":\n", to_text(n)));
}

}  // namespace tiny
