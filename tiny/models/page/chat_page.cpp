#include "tiny/models/page/chat_page.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "tiny/base/error.h"
#include "tiny/base/file.h"
#include "tiny/models/tokenizers/tokenizer.h"
#include "tiny/program/program.h"

#if __has_include(<nlohmann/json.hpp>)
#include <nlohmann/json.hpp>
#define TINY_HAS_JSON 1
#endif

namespace tiny::models {

namespace {

constexpr std::string_view kTokenizer =
#include <embedded/tiny/models/page/tokenizer.js.inc>
    ;
constexpr std::string_view kChat =
#include <embedded/tiny/models/page/chat.js.inc>
    ;
constexpr std::string_view kPage =
#include <embedded/tiny/models/page/chat.html.inc>
    ;

constexpr int64_t kContext = 512;

#if TINY_HAS_JSON

std::string settings_of(const ModelConfig& config, const ChatPageOptions& o, int64_t context) {
  nlohmann::ordered_json settings;
  settings["title"] = o.title;
  settings["context"] = context;
  settings["eos"] = config.eos;
  settings["wrap"] = o.wrap;
  settings["stop"] = o.stop;
  settings["tokens"] = o.max_new_tokens;
  settings["temperature"] = o.sampling.temperature;
  settings["top_k"] = o.sampling.top_k;
  settings["top_p"] = o.sampling.top_p;
  settings["min_p"] = o.sampling.min_p;
  settings["repetition_penalty"] = o.sampling.repetition_penalty;
  return settings.dump(1) + "\n";
}

#else

std::string settings_of(const ModelConfig&, const ChatPageOptions&, int64_t) {
  throw Error("export_chat: built without nlohmann/json.hpp, cannot write JSON");
}

#endif

void write(const std::string& path, std::string_view text) {
  FileAside file("export_chat", path);
  file.write(text);
  file.commit();
}

int64_t context_of(const ModelConfig& config, const ChatPageOptions& options) {
  const int64_t positions = config.max_positions > 0 ? config.max_positions : kContext;
  const int64_t context = options.context ? options.context : std::min(positions, kContext);
  check(context >= 1 && (!config.learned_positions || context <= positions),
        "export_chat: context ", context, ", expected 1 to ",
        config.learned_positions ? cat("the model's ", positions, " positions") : "2^31");
  return context;
}

void check_given(const ModelConfig& config, const std::string& tokenizer,
                 const ChatPageOptions& options) {
  check(config.causal && config.head == Head::Language, "export_chat: ", config.type,
        ": only causal models with a head for tokens write on");
  check(options.max_new_tokens >= 1, "export_chat: max_new_tokens ", options.max_new_tokens,
        ", expected 1 or more");
  check(options.wrap.find("{}") != std::string::npos, "export_chat: wrap '", options.wrap,
        "' has no {} for the line");
  check_sampling(options.sampling);
  const int64_t ids = Tokenizer::from_json(tokenizer).id_end();
  check(ids <= config.vocab, "export_chat: the tokenizer has ids up to ", ids - 1,
        ", and the model tokens up to ", config.vocab - 1);
}

std::vector<LayerCache> empty_caches(Transformer& model, int64_t context) {
  const ModelConfig& c = model.config();
  const Tensor& like = *model.state_dict()[0].tensor;
  std::vector<LayerCache> caches(c.layers.size());
  for (LayerCache& cache : caches)
    for (Tensor* t : {&cache.keys, &cache.values})
      *t = Tensor::zeros({1, c.kv_heads, context, c.head_dim}, like.dtype())
               .to(like.device())
               .contiguous()
               .realize();
  return caches;
}

std::vector<Tensor> one_step(Transformer& model, std::vector<LayerCache>& caches,
                             const Tensor& token, const Variable& first) {
  const Tensor where = first.tensor().reshape({1});
  const CachedInputs inputs{token.to(kI64), where.reshape({1, 1}), where, Tensor::zeros({1}, kI64),
                            where + 1,      {where, first + 1}};
  const Tensor logits = model.forward_cached(inputs, caches).to(kF32);
  return {logits, logits.argmax(-1).to(kI32)};
}

}  // namespace

void export_chat(Transformer& model, const std::string& tokenizer, const std::string& folder,
                 const ChatPageOptions& options) {
  check_given(model.config(), tokenizer, options);
  const int64_t context = context_of(model.config(), options);
  const NoGrad no_grad;
  const nn::Training evaluation(false);
  std::vector<LayerCache> caches = empty_caches(model, context);
  const Variable first = Variable("first", 0, context - 1).bind(0, caches[0].keys.device());
  const TensorFunction step = [&](const std::vector<Tensor>& in) {
    Variable at = first;
    at.exchange([&](Tensor& t) { t = in[1]; });
    return one_step(model, caches, in[0], at);
  };
  ProgramOptions program;
  program.inputs = {"token", "first"};
  program.outputs = {"logits", "next"};
  program.weights = model.state_dict();
  // A large vocabulary wants a device that grants a view of its embedding; the page says so.
  for (const NamedTensor& t : program.weights)
    program.most_buffer_bytes =
        std::max(program.most_buffer_bytes, t.tensor->numel() * t.tensor->dtype().size());
  program.page = kPage.substr(1);
  export_webgpu_function(step, {Tensor::zeros({1, 1}, kI32), first.tensor()}, folder, program);
  write(folder + "/tokenizer.json", tokenizer);
  write(folder + "/chat.json", settings_of(model.config(), options, context));
  write(folder + "/tokenizer.js", kTokenizer.substr(1));
  write(folder + "/chat.js", kChat.substr(1));
}

}  // namespace tiny::models
