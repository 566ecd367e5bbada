// Writes on from a text with the language model of a folder that export_chat wrote.
//
//   import {openChat} from './chat.js';
//   const chat = await openChat('.');                  // the folder's address
//   for await (const piece of chat.write('Once')) console.log(piece);
//
// write(text, {tokens, temperature, top_k, top_p, min_p, repetition_penalty, seed, stop, signal})
// gives text as it comes. What is not named is as chat.json says; with a seed the draws are those of
// tiny's class Sampler. chat.answer has the tokens of the last answer, chat.report its times in ms.
import {load} from './model.js';
import {Tokenizer} from './tokenizer.js';

// SplitMix64 (G. Steele, D. Lea, C. Flood, 2014), and numbers from 0 to below 1 made of it.
const kAll = (1n << 64n) - 1n;
function splitmix(state) {
  return () => {
    state = (state + 0x9e3779b97f4a7c15n) & kAll;
    let z = ((state ^ (state >> 30n)) * 0xbf58476d1ce4e5b9n) & kAll;
    z = ((z ^ (z >> 27n)) * 0x94d049bb133111ebn) & kAll;
    return z ^ (z >> 31n);
  };
}
export function randomOf(seed) {
  const bits = splitmix(splitmix(splitmix(BigInt(seed))())());
  return () => Number(bits() >> 11n) * 2 ** -53;
}

// The next token by its logits: tiny/models/sampling.cpp says why in this order.
export function sample(logits, seen, {temperature = 0, top_k = 0, top_p = 1, min_p = 0, repetition_penalty = 1}, random) {
  if (repetition_penalty !== 1)
    for (const token of new Set(seen))
      logits[token] = logits[token] < 0 ? logits[token] * repetition_penalty : logits[token] / repetition_penalty;
  let best = 0;
  for (let i = 0; i < logits.length; ++i) {
    if (Number.isNaN(logits[i])) throw new Error('a logit is NaN');
    if (logits[i] > logits[best]) best = i;
  }
  if (!temperature) return best;
  const better = (a, b) => logits[b] - logits[a] || a - b, all = logits.length;
  let list = Array.from(logits, (_, i) => i);
  if (top_k && top_k < all) list = list.sort(better).slice(0, top_k);
  const weight = i => Math.exp((logits[i] - logits[best]) / temperature);
  const total = some => some.reduce((sum, i) => sum + weight(i), 0);
  if (top_p < 1) {
    const wanted = top_p * total(list);
    let sum = 0, count = 0;
    list.sort(better);
    while (count < list.length && sum < wanted) sum += weight(list[count++]);
    list = list.slice(0, Math.max(count, 1));
  }
  list = list.filter(i => weight(i) >= min_p).sort((a, b) => a - b);
  let left = random() * total(list);
  for (const i of list) if ((left -= weight(i)) < 0) return i;
  return best;
}

class Chat {
  constructor(model, tokenizer, settings) {
    Object.assign(this, {model, tokenizer, settings, answer: [], report: {}});
    this.held = [];  // tokens of the caches' columns
  }

  async *write(text, options = {}) {
    const o = {...this.settings, ...options}, {context, eos} = this.settings, {held} = this;
    const ids = this.tokenizer.encode(text), stream = this.tokenizer.stream();
    if (!ids.length) throw new Error('a text without tokens');
    if (ids.length > context) throw new Error(`${ids.length} tokens, and there is room for ${context}`);
    const random = o.seed === undefined ? Math.random : randomOf(o.seed);
    const greedy = !o.temperature && (o.repetition_penalty ?? 1) === 1;
    // Columns of tokens that are the same are there already. The last one's result is not.
    let at = 0;
    while (at + 1 < ids.length && held[at] === ids[at]) ++at;
    const answer = this.answer = [], begin = performance.now();
    const report = this.report = {read: ids.length - at, first: 0, steps: []};
    for (let before = begin; ;) {
      let out;
      for (; at < ids.length; ++at) {
        const outputs = at + 1 < ids.length ? [] : [greedy ? 'next' : 'logits'];
        held.length = Math.min(held.length, at);
        out = await this.model.run({token: [ids[at]], first: at}, {outputs});
        held[at] = ids[at];
      }
      const token = greedy ? out.next[0] : sample(out.logits, ids, o, random);
      ids.push(token);
      answer.push(token);
      const now = performance.now();
      if (answer.length > 1) report.steps.push(now - before);
      else report.first = now - begin;
      before = now;
      yield stream.push(token);
      if (answer.length >= o.tokens || eos.includes(token) || ids.length > context || o.signal?.aborted ||
          (o.stop && this.tokenizer.decode(answer).includes(o.stop))) break;
    }
    yield stream.finish();
  }
}

export async function openChat(url = '.', {device, progress} = {}) {
  const read = async name => {
    const response = await fetch(`${url}/${name}`);
    if (!response.ok) throw new Error(`${url}/${name}: ${response.status} ${response.statusText}`);
    return response.json();
  };
  const tokenizer = new Tokenizer(await read('tokenizer.json'));
  return new Chat(await load(url, {device, progress}), tokenizer, await read('chat.json'));
}
