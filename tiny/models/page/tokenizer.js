// Text to token ids and back as a tokenizer.json says: byte pair encoding with the steps around it
// that models of language have. One file without dependencies; ids and text are those of tiny's
// class Tokenizer. What it does not know is an error that names it.
//
//   const t = new Tokenizer(await (await fetch('tokenizer.json')).json());
//   t.encode('Hello');  t.decode([1, 2]);
//   const s = t.stream();  s.push(1) + s.push(2) + s.finish();   // whole characters

const unknown = (what, value) => { throw new Error(`tokenizer.json: ${what} is not supported: ${JSON.stringify(value)}`); };
const toUtf8 = new TextEncoder(), fromUtf8 = new TextDecoder('utf-8', {ignoreBOM: true});
const strictUtf8 = new TextDecoder('utf-8', {ignoreBOM: true, fatal: true});

// --- Regular expressions -------------------------------------------------------------------------

const kEscapes = {s: '\\p{White_Space}', S: '\\P{White_Space}', d: '\\p{Nd}', D: '\\P{Nd}', h: '0-9a-fA-F',
                  r: '\\r', n: '\\n', t: '\\t', f: '\\f', v: '\\v'};
const kAnchors = {A: '(?<![^])', z: '(?![^])', Z: '(?=\\n?(?![^]))'};
const kWord = '\\p{L}\\p{M}\\p{N}\\p{Pc}';
// Letters that are equal without regard to case, where there are more than two.
const kCases = {k: 'kK\u212a', s: 'sS\u017f'};

// Oniguruma's syntax, which tokenizer.json has, as that of JavaScript with the flags u and m. Groups
// without regard to case, which not all browsers know, become classes of letters.
function toRegex(pattern) {
  const fail = () => unknown('the regular expression', pattern);
  let out = '', inside = false;
  const insensitive = [false];  // by the depth of groups
  for (let i = 0; i < pattern.length; ++i) {
    const c = pattern[i], fold = insensitive.at(-1);
    if (c === '\\') {
      const e = pattern[++i] ?? fail();
      if (/[pP]/.test(e)) {
        const name = /^\{\^?\w+\}/.exec(pattern.slice(i + 1))?.[0] ?? fail();
        out += name[1] === '^' ? `\\${e === 'p' ? 'P' : 'p'}{${name.slice(2)}` : `\\${e}${name}`;
        i += name.length;
      } else if (e in kEscapes) out += e === 'h' && !inside ? `[${kEscapes.h}]` : kEscapes[e];
      else if (e === 'w') out += inside ? kWord : `[${kWord}]`;
      else if (e in kAnchors && !inside) out += kAnchors[e];
      else if (e === 'u' || e === 'x') out += `\\${e}`;
      else if (/[a-zA-Z0-9]/.test(e)) fail();
      else out += /[\^$\\.*+?()[\]{}|/-]/.test(e) && (inside || e !== '-') ? `\\${e}` : e;
    } else if (inside) {
      if (c === '[' || pattern.startsWith('&&', i)) fail();
      inside = c !== ']';
      out += c;
    } else if (c === '[') {
      if (fold) fail();
      inside = true;
      out += c;
    } else if (c === '(') {
      const [flags, , colon] = /^\(\?([a-z]+)(:|\))/.exec(pattern.slice(i)) ?? [''];
      const kind = /^\(\?i(:|\))/.exec(pattern.slice(i));
      if (flags && !kind) fail();
      if (kind && colon === ')') insensitive[insensitive.length - 1] = true;
      else insensitive.push(fold || !!kind);
      if (kind) i += kind[0].length - 1;
      if (colon !== ')') out += kind ? '(?:' : '(';
    } else {
      if (c === ')' && insensitive.length > 1) insensitive.pop();
      if (fold && c > '\x7f') fail();
      if (fold && /[a-z]/i.test(c)) out += `[${kCases[c.toLowerCase()] ?? c.toLowerCase() + c.toUpperCase()}]`;
      else out += c === '.' ? '[^\\n]' : c;
    }
  }
  try { return new RegExp(out, 'gum'); } catch { return fail(); }
}

