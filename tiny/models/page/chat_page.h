// Language models as pages: a folder on which one writes on from what is typed, in a browser by
// WebGPU.
//
//   models::export_chat(model, tokenizer_json, "page", {.title = "A storyteller"});
#pragma once
#include <cstdint>
#include <string>

#include "tiny/models/sampling.h"
#include "tiny/models/transformer.h"

namespace tiny::models {

struct ChatPageOptions {
  std::string title = "Chat";
  // Tokens of a conversation, at most: the columns of the caches. 0: 512, or the positions that the
  // model has where these are fewer.
  int64_t context = 0;
  int64_t max_new_tokens = 128;  // of an answer, until the page is told otherwise
  SamplingOptions sampling = {};
  std::string wrap = "{}";  // what a line is put into, {} stands for it
  std::string stop = {};    // an answer ends with it
};

// Writes the folder: the program of one token with its caches (export_webgpu: docs/webgpu.md), the
// inputs `token` i32 (1, 1) and `first`, the Variable that counts the columns before it, the
// outputs `logits` f32 (1, vocab) and `next` i32 (1), the most probable token; tokenizer.json, the
// text that is given; chat.json, these options and the tokens that end an answer; tokenizer.js,
// chat.js and index.html. Dropout does not act. Throws Error for a model that does not write, a
// tokenizer that the page cannot read or whose ids the model has not, options out of range, and as
// export_webgpu does.
void export_chat(Transformer& model, const std::string& tokenizer, const std::string& folder,
                 const ChatPageOptions& options = {});

}  // namespace tiny::models
