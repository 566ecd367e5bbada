// onnxruntime beside extra/onnx_run.cpp and extra/bench/onnx.cpp, which start this and write lines:
//
//   npm install --prefix build --ignore-scripts onnxruntime-node
//
// Takes a model, a number of threads and a folder with inputs.json: names, types, dims and files of
// raw elements. For each line "run" it prints the milliseconds of a run; at "end" it writes the
// outputs, with outputs.json, to the folder.
import {readFileSync, writeFileSync} from 'node:fs';
import {createRequire} from 'node:module';
import {createInterface} from 'node:readline';
import {pathToFileURL} from 'node:url';

const found = createRequire(process.cwd() + '/build/').resolve('onnxruntime-node');
const ort = (await import(pathToFileURL(found).href)).default;
const [model, threads, folder] = process.argv.slice(2);

const arrays = {
  float32: Float32Array,
  float64: Float64Array,
  int8: Int8Array,
  uint8: Uint8Array,
  int16: Int16Array,
  uint16: Uint16Array,
  int32: Int32Array,
  uint32: Uint32Array,
  int64: BigInt64Array,
  uint64: BigUint64Array,
  bool: Uint8Array,
  float16: Uint16Array,
};
const feeds = {};
for (const {name, type, dims, file} of JSON.parse(readFileSync(`${folder}/inputs.json`))) {
  const bytes = readFileSync(`${folder}/${file}`);
  const data =
      new arrays[type](bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length));
  feeds[name] = new ort.Tensor(type, data, dims);
}
const session = await ort.InferenceSession.create(
    model, {intraOpNumThreads: Number(threads), interOpNumThreads: 1});
let results = {};
console.log('ready');
for await (const line of createInterface({input: process.stdin})) {
  if (line === 'end') break;
  const begin = performance.now();
  results = await session.run(feeds);
  console.log((performance.now() - begin).toFixed(4));
}
const outputs = session.outputNames.map((name, i) => {
  const {type, dims, data} = results[name];
  writeFileSync(
      `${folder}/output_${i}`, new Uint8Array(data.buffer, data.byteOffset, data.byteLength));
  return {name, type, dims, file: `output_${i}`};
});
writeFileSync(`${folder}/outputs.json`, JSON.stringify(outputs));
console.log('done');
process.exit(0);