const quoted = text => text.replace(/[\^$\\.*+?()[\]{}|/]/g, '\\$&');
// {"String": text} or {"Regex": pattern}.
function patternOf(p) {
  if (p?.Regex !== undefined) return toRegex(p.Regex);
  return typeof p?.String === 'string' ? new RegExp(quoted(p.String), 'gu') : unknown('the pattern', p);
}

// --- Steps ---------------------------------------------------------------------------------------

const sequence = (steps, read) => { const all = steps.map(read); return x => all.reduce((y, f) => f(y), x); };
const replacer = p => { const regex = patternOf(p.pattern); return text => text.replace(regex, () => p.content); };

function normalizerOf(n) {
  switch (n?.type) {
    case undefined: return text => text;
    case 'Sequence': return sequence(n.normalizers, normalizerOf);
    case 'NFC': case 'NFD': case 'NFKC': case 'NFKD': return text => text.normalize(n.type);
    case 'Lowercase': return text => Array.from(text, c => c.toLowerCase()).join('');
    case 'Prepend': return text => text && n.prepend + text;
    case 'Replace': return replacer(n);
    case 'Strip': return text => {
      if (n.strip_left ?? true) text = text.replace(/^\p{White_Space}+/u, '');
      return n.strip_right ?? true ? text.replace(/\p{White_Space}+$/u, '') : text;
    };
    default: return unknown('normalizer.type', n.type);
  }
}

// GPT-2's alphabet: the characters of the 256 bytes, of those that print themselves.
const kCharacters = [], kBytes = new Map();
for (let byte = 0, next = 256; byte < 256; ++byte) {
  const prints = (0x21 <= byte && byte <= 0x7e) || (0xa1 <= byte && byte !== 0xad);
  kCharacters.push(String.fromCharCode(prints ? byte : next++));
  kBytes.set(kCharacters[byte], byte);
}
const toByteLevel = text => Array.from(toUtf8.encode(text), b => kCharacters[b]).join('');
const kGpt2Pattern = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

// The parts of a piece, matches and what is between them, by what becomes of matches.
function splitBy(regex, behavior, invert) {
  return ({text, first}) => {
    const parts = [];
    let done = 0;
    const add = (begin, end, match) => parts.push({begin, end, match: match !== !!invert});
    for (const m of text.matchAll(regex)) {
      if (done !== m.index) add(done, m.index, false);
      add(m.index, done = m.index + m[0].length, true);
    }
    if (done !== text.length) add(done, text.length, false);
    const out = [];
    let open = false;  // the next part joins the last one
    for (const p of parts) {
      const last = out.at(-1);
      const joins = last && (behavior === 'MergedWithPrevious' ? p.match && !last.afterMatch :
                             behavior === 'MergedWithNext' ? open && !p.match :
                             behavior === 'Contiguous' && last.match === p.match);
      if (joins) last.end = p.end;
      else out.push({...p});
      out.at(-1).afterMatch = p.match;
      open = p.match;
    }
    return out.filter(p => p.begin < p.end && !(behavior === 'Removed' && p.match))
      .map(p => ({text: text.slice(p.begin, p.end), first: first && p.begin === 0}));
  };
}

const kBehaviors = ['Removed', 'Isolated', 'MergedWithPrevious', 'MergedWithNext', 'Contiguous'];
const each = change => pieces => pieces.map(p => ({...p, text: change(p.text, p.first)}));
const splitter = (regex, behavior, invert) => {
  if (!kBehaviors.includes(behavior)) unknown('behavior', behavior);
  const split = splitBy(regex, behavior, invert);
  return pieces => pieces.flatMap(split);
};

