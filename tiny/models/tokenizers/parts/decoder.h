// Decoders: the last step back from tokens to text. Each changes a list of texts, which are joined
// at the end.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "tiny/models/text/regex.h"
#include "tiny/models/tokenizers/parts/pre_tokenizer.h"

namespace tiny::models::tokenizers {

using Texts = std::vector<std::string>;
// May be called by several threads at once.
using Decoder = std::function<void(Texts&)>;

Decoder decode_in_sequence(std::vector<Decoder> steps);
// Characters of the byte-level alphabet to bytes; what is no UTF-8 then becomes U+FFFD.
Decoder decode_byte_level();
// The suffix that ends words becomes ' ', but for the last.
Decoder decode_bpe(std::string suffix);
// Tokens without the prefix begin words. `cleanup`: English punctuation joins the word before it.
Decoder decode_word_piece(std::string prefix, bool cleanup);
Decoder decode_metaspace(std::string replacement, PrependScheme scheme);
// <0x..> to bytes; a run of them that is no UTF-8 becomes as many U+FFFD.
Decoder decode_byte_fallback();
// Joins all into one.
Decoder fuse_texts();
// Removes up to so many of the character at each text's ends.
Decoder strip_texts(std::string character, size_t start, size_t stop);
Decoder replace_in_texts(std::string pattern, std::string content);
Decoder replace_in_texts(Regex pattern, std::string content);
// Graves et al. 2006: repetitions are one, padding is nothing.
Decoder decode_ctc(std::string pad, std::string word_delimiter, bool cleanup);

}  // namespace tiny::models::tokenizers
