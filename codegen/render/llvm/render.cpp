#include "codegen/render/llvm/render.h"

#include "codegen/kernel/access.h"
#include "codegen/kernel/facts.h"
#include "codegen/options/stage.h"
#include "codegen/render/llvm/amx.h"
#include "codegen/render/llvm/printer.h"

namespace tiny {

using namespace llvm_text;

Source render_llvm(const Linear& program, const Target& target) {
  if (has_tiles(program)) return render_llvm_tiles(program, target);
  return LlvmPrinter(program, target).print();
}

// --- lines and names ---------------------------------------------------------------------------
std::string LlvmPrinter::define(Str text) {
  const std::string name = fresh();
  line(name + " = " + text);
  return name;
}

void LlvmPrinter::open_block(Str label) {
  body_ += label + ":\n";
  block_ = label;
}

std::string LlvmPrinter::value(Node n) const {
  if (n->is_const()) return const_text(n);
  if (n->is(Op::Ramp)) return ramp_text(n->dtype);
  if (n->is(Op::Range)) return "%r" + *tags_.find(n);
  const std::string* name = values_.find(n);
  expect(name, "render_llvm: ", n->op, " is used before it is defined");
  return *name;
}

// The intrinsic's declaration is its call without the values.
std::string LlvmPrinter::intrinsic(Str flags, Str result, Str name,
                                   const std::vector<std::string>& types,
                                   const std::vector<std::string>& values) {
  std::string signature, args;
  for (size_t i = 0; i < types.size(); ++i) {
    signature += (i ? ", " : "") + types[i];
    args += (i ? ", " : "") + types[i] + " " + values[i];
  }
  declarations_.insert(cat("declare ", result, " @", name, "(", signature, ")\n"));
  const std::string call = cat("call ", flags, result, " @", name, "(", args, ")");
  if (result != "void") return define(call);
  line(call);
  return {};
}

namespace {

// Of a CPU: on the stack, aligned as cache lines are.
std::string declared_stages(const Linear& program) {
  std::set<std::string> all;
  for (Node n : program.body) {
    Node access = n->is(Op::Fetch) ? n->src(0) : n;
    Node s = access->is(Op::Store) ? access->src(0) : access;
    if (is_stage(s))
      all.insert(cat("  %stage", kFirstStage - slot_of(s), " = alloca [", elements_of(s), " x ",
                     memory_type(s->dtype.one()), "], align 64\n"));
  }
  std::string out;
  for (const std::string& line : all) out += line;
  return out;
}

}  // namespace

std::string LlvmPrinter::text() const {
  std::string params, loads, args;
  for (size_t i = 0; i < program_.params.size(); ++i) {
    if (!program_.params[i]) continue;
    params += cat("ptr noalias ", program_.written[i] ? "" : "readonly ", "%b", i, ", ");
    loads += cat("  %p", i, " = getelementptr ptr, ptr %args, i64 ", i, "\n  %b", i,
                 " = load ptr, ptr %p", i, "\n");
    args += cat("ptr %b", i, ", ");
  }
  // The buffers are parameters of an inner function because only there `noalias` can be said.
  std::string out = cat("define internal void @", program_.name, ".body(", params,
                        "i64 %begin, i64 %end) nounwind noinline {\nentry:\n",
                        declared_stages(program_), allocas_, body_,
                        streams_ ? "  fence seq_cst\n" : "",  // streaming stores are not ordered
                        "  ret void\n}\n\ndefine void @", program_.name,
                        "(ptr %args, i64 %begin, i64 %end) nounwind {\n", loads, "  call void @",
                        program_.name, ".body(", args, "i64 %begin, i64 %end)\n  ret void\n}\n");
  out += declarations();
  if (streams_) out += "\n!0 = !{i32 1}\n";
  return out;
}

std::string LlvmPrinter::declarations() const {
  std::string out = declarations_.empty() ? "" : "\n";
  for (Str declaration : declarations_) out += declaration;
  return out;
}

// --- statements --------------------------------------------------------------------------------
void LlvmPrinter::statement(Node n) {
  switch (n->op) {
    case Op::Const:
    case Op::Range:
    case Op::Param:
    case Op::Roll:  // with the sum's update
    case Op::Ramp:
    case Op::Barrier: return;  // a stage is of one thread
    case Op::Loop: return open_loop(n);
    case Op::EndLoop: return close_loop(n->src(0));
    case Op::Acc: return declare_accumulator(n->src(0));
    case Op::Update: return update(n->src(0));
    case Op::Rescale: return rescale(n);
    case Op::Store: return store(n);
    case Op::Fetch: {
      Node copy = n->src(0);
      values_[copy->src(2)] = load(copy->src(2));
      return store(copy);
    }
    case Op::Reduce: values_[n] = accumulated(n); return;
    case Op::Prefix: values_[n] = accumulated(running_reduce(n)); return;
    case Op::Load: values_[n] = load(n); return;
    default: values_[n] = arithmetic(n);
  }
}

void LlvmPrinter::open_loop(Node loop) {
  Node range = loop->src(0);
  const std::string type = type_of(range->dtype);
  if (range->arg<RangeArg>().kind != RangeKind::Core)
    return begin_loop(range, "0", value(range->src(0)), range->src(0)->vmin > 0);
  const std::string begin = type == "i64" ? "%begin" : define(cat("trunc i64 %begin to ", type));
  std::string end = type == "i64" ? "%end" : define(cat("trunc i64 %end to ", type));
  if (!range->src(0)->is_const())  // the launch covers the extent's bound
    end = combine(Op::Min, range->dtype, end, value(range->src(0)));
  begin_loop(range, begin, end, false);
}

// A range may be looped over more than once: each time under another name.
void LlvmPrinter::begin_loop(Node range, Str begin, Str end, bool runs) {
  const std::string id = cat(range->arg<RangeArg>().id, ".", ++loops_);
  const std::string type = type_of(range->dtype);
  tags_[range] = id;
  if (runs) {
    line(cat("br label %loop", id));
  } else {
    const std::string any = define(cat("icmp slt ", type, " ", begin, ", ", end));
    line(cat("br i1 ", any, ", label %loop", id, ", label %done", id));
  }
  const std::string before = block_;
  open_block("loop" + id);
  line(cat("%r", id, " = phi ", type, " [ ", begin, ", %", before, " ], [ %next", id, ", %latch",
           id, " ]"));
  ends_.emplace_back(end, begin[0] == '-' ? "nsw " : "nuw nsw ");
}

void LlvmPrinter::close_loop(Node range) {
  const std::string id = *tags_.find(range), type = type_of(range->dtype);
  line(cat("br label %latch", id));
  open_block("latch" + id);
  line(cat("%next", id, " = add ", ends_.back().second, type, " %r", id, ", 1"));
  line(cat("%more", id, " = icmp slt ", type, " %next", id, ", ", ends_.back().first));
  line(cat("br i1 %more", id, ", label %loop", id, ", label %done", id, loop_metadata(range)));
  open_block("done" + id);
  ends_.pop_back();
}

void LlvmPrinter::declare_accumulator(Node reduce) {
  std::string& name = accumulators_[reduce];
  const std::string type = type_of(reduce->dtype);
  if (name.empty()) {
    name = cat("%acc", accumulators_.size());
    const std::string own = space(nullptr);
    allocas_ += cat("  ", name, " = alloca ", type, own.empty() ? "" : "," + own, "\n");
  }
  const Node start = identity(reduce->arg<OpArg>().op, reduce->dtype);
  line(cat("store ", type, " ", const_text(start), ", ptr", space(nullptr), " ", name));
}

std::string LlvmPrinter::accumulated(Node reduce) {
  return define(
      cat("load ", type_of(reduce->dtype), ", ptr", space(nullptr), " ", accumulators_[reduce]));
}

void LlvmPrinter::update(Node reduce) {
  const std::string type = type_of(reduce->dtype),
                    at = cat("ptr", space(nullptr), " ", accumulators_[reduce]);
  const std::string before = accumulated(reduce);
  const Node term = updated_with(reduce);
  const std::string after =
      term->is(Op::Roll) ? mul_add(reduce->dtype, before, value(term->src(1)), value(term->src(0)))
      : adds_product(reduce)
          ? mul_add(reduce->dtype, value(term->src(0)), value(term->src(1)), before)
          : combine(reduce->arg<OpArg>().op, reduce->dtype, before, value(term));
  line(cat("store ", type, " ", after, ", ", at));
}

void LlvmPrinter::rescale(Node n) {
  for (Node sum : n->srcs()) {
    const std::string before = accumulated(sum);
    const std::string after = combine(Op::Mul, sum->dtype, before, value(sum->src(0)->src(1)));
    line(cat("store ", type_of(sum->dtype), " ", after, ", ptr", space(nullptr), " ",
             accumulators_[sum]));
  }
}

// --- memory ------------------------------------------------------------------------------------
std::string LlvmPrinter::base(Node param) const {
  return is_stage(param) ? cat("%stage", kFirstStage - slot_of(param)) : cat("%b", slot_of(param));
}

// Where the gate is false the address may lie outside the buffer: then without `inbounds`.
std::string LlvmPrinter::address(Node param, Str index, bool inbounds) {
  return define(cat("getelementptr ", inbounds ? "inbounds " : "", memory_type(param->dtype.one()),
                    ", ptr", space(param), " ", base(param), ", ", index));
}

std::string LlvmPrinter::from_memory(DType t, Str v) {
  if (!t.is_bool()) return v;
  return define(
      cat("icmp ne ", memory_type(t), " ", v, ", ", t.lanes > 1 ? "zeroinitializer" : "0"));
}

std::string LlvmPrinter::to_memory(DType t, Str v) {
  if (!t.is_bool()) return v;
  return define(cat("zext ", type_of(t), " ", v, " to ", memory_type(t)));
}

std::string LlvmPrinter::load_one(Node param, DType t, Str index, int align) {
  const std::string at = address(param, index, true);
  return from_memory(
      t, define(cat("load ", memory_type(t), ", ptr", space(param), " ", at, ", align ", align)));
}

void LlvmPrinter::store_one(Node param, DType t, Str bits, Str index, int align) {
  const std::string at = address(param, index, true);
  line(cat("store ", memory_type(t), " ", bits, ", ptr", space(param), " ", at, ", align ", align));
}

// Asks a CPU for what comes after what is read once, a good many iterations ahead: its own guesses
// end with each page, and it makes few for many streams at a time (measurements.md: read_streams).
void LlvmPrinter::prefetch(Node load) {
  constexpr int kAhead = 1024;  // bytes
  const Node param = load->src(0);
  if (target_.kind != Target::Kind::Cpu || slot_of(param) >= 64 || ends_.empty() ||
      !(program_.streaming >> slot_of(param) & 1))
    return;
  declarations_.insert("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)\n");
  const std::string at = address(param, typed(load->src(1)), true);
  const std::string ahead = define(cat("getelementptr i8, ptr ", at, ", i64 ", kAhead));
  line(cat("call void @llvm.prefetch.p0(ptr ", ahead, ", i32 0, i32 3, i32 1)"));
}

std::string LlvmPrinter::load(Node n) {
  const Node param = n->src(0), index = n->src(1), gate = gate_of(n);
  const DType t = n->dtype;
  if (t.lanes > 1 && index->dtype.lanes == 1) {
    if (!gate) prefetch(n);
    return gate ? masked_load(n) : load_one(param, t, typed(index), alignment(index, t));
  }
  // Element 0 exists: reading it instead of branching keeps the block whole.
  std::string at = value(index);
  if (gate)
    at = define(cat("select ", gate_for(gate, t.lanes), ", ", typed(index), ", ",
                    type_of(index->dtype), " zeroinitializer"));
  const std::string v =
      t.lanes == 1 ? load_one(param, t, type_of(index->dtype) + " " + at, t.size()) : gather(n, at);
  if (!gate) return v;
  return define(cat("select ", gate_for(gate, t.lanes), ", ", type_of(t), " ", v, ", ", type_of(t),
                    " zeroinitializer"));
}

// Lane by lane: with 4, 8 and 16 lanes the gather instruction was 0.9 to 1.6 times as slow on
// Zen 5, from every level of the cache.
std::string LlvmPrinter::gather(Node n, Str index) {
  const DType t = n->dtype;
  std::string v = "poison";
  for (int i = 0; i < t.lanes; ++i) {
    const std::string one =
        load_one(n->src(0), t.one(), lane_of(n->src(1)->dtype, index, i), t.size());
    v = define(
        cat("insertelement ", type_of(t), " ", v, ", ", type_of(t.one()), " ", one, ", i32 ", i));
  }
  return v;
}

// "type %v": lane i of a vector, or the scalar itself.
std::string LlvmPrinter::lane_of(DType t, Str v, int i) {
  if (t.lanes == 1) return type_of(t) + " " + v;
  return type_of(t.one()) + " " + define(cat("extractelement ", type_of(t), " ", v, ", i32 ", i));
}

// "type %v" of a gate with this many lanes.
std::string LlvmPrinter::gate_for(Node gate, int lanes) {
  if (gate->dtype.lanes == lanes || gate->dtype.lanes == 1) return typed(gate);
  throw Bug(cat("render_llvm: a gate of ", gate->dtype.name(), " for ", lanes, " lanes"));
}

namespace {

// Whether a load that has nothing to load is at most a page away from the buffer: padding of
// images. Pages that are not there are then so few that no test for them pays.
bool is_near(Node load) {
  constexpr int64_t kPage = 4096;
  const Node param = load->src(0), index = load->src(1);
  if (param->op != Op::Param || index->vmin > index->vmax) return false;
  const int64_t page = kPage / std::max(load->dtype.size(), 1), size = param->ints()[1];
  return index->vmin >= -page && index->vmax + load->dtype.lanes <= size + page;
}

}  // namespace

std::string LlvmPrinter::masked_load(Node n) {
  const DType t = n->dtype, mask = kBool.vec(t.lanes);
  const std::string type = memory_type(t);
  const Node gate = gate_of(n), index = n->src(1);
  const std::string on = gate->dtype.lanes == 1 ? broadcast(mask, value(gate)) : value(gate);
  // An instruction whose lanes are all off still takes hundreds of cycles where the page is not
  // there: then it reads element 0 instead.
  std::string from = typed(index);
  if (!is_near(n)) {
    const std::string some = gate->dtype.lanes == 1 ? value(gate) : any_lane(mask, on);
    from = cat(type_of(index->dtype), " ",
               define(cat("select i1 ", some, ", ", from, ", ", type_of(index->dtype), " 0")));
  }
  const std::string at = address(n->src(0), from, false);
  const std::string v =
      intrinsic("", type, cat("llvm.masked.load.", memory_suffix(t), ".p0"),
                {"ptr", "i32", type_of(mask), type}, {at, cat(t.size()), on, "zeroinitializer"});
  return from_memory(t, v);
}

std::string LlvmPrinter::any_lane(DType mask, Str on) {
  const std::string bits = cat("i", mask.lanes);
  const std::string all = define(cat("bitcast ", type_of(mask), " ", on, " to ", bits));
  return define(cat("icmp ne ", bits, " ", all, ", 0"));
}

void LlvmPrinter::store(Node n) {
  const Node index = n->src(1), v = n->src(2), gate = gate_of(n);
  const DType t = v->dtype;
  if (std::holds_alternative<OpArg>(n->payload)) return combine_lanes(n);
  const std::string bits = to_memory(t, value(v));
  if (t.lanes > 1 && index->dtype.lanes > 1) return scatter(n, bits);
  const std::string at = address(n->src(0), typed(index), !gate);
  if (gate && gate->dtype.lanes > 1) {
    intrinsic("", "void", cat("llvm.masked.store.", memory_suffix(t), ".p0"),
              {memory_type(t), "ptr", "i32", type_of(gate->dtype)},
              {bits, at, cat(t.size()), value(gate)});
    return;
  }
  const bool streams = is_streaming_store(n);
  streams_ |= streams;
  branch_if(gate ? typed(gate) : "", [&] {
    line(cat("store ", memory_type(t), " ", bits, ", ptr ", at, ", align ",
             streams ? t.size() * t.lanes : t.size(), streams ? ", !nontemporal !0" : ""));
  });
}

// Consecutive elements at once; else each lane in turn, as two may meet in one element.
void LlvmPrinter::combine_lanes(Node n) {
  const Node index = n->src(1), gate = gate_of(n);
  const DType t = n->src(2)->dtype, one = t.one();
  if (index->dtype.lanes == 1 && (!gate || gate->dtype.lanes == 1))
    return branch_if(gate ? typed(gate) : "", [&] {
      const std::string old = load_one(n->src(0), t, typed(index), t.size());
      const std::string v = combine(n->arg<OpArg>().op, t, old, value(n->src(2)));
      store_one(n->src(0), t, to_memory(t, v), typed(index), t.size());
    });
  for (int i = 0; i < t.lanes; ++i)
    branch_if(gate ? lane_of(gate->dtype, value(gate), i) : "", [&] {
      const std::string to = lane_of(index->dtype, value(index), i);
      const std::string old = load_one(n->src(0), one, to, one.size());
      const std::string v = lane_of(t, value(n->src(2)), i).substr(type_of(one).size() + 1);
      const std::string sum = to_memory(one, combine(n->arg<OpArg>().op, one, old, v));
      store_one(n->src(0), one, sum, to, one.size());
    });
}

// A vector's lanes, one by one.
void LlvmPrinter::scatter(Node n, Str bits) {
  const Node index = n->src(1), gate = gate_of(n);
  const DType t = n->src(2)->dtype, one = t.one();
  const DType memory = t.is_bool() ? kU8.vec(t.lanes) : t;
  for (int i = 0; i < t.lanes; ++i)
    branch_if(gate ? lane_of(gate->dtype, value(gate), i) : "", [&] {
      const std::string v = lane_of(memory, bits, i).substr(memory_type(one).size() + 1);
      store_one(n->src(0), one, v, lane_of(index->dtype, value(index), i), t.size());
    });
}

}  // namespace tiny