// From pieces {text, first: whether it begins the text} to such.
function preTokenizerOf(p) {
  switch (p?.type) {
    case undefined: return pieces => pieces;
    case 'Sequence': return sequence(p.pretokenizers, preTokenizerOf);
    case 'Split': return splitter(patternOf(p.pattern), p.behavior ?? 'Isolated', p.invert);
    case 'Digits': return splitter(/\p{N}/gu, p.individual_digits ? 'Isolated' : 'Contiguous');
    case 'Whitespace': return splitter(new RegExp(`[${kWord}]+|[^${kWord}\\p{White_Space}]+`, 'gu'), 'Removed', true);
    case 'WhitespaceSplit': return splitter(/\p{White_Space}/gu, 'Removed');
    case 'ByteLevel': return sequence([
      ...(p.add_prefix_space ?? true ? [each(t => t.startsWith(' ') ? t : ' ' + t)] : []),
      ...(p.use_regex ?? true ? [splitter(toRegex(kGpt2Pattern), 'Isolated')] : []), each(toByteLevel)], f => f);
    case 'Metaspace': {
      const mark = p.replacement ?? '\u2581', scheme = p.add_prefix_space === false ? 'never' : p.prepend_scheme ?? 'always';
      if (!['always', 'first', 'never'].includes(scheme)) unknown('prepend_scheme', scheme);
      const replace = each((text, first) => {
        const out = text.replaceAll(' ', mark);
        return (scheme === 'always' || (scheme === 'first' && first)) && !out.startsWith(mark) ? mark + out : out;
      });
      return p.split ?? true ? sequence([replace, splitter(new RegExp(quoted(mark), 'gu'), 'MergedWithNext')], f => f) : replace;
    }
    default: return unknown('pre_tokenizer.type', p.type);
  }
}

// From ids to ids with what a model expects around them.
function postProcessorOf(p) {
  switch (p?.type) {
    case undefined: case 'ByteLevel': return ids => ids;
    case 'Sequence': return sequence(p.processors, postProcessorOf);
    case 'TemplateProcessing': return ids => p.single.flatMap(
      piece => piece.SpecialToken ? p.special_tokens[piece.SpecialToken.id].ids : ids);
    default: return unknown('post_processor.type', p.type);
  }
}

function decodeByteFallback(texts) {
  const out = [];
  let bytes = [];
  const end = () => {
    try { if (bytes.length) out.push(strictUtf8.decode(Uint8Array.from(bytes))); }
    catch { out.push(...bytes.map(() => '\ufffd')); }
    bytes = [];
  };
  for (const text of texts) {
    const byte = /^<0x([0-9a-fA-F]{2})>$/.exec(text);
    if (byte) bytes.push(parseInt(byte[1], 16));
    else { end(); out.push(text); }
  }
  end();
  return out;
}

// A token with characters that no byte has is its own text.
const bytesOf = token => {
  const bytes = Array.from(token, c => kBytes.get(c));
  return bytes.includes(undefined) ? [...toUtf8.encode(token)] : bytes;
};

// From the texts of tokens to texts.
function decoderOf(d) {
  switch (d?.type) {
    case 'Sequence': return sequence(d.decoders, decoderOf);
    case 'ByteLevel': return texts => [fromUtf8.decode(Uint8Array.from(texts.flatMap(bytesOf)))];
    case 'ByteFallback': return decodeByteFallback;
    case 'Fuse': return texts => [texts.join('')];
    case 'Replace': { const replace = replacer(d); return texts => texts.map(replace); }
    case 'Strip': return texts => texts.map(text => {
      for (let i = 0; i < (d.start ?? 0) && text.startsWith(d.content); ++i) text = text.slice(d.content.length);
      for (let i = 0; i < (d.stop ?? 0) && text.endsWith(d.content); ++i) text = text.slice(0, -d.content.length);
      return text;
    });
    case 'Metaspace': {
      const mark = d.replacement ?? '\u2581', prepends = d.add_prefix_space !== false && d.prepend_scheme !== 'never';
      return texts => texts.map((text, i) => text.replaceAll(mark, i === 0 && prepends ? '' : ' '));
    }
    default: return unknown('decoder.type', d?.type ?? null);
  }
}

