// z3 by its C API, with declarations of our own: neither its headers nor its library are needed to
// build. The types are opaque; the functions are unchanged from z3 4.8 to 4.15.
#include <algorithm>
#include <limits>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "codegen/proof/solver/smt.h"
#include "tiny/base/env.h"
#include "tiny/base/error.h"
#include "tiny/base/exit_order.h"
#include "tiny/base/library.h"

#ifndef TINY_Z3
#define TINY_Z3 1
#endif

namespace tiny {
namespace {

using Config = struct Z3Config*;
using Context = struct Z3Context*;
using Symbol = struct Z3Symbol*;
using Ast = struct Z3Ast*;
using AstVector = struct Z3AstVector*;
using Sort = struct Z3Sort*;
using Declaration = struct Z3Declaration*;
using Solver = struct Z3Solver*;
using Params = struct Z3Params*;
using Model = struct Z3Model*;
using Statistics = struct Z3Statistics*;

constexpr int kFalse = -1, kTrue = 1;  // Z3_lbool

#define TINY_Z3_FUNCTIONS(X)                                                              \
  X(Config, mk_config, ())                                                                \
  X(void, del_config, (Config))                                                           \
  X(Context, mk_context, (Config))                                                        \
  X(void, del_context, (Context))                                                         \
  X(void, set_error_handler, (Context, void (*)(Context, int)))                           \
  X(int, get_error_code, (Context))                                                       \
  X(Symbol, mk_string_symbol, (Context, const char*))                                     \
  X(Sort, mk_int_sort, (Context))                                                         \
  X(Sort, mk_bool_sort, (Context))                                                        \
  X(Ast, mk_const, (Context, Symbol, Sort))                                               \
  X(AstVector, parse_smtlib2_string,                                                      \
    (Context, const char*, unsigned, const Symbol*, const Sort*, unsigned, const Symbol*, \
     const Declaration*))                                                                 \
  X(void, ast_vector_inc_ref, (Context, AstVector))                                       \
  X(void, ast_vector_dec_ref, (Context, AstVector))                                       \
  X(unsigned, ast_vector_size, (Context, AstVector))                                      \
  X(Ast, ast_vector_get, (Context, AstVector, unsigned))                                  \
  X(Solver, mk_simple_solver, (Context))                                                  \
  X(void, solver_inc_ref, (Context, Solver))                                              \
  X(void, solver_dec_ref, (Context, Solver))                                              \
  X(Params, mk_params, (Context))                                                         \
  X(void, params_inc_ref, (Context, Params))                                              \
  X(void, params_dec_ref, (Context, Params))                                              \
  X(void, params_set_uint, (Context, Params, Symbol, unsigned))                           \
  X(void, solver_set_params, (Context, Solver, Params))                                   \
  X(void, solver_assert, (Context, Solver, Ast))                                          \
  X(int, solver_check, (Context, Solver))                                                 \
  X(Statistics, solver_get_statistics, (Context, Solver))                                 \
  X(void, stats_inc_ref, (Context, Statistics))                                           \
  X(void, stats_dec_ref, (Context, Statistics))                                           \
  X(unsigned, stats_size, (Context, Statistics))                                          \
  X(const char*, stats_get_key, (Context, Statistics, unsigned))                          \
  X(unsigned, stats_get_uint_value, (Context, Statistics, unsigned))                      \
  X(Model, solver_get_model, (Context, Solver))                                           \
  X(void, model_inc_ref, (Context, Model))                                                \
  X(void, model_dec_ref, (Context, Model))                                                \
  X(bool, model_eval, (Context, Model, Ast, bool, Ast*))                                  \
  X(bool, get_numeral_int64, (Context, Ast, int64_t*))                                    \
  X(int, get_bool_value, (Context, Ast))

struct Z3Functions {
#define TINY_DECLARE(result, name, parameters) result(*name) parameters = nullptr;
  TINY_Z3_FUNCTIONS(TINY_DECLARE)
#undef TINY_DECLARE
};

// nullptr where no library has all of them.
const Z3Functions* open_z3() {
  if (!TINY_Z3) return nullptr;
  const std::string given = env_text("Z3_PATH");
  const std::vector<std::string> names =
      given.empty() ? std::vector<std::string>{"libz3.so.4", "libz3.so", "libz3.dylib"}
                    : std::vector<std::string>{given};
  auto functions = std::make_unique<Z3Functions>();
  const auto fault_of = [&](void* library, const std::string&) {
    LibraryFunctions f(library);
#define TINY_NEED(result, name, parameters) f.need("Z3_" #name, functions->name);
    TINY_Z3_FUNCTIONS(TINY_NEED)
#undef TINY_NEED
    return f.missing();
  };
  return open_library(names, RTLD_NOW, fault_of).handle ? functions.release() : nullptr;
}

const Z3Functions* library() {
  static const Z3Functions* functions = open_z3();
  return functions;
}

// Of one question: how many steps z3 takes depends on what a context has been asked before.
class Session {
 public:
  explicit Session(const Z3Functions& f) : f_(f) {
    Config config = f_.mk_config();
    context_ = f_.mk_context(config);
    f_.del_config(config);
    f_.set_error_handler(context_, nullptr);  // the default ends the process
  }
  ~Session() { f_.del_context(context_); }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  SmtAnswer solve(const SmtText& question, int64_t steps) {
    AstVector asserted = f_.parse_smtlib2_string(context_, question.text().c_str(), 0, nullptr,
                                                 nullptr, 0, nullptr, nullptr);
    expect(f_.get_error_code(context_) == 0, "z3 cannot read:\n", question.text());
    f_.ast_vector_inc_ref(context_, asserted);
    Solver solver = f_.mk_simple_solver(context_);
    f_.solver_inc_ref(context_, solver);
    limit(solver, steps);
    for (unsigned i = 0; i < f_.ast_vector_size(context_, asserted); ++i)
      f_.solver_assert(context_, solver, f_.ast_vector_get(context_, asserted, i));
    SmtAnswer answer;
    const int decided = f_.solver_check(context_, solver);
    if (decided == kFalse) answer.decision = Decision::Never;
    if (decided == kTrue && read(solver, question, answer.values))
      answer.decision = Decision::Sometimes;
    answer.steps = steps_of(solver);
    f_.solver_dec_ref(context_, solver);
    f_.ast_vector_dec_ref(context_, asserted);
    return answer;
  }

