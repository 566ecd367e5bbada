// Models that others made: files, tokenizers, architectures, generation. Programs that use
// tokenizers link -lpcre2-8 -lutf8proc as well.
#pragma once
#include "tiny/models/files/formats/gguf.h"
#include "tiny/models/files/load_state.h"
#include "tiny/models/files/save_shards.h"
#include "tiny/models/files/tensor_file.h"
#include "tiny/models/generate.h"
#include "tiny/models/page/chat_page.h"
#include "tiny/models/tokenizers/tokenizer.h"
#include "tiny/models/weights.h"
#include "tiny/tiny.h"