// --- Byte pair encoding --------------------------------------------------------------------------

const kIds = 2 ** 26;  // more than a vocabulary has: two of them fit in a number

class Bpe {
  constructor(model) {
    if ((model.type ?? (model.merges ? 'BPE' : null)) !== 'BPE') unknown('model.type', model.type);
    this.options = model;
    this.ids = new Map(Object.entries(model.vocab));
    this.unknownId = model.unk_token == null ? -1 : this.ids.get(model.unk_token) ?? -1;
    this.merges = new Map();  // of two ids: rank and id
    const prefix = model.continuing_subword_prefix ?? '';
    let rank = 0;
    for (const merge of model.merges) {
      if (typeof merge === 'string' && merge.startsWith('#version')) continue;
      const [left, right] = typeof merge === 'string' ? merge.split(' ') : merge;
      const [a, b, merged] = [left, right, left + right.slice(prefix.length)].map(t => this.ids.get(t));
      if (merged === undefined || a === undefined || b === undefined) unknown('a merge without its token', merge);
      this.merges.set(a * kIds + b, [rank++, merged]);
    }
    this.known = new Map();  // ids of short pieces
  }

  symbols(piece) {
    const {continuing_subword_prefix: prefix, end_of_word_suffix: suffix, byte_fallback, fuse_unk} = this.options;
    const all = Array.from(piece), out = [];
    let pending = false;  // an unknown token that is still to come
    const end = () => { if (pending) out.push(this.unknownId); pending = false; };
    for (const [i, c] of all.entries()) {
      const text = (i && prefix || '') + c + (i + 1 === all.length && suffix || ''), id = this.ids.get(text);
      const bytes = id === undefined && byte_fallback ?
        Array.from(toUtf8.encode(text), b => this.ids.get(`<0x${b.toString(16).toUpperCase().padStart(2, '0')}>`)) : [undefined];
      if (id !== undefined) { end(); out.push(id); }
      else if (!bytes.includes(undefined)) out.push(...bytes);
      else { if (!fuse_unk) end(); pending = this.unknownId >= 0; }
    }
    end();
    return out;
  }

  // The two neighbours of the lowest rank, from the left, become one until none are merged.
  encode(piece) {
    const before = this.known.get(piece);
    if (before) return before;
    if (this.options.ignore_merges && this.ids.has(piece)) return [this.ids.get(piece)];
    const ids = this.symbols(piece), find = i => this.merges.get(ids[i] * kIds + ids[i + 1]);
    const merges = ids.map((_, i) => find(i));
    for (;;) {
      let best = -1;
      for (let i = 0; i < merges.length; ++i)
        if (merges[i] && (best < 0 || merges[i][0] < merges[best][0])) best = i;
      if (best < 0) break;
      ids.splice(best, 2, merges[best][1]);
      merges.splice(best, 1);
      merges[best] = find(best);
      if (best) merges[best - 1] = find(best - 1);
    }
    if (piece.length < 32 && this.known.size < 1 << 14) this.known.set(piece, ids);
    return ids;
  }
}

// --- The tokenizer -------------------------------------------------------------------------------

// Splits text at added tokens: the leftmost, the longest at each place.
class AddedTokens {
  constructor(tokens, contentOf) {
    this.tokens = new Map(tokens.map(t => [contentOf(t), t]).filter(([content]) => content));
    const all = [...this.tokens.keys()].sort((a, b) => b.length - a.length);
    this.regex = all.length ? new RegExp(all.map(quoted).join('|'), 'gu') : null;
  }

