#include "tiny/models/tokenizers/parts/pre_tokenizer.h"

#include <utility>

#include "tiny/models/text/unicode.h"
#include "tiny/models/tokenizers/parts/byte_level.h"
#include "tiny/models/tokenizers/parts/normalizer.h"

namespace tiny::models::tokenizers {
namespace {

// A part of a piece, and whether it is a match. The parts cover the piece.
struct Part {
  size_t begin, end;
  bool match;
};
using Parts = std::vector<Part>;

Parts parts_of(const std::vector<Match>& matches, size_t size) {
  Parts parts;
  size_t done = 0;
  for (const Match& m : matches) {
    if (done != m.begin) parts.push_back({done, m.begin, false});
    parts.push_back({m.begin, m.end, true});
    done = m.end;
  }
  if (done != size) parts.push_back({done, size, false});
  return parts;
}

// Joins runs of the same kind.
Parts contiguous(const Parts& parts) {
  Parts out;
  for (const Part& part : parts) {
    if (!out.empty() && out.back().match == part.match) {
      out.back().end = part.end;
    } else {
      out.push_back(part);
    }
  }
  return out;
}

// A match joins what stands before it, unless that is a match.
Parts merged_with_previous(const Parts& parts) {
  Parts out;
  bool after_match = false;
  for (const Part& part : parts) {
    if (part.match && !after_match && !out.empty()) {
      out.back().end = part.end;
    } else {
      out.push_back(part);
    }
    after_match = part.match;
  }
  return out;
}

Parts merged_with_next(const Parts& parts) {
  Parts out;
  for (size_t i = 0; i < parts.size(); ++i) {
    out.push_back(parts[i]);
    if (parts[i].match && i + 1 < parts.size() && !parts[i + 1].match)
      out.back().end = parts[++i].end;
  }
  return out;
}

Parts without_matches(Parts parts) {
  std::erase_if(parts, [](const Part& part) { return part.match; });
  return parts;
}

Parts behave(Parts parts, SplitBehavior behavior) {
  switch (behavior) {
    case SplitBehavior::Removed: return without_matches(std::move(parts));
    case SplitBehavior::Isolated: return parts;
    case SplitBehavior::MergedWithPrevious: return merged_with_previous(parts);
    case SplitBehavior::MergedWithNext: return merged_with_next(parts);
    case SplitBehavior::Contiguous: return contiguous(parts);
  }
  return parts;
}

// Replaces each piece by the parts that `parts(piece)` names, but for empty ones.
template <class PartsOf> void split(Pieces& pieces, const PartsOf& parts) {
  std::vector<Pieces::Span> out;
  out.reserve(pieces.spans.size());
  for (const Pieces::Span& span : pieces.spans)
    for (const Part& part : parts(pieces.piece(span)))
      if (part.begin < part.end)
        out.push_back(
            {span.begin + part.begin, span.begin + part.end, span.starts_text && part.begin == 0});
  pieces.spans = std::move(out);
}

// Replaces the text of each piece: append(text of all pieces, piece, whether it starts the text).
template <class Append> void rewrite(Pieces& pieces, const Append& append) {
  std::string text;
  text.reserve(pieces.text.size() + pieces.text.size() / 4);
  for (Pieces::Span& span : pieces.spans) {
    const size_t begin = text.size();
    append(text, pieces.piece(span), span.starts_text);
    span = {begin, text.size(), span.starts_text};
  }
  pieces.text = std::move(text);
}

template <class IsMatch> Parts character_parts(std::string_view text, const IsMatch& is_match) {
  std::vector<Match> matches;
  for_each_code_point(text, [&](char32_t c, size_t at, size_t size) {
    if (is_match(c)) matches.push_back({at, at + size});
  });
  return parts_of(matches, text.size());
}

// Word characters 1, white space 0, all others 2.
int word_kind(char32_t c) { return is_word(c) ? 1 : is_white_space(c) ? 0 : 2; }

Parts word_parts(std::string_view text) {
  Parts parts;
  int before = -1;
  for_each_code_point(text, [&](char32_t c, size_t at, size_t size) {
    const int kind = word_kind(c);
    if (kind != before) parts.push_back({at, at, kind == 0});
    parts.back().end = at + size;
    before = kind;
  });
  return without_matches(std::move(parts));
}

}  // namespace

PreTokenizer pre_tokenize_in_sequence(std::vector<PreTokenizer> steps) {
  return [steps = std::move(steps)](Pieces& pieces) {
    for (const PreTokenizer& step : steps) step(pieces);
  };
}

PreTokenizer split_at(Regex pattern, SplitBehavior behavior, bool invert) {
  return [pattern = std::move(pattern), behavior, invert](Pieces& pieces) {
    split(pieces, [&](std::string_view text) {
      Parts parts = parts_of(pattern.find_all(text), text.size());
      if (invert)
        for (Part& part : parts) part.match = !part.match;
      return behave(std::move(parts), behavior);
    });
  };
}

PreTokenizer split_at(std::function<bool(char32_t)> is_match, SplitBehavior behavior) {
  return [is_match = std::move(is_match), behavior](Pieces& pieces) {
    split(pieces,
          [&](std::string_view text) { return behave(character_parts(text, is_match), behavior); });
  };
}

PreTokenizer split_words() {
  return [](Pieces& pieces) { split(pieces, word_parts); };
}

PreTokenizer split_for_bert() {
  return pre_tokenize_in_sequence({split_at(is_white_space, SplitBehavior::Removed),
                                   split_at(is_punctuation, SplitBehavior::Isolated)});
}

PreTokenizer split_every(size_t code_points) {
  return [code_points](Pieces& pieces) {
    split(pieces, [&](std::string_view text) {
      Parts parts;
      size_t count = 0;
      for_each_code_point(text, [&](char32_t, size_t at, size_t size) {
        if (count++ % code_points == 0) parts.push_back({at, at, false});
        parts.back().end = at + size;
      });
      return parts;
    });
  };
}

PreTokenizer pre_tokenize_byte_level(bool add_prefix_space, bool split) {
  std::vector<PreTokenizer> steps;
  if (add_prefix_space)
    steps.emplace_back([](Pieces& pieces) {
      rewrite(pieces, [](std::string& out, std::string_view text, bool) {
        if (!text.starts_with(' ')) out += ' ';
        out += text;
      });
    });
  if (split) steps.push_back(split_at(Regex(kGpt2Pattern), SplitBehavior::Isolated, false));
  steps.emplace_back([](Pieces& pieces) {
    rewrite(pieces,
            [](std::string& out, std::string_view text, bool) { append_byte_level(out, text); });
  });
  return pre_tokenize_in_sequence(std::move(steps));
}

PreTokenizer pre_tokenize_metaspace(std::string replacement, PrependScheme scheme, bool split) {
  PreTokenizer replace = [replacement, scheme](Pieces& pieces) {
    rewrite(pieces, [&](std::string& out, std::string_view text, bool starts_text) {
      const std::string replaced = replace_all(text, " ", replacement);
      const bool wanted =
          scheme == PrependScheme::Always || (scheme == PrependScheme::First && starts_text);
      if (wanted && !replaced.starts_with(replacement)) out += replacement;
      out += replaced;
    });
  };
  if (!split) return replace;
  const char32_t character = code_point_at(replacement, 0).value;
  return pre_tokenize_in_sequence(
      {std::move(replace), split_at([character](char32_t c) { return c == character; },
                                    SplitBehavior::MergedWithNext)});
}

}  // namespace tiny::models::tokenizers