 private:
  void limit(Solver solver, int64_t steps) {
    constexpr int64_t kMax = std::numeric_limits<unsigned>::max() - 1;  // one more is no limit
    Params params = f_.mk_params(context_);
    f_.params_inc_ref(context_, params);
    f_.params_set_uint(context_, params, f_.mk_string_symbol(context_, "rlimit"),
                       static_cast<unsigned>(std::clamp<int64_t>(steps, 1, kMax)));
    f_.solver_set_params(context_, solver, params);
    f_.params_dec_ref(context_, params);
  }

  int64_t steps_of(Solver solver) {
    Statistics all = f_.solver_get_statistics(context_, solver);
    f_.stats_inc_ref(context_, all);
    int64_t steps = 0;
    for (unsigned i = 0; i < f_.stats_size(context_, all); ++i)
      if (std::string_view(f_.stats_get_key(context_, all, i)) == "rlimit count")
        steps = f_.stats_get_uint_value(context_, all, i);
    f_.stats_dec_ref(context_, all);
    return steps;
  }

  // False where a value is beyond int64.
  bool read(Solver solver, const SmtText& question, std::vector<int64_t>& values) {
    Model model = f_.solver_get_model(context_, solver);
    f_.model_inc_ref(context_, model);
    bool ok = true;
    for (const auto& v : question.variables()) {
      const bool is_bool = v.leaf->dtype.is_bool();
      Sort sort = is_bool ? f_.mk_bool_sort(context_) : f_.mk_int_sort(context_);
      Ast name = f_.mk_const(context_, f_.mk_string_symbol(context_, v.name.c_str()), sort);
      Ast value = nullptr;
      int64_t n = 0;
      ok = ok && f_.model_eval(context_, model, name, true, &value);
      if (ok && is_bool)
        n = f_.get_bool_value(context_, value) == kTrue;
      else if (ok)
        ok = f_.get_numeral_int64(context_, value, &n);
      values.push_back(n);
    }
    f_.model_dec_ref(context_, model);
    return ok;
  }

  const Z3Functions& f_;
  Context context_ = nullptr;
};

// Answers of earlier questions. Never freed: threads may outlive main.
struct Shared {
  std::mutex mutex;
  std::unordered_map<std::string, SmtAnswer> known;
  SmtMemory memory;
};
Shared& shared() {
  static Shared* instance = new Shared;
  return *instance;
}

}  // namespace

bool has_solver() { return library() != nullptr && !are_libraries_ending(); }
const char* why_no_solver() {
  return TINY_Z3 ? "no libz3.so.4 (package libz3-4)" : "built without z3 (make Z3=0)";
}

void set_memory(const SmtMemory& memory) {
  std::lock_guard lock(shared().mutex);
  shared().memory = memory;
}

SmtAnswer solve(const SmtText& question, int64_t steps) {
  if (!has_solver()) return {};
  constexpr size_t kMaxKnown = 1 << 14;
  const std::string text = question.text();
  Shared& all = shared();
  SmtMemory memory;
  {
    std::lock_guard lock(all.mutex);
    if (auto found = all.known.find(text); found != all.known.end()) return found->second;
    memory = all.memory;
  }
  std::optional<SmtAnswer> answer = memory.recall ? memory.recall(text) : std::nullopt;
  if (!answer) {
    answer = Session(*library()).solve(question, steps);
    end_objects_before_libraries();
    if (memory.keep && answer->decision != Decision::Unknown) memory.keep(text, *answer);
  }
  std::lock_guard lock(all.mutex);
  if (all.known.size() >= kMaxKnown) all.known.clear();
  if (answer->decision != Decision::Unknown) all.known[text] = *answer;
  return *answer;
}

}  // namespace tiny