  split(text) {
    const parts = [];
    let done = 0;
    for (const m of this.regex ? text.matchAll(this.regex) : []) {
      const token = this.tokens.get(m[0]);
      let begin = m.index, end = begin + m[0].length;
      const word = `[${kWord}\\u200c\\u200d]`;
      if (token.single_word && (new RegExp(`${word}$`, 'u').test(text.slice(0, begin)) ||
                                new RegExp(`^${word}`, 'u').test(text.slice(end)))) continue;
      if (token.lstrip) begin = Math.max(done, begin - /\p{White_Space}*$/u.exec(text.slice(0, begin))[0].length);
      if (token.rstrip) end += /^\p{White_Space}*/u.exec(text.slice(end))[0].length;
      if (begin < done) begin = done;
      if (begin >= end) continue;
      if (done < begin) parts.push({begin: done, text: text.slice(done, begin)});
      parts.push({id: token.id});
      done = end;
    }
    if (done < text.length) parts.push({begin: done, text: text.slice(done)});
    return parts;
  }
}

export class Tokenizer {
  constructor(json) {
    if (json.truncation) unknown('truncation', json.truncation);
    if (json.padding) unknown('padding', json.padding);
    this.model = new Bpe(json.model);
    this.normalize = normalizerOf(json.normalizer);
    this.preTokenize = preTokenizerOf(json.pre_tokenizer);
    this.postProcess = postProcessorOf(json.post_processor);
    this.decodeTexts = json.decoder ? decoderOf(json.decoder) : null;
    this.tokens = new Map();  // by id
    for (const [token, id] of this.model.ids) this.tokens.set(id, token);
    this.special = new Set();
    const added = new Map();
    let next = 0;
    for (const t of json.added_tokens ?? []) {
      if (!t.content) continue;
      const id = added.get(t.content)?.id ?? this.model.ids.get(t.content) ?? Math.max(next, this.model.ids.size);
      next = Math.max(next, id + 1);
      added.set(t.content, {...t, id, normalized: t.normalized ?? !t.special});
      this.tokens.set(id, t.content);
      if (t.special) this.special.add(t.content);
    }
    const all = [...added.values()];
    this.plain = new AddedTokens(all.filter(t => !t.normalized), t => t.content);
    this.normalized = new AddedTokens(all.filter(t => t.normalized), t => this.normalize(t.content));
  }

  // What is no Unicode (half of a pair) counts as U+FFFD.
  encode(given, addSpecialTokens = true) {
    const text = fromUtf8.decode(toUtf8.encode(given)), ids = [];
    for (const part of this.plain.split(text)) {
      if (part.id !== undefined) { ids.push(part.id); continue; }
      for (const inner of this.normalized.split(this.normalize(part.text))) {
        if (inner.id !== undefined) { ids.push(inner.id); continue; }
        const first = part.begin === 0 && inner.begin === 0;
        for (const p of this.preTokenize([{text: inner.text, first}])) for (const id of this.model.encode(p.text)) ids.push(id);
      }
    }
    return addSpecialTokens ? this.postProcess(ids) : ids;
  }

  // Ids that no token has are left out.
  decode(ids, skipSpecialTokens = true) {
    const texts = Array.from(ids, id => this.tokens.get(Number(id)))
      .filter(t => t !== undefined && !(skipSpecialTokens && this.special.has(t)));
    return this.decodeTexts ? this.decodeTexts(texts).join('') : texts.join(' ');
  }

  // Text of ids that come one by one: push(id) gives what it completes, finish() what is left.
  stream(skipSpecialTokens = true) {
    const decode = list => this.decode(list, skipSpecialTokens);
    let ids = [], given = 0, before = '';  // ids whose text is not given, after those that it depends on
    const rest = () => {
      const text = decode(ids);
      return text.startsWith(before) ? text.slice(before.length) : decode(ids.slice(given));
    };
    return {
      push(id) {
        ids.push(id);
        const text = rest();
        if (!text || text.endsWith('\ufffd')) return '';
        ids = ids.slice(given);
        given = ids.length;
        before = decode(ids);
        return text;
      },
      finish() {
        const text = rest();
        ids = [];
        given = 0;
        before = '';
        return text;
      },
    };
  }
}
