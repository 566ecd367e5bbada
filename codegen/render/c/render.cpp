#include "codegen/render/c/render.h"

#include <algorithm>

#include "codegen/kernel/access.h"
#include "codegen/kernel/facts.h"
#include "codegen/options/mma.h"
#include "codegen/options/thread_group.h"
#include "codegen/render/c/printer.h"

namespace tiny {

Source render_c(const Linear& program, const Target& target) {
  return CPrinter(program, target).print();
}

Source CPrinter::print() {
  scalars_.insert(Scalar::I64);  // of begin and end
  for (Node n : program_.body)
    if (n->is(Op::Matrix)) matrix_ = n;
  find_grid();
  fetches_ = std::ranges::any_of(program_.body, [](Node n) { return n->is(Op::Fetch); });
  staged_loop_.find(program_);
  declare_stages();
  for (Node n : program_.body) {
    statements_ += n->is(Op::Loop) || n->is(Op::EndLoop);
    if (n->is(Op::EndLoop) && selections_.whole.is_open_in(n->src(0))) close_whole_tile();
    statement(n);
    staged_loop_.printed(n);
    if (selections_.whole.is_test(n) && dialect_.classes) open_whole_tile(n);
  }
  return {program_.name, text(), dialect_.language, program_.is_gemm};
}

std::string CPrinter::type(DType t) {
  if (t.is_bool() && t.lanes == 1) return dialect_.boolean;
  scalars_.insert(t.scalar);
  if (t.lanes > 1) vectors_.insert({t.scalar, t.lanes});
  return t.name();
}

std::string CPrinter::define(DType t, Str expression) {
  const std::string name = fresh();
  line(cat("const ", type(t), " ", name, " = ", bare(expression), ";"));
  return name;
}

std::string CPrinter::named(Node n) {
  const std::string v = value(n);
  if (n->is_const()) return v;
  if (v.size() <= 12 && v.find(' ') == std::string::npos) return v;
  return define(n->dtype, v);
}

std::string CPrinter::typed(Node n) {
  const std::string v = value(n);
  return n->is_const() || v.find_first_of(" (") != v.npos ? define(n->dtype, v) : v;
}

// A subscript binds closer than a cast.
std::string CPrinter::subscripted(Node n) {
  const std::string v = named(n);
  return v.front() == '(' ? define(n->dtype, v) : v;
}

std::string CPrinter::value(Node n) {
  const DType t = n->dtype;
  switch (n->op) {
    case Op::Const: {
      const std::string one = scalar_text(n, dialect_);
      return t.lanes > 1 ? splat(t, one) : one;
    }
    case Op::Ramp: return fill(dialect_.lanes, {{'T', type(t)}, {'L', numbers(t.lanes, 0, 1)}});
    case Op::Range: return cat("r", n->arg<RangeArg>().id);
    default: break;
  }
  const std::string* name = values_.find(n);
  expect(name, "render_c: ", n->op, " is used before it is defined");
  return *name;
}

// A parameter for each slot on a GPU, where arguments are counted; else of the buffers in use.
std::string CPrinter::parameters() const {
  std::string params;
  for (size_t i = 0; i < program_.params.size(); ++i) {
    const Node param = program_.params[i];
    if (!param && !dialect_.classes) continue;
    if (!params.empty()) params += ", ";
    if (!param) {
      params += cat("const u8* b", i);
      continue;
    }
    params += cat(program_.written[i] ? "" : "const ", in_memory(param->dtype.one()).name(), "* ",
                  dialect_.restrict_word, " b", i);
  }
  return params;
}

std::string CPrinter::text() {
  std::string args, scalars, vectors;
  for (size_t i = 0; i < program_.params.size(); ++i) {
    if (!program_.params[i]) continue;
    type(in_memory(program_.params[i]->dtype.one()));
    args += cat("args[", i, "], ");
  }
  for (Scalar s : scalars_)
    if (s != Scalar::Bool) scalars += cat("typedef ", c_scalar(s), " ", DType(s).name(), ";\n");
  for (const auto& [s, lanes] : vectors_) {
    const DType t(s, lanes);
    vectors += fill(dialect_.vector_type, {{'T', t.name()},
                                           {'S', dialect_.classes ? t.one().name() : c_scalar(s)},
                                           {'L', cat(lanes)},
                                           {'B', cat(t.size())},
                                           {'V', cat(t.size() * lanes)}});
  }
  const bool has_units = std::ranges::any_of(program_.body, [](Node n) { return n->is(Op::Mma); });
  const bool is_tile = fetches_ && !has_units;
  const int blocks = is_tile ? staged_loop_.blocks(use_.threads) : fragments_.blocks(use_.threads);
  const std::string head =
      fill(dialect_.body, {{'N', program_.name},
                           {'P', parameters()},
                           {'H', blocks ? cat("TILE_KERNEL(", use_.threads, ", ", blocks, ")")
                                        : cat("KERNEL(", use_.threads, ")")},
                           {'K', cat(use_.threads)}});
  const std::string kernel = matrix_
                                 ? matrix_text()
                                 : fragments_.helpers() + head + shared_ + body_ + "}\n" +
                                       fill(dialect_.entry, {{'N', program_.name}, {'A', args}});
  use_.text = vectors + kernel;
  const std::string prelude = dialect_.prelude(use_);
  return (dialect_.classes ? prelude + vectors : scalars + vectors + prelude) + kernel;
}

// --- statements ------------------------------------------------------------------------------

void CPrinter::statement(Node n) {
  fragments_.end_products(n);
  switch (n->op) {
    case Op::Const:
    case Op::Range:
    case Op::Param:
    case Op::Ramp:
    case Op::Roll:  // printed with the sum's update
    case Op::Stage: return;
    case Op::Loop: return open_loop(n);
    case Op::Fetch: return fetch(n->src(0));
    case Op::Barrier: return barrier(n);
    case Op::EndLoop: return close_loop(n->src(0));
    case Op::Acc: return declare_accumulator(n->src(0));
    case Op::Update: return update(n->src(0));
    case Op::Rescale: return fragments_.rescale(n);
    case Op::Group: return group(n->src(0));
    case Op::Store: return store(n);
    case Op::Matrix: before_ = std::move(body_); return body_.clear();
    // Named at once: the accumulator may be declared anew before the value is used.
    case Op::Reduce: values_[n] = define(n->dtype, accumulators_[n]); return;
    case Op::Mma:
      if (!mma_unit(n).warpgroup) break;
      if (!fragments_.is_added(n)) values_[n] = fragments_.begin_product(n);
      return;
    case Op::Load:
      if (!fragments_.is_described(n)) values_[n] = load(n);
      return;
    case Op::Prefix: return prefix(n);
    default: break;
  }
  if (fragments_.is_added(n)) return;  // printed with the sum's update
  if (dialect_.classes && selections_.is_hidden(n)) return;
  const std::string expression = selections_.is_done(n) ? value(n->src(1)) : arithmetic(n);
  const bool is_lane = n->is(Op::Shuffle) && n->dtype.lanes == 1;
  const bool inside = (is_lane || single_use_(n)) && expression.size() <= 60;
  values_[n] = inside ? expression : define(n->dtype, expression);
}

void CPrinter::find_grid() {
  for (Node n : program_.body) {
    if (!n->is(Op::Loop)) continue;
    const Node range = n->src(0);
    if (range->arg<RangeArg>().kind == RangeKind::Block) blocks_.push_back(range);
    if (range->arg<RangeArg>().kind != RangeKind::Thread) continue;
    threads_.push_back(range);
    use_.threads *= static_cast<int>(range->src(0)->int_value());
  }
  expect(blocks_.size() <= 3 && threads_.size() <= 3, "render_c: more than three grid ranges");
  expect(dialect_.classes || (blocks_.empty() && threads_.empty()), "render_c: a grid in C");
}

bool CPrinter::is_grid(Node range) const {
  const RangeKind kind = range->arg<RangeArg>().kind;
  return kind == RangeKind::Block || kind == RangeKind::Thread;
}

void CPrinter::barrier(Node n) {
  if (!dialect_.classes) return;  // there is one thread
  if (fetches_) line(cat("copies.wait<", n->src(0)->int_value(), ">();"));
  if (fragments_.has_warpgroups()) line("fence_async();");
  line("barrier();");
}

void CPrinter::open_loop(Node loop) {
  if (staged_loop_.open(loop)) return;
  Node range = loop->src(0);
  const int64_t lead = loop->num_src == 2 ? loop->src(1)->int_value() : 0;
  const std::string r = value(range);
  const RangeKind kind = range->arg<RangeArg>().kind;
  if (is_grid(range)) {
    if (matrix_) return;
    const std::vector<Node>& all = kind == RangeKind::Block ? blocks_ : threads_;
    const auto after = all.end() - std::ranges::find(all, range);
    line(cat("const ", type(range->dtype), " ", r, " = ",
             kind == RangeKind::Block ? "block_" : "thread_", "xyz"[after - 1], "();"));
    return;
  }
  const bool core = kind == RangeKind::Core && !dialect_.classes;
  const Node extent = range->src(0);
  std::string end = core ? "end" : value(extent);
  if (core && !extent->is_const())  // the launch covers the extent's bound
    end = cat("(end < ", value(extent), " ? end : ", value(extent), ")");
  line(cat(kind == RangeKind::Unroll ? "UNROLL " : "", "for (", type(range->dtype), " ", r, " = ",
           core ? "begin" : cat(-lead), "; ", r, " < ", end, "; ++", r, ") {"));
  ++depth_;
  ++loops_;
}

// The rest of an iteration as a function of whether all of its tile is seen: compiled twice.
void CPrinter::open_whole_tile(Node test) {
  selections_.whole.text = value(test);
  values_[test] = "whole";
  line("const auto tile = [&](auto whole) {");
  ++depth_;
}

void CPrinter::close_whole_tile() {
  fragments_.end_products();
  --depth_;
  line("};");
  line(cat("if (", bare(selections_.whole.text), ") tile(Constant<true>());"));
  line("else tile(Constant<false>());");
  selections_.whole.text.clear();
}

void CPrinter::close_loop(Node range) {
  if (is_grid(range) || staged_loop_.close(range)) return;
  fragments_.end_products();
  --loops_;
  --depth_;
  line("}");
}

void CPrinter::declare_accumulator(Node reduce) {
  std::string& name = accumulators_[reduce];
  name = cat("acc", ++accumulator_names_);
  const Node start = identity(reduce->arg<OpArg>().op, reduce->dtype);
  line(cat(type(reduce->dtype), " ", name, " = ", bare(value(start)), ";"));
}

void CPrinter::update(Node reduce) {
  const Op op = combine_op(reduce->arg<OpArg>().op, reduce->dtype);
  const std::string acc = accumulators_[reduce];
  const Node term = updated_with(reduce);
  if (term->is(Op::Roll))
    return line(
        cat(acc, " = ", mul_add(term->dtype, acc, value(term->src(1)), value(term->src(0))), ";"));
  if (adds_product(reduce))
    return line(
        cat(acc, " = ", mul_add(term->dtype, value(term->src(0)), value(term->src(1)), acc), ";"));
  if (fragments_.is_added(term)) return fragments_.update(acc, term);
  const bool twice = op == Op::Max || op == Op::Min;
  const std::string v = twice ? named(term) : value(term);
  line(cat(acc, " = ", bare(combine(op, reduce->dtype, acc, v)), ";"));
}

// A function of the prelude by which threads combine theirs, and the shared memory for it.
std::string CPrinter::among_threads(const char* what, Node n, const std::string& x) {
  const ThreadGroup g = group_of(n, threads_, use_.warp, loops_ > 0);
  const Op op = combine_op(n->arg<OpArg>().op, n->dtype);
  const std::string id = cat(++groups_);
  shared_ += cat("  SHARED(", type(n->dtype), ", shared", id, ", ", g.elements(), ");\n");
  if (g.turns) shared_ += cat("  int turn", id, " = 0;\n");
  const std::string function =
      g.apart > 1 ? cat("apart_", function_name(op), "<", g.width, ", ", g.apart, ">")
                  : cat(what, function_name(op), "<", g.width, ">");
  return cat(function, "(", x, ", shared", id,
             g.turns ? cat(" + (turn", id, " ^= ", g.values(), ")") : "", ")");
}

void CPrinter::group(Node reduce) {
  const std::string acc = accumulators_[reduce];
  line(cat(acc, " = ", among_threads("group_", reduce, acc), ";"));
}

// Named at once: threads meet here, not in a branch in which the value is used.
void CPrinter::prefix(Node n) {
  if (is_running(n)) {
    values_[n] = define(n->dtype, accumulators_[running_reduce(n)]);
    return;
  }
  const Node none = identity(n->arg<OpArg>().op, n->dtype);
  const std::string x = cat(bare(value(n->src(0))), ", ", bare(value(none)));
  values_[n] = define(n->dtype, among_threads("prefix_", n, x));
}

}  // namespace tiny
