// Encodes and decodes with the tokenizer.js of a page and compares.
//   node tokenizer.mjs TOKENIZER.js TOKENIZER.json ENCODINGS.json
// ENCODINGS is a list of {text, ids, decoded}, as models that are shared have, and as the class
// Tokenizer gives. Prints how many agree, and what does not.
import {readFileSync} from 'node:fs';

const [script, file, encodings] = process.argv.slice(2), text = path => readFileSync(path, 'utf8');
// A module, whatever its name says to node.
const {Tokenizer} = await import(`data:text/javascript,${encodeURIComponent(text(script))}`);
const tokenizer = new Tokenizer(JSON.parse(text(file))), rows = JSON.parse(text(encodings));
let wrong = 0;
for (const {text, ids, decoded} of rows) {
  const own = tokenizer.encode(text), back = tokenizer.decode(ids), stream = tokenizer.stream();
  const streamed = ids.map(id => stream.push(id)).join('') + stream.finish();
  if (JSON.stringify(own) === JSON.stringify(ids) && back === decoded && streamed === decoded) continue;
  if (wrong++ < 5) console.log(JSON.stringify({text, own, ids, back, streamed, decoded}));
}
console.log(`${rows.length - wrong} of ${rows.length} encodings agree`);
process.exitCode = wrong || !rows.length ? 1 : 0;
