#include "tiny/models/tokenizers/parts/decoder.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <utility>

#include "tiny/models/text/unicode.h"
#include "tiny/models/tokenizers/parts/byte_level.h"
#include "tiny/models/tokenizers/parts/normalizer.h"

namespace tiny::models::tokenizers {
namespace {

// As clean_up_tokenization of transformers does it.
std::string without_spaces_of_punctuation(std::string text) {
  static constexpr std::array<std::pair<const char*, const char*>, 11> kReplacements = {
      {{" .", "."},
       {" ?", "?"},
       {" !", "!"},
       {" ,", ","},
       {" ' ", "'"},
       {" n't", "n't"},
       {" 'm", "'m"},
       {" do not", " don't"},
       {" 's", "'s"},
       {" 've", "'ve"},
       {" 're", "'re"}}};
  for (const auto& [from, to] : kReplacements) text = replace_all(text, from, to);
  return text;
}

// The byte that <0x..> names.
std::optional<char> byte_of(const std::string& token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  unsigned value = 0;
  const char* digits = token.data() + 3;
  const auto [end, error] = std::from_chars(digits, digits + 2, value, 16);
  if (error != std::errc() || end != digits + 2) return std::nullopt;
  return static_cast<char>(value);
}

Decoder decode_each(std::function<std::string(const std::string&)> change) {
  return [change = std::move(change)](Texts& texts) {
    for (std::string& text : texts) text = change(text);
  };
}

}  // namespace

Decoder decode_in_sequence(std::vector<Decoder> steps) {
  return [steps = std::move(steps)](Texts& texts) {
    for (const Decoder& step : steps) step(texts);
  };
}

Decoder decode_byte_level() {
  return [](Texts& texts) {
    std::string bytes;
    for (const std::string& text : texts) bytes += from_byte_level(text);
    texts = {valid_utf8(bytes)};
  };
}

Decoder decode_bpe(std::string suffix) {
  return [suffix = std::move(suffix)](Texts& texts) {
    for (size_t i = 0; i < texts.size(); ++i)
      texts[i] = replace_all(texts[i], suffix, i + 1 == texts.size() ? "" : " ");
  };
}

Decoder decode_word_piece(std::string prefix, bool cleanup) {
  return [prefix = std::move(prefix), cleanup](Texts& texts) {
    for (size_t i = 0; i < texts.size(); ++i) {
      std::string& text = texts[i];
      if (i > 0) text = text.starts_with(prefix) ? text.substr(prefix.size()) : " " + text;
      if (cleanup) text = without_spaces_of_punctuation(text);
    }
  };
}

Decoder decode_metaspace(std::string replacement, PrependScheme scheme) {
  return [replacement = std::move(replacement), scheme](Texts& texts) {
    for (size_t i = 0; i < texts.size(); ++i) {
      const bool was_prepended = i == 0 && scheme != PrependScheme::Never;
      texts[i] = replace_all(texts[i], replacement, was_prepended ? "" : " ");
    }
  };
}

Decoder decode_byte_fallback() {
  return [](Texts& texts) {
    Texts out;
    std::string bytes;
    const auto append_bytes = [&] {
      if (is_valid_utf8(bytes)) {
        if (!bytes.empty()) out.push_back(bytes);
      } else {
        for (size_t i = 0; i < bytes.size(); ++i) out.push_back("\ufffd");
      }
      bytes.clear();
    };
    for (std::string& text : texts) {
      if (const auto byte = byte_of(text)) {
        bytes += *byte;
      } else {
        append_bytes();
        out.push_back(std::move(text));
      }
    }
    append_bytes();
    texts = std::move(out);
  };
}

Decoder fuse_texts() {
  return [](Texts& texts) {
    std::string all;
    for (const std::string& text : texts) all += text;
    texts = {all};
  };
}

Decoder strip_texts(std::string character, size_t start, size_t stop) {
  return decode_each([character = std::move(character), start, stop](const std::string& text) {
    std::string_view rest = text;
    for (size_t i = 0; i < start && rest.starts_with(character); ++i)
      rest.remove_prefix(character.size());
    for (size_t i = 0; i < stop && rest.ends_with(character); ++i)
      rest.remove_suffix(character.size());
    return std::string(rest);
  });
}

Decoder replace_in_texts(std::string pattern, std::string content) {
  return decode_each([pattern = std::move(pattern), content = std::move(content)](
                         const std::string& text) { return replace_all(text, pattern, content); });
}

Decoder replace_in_texts(Regex pattern, std::string content) {
  return decode_each([pattern = std::move(pattern), content = std::move(content)](
                         const std::string& text) { return replace_all(text, pattern, content); });
}

Decoder decode_ctc(std::string pad, std::string word_delimiter, bool cleanup) {
  return [=](Texts& texts) {
    texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
    for (std::string& text : texts) {
      text = replace_all(text, pad, "");
      if (cleanup) text = replace_all(without_spaces_of_punctuation(text), word_delimiter, " ");
    }
    std::erase(texts, "");
  };
}

}  // namespace tiny::models::tokenizers
