#include "runtime/search/worker.h"

#include "runtime/device/disk_cache.h"
#include "tiny/base/env.h"
#include "tiny/base/error.h"
#include "tiny/base/parallel.h"
#include "tiny/base/worker_process.h"

namespace tiny {

namespace {

constexpr const char* kService = "search";

// A request to a worker: one of these.
struct Request {
  enum class Kind : uint8_t { Prepare, Run, Compile } kind = Kind::Prepare;
  KernelCase kernel;
  Race race;
  std::string device, arch;  // of Compile
  Source source;

  auto fields() {
    return std::tie(kind, kernel, race, device, arch, source.entry, source.text, source.language,
                    source.is_gemm);
  }
};

struct Reply {
  bool good = false;
  std::string text;  // the fault, or a binary
  std::vector<Measured> measured;

  auto fields() { return std::tie(good, text, measured); }
};

// In the worker.
std::string serve(const std::string& bytes) {
  static Bench& bench = *local_bench().release();
  const auto request = Unpacker(bytes).get<Request>();
  Reply reply;
  try {
    if (request.kind == Request::Kind::Prepare) bench.prepare(request.kernel);
    if (request.kind == Request::Kind::Run) reply.measured = bench.run(request.race);
    if (request.kind == Request::Kind::Compile)
      reply.text = compile_for(request.device, request.arch, request.source);
    reply.good = true;
  } catch (const std::exception& e) {
    reply.text = e.what();
  }
  return Packer().add(reply).take();
}

__attribute__((constructor)) void serve_searches() { serve_if_worker(kService, serve); }

// A worker, started when it is first asked, and again after it has ended.
class SearchWorker {
 public:
  // Good: there is an answer. Else the answer's text says what happened.
  Outcome ask(const Request& request, double limit, Reply& reply) {
    if (!process_) {
      auto settings = env_settings();
      settings.push_back({"BEAM", "0"});
      process_ = std::make_unique<WorkerProcess>(kService, std::move(settings));
    }
    std::string bytes;
    const auto answer = process_->ask(Packer().add(request).take(), process_limit(limit), bytes);
    if (answer == WorkerProcess::Answer::Good) {
      reply = Unpacker(bytes).get<Reply>();
      return Outcome::Good;
    }
    reply.text = process_->end();
    process_.reset();
    if (answer == WorkerProcess::Answer::Died) return Outcome::Crashed;
    reply.text = cat("not done within ", limit, " s");
    return Outcome::Hung;
  }
  void end() { process_.reset(); }
  bool is_running() const { return process_ != nullptr; }

 private:
  std::unique_ptr<WorkerProcess> process_;
};

class IsolatedBench : public Bench {
 public:
  void prepare(const KernelCase& kernel) override {
    setup_ = {{Request::Kind::Prepare, kernel, {}, {}, {}, {}}};
    Reply reply;
    if (worker_.ask(setup_[0], kPatience, reply) != Outcome::Good || !reply.good)
      throw DeviceError(cat("BEAM: a copy of this program could not prepare a kernel's buffers: ",
                            reply.text, "; BEAM_ISOLATE=0 searches without one"));
  }

  std::vector<Measured> run(const Race& race) override {
    Reply reply;
    if (!worker_.is_running())
      for (const Request& request : setup_) worker_.ask(request, kPatience, reply);
    const Request request{Request::Kind::Run, {}, race, {}, {}, {}};
    const Outcome outcome = worker_.ask(request, race.limit, reply);
    if (outcome != Outcome::Good)
      return std::vector<Measured>(race.jobs.size(), {outcome, 0, 0, reply.text});
    if (race.role != Race::Role::Candidates) setup_.push_back(request);
    for (const Measured& m : reply.measured)
      if (m.outcome == Outcome::Crashed) worker_.end();
    reply.measured.resize(race.jobs.size(), {Outcome::Failed, 0, 0, reply.text});
    return reply.measured;
  }

 private:
  static constexpr double kPatience = 60;  // seconds

  SearchWorker worker_;
  std::vector<Request> setup_;  // requests that a successor gets first
};

}  // namespace

std::unique_ptr<Bench> isolated_bench() { return std::make_unique<IsolatedBench>(); }

struct CompilePool::Lane {
  SearchWorker worker;
};

CompilePool::CompilePool(std::string device, bool isolated)
    : device_(std::move(device)), isolated_(isolated) {
  for (size_t i = 0; i < std::min<size_t>(core_count(), 16); ++i)
    lanes_.push_back(std::make_unique<Lane>());
}

CompilePool::~CompilePool() = default;

CompilePool::Result CompilePool::compile(size_t thread, const Source& source, double limit,
                                         bool kept) {
  Result out;
  try {
    Device& device = find_device(device_);
    const std::string folder = cache_folder(), key = cache_key(source, device.compiler_id());
    if (!folder.empty())
      if (auto binary = cache_get(folder, key)) return {Outcome::Good, *std::move(binary), ""};
    if (!isolated_) return {Outcome::Good, device.compile(source), ""};
    Reply reply;
    const Request request{Request::Kind::Compile, {}, {}, device_, device.target().arch, source};
    out.outcome = lanes_[thread]->worker.ask(request, limit, reply);
    if (out.outcome == Outcome::Good && reply.good) {
      if (kept && !folder.empty()) cache_put(folder, key, reply.text);
      return {Outcome::Good, reply.text, ""};
    }
    if (out.outcome == Outcome::Good) out.outcome = Outcome::Failed;
    out.text = "the compiler: " + reply.text;
  } catch (const std::exception& e) {
    out = {Outcome::Failed, "", e.what()};
  }
  return out;
}

}  // namespace tiny
